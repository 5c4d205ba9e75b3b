//! What the tests of all scenarios share: how a benchmark is started, watched and read.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::Value;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_megapipe");

/// Nothing here takes nearly as long, however slow the machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Files of one test.
pub(crate) struct Files {
    pub(crate) json: PathBuf,
    pub(crate) plot: PathBuf,
}

impl Files {
    pub(crate) fn new(test: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let files = Self {
            json: folder.join(format!("bench-{test}.json")),
            plot: folder.join(format!("bench-{test}.svg")),
        };
        for file in [&files.json, &files.plot] {
            let _ = fs::remove_file(file); // of an earlier run, if there was one
        }
        files
    }
}

/// The benchmark of a scenario.
pub(crate) fn bench(scenario: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["bench", scenario]);
    command
}

/// All lines, each of which is also a record by its type; the first tells of the run.
pub(crate) fn records<Record: DeserializeOwned>(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap();
    for line in text.lines() {
        serde_json::from_str::<Record>(line).unwrap();
    }
    let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let header = &records[0];
    assert_eq!(header["record"], "header");
    for field in ["machine", "cpu", "kernel", "command", "date"] {
        assert!(header[field].as_str().is_some_and(|text| !text.is_empty()), "{field}");
    }
    records
}

pub(crate) fn of_kind<'all>(records: &'all [Value], kind: &str) -> Vec<&'all Value> {
    records.iter().filter(|record| record["record"] == kind).collect()
}

pub(crate) fn signal(child: &Child, signal: i32) {
    // SAFETY: plain system call; the child is not waited for yet, so its id is its own.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    let mut status = None;
    until(|| {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap()
}

pub(crate) fn until(mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < PATIENCE, "waited in vain");
        thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn children(parent: u32) -> Vec<u32> {
    let is_child = |process: &u32| {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        status.lines().any(|line| line == format!("PPid:\t{parent}"))
    };
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_child).collect()
}

/// The command line of a process; empty when it has ended.
pub(crate) fn command(process: u32) -> String {
    fs::read_to_string(format!("/proc/{process}/cmdline")).unwrap_or_default()
}
