//! The library that is loaded into programs: whether ld.so, and a program's own loader, can take it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Failure;
use super::elf::{Elf, Kind};
use crate::library::{self, FILE_NAME};

pub(super) struct Library {
    pub(super) path: PathBuf,
    pub(super) kind: Kind,
}

/// Finds it, and reads what it is for.
pub(super) fn find() -> Result<Library, Failure> {
    let path = library::find().map_err(|error| Failure::own(error.to_string()))?;
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
