//! FreeBSD's scripts, where they are: `MEGAPIPE_TCP_TESTSUITE` names a copy of
//! github.com/freebsd-net/tcp-testsuite; the default is a folder beside the repository.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use scripts::{Cause, alterations, parse, run};

/// Scripts in a folder, at most four levels deep.
fn find(folder: &Path, depth: u32, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        if path.is_dir() && depth > 0 {
            find(&path, depth - 1, found);
        } else if path.extension().is_some_and(|extension| extension == "pkt") {
            found.push(path);
        }
    }
}

/// Prints each script's outcome, and counts. What must not happen is that one brings down the host.
#[test]
fn freebsds_scripts() {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpora/tcp-testsuite");
    let folder = std::env::var_os("MEGAPIPE_TCP_TESTSUITE").map_or(default, PathBuf::from);
    let mut paths = Vec::new();
    find(&folder, 4, &mut paths);
    paths.sort();
    if paths.is_empty() {
        println!("SKIPPED freebsds_scripts: no scripts in {}", folder.display());
        return;
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut altered, mut unnoticed) = (0, 0);
    for (number, path) in paths.iter().enumerate() {
        let name = path.strip_prefix(&folder).unwrap_or(path).display().to_string();
        let Ok(text) = std::fs::read_to_string(path) else { continue };
        let script = parse(&name, &text).map(|script| script.for_freebsd());
        let outcome = match script.and_then(|script| run(&script).map(|()| script)) {
            Ok(script) => {
                let mut ways = alterations(&script);
                // Windows are compared loosely here.
                ways.retain(|(change, _)| !change.ends_with("window"));
                if !ways.is_empty() {
                    let (change, other) = ways.swap_remove(number % ways.len());
                    altered += 1;
                    if run(&other).is_ok() {
                        unnoticed += 1;
                        println!("UNNOTICED {name}: {change}");
                    }
                }
                println!("passed {name}");
                "passed"
            }
            Err(error) => {
                let kind = if matches!(error.cause, Cause::Differs { .. }) { "failed" } else { "left out" };
                println!("{kind} {error}");
                kind
            }
        };
        *counts.entry(outcome).or_default() += 1;
    }
    println!("{counts:?}; control: {unnoticed} of {altered} altered scripts passed");
}
