//! The processes of a pair, and those that only keep CPUs busy, as their controller sees them.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use super::side::Task;
use super::transport::Side;
use crate::child::{self, Child};
use crate::cpu::CpuSet;

/// The hidden verb under which the program is one process of a pair.
pub const SIDE_VERB: &str = "side";

/// The hidden verb under which the program keeps a CPU busy.
pub const BUSY_VERB: &str = "busy";

/// A running process; dropping it ends it. It ends by itself when its controller is gone.
pub(super) struct Worker(Child);

impl Worker {
    /// Starts one side, which gets the descriptors; this process keeps none of them.
    pub(super) fn side(program: &Path, task: &Task, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let numbers = descriptors.iter().map(|descriptor| descriptor.as_raw_fd().to_string());
        let numbers = numbers.collect::<Vec<_>>().join(",");
        let mut command = Command::new(program);
        command
            .arg(SIDE_VERB)
            .args(["--scenario", task.scenario.name(), "--transport", task.transport.name()])
            .args(["--bytes", &task.bytes.to_string(), "--cpus", &task.cpus.to_string()])
            .args(["--warm-up-ns", &task.warm_up.as_nanos().to_string()])
            .args(["--window-ns", &task.window.as_nanos().to_string()])
            .args(["--descriptors", &numbers])
            .args(task.paced.then_some("--paced"))
            .args(task.verify.then_some("--verify"))
            .args((task.side == Side::Second).then_some("--second"))
            .args(task.peer.map(|peer| format!("--peer={peer}")));
        for descriptor in &descriptors {
            inherit(descriptor)?;
        }
        Child::start(&mut command).map(Self)
    }

    /// Starts a process that uses a CPU for a time.
    pub(super) fn busy(program: &Path, cpu: usize, time: Duration) -> io::Result<Self> {
        let mut command = Command::new(program);
        command
            .arg(BUSY_VERB)
            .args(["--cpu", &cpu.to_string()])
            .args(["--seconds", &time.as_secs().to_string()]);
        Child::start(&mut command).map(Self)
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Its exit status, once it has ended.
    pub(super) fn status(&mut self) -> io::Result<Option<ExitStatus>> {
        self.0.try_wait()
    }

    /// What an ended process has printed.
    pub(super) fn output(&mut self) -> String {
        self.0.stdout.take().map(child::text).unwrap_or_default()
    }

    /// What an ended process has complained of, in one line.
    pub(super) fn complaint(&mut self) -> Option<String> {
        self.0.complaint()
    }
}

/// Processes that want each of some CPUs all the time; dropping it ends them.
pub(crate) struct Crowd {
    _workers: Vec<Worker>,
}

impl Crowd {
    /// Starts `each` processes for each CPU.
    pub(crate) fn start(program: &Path, cpus: &CpuSet, each: usize, time: Duration) -> io::Result<Self> {
        let cpus = cpus.as_slice().iter().flat_map(|&cpu| std::iter::repeat_n(cpu, each));
        let workers = cpus.map(|cpu| Worker::busy(program, cpu, time)).collect::<io::Result<_>>()?;
        Ok(Self { _workers: workers })
    }
}

/// Lets the next program that is started have this descriptor.
fn inherit(descriptor: &OwnedFd) -> io::Result<()> {
    // SAFETY: a plain call on a descriptor that is open as long as `descriptor` lives.
    match unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_SETFD, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
