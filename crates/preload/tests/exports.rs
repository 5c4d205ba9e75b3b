//! The names that the library stands before are those of `exports.txt`, no more and no fewer.

use std::collections::BTreeSet;
use std::process::Command;

use testkit::process::preload_library;

const LISTED: &str = include_str!("exports.txt");
const CONSIDERED: &str = include_str!("glibc.txt");

#[test]
fn each_function_of_this_glibc_was_considered() {
    const NAME: &str = "each_function_of_this_glibc_was_considered";
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the own mappings");
    let library = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .find(|path| path.ends_with("/libc.so.6"));
    let Some(library) = library else {
        println!("SKIPPED {NAME}: this is no glibc");
        return;
    };
    let Ok(output) = Command::new("nm").args(["-D", "--defined-only", library]).output() else {
        println!("SKIPPED {NAME}: no nm is installed (binutils)");
        return;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("names");
    // "address kind name@version"; GLIBC_PRIVATE is for the parts of glibc among themselves.
    let functions = text.lines().filter_map(|line| line.split_once(' ')?.1.split_once(' '));
    let functions = functions.filter(|(kind, name)| "TWi".contains(kind) && !name.ends_with("GLIBC_PRIVATE"));
    let functions: BTreeSet<&str> =
        functions.map(|(_, name)| name.split('@').next().unwrap_or(name)).collect();
    let considered = CONSIDERED.lines().filter(|line| !line.starts_with('#')).flat_map(str::split_whitespace);
    let known: BTreeSet<&str> = considered.chain(LISTED.lines()).collect();
    let new: Vec<&&str> = functions.difference(&known).collect();
    assert!(
        functions.contains("aio_read") || functions.contains("recv"),
        "these are no names of glibc: {text}"
    );
    assert!(new.is_empty(), "whether they read or write a descriptor is to be found out: {new:?}");
}

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
