//! Clients that send nonsense, too much, too little, or do not read: the server goes on.

use std::io::{ErrorKind, Write};
use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::on_both_engines;
use crate::support::{Client, Server, Verdict, transcript};

on_both_engines!(
    garbage_harms_nobody,
    half_commands_store_nothing,
    a_line_without_end_is_refused,
    a_byte_too_many_is_refused_and_the_connection_goes_on,
    a_client_that_never_reads_is_bounded,
    a_client_that_reads_late_gets_everything,
    silent_clients_cost_little,
    half_requests_stay_within_their_bound,
    connections_stay_within_their_bound,
);

/// Sends `pattern` again and again until the server takes no more; returns how many bytes
/// it took.
pub(crate) fn fill(client: &mut Client, pattern: &[u8]) -> usize {
    const BOUND: usize = 256 << 20;
    let block = pattern.repeat((1 << 20) / pattern.len());
    client.stream.set_write_timeout(Some(Duration::from_millis(500))).expect("sockets have timeouts");
    let mut sent = 0;
    while sent < BOUND {
        match client.stream.write(&block[sent % pattern.len()..]) {
            Ok(count) => sent += count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return sent,
            Err(error) => panic!("the server closes: {error}"),
        }
    }
    panic!("the server takes {BOUND} bytes from a client that does not read");
}

fn check_alive(server: &Server) {
    let mut client = Client::connect(server.address);
    client.ask("set alive 0 0 3\r\nyes\r\nget alive\r\n", "STORED\r\nVALUE alive 0 3\r\nyes\r\nEND\r\n");
}

fn garbage_harms_nobody(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "kv", &[])?;
    let word = prop_oneof![
        Just(b"set ".to_vec()),
        Just(b"get ".to_vec()),
        Just(b"noreply".to_vec()),
        Just(b" 0 0 10\r\n".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b" 4294967296 ".to_vec()),
        prop::collection::vec(any::<u8>(), 0..300),
    ];
    let garbage = prop::collection::vec(word, 0..40);
    let mut runner = TestRunner::deterministic();
    for _ in 0..200 {
        let pieces = garbage.new_tree(&mut runner).expect("the strategy rejects nothing").current();
        transcript(server.address, pieces.iter().map(Vec::as_slice));
    }
    check_alive(&server);
    Ok(())
}

fn half_commands_store_nothing(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "kv", &[])?;
    let whole = b"set half 0 0 10\r\n0123456789\r\n";
    for length in 0..whole.len() {
        assert_eq!(transcript(server.address, [&whole[..length]].into_iter()), b"");
    }
    Client::connect(server.address).ask("get half\r\n", "END\r\n");
    assert_eq!(transcript(server.address, [&whole[..]].into_iter()), b"STORED\r\n");
    Ok(())
}

fn a_line_without_end_is_refused(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "kv", &[])?;
    for length in [65_536, 1_000_000] {
        let answer = transcript(server.address, vec![b'x'; length].chunks(4_000));
        assert_eq!(answer, b"CLIENT_ERROR line too long\r\n");
    }
    let binary = transcript(server.address, [&[0x80, 0x0a, 0, 0, 0, 0, 0, 0][..]].into_iter());
    assert_eq!(binary, b"CLIENT_ERROR the binary protocol is not supported\r\n");
    check_alive(&server);
    Ok(())
}

fn a_byte_too_many_is_refused_and_the_connection_goes_on(engine: &'static str) -> Verdict {
    const LARGEST: usize = 1 << 20;
    let server = Server::start(engine, "kv", &[])?;
    let mut client = Client::connect(server.address);
    client.ask("set big 0 0 1\r\nx\r\n", "STORED\r\n");
    client.send(format!("set big 0 0 {}\r\n", LARGEST + 1));
    client.send(vec![b'v'; LARGEST + 1]);
    client.ask("\r\n", "SERVER_ERROR object too large for cache\r\n");
    // As in memcached, what the client meant to replace is gone.
    client.ask("get big\r\n", "END\r\n");
    let answer = client.store_big(LARGEST);
    client.ask("append big 0 0 1\r\nx\r\n", "SERVER_ERROR object too large for cache\r\n");
    client.ask("get big\r\n", answer);
    Ok(())
}

fn a_client_that_never_reads_is_bounded(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "kv", &["--threads", "1"])?;
    Client::connect(server.address).store_big(1 << 20);
    let before = server.resident();
    let mut silent: Vec<_> = (0..4).map(|_| Client::connect(server.address)).collect();
    for client in &mut silent {
        fill(client, b"get big\r\n");
    }
    // Few bytes in, few bytes out: the number of writes is what has to be bounded.
    fill(&mut Client::connect(server.address), b"version\r\nget none\r\nbogus\r\n");
    check_alive(&server);
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 32 << 20, "the server grew by {grown} bytes");
    Ok(())
}

fn a_client_that_reads_late_gets_everything(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "kv", &["--threads", "1"])?;
    let mut client = Client::connect(server.address);
    let big = client.store_big(1 << 20);
    let value = &big[..big.len() - b"END\r\n".len()];
    // A retrieval of many values pauses when the output is full.
    client.send(format!("get{}\r\nbogus\r\n", " big".repeat(30)).repeat(3));
    check_alive(&server);
    for _ in 0..3 {
        (0..30).for_each(|_| client.expect(value));
        client.expect("END\r\nERROR\r\n");
    }
    Ok(())
}

fn silent_clients_cost_little(engine: &'static str) -> Verdict {
    const CLIENTS: usize = 500;
    let server = Server::start(engine, "kv", &["--threads", "1"])?;
    check_alive(&server);
    let before = server.resident();
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| Client::connect(server.address)).collect();
    // Accepted in their order: when the last is answered, all are there.
    clients[CLIENTS - 1].ask("get a\r\n", "END\r\n");
    let grown = server.resident().saturating_sub(before);
    assert!(grown < CLIENTS as u64 * 4096, "{grown} bytes for {CLIENTS} connections");
    for client in &mut clients {
        client.ask("get alive\r\n", "VALUE alive 0 3\r\nyes\r\nEND\r\n");
    }
    Ok(())
}

/// Many clients each of which begins a request and waits hold 64 MiB together, and those
/// beyond are refused.
fn half_requests_stay_within_their_bound(engine: &'static str) -> Verdict {
    const SIZE: usize = 1 << 20;
    // The bound, what the last one grew by, and the read buffers, each of which is used
    // for the first time.
    const GROWN_MAX: u64 = (64 << 20) + 2 * SIZE as u64 + 1024 * 4096;
    let server = Server::start(engine, "kv", &["--threads", "1"])?;
    check_alive(&server);
    let before = server.resident();
    let mut clients: Vec<Client> = (0..120).map(|_| Client::connect(server.address)).collect();
    for client in &mut clients {
        client.send(format!("set big 0 0 {SIZE}\r\n"));
        // One that is refused is closed.
        let _ = client.stream.write_all(&vec![b'v'; SIZE]);
    }
    // Each is answered behind what it sent before, so all of that has been read.
    let mut stored = 0;
    for client in &mut clients {
        assert!(server.resident().saturating_sub(before) < GROWN_MAX, "halves of requests take more");
        let _ = client.stream.write_all(b"\r\nquit\r\n");
        match &client.read_to_end()[..] {
            b"STORED\r\n" => stored += 1,
            // A reset may overtake the answer.
            b"" | b"SERVER_ERROR no room for this connection\r\n" => {}
            other => panic!("{}", other.escape_ascii()),
        }
    }
    assert!((30..=64).contains(&stored), "{stored}");
    // Everything has come or was refused, so there is room again.
    for _ in 0..120 {
        Client::connect(server.address).store_big(SIZE);
    }
    Ok(())
}

fn connections_stay_within_their_bound(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "kv", &["--max-connections", "3"])?;
    let mut clients: Vec<_> = (0..3).map(|_| Client::connect(server.address)).collect();
    for client in &mut clients {
        client.ask("get none\r\n", "END\r\n");
    }
    let mut refused = Client::connect(server.address);
    assert_eq!(refused.read_to_end(), b"SERVER_ERROR no room for this connection\r\n");
    clients[0].send("quit\r\n");
    assert!(clients[0].read_to_end().is_empty());
    check_alive(&server);
    Ok(())
}
