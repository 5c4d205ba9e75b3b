//! Clients that send nonsense, too much, too little, or do not read: the server goes on.

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use rustix::process::Signal;

use crate::client::{Client, transcript};
use crate::on_both_engines;
use crate::server::{Server, Verdict};

on_both_engines!(
    garbage_harms_nobody,
    half_commands_store_nothing,
    a_line_without_end_is_refused,
    a_binary_client_is_told,
    a_byte_too_many_is_refused_and_the_connection_goes_on,
    a_client_that_never_reads_is_bounded,
    a_client_that_reads_late_gets_everything,
    silent_clients_cost_little,
    half_values_stay_within_the_memory_limit,
    half_lines_stay_within_the_memory_limit,
    idle_clients_are_disconnected,
);

/// Sends `pattern` again and again until the server takes no more; returns how many bytes it took.
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
    for length in [2_049, 10_000, 1_000_000] {
        let line = vec![b'x'; length];
        let answer = transcript(server.address, line.chunks(4_000));
        assert_eq!(answer, b"CLIENT_ERROR line too long\r\n");
    }
    check_alive(&server);
    Ok(())
}

fn a_binary_client_is_told(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "kv", &[])?;
    let mut client = Client::connect(server.address);
    client.send([0x80, 0x0a, 0, 0, 0, 0, 0, 0]);
    assert_eq!(client.read_to_end(), b"CLIENT_ERROR the binary protocol is not supported\r\n");
    check_alive(&server);
    Ok(())
}

fn a_byte_too_many_is_refused_and_the_connection_goes_on(engine: &'static str) -> Verdict {
    const LARGEST: usize = 1 << 20;
    let server = Server::start(engine, "kv", &[])?;
    let mut client = Client::connect(server.address);
    let value = vec![b'v'; LARGEST + 1];
    client.ask("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    client.send(format!("set a 0 0 {}\r\n", LARGEST + 1));
    client.send(&value);
    client.ask("\r\n", "SERVER_ERROR object too large for cache\r\n");
    // As in memcached, what the client meant to replace is gone.
    client.ask("get a\r\n", "END\r\n");
    client.send(format!("set a 0 0 {LARGEST}\r\n"));
    client.send(&value[..LARGEST]);
    client.ask("\r\n", "STORED\r\n");
    client.ask("append a 0 0 1\r\nx\r\n", "SERVER_ERROR object too large for cache\r\n");
    client.ask("get a\r\n", format!("VALUE a 0 {LARGEST}\r\n"));
    client.expect(&value[..LARGEST]);
    client.expect("\r\nEND\r\n");
    Ok(())
}

fn a_client_that_never_reads_is_bounded(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "kv", &["--threads", "1"])?;
    let mut other = Client::connect(server.address);
    other.send("set big 0 0 1048576\r\n");
    other.send(vec![b'x'; 1 << 20]);
    other.ask("\r\n", "STORED\r\n");
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
    other.ask("get none\r\n", "END\r\n");
    // They do not keep it from ending either.
    server.signal(Signal::TERM);
    let (status, _) = server.wait();
    assert!(status.success(), "{status}");
    drop(silent);
    Ok(())
}

fn a_client_that_reads_late_gets_everything(engine: &'static str) -> Verdict {
    const REQUESTS: usize = 100;
    let server = Server::start(engine, "kv", &["--threads", "1"])?;
    let mut client = Client::connect(server.address);
    let value: Vec<u8> = (0..1 << 20).map(|index: u32| (index % 253) as u8).collect();
    client.send("set big 0 0 1048576\r\n");
    client.send(&value);
    client.ask("\r\n", "STORED\r\n");
    client.send("get big big\r\nversion\r\n".repeat(REQUESTS));
    check_alive(&server);
    let mut answer = vec![0; value.len()];
    for _ in 0..REQUESTS {
        for _ in 0..2 {
            client.expect("VALUE big 0 1048576\r\n");
            client.stream.read_exact(&mut answer).expect("a value comes");
            assert!(answer == value);
            client.expect("\r\n");
        }
        client.expect("END\r\nVERSION ");
        client.read_until("\r\n");
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

/// What `stats` says of `name`.
fn stat(server: &Server, name: &str) -> u64 {
    let mut client = Client::connect(server.address);
    client.send("stats\r\n");
    let stats = client.read_until("END\r\n");
    let value = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
    value.and_then(|value| value.parse().ok()).expect(name)
}

/// What the server with `--memory-limit 16` may grow by: that, and its channel's read buffers, each of which is used
/// for the first time.
const GROWN_MAX: u64 = (16 << 20) + 1024 * 4096;

/// A server with 16 MiB and so many clients, each of which begins a request of 1 MiB and then waits; what the server
/// grew by.
fn hold(
    engine: &'static str,
    clients: usize,
    first: impl Fn(usize) -> Vec<u8>,
) -> Result<(Server, Vec<Client>, u64), crate::server::Skipped> {
    const PIECE: usize = 64 * 1024;
    let server = Server::start(engine, "kv", &["--threads", "1", "--memory-limit", "16"])?;
    check_alive(&server);
    let before = server.resident();
    let mut clients: Vec<Client> = (0..clients).map(|_| Client::connect(server.address)).collect();
    let requests: Vec<Vec<u8>> = (0..clients.len()).map(first).collect();
    // All of them grow together. One that is refused may be closed.
    for at in (0..requests[0].len()).step_by(PIECE) {
        for (client, request) in clients.iter_mut().zip(&requests) {
            let _ = client.stream.write_all(&request[at..(at + PIECE).min(request.len())]);
        }
    }
    // Until it has read all that it will.
    const STATS: u64 = "stats\r\n".len() as u64;
    let mut read = 0;
    while read != stat(&server, "bytes_read") {
        read = stat(&server, "bytes_read") + STATS;
        std::thread::sleep(Duration::from_millis(200));
    }
    let grown = server.resident().saturating_sub(before);
    assert!(stat(&server, "partial_bytes") + stat(&server, "bytes") <= 16 << 20);
    Ok((server, clients, grown))
}

fn half_values_stay_within_the_memory_limit(engine: &'static str) -> Verdict {
    const SIZE: usize = 1 << 20;
    let request = |number: usize| {
        let mut request = format!("set key{number} 0 0 {SIZE}\r\n").into_bytes();
        request.resize(request.len() + SIZE, b'v');
        request
    };
    let (server, mut clients, grown) = hold(engine, 120, request)?;
    assert!(grown < GROWN_MAX, "120 clients that stored nothing took {grown} bytes");
    // Refused clients get an error and can go on; the others have stored nothing yet.
    let mut stored = 0;
    for client in &mut clients {
        client.send("\r\n");
        match client.read_until("\r\n").as_str() {
            "STORED\r\n" => stored += 1,
            answer => assert_eq!(answer, "SERVER_ERROR out of memory storing object\r\n"),
        }
        client.ask("add small 0 0 1 noreply\r\nx\r\nget small\r\n", "VALUE small 0 1\r\nx\r\nEND\r\n");
    }
    let refused = stat(&server, "store_no_memory");
    assert!(stored + refused == 120 && stored < 20, "{stored} stored, {refused} refused");
    // Everything has come or was refused, so there is room again.
    assert_eq!(stat(&server, "partial_bytes"), 0);
    clients[0].send(request(0));
    clients[0].ask("\r\n", "STORED\r\n");
    Ok(())
}

fn half_lines_stay_within_the_memory_limit(engine: &'static str) -> Verdict {
    let request = |_| b"get".iter().chain(b" key".iter().cycle()).copied().take(1_000_000).collect();
    let (server, mut clients, grown) = hold(engine, 120, request)?;
    assert!(grown < GROWN_MAX, "120 clients with half a line took {grown} bytes");
    let mut closed = 0;
    for client in &mut clients {
        let _ = client.stream.write_all(b"\r\nquit\r\n");
        let answer = client.read_to_end();
        // A reset may overtake the answer.
        match &answer[..] {
            b"END\r\n" => {}
            b"" | b"SERVER_ERROR out of memory reading request\r\n" => closed += 1,
            other => panic!("{}", other.escape_ascii()),
        }
    }
    assert!((80..120).contains(&closed), "{closed}");
    assert_eq!(stat(&server, "partial_bytes"), 0);
    Ok(())
}

fn idle_clients_are_disconnected(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "kv", &["--idle-timeout", "0.5"])?;
    let start = std::time::Instant::now();
    let mut idle = Client::connect(server.address);
    let mut half = Client::connect(server.address);
    half.send("set half 0 0 1000000\r\n0123456789");
    let mut busy = Client::connect(server.address);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while start.elapsed() < Duration::from_millis(1500) {
                busy.ask("get a\r\n", "END\r\n");
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        for client in [&mut idle, &mut half] {
            assert_eq!(client.read_to_end(), b"");
            assert!(start.elapsed() >= Duration::from_millis(490));
        }
    });
    busy.ask("get half\r\n", "END\r\n");
    assert_eq!(stat(&server, "partial_bytes"), 0);
    Ok(())
}
