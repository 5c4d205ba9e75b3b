//! Readiness of descriptors that stay the caller's.

use std::ffi::{c_int, c_short, c_void};
use std::os::fd::BorrowedFd;

use megapipe::Readiness;

use crate::errno::{Errno, INVALID, long};
use crate::handle::is_lwsocket;
use crate::number;
use crate::thread::{Slot, with_channel};

/// See mp_poll(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_poll(channel: *const Slot, fd: c_int, events: c_short, cookie: *mut c_void) -> i64 {
    if channel.is_null() {
        return long(Err(INVALID));
    }
    long(with_channel(channel, |inner| {
        let interest = Readiness::from_bits(events.cast_unsigned());
        if interest.bits() != events.cast_unsigned() {
            return Err(INVALID);
        }
        if fd < 0 || is_lwsocket(fd) {
            return Err(Errno(libc::EBADF));
        }
        // SAFETY: borrowed for this call; the kernel reports a closed descriptor.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        Ok(number::from_op(inner.channel.poll(fd, interest, cookie as u64)?))
    }))
}
