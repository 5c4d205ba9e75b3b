//! The monitor and the two sides, as their controller sees them.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::SIDE_VERB;
use super::record::Bytes;
use super::side::{Order, PATIENCE, Report};
use crate::child::{Child, Failure, MONITOR_POLICY};
use crate::clock;
use crate::cpu::CpuSet;

/// A monitor and two sides; dropping it ends them.
pub(super) struct Trio<'run> {
    // The sides first: the monitor has nothing to clean up after them then.
    pub(super) sides: [Process; 2],
    /// None if nothing is promoted: without clients it would end.
    monitor: Option<Process>,
    /// Where the monitor listens; dropping it removes it.
    _folder: TempDir,
    stop: &'run AtomicBool,
}

/// What a trio is for.
#[derive(Clone, Copy)]
pub(super) struct Purpose {
    pub(super) promotes: bool,
    pub(super) no_spin: bool,
}

impl<'run> Trio<'run> {
    pub(super) fn start(
        [megapipe, program]: [&Path; 2],
        cpus: &CpuSet,
        purpose: Purpose,
        stop: &'run AtomicBool,
    ) -> Result<Self, Failure> {
        let folder = tempfile::Builder::new().prefix("megapipe-bench-").tempdir()?;
        let socket = folder.path().join("monitor.sock");
        let policy = folder.path().join("policy.toml");
        fs::write(&policy, MONITOR_POLICY)?;
        let monitor = match purpose.promotes {
            true => Some(start_monitor(megapipe, &socket, &policy, stop)?),
            false => None,
        };
        let side = |cpus: CpuSet, name| {
            let mut command = Command::new(program);
            command.arg(SIDE_VERB).args(["--cpus", &cpus.to_string()]);
            if purpose.promotes {
                command.arg("--monitor").arg(&socket);
            }
            command.args(purpose.no_spin.then_some("--no-spin"));
            (command, name)
        };
        let (first, name) = side(cpus.first(), "the first side");
        let mut first = Process::start(first, name)?;
        let Report::Listening(port) = first.report(PATIENCE, stop)? else { return Err(first.astray()) };
        let (mut second, name) = side(cpus.last(), "the second side");
        second.arg(format!("--port={port}"));
        let second = Process::start(second, name)?;
        Ok(Self { sides: [first, second], monitor, _folder: folder, stop })
    }

    /// Lets both sides obey, each its own order, and waits for both.
    pub(super) fn both(&mut self, orders: [Order; 2], time: Duration) -> Result<[Report; 2], Failure> {
        for (side, order) in self.sides.iter_mut().zip(orders) {
            side.tell(order)?;
        }
        let [first, second] = &mut self.sides;
        // The second one measures, and knows more of what goes wrong.
        let asked = second.report(time + 2 * PATIENCE, self.stop)?;
        Ok([first.report(PATIENCE, self.stop)?, asked])
    }

    /// Lets the second side obey while the first one answers.
    pub(super) fn second(&mut self, order: Order, time: Duration) -> Result<Report, Failure> {
        self.sides[1].tell(order)?;
        self.sides[1].report(time + 2 * PATIENCE, self.stop)
    }

    /// Lets everyone rest.
    pub(super) fn pause(&self, time: Duration) -> Result<(), Failure> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Failure::Stopped);
            }
            thread::sleep(Duration::from_millis(20).min(time));
        }
        Ok(())
    }

    pub(super) fn monitor_cpu(&self) -> io::Result<Duration> {
        self.monitor.as_ref().map_or(Ok(Duration::ZERO), |monitor| clock::of_process(monitor.child.id()))
    }

    /// Bytes that each process holds.
    pub(super) fn memory(&self) -> io::Result<Bytes> {
        let [first, second] = &self.sides;
        Ok(Bytes {
            first: proportional_bytes(first.child.id())?,
            second: proportional_bytes(second.child.id())?,
            monitor: self
                .monitor
                .as_ref()
                .map_or(Ok(0.0), |monitor| proportional_bytes(monitor.child.id()))?,
        })
    }
}

fn start_monitor(
    program: &Path,
    socket: &Path,
    policy: &Path,
    stop: &AtomicBool,
) -> Result<Process, Failure> {
    let mut command = Command::new(program);
    command.args(["monitor", "--on-demand", "--linger", LINGER, "--socket"]).arg(socket);
    command.arg("--config").arg(policy).env("MEGAPIPE_LOG", "error");
    let mut monitor = Process::start(command, "the monitor")?;
    let deadline = Instant::now() + PATIENCE;
    while !socket.exists() {
        if stop.load(Ordering::Relaxed) {
            return Err(Failure::Stopped);
        }
        if Instant::now() > deadline || monitor.child.try_wait()?.is_some() {
            return Err(monitor.failure());
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(monitor)
}

/// Proportional set size of a process, without files: the pages of the program are in it by how
/// many processes run the same program at the moment, whoever started them.
fn proportional_bytes(pid: u32) -> io::Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let bytes = |name| {
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(rest.split_whitespace().next()?.parse::<f64>().ok()? * 1024.0)
    };
    let missing = || io::Error::other("smaps_rollup has no Pss_Anon and Pss_Shmem: they came with Linux 5.4");
    Ok(bytes("Pss_Anon:").ok_or_else(missing)? + bytes("Pss_Shmem:").ok_or_else(missing)?)
}

/// A running process, which ends by itself soon after its controller.
pub(super) struct Process {
    child: Child,
    orders: Option<ChildStdin>,
    reports: Receiver<String>,
    name: &'static str,
}

impl Process {
    fn start(mut command: Command, name: &'static str) -> io::Result<Self> {
        let mut child = Child::start(&mut command)?;
        let (sender, reports) = mpsc::channel();
        let orders = child.stdin.take();
        if let Some(output) = child.stdout.take() {
            // Ends with the process.
            thread::Builder::new().name("reports".into()).spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            })?;
        }
        Ok(Self { child, orders, reports, name })
    }

    fn tell(&mut self, order: Order) -> Result<(), Failure> {
        let text = serde_json::to_string(&order).map_err(io::Error::from)?;
        let told = self.orders.as_mut().map_or(Ok(()), |orders| writeln!(orders, "{text}"));
        told.map_err(|_| self.failure())
    }

    fn report(&mut self, patience: Duration, stop: &AtomicBool) -> Result<Report, Failure> {
        let deadline = Instant::now() + patience;
        loop {
            match self.reports.recv_timeout(Duration::from_millis(20)) {
                Ok(line) => return serde_json::from_str(&line).map_err(|_| self.astray()),
                Err(RecvTimeoutError::Disconnected) => return Err(self.failure()),
                Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => {
                    return Err(Failure::Stopped);
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() > deadline => {
                    let name = self.name;
                    return Err(Failure::Because(format!(
                        "{name} was not done in time; others may use the CPUs"
                    )));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// What it said is no answer to what it was told.
    pub(super) fn astray(&self) -> Failure {
        Failure::Because(format!("{} said something else than asked", self.name))
    }

    /// Ends it, for what it has complained of.
    fn failure(&mut self) -> Failure {
        let _ = self.child.kill();
        let words = self.child.complaint();
        Failure::Because(format!("{}: {}", self.name, words.as_deref().unwrap_or("ended without a word")))
    }
}

/// Seconds after which a monitor ends whose controller was killed.
const LINGER: &str = "3";
