//! Handles: registering, naming and ending them.

use std::ffi::{c_int, c_void};

use megapipe::CpuSet;

use crate::dispatch::number_of;
use crate::errno::{Errno, HANDLES, INVALID, STALE, int, long};
use crate::number::{self, LWSOCKET};
use crate::thread::{Slot, with_channel, with_handle};

/// See mp_register(3).
///
/// # Safety
///
/// `fd`, if it is a descriptor, is the caller's to give away; `cpu_mask` is null or valid
/// for reads of `cpu_mask_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_register(
    channel: *const Slot,
    fd: c_int,
    cookie: *mut c_void,
    cpu_mask: *const c_void,
    cpu_mask_size: usize,
) -> i64 {
    if channel.is_null() {
        return long(Err(INVALID));
    }
    let cookie = cookie as u64;
    long(with_channel(channel, |inner| {
        let handle = if !cpu_mask.is_null() {
            if fd < 0 {
                return Err(STALE);
            }
            if is_lwsocket(fd) {
                return Err(Errno(libc::EOPNOTSUPP));
            }
            // SAFETY: as the caller promises for `cpu_mask`.
            let mask = unsafe { read_mask(cpu_mask, cpu_mask_size) }?;
            // SAFETY: borrowed for this call; a closed descriptor is reported.
            let listener = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
            inner.channel.register_partitioned(listener, cookie, &mask)?
        } else if is_lwsocket(fd) {
            if inner.channel.handles_full() {
                return Err(HANDLES);
            }
            let socket = inner.lwsockets.take((fd & !LWSOCKET) as u32).ok_or(STALE)?;
            inner.channel.register(socket, cookie)?
        } else {
            // SAFETY: as the caller promises for `fd`.
            unsafe { inner.channel.register_raw(fd, cookie) }?
        };
        Ok(number::from_handle(inner.number, handle))
    }))
}

/// See mp_unregister(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_unregister(handle: i64) -> c_int {
    int(with_handle(handle, |inner, handle| {
        inner.channel.check_unregister(handle)?;
        inner.channel.take_back(handle)?;
        let source = inner.channel.unregister(handle)?;
        number_of(inner, source)
    }))
}

/// See mp_close(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_close(handle: i64) -> c_int {
    int(with_handle(handle, |inner, handle| {
        inner.channel.take_back(handle)?;
        inner.channel.close(handle)?;
        Ok(0)
    }))
}

/// See mp_reset(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_reset(handle: i64) -> c_int {
    int(with_handle(handle, |inner, handle| {
        inner.channel.take_back(handle)?;
        inner.channel.reset(handle)?;
        Ok(0)
    }))
}

/// See mp_set_cookie(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_set_cookie(handle: i64, cookie: *mut c_void) -> c_int {
    int(with_handle(handle, |inner, handle| {
        inner.channel.set_cookie(handle, cookie as u64)?;
        Ok(0)
    }))
}

/// See mp_set_cpu_mask(3).
///
/// # Safety
///
/// `cpu_mask` is null or valid for reads of `cpu_mask_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_set_cpu_mask(
    handle: i64,
    cpu_mask: *const c_void,
    cpu_mask_size: usize,
) -> c_int {
    if cpu_mask.is_null() {
        return int(Err(INVALID));
    }
    int(with_handle(handle, |inner, handle| {
        // SAFETY: as the caller promises.
        let mask = unsafe { read_mask(cpu_mask, cpu_mask_size) }?;
        inner.channel.set_cpu_mask(handle, &mask)?;
        Ok(0)
    }))
}

pub(crate) fn is_lwsocket(fd: c_int) -> bool {
    fd >= 0 && fd & LWSOCKET != 0
}

/// The CPUs of a `cpu_set_t`: an array of `unsigned long`, CPU 0 in the lowest bit of the
/// first (CPU_SET(3)).
unsafe fn read_mask(mask: *const c_void, size: usize) -> Result<CpuSet, Errno> {
    const WORD: usize = size_of::<libc::c_ulong>();
    if size == 0 || !size.is_multiple_of(WORD) {
        return Err(INVALID);
    }
    // SAFETY: the caller promises `size` bytes.
    let bytes = unsafe { std::slice::from_raw_parts(mask.cast::<u8>(), size) };
    let words = bytes.chunks_exact(WORD).map(|word| {
        let mut value = [0; WORD];
        value.copy_from_slice(word);
        libc::c_ulong::from_ne_bytes(value)
    });
    let bits = WORD as u32 * 8;
    Ok((0..)
        .zip(words)
        .flat_map(|(place, word)| {
            (0..bits).filter(move |bit| word >> bit & 1 != 0).map(move |bit| place * bits + bit)
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_names_its_cpus() {
        let words: [libc::c_ulong; 2] = [1 | 1 << 63, 1 << 2];
        // SAFETY: the array is as long as told.
        let mask = unsafe { read_mask(words.as_ptr().cast(), 16) }.unwrap();
        assert_eq!(mask.iter().collect::<Vec<_>>(), [0, 63, 66]);
        // SAFETY: nothing is read of a size that is refused.
        assert!(unsafe { read_mask(words.as_ptr().cast(), 7) }.is_err());
    }
}
