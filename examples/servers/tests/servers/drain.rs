//! The end of a server that has clients: what it still owes them, and how long it waits.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::time::Instant;

use rustix::process::Signal;
use testkit::process::PATIENCE;

use crate::hostile::fill;
use crate::on_both_engines;
use crate::support::{Client, Server, Verdict};

on_both_engines!(
    what_was_read_is_answered,
    answers_to_a_flood_end_at_a_boundary,
    idle_clients_are_waited_for,
    a_client_that_does_not_read_is_reset_in_the_end,
    a_second_signal_ends_it_at_once,
);

/// Reads to the end of the stream, which a reset is not.
#[track_caller]
fn read_all(client: &mut Client) -> Vec<u8> {
    let mut answer = Vec::new();
    let result = client.stream.read_to_end(&mut answer);
    assert!(result.is_ok(), "after {} bytes: {result:?}", answer.len());
    answer
}

/// Half a command is no command, and a client that has quit gets its answers, too.
fn what_was_read_is_answered(engine: &'static str) -> Verdict {
    for rest in ["set part 0 0 10\r\n01234", "quit\r\nget big\r\n"] {
        let server = Server::start(engine, "kv", &["--threads", "1"])?;
        let mut client = Client::connect(server.address);
        let answer = client.store_big(100_000);
        client.send("get big\r\n".repeat(100) + rest);
        // By the time another client has its answer, the commands have been read.
        Client::connect(server.address).ask("get none\r\n", "END\r\n");
        server.signal(Signal::TERM);
        let got = read_all(&mut client);
        assert!(got == answer.repeat(100), "{} bytes of {}", got.len(), 100 * answer.len());
        drop(client);
        assert!(server.wait().success());
    }
    Ok(())
}

fn answers_to_a_flood_end_at_a_boundary(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "kv", &["--threads", "1"])?;
    let mut client = Client::connect(server.address);
    let answer = client.store_big(5_000);
    let sent = fill(&mut client, b"get big\r\n");
    server.signal(Signal::INT);
    let got = read_all(&mut client);
    let count = got.len() / answer.len();
    assert!((1..=sent / b"get big\r\n".len()).contains(&count), "{count} answers");
    assert!(got == answer.repeat(count), "{} bytes after {count} answers", got.len() % answer.len());
    drop(client);
    assert!(server.wait().success());
    Ok(())
}

fn idle_clients_are_waited_for(engine: &'static str) -> Verdict {
    let mut server = Server::start(engine, "kv", &[])?;
    let mut client = Client::connect(server.address);
    client.ask("get none\r\n", "END\r\n");
    server.signal(Signal::TERM);
    assert!(read_all(&mut client).is_empty());
    // Discarded; a server that had closed would answer it with a reset.
    client.send("get late\r\n");
    let deadline = Instant::now() + PATIENCE;
    // Each thread closes a listener of its own.
    while TcpStream::connect(server.address).is_ok() {
        assert!(Instant::now() < deadline, "connections are still accepted");
    }
    assert!(server.is_running());
    drop(client);
    assert!(server.wait().success());
    Ok(())
}

/// A server after SIGTERM, of which a client takes no answers.
fn with_a_client_that_does_not_read(engine: &str) -> Result<(Server, Client), crate::support::Skipped> {
    let server = Server::start(engine, "kv", &["--threads", "1"])?;
    let mut client = Client::connect(server.address);
    client.store_big(100_000);
    client.send("get big\r\n".repeat(1000));
    Client::connect(server.address).ask("get none\r\n", "END\r\n");
    server.signal(Signal::TERM);
    Ok((server, client))
}

#[track_caller]
fn is_reset(mut client: Client) {
    let mut answer = Vec::new();
    let error = client.stream.read_to_end(&mut answer).expect_err("the answers are cut off");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

fn a_client_that_does_not_read_is_reset_in_the_end(engine: &'static str) -> Verdict {
    let start = Instant::now();
    let (server, client) = with_a_client_that_does_not_read(engine)?;
    assert!(server.wait().success());
    assert!(start.elapsed().as_secs() >= 4, "it is waited for");
    is_reset(client);
    Ok(())
}

fn a_second_signal_ends_it_at_once(engine: &'static str) -> Verdict {
    let (server, client) = with_a_client_that_does_not_read(engine)?;
    // The first one is served: the listener is closed.
    while TcpStream::connect(server.address).is_ok() {}
    let start = Instant::now();
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    assert!(start.elapsed().as_secs() < 4, "it waits for the client");
    is_reset(client);
    Ok(())
}
