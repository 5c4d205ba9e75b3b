//! Result files of earlier versions stay readable.

use std::fs;
use std::path::Path;

use megapipe_bench::record::Record;
use megapipe_bench::{pair, promotion};

#[test]
fn published_results_are_still_read() {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench-results");
    let mut measurements = 0;
    for folder in fs::read_dir(results).unwrap() {
        let folder = folder.unwrap().path();
        let Ok(files) = fs::read_dir(&folder) else { continue };
        for file in files {
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
            let scenario = header["scenario"].as_str();
            for line in text.lines() {
                if scenario == Some("promotion") {
                    let record = serde_json::from_str::<promotion::record::Record>(line);
                    record.unwrap_or_else(|error| panic!("{}: {error}: {line}", file.display()));
                    continue;
                }
                if scenario.is_some() {
                    let record = serde_json::from_str::<pair::record::Record>(line);
                    record.unwrap_or_else(|error| panic!("{}: {error}: {line}", file.display()));
                    continue;
                }
                let record = serde_json::from_str::<Record>(line);
                let record = record.unwrap_or_else(|error| panic!("{}: {error}: {line}", file.display()));
                measurements += usize::from(matches!(record, Record::Measurement(_)));
            }
        }
    }
    assert!(measurements > 0);
}
