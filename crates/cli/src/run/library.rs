//! The library that is loaded into programs: where it lies, and whether a program's loader takes it.
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Failure;
use super::elf::{Elf, Kind};

pub(super) const FILE_NAME: &str = "libmegapipe_preload.so";
/// LIBDIR of `make build`, where a distribution has its own place for libraries.
const LIBDIR: Option<&str> = option_env!("MEGAPIPE_LIBDIR");

pub(super) struct Library {
    /// Absolute: programs change their directory.
    pub(super) path: PathBuf,
    pub(super) kind: Kind,
}

/// Looks where MEGAPIPE_PRELOAD says, else beside this program and where `make install` puts it.
pub(super) fn find() -> Result<Library, Failure> {
    let path = match std::env::var_os("MEGAPIPE_PRELOAD").filter(|value| !value.is_empty()) {
        Some(chosen) => {
            let path = std::path::absolute(&chosen).unwrap_or_else(|_| chosen.into());
            if !path.is_file() {
                let path = path.display();
                let message = format!(
                    "MEGAPIPE_PRELOAD names {path}, which is no file; set it to {FILE_NAME}, or unset it"
                );
                return Err(Failure::own(message));
            }
            path
        }
        None => {
            let places = places();
            let found = places.iter().map(|place| place.join(FILE_NAME)).find(|path| path.is_file());
            found.ok_or_else(|| {
                let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
                Failure::own(format!(
                    "{FILE_NAME} is in none of {}; run `make install`, or set MEGAPIPE_PRELOAD to its path",
                    places.join(", ")
                ))
            })?
        }
    };
    if path.as_os_str().as_encoded_bytes().iter().any(|byte| matches!(byte, b' ' | b':' | b'$')) {
        let path = path.display();
        let message = format!(
            "{path} cannot be preloaded: ld.so takes no path with a space, a colon or a dollar sign; \
             put {FILE_NAME} elsewhere and set MEGAPIPE_PRELOAD to its path"
        );
        return Err(Failure::own(message));
    }
    match Elf::read(&path) {
        Ok(Some(Elf { kind, is_megapipe: true, .. })) => Ok(Library { path, kind }),
        Ok(_) => {
            let path = path.display();
            Err(Failure::own(format!(
                "{path} is not Megapipe's library {FILE_NAME}; install Megapipe again, or unset MEGAPIPE_PRELOAD"
            )))
        }
        Err(cause) => {
            let path = path.display();
            Err(Failure::own(format!("{path} cannot be read: {cause}; let everybody read it (chmod a+r)")))
        }
    }
}

fn places() -> Vec<PathBuf> {
    let program = std::env::current_exe().unwrap_or_default();
    let beside = program.parent().unwrap_or(Path::new("/"));
    let mut places = vec![beside.to_owned()];
    if let Some(prefix) = beside.parent() {
        places.push(prefix.join("lib/megapipe"));
    }
    places.extend(LIBDIR.map(|libdir| Path::new(libdir).join("megapipe")));
    places.dedup();
    places
}

impl Library {
    /// Whether the loader that a program names takes the library with everything it needs: ld.so goes on without one
    /// that it cannot load, so it is asked before. The error is what it says.
    pub(super) fn try_loader(&self, loader: &Path) -> Result<(), String> {
        // What would be loaded into the loader's own process is no matter here.
        let output = Command::new(loader)
            .arg("--list")
            .arg(&self.path)
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::null())
            .output();
        // A loader that cannot be run leaves that to whoever executes the program.
        let Ok(output) = output else { return Ok(()) };
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let wrong = said.lines().find(|line| line.contains("not found") || line.contains("error"));
        match wrong {
            None if output.status.success() => Ok(()),
            None => Err(format!("it ended with {}", output.status)),
            Some(line) => Err(line.trim().to_owned()),
        }
    }
}
