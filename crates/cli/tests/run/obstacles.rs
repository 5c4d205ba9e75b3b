//! Programs that the library cannot help: they run all the same, and one line says why they stay on TCP.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use promote::client::POLICY_FILE;
use testkit::process::copy_program;

use crate::support::{Place, output, text};

const HELLO: &str = "#include <stdio.h>\n#include <stdlib.h>\nint main(void) {\n\
                     const char *list = getenv(\"LD_PRELOAD\"); puts(list ? list : \"none\"); return 3; }\n";

/// Runs it; what it said, and the one line that was said of it.
fn warned(command: &mut Command) -> (String, String) {
    let ended = output(command);
    let said = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(3), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("stay on TCP"), "{said}");
    (text(&ended.stdout), said)
}

#[test]
fn a_dynamic_program_is_no_matter() {
    let place = Place::new();
    let _monitor = place.monitor();
    let program = place.compile("hello", HELLO, &[]).unwrap();
    let ended = output(place.run().arg(&program));
    assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(3), String::new()));
    assert!(text(&ended.stdout).contains("libmegapipe_preload.so"));
}

#[test]
fn a_static_program_runs_with_a_warning() {
    let place = Place::new();
    let _monitor = place.monitor();
    for (name, flags) in [("static", &["-static"][..]), ("static-pie", &["-static-pie", "-fPIE"])] {
        let Some(program) = place.compile(name, HELLO, flags) else {
            println!("SKIPPED a_static_program_runs_with_a_warning: no static libc for {name}");
            continue;
        };
        let (_, said) = warned(place.run().arg(&program));
        assert!(said.contains("statically"), "{said}");
        // Through a link, and as the interpreter of a script.
        let link = place.file(&format!("{name}-link"));
        std::os::unix::fs::symlink(&program, &link).unwrap();
        warned(place.run().arg(&link));
        let script = place.script(&format!("{name}-script"), &format!("#!{}\n", program.display()));
        warned(place.run().arg(&script));
        let script = place.script(&format!("{name}-env"), &format!("#!/usr/bin/env -S {name}\n"));
        let path = std::env::join_paths([place.path(), Path::new("/usr/bin")]).unwrap();
        warned(place.run().arg(&script).env("PATH", path));
    }
}

#[test]
fn a_program_of_gos_linker_gets_no_library() {
    let place = Place::new();
    let _monitor = place.monitor();
    let source =
        format!("{HELLO}\n__asm__(\".pushsection .go.buildinfo,\\\"a\\\"\\n.byte 0\\n.popsection\\n\");\n");
    let program = place.compile("go", &source, &[]).unwrap();
    let (list, said) = warned(place.run().arg(&program));
    assert!(said.contains("Go"), "{said}");
    assert_eq!(list, "none\n");
}

#[test]
fn a_program_of_another_libc_or_processor_gets_no_library() {
    let place = Place::new();
    let _monitor = place.monitor();
    // glibc's loader, under the name of another libc's.
    let loader = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
    let Some(loader) = loader.iter().map(Path::new).find(|path| path.exists()) else {
        println!("SKIPPED a_program_of_another_libc_or_processor_gets_no_library: no loader of glibc's");
        return;
    };
    let other = place.file("ld-musl-x86_64.so.1");
    std::os::unix::fs::symlink(loader, &other).unwrap();
    let flag = format!("-Wl,--dynamic-linker={}", other.display());
    let program = place.compile("musl", HELLO, &[&flag]).unwrap();
    let (list, said) = warned(place.run().arg(&program));
    assert!(said.contains("glibc") && said.contains("ld-musl"), "{said}");
    assert_eq!(list, "none\n");

    let program = place.compile("hello", HELLO, &[]).unwrap();
    let mut bytes = fs::read(&program).unwrap();
    // EM_RISCV: no machine that is tested on.
    bytes[18..20].copy_from_slice(&243u16.to_ne_bytes());
    fs::write(&program, bytes).unwrap();
    let ended = output(place.run().arg(&program));
    let said = text(&ended.stderr);
    assert!(said.contains("another kind of processor"), "{said}");
}

#[test]
fn a_library_that_the_loader_refuses_is_left_out() {
    let place = Place::new();
    let _monitor = place.monitor();
    place.compile("libgone.so", "int gone(void) { return 1; }\n", &["-shared", "-fPIC"]).unwrap();
    let directory = format!("-L{}", place.path().display());
    // Ours, by its section.
    let source = "int gone(void); int here(void) { return gone(); }\n\
                  __attribute__((section(\".megapipe\"), used)) static const char mark = 1;\n";
    let library = place.compile("broken.so", source, &["-shared", "-fPIC", &directory, "-lgone"]).unwrap();
    fs::remove_file(place.file("libgone.so")).unwrap();
    let program = place.compile("hello", HELLO, &[]).unwrap();
    let (list, said) = warned(place.run().arg(&program).env("MEGAPIPE_PRELOAD", &library));
    assert!(said.contains("libgone.so"), "{said}");
    assert_eq!(list, "none\n");
}

#[test]
fn a_program_of_an_older_glibc_gets_no_library() {
    let place = Place::new();
    let _monitor = place.monitor();
    let Some((libc, at, length)) = this_glibc() else {
        println!("SKIPPED a_program_of_an_older_glibc_gets_no_library: this libc.so.6 names no release");
        return;
    };
    let older = place.file("older");
    fs::create_dir(&older).unwrap();
    let flag = format!("-Wl,-rpath,{}", older.display());
    let program = place.compile("hello", HELLO, &[&flag]).unwrap();
    let mut bytes = fs::read(libc).unwrap();
    // The release before, one that is later as a text, and the oldest that is borne.
    for (release, is_old) in [("2.33", true), ("2.9.", true), ("2.34", false)] {
        assert_eq!(length, release.len());
        bytes[at..at + length].copy_from_slice(release.as_bytes());
        fs::write(older.join("libc.so.6"), &bytes).unwrap();
        if is_old {
            let (list, said) = warned(place.run().arg(&program));
            let found = release.trim_end_matches('.');
            let wanted =
                format!("glibc too old: {} runs on {found}, and the library needs 2.34", program.display());
            assert!(said.contains(&wanted), "{said}");
            assert_eq!(list, "none\n");
        } else {
            let ended = output(place.run().arg(&program));
            assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(3), String::new()));
        }
    }
}

/// The libc.so.6 of this process, and where its release stands in it.
fn this_glibc() -> Option<(PathBuf, usize, usize)> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .find(|path| path.ends_with("/libc.so.6"))?;
    let bytes = fs::read(path).ok()?;
    let mark = b" release version ";
    let at = bytes.windows(mark.len()).position(|window| window == mark)? + mark.len();
    let length = bytes[at..].windows(2).position(|window| window == b".\n")?;
    Some((path.into(), at, length))
}

#[test]
fn what_the_program_itself_lacks_is_not_said_of_the_library() {
    let place = Place::new();
    let _monitor = place.monitor();
    place.compile("libgone.so", "int gone(void) { return 1; }\n", &["-shared", "-fPIC"]).unwrap();
    let directory = format!("-L{}", place.path().display());
    let source = "int gone(void); int main(void) { return gone(); }\n";
    let program = place.compile("lacking", source, &[&directory, "-lgone"]).unwrap();
    fs::remove_file(place.file("libgone.so")).unwrap();
    let ended = output(place.run().arg(&program));
    let said = text(&ended.stderr);
    assert_eq!((ended.status.code(), said.contains("megapipe run")), (Some(127), false), "{said}");
}

#[test]
fn a_privileged_program_runs_with_a_warning() {
    let place = Place::new();
    if !rustix::process::getuid().is_root() {
        println!(
            "SKIPPED a_privileged_program_runs_with_a_warning: only root makes programs that another may run as root"
        );
        return;
    }
    let program = place.compile("hello", HELLO, &[]).unwrap();
    // Another user's file is privileged for root too.
    std::os::unix::fs::chown(&program, Some(65534), Some(65534)).unwrap();
    for (mode, name) in [(0o4755, "setuid"), (0o2755, "setgid")] {
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
        let (_, said) = warned(place.run().arg(&program));
        assert!(said.contains(name), "{said}");
    }
    let ended = Command::new("setcap").arg("cap_net_bind_service=ep").arg(&program).status();
    if !ended.is_ok_and(|status| status.success()) {
        println!(
            "SKIPPED a_privileged_program_runs_with_a_warning: no setcap, or a file system without capabilities"
        );
        return;
    }
    let copy = place.file("megapipe");
    copy_program(crate::support::PROGRAM.as_ref(), &copy);
    let library = place.file("libmegapipe_preload.so");
    fs::copy(crate::support::library(), &library).unwrap();
    let mut command = Command::new(&copy);
    command.arg("run").arg(&program).current_dir("/").env_remove("LD_PRELOAD").uid(65534).gid(65534);
    let (_, said) = warned(&mut command);
    assert!(said.contains("file capabilities"), "{said}");
}

#[test]
fn without_a_monitor_the_program_runs_with_a_warning() {
    if Path::new(POLICY_FILE).exists() {
        println!(
            "SKIPPED without_a_monitor_the_program_runs_with_a_warning: with {POLICY_FILE} one is started"
        );
        return;
    }
    let place = Place::new();
    let program = place.compile("hello", HELLO, &[]).unwrap();
    let (list, said) = warned(place.run().arg(&program));
    assert!(list.contains("libmegapipe_preload.so"));
    assert!(said.contains("monitor"), "{said}");
    // Nobody is asked for what promotes nothing.
    let ended = output(place.run().args(["--promote", "observe"]).arg(&program));
    assert_eq!(text(&ended.stderr), "");
}
