//! The kind of each descriptor of this process, in one word each.
#![allow(unsafe_code)] // an array of words in memory that is mapped once, for good

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use crate::mappings;
use crate::sockets::{self, Socket};
use crate::uring::rings;
use crate::vfork;

/// The kind of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// It was created where the library did not see it.
    Unknown,
    /// Not handled by the library.
    Foreign,
    /// Not handled, but it may accept sockets of TCP: an MPTCP socket, whose peer may not support
    /// MPTCP.
    Multipath,
    /// The io_uring of this number, whose submissions are tracked.
    Ring(u32),
    /// Such an io_uring, which a thread is about to close.
    ClosingRing,
    /// The TCP socket of this number.
    Socket(u32),
    /// The epoll set of this number.
    Set(u32),
}

const UNKNOWN: u32 = 0;
const FOREIGN: u32 = 1;
const MULTIPATH: u32 = 2;
const CLOSING_RING: u32 = 3;
const RINGS: u32 = 4;
const SOCKETS: u32 = 17;
const SETS: u32 = 1 << 31;
const _: () = assert!(RINGS + rings::MOST <= SOCKETS);

/// Descriptors that are tracked at most. Higher ones stay on TCP.
const MOST: usize = 4 << 20;

static WORDS: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());
/// 0 until [`make`].
static LENGTH: AtomicUsize = AtomicUsize::new(0);
static END: AtomicI32 = AtomicI32::new(0);

/// Makes the table, for as many descriptors as this process may ever have. Its pages are allocated
/// as they are used.
pub(crate) fn make() -> std::io::Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let count = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(MOST).clamp(1024, MOST);
    let memory = mappings::reserve(count * size_of::<AtomicU32>(), libc::MAP_PRIVATE)?;
    WORDS.store(memory.cast(), Ordering::Relaxed);
    LENGTH.store(count, Ordering::Release);
    Ok(())
}

/// One above the highest descriptor that ever had an entry.
pub(crate) fn end() -> c_int {
    END.load(Ordering::Relaxed)
}

/// All descriptors that have this entry.
pub(crate) fn names(of: Entry) -> impl Iterator<Item = c_int> {
    (0..end()).filter(move |fd| entry(*fd) == of)
}

/// All open descriptors, from proc(5); the one used for reading is closed by now.
pub(crate) fn open() -> Vec<c_int> {
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[inline(always)]
fn word(fd: c_int) -> Option<&'static AtomicU32> {
    // A negative number exceeds every length.
    let place = fd as u32 as usize;
    if place < LENGTH.load(Ordering::Acquire) {
        // SAFETY: `make` mapped that many zeroed words for good before it stored the length.
        Some(unsafe { &*WORDS.load(Ordering::Relaxed).add(place) })
    } else {
        None
    }
}

/// Whether it is not handled by the library: the only check of a call about bytes on most
/// descriptors.
#[inline(always)]
pub(crate) fn is_foreign(fd: c_int) -> bool {
    word(fd).is_none_or(|word| word.load(Ordering::Relaxed) == FOREIGN)
}

#[inline(always)]
pub(crate) fn entry(fd: c_int) -> Entry {
    decode(word(fd).map_or(FOREIGN, |word| word.load(Ordering::Acquire)))
}

/// The socket of a descriptor, if it is tracked as one.
#[inline(always)]
pub(crate) fn socket(fd: c_int) -> Option<&'static Socket> {
    match entry(fd) {
        Entry::Socket(number) if !vfork::is_elsewhere() => Some(sockets::at(number)),
        _ => None,
    }
}

/// Changes an entry; returns what it was.
pub(crate) fn set(fd: c_int, entry: Entry) -> Entry {
    let value = encode(fd, entry);
    decode(word(fd).map_or(FOREIGN, |word| word.swap(value, Ordering::AcqRel)))
}

/// The io_uring at this number is closed; the number may be in use again, with an entry of its own.
pub(crate) fn ring_is_closed(fd: c_int) {
    if let Some(word) = word(fd) {
        let _ = word.compare_exchange(CLOSING_RING, UNKNOWN, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Makes an entry for an unknown descriptor. The error: the entry that it got meanwhile.
pub(crate) fn claim(fd: c_int, entry: Entry) -> Result<(), Entry> {
    let word = word(fd).ok_or(Entry::Foreign)?;
    let value = encode(fd, entry);
    let claimed = word.compare_exchange(UNKNOWN, value, Ordering::AcqRel, Ordering::Acquire);
    claimed.map(drop).map_err(decode)
}

/// The word of a new entry.
fn encode(fd: c_int, entry: Entry) -> u32 {
    let value = match entry {
        Entry::Unknown => UNKNOWN,
        Entry::Foreign => FOREIGN,
        Entry::Multipath => MULTIPATH,
        Entry::ClosingRing => CLOSING_RING,
        Entry::Ring(number) => RINGS + number,
        Entry::Socket(number) => SOCKETS + number,
        Entry::Set(number) => SETS + number,
    };
    if value > FOREIGN && fd >= end() {
        END.fetch_max(fd.saturating_add(1), Ordering::Relaxed);
    }
    value
}

#[inline(always)]
fn decode(value: u32) -> Entry {
    match value {
        UNKNOWN => Entry::Unknown,
        MULTIPATH => Entry::Multipath,
        CLOSING_RING => Entry::ClosingRing,
        set if set >= SETS => Entry::Set(set - SETS),
        socket if socket >= SOCKETS => Entry::Socket(socket - SOCKETS),
        ring if ring >= RINGS => Entry::Ring(ring - RINGS),
        _ => Entry::Foreign,
    }
}
