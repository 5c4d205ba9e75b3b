//! Counting by perf events on the tracepoint (perf_event_open(2)).

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::FromRawFd;

/// One event per thread; threads that start later are counted with their creator.
#[derive(Debug)]
pub(super) struct Counter {
    events: Vec<File>,
}

impl Counter {
    pub(super) fn attach(pid: u32) -> io::Result<Self> {
        let tracepoint = tracepoint()?;
        let mut events = Vec::new();
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            let name = thread?.file_name();
            let thread = name.to_str().and_then(|name| name.parse().ok());
            events.push(open(tracepoint, thread.ok_or(io::ErrorKind::InvalidData)?)?);
        }
        Ok(Self { events })
    }

    pub(super) fn count(&self) -> io::Result<u64> {
        let mut sum = 0;
        for mut event in &self.events {
            let mut count = [0; 8];
            event.read_exact(&mut count)?;
            sum += u64::from_ne_bytes(count);
        }
        Ok(sum)
    }
}

/// The number of the tracepoint; it differs from kernel to kernel.
fn tracepoint() -> io::Result<u64> {
    let text = fs::read_to_string("/sys/kernel/tracing/events/raw_syscalls/sys_enter/id")
        .or_else(|_| fs::read_to_string("/sys/kernel/debug/tracing/events/raw_syscalls/sys_enter/id"))?;
    let malformed = |_| io::ErrorKind::InvalidData.into();
    text.trim().parse().map_err(malformed)
}

fn open(tracepoint: u64, thread: i32) -> io::Result<File> {
    let attributes = Attributes {
        kind: PERF_TYPE_TRACEPOINT,
        size: size_of::<Attributes>() as u32,
        config: tracepoint,
        sample_period: 0,
        sample_type: 0,
        read_format: 0,
        flags: FLAG_INHERIT,
        wakeup_events: 0,
        breakpoint_kind: 0,
        config1: 0,
    };
    // SAFETY: `attributes` has the layout of the first published perf_event_attr and says its
    // size; the descriptor that comes back is nobody else's.
    unsafe {
        match libc::syscall(libc::SYS_perf_event_open, &attributes, thread, -1, -1, PERF_FLAG_FD_CLOEXEC) {
            -1 => Err(io::Error::last_os_error()),
            descriptor => Ok(File::from_raw_fd(descriptor as i32)),
        }
    }
}

/// `struct perf_event_attr` in its first published size, PERF_ATTR_SIZE_VER0.
#[repr(C)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_kind: u32,
    config1: u64,
}

const _: () = assert!(size_of::<Attributes>() == 64);

// linux/perf_event.h
const PERF_TYPE_TRACEPOINT: u32 = 2;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;

/// `inherit`, the second bit of the flags.
const FLAG_INHERIT: u64 = 1 << 1;
