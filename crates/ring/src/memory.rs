//! The memory of a connection: the only place that touches shared bytes.
//!
//! Bytes of the ring are copied in and out by address, and no reference to them is ever
//! made, since the other end may write them at any time. Words are atomics.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use crate::layout::{self, Header, LOOP_MAGIC, LayoutError, LoopHeader, RING_OFFSET, VERSION};
use crate::sync::Ordering;

/// A cache line: what the layout counts on.
const LINE: usize = 64;

/// Shared memory that begins with a segment's header. The ring lies behind it.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    start: NonNull<u8>,
    ring_length: usize,
}

// SAFETY: the memory is shared by its nature; whoever made the mapping keeps it mapped
// while any value made of it lives, on whatever thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; words are atomics, and ring bytes are only copied by address.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// # Safety
    /// As for [`Segment::new`].
    unsafe fn new(start: NonNull<u8>, length: usize) -> Result<Mapping, LayoutError> {
        layout::check_size(length)?;
        if !start.as_ptr().addr().is_multiple_of(LINE) {
            return Err(LayoutError::Alignment);
        }
        let mapping = Mapping { start, ring_length: length - RING_OFFSET };
        let header = mapping.header();
        layout::check_words(
            header.magic.load(Ordering::Relaxed),
            header.version.load(Ordering::Relaxed),
            header.size.load(Ordering::Relaxed),
            length,
        )?;
        Ok(mapping)
    }

    #[inline(always)]
    fn header(&self) -> &Header {
        // SAFETY: `new`'s caller gave at least MIN_SIZE mapped bytes, aligned to a line,
        // for as long as this lives; every word of a header is an atomic or padding.
        unsafe { self.start.cast::<Header>().as_ref() }
    }

    #[inline(always)]
    fn ring(&self) -> *mut u8 {
        // SAFETY: the header is smaller than MIN_SIZE, so this stays inside the mapping.
        unsafe { self.start.as_ptr().add(RING_OFFSET) }
    }

    /// Splits a run of `length` bytes from `index` on where the ring's end cuts it. Whatever
    /// the arguments, both pieces lie in the ring.
    #[inline(always)]
    fn pieces(&self, index: usize, length: usize) -> (usize, usize, usize) {
        let index = if index >= self.ring_length { 0 } else { index };
        let first = length.min(self.ring_length - index);
        (index, first, (length - first).min(index))
    }

    #[inline(always)]
    fn copy_out(&self, index: usize, bytes: &mut [u8]) -> usize {
        let (index, first, second) = self.pieces(index, bytes.len());
        // SAFETY: as in `copy_in`, the other way. What the other end writes meanwhile makes
        // the copied bytes arbitrary, which bytes of a stranger are anyway.
        unsafe {
            copy(self.ring().add(index), bytes.as_mut_ptr(), first);
            if second > 0 {
                copy(self.ring(), bytes.as_mut_ptr().add(first), second);
            }
        }
        wrapped(index, first, second, self.ring_length)
    }
}

/// This end's own segment.
#[derive(Clone, Debug)]
pub struct Segment(Mapping);

/// The other end's segment, which is mapped read-only. Whatever it says is a claim.
#[derive(Clone, Debug)]
pub struct PeerSegment(Mapping);

impl Segment {
    /// The segment at `start`, `length` bytes.
    ///
    /// # Safety
    /// The memory stays mapped, readable and writable, and at least `length` bytes long,
    /// while this or a clone of it lives, and nobody in this process makes references to it.
    ///
    /// # Errors
    /// What lies there is no segment of this size and version.
    pub unsafe fn new(start: NonNull<u8>, length: usize) -> Result<Segment, LayoutError> {
        // SAFETY: the caller keeps the same promise.
        unsafe { Mapping::new(start, length) }.map(Segment)
    }

    #[inline(always)]
    pub(crate) fn header(&self) -> &Header {
        self.0.header()
    }

    /// Bytes of the ring.
    #[inline(always)]
    pub fn ring_length(&self) -> usize {
        self.0.ring_length
    }

    /// Copies `bytes` into the ring from position `index` on, around its end; returns the
    /// position behind them. Not more than the ring's length is copied.
    #[inline(always)]
    pub(crate) fn copy_in(&self, index: usize, bytes: &[u8]) -> usize {
        let (index, first, second) = self.0.pieces(index, bytes.len());
        // SAFETY: `pieces` keeps both runs inside the ring and inside `bytes`; a slice of
        // this process is never part of the shared mapping, as `new`'s caller promised.
        unsafe {
            copy(bytes.as_ptr(), self.0.ring().add(index), first);
            if second > 0 {
                copy(bytes.as_ptr().add(first), self.0.ring(), second);
            }
        }
        wrapped(index, first, second, self.0.ring_length)
    }

    /// As [`PeerSegment::copy_out`].
    pub(crate) fn copy_out(&self, index: usize, bytes: &mut [u8]) -> usize {
        self.0.copy_out(index, bytes)
    }
}

impl PeerSegment {
    /// The other end's segment at `start`, `length` bytes.
    ///
    /// # Safety
    /// The memory stays mapped, readable, and at least `length` bytes long, while this or a
    /// clone of it lives, and nobody in this process makes references to it. Nothing is ever
    /// written there.
    ///
    /// # Errors
    /// What lies there is no segment of this size and version.
    pub unsafe fn new(start: NonNull<u8>, length: usize) -> Result<PeerSegment, LayoutError> {
        // SAFETY: the caller keeps the same promise.
        unsafe { Mapping::new(start, length) }.map(PeerSegment)
    }

    /// For loads only: the mapping is read-only.
    #[inline(always)]
    pub(crate) fn header(&self) -> &Header {
        self.0.header()
    }

    /// Bytes of the ring.
    #[inline(always)]
    pub fn ring_length(&self) -> usize {
        self.0.ring_length
    }

    /// Has the line behind the ring's first bytes fetched.
    #[inline(always)]
    pub(crate) fn prefetch_second_line(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch has no effect but on caches; the place is inside the mapping anyway.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.0.ring().add(LINE - RING_OFFSET % LINE).cast());
        }
    }

    /// Copies from position `index` of the ring on, around its end, until `bytes` is full;
    /// returns the position behind. Not more than the ring's length is copied.
    #[inline(always)]
    pub(crate) fn copy_out(&self, index: usize, bytes: &mut [u8]) -> usize {
        self.0.copy_out(index, bytes)
    }
}

/// Copies `length` bytes. Small messages do without a call of memcpy(3): first and last
/// words, which overlap where the length is none of theirs.
///
/// # Safety
/// Both runs are inside mapped memory, and do not overlap.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    /// The first and the last `T` of the run.
    ///
    /// # Safety
    /// As for `copy`; the run is as long as one `T` at least.
    #[inline(always)]
    unsafe fn ends<T>(from: *const u8, to: *mut u8, length: usize) {
        let last = length - size_of::<T>();
        // SAFETY: both places are inside the run, says the caller.
        unsafe {
            let words = (from.cast::<T>().read_unaligned(), from.add(last).cast::<T>().read_unaligned());
            to.cast::<T>().write_unaligned(words.0);
            to.add(last).cast::<T>().write_unaligned(words.1);
        }
    }
    // SAFETY: each arm's type fits its lengths; the rest is the caller's promise.
    unsafe {
        match length {
            4..8 => ends::<u32>(from, to, length),
            8..16 => ends::<u64>(from, to, length),
            16..=32 => ends::<u128>(from, to, length),
            33..=64 => ends::<[u128; 2]>(from, to, length),
            _ => std::ptr::copy_nonoverlapping(from, to, length),
        }
    }
}

#[inline(always)]
fn wrapped(index: usize, first: usize, second: usize, ring_length: usize) -> usize {
    let behind = index + first;
    if behind < ring_length { behind } else { second }
}

/// A mapped loop page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageMemory(NonNull<LoopHeader>);

// SAFETY: as for `Mapping`.
unsafe impl Send for PageMemory {}
// SAFETY: as for `Mapping`.
unsafe impl Sync for PageMemory {}

impl PageMemory {
    /// # Safety
    /// A loop page's size of memory stays mapped and readable (the own page: writable too)
    /// while this lives.
    pub(crate) unsafe fn new(start: NonNull<u8>) -> Result<PageMemory, LayoutError> {
        if !start.as_ptr().addr().is_multiple_of(LINE) {
            return Err(LayoutError::Alignment);
        }
        let page = PageMemory(start.cast());
        match (page.header().magic.load(Ordering::Relaxed), page.header().version.load(Ordering::Relaxed)) {
            (LOOP_MAGIC, VERSION) => Ok(page),
            (LOOP_MAGIC, version) => Err(LayoutError::Version(version)),
            (magic, _) => Err(LayoutError::Magic(magic)),
        }
    }

    #[inline(always)]
    pub(crate) fn header(&self) -> &LoopHeader {
        // SAFETY: `new`'s caller keeps the page mapped; all of it is atomics or padding.
        unsafe { self.0.as_ref() }
    }
}
