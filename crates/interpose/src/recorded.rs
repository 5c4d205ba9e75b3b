//! Under `megapipe run --stats`: this process's counters in memory that the recorder reads, so that
//! they outlive a process that is killed.
#![allow(unsafe_code)] // memory is mapped over a static

use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use promote::recorder::Address;
use promote::summary::{Counters, PAGE};
use promote::wire::Name;
use rustix::fs::MemfdFlags;

use crate::stats::COUNTERS;

/// The recorder, and what this program is called.
static RECORDER: OnceLock<(Address, Name)> = OnceLock::new();
/// It has this process's counters.
static SHARED: AtomicBool = AtomicBool::new(false);

/// At the start, before anything is counted. Without a recorder that can be reached the process
/// prints its summary by itself.
pub(crate) fn start(address: Address, name: &str) {
    let _ = RECORDER.set((address, Name::new(name)));
    share();
}

/// Whether the recorder prints this process's summary.
pub(crate) fn is_recorded() -> bool {
    SHARED.load(Ordering::Relaxed)
}

/// The process ends by itself: its line is to come before whatever its caller prints next.
pub(crate) fn ends() {
    if let Some((address, _)) = RECORDER.get().filter(|_| is_recorded()) {
        // Otherwise the recorder prints it a moment later.
        let _ = address.end();
    }
}

/// In the child of a fork, which counts for itself: not in its parent's memory.
pub(crate) fn forked() {
    if SHARED.swap(false, Ordering::Relaxed) && map(None) {
        share();
    }
    COUNTERS.clear();
}

fn share() {
    let Some((address, name)) = RECORDER.get() else { return };
    let Ok(memory) = rustix::fs::memfd_create(c"megapipe-stats", MemfdFlags::CLOEXEC) else { return };
    let is_there = rustix::fs::ftruncate(&memory, PAGE as u64).is_ok() && map(Some(&memory));
    if is_there && address.begin(*name, memory.as_fd()).is_ok() {
        SHARED.store(true, Ordering::Relaxed);
    }
}

/// Puts other memory, zeroed, under the counters; `None`: memory of this process alone.
fn map(file: Option<&std::os::fd::OwnedFd>) -> bool {
    const _: () = assert!(PAGE == 4096 && align_of::<Counters>() == PAGE);
    let (kind, fd) = match file {
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    let place = (&raw const COUNTERS).cast_mut().cast();
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the page holds COUNTERS and nothing else, as its size and alignment say; those are
    // atomics, for which zeroes, and whatever another process writes, are values. No other thread
    // counts: this is the start of the program, or of a forked process. The file is a page long,
    // and only this process and the recorder, which shortens nothing, have it.
    unsafe { libc::mmap(place, PAGE, access, kind | libc::MAP_FIXED, fd, 0) == place }
}
