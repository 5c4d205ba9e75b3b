//! What stands in the way of a program that is to run under Megapipe.

use std::ffi::OsStr;

use super::finding::Finding;
use super::monitor::Reach;
use super::profile;
use super::system::System;
use crate::run::{Inspected, inspect};

const AREA: &str = "program";

/// The findings, and what to type next.
pub(super) fn findings(name: &OsStr, reach: &Reach, system: &System) -> (Vec<Finding>, Option<String>) {
    let Inspected { path, library, obstacle } = match inspect(name) {
        Ok(inspected) => inspected,
        Err(message) => {
            let finding = Finding::missing(AREA, "file", message).instead("there is no program to check");
            return (vec![finding], None);
        }
    };
    let mut findings = vec![Finding::ok(AREA, "file", path.display().to_string())];
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
    findings.extend(profile::of_file(&path, system));
    let name = name.display();
    let next = match () {
        () if library.is_err() || obstacle.is_some() => None,
        () if !reach.shares() => Some(reach.setup()),
        () => Some(format!("megapipe run --stats -- {name}   (and the program at the other side likewise)")),
    };
    (findings, next)
}
