//! Memory mappings: of this process alone, and shared with others.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, mmap_anonymous};

use crate::memory_file::{self, UnsoundFile};

/// Zeroed, page-aligned memory of this process, unmapped on drop (mmap(2)).
pub struct Mapping {
    address: NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes; pages are allocated when first touched.
    pub fn anonymous(len: usize) -> io::Result<Mapping> {
        let len = len.max(1);
        // SAFETY: a fresh anonymous mapping at an address the kernel chooses touches no
        // existing memory.
        let address = unsafe {
            mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        let address = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { address, len })
    }

    /// The first byte.
    pub fn address(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is mapped: never, kept for symmetry with `len`.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone, and its users hold it alive while they use it.
        let _ = unsafe { rustix::mm::munmap(self.address.as_ptr().cast(), self.len) };
    }
}

/// Why a shared file could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// Mapping it would be unsafe.
    #[error(transparent)]
    Unsound(#[from] UnsoundFile),
    /// mmap(2).
    #[error("the shared memory cannot be mapped: {0}")]
    Refused(#[source] io::Error),
}

/// Sealed memory that other processes map too, unmapped on drop. What lies in it may
/// change at any moment: it is reached through raw pointers and atomics only.
pub struct SharedMapping {
    address: NonNull<u8>,
    len: usize,
    number: u64,
    writable: bool,
}

// SAFETY: a mapping belongs to the process, not to a thread; it hands out only its address.
unsafe impl Send for SharedMapping {}
// SAFETY: as above.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps all `len` bytes of sealed memory to read and write.
    ///
    /// # Errors
    ///
    /// `Unsound` if the file is not sealed, or not of that size; `Refused` as mmap(2), with
    /// EACCES or EPERM for a descriptor that only reads.
    pub fn writable(fd: BorrowedFd<'_>, len: usize) -> Result<SharedMapping, MapError> {
        SharedMapping::map(fd, len, len, true)
    }

    /// Maps all `len` bytes of sealed memory to read.
    ///
    /// # Errors
    ///
    /// As for `writable`.
    pub fn read_only(fd: BorrowedFd<'_>, len: usize) -> Result<SharedMapping, MapError> {
        SharedMapping::map(fd, len, len, false)
    }

    /// Maps the first `part` of `len` bytes of sealed memory to read.
    ///
    /// # Errors
    ///
    /// As for `writable`; `Unsound` also if the part is larger than the whole.
    pub fn beginning(fd: BorrowedFd<'_>, len: usize, part: usize) -> Result<SharedMapping, MapError> {
        if part > len {
            return Err(UnsoundFile::Size { found: len as u64, expected: part as u64 }.into());
        }
        SharedMapping::map(fd, len, part, false)
    }

    fn map(fd: BorrowedFd<'_>, size: usize, len: usize, writable: bool) -> Result<SharedMapping, MapError> {
        let number = memory_file::check(fd, size as u64)?;
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a fresh mapping at an address the kernel chooses touches no existing
        // memory; the seals keep the file as long as the mapping for ever.
        let address = unsafe { rustix::mm::mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, fd, 0) }
            .map_err(|errno| MapError::Refused(errno.into()))?;
        match NonNull::new(address.cast()) {
            Some(address) => Ok(SharedMapping { address, len, number, writable }),
            None => Err(MapError::Refused(io::ErrorKind::OutOfMemory.into())),
        }
    }

    /// The first byte; writable only if the mapping is.
    #[inline]
    pub fn address(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    /// Bytes mapped.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is mapped: never, as mmap(2) refuses that.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether this process may write to it.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The file's number: equal for two mappings exactly if they show the same memory.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl std::fmt::Debug for SharedMapping {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("SharedMapping")
            .field("len", &self.len)
            .field("writable", &self.writable)
            .finish_non_exhaustive()
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone, and its users hold it alive while they use it.
        let _ = unsafe { rustix::mm::munmap(self.address.as_ptr().cast(), self.len) };
    }
}

/// Distinguishes a process from its children after fork, by one load: a page that the
/// kernel gives to a child as zeroes (madvise(2), MADV_WIPEONFORK).
pub struct ForkMark {
    page: Mapping,
}

// SAFETY: a page that is only read once it is made, and belongs to no thread.
unsafe impl Send for ForkMark {}
// SAFETY: as above.
unsafe impl Sync for ForkMark {}

impl ForkMark {
    /// Marks this process.
    pub fn new() -> io::Result<ForkMark> {
        let page = Mapping::anonymous(1)?;
        // SAFETY: the advice concerns our own fresh mapping only.
        unsafe { rustix::mm::madvise(page.address().cast(), page.len(), Advice::LinuxWipeOnFork) }?;
        // SAFETY: the mapping has at least one byte and no other user yet.
        unsafe { page.address().write(1) };
        Ok(ForkMark { page })
    }

    /// Whether this is the process that made the mark.
    #[inline]
    pub fn is_here(&self) -> bool {
        // SAFETY: the mapping has at least one byte; volatile since fork changes it.
        unsafe { self.page.address().read_volatile() == 1 }
    }
}
