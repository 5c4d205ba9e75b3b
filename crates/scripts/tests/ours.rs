//! Scripts of our own, and their negative control.

use std::path::{Path, PathBuf};

use scripts::{Cause, Script, alterations, parse, run};

fn scripts() -> Vec<(PathBuf, Script)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tcp/tests/scripts");
    let entries = std::fs::read_dir(&folder).expect("the folder of scripts");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "pkt"));
    paths.sort();
    assert!(!paths.is_empty());
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("a script");
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let script = parse(&name, &text).unwrap_or_else(|error| panic!("{error}"));
        (path, script)
    };
    paths.into_iter().map(read).collect()
}

#[test]
fn scripts_pass() {
    let failed: Vec<String> =
        scripts().iter().filter_map(|(_, script)| run(script).err()).map(|error| error.to_string()).collect();
    assert!(failed.is_empty(), "\n{}", failed.join("\n"));
}

#[test]
fn altered_scripts_fail() {
    let mut passed = Vec::new();
    for (path, script) in scripts() {
        for (change, altered) in alterations(&script) {
            match run(&altered) {
                Ok(()) => passed.push(format!("{}: {change}", path.display())),
                Err(error) => assert!(matches!(error.cause, Cause::Differs { .. }), "{error}"),
            }
        }
    }
    assert!(passed.is_empty(), "\n{}", passed.join("\n"));
}

#[test]
fn errors_name_file_line_expected_and_seen() {
    let text = "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n// a comment\n+0 listen(3, 1) = 0\n";
    let error = run(&parse("x.pkt", text).expect("a script")).expect_err("it is not bound");
    assert_eq!(error.to_string(), "x.pkt:3: expected listen() = 0, seen listen() = -1 EINVAL");
    let error = parse("x.pkt", "\n+0 < S 0:1(0) win 5\n").expect_err("numbers that do not fit");
    assert_eq!((error.line, matches!(error.cause, Cause::Syntax(_))), (2, true));
    let error = parse("x.pkt", "+0 `reboot`\n").expect_err("a command");
    assert!(matches!(error.cause, Cause::Unsupported(_)), "{error}");
}
