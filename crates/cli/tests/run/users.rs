//! Programs of several users, and programs that become another user while they run.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};

use testkit::netns::enter_own_run;
use testkit::process::{Fosterling, PATIENCE, listening_monitor};

use crate::places::installed;
use crate::support::{ECHO, PROGRAM, Place, clean, output, text};

/// Users and groups that nobody else has.
const SERVER: u32 = 64_001;
const CLIENT: u32 = 64_002;
const STRANGER: u32 = 64_003;
const NOBODY: u32 = 65_534;
const PYTHON: &str = "/usr/bin/python3";

/// A server that forks for each connection, as PostgreSQL does, and ends behind the first that
/// its argument counts.
const FORKING: &str = r#"
import os, socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
for _ in range(int(sys.argv[1])):
    connection, _ = listener.accept()
    if os.fork() == 0:
        listener.close()
        while data := connection.recv(4096):
            connection.sendall(data)
        connection.close()
        sys.exit(0)
    connection.close()
    os.wait()
"#;

/// Round trips on one connection, then what the argument says, then on another and on both.
const CHANGING: &str = r#"
import os, socket, sys, time
port, how = int(sys.argv[1]), sys.argv[2]
def trips(connection):
    for number in range(100):
        sent = bytes([number]) * 100
        connection.sendall(sent)
        got = b""
        while len(got) < len(sent):
            got += connection.recv(4096)
        assert got == sent
        time.sleep(0.001)
def connect():
    connection = socket.create_connection(("127.0.0.1", port))
    trips(connection)
    return connection
first = connect()
if how == "fork":
    child = os.fork()
    if child == 0:
        first.close()
        os.setuid(65534)
        connect().close()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
elif how:
    getattr(os, how)(65534)
    second = connect()
trips(first)
"#;

/// Round trips on connections that begin together, for a second at least, then on others. The first are all
/// offered before one is answered, the others after several answers.
const BUSY: &str = r#"
import socket, sys, time
def trips(connections):
    end, least = time.monotonic() + 1, 400
    while least > 0 or time.monotonic() < end:
        least -= 1
        for connection in connections:
            connection.sendall(b"x" * 100)
            got = b""
            while len(got) < 100:
                got += connection.recv(4096)
def connect():
    connections = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(8)]
    trips(connections)
    return connections
first = connect()
others = connect()
"#;
/// Its connections.
const BUSY_COUNT: &str = "16";

/// A connection that this end offers long before the other: its few round trips are too few for that one.
const EARLY: &str = r#"
import socket, sys, time
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for number in range(400):
    connection.sendall(b"x" * 100)
    got = b""
    while len(got) < 100:
        got += connection.recv(4096)
    time.sleep(0.4 if number == 3 else 0.001)
"#;

/// The line of a process's connections: how many, and how many of them were promoted.
fn counted(said: &str) -> Vec<(u32, u32)> {
    let count = |line: &str| {
        let (_, counts) = line.split_once("): ")?;
        let (all, counts) = counts.split_once(" connections, ")?;
        Some((all.parse().ok()?, counts.split_once(" promoted")?.0.parse().ok()?))
    };
    said.lines().filter_map(count).collect()
}

/// Programs where every user can run them.
struct Programs {
    place: Place,
    megapipe: PathBuf,
}

impl Programs {
    /// `None`, said with the test's name, where the test cannot run.
    fn new(test: &str) -> Option<Programs> {
        let lacks = match () {
            () if !rustix::process::geteuid().is_root() => "it runs as root",
            () if !Path::new(PYTHON).exists() => "no python3 that everybody can run",
            () => {
                let place = Place::new();
                return Some(Programs { megapipe: installed(&place), place });
            }
        };
        println!("SKIPPED {test}: {lacks}");
        None
    }

    /// A program of this user under `megapipe run`, with the monitor of this place, or the one
    /// that is found.
    fn run(&self, user: u32, monitor: Option<&Path>, program: &str, arguments: &[&str]) -> Command {
        self.run_as("eager", user, monitor, program, arguments)
    }

    /// Likewise, promoted this way.
    fn run_as(
        &self,
        promote: &str,
        user: u32,
        monitor: Option<&Path>,
        program: &str,
        arguments: &[&str],
    ) -> Command {
        let mut command = clean(&self.megapipe);
        command
            .args(["run", "--promote", promote, "--stats", PYTHON, "-c", program])
            .args(arguments)
            .current_dir("/")
            .uid(user)
            .gid(user);
        match monitor {
            Some(monitor) => command.env("MEGAPIPE_MONITOR", monitor),
            None => command.env_remove("MEGAPIPE_MONITOR").env_remove("XDG_RUNTIME_DIR"),
        };
        command
    }

    /// A server, and the port at which it listens.
    fn serve(&self, user: u32, monitor: Option<&Path>, program: &str, count: &str) -> (Fosterling, String) {
        listening(&mut self.run(user, monitor, program, &[count]))
    }

    /// The monitor of the system, which nobody names, with this policy.
    fn systems_monitor(&self, policy: &str) -> Fosterling {
        let config = self.place.file("policy.toml");
        std::fs::write(&config, policy).unwrap();
        let mut command = clean(PROGRAM);
        command.env_remove("MEGAPIPE_MONITOR").args(["monitor", "--config"]).arg(&config);
        listening_monitor(&mut command)
    }

    /// The connections of each process of a client with a server of root's.
    fn change(&self, monitor: &Path, how: &str) -> Vec<(u32, u32)> {
        let connections = if how.is_empty() { "1" } else { "2" };
        let (mut server, port) = self.serve(0, Some(monitor), ECHO, connections);
        let ended = output(&mut self.run(0, Some(monitor), CHANGING, &[&port, how]));
        let said = text(&ended.stderr);
        assert!(ended.status.success(), "{how}: {said}");
        assert!(server.child().wait().unwrap().success());
        counted(&said)
    }
}

/// A server that was started, and the port at which it listens.
fn listening(command: &mut Command) -> (Fosterling, String) {
    let mut server = Fosterling::start(command.stdout(Stdio::piped()).stderr(Stdio::null()));
    let stdout: ChildStdout = server.child().stdout.take().unwrap();
    let mut port = String::new();
    BufReader::new(stdout).read_line(&mut port).unwrap();
    (server, port.trim().to_owned())
}

/// A rule that lets the server's and the client's user share.
fn rule() -> String {
    format!("allow = [\n  {{ one = {{ uid = [{SERVER}] }}, other = {{ uid = [{CLIENT}] }} }},\n]\n")
}

/// An end that a call was under way on when its memory came stays on TCP: in one of so many
/// runs none is.
const RUNS: u32 = 10;

#[test]
fn a_program_that_changed_its_user_is_the_new_one() {
    let test = "a_program_that_changed_its_user_is_the_new_one";
    let Some(programs) = Programs::new(test) else { return };
    let _monitor = programs.place.monitor_with("socket", "");
    let monitor = programs.place.file("socket");
    // What each process's connections come to. Only a change of the real user counts.
    let cases: [(&str, &[(u32, u32)]); 3] =
        [("setuid", &[(2, 1)]), ("seteuid", &[(2, 2)]), ("fork", &[(1, 0), (1, 1)])];
    for (how, expected) in cases {
        let mut seen = Vec::new();
        let found = (0..RUNS).any(|_| {
            seen = programs.change(&monitor, how);
            // Nothing more is promoted than may be, in any run.
            let most = seen.iter().zip(expected).all(|(seen, most)| seen.0 == most.0 && seen.1 <= most.1);
            assert!(most && seen.len() == expected.len(), "{how}: {seen:?}");
            seen == expected
        });
        assert!(found, "{how}: {seen:?}");
    }
}

#[test]
fn a_monitor_that_cannot_read_namespaces_serves_no_root() {
    let test = "a_monitor_that_cannot_read_namespaces_serves_no_root";
    let Some(programs) = Programs::new(test) else { return };
    for (policy, promoted) in [("", 0), ("same_user = true\n", 1)] {
        let socket = programs.place.file("blind");
        let config = programs.place.file("blind.toml");
        std::fs::write(&config, policy).unwrap();
        let mut command = Command::new("setpriv");
        // As the unit's monitor runs.
        command.args(["--bounding-set=-all", "--inh-caps=-all"]).arg(PROGRAM).arg("monitor");
        command.arg("--socket").arg(&socket).arg("--config").arg(config);
        let Ok(_) = Command::new("setpriv").arg("--version").output() else {
            return println!("SKIPPED {test}: no setpriv");
        };
        let _monitor = listening_monitor(&mut command);
        let best = (0..RUNS).map(|_| programs.change(&socket, "")[0]).max_by_key(|seen| seen.1);
        assert_eq!(best, Some((1, promoted)), "{policy}");
    }
}

/// PostgreSQL with a client of another user, and the system's monitor, which nobody names.
#[test]
fn two_users_meet_at_the_systems_monitor() {
    const NAME: &str = "users::two_users_meet_at_the_systems_monitor";
    let Some(programs) = Programs::new(NAME) else { return };
    if !enter_own_run(NAME, 5 * PATIENCE) {
        return;
    }
    let _monitor = programs.systems_monitor(&rule());

    let meet = |server: u32, client: u32| {
        let (mut server, port) = programs.serve(server, None, FORKING, "1");
        let ended = output(&mut programs.run(client, None, CHANGING, &[&port, ""]));
        assert!(server.child().wait().unwrap().success());
        let said = text(&ended.stderr);
        assert!(ended.status.success(), "{said}");
        (counted(&said), said)
    };
    let shares = |server, client| (0..RUNS).any(|_| meet(server, client).0 == [(1, 1)]);
    assert!(shares(SERVER, CLIENT), "as the rule says");
    assert!(shares(CLIENT, SERVER), "and the other way");
    for (server, client) in [(SERVER, STRANGER), (STRANGER, CLIENT), (SERVER, SERVER), (SERVER, NOBODY)] {
        let (counts, said) = meet(server, client);
        assert_eq!(counts, [(1, 0)], "{server} {client}");
        if server == client {
            assert!(said.contains("0 promoted, 1 policy\n"), "{said}");
        } else {
            assert!(said.contains("0 promoted, 1 other-user\n"), "{said}");
            let client = if client == NOBODY { "nobody".to_owned() } else { client.to_string() };
            assert!(said.contains(&format!("sudo megapipe setup --allow {client}:{server}\n")), "{said}");
        }
    }
}

/// One cause has one word, on every connection, and the hint comes with it alone.
#[test]
fn the_word_between_two_users_is_the_policys() {
    const NAME: &str = "users::the_word_between_two_users_is_the_policys";
    let Some(programs) = Programs::new(NAME) else { return };
    if !enter_own_run(NAME, 5 * PATIENCE) {
        return;
    }
    let hint = format!("sudo megapipe setup --allow {CLIENT}:{SERVER}\n");
    let words = ["no-peer", "other-user", "policy"];
    let forbidden = format!("{}[[deny]]\none = {{ uid = [{SERVER}] }}\nother = {{}}\n", rule());
    for (policy, expected) in [(rule(), "no-peer"), (String::new(), "other-user"), (forbidden, "policy")] {
        let _monitor = programs.systems_monitor(&policy);
        // Plain, and under Megapipe: with the rule those share, as the test below has it.
        for is_plain in [true, false].into_iter().filter(|is_plain| *is_plain || expected != "no-peer") {
            let all_have_it = (0..RUNS).any(|_| {
                let (mut server, port) = if is_plain {
                    let mut command = clean(PYTHON);
                    command.args(["-c", ECHO, BUSY_COUNT]).current_dir("/").uid(SERVER).gid(SERVER);
                    listening(&mut command)
                } else {
                    programs.serve(SERVER, None, ECHO, BUSY_COUNT)
                };
                let ended = output(&mut programs.run_as("auto", CLIENT, None, BUSY, &[&port]));
                let said = text(&ended.stderr);
                assert!(ended.status.success(), "{said}");
                assert!(server.child().wait().unwrap().success());
                for word in words.iter().filter(|word| **word != expected) {
                    assert!(!said.contains(word), "{expected}, plain {is_plain}: {said}");
                }
                assert_eq!(said.contains(&hint), said.contains("other-user"), "{said}");
                // On a busy machine an end may come before an answer.
                said.contains(&format!("16 connections, 0 promoted, 16 {expected}\n"))
            });
            assert!(all_have_it, "{expected}, plain {is_plain}");
        }
    }
}

/// A connection that waited for the other end's offer, and was promoted then.
#[test]
fn no_hint_remains_of_a_promotion() {
    const NAME: &str = "users::no_hint_remains_of_a_promotion";
    let Some(programs) = Programs::new(NAME) else { return };
    if !enter_own_run(NAME, 5 * PATIENCE) {
        return;
    }
    let _monitor = programs.systems_monitor(&rule());
    let promoted = (0..RUNS).any(|_| {
        let mut command = programs.run_as("auto", SERVER, None, ECHO, &["1"]);
        let (mut server, port) = listening(&mut command);
        let ended = output(&mut programs.run(CLIENT, None, EARLY, &[&port]));
        let said = text(&ended.stderr);
        assert!(ended.status.success(), "{said}");
        assert!(server.child().wait().unwrap().success());
        assert!(!said.contains("other-user") && !said.contains("--allow"), "{said}");
        counted(&said) == [(1, 1)]
    });
    assert!(promoted, "the two may share");
}
