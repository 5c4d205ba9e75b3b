//! On which CPUs a thread runs.

use std::io;

/// Lets the calling thread run on this CPU alone.
pub(crate) fn bind(cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    set(cpu..cpu + 1)
}

/// Lets it run wherever the process may.
pub(crate) fn bind_to_all() -> io::Result<()> {
    set(0..libc::CPU_SETSIZE as usize)
}

/// CPUs of the machine.
pub(crate) fn count() -> usize {
    // SAFETY: no pointers.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(count).unwrap_or(1)
}

fn set(cpus: std::ops::Range<usize>) -> io::Result<()> {
    // SAFETY: all bytes zero are an empty set; the indices are below its size, as both callers see to.
    let status = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        cpus.for_each(|cpu| libc::CPU_SET(cpu, &mut set));
        libc::sched_setaffinity(0, size_of_val(&set), &set)
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
