//! The names that the library stands before are those of `exports.txt`, no more and no fewer.

use std::collections::BTreeSet;
use std::process::Command;

use testkit::process::preload_library;

const LISTED: &str = include_str!("exports.txt");

#[test]
fn the_library_exports_what_is_listed() {
    let Ok(output) = Command::new("nm").args(["-D", "--defined-only"]).arg(preload_library()).output() else {
        println!("SKIPPED the_library_exports_what_is_listed: no nm is installed (binutils)");
        return;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout).expect("names");
    let exported: BTreeSet<&str> =
        names.lines().filter_map(|line| line.split_whitespace().next_back()).collect();
    let listed: BTreeSet<&str> = LISTED.lines().filter(|line| !line.is_empty()).collect();
    let extra: Vec<&&str> = exported.difference(&listed).collect();
    let missing: Vec<&&str> = listed.difference(&exported).collect();
    assert!(extra.is_empty() && missing.is_empty(), "not listed: {extra:?}; not exported: {missing:?}");
}
