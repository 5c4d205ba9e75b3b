//! The program that is to run: its file, and what stands in the way of loading a library into it.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use super::Failure;
use super::elf::Elf;
use super::glibc;
use super::library::{Library, Refused};
use crate::shell::quoted;

pub(super) struct Program {
    /// As the caller wrote it.
    name: OsString,
    pub(super) path: PathBuf,
}

/// What keeps the library out of a program, or makes it useless there.
pub(super) struct Obstacle {
    path: PathBuf,
    cause: Cause,
}

enum Cause {
    Static,
    Go,
    Kind,
    Libc(PathBuf),
    Privileged(&'static str),
    Refused(Refused),
}

/// Scripts whose interpreters are scripts: as many as the kernel follows (execve(2)).
const MOST_INTERPRETERS: usize = 5;
/// Bytes of a script's first line that the kernel reads.
const FIRST_LINE: usize = 255;
/// What PATH is where it is not set (execvp(3)).
const USUAL_PATH: &str = "/bin:/usr/bin";

impl Program {
    /// As execvp(3) finds it: a name with a slash is a path, another is looked for in PATH.
    pub(super) fn find(name: &OsStr) -> Result<Program, Failure> {
        let missing = || Program { name: name.to_owned(), path: name.into() }.not_found();
        if name.is_empty() {
            return Err(missing());
        }
        if name.as_bytes().contains(&b'/') {
            let program = Program { name: name.to_owned(), path: name.into() };
            return match std::fs::metadata(&program.path) {
                Ok(_) => program.checked(),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    let message = format!(
                        "{} cannot be executed: {error}; run it as a user who may enter every directory of this path",
                        program.path.display()
                    );
                    Err(Failure { status: 126, message })
                }
                Err(_) => Err(missing()),
            };
        }
        let mut forbidden = None;
        for path in in_path(name) {
            if is_executable(&path) {
                return Program { name: name.to_owned(), path }.checked();
            }
            if path.is_file() {
                forbidden.get_or_insert(path);
            }
        }
        match forbidden {
            Some(path) => Program { name: name.to_owned(), path }.checked(),
            None => Err(missing()),
        }
    }

    fn checked(self) -> Result<Program, Failure> {
        if self.path.is_dir() {
            let message = format!(
                "{} cannot be executed: it is a directory; name a program in it",
                self.path.display()
            );
            return Err(Failure { status: 126, message });
        }
        if !is_executable(&self.path) {
            return Err(self.not_executed(io::ErrorKind::PermissionDenied.into()));
        }
        match self.missing() {
            Some(_) => Err(self.not_executed(rustix::io::Errno::NOENT.into())),
            None => Ok(self),
        }
    }

    pub(super) fn not_found(&self) -> Failure {
        let name = self.name.display();
        let remedy = if self.name.as_bytes().contains(&b'/') {
            "there is no such file; check the path".into()
        } else {
            let path = std::env::var_os("PATH").unwrap_or(USUAL_PATH.into());
            format!("it is in no directory of PATH ({}); give its path, or set PATH", path.display())
        };
        Failure { status: 127, message: format!("'{name}' is not found: {remedy}") }
    }

    /// The error of execve(2).
    pub(super) fn not_executed(&self, error: io::Error) -> Failure {
        let path = self.path.display();
        let remedy = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                let path = quoted(self.path.as_os_str());
                format!("make it executable with chmod +x {path}, unless its file system forbids that")
            }
            io::ErrorKind::NotFound => {
                let missing = self.missing().map_or(String::new(), |path| format!(" {}", path.display()));
                format!(
                    "its interpreter or loader{missing} is missing; install that, or correct the first line of the script"
                )
            }
            io::ErrorKind::ArgumentListTooLong => "give it fewer arguments, or a smaller environment".into(),
            _ => "see man 2 execve".into(),
        };
        Failure { status: 126, message: format!("{path} cannot be executed: {error}; {remedy}") }
    }

    /// An obstacle to the library, as far as the files show one; a file that cannot be
    /// read is not judged.
    pub(super) fn obstacle(&self, library: &Library) -> Option<Obstacle> {
        let path = self.binary()?;
        let elf = Elf::read(&path).ok()??;
        let cause = if elf.kind != library.kind {
            Cause::Kind
        } else if elf.is_go {
            Cause::Go
        } else {
            match elf.loader {
                None => Cause::Static,
                Some(loader) if !is_glibc(&loader) => Cause::Libc(loader),
                Some(loader) => match privilege(&path) {
                    Some(bits) => Cause::Privileged(bits),
                    None => Cause::Refused(library.try_loader(&loader, &path).err()?),
                },
            }
        };
        Some(Obstacle { path, cause })
    }

    /// The file that the kernel will load: the program, or what runs it if it is a script.
    fn binary(&self) -> Option<PathBuf> {
        let mut path = self.path.clone();
        for _ in 0..MOST_INTERPRETERS {
            path = match Head::read(&path)? {
                Head::Elf => return Some(path),
                Head::Script(line) => interpreter(&line)?,
                // execvp(3) gives it to the shell.
                Head::Other => "/bin/sh".into(),
            };
        }
        None
    }

    /// The interpreter or loader for want of which execve(2) fails with ENOENT.
    fn missing(&self) -> Option<PathBuf> {
        let mut path = self.path.clone();
        for _ in 0..MOST_INTERPRETERS {
            let next = match Head::read(&path)? {
                Head::Elf => Elf::read(&path).ok()??.loader?,
                Head::Script(line) => words(&line).next().map(OsStr::from_bytes)?.into(),
                Head::Other => return None,
            };
            if matches!(next.try_exists(), Ok(false)) {
                return Some(next);
            }
            path = next;
        }
        None
    }
}

/// What the first bytes of a program say.
enum Head {
    Elf,
    /// The first line after `#!`.
    Script(Vec<u8>),
    Other,
}

impl Head {
    /// `None`: the file cannot be read.
    fn read(path: &Path) -> Option<Head> {
        let mut line = Vec::with_capacity(FIRST_LINE);
        File::open(path).ok()?.take(FIRST_LINE as u64).read_to_end(&mut line).ok()?;
        if line.starts_with(b"\x7fELF") {
            return Some(Head::Elf);
        }
        let rest = line.strip_prefix(b"#!").and_then(|rest| rest.split(|byte| *byte == b'\n').next());
        Some(rest.map_or(Head::Other, |line| Head::Script(line.to_owned())))
    }
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty())
}

/// What the first line of a script names; for `env NAME` the program of that name.
fn interpreter(line: &[u8]) -> Option<PathBuf> {
    let mut words = words(line);
    let path = PathBuf::from(OsStr::from_bytes(words.next()?));
    if path.file_name() != Some(OsStr::new("env")) {
        return Some(path);
    }
    let is_name = |word: &&[u8]| !word.starts_with(b"-") && !word.contains(&b'=');
    match words.find(is_name) {
        Some(name) => Some(Program::find(OsStr::from_bytes(name)).ok()?.path),
        None => Some(path),
    }
}

fn in_path(name: &OsStr) -> impl Iterator<Item = PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or(USUAL_PATH.into());
    let directories: Vec<PathBuf> = std::env::split_paths(&path).collect();
    // An empty entry is the directory of now.
    directories.into_iter().map(move |directory| Path::new(".").join(directory).join(name))
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok()
}

/// By its name, which is part of the ABI: ld-linux-x86-64.so.2, ld-linux-aarch64.so.1, ld64.so.2.
fn is_glibc(loader: &Path) -> bool {
    let name = loader.file_name().unwrap_or_default().as_bytes();
    [&b"ld-linux"[..], b"ld64.so", b"ld.so"].iter().any(|start| name.starts_with(start))
}

/// Whether the kernel will run it with more rights than its caller has: then ld.so loads nothing by LD_PRELOAD
/// (secure-execution mode in ld.so(8)).
fn privilege(path: &Path) -> Option<&'static str> {
    let metadata = path.metadata().ok()?;
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    if metadata.mode() & libc::S_ISUID != 0 && metadata.uid() != uid.as_raw() {
        return Some("setuid");
    }
    let group_runs = libc::S_ISGID | libc::S_IXGRP;
    if metadata.mode() & group_runs == group_runs && metadata.gid() != gid.as_raw() {
        return Some("setgid");
    }
    let mut room = [0u8; 64];
    let has_capabilities =
        rustix::fs::getxattr(path, "security.capability", &mut room).is_ok_and(|len| len > 0);
    // capabilities(7): root gains nothing by them.
    (has_capabilities && !uid.is_root()).then_some("privileged by file capabilities")
}

impl Obstacle {
    /// Whether the library may stay in the environment, for the programs that this one starts.
    pub(super) fn bears_library(&self) -> bool {
        matches!(self.cause, Cause::Static | Cause::Privileged(_))
    }

    /// What would bring the library into the program.
    pub(super) fn remedy(&self) -> &'static str {
        match &self.cause {
            Cause::Static => "link it dynamically with glibc",
            Cause::Go => "none for Go; a proxy in front of it that uses glibc can use shared memory",
            Cause::Kind => "use its build for this machine's 64-bit processor",
            Cause::Libc(_) => "use its build for glibc",
            Cause::Privileged(_) => {
                "start it directly as the user that it runs as, without that bit or those capabilities"
            }
            Cause::Refused(Refused::OldGlibc(_)) => "run it on a system with a newer glibc",
            Cause::Refused(Refused::Loader(_)) => {
                "run ldd on the program and on the library, and install what is missing"
            }
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.cause {
            Cause::Static => {
                write!(formatter, "{path} is linked statically, so no library can be loaded into it")
            }
            Cause::Go => write!(formatter, "{path} is a Go program, which makes system calls without libc"),
            Cause::Kind => write!(formatter, "{path} is for another kind of processor than the library"),
            Cause::Libc(loader) => {
                write!(
                    formatter,
                    "{path} uses another libc than glibc ({}), which the library needs",
                    loader.display()
                )
            }
            Cause::Privileged(how) => {
                write!(formatter, "{path} is {how}, so the dynamic loader ignores LD_PRELOAD")
            }
            Cause::Refused(Refused::OldGlibc(found)) => {
                write!(
                    formatter,
                    "glibc too old: {path} runs on {found}, and the library needs {}",
                    glibc::NEEDED
                )
            }
            Cause::Refused(Refused::Loader(said)) => {
                write!(formatter, "the loader of {path} cannot load the library ({said})")
            }
        }
    }
}
