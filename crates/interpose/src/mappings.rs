//! Memory that is mapped once, for good.
#![allow(unsafe_code)] // mmap(2)

use std::io;
use std::ptr::null_mut;

/// Zeroed memory that is there for good, and takes room only where it is used.
pub(crate) fn reserve(len: usize) -> io::Result<*mut u8> {
    map(len, libc::MAP_PRIVATE)
}

/// The same, shared with all that is forked from this process.
pub(crate) fn reserve_shared(len: usize) -> io::Result<*mut u8> {
    map(len, libc::MAP_SHARED)
}

fn map(len: usize, kind: i32) -> io::Result<*mut u8> {
    // SAFETY: a new mapping, where nothing was.
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
