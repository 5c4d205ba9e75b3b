//! Tracked io_urings, whose submissions are read through a mapping of the library's own
//! (io_uring_setup(2)).
#![allow(unsafe_code)] // memory that the kernel and the program write, too

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use promote::summary::RingObstacle;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::lock::Lock;
use crate::table;

/// Rings that are tracked at most: the descriptor table has as many numbers for them.
pub(crate) const MOST: u32 = 13;

// linux/io_uring.h
const SETUP_IOPOLL: u32 = 1;
const SETUP_SQPOLL: u32 = 1 << 1;
const SETUP_SQE128: u32 = 1 << 10;
const SETUP_REGISTERED_FD_ONLY: u32 = 1 << 15;
const SETUP_NO_SQARRAY: u32 = 1 << 16;
/// IOPOLL, SQ_AFF to TASKRUN_FLAG, SQE128 to DEFER_TASKRUN, NO_SQARRAY to CQE_MIXED. Not among
/// them: SQPOLL, whose submissions no call announces; NO_MMAP and REGISTERED_FD_ONLY, which leave
/// nothing to map; SQE_MIXED.
const KNOWN: u32 = SETUP_IOPOLL | 0b11_1111_1100 | 0b1111 << 10 | 0b111 << 16;
const OFFSET_OF_ENTRIES: u64 = 0x1000_0000;
const NOP: u8 = 0;
/// Flags of a submission: its descriptor is the number of a registered file; it waits for all
/// before it, and all behind wait for it; those behind wait for it.
const FIXED_FILE: u8 = 1;
const DRAINED: u8 = 0b10;
const LINKED: u8 = 0b1100;
/// It does not run at once; it posts no completion on success.
const NEUTRAL: u8 = 0b101_0000;

/// `struct io_uring_params`, as the kernel returned it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Params {
    entries: u32,
    completions: u32,
    flags: u32,
    other: [u32; 7],
    head: u32,
    tail: u32,
    mask: u32,
    more: [u32; 3],
    array: u32,
    rest: [u32; 13],
}

const _: () = assert!(size_of::<Params>() == 120);

impl Params {
    /// Why such a ring cannot be tracked.
    pub(crate) fn obstacle(&self) -> RingObstacle {
        match self.flags {
            flags if flags & SETUP_SQPOLL != 0 => RingObstacle::Polled,
            flags if flags & !KNOWN != 0 => RingObstacle::Form,
            _ => RingObstacle::Many,
        }
    }

    /// Whether io_uring_setup(2) returned the index of a registered ring instead of a descriptor.
    pub(crate) fn has_no_descriptor(&self) -> bool {
        self.flags & SETUP_REGISTERED_FD_ONLY != 0
    }
}

/// One submission (`struct io_uring_sqe`): the fields that are used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    pub(crate) operation: u8,
    flags: u8,
    pub(crate) fd: c_int,
    pub(crate) offset: u64,
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) other_fd: c_int,
    /// The kernel runs it with this submission, and does not refuse it for other fields.
    pub(crate) is_certain: bool,
    /// Its offset in the mapping.
    at: usize,
}

impl Entry {
    /// Its descriptor is the index of a registered file.
    pub(crate) fn is_of_registered_file(&self) -> bool {
        self.flags & FIXED_FILE != 0
    }
}

/// A mapping of a ring.
struct Mapping {
    memory: NonNull<u8>,
    length: usize,
}

impl Mapping {
    fn new(ring: c_int, offset: u64, length: usize) -> Option<Mapping> {
        // SAFETY: a descriptor that the kernel has just returned.
        let ring = unsafe { BorrowedFd::borrow_raw(ring) };
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let memory = unsafe { mmap(std::ptr::null_mut(), length, protection, flags, ring, offset) };
        Some(Mapping { memory: NonNull::new(memory.ok()?.cast())?, length })
    }

    /// The aligned word at an offset, if the mapping has it.
    fn word(&self, offset: usize) -> Option<&AtomicU32> {
        let lies_here = offset.is_multiple_of(4) && offset.checked_add(4)? <= self.length;
        // SAFETY: within the mapping, which lives until it is dropped; the kernel and the program
        // write it, too.
        lies_here.then(|| unsafe { AtomicU32::from_ptr(self.memory.as_ptr().add(offset).cast()) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: no reference to it is left.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), self.length) };
    }
}

/// The submissions of one ring, and the position up to which they were read.
struct View {
    words: Mapping,
    entries: Mapping,
    head: usize,
    tail: usize,
    count: u32,
    /// `None`: each position of the queue has the entry of the same number.
    array: Option<usize>,
    /// Bytes from one entry to the next.
    stride: usize,
    /// It completes by polling devices, and refuses operations on other files (IOPOLL).
    is_polled: bool,
    /// A submission waited for all before it: later ones may wait for that.
    is_drained: bool,
    /// The first position that was not read.
    read: u32,
    /// The first position that no call in progress may submit.
    allowed: u32,
}

impl View {
    fn new(ring: c_int, params: &Params) -> Option<View> {
        if params.flags & !KNOWN != 0 || !params.entries.is_power_of_two() {
            return None;
        }
        let places = params.entries as usize;
        let array = (params.flags & SETUP_NO_SQARRAY == 0).then_some(params.array as usize);
        let [head, tail] = [params.head, params.tail].map(|offset| offset as usize);
        let end = array.map_or(0, |array| array + 4 * places).max(head + 4).max(tail + 4);
        let stride = if params.flags & SETUP_SQE128 == 0 { 64 } else { 128 };
        let words = Mapping::new(ring, 0, end)?;
        let entries = Mapping::new(ring, OFFSET_OF_ENTRIES, places * stride)?;
        let is_polled = params.flags & SETUP_IOPOLL != 0;
        let count = params.entries;
        let (is_drained, read, allowed) = (false, 0, 0);
        Some(View { words, entries, head, tail, count, array, stride, is_polled, is_drained, read, allowed })
    }

    /// Passes each submission to `run` once, which returns whether it did the operation. Returns
    /// how many of `count` this call may submit: those that were passed on, and that no other call
    /// in progress is to submit.
    fn submits(&mut self, count: u32, mut run: impl FnMut(Entry) -> bool) -> Option<u32> {
        // The kernel has consumed those before the head, and the program has stored those before
        // the tail.
        let head = self.words.word(self.head)?.load(Ordering::Acquire);
        let tail = self.words.word(self.tail)?.load(Ordering::Acquire);
        let queued = tail.wrapping_sub(head).min(self.count);
        // Another process with this ring, or a program that withdrew submissions, moves both words
        // past ours.
        let behind_head = |place: u32| place.wrapping_sub(head);
        let first = behind_head(self.read);
        let mut is_linked = false;
        for place in if first <= queued { first } else { 0 }..queued {
            // The kernel, too, skips invalid indices.
            let Some(mut entry) = self.at(head.wrapping_add(place)).and_then(|at| self.read(at)) else {
                continue;
            };
            self.is_drained |= entry.flags & DRAINED != 0;
            let is_linked_on = entry.flags & LINKED != 0;
            entry.is_certain &= !(self.is_polled || self.is_drained || is_linked || is_linked_on);
            is_linked = is_linked_on;
            if run(entry) {
                self.empty(entry);
            }
        }
        self.read = head.wrapping_add(queued);
        let allowed = behind_head(self.allowed);
        let from = if allowed <= queued { allowed } else { 0 };
        let most = count.min(queued - from);
        self.allowed = head.wrapping_add(from + most);
        Some(most)
    }

    /// The entry at a position of the queue. `None`: its index is invalid.
    fn at(&self, place: u32) -> Option<usize> {
        let slot = place & (self.count - 1);
        let number = match self.array {
            Some(array) => self.words.word(array + 4 * slot as usize)?.load(Ordering::Relaxed),
            None => slot,
        };
        (number < self.count).then(|| number as usize * self.stride)
    }

    fn read(&self, at: usize) -> Option<Entry> {
        let word = |offset: usize| Some(self.entries.word(at + offset)?.load(Ordering::Relaxed));
        let two = |offset: usize| Some(u64::from(word(offset)?) | u64::from(word(offset + 4)?) << 32);
        let [operation, flags, priority @ ..] = word(0)?.to_ne_bytes();
        // Includes flags of the operation, a buffer's index and a personality.
        let is_bare = priority == [0; 2] && word(28)? == 0 && word(40)? == 0;
        Some(Entry {
            operation,
            flags,
            fd: word(4)?.cast_signed(),
            offset: two(8)?,
            address: two(16)?,
            length: word(24)?,
            other_fd: word(44)?.cast_signed(),
            is_certain: is_bare && flags & !NEUTRAL == 0,
            at,
        })
    }

    /// Replaces this entry by a NOP, which succeeds, if it is still there.
    fn empty(&self, entry: Entry) -> Option<()> {
        let at = entry.at;
        let first = self.entries.word(at)?;
        let [operation, flags, low, high] = first.load(Ordering::Relaxed).to_ne_bytes();
        let fd = self.entries.word(at + 4)?.load(Ordering::Relaxed).cast_signed();
        if (operation, fd) != (entry.operation, entry.fd) {
            return None;
        }
        first.store(u32::from_ne_bytes([NOP, flags, low, high]), Ordering::Relaxed);
        // Flags of the operation, which NOP defines differently.
        self.entries.word(at + 28)?.store(0, Ordering::Relaxed);
        Some(())
    }
}

/// One tracked ring.
struct Ring {
    lock: Lock,
    /// Its descriptors; 0: this record is free.
    names: AtomicU32,
    view: UnsafeCell<Option<View>>,
}

// SAFETY: `view` is reached only with the lock held.
unsafe impl Sync for Ring {}

static RINGS: [Ring; MOST as usize] =
    [const { Ring { lock: Lock::new(), names: AtomicU32::new(0), view: UnsafeCell::new(None) } };
        MOST as usize];

impl Ring {
    fn with<T>(&self, run: impl FnOnce(&mut Option<View>) -> T) -> T {
        let _held = self.lock.hold();
        // SAFETY: the lock is held.
        run(unsafe { &mut *self.view.get() })
    }
}

/// Whether a ring was ever tracked.
static ANY: AtomicBool = AtomicBool::new(false);

/// Whether rings may create descriptors in this process.
#[inline]
pub(crate) fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Threads that are creating a ring which is not in the descriptor table yet.
static MAKING: AtomicU32 = AtomicU32::new(0);

/// Counts such a thread, until it is dropped.
pub(crate) struct Making;

impl Making {
    pub(crate) fn begin() -> Making {
        MAKING.fetch_add(1, Ordering::AcqRel);
        Making
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        MAKING.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Whether a ring without an entry may be tracked soon.
pub(crate) fn are_made() -> bool {
    MAKING.load(Ordering::Acquire) > 0
}

/// Tracks a new ring; returns its number. `None`: it cannot be tracked.
pub(crate) fn track(ring: c_int, params: &Params) -> Option<u32> {
    let view = View::new(ring, params)?;
    let is_free =
        |ring: &&Ring| ring.names.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    let number = RINGS.iter().position(|ring| is_free(&ring))?;
    RINGS[number].with(|place| *place = Some(view));
    ANY.store(true, Ordering::Relaxed);
    Some(number as u32)
}

/// Another descriptor refers to it.
pub(crate) fn name(number: u32) {
    RINGS[number as usize].names.fetch_add(1, Ordering::Relaxed);
}

/// One of its descriptors was closed.
pub(crate) fn remove(number: u32) {
    let ring = &RINGS[number as usize];
    ring.with(|view| {
        if ring.names.fetch_sub(1, Ordering::AcqRel) == 1 {
            // A mapping keeps the kernel's ring. Removed from here first: a fork may come between.
            drop(view.take());
        }
    });
}

/// Before a call that submits `count`: passes each submission to `run` once, including those that
/// another thread has queued, since this call may submit them. If `run` did the operation the entry
/// is replaced by a NOP, which succeeds. Returns how many the call may submit: others may be
/// queued, unread, before the kernel gets the call.
pub(crate) fn submits(number: u32, count: u32, run: impl FnMut(Entry) -> bool) -> u32 {
    RINGS[number as usize].with(|view| match view {
        Some(view) => view.submits(count, run).unwrap_or(count),
        // Another thread is closing it.
        None => 0,
    })
}

/// After the call: `count` of those were not submitted.
pub(crate) fn left(number: u32, count: u32) {
    RINGS[number as usize].with(|view| {
        if let Some(view) = view {
            view.allowed = view.allowed.wrapping_sub(count);
        }
    });
}

/// In the child of a fork: no other thread holds a lock.
pub(crate) fn forked() {
    MAKING.store(0, Ordering::Relaxed);
    if any() {
        // The threads that were closing them are not here.
        table::names(table::Entry::ClosingRing).for_each(table::ring_is_closed);
    }
    RINGS.iter().for_each(|ring| ring.lock.reset());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    /// A file in place of a ring, with random words and offsets.
    #[test]
    fn no_ring_contents_cause_reads_outside_it() {
        let file = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
        rustix::fs::ftruncate(&file, OFFSET_OF_ENTRIES + (1 << 16)).expect("room");
        let mut state = 1u64;
        let mut any = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u32
        };
        let mut read = 0;
        for _ in 0..20_000 {
            let mut offset = || if any() % 8 == 0 { any() } else { any() % 64 * 4 };
            let (head, tail, array) = (offset(), offset(), offset());
            let flags = [0, SETUP_SQE128, SETUP_NO_SQARRAY, any()][any() as usize % 4];
            let entries = if any() % 8 == 0 { any() } else { 1 << (any() % 10) };
            let zero = Params {
                entries,
                completions: 0,
                flags,
                other: [0; 7],
                head,
                tail,
                mask: 0,
                more: [0; 3],
                array,
                rest: [0; 13],
            };
            // The kernel maps what is beyond the file, too, and an access there faults.
            if head.max(tail).max(array) > 1 << 12 {
                continue;
            }
            let Some(number) = track(file.as_raw_fd(), &zero) else { continue };
            for place in 0..64 {
                let word = |view: &mut Option<View>| {
                    view.as_ref().and_then(|view| view.words.word(4 * (any() as usize % 256))).map(|word| {
                        word.store(if any() % 2 == 0 { any() } else { any() % 64 }, Ordering::Relaxed);
                    })
                };
                RINGS[number as usize].with(word);
                let allowed = submits(number, place, |entry| {
                    read += 1;
                    entry.operation % 2 == 0
                });
                assert!(allowed <= place);
                left(number, any() % (allowed + 1));
            }
            remove(number);
        }
        assert!(read > 10_000, "{read}");
    }
}
