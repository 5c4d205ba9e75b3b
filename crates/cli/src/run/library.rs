//! The library that is loaded into programs: whether ld.so, and a program's own loader and libc, can take it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Failure;
use super::elf::{Elf, Kind};
use super::glibc::{self, Version};
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

/// Why a program does not get the library.
pub(super) enum Refused {
    /// Its glibc is older than the library needs.
    OldGlibc(Version),
    /// The message of its loader.
    Loader(String),
}

impl Library {
    /// Whether the loader that a program names takes the library into it, on a glibc that bears it. ld.so goes on without
    /// a library that it does not find, but ends a program whose libc lacks a version that the library needs; so it is
    /// asked before. The program is listed too: it may bring its own libc and loader.
    pub(super) fn try_loader(&self, loader: &Path, program: &Path) -> Result<(), Refused> {
        // If the loader cannot be run, the exec of the program reports that.
        let Some(listed) = list(loader, program, Some(&self.path)) else { return Ok(()) };
        if let Some(found) = listed.libc().and_then(Version::of).filter(|found| *found < glibc::NEEDED) {
            return Err(Refused::OldGlibc(found));
        }
        let Some(line) = listed.wrong() else { return Ok(()) };
        // What the program itself lacks is not the library's matter.
        let library = self.path.to_string_lossy();
        if line.contains(&*library) {
            return Err(Refused::Loader(line.to_owned()));
        }
        let alone = list(loader, &self.path, None);
        match alone.as_ref().and_then(Listing::wrong) {
            Some(line) => Err(Refused::Loader(line.to_owned())),
            None => Ok(()),
        }
    }
}

/// ld.so's list of a file's libraries (ldd(1)); none of their code runs.
struct Listing(String);

fn list(loader: &Path, file: &Path, preload: Option<&Path>) -> Option<Listing> {
    let mut command = Command::new(loader);
    // What the caller preloads is no matter here.
    command.arg("--list").arg(file).env_remove("LD_PRELOAD").envs(preload.map(|path| ("LD_PRELOAD", path)));
    let output = command.stdin(Stdio::null()).output().ok()?;
    let mut said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if !output.status.success() {
        said.push_str(&format!("\nerror: the loader ended with {}", output.status));
    }
    Some(Listing(said))
}

impl Listing {
    /// The libc.so.6 that it found.
    fn libc(&self) -> Option<&Path> {
        let found = self.0.lines().find_map(|line| line.trim().strip_prefix("libc.so.6 => "))?;
        Some(Path::new(found.rsplit_once(" (0x")?.0))
    }

    /// The first line that names something missing.
    fn wrong(&self) -> Option<&str> {
        let is_wrong = |line: &&str| {
            ["not found", "error", "cannot be preloaded"].iter().any(|word| line.contains(word))
        };
        self.0.lines().find(is_wrong).map(str::trim)
    }
}
