//! A program that has no TCP socket runs as it does without the library: after the library's constructor it makes the same
//! system calls, and each has the same result. The programs are the cases of `unwatched/cases.c`; CASE=NUMBER runs one.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use testkit::process::preload_library;

/// `unwatched/trace.c`: the kernel lets no process be traced here.
const REFUSED: i32 = 77;

#[test]
fn a_program_without_tcp_runs_as_without_the_library() {
    const NAME: &str = "a_program_without_tcp_runs_as_without_the_library";
    if !Command::new("cc").arg("--version").output().is_ok_and(|output| output.status.success()) {
        println!("SKIPPED {NAME}: no C compiler (cc) is installed");
        return;
    }
    let room = tempfile::tempdir().expect("a directory");
    let [trace, cases] = ["trace", "cases"].map(|name| built(room.path(), name));
    let count = Command::new(&cases).output().expect("it counts its cases").stdout;
    let count: u32 = String::from_utf8_lossy(&count).trim().parse().expect("a number");
    let chosen = std::env::var("CASE").ok().map(|case| case.parse::<u32>().expect("a number"));
    let mut differ = Vec::new();
    for case in chosen.map_or(0..count, |case| case..case + 1) {
        let run = |mode: Option<&str>| {
            let mut command = Command::new(&trace);
            command.arg(mode.map_or(Path::new("-"), |_| preload_library())).arg(&cases).arg(case.to_string());
            for (variable, _) in std::env::vars_os() {
                if variable.to_string_lossy().starts_with("MEGAPIPE_") {
                    command.env_remove(variable);
                }
            }
            command
                .env("MEGAPIPE_MONITOR", room.path().join("none"))
                .envs(mode.map(|mode| ("MEGAPIPE_PROMOTE", mode)));
            let output = command.current_dir(room.path()).stdin(Stdio::null()).output().expect("it runs");
            let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
            (output.status.code(), text.concat())
        };
        let (status, plain) = run(None);
        if status == Some(REFUSED) {
            println!("SKIPPED {NAME}: no process can be traced here (ptrace(2))");
            return;
        }
        assert!(status == Some(0) && plain.lines().count() > 2, "case {case}: {status:?}\n{plain}");
        for mode in ["observe", "auto", "eager"] {
            let (status, text) = run(Some(mode));
            if (status, &text) != (Some(0), &plain) {
                differ.push(format!("case {case}, {mode}: {status:?}\n{}", difference(&plain, &text)));
            }
        }
    }
    assert!(differ.is_empty(), "{} of {} runs differ:\n{}", differ.len(), 3 * count, differ.join("\n"));
}

fn built(room: &Path, name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/unwatched").join(name).with_extension("c");
    let program = room.join(name);
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-Wall", "-Wextra", "-O2", "-pthread", "-o"]).arg(&program).arg(source);
    let output = compiler.arg("-lutil").output().expect("the compiler runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// The first lines that differ, behind the case's name.
fn difference(plain: &str, other: &str) -> String {
    let name = plain.lines().next().unwrap_or_default();
    let same = plain.lines().zip(other.lines()).take_while(|(plain, other)| plain == other).count();
    let part = |text: &str, mark: &str| {
        text.lines().skip(same).take(6).map(|line| format!("{mark} {line}\n")).collect::<String>()
    };
    format!("{name}\n{}{}", part(plain, "-"), part(other, "+"))
}
