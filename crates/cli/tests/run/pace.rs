//! Connections with too little to carry stay on TCP until they have more.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use testkit::process::Fosterling;

use crate::support::{ECHO, Place, output, python, text};

/// Round trips, slow ones and then faster ones, as many as the arguments say.
const CLIENT: &str = r#"
import socket, sys, time
port, slow, fast = map(int, sys.argv[1:])
client = socket.create_connection(("127.0.0.1", port))
for number in range(slow + fast):
    client.sendall(b"ping")
    assert client.recv(4, socket.MSG_WAITALL) == b"ping"
    time.sleep(0.06 if number < slow else 0.001)
"#;

/// Of so many runs one meets no hindrance: a call under way when the memory comes, or a busy machine.
const RUNS: u32 = 10;

/// Starts a server that tells its port first.
fn serving(command: &mut Command) -> (Fosterling, String) {
    let mut server = Fosterling::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut port = String::new();
    BufReader::new(server.child().stdout.take().unwrap()).read_line(&mut port).unwrap();
    (server, port)
}

/// What the server and the client say of themselves.
fn talk(place: &Place, mode: &str, slow: u32, fast: u32) -> (String, String) {
    let mut command = place.run();
    command.arg("--stats").arg(python().expect("python3")).args(["-c", ECHO, "1"]);
    let (mut server, port) = serving(&mut command);
    let mut command = place.run();
    command.args(["--stats", "--promote", mode]).arg(python().expect("python3"));
    let client = output(command.args(["-c", CLIENT, port.trim(), &slow.to_string(), &fast.to_string()]));
    assert!(client.status.success(), "{}", text(&client.stderr));
    let mut said = String::new();
    server.child().stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(server.child().wait().unwrap().success(), "{said}");
    (said, text(&client.stderr))
}

#[test]
fn a_connection_is_promoted_when_it_has_enough_to_carry() {
    need_python!("a_connection_is_promoted_when_it_has_enough_to_carry");
    let place = Place::new();
    let _monitor = place.monitor();
    let (server, client) = talk(&place, "auto", 40, 0);
    for said in [&server, &client] {
        assert!(said.ends_with(" 1 connections, 0 promoted, 1 little-traffic\n"), "{said}");
    }
    let told = (0..RUNS).map(|_| talk(&place, "auto", 20, 500)).find(|(server, client)| {
        [server, client].iter().all(|said| said.contains(" 1 connections, 1 promoted\n"))
    });
    assert!(told.is_some(), "it is not promoted when it has more");
}

#[test]
fn an_offer_that_nobody_met_is_made_again() {
    need_python!("an_offer_that_nobody_met_is_made_again");
    let place = Place::new();
    let _monitor = place.monitor_with("socket", "same_user = true\n[limits]\noffer_expires_ms = 50\n");
    // The client offers at once, the server when it has enough to do: some 50 offers of the client's later.
    let (_, client) = talk(&place, "eager", 40, 0);
    assert!(client.contains(" 1 connections, 0 promoted, 1 no-peer\n"), "{client}");
    let told = (0..RUNS).map(|_| talk(&place, "eager", 20, 500).1);
    assert!(told.into_iter().any(|client| client.contains(" 1 connections, 1 promoted\n")), "never met");
}
