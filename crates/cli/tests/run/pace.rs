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
    let place = Place::new("pace");
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
    let place = Place::new("again");
    let _monitor = place.monitor_with("socket", "same_user = true\n[limits]\noffer_expires_ms = 50\n");
    // The client offers at once, the server when it has enough to do: some 50 offers of the client's later.
    let (_, client) = talk(&place, "eager", 40, 0);
    assert!(client.contains(" 1 connections, 0 promoted, 1 no-peer\n"), "{client}");
    let told = (0..RUNS).map(|_| talk(&place, "eager", 20, 500).1);
    assert!(told.into_iter().any(|client| client.contains(" 1 connections, 1 promoted\n")), "never met");
}

/// An echo server that ends with its longest connection.
const CROWD_SERVER: &str = r#"
import socket, threading
listener = socket.create_server(("127.0.0.1", 0), backlog=200)
print(listener.getsockname()[1], flush=True)
last = threading.Event()
def echo(connection):
    total = 0
    while data := connection.recv(4096):
        connection.sendall(data)
        total += len(data)
    connection.close()
    if total > 1000:
        last.set()
def accept():
    while True:
        threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()
threading.Thread(target=accept, daemon=True).start()
last.wait()
"#;

/// Many connections at a time with few messages each, then one with more.
const CROWD_CLIENT: &str = r#"
import socket, sys
port = int(sys.argv[1])
def talk(client):
    client.sendall(b"ping")
    assert client.recv(4, socket.MSG_WAITALL) == b"ping"
crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
for _ in range(28):
    for client in crowd:
        talk(client)
for client in crowd:
    client.close()
client = socket.create_connection(("127.0.0.1", port))
for _ in range(400):
    talk(client)
"#;

#[test]
fn many_short_connections_at_a_time_are_one_lesson() {
    need_python!("many_short_connections_at_a_time_are_one_lesson");
    let place = Place::new("crowd");
    let _monitor = place.monitor();
    let told = (0..RUNS).any(|_| {
        let mut command = place.run();
        command.arg(python().expect("python3")).args(["-c", CROWD_SERVER]);
        let (mut server, port) = serving(&mut command);
        let mut command = place.run();
        command.arg("--stats").arg(python().expect("python3"));
        let client = output(command.args(["-c", CROWD_CLIENT, port.trim()]));
        assert!(client.status.success(), "{}", text(&client.stderr));
        assert!(server.child().wait().unwrap().success());
        let said = text(&client.stderr);
        let carried =
            said.split("over shared memory ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
        // The short ones have 12 messages left each when they are promoted: 720 in all.
        carried.is_some_and(|messages: u32| messages > 60 * 12 + 100)
    });
    assert!(told, "what came after a crowd was never promoted");
}
