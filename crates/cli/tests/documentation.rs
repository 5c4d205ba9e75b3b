//! `megapipe generate-docs`: what `make install` puts beside the binary.

use std::fs;
use std::process::Command;

use testkit::net::Scratch;

#[test]
fn man_pages_and_completions_are_written() {
    let directory = Scratch::new();
    let status = Command::new(env!("CARGO_BIN_EXE_megapipe"))
        .arg("generate-docs")
        .arg(&*directory)
        .status()
        .expect("the binary runs");
    assert!(status.success());
    let read = |path: &str| fs::read_to_string(directory.join(path)).expect(path);
    assert!(read("man/megapipe.1").contains("megapipe\\-doctor"));
    assert!(read("man/megapipe-setup.1").contains("\\-\\-undo"));
    assert!(read("man/megapipe-doctor.1").contains("\\-\\-json"));
    let page = read("man/megapipe-top.1");
    assert!(page.contains("\\-\\-once") && page.contains("\\-\\-interval") && page.contains("Ctrl"));
    let page = read("man/megapipe-run.1");
    assert!(page.contains("\\-\\-promote") && page.contains("MEGAPIPE_STATS"), "{page}");
    for reason in promote::Reason::ALL {
        assert!(page.contains(&reason.word().replace('-', "\\-")), "{reason}: {page}");
    }
    for (verb, usage) in [
        ("setup", "[--allow A[:B]]..."),
        ("top", "[--interval SECONDS]"),
        ("monitor", "[--config FILE]"),
        ("doctor", "[PROGRAM|PID] [--json]"),
    ] {
        let page = read(&format!("man/megapipe-{verb}.1")).replace('\\', "");
        let synopsis = page.split(".SH SYNOPSIS").nth(1).and_then(|rest| rest.split(".SH").next()).unwrap();
        assert!(synopsis.contains(usage), "{verb}: {synopsis}");
    }
    for path in ["completions/megapipe.bash", "completions/_megapipe", "completions/megapipe.fish"] {
        assert!(read(path).contains("doctor"), "{path}");
        assert!(read(path).contains("interval"), "{path}");
    }
    assert!(!read("man/megapipe.1").contains("generate"), "a hidden verb has no page");
}

#[test]
fn an_unwritable_directory_is_an_error() {
    let output = Command::new(env!("CARGO_BIN_EXE_megapipe"))
        .args(["generate-docs", "/proc/nowhere"])
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/proc/nowhere"));
}

#[test]
fn messages_are_the_same_in_every_language() {
    let typed: [&[&str]; 8] = [
        &[],
        &["run", "--help"],
        &["run", "no-such-program"],
        &["run", "/etc/passwd"],
        &["run", "--log", "/nowhere/log", "true"],
        &["top", "--once", "--socket", "/nowhere/socket"],
        &["setup", "--allow", "no-such-user"],
        &["monitor", "--socket", "/proc/nowhere/socket"],
    ];
    for arguments in typed {
        let said = |language: &str| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_megapipe"));
            let variables = ["LANG", "LC_ALL", "LANGUAGE"].map(|name| (name, language));
            let output = command.args(arguments).envs(variables).output().unwrap();
            (output.status.code(), output.stdout, output.stderr)
        };
        let plain = said("C");
        assert!(plain.0 != Some(0) || !plain.1.is_empty(), "{arguments:?}");
        for language in ["POSIX", "de_DE.UTF-8", "C.UTF-8", ""] {
            assert_eq!(said(language), plain, "{arguments:?} in {language:?}");
        }
    }
}
