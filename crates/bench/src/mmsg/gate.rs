//! The memory by which load and server take turns: the one that waits polls it and makes no system call.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sys::clock::monotonic;

use crate::region::Region;

/// Three counters, each in a cache line pair of its own.
pub(super) struct Gate(Region);

/// Bytes of the memory.
pub(super) const BYTES: usize = 4096;
/// Bursts that were sent.
const SENT: usize = 0;
/// When the last one had been sent, by [`monotonic`].
const SENT_AT: usize = 128;
/// Bursts that were received.
const DONE: usize = 256;

impl Gate {
    /// In memory of [`BYTES`].
    pub(super) fn of(memory: impl AsFd) -> io::Result<Self> {
        Region::map(memory, BYTES).map(Self)
    }

    /// Says that so many bursts have been sent.
    pub(super) fn sent(&self, bursts: u64) {
        self.0.word(SENT_AT).store(monotonic(), Ordering::Relaxed);
        self.0.word(SENT).store(bursts, Ordering::Release);
    }

    /// Says that so many bursts have been received.
    pub(super) fn done(&self, bursts: u64) {
        self.0.word(DONE).store(bursts, Ordering::Release);
    }

    /// Waits until so many bursts have been sent; the time at which the last one had been. None
    /// if the load has gone.
    pub(super) fn wait_sent(&self, bursts: u64) -> Option<u64> {
        self.wait(SENT, bursts)?;
        Some(self.0.word(SENT_AT).load(Ordering::Relaxed))
    }

    /// Waits until so many bursts have been received; none if the server has gone.
    pub(super) fn wait_done(&self, bursts: u64) -> Option<()> {
        self.wait(DONE, bursts)
    }

    fn wait(&self, word: usize, value: u64) -> Option<()> {
        let word = self.0.word(word);
        let began = Instant::now();
        loop {
            for _ in 0..1000 {
                if word.load(Ordering::Acquire) >= value {
                    return Some(());
                }
                std::hint::spin_loop();
            }
            if began.elapsed() > PATIENCE {
                return None;
            }
        }
    }
}

/// How long one side waits for the other.
const PATIENCE: Duration = Duration::from_secs(10);
