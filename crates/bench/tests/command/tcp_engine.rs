//! `megapipe-bench tcp-engine`: both TCPs answer every segment, and the records say what that cost.

use bench::tcp_engine::record::Record;

use crate::support::{Files, of_kind, records, refused, table};

#[test]
fn a_run_leaves_a_header_and_a_record_per_case_and_round() {
    let files = Files::new("tcp-engine");
    let mut run = files.bench("tcp-engine");
    run.args(["--payloads", "1,1448", "--flows", "2000", "--connections", "1000"]);
    run.args(["--seconds", "0.05", "--rounds", "2"]);
    let two_cpus = std::thread::available_parallelism().map_or(1, usize::from) > 1;
    if !two_cpus {
        run.args(["--figures", "segment,flows,idle"]);
    }
    let table = table(&mut run);
    let records = records::<Record>(&files.json);
    assert_eq!(records[0]["scenario"], "tcp-engine");
    // Two payloads, checksums by two.
    let segments = of_kind(&records, "segment");
    assert_eq!(segments.len(), 2 * 2 * 2);
    let flows = of_kind(&records, "flows");
    assert_eq!(flows.len(), 2);
    assert_eq!(flows[0]["flows"], 2048);
    for record in segments.iter().chain(&flows) {
        assert!(record["ratio"].as_f64().unwrap() > 0.0, "{record}");
    }
    let threads = of_kind(&records, "threads");
    assert_eq!(threads.len(), if two_cpus { 2 } else { 0 });
    for record in &threads {
        assert!(record["cpu_ratio"].as_f64().unwrap() > 0.0, "{record}");
    }
    let idle = of_kind(&records, "idle");
    assert_eq!(idle.len(), 2);
    for record in &idle {
        let resident = ["bare", "before", "idle"].map(|when| record[when].as_u64().unwrap());
        assert!(0 < resident[0] && resident.is_sorted(), "{record}");
    }
    for words in ["tcp / smoltcp", "1000 idle connections", "2048 / 32 connections"] {
        assert!(table.contains(words), "{table}");
    }
}

#[test]
fn what_cannot_be_measured_is_refused() {
    for arguments in [["--payloads", "1449"], ["--flows", "63"], ["--figures", "all"], ["--cpus", "0-2"]] {
        refused("tcp-engine", &arguments);
    }
}
