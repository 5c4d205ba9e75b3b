//! Where the library lies that is loaded into programs.

use std::path::{Path, PathBuf};

pub(crate) const FILE_NAME: &str = "libmegapipe_preload.so";
/// LIBDIR of `make product`, where a distribution has its own place for libraries.
const LIBDIR: Option<&str> = option_env!("MEGAPIPE_LIBDIR");

/// Why there is no library.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotFound {
    #[error("MEGAPIPE_PRELOAD names {}, which is not a file; set it to the path of {FILE_NAME}, or unset it", .0.display())]
    NoFile(PathBuf),
    #[error(
        "the library {FILE_NAME} is in none of {}; run `make install`, or set MEGAPIPE_PRELOAD to its path",
        .0.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    Nowhere(Vec<PathBuf>),
}

/// Looks where MEGAPIPE_PRELOAD says, else beside this program and where `make install` puts it. The path is absolute:
/// programs change their directory.
pub(crate) fn find() -> Result<PathBuf, NotFound> {
    if let Some(chosen) = std::env::var_os("MEGAPIPE_PRELOAD").filter(|value| !value.is_empty()) {
        let path = std::path::absolute(&chosen).unwrap_or_else(|_| chosen.into());
        return if path.is_file() { Ok(path) } else { Err(NotFound::NoFile(path)) };
    }
    let places = places();
    let found = places.iter().map(|place| place.join(FILE_NAME)).find(|path| path.is_file());
    found.ok_or(NotFound::Nowhere(places))
}

fn places() -> Vec<PathBuf> {
    let program = std::env::current_exe().unwrap_or_default();
    let beside = program.parent().unwrap_or(Path::new("/"));
    let mut places = vec![beside.to_owned()];
    if let Some(prefix) = beside.parent() {
        places.push(prefix.join("lib/megapipe"));
    }
    // A build that lies anywhere has none, and a relative one would be the caller's directory.
    places.extend(
        LIBDIR.filter(|libdir| libdir.starts_with('/')).map(|libdir| Path::new(libdir).join("megapipe")),
    );
    places.dedup();
    places
}
