//! Memory that the two processes share.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// A mapping of a whole memfd, readable and writable.
pub(super) struct Segment {
    start: NonNull<u8>,
    size: usize,
}

/// Memory of `size` bytes, zeroed; two descriptors of it, one for each end.
pub(super) fn create(size: usize) -> io::Result<[Vec<OwnedFd>; 2]> {
    // SAFETY: the name is a C string; the call has no other memory to read or write.
    let descriptor = unsafe { libc::memfd_create(c"bench".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    let memory = File::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
    memory.set_len(size as u64)?;
    Ok([vec![memory.try_clone()?.into()], vec![memory.into()]])
}

impl Segment {
    /// Maps the memory, whose pages are all brought in at once.
    pub(super) fn map(memory: OwnedFd) -> io::Result<Self> {
        let memory = File::from(memory);
        let size = memory.metadata()?.len() as usize;
        // SAFETY: a new mapping at a place of the kernel's choice touches no memory of ours. The
        // file never shrinks: only the two processes have it, and neither truncates it.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                memory.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        match NonNull::new(start.cast::<u8>()) {
            Some(start) => Ok(Self { start, size }),
            None => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// The word at an offset: a multiple of 8, within the segment.
    pub(super) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.size);
        // SAFETY: in bounds and aligned, as just checked; both processes use words only atomically
        // (each offset is either a word or data, by the constants of the transport), and the mapping
        // lives as long as `self`.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }

    /// Copies bytes into the segment.
    ///
    /// # Safety
    ///
    /// The caller keeps the other process from touching these bytes meanwhile: it publishes them
    /// afterwards by a release store that the other one loads with acquire.
    #[inline]
    pub(super) unsafe fn put(&self, offset: usize, bytes: &[u8]) {
        assert!(offset <= self.size && bytes.len() <= self.size - offset);
        // SAFETY: in bounds, as just checked; nobody else touches them, by the caller's promise.
        unsafe { self.start.as_ptr().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    /// Copies bytes out of the segment.
    ///
    /// # Safety
    ///
    /// The other process published these bytes before, and does not touch them until it has loaded,
    /// with acquire, a word that the caller stores after this.
    #[inline]
    pub(super) unsafe fn take(&self, offset: usize, bytes: &mut [u8]) {
        assert!(offset <= self.size && bytes.len() <= self.size - offset);
        // SAFETY: in bounds, as just checked; nobody writes them, by the caller's promise.
        unsafe { self.start.as_ptr().add(offset).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no reference into it outlives the value.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.size) };
    }
}
