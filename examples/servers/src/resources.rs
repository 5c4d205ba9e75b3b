//! What a server of so many threads takes from the system, looked at before anything is started.

use std::thread;

use megapipe::Config;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use thiserror::Error;

/// Descriptors of the process, and of each thread: the ring or epoll, its eventfd, the listener, and one for what is
/// done in passing.
const DESCRIPTORS_RESERVED: u64 = 16;
const DESCRIPTORS_PER_THREAD: u64 = 4;
const MIB: u64 = 1 << 20;

/// A limit of the system that the server would meet.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum ResourceError {
    #[error(
        "{threads} threads need {needed} descriptors and the limit of open files (RLIMIT_NOFILE) is {limit}; use \
         fewer with --threads, or raise it: ulimit -n {needed} (systemd: LimitNOFILE={needed})"
    )]
    Descriptors { threads: usize, needed: u64, limit: u64 },
    #[error(
        "{threads} threads need {needed} MiB for their buffers and there are {available} MiB of memory; use at \
         most {} with --threads", available * MIB / buffers_per_thread()
    )]
    Memory { threads: usize, needed: u64, available: u64 },
}

/// Checks that `threads` threads can be had, with one connection at least. Raises the limit of descriptors as far as
/// need be and may be; returns how many of the connections `wanted` fit.
pub(crate) fn reserve(threads: usize, wanted: usize) -> Result<usize, ResourceError> {
    let needed = (threads as u64).saturating_mul(buffers_per_thread()) / MIB;
    let available = memory() / MIB;
    if needed > available {
        return Err(ResourceError::Memory { threads, needed, available });
    }
    let reserved = (threads as u64).saturating_mul(DESCRIPTORS_PER_THREAD) + DESCRIPTORS_RESERVED;
    let needed = reserved.saturating_add(wanted as u64);
    let limit = raise_open_files(needed);
    if limit <= reserved {
        return Err(ResourceError::Descriptors { threads, needed: reserved + 1, limit });
    }
    let connections = (limit - reserved).min(wanted as u64) as usize;
    if connections < wanted {
        tracing::warn!(
            "--max-connections {wanted} needs {needed} descriptors, of which the limit (ulimit -n) allows {limit}: \
             it is {connections} now"
        );
    }
    let cpus = thread::available_parallelism().map_or(usize::MAX, usize::from);
    if threads > cpus {
        tracing::warn!(
            "{threads} threads share {cpus} CPUs, which costs more than it brings; --threads {cpus} is best"
        );
    }
    Ok(connections)
}

/// Raises the soft limit of open files to the hard one if it is below `wanted`; the limit of now.
fn raise_open_files(wanted: u64) -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let (soft, hard) = (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX));
    if soft >= wanted || soft == hard {
        return soft;
    }
    // A seccomp filter may forbid it.
    match setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        Ok(()) => hard,
        Err(_) => soft,
    }
}

/// Bytes of memory that this process may use: those of the machine, or of its container.
pub fn memory() -> u64 {
    let system = rustix::system::sysinfo();
    let machine = (system.totalram as u64).saturating_mul(u64::from(system.mem_unit.max(1)));
    // In a container the root of the control groups is its own; outside there is no such file.
    let container = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    container.and_then(|limit| limit.trim().parse().ok()).map_or(machine, |limit: u64| limit.min(machine))
}

/// Bytes of the buffers of one thread's channel when all are in use.
fn buffers_per_thread() -> u64 {
    let config = Config::default();
    (u64::from(config.read_buffers) + u64::from(config.write_buffers)) * u64::from(config.buffer_size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_threads_are_refused_with_the_limit_that_they_meet() {
        let Err(error) = reserve(usize::MAX, 1) else { panic!("no machine has so much memory") };
        assert!(matches!(error, ResourceError::Memory { .. }), "{error}");
        assert!(error.to_string().contains("--threads"), "{error}");
    }

    #[test]
    fn one_thread_can_be_had() {
        assert_eq!(reserve(1, 1), Ok(1));
    }
}
