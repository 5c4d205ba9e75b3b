//! `--stack`: servers on a TCP of their own, on a TUN device of a user without privileges.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use testkit::netns;

use crate::client::{Client, transcript};
use crate::on_both_engines;
use crate::server::{Server, Verdict, serve};

on_both_engines!(
    linux_clients_are_served,
    a_drain_brings_every_answer,
    threads_end_without_harm_to_others,
    threads_say_what_they_counted,
    wrong_places_are_refused,
);

const BOUND: Duration = Duration::from_secs(300);
const PLACE: [&str; 4] = ["--stack", "tun:mp%d,10.78.0.2/24,fd78::2/64", "--listen", "10.78.0.2:7"];

/// Whether this is the process in namespaces of its own, where the test goes on.
fn inside(engine: &str, test: &str) -> bool {
    netns::enter(&format!("stack::{engine}::{test}"), BOUND)
}

/// One thread and two, each with a queue of the device, over IPv4 and IPv6.
fn linux_clients_are_served(engine: &'static str) -> Verdict {
    if !inside(engine, "linux_clients_are_served") {
        return Ok(());
    }
    for threads in ["1", "2"] {
        for listen in ["10.78.0.2:7", "[fd78::2]:7"] {
            let arguments = ["--stack", PLACE[1], "--listen", listen, "--threads", threads];
            let server = Server::start(engine, "echo", &arguments)?;
            let long: Vec<u8> = (0..2_000_000u32).map(|index| (index % 251) as u8).collect();
            assert!(transcript(server.address, long.chunks(10_007)) == long);
            let clients: Vec<_> = (0..40)
                .map(|number: u32| {
                    let address = server.address;
                    thread::spawn(move || {
                        let mut client = Client::connect(address);
                        for round in 0..20 {
                            let line = format!("{number} {round}");
                            client.ask(&line, &line);
                        }
                    })
                })
                .collect();
            clients.into_iter().for_each(|client| client.join().expect("a client"));
        }
    }
    Ok(())
}

/// What was asked before SIGTERM is answered, and the end of the stream follows.
fn a_drain_brings_every_answer(engine: &'static str) -> Verdict {
    if !inside(engine, "a_drain_brings_every_answer") {
        return Ok(());
    }
    let arguments = [PLACE[0], PLACE[1], PLACE[2], PLACE[3], "--threads", "1"];
    let server = Server::start(engine, "kv", &arguments)?;
    let mut stream = TcpStream::connect(server.address).expect("the server listens");
    stream.set_read_timeout(Some(BOUND)).expect("a timeout");
    stream.write_all(&b"version\r\n".repeat(1_000)).expect("writing");
    let mut first = [0; 7];
    stream.read_exact(&mut first).expect("an answer");
    server.signal(Signal::TERM);
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("the end of the stream");
    drop(stream);
    let answers = [&first[..], &rest].concat();
    assert_eq!(answers.iter().filter(|&&byte| byte == b'\n').count(), 1_000);
    let (status, _) = server.wait();
    assert!(status.success(), "{status}");
    Ok(())
}

/// Clients that take their time get everything, while threads without such clients end.
fn threads_end_without_harm_to_others(engine: &'static str) -> Verdict {
    const SIZE: usize = 1_000_000;
    const SLOW: usize = 3;
    if !inside(engine, "threads_end_without_harm_to_others") {
        return Ok(());
    }
    let arguments = [PLACE[0], PLACE[1], PLACE[2], PLACE[3], "--threads", "6", "--drain-timeout", "60"];
    let server = Server::start(engine, "kv", &arguments)?;
    let mut client = Client::connect(server.address);
    client.send(format!("set big 0 0 {SIZE}\r\n"));
    client.send(vec![b'x'; SIZE]);
    client.ask("\r\n", "STORED\r\n");
    let clients: Vec<_> = (0..SLOW)
        .map(|_| {
            let mut client = Client::connect(server.address);
            client.send("get big\r\nget big\r\n");
            let mut first = [0];
            client.stream.read_exact(&mut first).expect("an answer");
            client
        })
        .collect();
    server.signal(Signal::TERM);
    drop(client);
    let readers: Vec<_> = clients
        .into_iter()
        .map(|mut client| {
            thread::spawn(move || {
                let (mut all, mut piece) = (1, vec![0; 64 << 10]);
                while let Ok(len @ 1..) = client.stream.read(&mut piece) {
                    all += len;
                    thread::sleep(Duration::from_millis(20));
                }
                all
            })
        })
        .collect();
    let whole = 2 * (format!("VALUE big 0 {SIZE}\r\n").len() + SIZE + "\r\nEND\r\n".len());
    for reader in readers {
        assert_eq!(reader.join().expect("a reader"), whole);
    }
    let (status, _) = server.wait();
    assert!(status.success(), "{status}");
    Ok(())
}

/// Of each thread one line, also of packets that came to the wrong one.
fn threads_say_what_they_counted(engine: &'static str) -> Verdict {
    if !inside(engine, "threads_say_what_they_counted") {
        return Ok(());
    }
    let server = Server::start(engine, "echo", &[&PLACE[..], &["--threads", "2", "--stats"]].concat())?;
    (0..40).for_each(|_| Client::connect(server.address).ask("hello", "hello"));
    server.signal(Signal::TERM);
    let (status, said) = server.wait();
    assert!(status.success(), "{status}");
    for thread in ["thread 0: ", "thread 1: "] {
        let line =
            said.lines().find_map(|line| line.strip_prefix(thread)).unwrap_or_else(|| panic!("{said}"));
        assert!(!line.contains("packets_received: 0,") && line.contains("foreign_sent: 0,"), "{line}");
    }
    Ok(())
}

fn wrong_places_are_refused(engine: &'static str) -> Verdict {
    let said = |arguments: &[&str]| {
        let output = serve(engine, "echo", arguments).output().expect("the built program can be started");
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let message = said(&["--stack", "mp0"]);
    assert!(message.contains("is not tun:NAME,ADDRESS/PREFIX"), "{message}");
    for listen in ["127.0.0.1:7", "10.78.0.2:0"] {
        let message = said(&["--stack", PLACE[1], "--listen", listen]);
        assert!(message.contains("no address of the stack, or has no port"), "{message}");
    }
    Ok(())
}
