//! `megapipe-bench promotion`: a real monitor, real processes, and connections that really move.

use std::process::Command;

use bench::promotion::record::Record;

use crate::support::{
    Files, PROGRAM, bench, command, of_kind, orphans, product, records, refused, table, until,
};

#[test]
fn a_run_leaves_a_header_and_a_record_per_figure_and_round() {
    product();
    let files = Files::new("promotion");
    let mut run = files.bench("promotion");
    run.args(["--promotions", "20", "--rate", "100", "--connections", "20"]);
    run.args(["--seconds", "0.1", "--rounds", "2"]);
    let table = table(&mut run);
    let records = records::<Record>(&files.json);
    let header = &records[0];
    assert_eq!(header["scenario"], "promotion");
    for (kind, positive) in [
        ("cost", &["first_cpu_us", "second_cpu_us", "batch_first_cpu_us", "promotions_per_s"][..]),
        ("load", &["alone_messages_per_s", "beside_messages_per_s", "ratio"]),
        ("idle", &["alone_rtt_ns_p50", "fresh_rtt_ns_p50", "beside_rtt_ns_p50", "ratio"]),
        // What was used is less than without promotion at times: so few messages leave most of a pool untouched.
        ("memory", &["idle_bytes"]),
    ] {
        let of_kind = of_kind(&records, kind);
        let rounds = of_kind.iter().map(|record| record["round"].as_u64().unwrap());
        assert_eq!(rounds.collect::<Vec<_>>(), [1, 2], "{kind}");
        for record in of_kind {
            for field in positive {
                assert!(record[field].as_f64().unwrap() > 0.0, "{field} in {record}");
            }
        }
    }
    for record in of_kind(&records, "memory") {
        for side in ["first", "second"] {
            let [idle, used] = ["idle", "used"].map(|when| record[when][side].as_f64().unwrap());
            assert!(0.0 < idle && idle <= used, "{side} in {record}");
        }
        assert!(record["used_bytes"].is_f64(), "{record}");
    }
    for figure in ["promotion, monitor", "beside / alone", "beside idle / alone", "idle, all"] {
        assert!(table.contains(figure), "{table}");
    }
}

#[test]
fn ctrl_c_keeps_what_was_measured_and_ends_all_processes() {
    product();
    let files = Files::new("promotion-interrupt");
    let mut run = files.bench("promotion");
    run.args(["--figures", "load", "--rate", "100", "--seconds", "0.5", "--rounds", "100000"]);
    let (_, seen) = files.interrupted::<Record>(&mut run, "load", 100_000);
    assert!(!seen.is_empty());
    assert!(seen.iter().all(|&process| !is_ours(process)), "{seen:?}");
}

#[test]
fn all_processes_end_with_their_controller() {
    product();
    let mut run = bench("promotion");
    run.args(["--figures", "idle", "--connections", "5", "--seconds", "600"]);
    let ours = |children: &[u32]| children.iter().filter(|&&process| is_ours(process)).count();
    let processes = orphans(&mut run, |children| ours(children) == 3);
    until(|| ours(&processes) == 0);
}

#[test]
fn what_cannot_be_measured_is_refused_with_the_remedy() {
    product();
    for (arguments, remedy) in [
        (&["--figures", "cost,price"][..], "cost, load, idle, memory"),
        (&["--connections", "10001"], "from 1 to 10000"),
        (&["--rate", "0"], "from 1 to 10000"),
        (&["--rate", "5000", "--seconds", "3"], "give a lower --rate"),
        (&["--cpus", "0,1,2"], "give two, or one"),
        (&["--cpus", "1023"], "CPU 1023"),
    ] {
        let stderr = refused("promotion", arguments);
        assert!(stderr.contains(remedy), "{stderr}");
    }
}

#[test]
fn too_few_descriptors_are_said_and_fail_the_run() {
    product();
    let output = Command::new("sh")
        .args(["-c", "ulimit -n 64 && exec \"$0\" \"$@\""])
        .args([PROGRAM, "promotion", "--figures", "idle", "--connections", "100"])
        .args(["--seconds", "0.05", "--rounds", "3"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(table.matches("idle is absent: ").count(), 1, "{table}");
    assert!(table.contains("RLIMIT_NOFILE"), "{table}");
}

/// Whether a process runs that the benchmark started.
fn is_ours(process: u32) -> bool {
    let command = command(process);
    command.contains("promotion-side\0") || command.contains("monitor\0--on-demand\0")
}
