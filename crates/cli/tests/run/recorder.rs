//! Summaries of programs, however they end.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use testkit::process::{Fosterling, PATIENCE, until};

use crate::support::{PAIR, Place, output, python, text};

/// Both ends of a connection, then what the argument says.
const ENDING: &str = r#"
import os, signal, subprocess, sys, time
how = sys.argv[1]
if how == "kill": os.kill(os.getpid(), signal.SIGKILL)
if how == "term": os.kill(os.getpid(), signal.SIGTERM)
if how == "abort": os.abort()
if how == "_exit": os._exit(0)
if how == "exec": os.execv("/bin/true", ["true"])
if how == "exec-killed": os.execv("/bin/sh", ["sh", "-c", "kill -9 $$"])
if how == "closed":
    os.closerange(0, 1 << 20)
    os.kill(os.getpid(), signal.SIGKILL)
if how == "daemon":
    if os.fork():
        os._exit(0)
    os.setsid()
    client = socket.create_connection(listener.getsockname())
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)
if how == "spawned":
    # It begins when this one has ended.
    late = f"import socket; socket.create_connection(('127.0.0.1', {sys.argv[2]}))"
    subprocess.Popen(["sh", "-c", 'sleep 0.2; exec "$0" -c "$1"', sys.executable, late])
    os._exit(0)
if how == "raw":
    import ctypes
    ctypes.CDLL(None).syscall(231, 0)
"#;

/// The lines of connections that processes say.
fn lines(said: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = said
        .lines()
        .filter_map(|line| Some(line.split_once("): ")?.1.split_once(" connections, ")?.0))
        .collect();
    lines.sort_unstable();
    lines
}

#[test]
fn each_end_has_its_summary() {
    need_python!("each_end_has_its_summary");
    let place = Place::new();
    let _monitor = place.monitor();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let program = format!("{PAIR}\n{ENDING}");
    let ends = [
        ("exit", &["2"][..]),
        ("_exit", &["2"]),
        ("kill", &["2"]),
        ("term", &["2"]),
        ("abort", &["2"]),
        ("exec", &["2"]),
        ("exec-killed", &["2"]),
        ("closed", &["2"]),
        ("raw", &["2"]),
        ("daemon", &["1", "2"]),
        ("spawned", &["1", "2"]),
    ];
    for (how, expected) in ends {
        let mut command = place.run();
        command.arg("--stats").arg(python().unwrap()).args(["-c", &program, how, &port]);
        let ended = output(&mut command);
        let said = text(&ended.stderr);
        assert_eq!(lines(&said), expected, "{how}: {said}");
        // And in a file.
        let log = place.file(how);
        let mut command = place.run();
        command
            .args(["--stats", "--log"])
            .arg(&log)
            .arg(python().unwrap())
            .args(["-c", &program, how, &port]);
        assert_eq!(text(&output(&mut command).stderr), "", "{how}");
        let said = std::fs::read_to_string(&log).unwrap();
        assert_eq!(lines(&said), expected, "{how}: {said}");
    }
}

/// A program that ends by itself has its line before whatever its shell does next.
#[test]
fn a_line_comes_before_the_programs_end() {
    need_python!("a_line_comes_before_the_programs_end");
    let place = Place::new();
    let _monitor = place.monitor();
    let command = place.run();
    let run = command.get_program().to_owned();
    let environment: Vec<_> =
        command.get_envs().map(|(a, b)| (a.to_owned(), b.map(ToOwned::to_owned))).collect();
    let mut shell = Command::new("sh");
    for (name, value) in environment {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.args(["-c", "\"$0\" run --stats \"$1\" -c \"$2\"; echo next >&2"]);
    shell.arg(run).arg(python().unwrap()).arg(PAIR);
    for _ in 0..5 {
        let said = text(&output(&mut shell).stderr);
        let lines: Vec<&str> = said.lines().collect();
        assert!(lines[0].contains(": 2 connections, ") && lines[1..] == ["next"], "{said}");
    }
}

/// The environment alone has summaries of what ends by itself, and a stranger's socket is nobody's.
#[test]
fn without_a_recorder_a_program_prints_by_itself() {
    need_python!("without_a_recorder_a_program_prints_by_itself");
    let place = Place::new();
    let _monitor = place.monitor();
    for stats in ["1".to_owned(), format!("@{}", "7".repeat(48))] {
        let mut command = Command::new(python().unwrap());
        command.env("LD_PRELOAD", crate::support::library()).env("MEGAPIPE_STATS", stats);
        command.env("MEGAPIPE_MONITOR", place.file("socket")).env_remove("MEGAPIPE_LOG");
        let said = text(&output(command.args(["-c", PAIR])).stderr);
        assert_eq!(lines(&said), ["2"], "{said}");
    }
}

#[test]
fn haproxy_is_ended_by_a_signal() {
    let Ok(_) = Command::new("haproxy").arg("-v").output() else {
        return println!("SKIPPED haproxy_is_ended_by_a_signal: no haproxy");
    };
    let place = Place::new();
    let _monitor = place.monitor();
    let backend = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    // A free port, at an address that no other test uses: nobody else takes it before HAProxy does.
    let [.., high, low] = std::process::id().to_be_bytes();
    let address = std::net::Ipv4Addr::new(127, 81, high, low);
    let front = std::net::TcpListener::bind((address, 0)).unwrap().local_addr().unwrap();
    let config = format!(
        "defaults\n mode tcp\n timeout client 10s\n timeout server 10s\n timeout connect 10s\nlisten l\n bind {front}\n \
         server s {}\n",
        backend.local_addr().unwrap()
    );
    std::fs::write(place.file("haproxy.cfg"), config).unwrap();
    for signal in [Signal::TERM, Signal::KILL] {
        let mut command = place.run();
        command.args(["--stats", "haproxy", "-db", "-f"]).arg(place.file("haproxy.cfg"));
        let mut haproxy = Fosterling::start(command.stderr(Stdio::piped()).stdout(Stdio::null()));
        let mut client = until("haproxy listens", || std::net::TcpStream::connect(front).ok());
        let (mut server, _) = backend.accept().unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(b"ping").unwrap();
        server.read_exact(&mut [0; 4]).unwrap();
        server.write_all(b"pong").unwrap();
        client.read_exact(&mut [0; 4]).unwrap();
        kill_process(Pid::from_child(haproxy.child()), signal).unwrap();
        let mut said = BufReader::new(haproxy.child().stderr.take().unwrap()).lines();
        let told = said.any(|line| line.unwrap().contains(": 2 connections, 0 promoted, "));
        assert!(told, "{signal:?}");
    }
}
