//! Socket options, addresses, and lightweight sockets that are not registered.

use std::ffi::{c_int, c_void};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};

use megapipe::{Channel, ControlError, Handle, SockAddr};

use crate::errno::{Errno, INVALID, LWSOCKETS, STALE, int, long};
use crate::handle::is_lwsocket;
use crate::number::{self, LWSOCKET};
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
    unsafe { name(handle, addr, addrlen, Channel::local_address) }
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
    unsafe { name(handle, addr, addrlen, Channel::peer_address) }
}

type NameCall = fn(&mut Channel, Handle) -> Result<SockAddr, ControlError>;

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
        let name = call(&mut inner.channel, handle)?;
        // SAFETY: as the caller promises; no more than the room is written, and as much of
        // `name` is read as it is long.
        unsafe {
            let fits = (*addrlen).min(name.len()) as usize;
            std::ptr::copy_nonoverlapping(name.as_ptr().cast::<u8>(), addr.cast::<u8>(), fits);
            *addrlen = name.len();
        }
        Ok(0)
    }))
}

/// See mp_listen_on(3).
///
/// # Safety
///
/// `addr` is null or valid for reads of `addrlen` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_listen_on(
    channel: *const Slot,
    addr: *const libc::sockaddr,
    addrlen: libc::socklen_t,
    backlog: c_int,
    cookie: *mut c_void,
) -> i64 {
    // SAFETY: as the caller promises.
    unsafe {
        open(channel, addr, addrlen, |channel, address| {
            let backlog = u32::try_from(backlog).map_err(|_| INVALID)?;
            Ok(channel.listen_on(address, backlog, cookie as u64)?)
        })
    }
}

/// See mp_connect_to(3).
///
/// # Safety
///
/// As for [`mp_listen_on`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_connect_to(
    channel: *const Slot,
    addr: *const libc::sockaddr,
    addrlen: libc::socklen_t,
    cookie: *mut c_void,
) -> i64 {
    // SAFETY: as the caller promises.
    unsafe {
        open(channel, addr, addrlen, |channel, address| Ok(channel.connect_to(address, cookie as u64)?))
    }
}

/// # Safety
///
/// As for [`mp_listen_on`].
unsafe fn open(
    channel: *const Slot,
    addr: *const libc::sockaddr,
    addrlen: libc::socklen_t,
    f: impl FnOnce(&mut Channel, SocketAddr) -> Result<Handle, Errno>,
) -> i64 {
    if channel.is_null() {
        return long(Err(INVALID));
    }
    long(with_channel(channel, |inner| {
        // SAFETY: as the caller promises.
        let address = unsafe { read_address(addr, addrlen) }?;
        let address = address.as_socket().ok_or(Errno(libc::EAFNOSUPPORT))?;
        let handle = f(&mut inner.channel, address)?;
        Ok(number::from_handle(inner.number, handle))
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
