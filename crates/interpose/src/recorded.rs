//! For `megapipe run --stats`: this process's counters in memory that the recorder reads, so that
//! they survive a killed process.
#![allow(unsafe_code)] // memory is mapped over a static

use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use promote::recorder::Address;
use promote::summary::{Counters, PAGE};
use promote::wire::Name;
use rustix::fs::MemfdFlags;

use crate::stats::COUNTERS;

/// The recorder, and the name of this program.
static RECORDER: OnceLock<(Address, Name)> = OnceLock::new();
/// The recorder has this process's counters.
static SHARED: AtomicBool = AtomicBool::new(false);

/// At the start, before anything is counted. If the recorder cannot be reached the process prints
/// its own summary.
pub(crate) fn start(address: Address, name: &str) {
    let _ = RECORDER.set((address, Name::new(name)));
    share();
}

/// Whether the recorder prints this process's summary.
pub(crate) fn is_recorded() -> bool {
    SHARED.load(Ordering::Relaxed)
}

/// The process exits: its line is to be printed before the next output of its caller.
pub(crate) fn finish() {
    if let Some((address, _)) = RECORDER.get().filter(|_| is_recorded()) {
        // Otherwise the recorder prints it a moment later.
        let _ = address.end();
    }
}

/// In the child of a fork, which gets counters of its own.
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

/// Maps other, zeroed memory over the counters; `None`: private memory.
fn map(file: Option<&std::os::fd::OwnedFd>) -> bool {
    const _: () = assert!(PAGE == 4096 && align_of::<Counters>() == PAGE);
    let (kind, fd) = match file {
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    let place = (&raw const COUNTERS).cast_mut().cast();
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the page holds only COUNTERS, by its size and alignment; those are atomics, for which
    // zeroes, and any bytes of another process, are valid. No other thread counts: this is the
    // start of the program, or of a forked process. The file is a page long, and only this process
    // and the recorder, which does not truncate it, have it.
    unsafe { libc::mmap(place, PAGE, access, kind | libc::MAP_FIXED, fd, 0) == place }
}
