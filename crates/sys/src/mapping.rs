//! Anonymous memory mappings.

use std::io;
use std::ptr::{self, NonNull};

/// Zeroed, page-aligned memory of this process, unmapped on drop (mmap(2)).
pub struct Mapping {
    address: NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes; pages are taken when first touched.
    pub fn anonymous(len: usize) -> io::Result<Mapping> {
        let len = len.max(1);
        // SAFETY: a fresh anonymous mapping at an address the kernel chooses touches no
        // existing memory.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(address.cast())
            .map(|address| Mapping { address, len })
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
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
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.len) };
    }
}

/// Tells a process from its children after fork, by one load: a page that the kernel
/// gives to a child as zeroes (madvise(2), MADV_WIPEONFORK).
pub struct ForkMark {
    page: Mapping,
}

impl ForkMark {
    /// Marks this process.
    pub fn new() -> io::Result<ForkMark> {
        let page = Mapping::anonymous(1)?;
        // SAFETY: the advice concerns our own fresh mapping only.
        if unsafe { libc::madvise(page.address().cast(), page.len(), libc::MADV_WIPEONFORK) } != 0 {
            return Err(io::Error::last_os_error());
        }
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
