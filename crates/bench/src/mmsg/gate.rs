//! The memory by which load and server take turns: who waits, looks at it and makes no system call.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::{FdFlags, fcntl_setfd};
use sys::clock::monotonic;
use sys::mapping::SharedMapping;
use sys::memory_file::MemoryFile;

/// A shared mapping with three counters, each in a cache line of its own.
pub(super) struct Gate {
    words: SharedMapping,
    memory: OwnedFd,
}

#[repr(align(128))]
struct Word(AtomicU64);

/// Bursts that were sent.
const SENT: usize = 0;
/// When the last one had been sent, by [`monotonic`].
const SENT_AT: usize = 1;
/// Bursts that were received.
const DONE: usize = 2;

impl Gate {
    /// A new one; the descriptor is inherited by children.
    pub(super) fn new() -> io::Result<Self> {
        let memory = MemoryFile::create("mmsg", size_of::<[Word; 3]>() as u64, &[])?.writable;
        fcntl_setfd(&memory, FdFlags::empty())?;
        Self::map(memory)
    }

    /// That of a descriptor that this process has inherited.
    pub(super) fn of(fd: RawFd) -> io::Result<Self> {
        // SAFETY: it is a number that the controller passed for this.
        Self::map(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn map(memory: OwnedFd) -> io::Result<Self> {
        let words =
            SharedMapping::writable(memory.as_fd(), size_of::<[Word; 3]>()).map_err(io::Error::other)?;
        Ok(Self { words, memory })
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.memory.as_raw_fd()
    }

    /// Says that so many bursts have been sent.
    pub(super) fn sent(&self, bursts: u64) {
        self.word(SENT_AT).store(monotonic(), Ordering::Relaxed);
        self.word(SENT).store(bursts, Ordering::Release);
    }

    /// Says that so many bursts have been received.
    pub(super) fn done(&self, bursts: u64) {
        self.word(DONE).store(bursts, Ordering::Release);
    }

    /// Waits until so many bursts have been sent; the time at which the last one had been. None
    /// if the load has gone.
    pub(super) fn wait_sent(&self, bursts: u64) -> Option<u64> {
        self.wait(SENT, bursts).then(|| self.word(SENT_AT).load(Ordering::Relaxed))
    }

    /// Waits until so many bursts have been received; whether it came to that.
    pub(super) fn wait_done(&self, bursts: u64) -> bool {
        self.wait(DONE, bursts)
    }

    fn wait(&self, word: usize, value: u64) -> bool {
        let began = Instant::now();
        loop {
            for _ in 0..1000 {
                if self.word(word).load(Ordering::Acquire) >= value {
                    return true;
                }
                std::hint::spin_loop();
            }
            if began.elapsed() > PATIENCE {
                return false;
            }
        }
    }

    fn word(&self, word: usize) -> &AtomicU64 {
        // SAFETY: the mapping lives as long as the value, and all use it atomically.
        unsafe { &(*self.words.address().cast::<[Word; 3]>())[word].0 }
    }
}

/// How long one side waits for the other.
const PATIENCE: Duration = Duration::from_secs(10);
