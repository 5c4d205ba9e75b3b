//! `megapipe-kv` over time, under load and as libmemcached checks it: what a transcript does not show.

use std::time::{Duration, Instant};

use testkit::process::PATIENCE;

use crate::demonstration::run;
use crate::on_both_engines;
use crate::support::{Client, Server, Verdict};

on_both_engines!(
    items_expire,
    the_least_used_are_evicted,
    many_clients_count_together,
    a_number_keeps_the_length_of_its_value,
    memcapable_finds_nothing_amiss,
);

fn items_expire(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "kv", &[])?;
    let mut client = Client::connect(server.address);
    let start = Instant::now();
    client.ask("set a 0 1 1\r\nx\r\nset b 0 0 1\r\nx\r\nset c 0 1 1\r\nx\r\n", "STORED\r\n".repeat(3));
    client.ask("touch c 1000\r\n", "TOUCHED\r\n");
    loop {
        client.send("get a\r\n");
        if client.read_until("END\r\n") == "END\r\n" {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "it does not expire");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(start.elapsed() >= Duration::from_millis(990));
    client.ask("get a b c\r\n", "VALUE b 0 1\r\nx\r\nVALUE c 0 1\r\nx\r\nEND\r\n");
    client.ask("incr a 1\r\ndelete a\r\nadd a 0 0 1\r\ny\r\n", "NOT_FOUND\r\nNOT_FOUND\r\nSTORED\r\n");
    Ok(())
}

/// Items stay within the memory, and the largest one can always be stored and grow.
fn the_least_used_are_evicted(engine: &'static str) -> Verdict {
    const BLOCK: usize = 50_000;
    let server = Server::start(engine, "kv", &["--memory-limit", "8"])?;
    let mut client = Client::connect(server.address);
    let value = "v".repeat(BLOCK);
    for number in 0..500 {
        client.ask(format!("set key{number} 0 0 {BLOCK}\r\n{value}\r\n"), "STORED\r\n");
        let stored = format!("VALUE key{number} 0 {BLOCK}\r\n{value}\r\nEND\r\n");
        client.ask(format!("get key{number}\r\n"), stored);
    }
    assert!(server.stat("curr_items") >= 50);
    // Those that grow evict others, too.
    for number in 0..1_000 {
        client.ask(format!("set small{number} 0 0 1\r\nx\r\n"), "STORED\r\n");
    }
    for number in 0..1_000 {
        client.send(format!("append small{number} 0 0 20000\r\n{}\r\n", &value[..20_000]));
        client.read_until("STORED\r\n");
    }
    assert!(server.stat("bytes") <= 8 << 20);
    let big = client.store_big(1 << 20);
    client.ask("get big\r\n", big);
    assert!(server.stat("bytes") <= 8 << 20 && server.stat("limit_maxbytes") == 8 << 20);
    Ok(())
}

fn many_clients_count_together(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "kv", &["--threads", "3"])?;
    Client::connect(server.address).ask("set n 0 0 1\r\n0\r\nset text 0 0 0\r\n\r\n", "STORED\r\nSTORED\r\n");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = Client::connect(server.address);
                for _ in 0..200 {
                    client.send("incr n 1\r\nappend text 0 0 1\r\nx\r\n");
                    client.read_until("STORED\r\n");
                }
            });
        }
    });
    let all = format!("VALUE n 0 4\r\n1600\r\nVALUE text 0 1600\r\n{}\r\nEND\r\n", "x".repeat(1600));
    Client::connect(server.address).ask("get n text\r\n", all);
    Ok(())
}

/// Behind its digits are blanks, as many as the largest value has room for.
fn a_number_keeps_the_length_of_its_value(engine: &'static str) -> Verdict {
    const LENGTH: usize = 200_000;
    let server = Server::start(engine, "kv", &[])?;
    let mut client = Client::connect(server.address);
    client.ask(format!("set n 0 0 {LENGTH}\r\n9{}\r\n", " ".repeat(LENGTH - 1)), "STORED\r\n");
    client.ask("incr n 1\r\n", "10\r\n");
    client.ask("get n\r\n", format!("VALUE n 0 {LENGTH}\r\n10{}\r\nEND\r\n", " ".repeat(LENGTH - 2)));
    Ok(())
}

/// The conformance suite of libmemcached: its tools and the clients built on it ask like this.
fn memcapable_finds_nothing_amiss(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "kv", &[])?;
    let (host, port) = (server.address.ip().to_string(), server.address.port().to_string());
    let report = run(&["memccapable", "memcapable"], &["-h", &host, "-p", &port, "-a", "-t", "30"])?;
    assert!(report.contains("All tests passed"), "{report}");
    Ok(())
}

impl Server {
    /// What `stats` says of `name`.
    fn stat(&self, name: &str) -> u64 {
        let mut client = Client::connect(self.address);
        client.send("stats\r\n");
        let stats = client.read_until("END\r\n");
        let value = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        value.and_then(|value| value.parse().ok()).expect(name)
    }
}
