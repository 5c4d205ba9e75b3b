//! The processes of a pair, and those that only keep CPUs busy, as their controller sees them.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use super::side::Task;
use crate::child::{self, Child};
use crate::cpu::CpuSet;
use crate::part::Part;

/// A running process; dropping it ends it. It ends by itself when its controller is gone.
pub(super) struct Worker(Child);

impl Worker {
    /// Starts one side, which gets the descriptors; this process keeps none of them.
    pub(super) fn side(program: &Path, task: &Task, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        for descriptor in &descriptors {
            inherit(descriptor)?;
        }
        let numbers = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let part = Part::Side { task: task.clone(), descriptors: numbers };
        Child::start(&mut part.command(program)).map(Self)
    }

    /// Starts a process that uses a CPU for a time.
    pub(super) fn busy(program: &Path, cpu: usize, time: Duration) -> io::Result<Self> {
        Child::start(&mut Part::Busy { cpu, time }.command(program)).map(Self)
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
