//! How many processes hold a plain socket: only the last holder promotes it, since the others might
//! use it in any way.
//!
//! A socket that survives a fork gets a count in memory that the processes share. A process that
//! dies without closing leaves the count too high, and the socket on TCP.
#![allow(unsafe_code)] // an array of words in memory that is mapped once, for good

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::mappings;

/// Sockets that several processes may hold at a time; others stay on TCP.
const MOST: u32 = 1 << 16;
/// Attempts of a fork to find a free count.
const TRIES: u32 = 64;

static COUNTS: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());
/// Where this process searches next.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// The index of a socket's count, plus 1.
#[derive(Debug, Default)]
pub(crate) struct Holders(AtomicU32);

/// No other process has it, as far as is seen.
const ALONE: u32 = 0;
/// No count was free: it stays on TCP.
const UNCOUNTED: u32 = u32::MAX;

/// Maps the counts.
pub(crate) fn make() -> std::io::Result<()> {
    let memory = mappings::reserve(MOST as usize * size_of::<AtomicU32>(), libc::MAP_SHARED)?;
    COUNTS.store(memory.cast(), Ordering::Release);
    Ok(())
}

fn count(place: u32) -> &'static AtomicU32 {
    // SAFETY: `make` mapped that many zeroed words for good before any index was issued.
    unsafe { &*COUNTS.load(Ordering::Acquire).add((place % MOST) as usize) }
}

impl Holders {
    /// A new socket.
    pub(crate) fn reset(&self) {
        self.0.store(ALONE, Ordering::Relaxed);
    }

    /// This process is about to fork.
    pub(crate) fn fork(&self) {
        match self.0.load(Ordering::Relaxed) {
            UNCOUNTED => {}
            ALONE => {
                for _ in 0..TRIES {
                    let place = NEXT.fetch_add(1, Ordering::Relaxed) % MOST;
                    let free = count(place).compare_exchange(0, 2, Ordering::AcqRel, Ordering::Relaxed);
                    if free.is_ok() {
                        return self.0.store(place + 1, Ordering::Relaxed);
                    }
                }
                self.0.store(UNCOUNTED, Ordering::Relaxed);
            }
            place => drop(count(place - 1).fetch_add(1, Ordering::AcqRel)),
        }
    }

    /// The fork failed, or this process has no descriptor of the socket any more.
    pub(crate) fn give_up(&self) {
        match self.0.load(Ordering::Relaxed) {
            ALONE | UNCOUNTED => {}
            place => drop(count(place - 1).fetch_sub(1, Ordering::AcqRel)),
        }
    }

    /// Whether other processes may hold it.
    pub(crate) fn are_several(&self) -> bool {
        match self.0.load(Ordering::Relaxed) {
            ALONE => false,
            UNCOUNTED => true,
            place => count(place - 1).load(Ordering::Acquire) > 1,
        }
    }
}
