//! Result files of earlier versions stay readable.

use std::fs;
use std::path::{Path, PathBuf};

use bench::record::Record;
use bench::{apps, listen, mmsg, pair, tcp};

#[test]
fn published_results_are_still_read() {
    let mut measurements = 0;
    for folder in fs::read_dir(root().join("bench-results")).unwrap() {
        for file in fs::read_dir(folder.unwrap().path()).unwrap() {
            let file = file.unwrap().path();
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            if !name.ends_with(".jsonl") {
                continue;
            }
            let text = fs::read_to_string(&file).unwrap();
            if !text.starts_with(r#"{"record":"header""#) {
                continue; // of another command
            }
            let header: serde_json::Value = serde_json::from_str(text.lines().next().unwrap_or("")).unwrap();
            // "megapipe-bench rpc ...", and "megapipe bench rpc ..." of older ones.
            let command =
                header["command"].as_str().unwrap_or_default().replace("megapipe bench", "megapipe-bench");
            match command.split(' ').nth(1) {
                Some("apps") => drop(read::<apps::record::Record>(&file, &text)),
                Some("listen") => drop(read::<listen::record::Record>(&file, &text)),
                Some("mmsg") => drop(read::<mmsg::record::Record>(&file, &text)),
                Some("tcp" | "tcp-floor") => drop(read::<tcp::record::Record>(&file, &text)),
                Some("promotion" | "tcp-engine") => {} // of commands that are gone
                Some("pingpong" | "stream") => drop(read::<pair::record::Record>(&file, &text)),
                _ => {
                    let records = read::<Record>(&file, &text);
                    measurements +=
                        records.iter().filter(|record| matches!(record, Record::Measurement(_))).count();
                }
            }
        }
    }
    assert!(measurements > 0);
}

#[test]
fn published_results_are_quoted_and_explained() {
    let mut documents = vec![root().join("README.md")];
    for folder in ["docs", "docs/adr"] {
        let entries = fs::read_dir(root().join(folder)).unwrap();
        documents.extend(entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()));
    }
    let documents: String = documents.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    for folder in fs::read_dir(root().join("bench-results")).unwrap() {
        let folder = folder.unwrap();
        let name = folder.file_name().into_string().unwrap();
        assert!(folder.path().join("README.md").is_file(), "bench-results/{name} has no README.md");
        let ends = |rest: &str| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '-');
        let quoted = documents.split(&format!("bench-results/{name}")).skip(1).any(ends);
        assert!(quoted, "no document quotes bench-results/{name}");
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every line of a file.
fn read<T: serde::de::DeserializeOwned>(file: &Path, text: &str) -> Vec<T> {
    let line = |line| {
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{}: {error}: {line}", file.display()))
    };
    text.lines().map(line).collect()
}
