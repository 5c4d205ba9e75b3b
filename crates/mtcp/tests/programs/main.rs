//! Programs in C for mTCP, built against our headers: over TUN with Linux as their peer, as a user
//! without privileges, and over packets of their own.

mod contexts;
mod echo;
mod published;
mod support;
mod threads;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use support::{BOUND, LINUX, OWN_OR_NONE, Place, STACK, THREADS, connect};
use testkit::netns;

/// Asks for so many bytes over an open connection, and reads them.
fn fetch(stream: &mut TcpStream, size: usize) {
    write!(stream, "GET /{size} HTTP/1.1\r\n\r\n").expect("written");
    let mut header = Vec::new();
    while !header.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a header");
        header.push(byte[0]);
    }
    assert_eq!(header, format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n").into_bytes());
    let mut body = vec![0; size];
    stream.read_exact(&mut body).expect("a body");
    for chunk in body.chunks(16384) {
        let start = &b"hello\n"[..chunk.len().min(6)];
        assert!(chunk.starts_with(start) && chunk[start.len()..].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn every_call_over_packets_of_the_caller() {
    let place = Place::new("calls", "own");
    place.start(&place.build("tests/c/calls.c"), &[]).ended();
}

#[test]
fn contexts_come_and_go() {
    let place = Place::new("threads", "own");
    place.start(&place.build("tests/c/threads.c"), &[]).ended();
}

#[test]
fn exit_inside_a_call() {
    let place = Place::new("exit", "own");
    let program = place.build("tests/c/exit.c");
    for by in ["receive", "handler"] {
        place.start(&program, &[by]).ended();
    }
}

#[test]
fn linux_clients_of_a_server() {
    if !netns::enter("linux_clients_of_a_server", BOUND) {
        return;
    }
    for thread in OWN_OR_NONE {
        let place = Place::new("server", thread);
        let mut server = place.start(&place.build("../../examples/mtcp/http_mtcp.c"), &["80", "1"]);
        server.ready(1);
        for size in [0, 1, 16384, 1 << 20, 8 << 20] {
            let mut stream = connect(80);
            fetch(&mut stream, size);
            fetch(&mut stream, 5);
        }
        let clients: Vec<_> = (0..8)
            .map(|_| {
                thread::spawn(|| {
                    for _ in 0..50 {
                        fetch(&mut connect(80), 3000);
                    }
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().expect("no error"));
        let url = format!("http://{STACK}/100000");
        match Command::new("curl")
            .args(["-sS", "-m", "60", "-o", "/dev/null", "-w", "%{size_download}", &url])
            .output()
        {
            Ok(curl) => assert_eq!(String::from_utf8_lossy(&curl.stdout), "100000", "{curl:?}"),
            Err(error) => println!("SKIPPED curl: {error}"),
        }
        let mut last = connect(80);
        write!(last, "GET /9 HTTP/1.0\r\n\r\n").expect("written");
        let mut answer = Vec::new();
        last.read_to_end(&mut answer).expect("the end of the stream");
        assert!(answer.ends_with(b"\r\n\r\nhello\n\0\0\0"));
        // A connection is open meanwhile.
        let _open = connect(80);
        server.interrupt();
    }
}

/// More messages at once than a ring between program and stack has places: the server of the benchmark sends
/// 10 MB to each, a piece for each event.
#[test]
fn a_hundred_large_answers_at_once() {
    const CLIENTS: usize = 100;
    if !netns::enter("a_hundred_large_answers_at_once", BOUND) {
        return;
    }
    for thread in OWN_OR_NONE {
        let place = Place::new("many", thread);
        let mut server = place.start(&place.build("benches/server.c"), &[]);
        assert_eq!(server.line(), "ready");
        let streams: Vec<TcpStream> = (0..CLIENTS).map(|_| connect(7)).collect();
        let clients = streams.into_iter().map(|mut stream| {
            thread::spawn(move || {
                stream.write_all(b"b").expect("written");
                let mut answer = vec![0; 10_000_000];
                stream.read_exact(&mut answer).expect("an answer");
            })
        });
        let clients: Vec<_> = clients.collect();
        clients.into_iter().for_each(|client| client.join().expect("no error"));
    }
}

#[test]
fn two_contexts_share_a_device() {
    if !netns::enter("two_contexts_share_a_device", BOUND) {
        return;
    }
    for thread in OWN_OR_NONE {
        let place = Place::new("contexts", thread);
        let mut server = place.start(&place.build("../../examples/mtcp/http_mtcp.c"), &["80", "2"]);
        server.ready(2);
        let mut streams: Vec<TcpStream> = (0..200).map(|_| connect(80)).collect();
        for round in 0..3 {
            streams.iter_mut().for_each(|stream| fetch(stream, 2000 + round));
        }
        drop(streams);
        server.interrupt();
    }
}

/// Contexts, and whether their sets report edges.
fn fetch_from_linux(test: &str, edge: &str, contexts: usize, thread: &'static str) {
    const EACH: usize = 300;
    let place = Place::new(test, thread);
    let program = place.build("tests/c/client.c");
    // The client's device brings its address later.
    let listener = TcpListener::bind("0.0.0.0:8080").expect("a listener");
    let server = thread::spawn(move || {
        for _ in 0..EACH * contexts {
            let (mut stream, _) = listener.accept().expect("a connection");
            thread::spawn(move || {
                let mut request = [0; 1024];
                let len = stream.read(&mut request).expect("a request");
                assert!(request[..len].starts_with(b"GET /70000 "));
                let body = vec![7; 70_000];
                write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).expect("written");
                stream.write_all(&body).expect("written");
                // The client closes first.
                let _ = stream.read(&mut request);
            });
        }
    });
    let (each, contexts) = (EACH.to_string(), contexts.to_string());
    place.start(&program, &[LINUX, "8080", &each, "20", "70000", edge, &contexts]).ended();
    server.join().expect("no error");
}

#[test]
fn a_client_of_linux() {
    if netns::enter("a_client_of_linux", BOUND) {
        for thread in THREADS {
            fetch_from_linux("level", "0", 1, thread);
            fetch_from_linux("edge", "1", 1, thread);
        }
    }
}

#[test]
fn calls_that_wait() {
    if !netns::enter("calls_that_wait", BOUND) {
        return;
    }
    for thread in OWN_OR_NONE {
        let place = Place::new("blocking", thread);
        let listener = TcpListener::bind("0.0.0.0:8080").expect("a listener");
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            // Takes a whole round first, so that the client's writes have to wait for room.
            let mut round = vec![0; 1 << 20];
            for _ in 0..3 {
                thread::sleep(Duration::from_millis(20));
                stream.read_exact(&mut round).expect("a round");
                stream.write_all(&round).expect("written");
            }
            let _ = stream.read(&mut round);
        });
        place.start(&place.build("tests/c/blocking.c"), &[LINUX, "8080"]).ended();
        server.join().expect("no error");
    }
}

#[test]
fn threads_share_a_context() {
    if !netns::enter("threads_share_a_context", BOUND) {
        return;
    }
    for thread in OWN_OR_NONE {
        let place = Place::new("shared", thread);
        let listener = TcpListener::bind("0.0.0.0:8080").expect("a listener");
        let server = thread::spawn(move || {
            let echoes = [(); 3].map(|()| {
                let (mut stream, _) = listener.accept().expect("a connection");
                thread::spawn(move || std::io::copy(&mut stream.try_clone().expect("a copy"), &mut stream))
            });
            for echo in echoes {
                echo.join().expect("no panic").expect("no error");
            }
        });
        place.start(&place.build("tests/c/shared.c"), &[LINUX, "8080"]).ended();
        server.join().expect("no error");
    }
}

/// Each context begins its connections from ports whose answers come to its own queue.
#[test]
fn clients_of_linux_on_two_queues() {
    if netns::enter("clients_of_linux_on_two_queues", BOUND) {
        for thread in THREADS {
            fetch_from_linux("queues", "1", 2, thread);
        }
    }
}
