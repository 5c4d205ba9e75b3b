//! The memory of a connection: the only place that touches shared bytes.
//!
//! Bytes of the ring are copied in and out by address. No reference to them is ever made,
//! since the peer may write them at any time. Words are atomics.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use crate::layout::{self, Header, LOOP_MAGIC, LayoutError, LoopHeader, RING_OFFSET, VERSION};
use crate::sync::Ordering;

/// The cache line size that the layout assumes.
const LINE: usize = 64;

/// Shared memory that begins with a region's header. The ring lies behind it.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    start: NonNull<u8>,
    ring_length: usize,
}

// SAFETY: the memory is shared by design. The creator of the mapping keeps it mapped
// while any value made of it lives, on any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; words are atomics, and ring bytes are only copied by address.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// # Safety
    /// As for [`Region::new`].
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
        // SAFETY: the caller of `new` guarantees at least MIN_SIZE mapped bytes, aligned
        // to a cache line, for as long as this lives; every word of a header is an atomic
        // or padding.
        unsafe { self.start.cast::<Header>().as_ref() }
    }

    #[inline(always)]
    fn ring(&self) -> *mut u8 {
        // SAFETY: the header is smaller than MIN_SIZE, so this stays inside the mapping.
        unsafe { self.start.as_ptr().add(RING_OFFSET) }
    }

    /// Splits `length` bytes from `index` on at the end of the ring. Whatever the
    /// arguments, both pieces lie in the ring.
    #[inline(always)]
    fn pieces(&self, index: usize, length: usize) -> (usize, usize, usize) {
        let index = if index >= self.ring_length { 0 } else { index };
        let first = length.min(self.ring_length - index);
        (index, first, (length - first).min(index))
    }

    #[inline(always)]
    fn copy_out(&self, index: usize, bytes: &mut [u8]) -> usize {
        let (index, first, second) = self.pieces(index, bytes.len());
        // SAFETY: as in `copy_in`, the other way. Concurrent writes by the peer make the
        // copied bytes arbitrary, which untrusted bytes are anyway.
        unsafe {
            copy(self.ring().add(index), bytes.as_mut_ptr(), first);
            if second > 0 {
                copy(self.ring(), bytes.as_mut_ptr().add(first), second);
            }
        }
        wrapped(index, first, second, self.ring_length)
    }
}

/// This endpoint's own region.
#[derive(Clone, Debug)]
pub struct Region(Mapping);

/// The peer's region, mapped read-only. Its contents are untrusted.
#[derive(Clone, Debug)]
pub struct PeerRegion(Mapping);

impl Region {
    /// The region at `start`, `length` bytes long.
    ///
    /// # Safety
    /// The memory stays mapped, readable and writable, and at least `length` bytes long,
    /// while this or a clone of it lives, and no references to it exist in this process.
    ///
    /// # Errors
    /// The memory is not a region of this size and version.
    pub unsafe fn new(start: NonNull<u8>, length: usize) -> Result<Region, LayoutError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { Mapping::new(start, length) }.map(Region)
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

    /// Copies `bytes` into the ring at position `index`, wrapping at its end, and returns
    /// the position behind them. Copies at most the ring's length.
    #[inline(always)]
    pub(crate) fn copy_in(&self, index: usize, bytes: &[u8]) -> usize {
        let (index, first, second) = self.0.pieces(index, bytes.len());
        // SAFETY: `pieces` keeps both runs inside the ring and inside `bytes`; a slice of
        // this process is never part of the shared mapping, by the contract of `new`.
        unsafe {
            copy(bytes.as_ptr(), self.0.ring().add(index), first);
            if second > 0 {
                copy(bytes.as_ptr().add(first), self.0.ring(), second);
            }
        }
        wrapped(index, first, second, self.0.ring_length)
    }

    /// As [`PeerRegion::copy_out`].
    pub(crate) fn copy_out(&self, index: usize, bytes: &mut [u8]) -> usize {
        self.0.copy_out(index, bytes)
    }
}

impl PeerRegion {
    /// The peer's region at `start`, `length` bytes long.
    ///
    /// # Safety
    /// The memory stays mapped, readable, and at least `length` bytes long, while this or
    /// a clone of it lives, and no references to it exist in this process. Nothing is
    /// ever written there.
    ///
    /// # Errors
    /// The memory is not a region of this size and version.
    pub unsafe fn new(start: NonNull<u8>, length: usize) -> Result<PeerRegion, LayoutError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { Mapping::new(start, length) }.map(PeerRegion)
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

    /// Prefetches the cache line behind the ring's first bytes.
    #[inline(always)]
    pub(crate) fn prefetch_second_line(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch affects only caches; the address is inside the mapping
        // anyway.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.0.ring().add(LINE - RING_OFFSET % LINE).cast());
        }
    }

    /// Fills `bytes` from position `index` of the ring on, wrapping at its end, and
    /// returns the position behind. Copies at most the ring's length.
    #[inline(always)]
    pub(crate) fn copy_out(&self, index: usize, bytes: &mut [u8]) -> usize {
        self.0.copy_out(index, bytes)
    }
}

/// Copies `length` bytes. Small messages avoid the call of memcpy(3): their first and
/// last words are copied, which overlap if the length is not a word's.
///
/// # Safety
/// Both runs are inside mapped memory, and do not overlap.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    /// Copies the first and the last `T` of the run.
    ///
    /// # Safety
    /// As for `copy`; the run is at least as long as one `T`.
    #[inline(always)]
    unsafe fn copy_overlapping<T>(from: *const u8, to: *mut u8, length: usize) {
        let last = length - size_of::<T>();
        // SAFETY: both words are inside the run, by the contract.
        unsafe {
            let words = (from.cast::<T>().read_unaligned(), from.add(last).cast::<T>().read_unaligned());
            to.cast::<T>().write_unaligned(words.0);
            to.add(last).cast::<T>().write_unaligned(words.1);
        }
    }
    // SAFETY: each arm's type fits its lengths; the remaining conditions are this
    // function's contract.
    unsafe {
        match length {
            4..8 => copy_overlapping::<u32>(from, to, length),
            8..16 => copy_overlapping::<u64>(from, to, length),
            16..=32 => copy_overlapping::<u128>(from, to, length),
            33..=64 => copy_overlapping::<[u128; 2]>(from, to, length),
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
    /// LOOP_PAGE_SIZE bytes stay mapped and readable (the own page: writable, too) while
    /// this lives.
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
        // SAFETY: the caller of `new` keeps the page mapped; all of it is atomics or
        // padding.
        unsafe { self.0.as_ref() }
    }
}
