//! Each connection of a program is in memory, or has exactly one word.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use testkit::process::Fosterling;

use crate::support::{ECHO, Place, clean, output, python, text};

/// Connections of one process to itself, to a server without Megapipe, and to nobody, which a seed chooses. For each
/// process: its pid, and the fewest and the most connections that it has to account for: one that was forked with
/// connections counts those that it offers.
const RANDOM: &str = r#"
import os, random, socket, subprocess, sys, time
seed, plain = int(sys.argv[1]), int(sys.argv[2])
random.seed(seed)
listener = socket.create_server(("127.0.0.1", 0))
nobody = socket.socket()
nobody.bind(("127.0.0.1", 0))
counted, kept = 0, []

def pair():
    global counted
    client = socket.create_connection(listener.getsockname())
    counted += 2
    return client, listener.accept()[0]

def talk(client, server, messages):
    for number in range(messages):
        client.sendall(b"ping")
        assert server.recv(4, socket.MSG_WAITALL) == b"ping"
        server.sendall(b"pong")
        assert client.recv(4, socket.MSG_WAITALL) == b"pong"
        if number % 8 == 0:
            time.sleep(0.001)

def end(*ends):
    if random.random() < 0.2:
        kept.extend(ends)
    else:
        for one in ends:
            one.close()

def short():
    ends = pair()
    talk(*ends, random.randrange(4))
    end(*ends)

def long():
    ends = pair()
    talk(*ends, random.randrange(20, 60))
    end(*ends)

def bulk():
    client, server = pair()
    for _ in range(8):
        client.sendall(bytes(60000))
        left = 60000
        while left:
            left -= len(server.recv(left))
    end(client, server)

def option():
    client, server = pair()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 2)
    if random.random() < 0.5:
        server.send(b"!", socket.MSG_OOB)
    talk(client, server, 30)
    end(client, server)

def without():
    global counted
    client = socket.create_connection(("127.0.0.1", plain))
    counted += 1
    for _ in range(random.choice((2, 40))):
        client.sendall(b"ping")
        assert client.recv(4, socket.MSG_WAITALL) == b"ping"
    end(client)

def refused():
    with socket.socket() as client:
        assert client.connect_ex(nobody.getsockname())

def listening():
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 2)
        other.bind(("127.0.0.1", 0))
        other.listen()

def copied():
    client, server = pair()
    copy = socket.socket(fileno=os.dup(client.fileno()))
    client.close()
    talk(copy, server, 30)
    end(copy, server)

def spawn():
    ends = pair()
    talk(*ends, random.choice((1, 30)))
    subprocess.run(["true"], pass_fds=[ends[0].fileno()], check=True)
    talk(*ends, 2)
    end(*ends)

def told(fewest, most):
    os.write(1, f"{os.getpid()} {fewest} {most}\n".encode())

def forked():
    global counted
    ends = pair()
    inherited = 2 + len(kept)
    if os.fork() == 0:
        counted = 0
        talk(*ends, random.choice((0, 30)))
        talk(*pair(), random.choice((0, 30)))
        told(counted, counted + inherited)
        os._exit(0)
    for one in ends:
        one.close()
    os.wait()

for _ in range(random.randrange(4, 12)):
    random.choice((short, long, bulk, option, without, refused, listening, copied, spawn, forked))()
told(counted, counted)
match random.randrange(4):
    case 0: os._exit(0)
    case 1: os.execv("/bin/true", ["true"])
    case 2: os.close(listener.fileno())
"#;

/// What a summary says of a process: connections, those in memory, and the others by word.
struct Told {
    connections: u64,
    promoted: u64,
    words: BTreeMap<String, u64>,
}

/// The summaries in a text, by pid.
fn told(said: &str) -> BTreeMap<u32, Told> {
    let mut all = BTreeMap::new();
    for line in said.lines().filter(|line| line.contains(" connections, ") && line.contains(" promoted")) {
        let (program, counts) = line.strip_prefix("megapipe: ").unwrap().split_once("): ").unwrap();
        let pid = program.rsplit_once('(').unwrap().1.parse().unwrap();
        let counts = counts.split(", ").map(|count| count.split_once(' ').unwrap());
        let mut counts: BTreeMap<String, u64> =
            counts.map(|(number, word)| (word.to_owned(), number.parse().unwrap())).collect();
        let mut take = |word: &str| counts.remove(word).unwrap();
        let (connections, promoted) = (take("connections"), take("promoted"));
        let told = Told { connections, promoted, words: counts };
        assert!(all.insert(pid, told).is_none(), "told once: {said}");
    }
    all
}

#[test]
fn every_connection_is_in_memory_or_has_one_word() {
    need_python!("every_connection_is_in_memory_or_has_one_word");
    let place = Place::new();
    let _monitor = place.monitor();
    let mut plain = clean(python().unwrap());
    let mut plain = Fosterling::start(plain.args(["-c", ECHO]).stdout(Stdio::piped()));
    let mut port = String::new();
    BufReader::new(plain.child().stdout.take().unwrap()).read_line(&mut port).unwrap();
    let mut words = BTreeMap::<String, u64>::new();
    for seed in 0..24 {
        let mode = ["auto", "eager"][seed % 2];
        let mut command = place.run();
        command.args(["--stats", "--promote", mode]).arg(python().unwrap()).args(["-c", RANDOM]);
        let ended = output(command.arg(seed.to_string()).arg(port.trim()));
        let said = text(&ended.stderr);
        assert!(ended.status.success(), "seed {seed}: {said}");
        let told = told(&said);
        for line in text(&ended.stdout).lines() {
            let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().unwrap()).collect();
            let &[pid, fewest, most] = &numbers[..] else { panic!("{line}") };
            let Some(told) = told.get(&(pid as u32)) else {
                assert_eq!(fewest, 0, "seed {seed}: {line}: {said}");
                continue;
            };
            assert!((fewest..=most).contains(&told.connections), "seed {seed}: {line}: {said}");
            let sum = told.promoted + told.words.values().sum::<u64>();
            assert_eq!(sum, told.connections, "seed {seed}: {line}: {said}");
            *words.entry("promoted".into()).or_default() += told.promoted;
            told.words.iter().for_each(|(word, count)| *words.entry(word.clone()).or_default() += count);
        }
    }
    println!("{words:?}");
    for word in ["promoted", "little-traffic", "option", "shared"] {
        assert!(words.contains_key(word), "no {word} among {words:?}");
    }
}

#[test]
fn a_program_without_connections_says_nothing() {
    let place = Place::new();
    let _monitor = place.monitor();
    let script = "for number in 1 2 3 4 5 6; do (true) & wait; ls >/dev/null; done";
    let ended = output(place.run().args(["--stats", "sh", "-c", script]));
    assert!(ended.status.success());
    assert_eq!(text(&ended.stderr), "");
}

/// Eight connections at a time, for half a second.
const EIGHT: &str = r#"
import socket, sys, time
connections = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(8)]
for _ in range(100):
    for connection in connections:
        connection.sendall(b"ping")
        assert connection.recv(4, socket.MSG_WAITALL) == b"ping"
    time.sleep(0.005)
"#;

/// What a server and a client say that run with these monitors; the server without Megapipe if it has none.
fn eight(place: &Place, server: Option<&str>, client: &str) -> (String, String) {
    let with = |monitor: &str| {
        let mut command = place.run();
        command.env("MEGAPIPE_MONITOR", place.file(monitor)).arg("--stats").arg(python().unwrap());
        command
    };
    let mut command = server.map_or_else(|| clean(python().unwrap()), with);
    command.args(["-c", ECHO, "8"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut server = Fosterling::start(&mut command);
    let mut port = String::new();
    BufReader::new(server.child().stdout.take().unwrap()).read_line(&mut port).unwrap();
    let client = output(with(client).args(["-c", EIGHT, port.trim()]));
    let mut said = String::new();
    server.child().stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (said, text(&client.stderr))
}

/// These said "8 connections, 0 promoted, 8 not offered".
#[test]
fn two_monitors_a_plain_peer_and_no_monitor_are_told_apart() {
    need_python!("two_monitors_a_plain_peer_and_no_monitor_are_told_apart");
    let place = Place::new();
    let _one = place.monitor();
    let _another = place.monitor_with("another", "");
    let (server, client) = eight(&place, Some("socket"), "another");
    for said in [server, client] {
        assert!(said.contains(": 8 connections, 0 promoted, 8 no-peer\n"), "two monitors: {said}");
    }
    let (_, client) = eight(&place, None, "socket");
    assert!(client.contains(": 8 connections, 0 promoted, 8 no-peer\n"), "plain: {client}");
    let (server, client) = eight(&place, Some("nowhere"), "nowhere");
    for said in [server, client] {
        assert!(said.contains(": 8 connections, 0 promoted, 8 no-monitor\n"), "no monitor: {said}");
    }
}
