//! What the tests of all scenarios share: how a benchmark is started, watched and read.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use serde_json::Value;
use testkit::confine;
use testkit::process::{self, Fosterling, built, preload_library};
pub(crate) use testkit::process::{children, signal};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_megapipe-bench");

/// The program and the library that are measured are built where the benchmark was.
pub(crate) fn product() {
    preload_library();
    built("megapipe-cli", "megapipe");
}

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

    /// The benchmark with this command line, which leaves its records here.
    pub(crate) fn bench(&self, line: &str) -> Command {
        let mut command = bench(line);
        command.arg("--json").arg(&self.json);
        command
    }

    /// The plot of these records.
    pub(crate) fn svg(&self) -> String {
        table(bench("show").arg(&self.json).arg("--plot").arg(&self.plot));
        fs::read_to_string(&self.plot).unwrap()
    }
}

/// The benchmark with this command line.
pub(crate) fn bench(line: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(line.split(' '));
    command
}

/// The table of a run that ends well.
pub(crate) fn table(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The processes of a run whose controller was killed once they were `complete`, or by a panic.
pub(crate) fn orphans(command: &mut Command, complete: impl Fn(&[u32]) -> bool) -> Vec<u32> {
    let mut run = Fosterling::start(command.stdout(Stdio::null()).stderr(Stdio::null()));
    let mut processes = Vec::new();
    until(|| {
        processes = children(run.child().id());
        complete(&processes)
    });
    run.kill();
    processes
}

/// RLIMIT_FSIZE of so many bytes, past which writes fail.
pub(crate) fn with_file_size(command: &mut Command, bytes: u64) -> &mut Command {
    // SAFETY: between fork and exec only signal is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            Ok(())
        });
    }
    confine::with_limit(command, libc::RLIMIT_FSIZE, bytes)
}

/// All lines, each of which is also a record; the first is the header.
pub(crate) fn records(file: &Path) -> Vec<Value> {
    let records = bench::record::read(file).unwrap();
    let records: Vec<Value> = records.iter().map(|record| serde_json::to_value(record).unwrap()).collect();
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

pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    process::until_ended("an end", child)
}

pub(crate) fn until(mut condition: impl FnMut() -> bool) {
    process::until("a condition", || condition().then_some(()));
}

/// The command line of a process; empty when it has ended.
pub(crate) fn command(process: u32) -> String {
    fs::read_to_string(format!("/proc/{process}/cmdline")).unwrap_or_default()
}
