//! The rootless demonstration of docs/tcp.md: servers with `--stack`, on a TCP of their
//! own, and clients on the kernel's, as a user without privileges. Load generators of
//! others run briefly, and with `MEGAPIPE_DEMONSTRATION=full` as long as it was asked
//! for.

use std::io::Write;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use testkit::netns;

use crate::on_both_engines;
use crate::support::{Client, Server, Skipped, Verdict};

on_both_engines!(linux_clients_are_served, memaslap_has_no_errors, wrk_has_no_errors, ab_has_no_errors);

const BOUND: Duration = Duration::from_secs(300);
const STACK: &str = "tun:mp0,10.78.0.2/24,fd78::2/64";

fn is_full() -> bool {
    std::env::var("MEGAPIPE_DEMONSTRATION").is_ok_and(|how| how == "full")
}

/// A server, in the process in namespaces of its own; none outside.
fn start(engine: &'static str, test: &str, service: &str, listen: &str) -> Result<Option<Server>, Skipped> {
    if !netns::enter(&format!("demonstration::{engine}::{test}"), BOUND) {
        return Ok(None);
    }
    let mut arguments = vec!["--stack", STACK, "--listen", listen];
    if service == "kv" {
        // Room for all that is set: what is evicted would be missed.
        arguments.extend(["--memory-limit", "512"]);
    }
    Server::start(engine, service, &arguments).map(Some)
}

/// What the first of these programs that is there prints.
pub(crate) fn run(programs: &[&str], arguments: &[&str]) -> Result<String, Skipped> {
    for program in programs {
        if let Ok(output) = Command::new(program).args(arguments).output() {
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said).into_owned();
            assert!(output.status.success(), "{program} {arguments:?}: {}: {said}", output.status);
            return Ok(said);
        }
    }
    println!();
    Err(Skipped::because(format!("{} is not installed", programs[0])))
}

/// Over IPv6, with a thread on each queue of the device; what was asked before a signal
/// is answered.
fn linux_clients_are_served(engine: &'static str) -> Verdict {
    let Some(server) = start(engine, "linux_clients_are_served", "kv", "[fd78::2]:7")? else { return Ok(()) };
    let mut clients: Vec<_> = (0..40).map(|_| Client::connect(server.address)).collect();
    let answer = clients[0].store_big(1_000_000);
    for client in &mut clients {
        client.ask("get big\r\n", &answer);
    }
    clients.truncate(1);
    clients[0].send("get big\r\n".repeat(10));
    clients[0].expect(&answer);
    server.signal(Signal::TERM);
    (0..9).for_each(|_| clients[0].expect(&answer));
    assert!(clients[0].read_to_end().is_empty());
    drop(clients);
    assert!(server.wait().success());
    Ok(())
}

fn memaslap_has_no_errors(engine: &'static str) -> Verdict {
    let Some(server) = start(engine, "memaslap_has_no_errors", "kv", "10.78.0.2:11211")? else {
        return Ok(());
    };
    let servers = format!("--servers={}", server.address);
    // It would write one to the home directory of root, whom this user seems to be.
    let mut configuration = tempfile::NamedTempFile::new().expect("a file");
    configuration.write_all(b"key\n64 64 1\nvalue\n1024 1024 1\ncmd\n0 0.1\n1 0.9\n").expect("room for it");
    let argument = format!("--cfg_cmd={}", configuration.path().display());
    let count = if is_full() { "--execute_number=1000000" } else { "--execute_number=20000" };
    let said = run(
        &["memcaslap", "memaslap"],
        &[&servers, &argument, "--threads=1", "--concurrency=64", "--verify=0.5", count],
    )?;
    for counter in ["get_misses", "verify_misses", "verify_failed"] {
        assert!(said.contains(&format!("{counter}: 0\n")), "{said}");
    }
    print(engine, "memaslap", said.lines().find(|line| line.contains("TPS:")));
    Ok(())
}

fn wrk_has_no_errors(engine: &'static str) -> Verdict {
    let Some(server) = start(engine, "wrk_has_no_errors", "http", "10.78.0.2:8080")? else { return Ok(()) };
    let place = format!("http://{}/", server.address);
    let seconds = if is_full() { "10" } else { "1" };
    for connections in ["1", "500"] {
        let said = run(&["wrk"], &["-t", "1", "-c", connections, "-d", seconds, &place])?;
        let requests = said.lines().find(|line| line.contains(" requests in "));
        let number = requests.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        assert!(number > Some(0), "{said}");
        // Lines that wrk prints only if there were some.
        assert!(!said.contains("Socket errors") && !said.contains("Non-2xx"), "{said}");
        print(engine, &format!("wrk, {connections} connections"), requests);
    }
    Ok(())
}

/// A connection for each request.
fn ab_has_no_errors(engine: &'static str) -> Verdict {
    let Some(server) = start(engine, "ab_has_no_errors", "http", "10.78.0.2:8080")? else { return Ok(()) };
    let place = format!("http://{}/", server.address);
    let number = if is_full() { "200000" } else { "5000" };
    let said = run(&["ab"], &["-q", "-n", number, "-c", "100", &place])?;
    let counts = |name: &str, count: &str| {
        said.lines().any(|line| line.strip_prefix(name).is_some_and(|rest| rest.trim() == count))
    };
    assert!(counts("Complete requests:", number) && counts("Failed requests:", "0"), "{said}");
    assert!(!said.contains("Non-2xx") && !said.contains("Write errors"), "{said}");
    print(engine, "ab", said.lines().find(|line| line.starts_with("Requests per second")));
    Ok(())
}

fn print(engine: &str, what: &str, figure: Option<&str>) {
    println!("{engine}, {what}: {}", figure.unwrap_or_default().trim());
}
