//! `megapipe monitor` as a process: started on demand or by a service manager, reloaded,
//! killed, ended.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use promote::client::{Options, SharedMapping};
use promote::wire::Token;
use promote::{Answer, Client, Reason};
use testkit::net::{Scratch, until_deserted};
use testkit::process::{Fosterling, PATIENCE, copy_program, until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_megapipe");

/// A directory of one test.
struct Place(Scratch);

impl Place {
    fn new() -> Place {
        let place = Place(Scratch::new());
        fs::write(place.file("policy.toml"), "same_user = true\n").unwrap();
        place
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn options(&self) -> Options {
        Options {
            socket: Some(self.file("socket")),
            retry: Duration::from_millis(200),
            ..Options::from_environment("test")
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg("monitor").arg("--config").arg(self.file("policy.toml")).env_remove("MEGAPIPE_LOG");
        command.args(["--log-format", "json", "--metrics"]).arg(self.file("metrics"));
        command.stderr(Stdio::piped());
        command
    }
}

/// A monitor in a process, and what it logs.
struct Running {
    child: Fosterling,
    log: std::io::Lines<BufReader<std::process::ChildStderr>>,
}

impl Running {
    fn start(command: &mut Command) -> Running {
        let mut child = Fosterling::start(command);
        let log = BufReader::new(child.child().stderr.take().unwrap()).lines();
        let mut running = Running { child, log };
        running.says("the monitor listens");
        running
    }

    /// Reads on to the line with this message; each line is one JSON object.
    fn says(&mut self, message: &str) -> serde_json::Value {
        for line in self.log.by_ref() {
            let line: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
            if line["message"] == message {
                return line;
            }
        }
        panic!("the monitor ended without saying {message:?}");
    }

    fn signal(&mut self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(self.child.child());
        rustix::process::kill_process(pid, signal).unwrap();
    }

    fn ends(&mut self) {
        assert!(self.child.child().wait().unwrap().success());
    }
}

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

fn receive(client: &mut Client) -> Answer {
    until("an answer", || client.receive().unwrap())
}

fn connected(options: &Options) -> Client {
    let mut client = Client::connect(options).unwrap();
    until("a monitor", || {
        client.reconnect_due(Instant::now()).unwrap();
        client.fd().is_some().then_some(())
    });
    assert!(matches!(receive(&mut client), Answer::Welcome { .. }));
    client
}

fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

/// Offers both ends of a new connection by one client; both answers.
fn meet(client: &mut Client, number: u64) -> [Answer; 2] {
    let (near, far) = connection();
    client.offer(token(number), near.as_fd()).unwrap();
    client.offer(token(number + 1), far.as_fd()).unwrap();
    [receive(client), receive(client)]
}

fn segments(answers: [Answer; 2]) -> [(SharedMapping, SharedMapping); 2] {
    answers.map(|answer| match answer {
        Answer::Granted { own, peer, .. } => (own, peer),
        other => panic!("no grant: {other:?}"),
    })
}

fn metrics(path: &Path) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn said(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_promoted_connection_outlives_its_monitor() {
    let place = Place::new();
    let mut command = place.command();
    command.arg("--socket").arg(place.file("socket"));
    let mut first = Running::start(&mut command);
    let mut client = connected(&place.options());
    let [(own, _), (_, peer)] = segments(meet(&mut client, 1));

    // A second one does not take the place of a living one.
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let process = format!("(process {})", first.child.child().id());
    let named = ["listens", "--socket", &process].iter().all(|part| text.contains(part));
    assert!(!output.status.success() && named, "{text}");
    // Nor does systemd, which asks first.
    let check = || {
        let mut command = Command::new(PROGRAM);
        command.args(["monitor", "--check-deserted", "--socket"]).arg(place.file("socket"));
        command.output().unwrap()
    };
    let asked = check();
    assert!(!asked.status.success() && said(&asked).contains(&process), "{}", said(&asked));
    assert!(place.file("socket").exists());

    first.child.kill();
    let loss = until("the loss", || client.receive().err());
    assert!(loss.to_string().contains("lost"), "{loss}");
    assert!(client.receive().unwrap().is_none() && client.fd().is_none(), "told once");
    assert!(matches!(client.offer(token(9), client_end().as_fd()), Err(promote::OfferError::NoMonitor)));
    // SAFETY: both mappings have more than 2000 bytes and show the same memory; nobody else
    // uses them.
    unsafe {
        own.address().add(2000).write_volatile(42);
        assert_eq!(peer.address().add(2000).read_volatile(), 42);
    }

    assert!(check().status.success() && place.file("socket").exists(), "it only asks");

    // A new one takes over the place that the dead one left, and hears what lives.
    let mut second = Running::start(&mut command);
    until("the new monitor", || client.reconnect_due(Instant::now()).unwrap().then_some(()));
    assert!(matches!(receive(&mut client), Answer::Welcome { .. }));
    for number in [1, 2] {
        client.register(token(number), 1000 + number, 5).unwrap();
    }
    segments(meet(&mut client, 3));
    let text = metrics(&place.file("metrics"));
    assert!(text.contains("megapipe_monitor_promoted_ends 4\n"), "{text}");
    client.withdraw(token(1));
    client.withdraw(token(2));
    until("the withdrawals", || {
        metrics(&place.file("metrics")).contains("megapipe_monitor_promoted_ends 2\n").then_some(())
    });

    second.signal(rustix::process::Signal::TERM);
    second.says("the monitor ends");
    second.ends();
    let left: Vec<_> = fs::read_dir(&place.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["policy.toml"]);
}

fn client_end() -> TcpStream {
    connection().0
}

#[test]
fn who_waits_hears_of_the_end() {
    let place = Place::new();
    let mut monitor = Running::start(place.command().arg("--socket").arg(place.file("socket")));
    let mut client = connected(&place.options());
    let (near, _far) = connection();
    client.offer(token(1), near.as_fd()).unwrap();
    until("the offer", || {
        metrics(&place.file("metrics")).contains("megapipe_monitor_waiting_offers 1\n").then_some(())
    });
    monitor.signal(rustix::process::Signal::INT);
    let answer = receive(&mut client);
    assert!(
        matches!(answer, Answer::Refused { token: told, reason: Reason::NoMonitor } if told == token(1)),
        "{answer:?}"
    );
    monitor.ends();
    assert!(until("the loss", || client.receive().err()).to_string().contains("ended"));
}

#[test]
fn the_policy_is_read_again() {
    let place = Place::new();
    fs::write(place.file("policy.toml"), "same_user = false\n").unwrap();
    let mut monitor = Running::start(place.command().arg("--socket").arg(place.file("socket")));
    let mut client = connected(&place.options());
    let refused = |answers: [Answer; 2]| {
        answers.iter().all(|answer| matches!(answer, Answer::Refused { reason: Reason::Policy, .. }))
    };
    assert!(refused(meet(&mut client, 1)));
    let line = monitor.says("an offered connection stays on TCP");
    assert_eq!((&line["reason"], &line["name"]), (&"policy".into(), &"test".into()), "{line}");

    fs::write(place.file("policy.toml"), "same_user = true\n").unwrap();
    monitor.signal(rustix::process::Signal::HUP);
    monitor.says("the policy was read again");
    segments(meet(&mut client, 3));

    // A policy with a mistake is not taken, and the old one stays.
    fs::write(place.file("policy.toml"), "same_user = false\nsameuser = false\n").unwrap();
    monitor.signal(rustix::process::Signal::HUP);
    let line = monitor.says("the policy stays as it was");
    assert!(line["error"].as_str().unwrap().contains("line 2"), "{line}");
    segments(meet(&mut client, 5));
    let text = metrics(&place.file("metrics"));
    assert!(text.contains("reloads_total{outcome=\"taken\"} 1\n"), "{text}");
    assert!(text.contains("reloads_total{outcome=\"refused\"} 1\n"), "{text}");

    let output = place.command().arg("--socket").arg(place.file("other")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("sameuser"), "{text}");
}

/// What is there, and is no dead socket, stays: at the monitor's own place and at that of its
/// metrics.
#[test]
fn what_lies_at_its_places_is_not_deleted() {
    let place = Place::new();
    let file = place.file("file");
    fs::write(&file, "precious").unwrap();
    let directory = place.file("directory");
    fs::create_dir(&directory).unwrap();
    // To a dead socket, which would go if it was looked through.
    let link = place.file("link");
    drop(UnixListener::bind(place.file("dead")).unwrap());
    std::os::unix::fs::symlink("dead", &link).unwrap();
    let stream = UnixListener::bind(place.file("stream")).unwrap();
    let packets = sys::packet::listen(&place.file("packets"), 0).unwrap();
    // Its backlog is full.
    let waiting = sys::packet::connect(&place.file("packets")).unwrap();
    let datagrams = UnixDatagram::bind(place.file("datagrams")).unwrap();
    let pipe = place.file("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::from(0o600)).unwrap();

    for (name, at_socket, at_metrics) in [
        ("file", "regular file", "regular file"),
        ("directory", "directory", "directory"),
        ("link", "symbolic link", "symbolic link"),
        ("pipe", "pipe", "pipe"),
        ("stream", "another kind", "listens"),
        ("packets", "listens", "another kind"),
        ("datagrams", "another kind", "another kind"),
    ] {
        let path = place.file(name);
        let before = fs::symlink_metadata(&path).unwrap().ino();
        let mut at = [place.command(), Command::new(PROGRAM)];
        at[0].arg("--socket").arg(&path);
        at[1].arg("monitor").arg("--config").arg(place.file("policy.toml"));
        at[1].arg("--socket").arg(place.file("socket")).arg("--metrics").arg(&path);
        for (mut command, cause, option) in at
            .into_iter()
            .zip([(at_socket, "--socket"), (at_metrics, "--metrics")])
            .map(|(a, (b, c))| (a, b, c))
        {
            let mut child = Fosterling::start(command.stderr(Stdio::piped()));
            let mut text = String::new();
            let mut stderr = child.child().stderr.take().unwrap();
            // A monitor that took the place says that it listens, and would go on.
            let mut bytes = [0; 4096];
            loop {
                let count = stderr.read(&mut bytes).unwrap();
                text.push_str(&String::from_utf8_lossy(&bytes[..count]));
                assert!(!text.contains("the monitor listens"), "{name} was taken: {text}");
                if count == 0 {
                    break;
                }
            }
            assert_eq!(child.child().wait().unwrap().code(), Some(1), "{text}");
            let named = [cause, option, path.to_str().unwrap()].iter().all(|part| text.contains(part));
            assert!(named && text.contains("choose another place"), "{name}: {text}");
            assert_eq!(fs::symlink_metadata(&path).unwrap().ino(), before, "{name} was replaced");
        }
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    assert!(!place.file("file.lock").exists() && !place.file("socket").exists());
    drop((stream, packets, waiting, datagrams));
    for name in ["packets", "stream"] {
        until_deserted(&place.file(name));
    }

    // Dead sockets of either kind are replaced.
    let mut monitor = Running::start(
        Command::new(PROGRAM)
            .arg("monitor")
            .arg("--config")
            .arg(place.file("policy.toml"))
            .args(["--log-format", "json"])
            .arg("--socket")
            .arg(place.file("packets"))
            .arg("--metrics")
            .arg(place.file("stream"))
            .stderr(Stdio::piped()),
    );
    assert!(metrics(&place.file("stream")).contains("# EOF"));
    // What took their places meanwhile is not the monitor's.
    for name in ["packets", "stream"] {
        fs::remove_file(place.file(name)).unwrap();
        fs::write(place.file(name), "precious").unwrap();
    }
    monitor.signal(rustix::process::Signal::TERM);
    monitor.ends();
    for name in ["packets", "stream"] {
        assert_eq!(fs::read_to_string(place.file(name)).unwrap(), "precious");
    }
}

/// A file that happens to have the name of the lock stays, too.
#[test]
fn a_file_with_the_name_of_the_lock_stays() {
    let place = Place::new();
    fs::write(place.file("socket.lock"), "precious").unwrap();
    let mut monitor = Running::start(place.command().arg("--socket").arg(place.file("socket")));
    monitor.signal(rustix::process::Signal::TERM);
    monitor.ends();
    assert_eq!(fs::read_to_string(place.file("socket.lock")).unwrap(), "precious");
    assert!(!place.file("socket").exists());
}

#[test]
fn only_the_owner_or_root_replaces_a_dead_socket() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED only_the_owner_or_root_replaces_a_dead_socket: needs root to become another user");
        return;
    }
    const STRANGER: u32 = 65_534;
    let place = Place::new();
    fs::set_permissions(&place.0, PermissionsExt::from_mode(0o777)).unwrap();
    // The stranger may not be able to reach the program where it was built.
    let program = place.file("program");
    copy_program(PROGRAM.as_ref(), &program);
    let own = place.file("own");
    drop(sys::packet::listen(&own, 1).unwrap());
    until_deserted(&own);
    // Even where whoever is asked whether it is alive may answer.
    fs::set_permissions(&own, PermissionsExt::from_mode(0o666)).unwrap();
    let output = Command::new(&program)
        .args(["monitor", "--on-demand", "--linger", "0", "--socket"])
        .arg(&own)
        .uid(STRANGER)
        .output()
        .unwrap();
    assert!(!output.status.success() && said(&output).contains("user 0"), "{}", said(&output));
    assert!(own.exists());

    let theirs = place.file("theirs");
    drop(sys::packet::listen(&theirs, 1).unwrap());
    until_deserted(&theirs);
    std::os::unix::fs::chown(&theirs, Some(STRANGER), Some(STRANGER)).unwrap();
    let mut monitor = Running::start(place.command().arg("--socket").arg(&theirs));
    monitor.signal(rustix::process::Signal::TERM);
    monitor.ends();
}

#[test]
fn errors_name_places_as_they_were_given() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().to_string();
    let absent = place.file("absent/metrics");
    for metrics in [port.as_str(), absent.to_str().unwrap()] {
        let mut command = Command::new(PROGRAM);
        command.arg("monitor").arg("--config").arg(place.file("policy.toml"));
        let output = command.arg("--socket").arg(place.file("socket")).args(["--metrics", metrics]).output();
        let text = said(&output.unwrap());
        assert!(text.contains(&format!("at {metrics}: ")) && text.contains("--metrics"), "{text}");
    }
}

#[test]
fn a_level_of_the_log_that_is_none_is_named() {
    let place = Place::new();
    let mut command = place.command();
    command.arg("--socket").arg(place.file("socket")).env("MEGAPIPE_LOG", "loud");
    let mut child = Fosterling::start(&mut command);
    let log = BufReader::new(child.child().stderr.take().unwrap()).lines();
    let mut running = Running { child, log };
    running.says("MEGAPIPE_LOG=loud is no level; choose error, warn, info or debug");
    // It goes on with what it logs by default.
    running.says("the monitor listens");
}

/// Whoever reads the log may go: the line is lost, and the monitor serves on.
#[test]
fn it_outlives_whoever_reads_its_log() {
    let place = Place::new();
    let mut command = place.command();
    let mut monitor = Running::start(
        command
            .args(["--socket"])
            .arg(place.file("socket"))
            .stdout(Stdio::piped())
            .env("MEGAPIPE_LOG", "debug"),
    );
    drop(monitor.child.child().stdout.take());
    let Running { mut child, log } = monitor;
    drop(log);
    let pid = rustix::process::Pid::from_child(child.child());
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    until("the policy", || {
        // It ends here if it dies.
        let ended = child.child().try_wait().unwrap();
        assert!(ended.is_none(), "the monitor ended: {ended:?}");
        let mut stream = UnixStream::connect(place.file("metrics")).ok()?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.contains("reloads_total{outcome=\"taken\"} 1\n").then_some(())
    });
    let mut client = connected(&place.options());
    segments(meet(&mut client, 1));
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.child().wait().unwrap().code(), Some(0));

    // An error at the start is an error, read or not.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    fs::write(place.file("policy.toml"), "sameuser = false\n").unwrap();
    let mut refused =
        Fosterling::start(place.command().args(["--socket"]).arg(place.file("socket")).stderr(writer));
    assert_eq!(refused.child().wait().unwrap().code(), Some(1));
}

/// Also where an error has several lines, as those of a policy have.
#[test]
fn an_event_is_one_line_of_text() {
    let place = Place::new();
    let mut command = Command::new(PROGRAM);
    command.arg("monitor").arg("--config").arg(place.file("policy.toml")).env_remove("MEGAPIPE_LOG");
    command.arg("--socket").arg(place.file("socket")).stderr(Stdio::piped());
    let mut child = Fosterling::start(&mut command);
    let mut log = BufReader::new(child.child().stderr.take().unwrap()).lines();
    let mut line = || log.next().unwrap().unwrap();
    until("the start", || line().contains("the monitor listens").then_some(()));
    fs::write(place.file("policy.toml"), "sameuser = false\n").unwrap();
    let pid = rustix::process::Pid::from_child(child.child());
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    let refused = line();
    for part in ["the policy stays as it was", "line 1", "`sameuser`", "docs/monitor.md"] {
        assert!(refused.contains(part), "{part} is not in {refused}");
    }
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(line().contains("the monitor ends"));
    assert!(child.child().wait().unwrap().success());
}

/// Without a signal, which nobody sends to a monitor on demand.
#[test]
fn a_changed_policy_holds_from_the_next_client_on() {
    let place = Place::new();
    fs::write(place.file("policy.toml"), "same_user = false\n").unwrap();
    let mut command = place.command();
    let _monitor = Running::start(command.arg("--socket").arg(place.file("socket")));
    let mut client = connected(&place.options());
    let refused = |answers: &[Answer; 2]| {
        answers.iter().all(|answer| matches!(answer, Answer::Refused { reason: Reason::Policy, .. }))
    };
    assert!(refused(&meet(&mut client, 1)));
    // By its inode: the size may be the same, and the time is set back.
    fs::write(place.file("new"), "same_user = true \n").unwrap();
    let before = fs::metadata(place.file("policy.toml")).unwrap().modified().unwrap();
    fs::File::open(place.file("new")).unwrap().set_modified(before).unwrap();
    fs::rename(place.file("new"), place.file("policy.toml")).unwrap();
    assert!(refused(&meet(&mut client, 3)), "nobody has connected since");
    let _other = connected(&place.options());
    segments(meet(&mut client, 5));
    fs::remove_file(place.file("policy.toml")).unwrap();
    let _third = connected(&place.options());
    let text = metrics(&place.file("metrics"));
    assert!(text.contains("reloads_total{outcome=\"taken\"} 1\n"), "{text}");
    assert!(text.contains("reloads_total{outcome=\"refused\"} 1\n"), "it was named, and is gone: {text}");
}

/// As systemd does it: the socket is descriptor 3, and LISTEN_PID the process's own number,
/// which a shell knows before it becomes the monitor.
#[test]
fn a_service_manager_hands_over_its_socket() {
    let place = Place::new();
    let listener = sys::packet::listen(&place.file("socket"), 16).unwrap();
    // It waits before there is a monitor.
    let mut client = Client::connect(&place.options()).unwrap();
    let direct = place.command();
    let start = |listener: &std::os::fd::OwnedFd| {
        let mut command = Command::new("sh");
        let script = r#"export LISTEN_PID=$$ LISTEN_FDS=1; exec "$0" "$@""#;
        command.arg("-c").arg(script).arg(PROGRAM).args(direct.get_args()).stderr(Stdio::piped());
        let descriptor = listener.as_raw_fd();
        // SAFETY: the closure makes one system call, without memory of ours.
        unsafe {
            command.pre_exec(move || {
                // Onto itself dup2(2) would leave it to be closed.
                let done = if descriptor == 3 {
                    libc::fcntl(3, libc::F_SETFD, 0)
                } else {
                    libc::dup2(descriptor, 3)
                };
                if done >= 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
            });
        }
        command
    };
    let mut monitor = Running::start(&mut start(&listener));
    assert!(matches!(receive(&mut client), Answer::Welcome { .. }));
    segments(meet(&mut client, 1));
    monitor.signal(rustix::process::Signal::TERM);
    monitor.ends();
    // The socket is the manager's, and stays.
    assert!(place.file("socket").exists());

    let stream = UnixListener::bind(place.file("stream")).unwrap();
    let output = start(&stream.into()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("ListenSequentialPacket="), "{text}");
}
