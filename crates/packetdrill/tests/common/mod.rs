//! Our own scripts.

use std::path::Path;

use packetdrill::{Dialect, Script, parse};

/// All of them, by name.
pub(crate) fn scripts(dialect: Dialect) -> Vec<(String, Script)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tcp/tests/scripts");
    let entries = std::fs::read_dir(&folder).expect("the folder of scripts");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "pkt"));
    paths.sort();
    assert!(!paths.is_empty());
    let read = |path: &std::path::PathBuf| {
        let text = std::fs::read_to_string(path).expect("a script");
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let script = parse(&name, &text, dialect).unwrap_or_else(|error| panic!("{error}"));
        (name, script)
    };
    paths.iter().map(read).collect()
}
