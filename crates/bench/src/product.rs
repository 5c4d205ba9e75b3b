//! What is measured: the program `megapipe` and the library that it loads into others. This program is not installed,
//! and they lie beside it, where they were built.

use std::path::{Path, PathBuf};

use crate::run::Unusable;

/// The program, for its monitor.
///
/// # Errors
///
/// It is not there.
pub fn megapipe() -> Result<PathBuf, Unusable> {
    beside("megapipe")
}

/// The library; MEGAPIPE_PRELOAD names another.
///
/// # Errors
///
/// It is not there.
pub fn library() -> Result<PathBuf, Unusable> {
    match std::env::var_os("MEGAPIPE_PRELOAD").filter(|value| !value.is_empty()) {
        Some(chosen) => existing(chosen.into()),
        None => beside("libmegapipe_preload.so"),
    }
}

fn beside(name: &str) -> Result<PathBuf, Unusable> {
    let program = std::env::current_exe().unwrap_or_default();
    existing(program.parent().unwrap_or(Path::new("/")).join(name))
}

/// The path is absolute: programs change their directory.
fn existing(path: PathBuf) -> Result<PathBuf, Unusable> {
    let path = std::path::absolute(&path).unwrap_or(path);
    if path.is_file() {
        Ok(path)
    } else {
        Err(Unusable(format!("{} is not there; run `make build`", path.display())))
    }
}
