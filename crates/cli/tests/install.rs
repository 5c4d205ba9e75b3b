//! `make install` and `make uninstall`: what the one puts down, the other takes away.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::net::Scratch;

#[test]
fn uninstall_leaves_what_was_there_before() {
    let scratch = Build::new();
    let scratch = &scratch.0;
    let stage = scratch.join("stage");
    let foreign = ["usr/local/bin", "usr/local/share/man/man3"];
    for directory in foreign {
        fs::create_dir_all(stage.join(directory)).unwrap();
    }
    let before = tree(&stage);
    // The second time nothing has to be made, and what the first made is still known.
    for verb in ["install", "install"] {
        run(scratch, &stage, verb);
        for file in [
            "bin/megapipe",
            "include/megapipe.h",
            "include/mtcp_api.h",
            "lib/libmegapipe.so.0",
            "lib/libmegapipe_mtcp.so.0",
            "lib/megapipe/libmegapipe_preload.so",
            "lib/pkgconfig/megapipe.pc",
            "lib/pkgconfig/megapipe-mtcp.pc",
            "share/man/man1/megapipe-run.1",
            "share/man/man7/megapipe_mtcp.7",
        ] {
            assert!(stage.join("usr/local").join(file).exists(), "{file}");
        }
    }
    fs::write(stage.join("usr/local/include/other.h"), "").unwrap();
    run(scratch, &stage, "uninstall");
    assert!(stage.join("usr/local/include/other.h").exists());
    fs::remove_file(stage.join("usr/local/include/other.h")).unwrap();
    fs::remove_dir(stage.join("usr/local/include")).unwrap();
    assert_eq!(tree(&stage), before);
}

#[test]
fn install_makes_the_directory_that_destdir_names() {
    let scratch = Build::new();
    let stage = scratch.0.join("not/there/yet");
    run(&scratch.0, &stage, "install");
    assert!(stage.join("usr/local/bin/megapipe").exists());
    run(&scratch.0, &stage, "uninstall");
    assert_eq!(tree(&stage), Vec::<PathBuf>::new());
}

#[test]
fn install_replaces_files_by_rename() {
    let scratch = Build::new();
    let stage = scratch.0.join("stage");
    run(&scratch.0, &stage, "install");
    let installed = stage.join("usr/local/lib/megapipe/libmegapipe_preload.so");
    let before = fs::read(&installed).unwrap();
    let held = fs::File::open(&installed).unwrap();
    fs::write(scratch.0.join("target/release/libmegapipe_preload.so"), "another build").unwrap();
    run(&scratch.0, &stage, "install");
    assert_eq!(fs::read(&installed).unwrap(), b"another build");
    assert_eq!(
        std::io::read_to_string(held).unwrap().into_bytes(),
        before,
        "what programs have mapped stays"
    );
    assert!(tree(&stage).iter().all(|path| path.extension() != Some("new".as_ref())));
    run(&scratch.0, &stage, "uninstall");
}

/// A condition of the service that fails would bring the socket to `trigger-limit-hit` with the
/// first client; one of the socket only means that there is none.
#[test]
fn units_start_what_was_installed_and_never_fail_a_client() {
    let scratch = Build::new();
    let stage = scratch.0.join("stage");
    run(&scratch.0, &stage, "install");
    let unit = |kind: &str| {
        let path = stage.join(format!("usr/local/lib/systemd/system/megapipe-monitor.{kind}"));
        fs::read_to_string(path).unwrap()
    };
    let (service, socket) = (unit("service"), unit("socket"));
    let has = |unit: &str, start: &str| unit.lines().any(|line| line.starts_with(start));
    assert!(has(&service, "ExecStart=/usr/local/bin/megapipe monitor "), "{service}");
    assert!(!has(&service, "Condition") && !has(&service, "Assert"), "{service}");
    assert!(!service.contains("--config"), "the usual policy may be missing: {service}");
    assert!(has(&socket, "ConditionPathExists=/etc/megapipe/monitor.toml"), "{socket}");
    assert!(has(&socket, "ExecStartPre=/usr/local/bin/megapipe monitor --check-deserted "), "{socket}");
    run(&scratch.0, &stage, "uninstall");
}

/// A directory with what `make build` would have built.
struct Build(Scratch);

impl Build {
    fn new() -> Build {
        let path = Scratch::new();
        let built = path.join("target/release");
        fs::create_dir_all(&built).unwrap();
        fs::copy(env!("CARGO_BIN_EXE_megapipe"), built.join("megapipe")).unwrap();
        for library in [
            "libmegapipe.so",
            "libmegapipe_c.a",
            "libmegapipe_preload.so",
            "libmegapipe_mtcp.so",
            "libmegapipe_mtcp.a",
        ] {
            fs::write(built.join(library), "stands for a library, which the script only copies").unwrap();
        }
        Build(path)
    }
}

fn run(scratch: &Path, stage: &Path, verb: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install.sh");
    let output = Command::new(script)
        .arg(verb)
        .env("CARGO_TARGET_DIR", scratch.join("target"))
        .env("DESTDIR", stage)
        .env("PREFIX", "/usr/local")
        .env_remove("LIBDIR")
        .output()
        .expect("the script runs");
    assert!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Everything below the directory, in order.
fn tree(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("readable") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            found.extend(tree(&path));
        }
        found.push(path);
    }
    found.sort();
    found
}
