//! How a server starts and ends.

use std::io::{BufRead, BufReader};
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
    impossible_arguments_are_refused,
    threads_beyond_the_limit_of_descriptors_are_refused,
    an_unknown_engine_is_told_in_one_line,
    an_unknown_feature_is_told_in_one_line,
    a_port_that_needs_a_privilege_is_named,
    it_listens_on_ipv6,
);

fn signals_end_it(engine: &'static str) -> Verdict {
    for signal in [Signal::TERM, Signal::INT] {
        let server = Server::start(engine, "kv", &[])?;
        let mut client = Client::connect(server.address);
        client.ask("set a 0 0 1\r\nx\r\n", "STORED\r\n");
        server.signal(signal);
        assert!(client.read_to_end().is_empty());
        drop(client);
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
        for words in [address.as_str(), "another server", "127.0.0.1:0"] {
            assert!(message.contains(words), "{message}");
        }
        assert!(output.stdout.is_empty());
    }
    Ok(())
}

/// Each with what its message must name: the cause, and what would do instead.
fn impossible_arguments_are_refused(engine: &'static str) -> Verdict {
    let cases: [(&[&str], &[&str]); 22] = [
        (&["--memory-limit", "1"], &["9 MiB", "--memory-limit", "--max-item-size"]),
        (&["--memory-limit", "0"], &["--memory-limit", "such as 64"]),
        (&["--memory-limit", "-1"], &["--memory-limit", "such as 64"]),
        (&["--memory-limit", "10Q"], &["10Q", "whole number of MiB"]),
        (&["--memory-limit", "1000000000"], &["MiB of memory here"]),
        (&["--max-item-size", "2g"], &["such as 512k"]),
        (&["--max-item-size", "0"], &["such as 512k"]),
        (&["--idle-timeout", "-1"], &["--idle-timeout", "such as 60"]),
        (&["--idle-timeout", "0.01"], &["--idle-timeout", "from 0.1 up"]),
        (&["--drain-timeout", "-1"], &["--drain-timeout", "such as 5"]),
        (&["--drain-timeout", "1e12"], &["--drain-timeout", "such as 5"]),
        (&["--max-connections", "0"], &["--max-connections", "from 1 up"]),
        (&["--threads", "0"], &["--threads", "from 1 up"]),
        (&["--threads", "-1"], &["--threads", "from 1 up"]),
        (&["--threads", "100000000"], &["memory", "use at most", "--threads"]),
        (&["--listen", "nowhere"], &["no port", "127.0.0.1:8080"]),
        (&["--listen", "127.0.0.1"], &["no port", "127.0.0.1:8080"]),
        (&["--listen", "127.0.0.1:70000"], &["70000", "65535", "127.0.0.1:8080"]),
        (&["--listen", ":80"], &["no address before the port", "0.0.0.0:80"]),
        (&["--listen", "::1"], &["brackets", "[::1]:8080"]),
        (&["--listen", "no.such.name.invalid:80"], &["does not resolve", "127.0.0.1:8080"]),
        // Kept for documentation (RFC 5737): no interface has it.
        (&["--listen", "192.0.2.1:80"], &["no interface here", "0.0.0.0:80"]),
    ];
    for (arguments, named) in cases {
        let output = serve(engine, "kv", arguments).output().expect("the built program can be started");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        assert!(named.iter().all(|words| message.contains(words)), "{arguments:?}: {message}");
    }
    Ok(())
}

fn threads_beyond_the_limit_of_descriptors_are_refused(engine: &'static str) -> Verdict {
    let program = env!("CARGO_BIN_EXE_megapipe-echo");
    let command = format!("ulimit -n 64 && exec {program} --listen 127.0.0.1:0 --threads 16");
    let output = std::process::Command::new("sh")
        .args(["-c", &command])
        .env("MEGAPIPE_ENGINE", engine)
        .output()
        .expect("a shell is there");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(output.stdout.is_empty());
    for words in ["16 threads need 81 descriptors", "RLIMIT_NOFILE", "is 64", "ulimit -n 81"] {
        assert!(message.contains(words), "{message}");
    }
    Ok(())
}

fn an_unknown_engine_is_told_in_one_line(_: &'static str) -> Verdict {
    let output = serve("foo", "kv", &["--listen", "127.0.0.1:0", "--threads", "1"])
        .output()
        .expect("the built program can be started");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    let expected = "megapipe-kv: MEGAPIPE_ENGINE is `foo`; set it to `uring` or `epoll`, or unset it\n";
    assert_eq!(message, expected);
    Ok(())
}

fn an_unknown_feature_is_told_in_one_line(engine: &'static str) -> Verdict {
    let mut server = serve(engine, "echo", &["--listen", "127.0.0.1:0", "--threads", "2"])
        .env("MEGAPIPE_DISABLE", "foo")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the built program can be started");
    let mut line = String::new();
    BufReader::new(server.stdout.take().expect("stdout is piped")).read_line(&mut line).expect("readable");
    rustix::process::kill_process(rustix::process::Pid::from_child(&server), Signal::TERM).expect("it lives");
    let output = server.wait_with_output().expect("the server is our child");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if crate::server::lacks_ring(&said) {
        return Err(crate::server::Skipped(said));
    }
    let warnings: Vec<_> = said.lines().filter(|line| line.contains("MEGAPIPE_DISABLE")).collect();
    assert_eq!(warnings.len(), 1, "{said}");
    assert!(warnings[0].contains("foo") && warnings[0].contains("ring, defer_taskrun"), "{said}");
    Ok(())
}

fn a_port_that_needs_a_privilege_is_named(engine: &'static str) -> Verdict {
    let first = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    let first = first.ok().and_then(|port| port.trim().parse::<u16>().ok()).unwrap_or(1024);
    if !rustix::process::geteuid().is_root() || first < 2 {
        return Err(crate::server::Skipped("needs root to give the privilege up".to_owned()));
    }
    // Without capabilities root may no more than others.
    let output = std::process::Command::new("setpriv")
        .args(["--bounding-set=-all", "--inh-caps=-all", env!("CARGO_BIN_EXE_megapipe-echo")])
        .args(["--listen", "127.0.0.1:1"])
        .env("MEGAPIPE_ENGINE", engine)
        .output();
    let Ok(output) = output else {
        return Err(crate::server::Skipped("setpriv (util-linux) is not installed".to_owned()));
    };
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    let below = format!("ports below {first}");
    for words in [below.as_str(), "CAP_NET_BIND_SERVICE", "127.0.0.1:8080"] {
        assert!(message.contains(words), "{message}");
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
