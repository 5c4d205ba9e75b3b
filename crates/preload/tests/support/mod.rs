//! What the tests of the library share.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the library in this test's profile: cargo builds none for the tests of a package
/// whose library they cannot link.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().expect("the test knows its path");
    let profile_directory = test.parent().and_then(Path::parent).expect("target/PROFILE/deps");
    let profile = match profile_directory.file_name().and_then(OsStr::to_str) {
        Some("debug") | None => "dev",
        Some(other) => other,
    };
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--locked", "--package", "megapipe-preload", "--profile", profile])
        .arg("--target-dir")
        .arg(profile_directory.parent().expect("target"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let library = profile_directory.join("libmegapipe_preload.so");
    assert!(library.exists(), "cargo built no {}", library.display());
    library
}
