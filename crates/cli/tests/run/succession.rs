//! Monitors that take the place of others while two programs run: connections that were
//! promoted live on, and new ones are promoted by the new monitor.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use promote::viewer::Viewer;
use promote::wire::{ClientMessage, MonitorMessage, Name};
use promote::{Place as Socket, Reason};
use sys::memory_file::MemoryFile;
use testkit::process::{Fosterling, copy_program, until};

use crate::places::{ROOT, SYSTEM, enter, installed};
use crate::promotion::{EndOf, PAIR};
use crate::support::{ECHO, Place, clean, output, python, text};

/// For each line: 100 round trips on the first connection, or on a new one.
const CLIENT: &str = r#"
import socket, sys, time
address = ("127.0.0.1", int(sys.argv[1]))
connections = []
for line in sys.stdin:
    if line == "new\n":
        connections.append(socket.create_connection(address))
    connection = connections[0 if line == "old\n" else -1]
    for number in range(100):
        connection.sendall(bytes([number]) * 100)
        got = b""
        while len(got) < 100:
            got += connection.recv(4096)
        assert got == bytes([number]) * 100
        time.sleep(0.002)
    print("done", flush=True)
"#;

struct Programs {
    _server: Fosterling,
    _client: Fosterling,
    to_client: ChildStdin,
    from_client: std::io::Lines<BufReader<ChildStdout>>,
}

impl Programs {
    fn start(program: &Path) -> Programs {
        let run = |arguments: &[&str]| {
            let mut command = clean(program);
            command.args(["run", "--promote", "eager", "/usr/bin/python3", "-c"]).args(arguments);
            command.env_remove("MEGAPIPE_MONITOR").env_remove("XDG_RUNTIME_DIR");
            Fosterling::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))
        };
        let mut server = run(&[ECHO]);
        let mut lines = BufReader::new(server.child().stdout.take().unwrap()).lines();
        let port = lines.next().unwrap().unwrap();
        let mut client = run(&[CLIENT, &port]);
        let to_client = client.child().stdin.take().unwrap();
        let from_client = BufReader::new(client.child().stdout.take().unwrap()).lines();
        Programs { _server: server, _client: client, to_client, from_client }
    }

    fn do_round_trips(&mut self, on: &str) {
        writeln!(self.to_client, "{on}").unwrap();
        assert_eq!(self.from_client.next().unwrap().unwrap(), "done");
    }

    /// Opens connections until the monitor at `socket` has promoted one.
    fn until_promoted_at(&mut self, socket: &str) {
        until("a promotion", || {
            self.do_round_trips("new");
            let viewer = Viewer::connect(&Socket::chosen(socket.into()), "test").ok()?;
            (viewer.query().ok()?.totals.promoted >= 2).then_some(())
        });
    }
}

/// A monitor of another version, by the three ways in which it may say so, and what it gets.
#[test]
fn another_version_of_the_monitor_is_named() {
    need_python!("another_version_of_the_monitor_is_named");
    let hello = ClientMessage::Hello { version_min: 1, version_max: 1, name: Name::new("") }.encode();
    let mut newer = hello.as_bytes().to_vec();
    newer[2] = 2;
    let welcome =
        MonitorMessage::Welcome { version: promote::client::DECLINES + 1, loop_id: 1, segment_size: 8192 };
    let refusal = MonitorMessage::Refuse { token: None, reason: Reason::Version };
    let answers = [newer, welcome.encode().as_bytes().to_vec(), refusal.encode().as_bytes().to_vec()];
    for (number, answer) in answers.into_iter().enumerate() {
        let place = Place::new();
        let listener = sys::packet::listen(&place.file("socket"), 16).unwrap();
        // It ends with the test's process.
        std::thread::spawn(move || {
            let page = MemoryFile::create("page", 4096, b"").unwrap();
            let mut clients: Vec<OwnedFd> = Vec::new();
            loop {
                if let Ok(client) = sys::packet::accept(listener.as_fd()) {
                    let page = page.writable.as_fd();
                    let with = if number == 1 { &[page][..] } else { &[] };
                    let _ = sys::packet::send(client.as_fd(), &answer, with);
                    clients.push(client);
                }
                // What it is sent it closes, and the client, too, once that has gone.
                clients.retain(|client| match sys::packet::receive(client.as_fd(), &mut [0; 256]) {
                    Ok(received) => received.len > 0,
                    Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
                });
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let mut command = place.run();
        command.args(["--promote", "eager", "--stats"]).arg(python().unwrap()).args(["-c", PAIR, "exit"]);
        // On a slow machine an answer may come too late for the line, and for the program.
        until("both name the version", || {
            let ended = output(&mut command);
            let said = text(&ended.stderr);
            assert!(
                ended.status.success() && said.contains("2 connections, 0 promoted, 2 "),
                "{number}: {said}"
            );
            let line = said.lines().find(|line| line.starts_with("megapipe run: ")).unwrap_or_default();
            let has_line = line.contains("another version") && line.contains("systemctl restart");
            (has_line && said.contains("2 version")).then_some(())
        });
    }
}

fn until_gone(socket: &str) {
    until("the end of the monitor", || (!Path::new(socket).exists()).then_some(()));
}

#[test]
fn programs_move_to_the_systems_monitor() {
    if !enter("succession::programs_move_to_the_systems_monitor") {
        return;
    }
    let place = Place::new();
    let program = installed(&place);
    let mut programs = Programs::start(&program);
    programs.until_promoted_at(ROOT);
    // As `setup` leaves it.
    fs::write(place.file("policy"), "same_user = true\n").unwrap();
    let mut command = clean(&program);
    command.args(["monitor", "--config"]).arg(place.file("policy")).env_remove("MEGAPIPE_MONITOR");
    let _system = Fosterling::start(command.stderr(Stdio::null()));
    until_gone(ROOT);
    programs.do_round_trips("old");
    programs.until_promoted_at(SYSTEM);
    programs.do_round_trips("old");
}

#[test]
fn programs_outlive_an_upgrade() {
    if !enter("succession::programs_outlive_an_upgrade") {
        return;
    }
    let place = Place::new();
    let program = installed(&place);
    let mut programs = Programs::start(&program);
    programs.until_promoted_at(ROOT);
    // As a package manager does it.
    copy_program(&program, &place.file("megapipe.new"));
    fs::rename(place.file("megapipe.new"), &program).unwrap();
    until_gone(ROOT);
    programs.do_round_trips("old");
    let mut next = Command::new(&program);
    output(next.args(["run", "true"]).env_remove("MEGAPIPE_MONITOR"));
    let monitor = EndOf(ROOT.into());
    programs.until_promoted_at(ROOT);
    programs.do_round_trips("old");
    drop(monitor);
}
