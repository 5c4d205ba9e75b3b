//! `megapipe-bench tcp` and `tcp-path`: real packets between namespaces that the benchmark makes.

use testkit::skip::{self, Skipped};

use crate::support::{Files, of_kind, records};

/// The program, with this command line; none where this user may have no network of its own.
fn measured(test: &str, line: &str) -> Option<(Vec<serde_json::Value>, String)> {
    let files = Files::new(test);
    let output = files.bench(line).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    let missing = ["cannot make namespaces", "/dev/net/tun", "cannot run `ip`"];
    let all = format!("{table}{words}");
    if let Some(why) = all.lines().find(|line| missing.iter().any(|words| line.contains(words))) {
        skip::record(test, &Skipped::because(why));
        return None;
    }
    assert!(output.status.success(), "{all}");
    Some((records(&files.json), table))
}

#[test]
fn every_server_serves_every_load() {
    let rows = "short,echo,asleep,bulk-in,bulk-out,one,two-short,two-echo";
    let line = format!("tcp --rows {rows} --seconds 0.1 --rounds 1");
    let Some((records, table)) = measured("every_server_serves_every_load", &line) else { return };
    assert_eq!(records[0]["scenario"], "tcp");
    let measured = of_kind(&records, "measurement");
    // Three servers in four rows, two in the others; smoltcp is one of them in `one`. None is absent.
    let without = usize::from(!cfg!(feature = "peers"));
    assert_eq!(measured.len(), 4 * 3 + 4 * 2 - without, "{records:?}");
    for record in &measured {
        assert!(record["rate"].as_f64().unwrap() > 0.0, "{record}");
        assert!(record["server_cpu_ns"].as_f64().unwrap() > 0.0, "{record}");
        assert_eq!(record["failures"], 0, "{record}");
        let counts = record["side"] == "stack" || record["side"] == "two-stacks";
        assert_eq!(record["packets_per_wait"].is_number(), counts, "{record}");
    }
    assert!(table.contains("pkt/wait"), "{table}");
}

#[test]
fn every_pair_of_ends_meets_the_same_path() {
    let ends = "cubic,ours,cubic-ours,ours-ours";
    let line = format!("tcp-path --rows 20ms-200-loss1,50ms-200-gro --ends {ends} --rounds 1");
    let Some((records, table)) = measured("every_pair_of_ends_meets_the_same_path", &line) else { return };
    let measured = of_kind(&records, "path");
    assert_eq!(measured.len(), 8, "{records:?}");
    let bytes = 11_010_000;
    for record in &measured {
        let number = |name: &str| record[name].as_u64().unwrap();
        assert_eq!(number("sent"), bytes, "{record}");
        let loses = record["row"] == "20ms-200-loss1";
        assert!(!loses || (bytes / 200..bytes / 50).contains(&number("lost")), "{record}");
        assert!(number("again") >= number("lost") / 2, "{record}");
        // A handshake, a request and its answer take two round trips.
        let least = if loses { 0.04 } else { 0.1 };
        assert!(record["seconds_10k"].as_f64().unwrap() >= least, "{record}");
    }
    assert!(table.contains("x cubic"), "{table}");
}

#[test]
fn two_connections_share_a_path() {
    let line = "tcp-path --rows 20ms-200-with-ours --ends cubic,ours --rounds 1 --seconds 0.5";
    let Some((records, _)) = measured("two_connections_share_a_path", line) else { return };
    let measured = of_kind(&records, "shared-path");
    assert_eq!(measured.len(), 2, "{records:?}");
    for record in measured {
        let share = record["share"].as_f64().unwrap();
        assert!(share > 0.0 && share < 1.0, "{record}");
    }
}
