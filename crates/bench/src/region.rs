//! Memory that processes share.

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU64;

use rustix::io::{FdFlags, fcntl_setfd};
use sys::mapping::SharedMapping;
use sys::memory_file::MemoryFile;

/// A mapping of the whole memory, readable and writable.
pub(crate) struct Region(SharedMapping);

/// Memory of `size` bytes, zeroed, whose descriptor children inherit.
pub(crate) fn create(size: usize) -> io::Result<OwnedFd> {
    let memory = MemoryFile::create("bench", size as u64, &[])?.writable;
    fcntl_setfd(&memory, FdFlags::empty())?;
    Ok(memory)
}

/// The descriptor of this number, which the controller has passed on for this process to own.
pub(crate) fn inherited(number: RawFd) -> OwnedFd {
    // SAFETY: by what the controller does.
    unsafe { OwnedFd::from_raw_fd(number) }
}

impl Region {
    pub(crate) fn map(memory: impl AsFd, size: usize) -> io::Result<Self> {
        SharedMapping::writable(memory.as_fd(), size).map(Self).map_err(io::Error::other)
    }

    /// The word at an offset: a multiple of 8, within the region.
    #[inline]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.0.len());
        // SAFETY: in bounds and aligned, as just checked; all processes use words only atomically
        // (each offset is either a word or data, by the constants of its users), and the mapping
        // lives as long as `self`.
        unsafe { AtomicU64::from_ptr(self.0.address().add(offset).cast()) }
    }

    /// Copies bytes into the region.
    ///
    /// # Safety
    ///
    /// The caller keeps the other process from touching these bytes meanwhile: it publishes them
    /// afterwards by a release store that the other one loads with acquire.
    #[inline]
    pub(crate) unsafe fn put(&self, offset: usize, bytes: &[u8]) {
        assert!(offset <= self.0.len() && bytes.len() <= self.0.len() - offset);
        // SAFETY: in bounds, as just checked; nobody else touches them, by the caller's promise.
        unsafe { self.0.address().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    /// Copies bytes out of the region.
    ///
    /// # Safety
    ///
    /// The other process published these bytes before, and does not touch them until it has loaded,
    /// with acquire, a word that the caller stores after this.
    #[inline]
    pub(crate) unsafe fn take(&self, offset: usize, bytes: &mut [u8]) {
        assert!(offset <= self.0.len() && bytes.len() <= self.0.len() - offset);
        // SAFETY: in bounds, as just checked; nobody writes them, by the caller's promise.
        unsafe { self.0.address().add(offset).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) }
    }
}
