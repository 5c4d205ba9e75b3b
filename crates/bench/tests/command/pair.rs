//! `megapipe-bench pingpong` and `megapipe-bench stream`: real processes that exchange real bytes.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use bench::cpu::CpuSet;
use bench::pair::{Busy, Exchange, Placement, Transport};
use bench::part::Part;
use serde_json::Value;

use crate::support::{
    Files, bench, children, command, of_kind, orphans, records, signal, table, until, wait, with_file_size,
};

#[test]
fn every_transport_of_round_trips_is_measured_where_it_can_be() {
    let (records, table) = measured("pingpong", "p50 ns");
    for record in of_kind(&records, "pingpong") {
        let figure = |field: &str| record[field].as_f64().unwrap();
        assert!(figure("rtt_ns_p50") > 0.0 && figure("cpu_ns_per_message") > 0.0, "{record}");
        assert!(figure("rtt_ns_p50") <= figure("rtt_ns_p99"), "{record}");
        assert!(figure("rtt_ns_p99") <= figure("rtt_ns_p999"), "{record}");
    }
    assert!(table.contains("one-core") && table.contains("x tcp"), "{table}");
}

#[test]
fn every_transport_of_streams_is_measured_where_it_can_be() {
    let (records, _) = measured("stream", "MB/s");
    for record in of_kind(&records, "stream") {
        assert!(record["bytes_per_s"].as_f64().unwrap() > 0.0, "{record}");
    }
}

/// All transports, in all placements that this machine has.
fn measured(scenario: &str, figure: &str) -> (Vec<Value>, String) {
    let files = Files::new(&format!("every-{scenario}"));
    let what = format!("{scenario} --sizes 8,56,65536 --seconds 0.05 --rounds 1");
    let table = table(&mut files.bench(&what));
    let records = records(&files.json);
    assert_eq!(records[0]["scenario"], scenario);
    assert!(of_kind(&records, "absent").is_empty(), "{records:?}");
    let cpus = CpuSet::allowed().unwrap().ends().len();
    for &placement in Placement::ALL.iter().filter(|placement| placement.cpus() <= cpus) {
        for &transport in Transport::ALL {
            let of = |record: &&&Value| {
                record["transport"] == transport.name() && record["placement"] == placement.name()
            };
            let expected = match (transport, placement) {
                (Transport::Cacheline, Placement::TwoCores) if scenario == "pingpong" => 2,
                (Transport::Memcpy, Placement::TwoCores) if scenario == "stream" => 3,
                (Transport::Cacheline | Transport::Memcpy, _) => 0,
                (Transport::TcpSpin, Placement::Asleep) => 0,
                _ => 3,
            };
            let count = of_kind(&records, scenario).iter().filter(of).count();
            assert_eq!(count, expected, "{transport}, {placement}");
        }
    }
    assert!(files.svg().contains(figure));
    (records, table)
}

#[test]
fn a_transport_that_fails_is_absent_and_the_others_are_measured() {
    if CpuSet::allowed().unwrap().len() < 2 {
        println!("SKIPPED a_transport_that_fails_is_absent_and_the_others_are_measured: there is one CPU");
        return;
    }
    let what =
        "pingpong --transports cacheline,unix --sizes 8 --placements two-cores --seconds 0.05 --rounds 2";
    let table = table(with_file_size(&mut bench(what), 1024)); // of shared memory, too
    let said = "8, two-cores, cacheline is absent: cannot be connected: File too large";
    assert_eq!(table.matches(said).count(), 1, "{table}");
    assert!(table.contains(" unix "), "{table}");
}

#[test]
fn a_transport_that_fails_midway_fails_the_run() {
    let files = Files::new("pair-midway");
    let what = "pingpong --transports tcp,unix --sizes 8 --placements one-core --seconds 0.2 --rounds 10";
    let mut run = files.bench(what).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let has = |what: &str| fs::read_to_string(&files.json).unwrap_or_default().contains(what);
    until(|| has(r#""transport":"tcp""#));
    until(|| {
        for process in children(run.id()) {
            let command = command(process);
            if command.contains(r#""transport":"tcp""#) {
                // SAFETY: a plain call. It is a process of the run, which does not wait for it before it looks again.
                unsafe { libc::kill(process as i32, libc::SIGKILL) };
            }
        }
        has(r#""record":"absent""#) || run.try_wait().unwrap().is_some()
    });
    assert_eq!(wait(&mut run).code(), Some(1));
    let mut table = String::new();
    run.stdout.take().unwrap().read_to_string(&mut table).unwrap();
    assert!(table.contains("8, one-core, tcp is absent: ") && table.contains(" unix "), "{table}");
    let records = records(&files.json);
    let unix = of_kind(&records, "pingpong").into_iter().filter(|record| record["transport"] == "unix");
    assert_eq!(unix.count(), 10, "the other one is measured in every round");
}

/// The monitor of the promoted transport takes no signal away, and leaves nothing behind, however the run ends.
#[test]
fn ctrl_c_stops_promoted_connections_and_nothing_is_left_of_their_monitor() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-pair-left");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder).unwrap();
    let left = || fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    for signal_number in [libc::SIGINT, libc::SIGTERM] {
        let what =
            "pingpong --transports promoted --sizes 8 --placements one-core --seconds 0.05 --rounds 100000";
        let mut run = bench(what);
        run.env("TMPDIR", &folder).stdout(Stdio::null()).stderr(Stdio::null());
        let mut run = run.spawn().unwrap();
        until(|| children(run.id()).len() == 2);
        // Neither would its own end nor SIGKILL leave anything.
        assert_eq!(left(), Vec::<PathBuf>::new());
        signal(run.id(), signal_number);
        assert_eq!(wait(&mut run).code(), Some(130));
    }
    fs::remove_dir(&folder).unwrap();
}

#[test]
fn all_processes_end_with_their_controller() {
    let (placement, expected) = match CpuSet::allowed().unwrap().len() {
        1 => ("one-core", 2),
        _ => ("oversubscribed", 10), // with four busy ones on each of two CPUs
    };
    let what = format!("stream --transports unix --sizes 8 --placements {placement} --seconds 600");
    let mut run = bench(&what);
    let is_part = |process: &&u32| {
        let arguments = command(**process);
        arguments.split('\0').any(|argument| argument == Exchange::NAME || argument == Busy::NAME)
    };
    let processes = orphans(&mut run, |children| children.iter().filter(is_part).count() == expected);
    until(|| processes.iter().all(|&process| command(process).is_empty()));
}
