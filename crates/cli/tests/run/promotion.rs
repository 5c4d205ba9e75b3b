//! What the options make of real connections, as the summaries tell it.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Duration;

use testkit::process::{Fosterling, built, copy_program, until};

use crate::support::{PROGRAM, Place, clean, output, python, text};

/// A server in a thread and a client: round trips with pauses, in which the monitor gets round to its answers; then the
/// process ends as its argument says.
pub(crate) const PAIR: &str = r#"
import os, socket, sys, threading, time
listener = socket.create_server(("127.0.0.1", 0))
def serve():
    connection, _ = listener.accept()
    while data := connection.recv(4096):
        connection.sendall(data)
    connection.close()
server = threading.Thread(target=serve)
server.start()
client = socket.create_connection(listener.getsockname())
for number in range(100):
    sent = bytes([number]) * 100
    client.sendall(sent)
    got = b""
    while len(got) < len(sent):
        got += client.recv(4096)
    assert got == sent
    time.sleep(0.002)
client.close()
server.join()
how = sys.argv[1]
if how == "_exit":
    os._exit(5)
if how == "exec":
    os.execv("/bin/true", ["true"])
if how == "fork":
    if os.fork() == 0:
        os._exit(0)
    os.wait()
"#;

/// Runs the pair; the line of its connections.
fn pair(place: &Place, options: &[&str], how: &str) -> String {
    let python = python().expect("python3");
    let ended = output(place.run().args(options).arg("--stats").arg(python).args(["-c", PAIR, how]));
    let said = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(if how == "_exit" { 5 } else { 0 }), "{said}");
    said
}

/// Ends that were promoted, of so many connections. An end that a call was under way on when its memory came stays on TCP.
pub(crate) fn promoted(said: &str, connections: u32) -> u32 {
    let start = format!("): {connections} connections, ");
    let line =
        said.lines().find_map(|line| line.split_once(start.as_str())).unwrap_or_else(|| panic!("{said}")).1;
    line.split(' ').next().unwrap().parse().unwrap()
}

/// What the first of several runs said in which an end was promoted: a slow monitor answers too late for some.
pub(crate) fn until_promoted(connections: u32, mut run: impl FnMut() -> String) -> String {
    let mut said = run();
    for _ in 1..RUNS {
        if promoted(&said, connections) >= 1 {
            break;
        }
        said = run();
    }
    assert!(promoted(&said, connections) >= 1, "{said}");
    said
}

#[test]
fn eager_connections_are_promoted() {
    need_python!("eager_connections_are_promoted");
    let place = Place::new();
    let _monitor = place.monitor();
    for how in ["exit", "_exit", "exec", "fork"] {
        let said = until_promoted(2, || pair(&place, &["--promote", "eager"], how));
        assert_eq!(said.matches(" 2 connections").count(), 1, "told once: {how}: {said}");
    }
    let both =
        (0..RUNS).map(|_| pair(&place, &["--promote", "eager"], "exit")).find(|said| promoted(said, 2) == 2);
    assert!(both.expect("both ends are promoted in one of the runs").contains("system calls avoided"));
    let worth_it = (0..RUNS).any(|_| promoted(&pair(&place, &[], "exit"), 2) >= 1);
    assert!(worth_it, "auto promotes what is worth it");
}

/// In one of so many, no call is under way when the memory comes.
const RUNS: u32 = 10;

/// Closes in three ways an end whose offer nobody has met, of which the monitor may have a copy: with all read, over bytes
/// that were not read, and with SO_LINGER 0.
const CLOSER: &str = r#"
import array, fcntl, socket, struct, sys, termios, time
client = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
client.sendall(b"hello")
unread = array.array("i", [0])
while unread[0] < 4:
    fcntl.ioctl(client, termios.FIONREAD, unread)
    time.sleep(0.001)
if sys.argv[2] != "unread":
    client.recv(4)
if sys.argv[2] == "linger":
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
client.close()
"#;

#[test]
fn an_offered_end_closes_as_any_other() {
    need_python!("an_offered_end_closes_as_any_other");
    let place = Place::new();
    let _monitor = place.monitor();
    for (how, reset) in [("read", false), ("unread", true), ("linger", true)] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let mut command = place.run();
        command.args(["--promote", "eager"]).arg(python().unwrap()).args(["-c", CLOSER, &port, how]);
        let mut client = Fosterling::start(&mut command);
        let mut peer = listener.accept().unwrap().0;
        peer.read_exact(&mut [0; 5]).unwrap();
        peer.write_all(b"four").unwrap();
        let end = peer.read_to_end(&mut Vec::new()).map_err(|error| error.kind());
        assert_eq!(end, if reset { Err(ErrorKind::ConnectionReset) } else { Ok(0) }, "{how}");
        assert!(client.child().wait().unwrap().success());
    }
}

/// The program's transcript is compared with plain's elsewhere, with each connection promoted at once.
#[test]
fn calls_under_way_come_back_to_their_own_connection() {
    let place = Place::new();
    let _monitor = place.monitor();
    let programs = concat!(env!("CARGO_MANIFEST_DIR"), "/../preload/tests/programs");
    let source = fs::read_to_string(format!("{programs}/closed_while_read.c")).unwrap();
    let program = place.compile("closed", &source, &["-pthread", "-I", programs]).expect("a C compiler");
    let ended = output(place.run().arg(&program));
    assert_eq!((text(&ended.stdout).as_str(), ended.status.code()), ("all right\n", Some(0)));
}

#[test]
fn connections_that_stay_on_tcp_are_told_with_the_reason() {
    need_python!("connections_that_stay_on_tcp_are_told_with_the_reason");
    let place = Place::new();
    let _monitor = place.monitor();
    let eager = |options: &[&str]| pair(&place, &[&["--promote", "eager"], options].concat(), "exit");
    assert!(eager(&["--only", "1,2"]).contains("2 connections, 0 promoted, 2 ports\n"));
    let said = pair(&place, &["--promote", "observe"], "exit");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("2 connections, 0 promoted, 2 observe\n"), "{said}");
    let said = pair(&place, &["--promote", "off"], "exit");
    assert!(said.contains("nothing is counted (--promote off)") && said.lines().count() == 1, "{said}");
}

#[test]
fn a_policy_that_forbids_is_named() {
    need_python!("a_policy_that_forbids_is_named");
    let place = Place::new();
    let _monitor = place.monitor();
    let monitor = place.file("forbids");
    let _forbids = place.monitor_with("forbids", "same_user = false\n");
    let mut command = place.run();
    command.args(["--stats", "--promote", "eager"]).arg(python().unwrap()).args(["-c", PAIR, "exit"]);
    let said = text(&output(command.env("MEGAPIPE_MONITOR", &monitor)).stderr);
    assert!(said.contains("2 connections, 0 promoted, 2 policy"), "{said}");
}

#[test]
fn ports_choose() {
    need_python!("ports_choose");
    let place = Place::new();
    let _monitor = place.monitor();
    for (option, chosen) in [("--only", true), ("--not", false)] {
        // The port is known when the program has started: its settings, which are read at load, are given by one that
        // is free, at an address that no other test uses.
        let [.., high, low] = std::process::id().to_be_bytes();
        let address = Ipv4Addr::new(127, 80, high, low);
        let port = TcpListener::bind((address, 0)).unwrap().local_addr().unwrap().port();
        let program = PAIR.replace("(\"127.0.0.1\", 0)", &format!("(\"{address}\", {port})"));
        let run = || {
            let mut command = place.run();
            command.args(["--stats", "--promote", "eager", option, &port.to_string()]);
            text(&output(command.arg(python().unwrap()).args(["-c", &program, "exit"])).stderr)
        };
        let said = if chosen { until_promoted(2, run) } else { run() };
        assert_eq!(promoted(&said, 2) > 0, chosen, "{option}: {said}");
        assert_eq!(said.contains("2 ports\n"), !chosen, "{option}: {said}");
    }
}

#[test]
fn a_program_that_clears_its_environment_keeps_its_settings() {
    let place = Place::new();
    let _monitor = place.monitor();
    let source = include_str!("cleared.c");
    let program = place.compile("cleared", source, &["-pthread"]).expect("a C compiler");
    let log = place.file("log");
    let said = until_promoted(2, || {
        let _ = fs::remove_file(&log);
        let ended =
            output(place.run().args(["--promote", "eager", "--stats", "--log"]).arg(&log).arg(&program));
        assert!(ended.status.success(), "{}", text(&ended.stderr));
        assert_eq!(text(&ended.stderr), "");
        fs::read_to_string(&log).unwrap()
    });
    assert!(said.contains("cleared ("), "{said}");
}

#[test]
fn a_shell_script_hands_the_library_on() {
    need_python!("a_shell_script_hands_the_library_on");
    let place = Place::new();
    let _monitor = place.monitor();
    fs::write(place.file("pair.py"), PAIR).unwrap();
    let python = python().unwrap();
    let text_of = format!(
        "#!/bin/sh\ncd /\n\"{}\" \"{}\" exit && true\n",
        python.display(),
        place.file("pair.py").display()
    );
    let script = place.script("script", &text_of);
    let said = until_promoted(2, || {
        let mut command = place.run();
        command.arg(&script).env("MEGAPIPE_STATS", "1").env("MEGAPIPE_PROMOTE", "eager");
        text(&output(&mut command).stderr)
    });
    assert!(!said.contains("sh ("), "only those with connections tell: {said}");
}

#[test]
fn a_monitor_of_the_users_own_is_started() {
    need_python!("a_monitor_of_the_users_own_is_started");
    let place = Place::new();
    let copy = place.file("megapipe");
    copy_program(PROGRAM.as_ref(), &copy);
    copy_program(crate::support::library(), &place.file("libmegapipe_preload.so"));
    let runtime = place.file("runtime");
    fs::create_dir(&runtime).unwrap();
    let root = rustix::process::getuid().is_root();
    let user = 65534;
    // Another user's interpreter may lie where only he can look.
    let python = if root { "/usr/bin/python3".into() } else { python().unwrap() };
    if !python.exists() {
        println!("SKIPPED a_monitor_of_the_users_own_is_started: no python3 that everybody can run");
        return;
    }
    if fs::metadata("/run/megapipe/monitor.sock").is_ok() {
        println!("SKIPPED a_monitor_of_the_users_own_is_started: the system's monitor runs");
        return;
    }
    if root {
        std::os::unix::fs::chown(&runtime, Some(user), Some(user)).unwrap();
    }
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700)).unwrap();
    let mut command = crate::support::clean(&copy);
    command.args(["run", "--promote", "eager", "--stats"]).arg(python).args(["-c", PAIR, "exit"]);
    command.env("XDG_RUNTIME_DIR", &runtime).env_remove("MEGAPIPE_MONITOR").current_dir("/");
    if root {
        command.uid(user).gid(user);
    }
    let _monitor = EndOf(runtime.join("megapipe/monitor.sock"));
    // The first may be over before the monitor is up.
    let said: Vec<String> = (0..RUNS).map(|_| text(&output(&mut command).stderr)).collect();
    assert!(said.iter().any(|said| promoted(said, 2) >= 1), "{said:?}");
}

/// Ends the monitor at a socket, which outlives what started it.
pub(crate) struct EndOf(pub(crate) std::path::PathBuf);

impl EndOf {
    /// The monitor's process.
    pub(crate) fn pid(&self) -> Option<u32> {
        let socket = sys::packet::connect(&self.0).ok()?;
        Some(sys::packet::credentials(socket.as_fd()).ok()?.pid)
    }
}

impl Drop for EndOf {
    fn drop(&mut self) {
        let Some(pid) = self.pid().and_then(|pid| rustix::process::Pid::from_raw(pid as i32)) else { return };
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        // It takes its socket away as it ends.
        for _ in 0..1000 {
            if !self.0.exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_monitor_that_comes_anew_is_found() {
    need_python!("a_monitor_that_comes_anew_is_found");
    let place = Place::new();
    let first = place.monitor();
    // Between two pairs the test restarts the monitor. Afterwards one descriptor leads to it, at a high number.
    let program = PAIR.replace("how = sys.argv[1]", PAUSE);
    let mut command = place.run();
    command.args(["--promote", "eager", "--stats", "--log"]).arg(place.file("log")).arg(python().unwrap());
    command.args(["-c", &program, "exit"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = Fosterling::start(&mut command);
    let mut said = BufReader::new(child.child().stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "one");
    drop(first);
    let _second = place.monitor();
    child.child().stdin.take().unwrap().write_all(b"go on\n").unwrap();
    assert_eq!(said.next().unwrap().unwrap(), "1");
    assert!(child.child().wait().unwrap().success());
    let said = fs::read_to_string(place.file("log")).unwrap();
    assert!(promoted(&said, 4) >= 1, "{said}");
}

#[test]
fn threads_that_close_at_once_leave_nothing_with_the_monitor() {
    let place = Place::new();
    let Some(program) = place.compile("closers", include_str!("closers.c"), &["-pthread"]) else {
        println!("SKIPPED threads_that_close_at_once_leave_nothing_with_the_monitor: no C compiler");
        return;
    };
    let _monitor = place.monitor();
    let mut command = place.run();
    command.args(["--promote", "eager"]).arg(program).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = Fosterling::start(&mut command);
    let mut said = BufReader::new(child.child().stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "quiet");
    let monitor = || {
        let mut top = clean(PROGRAM);
        top.args(["top", "--once", "--json", "--interval", "0", "--socket"]).arg(place.file("socket"));
        let told: serde_json::Value = serde_json::from_slice(&output(&mut top).stdout).unwrap();
        told["monitors"][0].clone()
    };
    assert!(monitor()["granted"].as_u64().unwrap() > 0, "something was promoted");
    until("the monitor counts nothing any more", || {
        let told = monitor();
        let left = |what: &str| told[what].as_u64().unwrap();
        (left("promoted_ends") + left("waiting_offers") + left("segment_bytes") == 0).then_some(())
    });
    child.child().stdin.take().unwrap().write_all(b"go on\n").unwrap();
    assert!(child.child().wait().unwrap().success());
}

const PAUSE: &str = r#"
def many():
    return sum(1 for number in os.listdir("/proc/self/fd") if int(number) > 500 and os.path.exists("/proc/self/fd/" + number))
before = many()
print("one", flush=True)
sys.stdin.readline()
server = threading.Thread(target=serve)
server.start()
client = socket.create_connection(listener.getsockname())
for number in range(1000):
    client.sendall(b"x")
    assert client.recv(1) == b"x"
    time.sleep(0.001)
client.close()
server.join()
print(many() - before + 1, flush=True)
how = sys.argv[1]
"#;

/// Leaves an echo server's answer unread, and becomes a program that knows of no rings; argument: bytes of the answer.
const HEIR: &str = r#"
import array, fcntl, os, socket, sys, termios, time
host, port, count = sys.argv[1].rsplit(":", 1) + [int(sys.argv[2])]
client = socket.create_connection((host, int(port)))
for number in range(100):
    client.sendall(b"ping")
    assert client.recv(4, socket.MSG_WAITALL) == b"ping"
    time.sleep(0.002)
client.sendall(bytes(97 + place % 26 for place in range(count)))
unread = array.array("i", [0])
while unread[0] < count:
    fcntl.ioctl(client, termios.FIONREAD, unread)
os.dup2(client.fileno(), 0)
os.execv("/bin/sh", ["sh", "-c", f"head -c {count}; echo more >&0; head -n 1"])
"#;

#[test]
fn a_channel_sends_again_what_an_heir_is_to_read() {
    need_python!("a_channel_sends_again_what_an_heir_is_to_read");
    let echo = built("megapipe-examples", "promotion");
    let place = Place::new();
    let _monitor = place.monitor();
    for engine in ["uring", "epoll"] {
        let mut server = clean(&echo);
        server.args(["serve", "127.0.0.1:0"]);
        server.env("MEGAPIPE_ENGINE", engine).env("MEGAPIPE_MONITOR", place.file("socket"));
        let mut server = Fosterling::start(server.stdout(Stdio::piped()));
        let mut said = BufReader::new(server.child().stdout.take().unwrap()).lines();
        let listening =
            |line: std::io::Result<String>| line.unwrap().strip_prefix("listening on ").map(str::to_owned);
        let Some(address) = said.find_map(listening) else {
            println!(
                "SKIPPED a_channel_sends_again_what_an_heir_is_to_read ({engine}): it cannot be had here"
            );
            continue;
        };
        for count in [1, 5, 50_000] {
            let expected: String = (0..count).map(|place| char::from(97 + (place % 26) as u8)).collect();
            until_promoted(1, || {
                let mut client = place.run();
                client.args(["--promote", "eager", "--stats"]).arg(python().unwrap());
                let ended = output(client.args(["-c", HEIR, &address]).arg(count.to_string()));
                let said = text(&ended.stderr);
                let is_whole = text(&ended.stdout).strip_suffix("more\n") == Some(&expected);
                assert!(is_whole, "{engine}, {count}: {said}");
                said
            });
        }
    }
}
