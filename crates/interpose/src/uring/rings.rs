//! The rings whose submissions are read, through a mapping of the library's own (io_uring_setup(2)).
#![allow(unsafe_code)] // memory that the kernel and the program write, too

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::lock::Lock;

/// The most rings that are followed: as many numbers as the descriptor table has for them.
pub(crate) const MOST: u32 = 13;

// linux/io_uring.h
const SETUP_SQE128: u32 = 1 << 10;
const SETUP_REGISTERED_FD_ONLY: u32 = 1 << 15;
const SETUP_NO_SQARRAY: u32 = 1 << 16;
/// IOPOLL, SQ_AFF to TASKRUN_FLAG, SQE128 to DEFER_TASKRUN, NO_SQARRAY to CQE_MIXED. Not among them: SQPOLL, whose
/// submissions no call announces; NO_MMAP and REGISTERED_FD_ONLY, which leave nothing to map; SQE_MIXED.
const KNOWN: u32 = 0b1 | 0b11_1111_1100 | 0b1111 << 10 | 0b111 << 16;
const OFFSET_OF_ENTRIES: u64 = 0x1000_0000;
const NOP: u8 = 0;

/// `struct io_uring_params`, as the kernel has filled it.
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
    /// Whether io_uring_setup(2) has returned a number among registered rings, and no descriptor.
    pub(crate) fn has_no_descriptor(&self) -> bool {
        self.flags & SETUP_REGISTERED_FD_ONLY != 0
    }
}

/// One submission (`struct io_uring_sqe`): what of it is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    pub(crate) operation: u8,
    pub(crate) flags: u8,
    pub(crate) fd: c_int,
    pub(crate) offset: u64,
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) other_fd: c_int,
    /// Where it lies.
    at: usize,
}

/// A mapping of so many bytes.
struct Mapping {
    memory: NonNull<u8>,
    length: usize,
}

impl Mapping {
    fn new(ring: c_int, offset: u64, length: usize) -> Option<Mapping> {
        // SAFETY: a descriptor that the kernel has just returned.
        let ring = unsafe { BorrowedFd::borrow_raw(ring) };
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, where nothing was.
        let memory = unsafe { mmap(std::ptr::null_mut(), length, protection, flags, ring, offset) };
        Some(Mapping { memory: NonNull::new(memory.ok()?.cast())?, length })
    }

    /// An aligned word of it, if it lies there.
    fn word(&self, offset: usize) -> Option<&AtomicU32> {
        let lies_here = offset.is_multiple_of(4) && offset.checked_add(4)? <= self.length;
        // SAFETY: within the mapping, which is there until it is dropped; the kernel and the program write it, too.
        lies_here.then(|| unsafe { AtomicU32::from_ptr(self.memory.as_ptr().add(offset).cast()) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody refers to it any more.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), self.length) };
    }
}

/// Where the submissions of one ring lie.
struct View {
    words: Mapping,
    entries: Mapping,
    head: usize,
    tail: usize,
    count: u32,
    /// `None`: each place of the queue has the entry of the same number.
    array: Option<usize>,
    /// Bytes from one entry to the next.
    stride: usize,
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
        Some(View { words, entries, head, tail, count: params.entries, array, stride })
    }

    /// The entry that the kernel takes so many behind the next one. `None`: there is none, or it is none of the ring.
    fn at(&self, place: u32) -> Option<usize> {
        // The program has stored the entries before the tail, and the kernel has taken those before the head.
        let tail = self.words.word(self.tail)?.load(Ordering::Acquire);
        let head = self.words.word(self.head)?.load(Ordering::Acquire);
        if place >= tail.wrapping_sub(head).min(self.count) {
            return None;
        }
        let slot = head.wrapping_add(place) & (self.count - 1);
        let number = match self.array {
            Some(array) => self.words.word(array + 4 * slot as usize)?.load(Ordering::Relaxed),
            None => slot,
        };
        (number < self.count).then(|| number as usize * self.stride)
    }

    fn read(&self, at: usize) -> Option<Entry> {
        let word = |offset: usize| Some(self.entries.word(at + offset)?.load(Ordering::Relaxed));
        let two = |offset: usize| Some(u64::from(word(offset)?) | u64::from(word(offset + 4)?) << 32);
        let [operation, flags, ..] = word(0)?.to_ne_bytes();
        Some(Entry {
            operation,
            flags,
            fd: word(4)?.cast_signed(),
            offset: two(8)?,
            address: two(16)?,
            length: word(24)?,
            other_fd: word(44)?.cast_signed(),
            at,
        })
    }

    /// Has this entry do nothing, which succeeds, if it is still there.
    fn empty(&self, entry: Entry) -> Option<()> {
        let at = entry.at;
        let first = self.entries.word(at)?;
        let [operation, flags, low, high] = first.load(Ordering::Relaxed).to_ne_bytes();
        let fd = self.entries.word(at + 4)?.load(Ordering::Relaxed).cast_signed();
        if (operation, fd) != (entry.operation, entry.fd) {
            return None;
        }
        first.store(u32::from_ne_bytes([NOP, flags, low, high]), Ordering::Relaxed);
        // Flags of the operation, of which this one knows others.
        self.entries.word(at + 28)?.store(0, Ordering::Relaxed);
        Some(())
    }
}

/// One ring that is followed.
struct Ring {
    lock: Lock,
    /// Descriptors that name it; 0: it is free.
    names: AtomicU32,
    view: UnsafeCell<Option<View>>,
}

// SAFETY: `view` is reached with the lock held only.
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

/// Follows a ring that was just made; its number. `None`: it cannot be followed.
pub(crate) fn follow(ring: c_int, params: &Params) -> Option<u32> {
    let view = View::new(ring, params)?;
    let is_free =
        |ring: &&Ring| ring.names.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    let number = RINGS.iter().position(|ring| is_free(&ring))?;
    RINGS[number].with(|place| *place = Some(view));
    Some(number as u32)
}

/// One more descriptor names it.
pub(crate) fn name(number: u32) {
    RINGS[number as usize].names.fetch_add(1, Ordering::Relaxed);
}

/// One of its descriptors is gone.
pub(crate) fn remove(number: u32) {
    let ring = &RINGS[number as usize];
    ring.with(|view| {
        if ring.names.fetch_sub(1, Ordering::AcqRel) == 1 {
            // A mapping keeps the kernel's ring.
            *view = None;
        }
    });
}

/// The submission that the kernel takes so many behind the next one.
pub(crate) fn submission(number: u32, place: u32) -> Option<Entry> {
    RINGS[number as usize].with(|view| view.as_ref().and_then(|view| view.read(view.at(place)?)))
}

/// Has one do nothing, which succeeds.
pub(crate) fn empty(number: u32, entry: Entry) {
    RINGS[number as usize].with(|view| view.as_ref().and_then(|view| view.empty(entry)));
}

/// In the child of a fork, where no other thread holds a lock.
pub(crate) fn forked() {
    RINGS.iter().for_each(|ring| ring.lock.reset());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    /// A file in place of a ring, whose words and offsets are anything.
    #[test]
    fn nothing_that_a_ring_may_hold_is_read_beside_it() {
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
            // What lies beyond the file the kernel maps too, and nobody may touch.
            if head.max(tail).max(array) > 1 << 12 {
                continue;
            }
            let Some(number) = follow(file.as_raw_fd(), &zero) else { continue };
            for place in 0..64 {
                let word = |view: &mut Option<View>| {
                    view.as_ref().and_then(|view| view.words.word(4 * (any() as usize % 256))).map(|word| {
                        word.store(if any() % 2 == 0 { any() } else { any() % 64 }, Ordering::Relaxed);
                    })
                };
                RINGS[number as usize].with(word);
                if let Some(entry) = submission(number, place) {
                    read += 1;
                    empty(number, entry);
                }
            }
            remove(number);
        }
        assert!(read > 10_000, "{read}");
    }
}
