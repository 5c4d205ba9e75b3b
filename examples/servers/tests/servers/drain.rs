//! The end of a server that has clients: what it still owes them, and how long it waits.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::process::PATIENCE;

use crate::client::Client;
use crate::hostile::fill;
use crate::on_both_engines;
use crate::server::{Server, Skipped, Verdict};

on_both_engines!(
    every_command_that_came_whole_is_answered,
    a_client_that_has_ended_gets_its_answers,
    a_client_that_quits_gets_its_answers,
    clients_that_were_closed_before_get_their_answers,
    answers_to_a_flood_end_at_a_boundary,
    an_echo_ends_with_what_was_read,
    a_client_that_does_not_read_is_reset_at_the_deadline,
    a_second_signal_ends_it_at_once,
    an_idle_client_is_waited_for,
    no_time_to_drain_is_an_end_at_once,
    a_draining_server_refuses_connections,
);

const VALUE: usize = 100_000;

/// One thread, and more time to drain than a test takes.
const PATIENT: [&str; 4] = ["--threads", "1", "--drain-timeout", "3600"];

/// A client of a server that keeps a value for it.
fn client_with_value(server: &Server) -> (Client, Vec<u8>) {
    let mut client = Client::connect(server.address);
    client.send(format!("set big 0 0 {VALUE}\r\n"));
    let value: Vec<u8> = (0..VALUE).map(|index| b'a' + (index % 23) as u8).collect();
    client.send(&value);
    client.ask("\r\n", "STORED\r\n");
    let answer = [format!("VALUE big 0 {VALUE}\r\n").as_bytes(), &value, b"\r\nEND\r\n"].concat();
    (client, answer)
}

/// Reads to the end of the stream, which a reset is not.
#[track_caller]
fn read_all(client: &mut Client) -> Vec<u8> {
    let mut answer = Vec::new();
    let result = client.stream.read_to_end(&mut answer);
    assert!(result.is_ok(), "after {} bytes: {result:?}", answer.len());
    answer
}

/// Waits for a server whose clients have gone; that is a success, and nothing is printed.
#[track_caller]
fn ends(server: Server) {
    let (status, said) = server.wait();
    assert!(status.success(), "{status}");
    assert_eq!(said, "");
}

/// A client that sends `count` commands, then `rest`, and reads after the signal.
#[track_caller]
fn gets_all(server: Server, count: usize, rest: &str, end: impl FnOnce(&TcpStream)) {
    let (mut client, answer) = client_with_value(&server);
    client.send("get big\r\n".repeat(count));
    client.send(rest);
    end(&client.stream);
    // By the time another client has its answer, the commands have arrived.
    Client::connect(server.address).ask("get none\r\n", "END\r\n");
    server.signal(Signal::TERM);
    let got = read_all(&mut client);
    assert!(got == answer.repeat(count), "{} bytes of {}", got.len(), count * answer.len());
    drop(client);
    ends(server);
}

fn every_command_that_came_whole_is_answered(engine: &'static str) -> Verdict {
    gets_all(Server::start(engine, "kv", &PATIENT)?, 100, "set part 0 0 10\r\n01234", |_| ());
    Ok(())
}

fn a_client_that_has_ended_gets_its_answers(engine: &'static str) -> Verdict {
    gets_all(Server::start(engine, "kv", &PATIENT)?, 100, "", |stream| {
        stream.shutdown(Shutdown::Write).expect("the stream is open");
    });
    Ok(())
}

fn a_client_that_quits_gets_its_answers(engine: &'static str) -> Verdict {
    gets_all(Server::start(engine, "kv", &PATIENT)?, 100, "quit\r\nget big\r\n", |_| ());
    Ok(())
}

/// The server has answered the last command and closed the connection, while the kernel has no
/// room for the last answers. Such clients lie just below those that are not closed yet.
fn clients_that_were_closed_before_get_their_answers(engine: &'static str) -> Verdict {
    const STEP: usize = 5;
    let server = Server::start(engine, "kv", &PATIENT)?;
    let value = "v".repeat(10_000);
    let mut other = Client::connect(server.address);
    other.ask(format!("set v 0 0 10000\r\n{value}\r\n"), "STORED\r\n");
    let answer = format!("VALUE v 0 10000\r\n{value}\r\nEND\r\n");
    let mut closed = VecDeque::new();
    let stuck = (STEP..4000).step_by(STEP).find_map(|count| {
        let mut client = Client::connect(server.address);
        client.send("get v\r\n".repeat(count));
        client.send("quit\r\n");
        let is_closed = (0..30).any(|_| {
            other.send("stats\r\n");
            other.read_until("END\r\n").contains("STAT curr_connections 1\r\n")
        });
        if !is_closed {
            return Some(client);
        }
        closed.push_back((count, client));
        if closed.len() > 8 {
            closed.pop_front();
        }
        None
    });
    let Some(stuck) = stuck else {
        return Err(Skipped("socket buffers hold more than 40 MB here".to_owned()));
    };
    server.signal(Signal::TERM);
    assert!(read_all(&mut other).is_empty());
    drop((stuck, other));
    // Enough for a server without connections to end.
    std::thread::sleep(Duration::from_millis(200));
    for (count, mut client) in closed {
        let got = read_all(&mut client);
        assert!(got == answer.repeat(count).as_bytes(), "{} bytes of {}", got.len(), count * answer.len());
    }
    ends(server);
    Ok(())
}

fn answers_to_a_flood_end_at_a_boundary(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "kv", &PATIENT)?;
    let (key, value) = ("k".repeat(200), "v".repeat(5000));
    let mut client = Client::connect(server.address);
    client.ask(format!("set {key} 0 0 5000\r\n{value}\r\n"), "STORED\r\n");
    let command = format!("get {key}\r\n");
    let sent = fill(&mut client, command.as_bytes());
    server.signal(Signal::TERM);
    let got = read_all(&mut client);
    let answer = format!("VALUE {key} 0 5000\r\n{value}\r\nEND\r\n");
    let count = got.len() / answer.len();
    assert!((1..=sent / command.len()).contains(&count), "{count} answers");
    assert!(
        got == answer.repeat(count).as_bytes(),
        "{} bytes after {count} answers",
        got.len() % answer.len()
    );
    drop(client);
    ends(server);
    Ok(())
}

fn an_echo_ends_with_what_was_read(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "echo", &PATIENT)?;
    let mut client = Client::connect(server.address);
    let pattern = b"0123456789abcdef";
    let sent = fill(&mut client, pattern);
    let mut other = Client::connect(server.address);
    other.ask("still here", "still here");
    server.signal(Signal::TERM);
    assert!(read_all(&mut other).is_empty());
    let got = read_all(&mut client);
    assert!((1..=sent).contains(&got.len()), "{} bytes of {sent}", got.len());
    assert!(got.iter().zip(pattern.iter().cycle()).all(|(got, sent)| got == sent));
    drop((client, other));
    ends(server);
    Ok(())
}

/// Answers that no socket buffers hold, to a client that does not read.
fn client_that_does_not_read(server: &Server) -> Client {
    let (mut client, _) = client_with_value(server);
    client.send("get big\r\n".repeat(1000));
    Client::connect(server.address).ask("get none\r\n", "END\r\n");
    client
}

#[track_caller]
fn is_reset(mut client: Client) {
    let mut answer = Vec::new();
    let error = client.stream.read_to_end(&mut answer).expect_err("the answers are cut off");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

fn a_client_that_does_not_read_is_reset_at_the_deadline(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "kv", &["--threads", "1", "--drain-timeout", "0.5"])?;
    let client = client_that_does_not_read(&server);
    let start = Instant::now();
    server.signal(Signal::TERM);
    ends(server);
    assert!(start.elapsed() >= Duration::from_millis(500));
    is_reset(client);
    Ok(())
}

fn a_second_signal_ends_it_at_once(engine: &'static str) -> Verdict {
    for (first, second) in [(Signal::TERM, Signal::TERM), (Signal::INT, Signal::TERM)] {
        let mut server = Server::start(engine, "kv", &PATIENT)?;
        let client = client_that_does_not_read(&server);
        let mut idle = Client::connect(server.address);
        idle.ask("get none\r\n", "END\r\n");
        server.signal(first);
        assert!(read_all(&mut idle).is_empty());
        assert!(server.is_running());
        server.signal(second);
        ends(server);
        is_reset(client);
    }
    Ok(())
}

fn an_idle_client_is_waited_for(engine: &'static str) -> Verdict {
    for service in ["kv", "echo"] {
        let mut server = Server::start(engine, service, &["--drain-timeout", "3600"])?;
        let mut clients: Vec<_> = (0..20).map(|_| Client::connect(server.address)).collect();
        for client in &mut clients {
            client.send("version\r\n");
            client.read_until("\r\n");
        }
        server.signal(Signal::TERM);
        for client in &mut clients {
            assert!(read_all(client).is_empty());
            // Is discarded; a server that had closed would answer it with a reset.
            client.send("get late\r\n");
        }
        assert!(server.is_running());
        drop(clients);
        ends(server);
    }
    Ok(())
}

fn no_time_to_drain_is_an_end_at_once(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "kv", &["--threads", "1", "--drain-timeout", "0"])?;
    let client = client_that_does_not_read(&server);
    server.signal(Signal::TERM);
    ends(server);
    is_reset(client);
    Ok(())
}

fn a_draining_server_refuses_connections(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "kv", &["--drain-timeout", "3600"])?;
    let mut client = Client::connect(server.address);
    client.ask("get none\r\n", "END\r\n");
    server.signal(Signal::TERM);
    assert!(read_all(&mut client).is_empty());
    let deadline = Instant::now() + PATIENCE;
    // Each thread closes a listener of its own.
    while TcpStream::connect(server.address).is_ok() {
        assert!(Instant::now() < deadline, "connections are still accepted");
    }
    drop(client);
    ends(server);
    Ok(())
}
