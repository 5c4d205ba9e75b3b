//! `make install` and `make uninstall`: what the one puts down, the other takes away.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn uninstall_leaves_what_was_there_before() {
    let scratch = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("install-{}", std::process::id()));
    let built = scratch.join("target/release");
    fs::create_dir_all(&built).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_megapipe"), built.join("megapipe")).unwrap();
    for library in ["libmegapipe.so", "libmegapipe_c.a", "libmegapipe_preload.so"] {
        fs::write(built.join(library), "stands for a library, which the script only copies").unwrap();
    }
    let stage = scratch.join("stage");
    let foreign = ["usr/local/bin", "usr/local/share/man/man3"];
    for directory in foreign {
        fs::create_dir_all(stage.join(directory)).unwrap();
    }
    let before = tree(&stage);
    // The second time nothing has to be made, and what the first made is still known.
    for verb in ["install", "install"] {
        run(&scratch, &stage, verb);
        assert!(stage.join("usr/local/bin/megapipe").exists());
        assert!(stage.join("usr/local/lib/pkgconfig/megapipe.pc").exists());
        assert!(stage.join("usr/local/lib/megapipe/libmegapipe_preload.so").exists());
        assert!(stage.join("usr/local/share/man/man1/megapipe-run.1").exists());
    }
    fs::write(stage.join("usr/local/include/other.h"), "").unwrap();
    run(&scratch, &stage, "uninstall");
    assert!(stage.join("usr/local/include/other.h").exists());
    fs::remove_file(stage.join("usr/local/include/other.h")).unwrap();
    fs::remove_dir(stage.join("usr/local/include")).unwrap();
    assert_eq!(tree(&stage), before);
    fs::remove_dir_all(&scratch).unwrap();
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
