//! The memory by which load and server take turns: who waits, looks at it and makes no system call.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sys::clock::monotonic;

/// A shared mapping with three counters, each in a cache line of its own.
pub(super) struct Gate {
    words: *const [Word; 3],
    file: File,
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
        // SAFETY: the name is a live string; the call gives a descriptor of ours or an error.
        let fd = unsafe { libc::memfd_create(c"mmsg".as_ptr(), 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let gate = Self::of(fd)?;
        Ok(gate)
    }

    /// That of a descriptor that this process has inherited.
    pub(super) fn of(fd: RawFd) -> io::Result<Self> {
        // SAFETY: it is a number that the controller passed for this, or has just got.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(size_of::<[Word; 3]>() as u64)?;
        // SAFETY: a fresh mapping at an address that the kernel chooses touches nothing else.
        let words = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<[Word; 3]>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        match words {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            words => Ok(Self { words: words.cast(), file }),
        }
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
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
        unsafe { &(*self.words)[word].0 }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours.
        unsafe { libc::munmap(self.words.cast_mut().cast(), size_of::<[Word; 3]>()) };
    }
}

/// How long one side waits for the other.
const PATIENCE: Duration = Duration::from_secs(10);
