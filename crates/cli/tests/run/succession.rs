//! Monitors that take the place of others while two programs run: connections that were
//! promoted live on, and new ones are promoted by the new monitor.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use promote::Place as Socket;
use promote::viewer::Viewer;
use testkit::process::{Fosterling, copy_program, until};

use crate::places::{ROOT, SYSTEM, enter, installed};
use crate::promotion::EndOf;
use crate::support::{Place, clean, output};

/// Echoes on every connection, which it keeps.
const SERVER: &str = r#"
import socket, threading
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
def serve(connection):
    while data := connection.recv(4096):
        connection.sendall(data)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;

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
        let mut server = run(&[SERVER]);
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
            (viewer.look().ok()?.totals.promoted >= 2).then_some(())
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
    let place = Place::new("setup");
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
    let place = Place::new("upgrade");
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
