//! Memory that the two processes share.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;

use sys::mapping::SharedMapping;
use sys::memory_file::MemoryFile;

/// A mapping of the whole memory, readable and writable.
pub(super) struct Segment(SharedMapping);

/// Memory of `size` bytes, zeroed; two descriptors of it, one for each end.
pub(super) fn create(size: usize) -> io::Result<[Vec<OwnedFd>; 2]> {
    let memory = MemoryFile::create("bench", size as u64, &[])?.writable;
    Ok([vec![memory.try_clone()?], vec![memory]])
}

impl Segment {
    pub(super) fn map(memory: OwnedFd, size: usize) -> io::Result<Self> {
        SharedMapping::writable(memory.as_fd(), size).map(Self).map_err(io::Error::other)
    }

    /// The word at an offset: a multiple of 8, within the segment.
    #[inline]
    pub(super) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.0.len());
        // SAFETY: in bounds and aligned, as just checked; both processes use words only atomically
        // (each offset is either a word or data, by the constants of the transport), and the mapping
        // lives as long as `self`.
        unsafe { AtomicU64::from_ptr(self.0.address().add(offset).cast()) }
    }

    /// Copies bytes into the segment.
    ///
    /// # Safety
    ///
    /// The caller keeps the other process from touching these bytes meanwhile: it publishes them
    /// afterwards by a release store that the other one loads with acquire.
    #[inline]
    pub(super) unsafe fn put(&self, offset: usize, bytes: &[u8]) {
        assert!(offset <= self.0.len() && bytes.len() <= self.0.len() - offset);
        // SAFETY: in bounds, as just checked; nobody else touches them, by the caller's promise.
        unsafe { self.0.address().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    /// Copies bytes out of the segment.
    ///
    /// # Safety
    ///
    /// The other process published these bytes before, and does not touch them until it has loaded,
    /// with acquire, a word that the caller stores after this.
    #[inline]
    pub(super) unsafe fn take(&self, offset: usize, bytes: &mut [u8]) {
        assert!(offset <= self.0.len() && bytes.len() <= self.0.len() - offset);
        // SAFETY: in bounds, as just checked; nobody writes them, by the caller's promise.
        unsafe { self.0.address().add(offset).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) }
    }
}
