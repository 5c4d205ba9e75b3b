//! `megapipe-bench pingpong` and `megapipe-bench stream`: real processes that exchange real bytes.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bench::cpu::CpuSet;
use bench::pair::{Busy, Exchange, Placement, Scenario, Side, Task, Transport};
use bench::part::Part;
use serde_json::Value;

use crate::support::{
    Files, PROGRAM, bench, children, command, of_kind, orphans, records, refused, signal, table, until, wait,
    with_file_size,
};

#[test]
fn every_transport_of_round_trips_carries_every_byte() {
    carries_every_byte("pingpong", "rtt_ns_p50");
}

#[test]
fn every_transport_of_streams_carries_every_byte() {
    carries_every_byte("stream", "bytes_per_s");
}

/// All transports, in all placements that this machine has, with sizes at and about every bound.
fn carries_every_byte(scenario: &str, figure: &str) {
    let files = Files::new(&format!("verify-{scenario}"));
    let mut run = files.bench(scenario);
    run.args(["--verify", "--sizes", "1,8,56,4097,65536,1048576", "--seconds", "0.05", "--rounds", "1"]);
    table(&mut run);
    let records = records(&files.json);
    assert!(of_kind(&records, "absent").is_empty(), "{records:?}");
    let measured = of_kind(&records, scenario);
    for placement in placements() {
        for &transport in Transport::ALL {
            let of = |record: &&&Value| {
                record["transport"] == transport.name() && record["placement"] == placement.name()
            };
            let mine = measured.iter().filter(of).collect::<Vec<_>>();
            let expected = match (transport, placement) {
                (Transport::Cacheline, Placement::TwoCores) if scenario == "pingpong" => 3,
                (Transport::Memcpy, Placement::TwoCores) if scenario == "stream" => 6,
                (Transport::Cacheline | Transport::Memcpy, _) => 0,
                (Transport::TcpSpin, Placement::Asleep) => 0,
                _ => 6,
            };
            assert_eq!(mine.len(), expected, "{transport}, {placement:?}");
            for record in mine {
                assert!(record[figure].as_f64().unwrap() > 0.0, "{record}");
            }
        }
    }
}

#[test]
fn bytes_that_are_not_what_was_sent_end_the_process_that_sees_them() {
    for (scenario, side) in [(Scenario::Pingpong, Side::First), (Scenario::Stream, Side::Second)] {
        let (mut own, theirs) = UnixStream::pair().unwrap();
        // SAFETY: a plain call on an open descriptor, which the child is to inherit.
        assert_eq!(unsafe { libc::fcntl(theirs.as_raw_fd(), libc::F_SETFD, 0) }, 0);
        let task = Task {
            scenario,
            transport: Transport::Unix,
            side,
            bytes: 8,
            cpus: CpuSet::allowed().unwrap(),
            warm_up: Duration::from_nanos(1),
            window: Duration::from_nanos(1),
            paced: false,
            verify: true,
            peer: Some(std::process::id()),
        };
        let mut child = Exchange { task, descriptors: vec![theirs.as_raw_fd()] }
            .command(PROGRAM.as_ref())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(theirs);
        own.write_all(b"nonsense").unwrap();
        assert_eq!(wait(&mut child).code(), Some(1));
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(said.contains("unix: byte 0 of message 0 is not what was sent"), "{said}");
    }
}

#[test]
fn a_run_of_round_trips_leaves_a_record_per_transport_point_and_round() {
    let files = Files::new("pingpong");
    let mut run = files.bench("pingpong");
    run.args(["--transports", "tcp,unix", "--sizes", "8,512", "--placements", "one-core"]);
    run.args(["--seconds", "0.1", "--rounds", "2"]);
    let table = table(&mut run);
    let records = records(&files.json);
    let header = &records[0];
    assert_eq!(header["scenario"], "pingpong");
    let mut seen = Vec::new();
    for record in of_kind(&records, "pingpong") {
        let figure = |field: &str| record[field].as_f64().unwrap();
        assert!(figure("rtt_ns_p50") > 0.0 && figure("cpu_ns_per_message") > 0.0, "{record}");
        assert!(figure("rtt_ns_p50") <= figure("rtt_ns_p99"), "{record}");
        assert!(figure("rtt_ns_p99") <= figure("rtt_ns_p999"), "{record}");
        assert_eq!(record["placement"], "one-core");
        let text = |field: &str| record[field].as_str().unwrap().to_owned();
        seen.push((text("transport"), record["bytes"].as_u64().unwrap(), record["round"].as_u64().unwrap()));
    }
    // Transports take turns, and the second round starts with the other one.
    let expected = [
        ("tcp", 8, 1),
        ("unix", 8, 1),
        ("tcp", 512, 1),
        ("unix", 512, 1),
        ("unix", 8, 2),
        ("tcp", 8, 2),
        ("unix", 512, 2),
        ("tcp", 512, 2),
    ];
    assert_eq!(seen, expected.map(|(transport, bytes, round)| (transport.to_owned(), bytes, round)));
    assert!(table.contains("one-core") && table.contains("x tcp"), "{table}");
    assert!(files.svg().contains("p50 ns"));
}

#[test]
fn flags_that_say_nothing_are_refused_with_a_remedy() {
    let cpu = CpuSet::allowed().unwrap().first().to_string();
    for (scenario, arguments, words) in [
        ("pingpong", &["--transports", "tcp,carrier-pigeon"][..], "tcp-spin, unix, cacheline"),
        ("pingpong", &["--transports", "memcpy"], "memcpy is no part of pingpong"),
        ("stream", &["--transports", "cacheline"], "cacheline is no part of stream"),
        ("pingpong", &["--transports", "cacheline", "--sizes", "64"], "up to 56 B"),
        ("pingpong", &["--transports", "tcp-spin", "--placements", "asleep"], "never asleep"),
        ("pingpong", &["--placements", "somewhere"], "two-cores, one-core, oversubscribed, asleep"),
        ("stream", &["--placements", "two-cores", "--cpus", &cpu], "two-cores takes two CPUs"),
        ("stream", &["--cpus", "0-2"], "give two"),
        ("stream", &["--cpus", "1023", "--placements", "one-core"], "CPU 1023"),
        ("pingpong", &["--sizes", "1048577"], "from 1 to 1048576"),
    ] {
        let stderr = refused(scenario, arguments);
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
    }
    let output = bench("stream").args(["--json", "/nonexistent/records"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("/nonexistent/records"));
}

#[test]
fn a_transport_that_fails_is_absent_and_the_others_are_measured() {
    if CpuSet::allowed().unwrap().len() < 2 {
        println!("SKIPPED a_transport_that_fails_is_absent_and_the_others_are_measured: there is one CPU");
        return;
    }
    for (verify, status) in [(None, 0), (Some("--verify"), 1)] {
        let mut command = bench("pingpong");
        command
            .args(["--transports", "cacheline,unix", "--sizes", "8", "--placements", "two-cores"])
            .args(["--seconds", "0.05", "--rounds", "2"])
            .args(verify);
        with_file_size(&mut command, 1024); // of shared memory, too
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        let table = String::from_utf8(output.stdout).unwrap();
        let said = "8, two-cores, cacheline is absent: cannot be connected: File too large";
        assert_eq!(table.matches(said).count(), 1, "{table}");
        assert!(table.contains(" unix "), "{table}");
    }
}

#[test]
fn a_transport_that_fails_midway_fails_the_run() {
    let files = Files::new("pair-midway");
    let mut run = files
        .bench("pingpong")
        .args(["--transports", "tcp,unix", "--sizes", "8", "--placements", "one-core"])
        .args(["--seconds", "0.2", "--rounds", "10"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
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
    for scenario in ["pingpong", "stream"] {
        let output = bench(scenario)
            .args(["--transports", "promoted", "--sizes", "8", "--placements", "one-core"])
            .args(["--seconds", "0.05", "--rounds", "1"])
            .env("TMPDIR", &folder)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(left(), Vec::<PathBuf>::new());
    }
    for signal_number in [libc::SIGINT, libc::SIGTERM] {
        let mut run = bench("pingpong");
        run.args(["--transports", "promoted", "--sizes", "8", "--placements", "one-core"])
            .args(["--seconds", "0.05", "--rounds", "100000"])
            .env("TMPDIR", &folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut run = run.spawn().unwrap();
        until(|| children(run.id()).len() == 2);
        // Nor would SIGKILL leave anything.
        assert_eq!(left(), Vec::<PathBuf>::new());
        signal(&run, signal_number);
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
    let mut run = bench("stream");
    run.args(["--transports", "unix", "--sizes", "8", "--placements", placement]).args(["--seconds", "600"]);
    let is_part = |process: &&u32| {
        let arguments = command(**process);
        arguments.split('\0').any(|argument| argument == Exchange::NAME || argument == Busy::NAME)
    };
    let processes = orphans(&mut run, |children| children.iter().filter(is_part).count() == expected);
    until(|| processes.iter().all(|&process| command(process).is_empty()));
}

/// What can be measured with the CPUs there are.
fn placements() -> Vec<Placement> {
    let cpus = CpuSet::allowed().unwrap().ends().len();
    Placement::ALL.iter().copied().filter(|placement| placement.cpus() <= cpus).collect()
}
