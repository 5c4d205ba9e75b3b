//! `megapipe-bench tcp`: real packets between namespaces that the benchmark makes.

use testkit::skip::{self, Skipped};

use crate::support::{Files, of_kind, records};

/// The program, with these arguments; none where this user may have no network of its own.
fn measured(test: &str, arguments: &[&str]) -> Option<(Vec<serde_json::Value>, String)> {
    let files = Files::new(test);
    let output = files.bench("tcp").args(arguments).output().unwrap();
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
    let arguments = ["--rows", rows, "--seconds", "0.1", "--rounds", "1"];
    let Some((records, table)) = measured("every_server_serves_every_load", &arguments) else {
        return;
    };
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
