//! The program runs as if it had been started by itself.

use std::fs;
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};

use testkit::process::{Fosterling, copy_program, until};

use crate::support::{PAIR, PROGRAM, Place, clean, library, output, python, text};

#[test]
fn exit_status_arguments_and_output_are_the_programs() {
    let place = Place::new();
    let _monitor = place.monitor();
    let ended = output(place.run().args(["--", "sh", "-c", "echo \"$0 $1\"; exit 7", "--stats", "-x"]));
    assert_eq!((ended.status.code(), text(&ended.stdout)), (Some(7), "--stats -x\n".into()));
    assert_eq!(text(&ended.stderr), "", "nothing of ours is heard");
    // Without `--` too: whatever follows the program is its own.
    let ended = output(place.run().args(["echo", "--stats", "--only", "x"]));
    assert_eq!((ended.status.code(), text(&ended.stdout)), (Some(0), "--stats --only x\n".into()));
}

#[test]
fn a_signal_ends_the_program_itself() {
    let place = Place::new();
    let _monitor = place.monitor();
    let mut sleeper = Fosterling::start(place.run().args(["sleep", "1000"]));
    let pid = sleeper.child().id();
    let name = || fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    until("the same process is the program", || (name()? == "sleep\n").then_some(()));
    until("the library is loaded", || {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
        maps.contains(library().to_str().unwrap()).then_some(())
    });
    let pid = rustix::process::Pid::from_child(sleeper.child());
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(sleeper.child().wait().unwrap().signal(), Some(libc::SIGTERM));
}

#[test]
fn ignored_signals_stay_as_they_were() {
    let place = Place::new();
    let _monitor = place.monitor();
    let bit = |signal: i32| 1u64 << (signal - 1);
    let ignored = |dispositions: &'static str| {
        let mut command = place.run();
        command.args(["grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status"]);
        let dispositions: Vec<i32> = dispositions.split(' ').flat_map(str::parse).collect();
        // SAFETY: signal(2) and sigprocmask(2) take no memory but a live set, and are allowed after a fork.
        unsafe {
            command.pre_exec(move || {
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::sigaddset(&raw mut set, libc::SIGUSR2);
                libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
                libc::signal(libc::SIGPIPE, libc::SIG_DFL);
                libc::signal(libc::SIGHUP, libc::SIG_DFL);
                for signal in &dispositions {
                    libc::signal(*signal, libc::SIG_IGN);
                }
                Ok(())
            });
        }
        let said = text(&output(&mut command).stdout);
        let word = |name: &str| {
            let line = said.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        // Whatever else the caller of the tests ignores stays ignored too.
        let ours = bit(libc::SIGHUP) | bit(libc::SIGPIPE);
        (word("SigBlk:"), word("SigIgn:") & ours)
    };
    assert_eq!(ignored(""), (bit(libc::SIGUSR2), 0));
    // 1 is SIGHUP, 13 SIGPIPE, which a service manager ignores by default.
    assert_eq!(ignored("1 13"), (bit(libc::SIGUSR2), bit(libc::SIGHUP) | bit(libc::SIGPIPE)));
}

#[test]
fn standard_input_and_the_directory_are_the_programs() {
    let place = Place::new();
    let _monitor = place.monitor();
    let mut child = Fosterling::start(place.run().arg("cat").stdin(Stdio::piped()).stdout(Stdio::piped()));
    child.child().stdin.take().unwrap().write_all(b"as it is").unwrap();
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.child().stdout.take().unwrap(), &mut said).unwrap();
    assert_eq!(said, "as it is");
    assert!(child.child().wait().unwrap().success());

    let Some(python) = python() else {
        return println!("SKIPPED standard_input_and_the_directory_are_the_programs (log): no python3");
    };
    let mut command = place.run();
    command.args(["--log", "here.log", "--stats", "sh", "-c", "cd / && exec \"$0\" -c \"$1\""]);
    let ended = output(command.arg(python).arg(PAIR));
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    let said = fs::read_to_string(place.file("here.log")).expect("the log lies where the caller was");
    assert!(said.contains("python") && said.contains(": 2 connections"), "{said}");
}

#[test]
fn a_relative_program_and_a_script_run() {
    let place = Place::new();
    let _monitor = place.monitor();
    fs::create_dir(place.file("below")).unwrap();
    place.script("below/tool", "#!/bin/sh\necho \"$0 $1 $LD_PRELOAD\"\n");
    place.script("below/plain", "echo plain $1\n");
    let ended = output(place.run().args(["below/tool", "x"]));
    assert_eq!(text(&ended.stdout), format!("below/tool x {}\n", library().display()));
    // Without a first line that names one, the shell runs it (execvp(3)).
    assert_eq!(text(&output(place.run().args(["./below/plain", "y"])).stdout), "plain y\n");
    let path = std::env::join_paths([place.file("below"), "/bin".into()]).unwrap();
    let ended = output(place.run().args(["tool", "z"]).env("PATH", path));
    assert!(text(&ended.stdout).contains("/below/tool z "), "{}", text(&ended.stdout));
}

#[test]
fn other_preloaded_libraries_are_kept_behind_it() {
    let place = Place::new();
    let _monitor = place.monitor();
    let other = place.compile("other.so", "int other(void) { return 1; }\n", &["-shared", "-fPIC"]).unwrap();
    let mut command = place.run();
    command.args(["--", crate::support::PROGRAM, "run", "printenv", "LD_PRELOAD"]).env("LD_PRELOAD", &other);
    let ended = output(&mut command);
    // Once, though there are two.
    assert_eq!(text(&ended.stdout), format!("{}:{}\n", library().display(), other.display()));
}

#[test]
fn a_program_with_address_sanitizer_runs() {
    let place = Place::new();
    let _monitor = place.monitor();
    let Some(program) = place
        .compile("clean", "int main(void) { return 5; }\n", &["-fsanitize=address", "-shared-libasan"])
        .or_else(|| place.compile("clean", "int main(void) { return 5; }\n", &["-fsanitize=address"]))
    else {
        println!("SKIPPED a_program_with_address_sanitizer_runs: no compiler with its library");
        return;
    };
    let ended = output(place.run().arg(&program));
    assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(5), String::new()));
    let told = |options: &str| {
        let ended = output(place.run().args(["printenv", "ASAN_OPTIONS"]).env("ASAN_OPTIONS", options));
        text(&ended.stdout)
    };
    assert_eq!(told("color=never"), "color=never:verify_asan_link_order=0\n");
    assert_eq!(told("verify_asan_link_order=1"), "verify_asan_link_order=1\n");
}

#[test]
fn what_cannot_run_is_told_with_its_remedy() {
    let place = Place::new();
    let _monitor = place.monitor();
    fs::write(place.file("data"), "no program").unwrap();
    place.script("orphan", "#!/nowhere/interpreter\n");
    let not_found = [vec!["no-such-program"], vec!["./no-such-program"], vec![""]];
    for arguments in not_found {
        let ended = output(place.run().arg("--").args(&arguments));
        assert_eq!(ended.status.code(), Some(127), "{arguments:?}");
        assert!(text(&ended.stderr).contains("not found"), "{}", text(&ended.stderr));
    }
    for (program, says) in [("./data", "chmod +x"), ("/tmp", "directory"), ("./orphan", "interpreter")] {
        let ended = output(place.run().arg(program));
        assert_eq!(ended.status.code(), Some(126), "{program}");
        assert!(text(&ended.stderr).contains(says), "{}", text(&ended.stderr));
    }
    for (name, value, says) in [
        ("MEGAPIPE_PROMOTE", "sometimes", "off, observe, auto or eager"),
        ("MEGAPIPE_SPIN", "-1", "microseconds"),
        ("MEGAPIPE_ARM", "never", "always"),
        ("MEGAPIPE_IO_URING", "sockets", "files"),
        ("MEGAPIPE_ONLY", "http", "6379"),
        ("MEGAPIPE_STATS", "yes", "0 for none"),
        ("MEGAPIPE_PRELOAD", "/nowhere.so", "not a file"),
        ("MEGAPIPE_PRELOAD", "/etc/passwd", "not Megapipe's library"),
        ("MEGAPIPE_PRELOAD", PROGRAM, "not Megapipe's library"),
    ] {
        let ended = output(place.run().arg("true").env(name, value));
        assert_eq!(ended.status.code(), Some(125), "{name}");
        let said = text(&ended.stderr);
        assert!(said.contains(name), "{said}");
        assert!(said.contains(says), "{said}");
    }
    for option in [["--promote", "sometimes"], ["--spin", "forever"], ["--only", "0"], ["--not", "70000"]] {
        let ended = output(place.run().args(option).arg("true"));
        assert_eq!(ended.status.code(), Some(2), "{option:?}");
    }
    let ended = output(place.run().args(["--only", "80", "--not", "80,81", "true"]));
    assert_eq!(ended.status.code(), Some(2));
    let ended = output(place.run().args(["--log", "/nowhere/log", "true"]));
    assert_eq!(ended.status.code(), Some(125));
    assert!(text(&ended.stderr).contains("--log"), "{}", text(&ended.stderr));
    let ended =
        output(place.run().arg("true").env("MEGAPIPE_STATS", "1").env("MEGAPIPE_LOG", "/nowhere/log"));
    assert_eq!(ended.status.code(), Some(125));
    for (log, status) in [("mp.log", 125), ("logs/mp", 125), ("debug", 0)] {
        let ended = output(place.run().arg("true").env("MEGAPIPE_STATS", "1").env("MEGAPIPE_LOG", log));
        assert_eq!(ended.status.code(), Some(status), "{log}: {}", text(&ended.stderr));
    }
}

#[test]
fn a_summary_that_the_log_does_not_take_goes_to_standard_error() {
    need_python!("a_summary_that_the_log_does_not_take_goes_to_standard_error");
    let place = Place::new();
    let _monitor = place.monitor();
    let mut command = place.run();
    let ended =
        output(command.args(["--stats", "--log", "/dev/full"]).arg(python().unwrap()).args(["-c", PAIR]));
    assert!(text(&ended.stderr).contains(": 2 connections"), "{}", text(&ended.stderr));
    assert!(ended.status.success());
}

#[test]
fn the_library_is_found_where_it_is_installed() {
    let place = Place::new();
    let _monitor = place.monitor();
    fs::create_dir(place.file("bin")).unwrap();
    let program = place.file("bin/megapipe");
    copy_program(PROGRAM.as_ref(), &program);
    let run = || {
        let mut command = clean(&program);
        command.args(["run", "printenv", "LD_PRELOAD"]).env("MEGAPIPE_MONITOR", place.file("socket"));
        output(&mut command)
    };
    let ended = run();
    assert_eq!(ended.status.code(), Some(125));
    let said = text(&ended.stderr);
    assert!(said.contains("make install") && said.contains("MEGAPIPE_PRELOAD"), "{said}");
    fs::create_dir_all(place.file("lib/megapipe")).unwrap();
    let installed = place.file("lib/megapipe/libmegapipe_preload.so");
    copy_program(library(), &installed);
    let found = text(&run().stdout);
    assert_eq!(fs::canonicalize(found.trim()).unwrap(), installed.canonicalize().unwrap());
    let mut elsewhere = Command::new(&program);
    elsewhere.args(["run", "printenv", "LD_PRELOAD"]).env("MEGAPIPE_PRELOAD", library());
    elsewhere.env("MEGAPIPE_MONITOR", place.file("socket"));
    assert_eq!(text(&output(&mut elsewhere).stdout).trim(), library().to_str().unwrap());
}
