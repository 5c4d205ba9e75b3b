//! CPU clocks of threads and of other processes.

use std::fs;
use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::thread::JoinHandle;
use std::time::Duration;

/// CPU time that all threads of process `pid` have used, ended ones included.
pub fn of_process(pid: u32) -> io::Result<Duration> {
    // SAFETY: the clock is valid for the write; a pid that is gone is reported as an error.
    of(|clock| unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, clock) })
}

/// CPU time that a running thread of this process has used.
pub fn of_thread<T>(thread: &JoinHandle<T>) -> io::Result<Duration> {
    // SAFETY: the handle is not joined, so its pthread_t is alive; the clock is valid for the write.
    of(|clock| unsafe { libc::pthread_getcpuclockid(thread.as_pthread_t(), clock) })
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

fn of(find: impl FnOnce(&mut libc::clockid_t) -> i32) -> io::Result<Duration> {
    let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    match find(&mut clock) {
        0 => {}
        error => return Err(io::Error::from_raw_os_error(error)),
    }
    // SAFETY: `time` is valid for the write.
    match unsafe { libc::clock_gettime(clock, &mut time) } {
        0 => Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32)),
        _ => Err(io::Error::last_os_error()),
    }
}
