//! `megapipe-kv` over time and under load: what a transcript does not show.

use std::time::{Duration, Instant};

use testkit::process::PATIENCE;

use crate::client::Client;
use crate::on_both_engines;
use crate::server::{Server, Verdict};

on_both_engines!(
    items_expire,
    a_delayed_flush_comes,
    the_least_used_are_evicted,
    larger_values_can_be_allowed,
    many_clients_count_together,
    statistics_tell_of_connections,
);

const BLOCK: usize = 50_000;

/// Asks again until the answer is `answer`, and returns how long that took.
fn ask_until(client: &mut Client, command: &str, end: &str, answer: &str) -> Duration {
    let start = Instant::now();
    loop {
        client.send(command);
        if client.read_until(end) == answer {
            return start.elapsed();
        }
        assert!(start.elapsed() < PATIENCE, "{answer} does not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn items_expire(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "kv", &[])?;
    let mut client = Client::connect(server.address);
    let start = Instant::now();
    client.ask("set a 0 1 1\r\nx\r\n", "STORED\r\n");
    client.ask("set b 0 0 1\r\nx\r\n", "STORED\r\n");
    client.ask("set c 0 1 1\r\nx\r\n", "STORED\r\n");
    client.ask("touch c 1000\r\n", "TOUCHED\r\n");
    ask_until(&mut client, "get a\r\n", "END\r\n", "END\r\n");
    assert!(start.elapsed() >= Duration::from_millis(990));
    client.ask("get a b c\r\n", "VALUE b 0 1\r\nx\r\nVALUE c 0 1\r\nx\r\nEND\r\n");
    client.ask("incr a 1\r\n", "NOT_FOUND\r\n");
    client.ask("add a 0 0 1\r\ny\r\n", "STORED\r\n");
    Ok(())
}

fn a_delayed_flush_comes(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "kv", &[])?;
    let mut client = Client::connect(server.address);
    client.ask("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    client.ask("flush_all 1\r\n", "OK\r\n");
    ask_until(&mut client, "get a\r\n", "END\r\n", "END\r\n");
    client.ask("set a 0 0 1\r\ny\r\n", "STORED\r\n");
    client.ask("get a\r\n", "VALUE a 0 1\r\ny\r\nEND\r\n");
    Ok(())
}

fn the_least_used_are_evicted(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "kv", &["--memory-limit", "8", "--max-item-size", "100k"])?;
    let mut client = Client::connect(server.address);
    let value = "v".repeat(BLOCK);
    for number in 0..500 {
        client.ask(format!("set key{number} 0 0 {BLOCK}\r\n{value}\r\n"), "STORED\r\n");
        client.ask(
            format!("get key{number}\r\n"),
            format!("VALUE key{number} 0 {BLOCK}\r\n{value}\r\nEND\r\n"),
        );
    }
    client.send("stats\r\n");
    let stats = client.read_until("END\r\n");
    let stat = |name: &str| -> u64 {
        let value = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        value.and_then(|value| value.parse().ok()).expect(name)
    };
    assert_eq!(stat("limit_maxbytes"), 8 << 20);
    assert!(stat("bytes") <= 8 << 20, "{stats}");
    assert!(stat("curr_items") >= 50, "{stats}");
    assert_eq!(stat("evictions") + stat("curr_items"), 500, "{stats}");
    Ok(())
}

fn larger_values_can_be_allowed(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "kv", &["--max-item-size", "4m"])?;
    let mut client = Client::connect(server.address);
    let value = vec![b'v'; 4 << 20];
    client.send("set big 0 0 4194304\r\n");
    client.send(&value);
    client.ask("\r\n", "STORED\r\n");
    client.ask("get big\r\n", "VALUE big 0 4194304\r\n");
    client.expect(&value);
    client.expect("\r\nEND\r\n");
    Ok(())
}

fn many_clients_count_together(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "kv", &["--threads", "3"])?;
    Client::connect(server.address).ask("set n 0 0 1\r\n0\r\n", "STORED\r\n");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = Client::connect(server.address);
                for _ in 0..200 {
                    client.send("incr n 1\r\n");
                    client.read_until("\r\n");
                }
            });
        }
    });
    Client::connect(server.address).ask("get n\r\n", "VALUE n 0 4\r\n1600\r\nEND\r\n");
    Ok(())
}

fn statistics_tell_of_connections(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "kv", &["--threads", "2"])?;
    let mut clients: Vec<_> = (0..5).map(|_| Client::connect(server.address)).collect();
    for client in &mut clients {
        client.ask("get a\r\n", "END\r\n");
    }
    clients[0].send("stats\r\n");
    let stats = clients[0].read_until("END\r\n");
    let pid = format!("STAT pid {}\r\n", server.pid());
    let lines = [
        "STAT curr_connections 5\r\n",
        "STAT total_connections 5\r\n",
        "STAT threads 2\r\n",
        "STAT get_misses 5\r\n",
        "STAT bytes_written 25\r\n",
        pid.as_str(),
    ];
    for line in lines {
        assert!(stats.contains(line), "{line} in {stats}");
    }
    drop(clients);
    let mut client = Client::connect(server.address);
    let deadline = Instant::now() + PATIENCE;
    loop {
        client.send("stats\r\n");
        if client.read_until("END\r\n").contains("STAT curr_connections 1\r\n") {
            return Ok(());
        }
        assert!(Instant::now() < deadline, "closed connections are counted");
        std::thread::sleep(Duration::from_millis(10));
    }
}
