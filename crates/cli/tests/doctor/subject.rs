//! `megapipe doctor PROGRAM|PID`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use testkit::process::{Fosterling, preload_library, start_monitor, until};

use super::{finding, megapipe};

const PROGRAM: &str = env!("CARGO_BIN_EXE_megapipe");

/// A directory of one test, removed when dropped.
struct Place(PathBuf);

impl Place {
    fn new(test: &str) -> Place {
        preload_library(PROGRAM.as_ref());
        let path = std::env::temp_dir().join(format!("megapipe-subject-{}-{test}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Place(path)
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

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The finding of this name in this area: a process and its program both have a library.
fn of_area<'a>(report: &'a Value, area: &str, name: &str) -> &'a Value {
    let findings = report["findings"].as_array().unwrap();
    let is = |finding: &&Value| finding["area"] == area && finding["name"] == name;
    findings.iter().find(is).unwrap_or_else(|| panic!("no {name} in {report}"))
}

#[test]
fn what_stands_in_the_way_of_a_program_is_named() {
    let place = Place::new("program");
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

/// The process under Megapipe, beside it, and gone.
#[test]
fn a_process_is_under_megapipe_or_not() {
    let place = Place::new("process");
    if !Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success()) {
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
