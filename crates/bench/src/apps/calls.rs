//! What the library costs a program that it does nothing for: calls on descriptors that are not
//! sockets, and start-up.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::server::{Product, plain, undress};
use crate::Reason;
use crate::cpu::CpuSet;
use crate::part::{Part, print};
use crate::process::Process;
use crate::run::RunError;
use crate::summary::Spread;

/// Times read(2) of one byte of /dev/zero and write(2) of one to /dev/null, through the C library.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Calls;

impl Part for Calls {
    const NAME: &'static str = "app-calls";

    fn run(self) -> Result<(), Reason> {
        let (mut zero, mut null) = (File::open("/dev/zero")?, File::create("/dev/null")?);
        let read = median(|| zero.read(&mut [0]).map(drop))?;
        print(&[read, median(|| null.write(&[0]).map(drop))?])
    }
}

/// Nanoseconds of one call: the median of many batches.
fn median(mut call: impl FnMut() -> io::Result<()>) -> io::Result<f64> {
    let mut times = Vec::with_capacity(BATCHES);
    for _ in 0..BATCHES {
        let began = Instant::now();
        for _ in 0..CALLS {
            call()?;
        }
        times.push(began.elapsed().as_nanos() as f64 / CALLS as f64);
    }
    Ok(Spread::of(times).map_or(0.0, |spread| spread.median))
}

/// All costs, with or without the library, in nanoseconds.
pub(super) fn measure(
    program: &Path,
    folder: &Path,
    cpus: &CpuSet,
    preloaded: Option<&Product>,
    stop: &AtomicBool,
) -> Result<[(&'static str, f64); 3], Reason> {
    let prepare = |mut command: Command| {
        undress(&mut command);
        // Without `megapipe run`, whose own time is not the library's.
        if let Some(product) = preloaded {
            command.env("LD_PRELOAD", &product.library).env("MEGAPIPE_MONITOR", &product.monitor);
        }
        command
    };
    let command = Calls.command(program);
    let mut process = Process::start(prepare(command), folder, cpus)?;
    let text = process.finish(PATIENCE, stop)?;
    let [read, write] = serde_json::from_str(&text)?;
    let mut runs = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        if stop.load(Ordering::Relaxed) {
            return Err(RunError::Stopped.into());
        }
        let mut command = prepare(plain("true")?);
        command.stdin(Stdio::null());
        let began = Instant::now();
        let status = command.status()?;
        runs.push(began.elapsed().as_nanos() as f64);
        if !status.success() {
            return Err(format!("true ended with {status}").into());
        }
    }
    let start_up = Spread::of(runs).map_or(0.0, |spread| spread.median);
    Ok([("read", read), ("write", write), ("start-up", start_up)])
}

const BATCHES: usize = 101;

/// In a batch.
const CALLS: usize = 10_000;

/// Of true(1) in a round.
const RUNS: usize = 51;

/// How long so many calls may take.
const PATIENCE: Duration = Duration::from_secs(120);
