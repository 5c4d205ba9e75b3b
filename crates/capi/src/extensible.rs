//! Structs whose first field is their size, so that fields can be added at the end without breaking
//! programs that were compiled before: the convention of clone3(2) and openat2(2).

use std::ptr;

use crate::errno::{Errno, INVALID};

/// Bytes that no version of a struct has: a size beyond was never initialised.
const MOST: usize = 4096;

/// A struct that begins with its size in bytes.
///
/// # Safety
///
/// The type is `repr(C)`, has a `usize` as its first field, no padding, and is valid whatever its
/// bytes are.
pub(crate) unsafe trait Extensible: Copy {
    /// Bytes of the first published version; no program has a smaller one.
    const FIRST: usize;
}

/// Reads a struct of another version than the library's, smaller or larger. Fields that it lacks
/// are 0; those that the library lacks must be.
///
/// # Safety
///
/// `from` points to a `usize` that is the size of the readable memory it begins.
pub(crate) unsafe fn read<T: Extensible>(from: *const T) -> Result<T, Errno> {
    let (ours, bytes) = (size_of::<T>(), from.cast::<u8>());
    // SAFETY: the caller promises a readable `usize`; it need not be aligned.
    let size = unsafe { from.cast::<usize>().read_unaligned() };
    if size < T::FIRST {
        return Err(INVALID);
    }
    if size > MOST {
        return Err(Errno(libc::E2BIG));
    }
    // SAFETY: all bytes 0 are a value of the type.
    let mut value: T = unsafe { std::mem::zeroed() };
    // SAFETY: the caller's memory has `size` bytes and ours has size_of::<T>(), whose fields take
    // any bytes; no more than the smaller count is copied.
    unsafe { ptr::copy_nonoverlapping(bytes, (&raw mut value).cast::<u8>(), size.min(ours)) };
    if size > ours {
        // SAFETY: so many bytes are left of the caller's `size`.
        let rest = unsafe { std::slice::from_raw_parts(bytes.add(ours), size - ours) };
        if rest.iter().any(|&byte| byte != 0) {
            return Err(Errno(libc::E2BIG));
        }
    }
    Ok(value)
}

/// Writes a struct for a caller whose version has `size` bytes: no more of it than fits, and 0 for
/// what the library lacks.
///
/// # Safety
///
/// `to` is valid for writes of `size` bytes.
pub(crate) unsafe fn write<T: Copy>(value: &T, to: *mut T, size: usize) {
    let ours = size.min(size_of::<T>());
    let bytes = to.cast::<u8>();
    // SAFETY: `ours` is at most the size of either, and the two make up the caller's `size`.
    unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>(), bytes, ours);
        ptr::write_bytes(bytes.add(ours), 0, size - ours);
    }
}
