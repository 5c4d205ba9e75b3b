//! `megapipe doctor` as people and programs meet it: the real binary, also where the system gives it less.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use serde_json::Value;
use testkit::confine;
use testkit::net::Scratch;

mod subject;
mod tun;

const NOBODY: u32 = 65_534;

fn megapipe() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_megapipe"));
    command.env_remove("MEGAPIPE_ENGINE").env_remove("MEGAPIPE_DISABLE");
    command
}

fn doctor_json(command: &mut Command) -> (Option<i32>, Value) {
    let output = command.args(["doctor", "--json"]).output().expect("the binary runs");
    let report = serde_json::from_slice(&output.stdout).expect("one JSON document");
    (output.status.code(), report)
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn finding<'a>(report: &'a Value, name: &str) -> &'a Value {
    report["findings"]
        .as_array()
        .and_then(|findings| findings.iter().find(|finding| finding["name"] == name))
        .unwrap_or_else(|| panic!("no finding named {name}"))
}

/// Whether this test runs as root; says so where it does not.
fn is_root(test: &str) -> bool {
    // SAFETY: geteuid has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        eprintln!("SKIPPED {test}: needs root to become another user");
    }
    root
}

/// A copy of the binary that every user may run, removed when dropped: the build directory may be private.
struct PublicBinary(Scratch);

impl PublicBinary {
    fn new() -> Self {
        let directory = Scratch::new();
        let path = directory.join("megapipe");
        // A program of its own copies: a descriptor of ours, open for writing, could slip into another test's child,
        // and the copy would be "busy".
        let copied =
            Command::new("install").args(["-m", "755", env!("CARGO_BIN_EXE_megapipe")]).arg(&path).status();
        assert!(copied.is_ok_and(|status| status.success()), "the binary is copied");
        Self(directory)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.0.join("megapipe"));
        command.uid(NOBODY).gid(NOBODY).env_remove("MEGAPIPE_ENGINE").env_remove("MEGAPIPE_DISABLE");
        command
    }
}

#[test]
fn the_schema_is_stable() {
    let (_, report) = doctor_json(&mut megapipe());
    assert_eq!(report["schema"], 1);
    for (key, is_right) in [
        ("megapipe", Value::is_string as fn(&Value) -> bool),
        ("kernel", Value::is_string),
        ("machine", Value::is_string),
        ("runs", Value::is_boolean),
        ("engine_reason", Value::is_string),
        ("findings", Value::is_array),
    ] {
        assert!(is_right(&report[key]), "{key}: {}", report[key]);
    }
    for finding in report["findings"].as_array().into_iter().flatten() {
        let keys: Vec<&str> =
            finding.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect();
        let mut sorted = keys.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, ["area", "found", "instead", "name", "remedy", "verdict"]);
        assert!(
            ["ok", "note", "missing"].contains(&finding["verdict"].as_str().unwrap_or_default()),
            "{finding}"
        );
        // Whoever reads that something is amiss also reads what follows from it.
        assert!(finding["verdict"] == "ok" || finding["instead"].is_string(), "{finding}");
    }
    for name in [
        "engine",
        "epoll",
        "ring",
        "multishot_recv",
        "direct_descriptors_safe",
        "RLIMIT_NOFILE",
        "RLIMIT_MEMLOCK",
        "kernel.io_uring_disabled",
        "net.core.somaxconn",
        "net.ipv4.tcp_max_syn_backlog",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.tcp_migrate_req",
        "kernel.perf_event_paranoid",
        "seccomp",
        "container",
        "cgroup cpu quota",
        "online",
        "affinity",
        "net.core.rps_sock_flow_entries",
        "steering by BPF",
    ] {
        finding(&report, name);
    }
}

#[test]
fn the_text_says_the_same_as_the_json() {
    let output = megapipe().arg("doctor").output().expect("the binary runs");
    let (status, report) = doctor_json(&mut megapipe());
    assert_eq!(output.status.code(), status);
    let text = text(&output);
    for finding in report["findings"].as_array().into_iter().flatten() {
        assert!(text.contains(finding["name"].as_str().expect("a name")), "{finding} is not in\n{text}");
    }
}

#[test]
fn a_filter_against_io_uring_leads_to_epoll() {
    let (status, report) = doctor_json(confine::without_io_uring(&mut megapipe()));
    assert_eq!(status, Some(0));
    assert_eq!((&report["runs"], &report["engine"]), (&Value::Bool(true), &Value::from("epoll")));
    let ring = finding(&report, "ring");
    assert_eq!(ring["verdict"], "missing");
    assert_eq!(ring["instead"], "the epoll engine");
    assert!(ring["remedy"].as_str().expect("a remedy").contains("seccomp"), "{ring}");
    assert_eq!(finding(&report, "seccomp")["verdict"], "note");
    assert_eq!(finding(&report, "min_wait")["verdict"], "missing");
}

#[test]
fn neither_engine_is_a_failure_that_names_the_cause() {
    let output =
        confine::without_io_uring_and_epoll(&mut megapipe()).arg("doctor").output().expect("the binary runs");
    assert_eq!(output.status.code(), Some(1));
    let text = text(&output);
    assert!(text.contains("Megapipe cannot run here: "), "{text}");
    assert!(text.contains("epoll_create1"), "the remedy names the call that is forbidden: {text}");
}

#[test]
fn a_forced_engine_that_is_not_there_is_a_failure() {
    let (status, report) =
        doctor_json(confine::without_io_uring(&mut megapipe()).env("MEGAPIPE_ENGINE", "uring"));
    assert_eq!((status, &report["runs"], &report["engine"]), (Some(1), &Value::Bool(false), &Value::Null));
    assert_eq!(finding(&report, "engine")["remedy"], "unset MEGAPIPE_ENGINE");

    let (status, report) = doctor_json(megapipe().env("MEGAPIPE_ENGINE", "kqueue"));
    assert_eq!(status, Some(1));
    assert!(report["engine_reason"].as_str().expect("a reason").contains("kqueue"));

    let (status, report) = doctor_json(megapipe().env("MEGAPIPE_ENGINE", "epoll"));
    assert_eq!((status, &report["engine"]), (Some(0), &Value::from("epoll")));
}

#[test]
fn features_are_switched_off_by_name() {
    let (_, usual) = doctor_json(&mut megapipe());
    let (status, report) = doctor_json(megapipe().env("MEGAPIPE_DISABLE", "min_wait,no_such_feature"));
    assert_eq!(status, Some(0));
    assert_eq!(finding(&report, "min_wait")["verdict"], "missing");
    assert_eq!(finding(&report, "cqe_skip")["verdict"], finding(&usual, "cqe_skip")["verdict"]);
    let unknown = finding(&report, "MEGAPIPE_DISABLE");
    assert!(unknown["found"].to_string().contains("no_such_feature"));
    assert!(unknown["remedy"].to_string().contains("ring, defer_taskrun"), "{unknown}");

    let (status, report) = doctor_json(megapipe().env("MEGAPIPE_DISABLE", "buffer_ring"));
    assert_eq!((status, &report["engine"]), (Some(0), &Value::from("epoll")));

    let (status, report) = doctor_json(megapipe().env("MEGAPIPE_DISABLE", "ring"));
    assert_eq!((status, &report["engine"]), (Some(0), &Value::from("epoll")));
    assert_eq!(finding(&report, "ring")["remedy"], "unset MEGAPIPE_DISABLE");
}

#[test]
fn an_unprivileged_user_gets_a_full_report() {
    if !is_root("an_unprivileged_user_gets_a_full_report") {
        return;
    }
    let binary = PublicBinary::new();
    let (status, report) = doctor_json(&mut binary.command());
    assert_eq!(status, Some(0));
    let (_, as_root) = doctor_json(&mut megapipe());
    let count = |report: &Value| report["findings"].as_array().map_or(0, Vec::len);
    assert_eq!(count(&report), count(&as_root));
    // What needs root is said so.
    for finding in report["findings"].as_array().into_iter().flatten() {
        let remedy = finding["remedy"].as_str().unwrap_or_default();
        assert!(!remedy.starts_with("sysctl"), "{finding}");
    }
}

/// A program in a directory that the user may not enter.
#[test]
fn a_closed_directory_is_named() {
    use std::os::unix::fs::PermissionsExt;
    if !is_root("a_closed_directory_is_named") {
        return;
    }
    let (binary, closed) = (PublicBinary::new(), Scratch::new());
    std::fs::set_permissions(closed.join("."), std::fs::Permissions::from_mode(0o700)).unwrap();
    let output = binary.command().args(["run", "--"]).arg(closed.join("true")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(126), "{said}");
    assert!(said.contains("Permission denied") && said.contains("enter every directory"), "{said}");
}

#[test]
fn short_lockable_memory_is_shown_and_epoll_can_be_asked_for() {
    if !is_root("short_lockable_memory_is_shown_and_epoll_can_be_asked_for") {
        return;
    }
    let binary = PublicBinary::new();
    // Nothing at all; enough for a small ring, not for a channel's.
    for bytes in [0, 64 << 10] {
        let (status, report) = doctor_json(confine::with_locked_memory(&mut binary.command(), bytes));
        let limit = finding(&report, "RLIMIT_MEMLOCK");
        assert_eq!(limit["verdict"], "note");
        assert!(limit["remedy"].is_string());
        assert_eq!(status == Some(0), report["engine"].is_string(), "{report}");
        if report["engine"] == "uring" {
            eprintln!("SKIPPED the refusal: this kernel does not count rings against RLIMIT_MEMLOCK");
        } else {
            let engine = finding(&report, "engine");
            assert_ne!(engine["verdict"], "ok");
            let remedies = format!("{} {}", engine["remedy"], finding(&report, "ring")["remedy"]);
            assert!(remedies.contains("--memlock="), "{report}");
        }

        let mut command = binary.command();
        command.env("MEGAPIPE_ENGINE", "epoll");
        let (status, report) = doctor_json(confine::with_locked_memory(&mut command, bytes));
        assert_eq!((status, &report["engine"]), (Some(0), &Value::from("epoll")));
    }
}

/// What doctor says of few descriptors is what a server then does.
#[test]
fn few_descriptors_are_told_as_they_are_met() {
    if doctor_json(&mut megapipe()).1["engine"] != "uring" {
        eprintln!("SKIPPED few_descriptors_are_told_as_they_are_met: no io_uring here");
        return;
    }
    let mut outcomes = Vec::new();
    for descriptors in [5, 6, 7, 8, 9, 10, 64] {
        let (status, report) = doctor_json(confine::with_open_files(&mut megapipe(), descriptors));
        assert_eq!(status == Some(0), report["runs"] == true, "{descriptors}: {report}");
        // Descriptors that are short are no feature that is missing.
        assert_ne!(report["engine"], "epoll", "{descriptors}: {report}");
        let limit = finding(&report, "RLIMIT_NOFILE");
        assert_eq!(limit["verdict"], "note");
        assert!(limit["remedy"].as_str().expect("a remedy").contains("--nofile="), "{limit}");
        if report["runs"] == false {
            let remedies =
                format!("{} {}", finding(&report, "engine")["remedy"], finding(&report, "tcp")["remedy"]);
            assert!(remedies.contains("--nofile="), "{report}");
        }
        outcomes.push(status == Some(0));
    }
    assert_eq!((outcomes.first(), outcomes.last()), (Some(&false), Some(&true)));
    assert!(outcomes.is_sorted(), "{outcomes:?}");
}
