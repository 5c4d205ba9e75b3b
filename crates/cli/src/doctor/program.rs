//! What stands in the way of a program that is to run under Megapipe.

use std::ffi::OsStr;
use std::path::Path;

use super::finding::Finding;
use super::listen;
use super::monitor::Reach;
use super::profile;
use super::system::System;
use crate::run::{Inspected, inspect};
use crate::shell::quoted;

const AREA: &str = "program";

/// The findings, and what to type next.
pub(super) fn findings(name: &OsStr, reach: &Reach, system: &System) -> (Vec<Finding>, Option<String>) {
    let Inspected { path, library, obstacle } = match inspect(name) {
        Ok(inspected) => inspected,
        Err(message) => {
            let finding = Finding::missing(AREA, "file", message).instead("`megapipe run` cannot start it");
            return (vec![finding], None);
        }
    };
    let mut findings = vec![Finding::ok(AREA, "file", shown(&path))];
    let library_finding = match (&library, &obstacle) {
        (Err(message), _) => {
            Finding::missing(AREA, "library", message).instead("`megapipe run` does not start it")
        }
        (Ok(_), Some((obstacle, remedy))) => {
            Finding::missing(AREA, "library", obstacle).instead("its connections stay on TCP").remedy(*remedy)
        }
        (Ok(library), None) => {
            Finding::ok(AREA, "library", format!("{} can be loaded into it", library.display()))
        }
    };
    findings.push(library_finding);
    findings.extend(liburing(&path));
    findings.extend(profile::of_file(&path, system));
    findings.extend(path.file_name().and_then(OsStr::to_str).and_then(listen::finding));
    let next = match () {
        () if library.is_err() || obstacle.is_some() => None,
        () => Some(reach.remedy().unwrap_or_else(|| {
            format!("megapipe run --stats -- {}   (and the program at the other side likewise)", quoted(name))
        })),
    };
    (findings, next)
}

/// A program that is linked with liburing most likely makes a ring that the library does not see being entered.
fn liburing(path: &Path) -> Option<Finding> {
    const NAME: &[u8] = b"liburing.so.";
    let bytes = std::fs::read(path).ok().filter(|bytes| bytes.starts_with(b"\x7fELF"))?;
    let names_it = bytes.windows(NAME.len()).any(|window| window == NAME);
    names_it.then(|| {
        Finding::note(AREA, "io_uring", "it is linked with liburing, which enters a ring past libc").instead(
            "with a ring its connections stay on TCP (`io_uring`), unless --io-uring files says that its rings are for files \
             alone, as those of MariaDB are: if one touches a socket then, bytes may be lost",
        )
    })
}

/// The file as it was named, and its target if it is a link: a program may go by the name that it is called by.
fn shown(path: &Path) -> String {
    let target = path.is_symlink().then(|| path.canonicalize().ok()).flatten();
    match target {
        Some(target) => format!("{}, a link to {}", path.display(), target.display()),
        None => path.display().to_string(),
    }
}
