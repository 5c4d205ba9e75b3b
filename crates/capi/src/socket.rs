//! Socket options, addresses, and lightweight sockets that are not registered.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};

use channel::SockAddr;

use crate::errno::{Errno, INVALID, LWSOCKETS, STALE, int};
use crate::handle::is_lwsocket;
use crate::number::LWSOCKET;
use crate::thread::{Slot, with_channel, with_handle};

/// See mp_setsockopt(3).
///
/// # Safety
///
/// `value` is null or valid for reads of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_setsockopt(
    handle: i64,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: libc::socklen_t,
) -> c_int {
    if value.is_null() {
        return int(Err(INVALID));
    }
    int(with_handle(handle, |inner, handle| {
        inner.channel.control(handle, |fd| {
            // SAFETY: as the caller promises; the kernel only reads.
            check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value, len) })
        })?;
        Ok(0)
    }))
}

/// See mp_getsockopt(3).
///
/// # Safety
///
/// `len` is null or valid for reads and writes, and `value` null or valid for writes of
/// `*len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_getsockopt(
    handle: i64,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut libc::socklen_t,
) -> c_int {
    if value.is_null() || len.is_null() {
        return int(Err(INVALID));
    }
    int(with_handle(handle, |inner, handle| {
        inner.channel.control(handle, |fd| {
            // SAFETY: as the caller promises; the kernel keeps to `*len`.
            check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, value, len) })
        })?;
        Ok(0)
    }))
}

/// See mp_getsockname(3).
///
/// # Safety
///
/// `addrlen` is null or valid for reads and writes, and `addr` null or valid for writes of
/// `*addrlen` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_getsockname(
    handle: i64,
    addr: *mut libc::sockaddr,
    addrlen: *mut libc::socklen_t,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { name(handle, addr, addrlen, libc::getsockname) }
}

/// See mp_getpeername(3).
///
/// # Safety
///
/// As for [`mp_getsockname`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_getpeername(
    handle: i64,
    addr: *mut libc::sockaddr,
    addrlen: *mut libc::socklen_t,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { name(handle, addr, addrlen, libc::getpeername) }
}

type NameCall = unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> c_int;

/// # Safety
///
/// As for [`mp_getsockname`].
unsafe fn name(
    handle: i64,
    addr: *mut libc::sockaddr,
    addrlen: *mut libc::socklen_t,
    call: NameCall,
) -> c_int {
    if addr.is_null() || addrlen.is_null() {
        return int(Err(INVALID));
    }
    int(with_handle(handle, |inner, handle| {
        inner.channel.control(handle, |fd| {
            // SAFETY: as the caller promises; the kernel keeps to `*addrlen`.
            check(unsafe { call(fd.as_raw_fd(), addr, addrlen) })
        })?;
        Ok(0)
    }))
}

/// See mp_lwsocket_to_fd(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_lwsocket_to_fd(channel: *const Slot, lwsocket: c_int) -> c_int {
    if channel.is_null() {
        return int(Err(INVALID));
    }
    int(with_channel(channel, |inner| {
        let number = lwsocket_number(lwsocket)?;
        let socket = inner.lwsockets.get(number).ok_or(STALE)?;
        let fd = inner.channel.descriptor_of(socket)?;
        inner.lwsockets.take(number);
        Ok(fd.into_raw_fd())
    }))
}

/// See mp_fd_to_lwsocket(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_fd_to_lwsocket(channel: *const Slot, fd: c_int) -> c_int {
    if channel.is_null() {
        return int(Err(INVALID));
    }
    int(with_channel(channel, |inner| {
        if fd < 0 || is_lwsocket(fd) {
            return Err(STALE);
        }
        // The channel takes a copy, so that the descriptor stays open if this fails.
        // SAFETY: borrowed for one system call, which reports a closed descriptor.
        let copy = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?;
        let socket = inner.channel.to_lwsocket(copy)?;
        let number = inner.lwsockets.insert(socket).map_err(|_| LWSOCKETS)?;
        // SAFETY: the caller gives the descriptor away with this call.
        unsafe { libc::close(fd) };
        Ok(number as i32 | LWSOCKET)
    }))
}

/// See mp_lwsocket_close(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_lwsocket_close(channel: *const Slot, lwsocket: c_int) -> c_int {
    if channel.is_null() {
        return int(Err(INVALID));
    }
    int(with_channel(channel, |inner| {
        inner.lwsockets.take(lwsocket_number(lwsocket)?).map(|_| 0).ok_or(STALE)
    }))
}

fn lwsocket_number(lwsocket: c_int) -> Result<u32, Errno> {
    if is_lwsocket(lwsocket) { Ok((lwsocket & !LWSOCKET) as u32) } else { Err(STALE) }
}

/// The address that a C caller names.
///
/// # Safety
///
/// `addr` is null or valid for reads of `addrlen` bytes.
pub(crate) unsafe fn read_address(
    addr: *const libc::sockaddr,
    addrlen: libc::socklen_t,
) -> Result<SockAddr, Errno> {
    if addr.is_null() {
        return Err(INVALID);
    }
    // SAFETY: as the caller promises.
    let bytes = unsafe { std::slice::from_raw_parts(addr.cast::<u8>(), addrlen as usize) };
    sys::socket::address_from_bytes(bytes).ok_or(INVALID)
}

fn check(status: c_int) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
