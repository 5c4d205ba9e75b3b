//! How the kernel divides a CPU between the calling thread and others.

use std::io;
use std::mem;
use std::num::NonZeroU64;
use std::time::Duration;

/// `struct sched_attr` as it was first (sched_setattr(2)), which is all that is used of it.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Asks for turns of this length (0.1 to 100 ms) instead of some milliseconds: shorter ones come
/// sooner when the thread wakes, and its share stays the same. It needs no privilege. Before Linux
/// 6.12 the kernel takes it and does not heed it.
///
/// # Errors
///
/// sched_setattr(2); InvalidInput for a thread that is no ordinary one (SCHED_OTHER), which stays as it is.
pub fn set_slice(slice: Duration) -> io::Result<()> {
    let mut attributes = Attributes::default();
    let size = mem::size_of::<Attributes>() as u32;
    // SAFETY: the kernel writes at most `size` bytes into a live struct.
    if unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if attributes.policy != libc::SCHED_OTHER as u32 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    attributes.runtime = u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX);
    // SAFETY: the kernel reads a live struct of the size that it names.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How late the kernel may let the calling thread's waits end, to make fewer interrupts of several: 50 us by
/// itself.
pub fn set_timer_slack(slack: Duration) {
    let slack = u64::try_from(slack.as_nanos()).unwrap_or(u64::MAX);
    // It cannot fail for the calling thread (PR_SET_TIMERSLACK of prctl(2)).
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(slack));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_thread_gets_short_turns_and_keeps_its_niceness() {
        let thread = std::thread::spawn(|| {
            // SAFETY: the calls take no memory of ours.
            let nice = || unsafe { libc::getpriority(libc::PRIO_PROCESS, libc::gettid() as libc::id_t) };
            let before = nice();
            set_slice(Duration::from_micros(100)).unwrap();
            assert_eq!(nice(), before);

            let idle = libc::sched_param { sched_priority: 0 };
            // SAFETY: the kernel reads one live struct.
            assert_eq!(unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const idle) }, 0);
            let refused = set_slice(Duration::from_micros(100)).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        });
        thread.join().unwrap();
    }
}
