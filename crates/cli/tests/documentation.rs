//! `megapipe generate-docs`: what `make install` puts beside the binary.

use std::fs;
use std::process::Command;

#[test]
fn man_pages_and_completions_are_written() {
    let directory = std::env::temp_dir().join(format!("megapipe-docs-{}", std::process::id()));
    let status = Command::new(env!("CARGO_BIN_EXE_megapipe"))
        .arg("generate-docs")
        .arg(&directory)
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
    for path in ["completions/megapipe.bash", "completions/_megapipe", "completions/megapipe.fish"] {
        assert!(read(path).contains("doctor"), "{path}");
        assert!(read(path).contains("interval"), "{path}");
    }
    assert!(!read("man/megapipe.1").contains("generate"), "a hidden verb has no page");
    fs::remove_dir_all(directory).expect("removal");
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
