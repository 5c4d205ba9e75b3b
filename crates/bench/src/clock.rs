//! CPU clocks of threads and of other processes.

use std::fs;
use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::thread::JoinHandle;
use std::time::Duration;

/// CPU time that all threads of process `pid` have used, ended ones included.
pub fn of_process(pid: u32) -> io::Result<Duration> {
    let mut clock = 0;
    // SAFETY: `clock` is valid for the write; a pid that is gone is reported as an error.
    match unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &mut clock) } {
        0 => read(clock),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Time that the threads of process `pid` were ready to run while something else had their CPU.
///
/// `None` where the kernel keeps no such statistics (CONFIG_SCHED_INFO).
pub fn waited_for_cpu(pid: u32) -> Option<Duration> {
    let mut sum = Duration::ZERO;
    for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let statistics = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        let nanoseconds = statistics.split_whitespace().nth(1)?.parse().ok()?;
        sum += Duration::from_nanos(nanoseconds);
    }
    Some(sum)
}

/// CPU time that a running thread of this process has used.
pub fn of_thread<T>(thread: &JoinHandle<T>) -> io::Result<Duration> {
    let mut clock = 0;
    // SAFETY: the handle is not joined, so its pthread_t is alive; `clock` is valid for the write.
    match unsafe { libc::pthread_getcpuclockid(thread.as_pthread_t(), &mut clock) } {
        0 => read(clock),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// CPU time that the calling thread has used.
pub fn of_this_thread() -> io::Result<Duration> {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn read(clock: libc::clockid_t) -> io::Result<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the write.
    match unsafe { libc::clock_gettime(clock, &mut time) } {
        0 => Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32)),
        _ => Err(io::Error::last_os_error()),
    }
}
