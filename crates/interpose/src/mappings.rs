//! Memory that is never unmapped.
#![allow(unsafe_code)] // mmap(2)

use std::io;
use std::ptr::null_mut;

/// Maps zeroed memory for good; pages are allocated as they are used. `kind`: MAP_PRIVATE, or
/// MAP_SHARED with all forked processes.
pub(crate) fn reserve(len: usize, kind: i32) -> io::Result<*mut u8> {
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let memory = unsafe {
        libc::mmap(
            null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            kind | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if memory == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(memory.cast()) }
}
