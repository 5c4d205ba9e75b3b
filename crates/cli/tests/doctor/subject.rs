//! `megapipe doctor PROGRAM|PID`.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use testkit::net::Scratch;
use testkit::process::{Fosterling, listening_monitor, preload_library, start_monitor, until};

use super::{NOBODY, PublicBinary, finding, is_root, megapipe};

const PROGRAM: &str = env!("CARGO_BIN_EXE_megapipe");

/// A directory of one test, removed when dropped.
struct Place(Scratch);

impl Place {
    fn new() -> Place {
        preload_library();
        Place(Scratch::new())
    }

    fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }

    /// The exit status and the report.
    fn doctor(&self, subject: impl AsRef<Path>) -> (Option<i32>, Value) {
        let mut command = megapipe();
        command.args(["doctor", "--json"]).arg(subject.as_ref()).env("MEGAPIPE_MONITOR", self.socket());
        let output = command.env_remove("MEGAPIPE_PRELOAD").output().unwrap();
        let report = serde_json::from_slice(&output.stdout).expect("one JSON document");
        (output.status.code(), report)
    }
}

fn has_python3() -> bool {
    Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// The finding of this name in this area: a process and its program both have a library.
fn of_area<'a>(report: &'a Value, area: &str, name: &str) -> &'a Value {
    let findings = report["findings"].as_array().unwrap();
    let is = |finding: &&Value| finding["area"] == area && finding["name"] == name;
    findings.iter().find(is).unwrap_or_else(|| panic!("no {name} in {report}"))
}

#[test]
fn what_stands_in_the_way_of_a_program_is_named() {
    let place = Place::new();
    let monitor = start_monitor(PROGRAM.as_ref(), &place.socket());
    let source = place.0.join("hello.c");
    fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    for (name, flags, verdict) in [("dynamic", &[][..], "ok"), ("static", &["-static"], "missing")] {
        let path = place.0.join(name);
        let built = Command::new("cc").args(flags).arg("-o").arg(&path).arg(&source).output();
        if !built.is_ok_and(|output| output.status.success()) {
            println!(
                "SKIPPED what_stands_in_the_way_of_a_program_is_named: no C compiler or libc for {name}"
            );
            continue;
        }
        let (status, report) = place.doctor(&path);
        let library = of_area(&report, "program", "library");
        assert_eq!(library["verdict"], verdict, "{report}");
        assert_eq!(status, Some(i32::from(verdict != "ok")));
        assert_eq!(report["next"].is_string(), verdict == "ok", "{report}");
        assert!(verdict == "ok" || library["remedy"].is_string(), "{report}");
        assert_eq!(finding(&report, "reached")["verdict"], "ok", "{report}");
    }
    drop(monitor);
    let (status, report) = place.doctor("no-such-program");
    let reached = finding(&report, "reached");
    let names = |key: &str| reached[key].as_str().unwrap().contains(place.socket().to_str().unwrap());
    assert!(reached["verdict"] == "missing" && names("found") && names("remedy"), "{report}");
    assert_eq!((status, finding(&report, "file")["verdict"].as_str()), (Some(1), Some("missing")));
}

/// The policy is that of the monitor that answers, whichever file it was started with.
#[test]
fn the_policy_is_that_of_the_reached_monitor() {
    let place = Place::new();
    let policy = place.0.join("policy.toml");
    let own = rustix::process::geteuid().as_raw();
    fs::write(&policy, "same_user = false\n").unwrap();
    let mut command = megapipe();
    command.args(["monitor", "--socket"]).arg(place.socket()).arg("--config").arg(&policy);
    let _monitor = listening_monitor(&mut command);
    let said = || {
        let (_, report) = place.doctor("/bin/true");
        let found = of_area(&report, "monitor", "policy");
        let of = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
        (of("verdict"), of("found"), of("instead"))
    };
    let (verdict, found, _) = said();
    assert!(verdict == "missing" && found.contains("nobody"), "{found}");
    assert!(found.starts_with(&policy.display().to_string()), "{found}");
    fs::write(&policy, format!("[[allow]]\none = {{ uid = [{own}] }}\nother = {{ uid = [{own}, 4321] }}\n"))
        .unwrap();
    let (verdict, found, _) = said();
    assert!(verdict == "ok" && found.contains("itself") && found.contains("4321"), "{found}");
    // What `megapipe setup` does would not help.
    let remedy = || {
        let (_, report) = place.doctor("/bin/true");
        of_area(&report, "monitor", "policy")["remedy"].as_str().unwrap_or_default().to_owned()
    };
    let file = policy.to_str().unwrap();
    fs::write(&policy, "same_user = false\n").unwrap();
    assert!(remedy().contains(&format!(" to {file}, which this monitor follows")), "{}", remedy());
    // A rule that is about another user.
    fs::write(
        &policy,
        format!("same_user = false\n[[deny]]\none = {{ uid = [{}] }}\nother = {{}}\n", own + 1),
    )
    .unwrap();
    assert!(remedy().contains(&format!(" to {file}, which this monitor follows")), "{}", remedy());
    fs::write(&policy, format!("same_user = true\n[[deny]]\none = {{ uid = [{own}] }}\nother = {{}}\n"))
        .unwrap();
    assert!(remedy().contains(&format!("deny rules of {file}")), "{}", remedy());
    fs::write(&policy, format!("[[allow]]\none = {{ uid = [{own}] }}\nother = {{ uid = [{own}, 4321] }}\n"))
        .unwrap();
    assert_eq!(said().0, "ok");
    fs::write(&policy, "same_user = maybe\n").unwrap();
    let (verdict, found, instead) = said();
    assert!(verdict == "missing" && found.contains("4321"), "{found}");
    assert!(instead.contains("cannot be used"), "{instead}");
}

/// Root opens no file that another user's monitor names: its deny rule, which would be the advice, stays unread.
#[test]
fn a_file_that_another_users_monitor_names_is_not_opened() {
    const NAME: &str = "a_file_that_another_users_monitor_names_is_not_opened";
    if !is_root(NAME) {
        return;
    }
    let (place, binary) = (Place::new(), PublicBinary::new());
    std::os::unix::fs::chown(&place.0, Some(NOBODY), Some(NOBODY)).unwrap();
    let policy = place.0.join("policy.toml");
    fs::write(&policy, format!("same_user = false\n[[deny]]\none = {{ uid = [{NOBODY}] }}\nother = {{}}\n"))
        .unwrap();
    let mut command = binary.command();
    command.args(["monitor", "--socket"]).arg(place.socket()).arg("--config").arg(&policy).current_dir("/");
    let _monitor = listening_monitor(&mut command);
    let mut program = Command::new("sleep");
    program.arg("60").env("MEGAPIPE_MONITOR", place.socket()).current_dir("/").uid(NOBODY).gid(NOBODY);
    let mut process = Fosterling::start(&mut program);
    let (_, report) = place.doctor(process.child().id().to_string());
    let found = of_area(&report, "monitor", "policy");
    assert_eq!(found["verdict"], "missing", "{report}");
    let expected = format!(" to {}, which this monitor follows (docs/monitor.md)", policy.display());
    assert!(found["remedy"].as_str().unwrap().ends_with(&expected), "{report}");
    process.kill();
}

/// The process under Megapipe, beside it, and gone.
#[test]
fn a_process_is_under_megapipe_or_not() {
    let place = Place::new();
    if !has_python3() {
        return println!("SKIPPED a_process_is_under_megapipe_or_not: no python3");
    }
    let _monitor = start_monitor(PROGRAM.as_ref(), &place.socket());
    let source = "import socket, sys
listener = socket.create_server((\"127.0.0.1\", 0))
client = socket.create_connection(listener.getsockname())
server = listener.accept()[0]
for _ in range(100):
    client.sendall(b'a')
    server.recv(1)
sys.stdin.read()";
    let start = |command: &mut Command| {
        let command = command.env("MEGAPIPE_MONITOR", place.socket()).env_remove("LD_PRELOAD");
        Fosterling::start(command.args(["python3", "-c", source]).stdin(Stdio::piped()).stderr(Stdio::null()))
    };
    let mut inside = start(megapipe().args(["run", "--promote", "eager", "--"]));
    let pid = inside.child().id().to_string();
    let report = until("the program is connected", || {
        let (status, report) = place.doctor(&pid);
        let found = report["findings"].as_array()?.iter().find(|finding| finding["name"] == "connected")?;
        (status == Some(0) && found["verdict"] == "ok").then_some(report)
    });
    let socket = place.socket().display().to_string();
    let says = |name: &str, text: &str| {
        let found = of_area(&report, "process", name)["found"].as_str().unwrap();
        assert!(found.contains(text), "{name}: {found}");
    };
    says("library", "libmegapipe_preload.so");
    says("connected", &socket);
    says("variables", "MEGAPIPE_PROMOTE=eager");
    assert!(report["next"].as_str().unwrap().starts_with("megapipe top"), "{report}");
    inside.kill();

    let mut beside = start(&mut Command::new("env"));
    let pid = beside.child().id().to_string();
    let (status, report) = until("env has become python3", || {
        let found = place.doctor(&pid);
        of_area(&found.1, "process", "program")["found"].as_str()?.contains("python3").then_some(found)
    });
    assert_eq!(status, Some(1));
    assert_eq!(of_area(&report, "process", "library")["verdict"], "missing");
    assert_eq!(of_area(&report, "program", "library")["verdict"], "ok");
    assert!(report["next"].as_str().unwrap().contains("megapipe run"), "{report}");

    beside.kill();
    let output = megapipe().args(["doctor", &pid]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("no process") && said.lines().count() == 1, "{said}");
}

/// What `megapipe run` cannot execute for want of an interpreter, `megapipe doctor` does not call fine.
#[test]
fn a_missing_interpreter_is_found() {
    let place = Place::new();
    let _monitor = start_monitor(PROGRAM.as_ref(), &place.socket());
    let script = |name: &str, line: &str| {
        let path = place.0.join(name);
        fs::write(&path, format!("#!{line}\nexit 0\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    };
    let direct = script("direct", "/no/such/interpreter -x");
    let second = script("second", &format!("{}\t-x", direct.display()));
    for path in [direct, second] {
        let (status, report) = place.doctor(&path);
        let file = of_area(&report, "program", "file");
        assert_eq!((status, &file["verdict"], &report["next"]), (Some(1), &"missing".into(), &Value::Null));
        let mut run = megapipe();
        let ran =
            run.args(["run", "--"]).arg(&path).env("MEGAPIPE_MONITOR", place.socket()).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        let found = file["found"].as_str().unwrap();
        assert_eq!((ran.status.code(), said.trim()), (Some(126), format!("megapipe run: {found}").as_str()));
        assert!(found.contains("/no/such/interpreter is missing"), "{found}");
    }
    let spaced = script("with space", "/bin/sh");
    let (status, report) = place.doctor(&spaced);
    assert_eq!(status, Some(0), "{report}");
    let next = report["next"].as_str().unwrap();
    assert!(next.contains(&format!("-- '{}'", spaced.display())), "{next}");
}

/// Some programs are several, by the name that they are called by: redis-server is a link to redis-check-rdb.
#[test]
fn a_program_keeps_the_name_that_was_asked_for() {
    let place = Place::new();
    let _monitor = start_monitor(PROGRAM.as_ref(), &place.socket());
    let (link, target) = (place.0.join("asked"), fs::canonicalize("/bin/sleep").unwrap());
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let both = format!("{}, a link to {}", link.display(), target.display());
    let command = format!("-- {} ", link.display());
    let mut process = Fosterling::start(Command::new(&link).arg("60"));
    let pid = process.child().id().to_string();
    for subject in [link.to_str().unwrap(), &pid] {
        let report = until("the process has executed the program", || {
            let (_, report) = place.doctor(subject);
            let is_it = of_area(&report, "program", "file")["found"].as_str()?.contains("asked");
            is_it.then_some(report)
        });
        assert_eq!(of_area(&report, "program", "file")["found"], both.as_str());
        assert!(report["next"].as_str().unwrap().contains(&command), "{report}");
    }
}

/// nginx and redis write a title over their environment.
#[test]
fn an_overwritten_environment_is_not_called_empty() {
    let place = Place::new();
    let (source, program) = (place.0.join("overwrite.c"), place.0.join("overwrite"));
    let text = "#include <string.h>
#include <unistd.h>
extern char **environ;
int main(void) {
    for (char **entry = environ; *entry; entry++) memset(*entry, 0, strlen(*entry));
    for (;;) pause();
}
";
    fs::write(&source, text).unwrap();
    if !Command::new("cc").arg("-o").arg(&program).arg(&source).status().is_ok_and(|status| status.success())
    {
        return println!("SKIPPED an_overwritten_environment_is_not_called_empty: no C compiler");
    }
    let _monitor = start_monitor(PROGRAM.as_ref(), &place.socket());
    let mut command = megapipe();
    command.args(["run", "--"]).arg(&program).env("MEGAPIPE_MONITOR", place.socket());
    let mut process = Fosterling::start(command.env_remove("LD_PRELOAD"));
    let pid = process.child().id().to_string();
    until("the program has overwritten its environment", || {
        let (_, report) = place.doctor(&pid);
        let variables =
            report["findings"].as_array()?.iter().find(|finding| finding["name"] == "variables")?;
        let library = of_area(&report, "process", "library");
        assert!(library["verdict"] != "ok" || variables["found"] != "none of Megapipe's", "{report}");
        let overwritten = variables["found"].as_str()?.contains("has overwritten its environment");
        (overwritten && variables["verdict"] == "note").then_some(())
    });
    process.kill();
}

/// MEGAPIPE_MONITOR named its monitor, but cannot be read any more: the process' own connection says it.
#[test]
fn a_monitor_is_found_of_a_program_that_overwrote_its_environment() {
    let place = Place::new();
    let (source, program) = (place.0.join("overwrite.c"), place.0.join("overwrite"));
    let text = "#include <arpa/inet.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>
extern char **environ;
int main(void) {
    char byte = 'x';
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0), server;
    // Where Yama is, a user's programs may not look into each other without; elsewhere it is EINVAL.
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    for (char **entry = environ; *entry; entry++) memset(*entry, 0, strlen(*entry));
    if (bind(listener, (struct sockaddr *)&at, length) || listen(listener, 1) ||
        getsockname(listener, (struct sockaddr *)&at, &length) || connect(client, (struct sockaddr *)&at, length))
        return 1;
    server = accept(listener, NULL, NULL);
    for (;;)
        if (send(client, &byte, 1, 0) != 1 || recv(server, &byte, 1, 0) != 1 || usleep(10000)) return 2;
}
";
    fs::write(&source, text).unwrap();
    if !Command::new("cc").arg("-o").arg(&program).arg(&source).status().is_ok_and(|status| status.success())
    {
        return println!(
            "SKIPPED a_monitor_is_found_of_a_program_that_overwrote_its_environment: no C compiler"
        );
    }
    let _odd = std::os::unix::net::UnixListener::bind(place.0.join(OsStr::from_bytes(b"\xff"))).unwrap();
    // Another one than this user's programs reach by default.
    let socket = place.0.join("another");
    let _monitor = start_monitor(PROGRAM.as_ref(), &socket);
    let mut command = megapipe();
    command.args(["run", "--promote", "eager", "--"]).arg(&program).env("MEGAPIPE_MONITOR", &socket);
    let mut process = Fosterling::start(command.env_remove("LD_PRELOAD"));
    let pid = process.child().id().to_string();
    until("the program is found connected", || {
        let (_, report) = place.doctor(&pid);
        let connected =
            report["findings"].as_array()?.iter().find(|finding| finding["name"] == "connected")?;
        let found = connected["found"].as_str()?;
        let socket = socket.to_str()?;
        (found.contains(socket) && found.contains("promoted endpoints")).then_some(())
    });
    process.kill();
}

/// Only the library's connection says which monitor a program has.
#[test]
fn sockets_of_a_program_without_the_library_are_left_alone() {
    const NAME: &str = "sockets_of_a_program_without_the_library_are_left_alone";
    let place = Place::new();
    if !has_python3() {
        return println!("SKIPPED {NAME}: no python3");
    }
    let another = place.0.join("another");
    let _monitor = start_monitor(PROGRAM.as_ref(), &another);
    let source = "import socket, sys
client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
client.connect(sys.argv[1])
print('connected', flush=True)
sys.stdin.read()";
    let mut command = Command::new("python3");
    command.args(["-c", source]).arg(&another).env_remove("MEGAPIPE_MONITOR").env_remove("LD_PRELOAD");
    let mut process = Fosterling::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(process.child().stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "connected\n");
    let (_, report) = place.doctor(process.child().id().to_string());
    let reached = finding(&report, "reached")["found"].as_str().unwrap();
    assert!(reached.contains(place.socket().to_str().unwrap()), "{report}");
    process.kill();
}

/// A program that is as it should be, connected to one that is not under Megapipe.
#[test]
fn what_is_missing_at_the_other_side_is_the_next_step() {
    let place = Place::new();
    if !has_python3() {
        return println!("SKIPPED what_is_missing_at_the_other_side_is_the_next_step: no python3");
    }
    let _monitor = start_monitor(PROGRAM.as_ref(), &place.socket());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let source = "import socket, sys
client = socket.create_connection((\"127.0.0.1\", int(sys.argv[1])))
for _ in range(100):
    client.sendall(b'a')
    client.recv(1)
sys.stdin.read()";
    let port = listener.local_addr().unwrap().port().to_string();
    let mut command = megapipe();
    command.args(["run", "--promote", "eager", "--", "python3", "-c", source, &port]);
    command.env("MEGAPIPE_MONITOR", place.socket()).env_remove("LD_PRELOAD");
    let mut process = Fosterling::start(command.stdin(Stdio::piped()).stderr(Stdio::null()));
    let (mut socket, _) = listener.accept().unwrap();
    for _ in 0..100 {
        socket.read_exact(&mut [0]).unwrap();
        socket.write_all(b"b").unwrap();
    }
    let pid = process.child().id().to_string();
    let report = until("the program is connected", || {
        let (status, report) = place.doctor(&pid);
        let connected = of_area(&report, "process", "connected");
        assert_eq!((status, &connected["verdict"]), (Some(0), &"note".into()), "{report}");
        connected["found"].as_str()?.contains("no promoted endpoint").then_some(report)
    });
    let next = report["next"].as_str().unwrap();
    // The monitor follows another file than the one that `megapipe setup` writes.
    let policy = place.0.join("policy.toml");
    assert!(next.contains("other side") && next.contains(policy.to_str().unwrap()), "{report}");
    // This process, and whether it is under Megapipe.
    let peers: Vec<_> =
        report["findings"].as_array().unwrap().iter().filter(|one| one["area"] == "peers").collect();
    let found = peers[0]["found"].as_str().unwrap();
    let this = format!("pid {}, which is not under Megapipe", std::process::id());
    assert!(peers.len() == 1 && found.starts_with("1 connection to ") && found.ends_with(&this), "{report}");
    process.kill();
}

/// The note on a program that is linked with liburing.
#[test]
fn a_program_with_liburing_is_named() {
    const NAME: &str = "a_program_with_liburing_is_named";
    let place = Place::new();
    let (links, source) = (place.0.join("links"), place.0.join("links.c"));
    fs::write(
        &source,
        "int io_uring_major_version(void); int main(void) { return io_uring_major_version() < 2; }",
    )
    .unwrap();
    let mut build = Command::new("cc");
    build
        .arg(&source)
        .arg("-o")
        .arg(&links)
        .args(["-Wl,--no-as-needed", "-l:liburing.so.2"])
        .stderr(Stdio::null());
    if !build.status().is_ok_and(|status| status.success()) {
        return println!("SKIPPED {NAME}: no C compiler, or no liburing.so.2");
    }
    let _monitor = start_monitor(PROGRAM.as_ref(), &place.socket());
    let of_ring = |report: &Value| -> Option<Value> {
        let findings = report["findings"].as_array().unwrap();
        findings.iter().find(|one| one["area"] == "program" && one["name"] == "io_uring").cloned()
    };
    let (_, report) = place.doctor(&links);
    let ring = of_ring(&report).unwrap_or_else(|| panic!("{report}"));
    let instead = ring["instead"].as_str().unwrap();
    assert!(instead.contains("--io-uring files") && instead.contains("MariaDB"), "{report}");
    let (_, report) = place.doctor("cat");
    assert_eq!(of_ring(&report), None, "{report}");
}

/// The other end keeps a ring, of which this one only knows that it was not offered.
#[test]
fn a_ring_at_the_other_side_is_named() {
    const NAME: &str = "a_ring_at_the_other_side_is_named";
    let place = Place::new();
    if !has_python3() {
        return println!("SKIPPED {NAME}: no python3");
    }
    let _monitor = start_monitor(PROGRAM.as_ref(), &place.socket());
    // 425: io_uring_setup(2).
    let server = "import ctypes, socket, sys
ring = ctypes.CDLL(None).syscall(425, 4, ctypes.create_string_buffer(120))
server = socket.create_server((\"127.0.0.1\", 0))
print(ring, server.getsockname()[1], flush=True)
end = server.accept()
sys.stdin.read()";
    let client = "import socket, sys
end = socket.create_connection((\"127.0.0.1\", int(sys.argv[1])))
print('connected', flush=True)
sys.stdin.read()";
    let start = |arguments: &[&str]| {
        let mut command = megapipe();
        command.args(["run", "--", "python3", "-c"]).args(arguments).env("MEGAPIPE_MONITOR", place.socket());
        command.env_remove("LD_PRELOAD").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = Fosterling::start(&mut command);
        let mut line = String::new();
        BufReader::new(process.child().stdout.take().unwrap()).read_line(&mut line).unwrap();
        (process, line)
    };
    let (mut server, line) = start(&[server]);
    let (ring, port) = line.trim().split_once(' ').expect("two numbers");
    if ring == "-1" {
        server.kill();
        return println!("SKIPPED {NAME}: no io_uring here");
    }
    let (mut client, line) = start(&[client, port]);
    assert_eq!(line, "connected\n");
    let (_, report) = place.doctor(client.child().id().to_string());
    let peer = report["findings"].as_array().unwrap().iter().find(|one| one["area"] == "peers").unwrap();
    let beyond = server.child().id();
    assert_eq!(peer["remedy"], format!("megapipe doctor {beyond}"), "{report}");
    let found = peer["found"].as_str().unwrap();
    assert!(found.ends_with(&format!("pid {beyond}, which keeps an io_uring")), "{report}");
    client.kill();
    server.kill();
}
