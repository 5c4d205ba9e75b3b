//! megapipe.h and megapipe_mmsg.h, the symbols of the library, the version script, the manual pages and the
//! test programs tell of the same calls.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

mod support;

use support::{Library, has_program, root};

const HEADERS: [&str; 2] = ["megapipe.h", "megapipe_mmsg.h"];

/// The calls that the headers declare.
fn declared() -> BTreeSet<String> {
    let read = |name| fs::read_to_string(root().join("crates/capi/include").join(name)).expect("readable");
    let code: String = HEADERS.iter().map(|name| without_comments(&read(name))).collect();
    code.match_indices('(')
        .filter_map(|(at, _)| {
            let name = code[..at].rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()?;
            is_ours(name).then(|| name.to_owned())
        })
        .collect()
}

/// The two calls of the recvmmmsg proposal keep their names.
fn is_ours(name: &str) -> bool {
    name.starts_with("mp_") || name.starts_with("recvmmmsg") || name.starts_with("sendmmmsg")
}

fn without_comments(code: &str) -> String {
    let mut rest = code;
    let mut kept = String::new();
    while let Some((before, comment)) = rest.split_once("/*") {
        kept.push_str(before);
        rest = comment.split_once("*/").map_or("", |(_, after)| after);
    }
    kept.push_str(rest);
    kept
}

#[test]
fn the_library_exports_what_the_header_declares() {
    if !has_program("nm") {
        println!("SKIPPED the_library_exports_what_the_header_declares: nm is not installed");
        return;
    }
    let library = Library::shared();
    let listed = Command::new("nm")
        .args(["-D", "--defined-only", "--with-symbol-versions"])
        .arg(library.directory.join("libmegapipe.so.0"))
        .output()
        .expect("nm runs");
    let listed = String::from_utf8(listed.stdout).expect("names are text");
    let symbols = listed.lines().filter_map(|line| line.split_whitespace().nth(2));
    let (calls, others): (Vec<_>, Vec<_>) = symbols.partition(|symbol| is_ours(symbol));
    assert_eq!(others, ["MEGAPIPE_0.1"], "nothing else is exported");
    let exported: BTreeSet<String> = calls
        .iter()
        .map(|symbol| symbol.strip_suffix("@@MEGAPIPE_0.1").expect("versioned").to_owned())
        .collect();
    assert_eq!(exported, declared());
}

#[test]
fn the_version_script_lists_what_the_header_declares() {
    let script = fs::read_to_string(root().join("crates/capi/megapipe.map")).expect("readable");
    let listed: BTreeSet<String> = script
        .lines()
        .filter_map(|line| line.trim().strip_suffix(';'))
        .filter(|name| is_ours(name))
        .map(str::to_owned)
        .collect();
    assert_eq!(listed, declared());
}

#[test]
fn every_call_has_a_page_and_a_program() {
    let capi = root().join("crates/capi");
    let missing: Vec<String> = declared()
        .into_iter()
        .flat_map(|call| [format!("man/{call}.3"), format!("tests/c/{call}.c")])
        .filter(|file| !capi.join(file).is_file())
        .collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
}

#[test]
fn every_page_is_of_a_call_and_tells_the_usual_parts() {
    let declared = declared();
    for entry in fs::read_dir(root().join("crates/capi/man")).expect("the pages are there") {
        let path = entry.expect("readable").path();
        let text = fs::read_to_string(&path).expect("readable");
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if path.extension().is_some_and(|section| section == "3") {
            assert!(declared.contains(&name), "{} is of no call", path.display());
            for part in
                ["NAME", "SYNOPSIS", "DESCRIPTION", "RETURN VALUES", "EXAMPLES", "SEE ALSO", "HISTORY"]
            {
                assert!(text.contains(&format!(".Sh {part}\n")), "{} lacks {part}", path.display());
            }
            assert!(text.contains(&format!(".Nm {name}\n")), "{} names another call", path.display());
        }
        check_references(&path, &text, &declared);
    }
}

/// Every `.Xr mp_something 3` names a page.
fn check_references(path: &Path, text: &str, declared: &BTreeSet<String>) {
    for line in text.lines().filter(|line| line.starts_with(".Xr mp_")) {
        let name = line.split_whitespace().nth(1).unwrap_or_default();
        assert!(declared.contains(name), "{}: {line} names no call", path.display());
    }
}

#[test]
fn the_pages_are_well_formed() {
    if !has_program("groff") {
        println!("SKIPPED the_pages_are_well_formed: groff is not installed");
        return;
    }
    for entry in fs::read_dir(root().join("crates/capi/man")).expect("the pages are there") {
        let path = entry.expect("readable").path();
        let set = Command::new("groff").args(["-mdoc", "-Tutf8", "-ww", "-z"]).arg(&path).output();
        let complaints = String::from_utf8_lossy(&set.expect("groff runs").stderr).into_owned();
        assert!(complaints.is_empty(), "{}: {complaints}", path.display());
    }
}

#[test]
fn the_header_compiles_as_c_and_as_cpp() {
    let headers = HEADERS.map(|name| root().join("crates/capi/include").join(name));
    let languages = [
        ("cc", "c", "-std=c99"),
        ("cc", "c", "-std=c11"),
        ("c++", "c++", "-std=c++11"),
        ("c++", "c++", "-std=c++20"),
    ];
    for (compiler, language, standard) in languages {
        if !has_program(compiler) {
            println!("SKIPPED the_header_compiles_as_c_and_as_cpp: {compiler} is not installed");
            continue;
        }
        for header in &headers {
            let compiled = Command::new(compiler)
                .args([
                    "-fsyntax-only",
                    "-pedantic",
                    "-Wall",
                    "-Wextra",
                    "-Werror",
                    standard,
                    "-x",
                    language,
                    "-include",
                ])
                .arg(header)
                .arg("/dev/null")
                .output()
                .expect("the compiler runs");
            let complaints = String::from_utf8_lossy(&compiled.stderr);
            assert!(compiled.status.success(), "{compiler} {standard}: {complaints}");
        }
    }
}

#[test]
fn the_versions_agree() {
    let header = fs::read_to_string(root().join("crates/capi/include/megapipe.h")).expect("readable");
    assert!(header.contains(&format!("#define MP_VERSION \"{}\"", env!("CARGO_PKG_VERSION"))));
}
