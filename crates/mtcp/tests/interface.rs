//! The headers, the symbols of the library, the manual page and the package name the same calls;
//! and the headers and the static library can be used as they are installed.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const HEADERS: [&str; 3] = ["mtcp_api.h", "mtcp_epoll.h", "mtcp_device.h"];
const PAGE: &str = "man/megapipe_mtcp.7";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).expect("readable")
}

/// A form of the library, as cargo built it for these tests.
fn library(name: &str) -> PathBuf {
    env::current_exe().expect("the test knows its path").with_file_name(name)
}

/// The words before each opening bracket that look like calls.
fn called(text: &str) -> BTreeSet<String> {
    let words = text
        .split('(')
        .filter_map(|before| before.rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_').next());
    words.filter(|word| is_ours(word)).map(str::to_owned).collect()
}

fn is_ours(word: &str) -> bool {
    word.starts_with("mtcp_") || ["EventToString", "GetNumCPUs"].contains(&word)
}

#[test]
fn every_call_is_declared_exported_and_described() {
    let declared: BTreeSet<String> =
        HEADERS.iter().flat_map(|name| called(&read(&format!("include/{name}")))).collect();
    // mTCP declares it in a header of its utilities, which programs bring.
    let declared = &declared | &BTreeSet::from(["GetNumCPUs".to_owned()]);

    let page = read(PAGE);
    let lines = page.lines().filter_map(|line| line.strip_prefix(".Fn "));
    let described = lines.map(|line| line.trim_end_matches(" ,").to_owned()).collect();
    assert_eq!(declared, described, "in {PAGE}");

    let package = read("../../packaging/debian/libmegapipe-mtcp0.symbols");
    let packed = package.lines().filter_map(|line| line.trim().strip_suffix("@Base 0.1.0"));
    assert_eq!(declared, packed.map(str::to_owned).collect(), "in the package");

    let listed = match Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library("libmegapipe_mtcp.so"))
        .output()
    {
        Ok(listed) => String::from_utf8(listed.stdout).expect("names are text"),
        Err(error) => return println!("SKIPPED every_call_is_declared_exported_and_described: nm: {error}"),
    };
    let exported = listed.lines().filter_map(|line| line.split_whitespace().nth(2));
    assert_eq!(declared, exported.map(str::to_owned).collect(), "exported");
}

#[test]
fn the_page_is_well_formed() {
    let groff = Command::new("groff").args(["-mdoc", "-Tutf8", "-ww", "-z"]).arg(root().join(PAGE)).output();
    match groff {
        Ok(groff) => assert!(groff.stderr.is_empty(), "{}", String::from_utf8_lossy(&groff.stderr)),
        Err(error) => println!("SKIPPED the_page_is_well_formed: groff: {error}"),
    }
}

#[test]
fn the_headers_compile_as_c_and_as_cpp() {
    for (compiler, standard) in
        [("cc", "-std=c99"), ("cc", "-std=c11"), ("c++", "-std=c++11"), ("c++", "-std=c++20")]
    {
        let language = if compiler == "cc" { "c" } else { "c++" };
        for header in HEADERS {
            let compiled = Command::new(compiler)
                .args([standard, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", language])
                .arg(root().join("include").join(header))
                .output();
            match compiled {
                Ok(compiled) => assert!(
                    compiled.status.success(),
                    "{header}, {standard}: {}",
                    String::from_utf8_lossy(&compiled.stderr)
                ),
                Err(error) => println!("SKIPPED {header} as {language}: {compiler}: {error}"),
            }
        }
    }
}

/// Programs for mTCP often bring the GetNumCPUs of its utilities.
#[test]
fn a_static_program_brings_its_own_get_num_cpus() {
    let place = env::temp_dir().join(format!("megapipe-mtcp-static-{}", std::process::id()));
    fs::create_dir_all(&place).expect("a directory");
    let archive = place.join("libmegapipe_mtcp.a");
    fs::copy(library("libmegapipe_mtcp.a"), &archive).expect("a copy");
    let run = |command: &mut Command| {
        let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    run(Command::new(root().join("weaken.sh")).arg(&archive));
    let include = format!("-I{}", root().join("include").display());
    for own in [true, false] {
        let program = place.join("cpus");
        run(Command::new("cc")
            .args(["-Wall", "-Werror", &include, &format!("-DOWN={}", i32::from(own))])
            .arg(root().join("tests/c/cpus.c"))
            .arg(&archive)
            .args(["-lpthread", "-ldl", "-lm", "-o"])
            .arg(&program));
        run(&mut Command::new(&program));
    }
    fs::remove_dir_all(&place).expect("removed");
}

/// The compiler's line of the document works as printed, with the library of this build.
#[test]
fn the_documented_command_links() {
    let document = fs::read_to_string(root().join("../../docs/mtcp.md")).expect("the document");
    let line = document.lines().find(|line| line.starts_with("cc ")).expect("a command");
    let program = env::temp_dir().join(format!("megapipe-mtcp-documented-{}", std::process::id()));
    let archive = library("libmegapipe_mtcp.a");
    let words = line.split(' ').skip(1).map(|word| match word {
        "server" => program.display().to_string(),
        "target/release/libmegapipe_mtcp.a" => archive.display().to_string(),
        word => word.to_owned(),
    });
    let output = Command::new("cc").args(words).current_dir(root().join("../..")).output().expect("cc runs");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    // It ends for want of a device, not of a library, for which ld.so says 127.
    let said = Command::new(&program).output().expect("the program runs");
    assert_ne!(said.status.code(), Some(127), "{}", String::from_utf8_lossy(&said.stderr));
    fs::remove_file(&program).expect("removed");
}
