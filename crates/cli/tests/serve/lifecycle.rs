//! How a server starts and ends.
use std::process::Stdio;

use rustix::process::Signal;

use crate::client::Client;
use crate::on_both_engines;
use crate::server::{Server, Verdict, serve};

on_both_engines!(
    signals_end_it,
    connections_are_spread_over_pinned_threads,
    there_is_a_greatest_number_of_connections,
    a_taken_address_is_refused,
    impossible_limits_are_refused,
    it_listens_on_ipv6,
);

fn signals_end_it(engine: &'static str) -> Verdict {
    for signal in [Signal::TERM, Signal::INT] {
        let server = Server::start(engine, "kv", &[])?;
        let mut client = Client::connect(server.address);
        client.ask("set a 0 0 1\r\nx\r\n", "STORED\r\n");
        server.signal(signal);
        assert!(client.read_to_end().is_empty());
        let (status, said) = server.wait();
        assert!(status.success(), "{status}");
        assert_eq!(said, "");
    }
    Ok(())
}

fn connections_are_spread_over_pinned_threads(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "kv", &["--threads", "3", "--pin"])?;
    let mut clients: Vec<_> = (0..60).map(|_| Client::connect(server.address)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.ask(format!("set key{number} 0 0 1\r\nx\r\n"), "STORED\r\n");
    }
    for (number, client) in clients.iter_mut().rev().enumerate() {
        client.ask(format!("get key{number}\r\n"), format!("VALUE key{number} 0 1\r\nx\r\nEND\r\n"));
    }
    Ok(())
}

fn there_is_a_greatest_number_of_connections(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "kv", &["--max-connections", "3"])?;
    let mut clients: Vec<_> = (0..3).map(|_| Client::connect(server.address)).collect();
    for client in &mut clients {
        client.send("version\r\n");
        client.read_until("\r\n");
    }
    let mut refused = Client::connect(server.address);
    assert_eq!(refused.read_to_end(), b"ERROR Too many open connections\r\n");
    clients[0].ask("quit\r\n", "");
    assert!(clients[0].read_to_end().is_empty());
    // The server closes before it counts: another client may yet be refused once or twice.
    let accepted = (0..1000).any(|_| {
        let mut client = Client::connect(server.address);
        client.send("quit\r\n");
        client.read_to_end().is_empty()
    });
    assert!(accepted);
    clients[1].send("stats\r\n");
    let stats = clients[1].read_until("END\r\n");
    assert!(stats.contains("STAT max_connections 3\r\n"), "{stats}");
    assert!(!stats.contains("STAT rejected_connections 0\r\n"), "{stats}");
    Ok(())
}

fn a_taken_address_is_refused(engine: &'static str) -> Verdict {
    let server = Server::start(engine, "kv", &[])?;
    let address = server.address.to_string();
    for service in ["kv", "echo"] {
        let output = serve(engine, service, &["--listen", &address])
            .stdout(Stdio::piped())
            .output()
            .expect("the built program can be started");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success());
        assert!(message.contains(&address) && message.contains("--listen"), "{message}");
        assert!(output.stdout.is_empty());
    }
    Ok(())
}

fn impossible_limits_are_refused(engine: &'static str) -> Verdict {
    let cases: [&[&str]; 5] = [
        &["--memory-limit", "1"],
        &["--max-item-size", "2g"],
        &["--max-item-size", "0"],
        &["--threads", "0"],
        &["--listen", "nowhere"],
    ];
    for arguments in cases {
        let output = serve(engine, "kv", arguments).output().expect("the built program can be started");
        assert!(!output.status.success(), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
    Ok(())
}

fn it_listens_on_ipv6(engine: &'static str) -> Verdict {
    if let Err(error) = std::net::TcpListener::bind("[::1]:0") {
        return Err(crate::server::Skipped(format!("no IPv6 on the loopback: {error}")));
    }
    let server = Server::start(engine, "kv", &["--listen", "[::1]:0"])?;
    let mut client = Client::connect(server.address);
    client.ask("get a\r\n", "END\r\n");
    Ok(())
}
