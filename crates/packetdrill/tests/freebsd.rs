//! FreeBSD's scripts, where they are: `MEGAPIPE_TCP_TESTSUITE` names a copy of
//! github.com/freebsd-net/tcp-testsuite; the default is a folder beside the repository.

use std::path::{Path, PathBuf};

use packetdrill::{Cause, Dialect, Script, alterations, parse, run};

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

/// Modes that no standard has: what needs them does not apply (insecure RST and SYN, no SYN with a
/// FIN, TCP over UDP).
const MODES: [&str; 4] = ["insecure_rst=1", "insecure_syn=1", "drop_synfin=1", "--udp_encapsulation"];

/// The outcome of one script, and the script if it passed.
fn outcome(name: &str, text: &str) -> (String, Option<Script>) {
    let attempt = |dialect| {
        let script = parse(name, text, dialect)?;
        run(&script).map(|()| script)
    };
    let first = attempt(Dialect::FreeBsd);
    // Some have what the standard asks for beside what FreeBSD does.
    let second = (first.is_err() && text.contains("#ifdef STANDARD")).then(|| attempt(Dialect::Standard));
    match (first, second) {
        (_, Some(Ok(script))) => (format!("passed {name} (as the standard has it)"), Some(script)),
        (Ok(script), _) => (format!("passed {name}"), Some(script)),
        (Err(error), _) if MODES.iter().any(|mode| text.contains(mode)) => {
            (format!("not applicable {error}"), None)
        }
        (Err(error), _) if matches!(error.cause, Cause::Differs { .. }) => (format!("failed {error}"), None),
        (Err(error), _) => (format!("left out {error}"), None),
    }
}

/// The outcomes are those of `bench-results/tcp-scripts/results.txt`, where the README says why each
/// that does not pass does not. `MEGAPIPE_TCP_TESTSUITE_RESULTS` names a file that they are written
/// to. 90 % of the scripts that apply pass, and 98 % of those that pass do not with one expected
/// packet altered.
#[test]
fn freebsds_scripts() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let default = root.join("../shared/corpora/tcp-testsuite");
    let folder = std::env::var_os("MEGAPIPE_TCP_TESTSUITE").map_or(default, PathBuf::from);
    let mut paths = Vec::new();
    find(&folder, 4, &mut paths);
    paths.sort();
    if paths.is_empty() {
        println!("SKIPPED freebsds_scripts: no scripts in {}", folder.display());
        return;
    }
    let mut outcomes = Vec::new();
    let (mut altered, mut unnoticed) = (0, Vec::new());
    for (number, path) in paths.iter().enumerate() {
        let name = path.strip_prefix(&folder).unwrap_or(path).display().to_string();
        let Ok(text) = std::fs::read_to_string(path) else { continue };
        let (outcome, script) = outcome(&name, &text);
        outcomes.push(outcome);
        let mut ways = script.map_or(Vec::new(), |script| alterations(&script));
        // Windows are compared loosely here.
        ways.retain(|(change, _)| !change.ends_with("window"));
        if !ways.is_empty() {
            let (change, other) = ways.swap_remove(number % ways.len());
            altered += 1;
            if run(&other).is_ok() {
                unnoticed.push(change);
            }
        }
    }
    let results = outcomes.join("\n") + "\n";
    if let Some(file) = std::env::var_os("MEGAPIPE_TCP_TESTSUITE_RESULTS") {
        std::fs::write(file, &results).expect("a file for the results");
    }
    let count = |kind: &str| outcomes.iter().filter(|outcome| outcome.starts_with(kind)).count();
    let (passed, applicable) = (count("passed"), outcomes.len() - count("not applicable"));
    println!(
        "{} scripts, {applicable} apply: {passed} passed, {} failed, {} left out; control: {} of {altered} \
         altered scripts passed",
        outcomes.len(),
        count("failed"),
        count("left out"),
        unnoticed.len()
    );
    let published = std::fs::read_to_string(root.join("bench-results/tcp-scripts/results.txt"));
    let published = published.expect("the published results");
    let changed: Vec<&String> =
        outcomes.iter().filter(|outcome| !published.lines().any(|line| line == *outcome)).collect();
    assert!(changed.is_empty(), "not as published: {changed:#?}");
    assert!(10 * passed >= 9 * applicable);
    assert!(50 * unnoticed.len() <= altered, "{unnoticed:#?}");
}
