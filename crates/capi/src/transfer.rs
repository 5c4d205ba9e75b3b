//! Connections and data: accept, connect, read, write, disconnect.

use std::ffi::{c_int, c_void};
use std::net::Shutdown;
use std::num::NonZeroU16;

use megapipe::{AcceptAs, AcceptCount, Foreign, Handle, OpId, ReadData, Rejected, WriteData};

use crate::errno::{Errno, INVALID, STALE, int, long};
use crate::number;
use crate::socket::read_address;
use crate::thread::{Inner, with_handle};

/// IOV_MAX, more than which no vectored call takes.
const IOV_MAX: c_int = 1024;

/// `MP_ACCEPT_LWSOCKET` and `MP_ACCEPT_PEER`.
const ACCEPT_LWSOCKET: c_int = 1;
const ACCEPT_PEER: c_int = 2;

/// See mp_accept(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_accept(handle: i64, count: c_int, flags: c_int) -> i64 {
    operation(handle, |inner, handle| {
        let count = match count {
            -1 => AcceptCount::Unlimited,
            count => AcceptCount::Exactly(u32::try_from(count).map_err(|_| INVALID)?),
        };
        if flags & !(ACCEPT_LWSOCKET | ACCEPT_PEER) != 0 {
            return Err(INVALID);
        }
        let kind = if flags & ACCEPT_LWSOCKET != 0 { AcceptAs::LwSocket } else { AcceptAs::Fd };
        if flags & ACCEPT_PEER != 0 {
            Ok(inner.channel.accept_with_peer(handle, count, kind)?)
        } else {
            Ok(inner.channel.accept(handle, count, kind)?)
        }
    })
}

/// See mp_connect(3).
///
/// # Safety
///
/// `addr` is null or valid for reads of `addrlen` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_connect(
    handle: i64,
    addr: *const libc::sockaddr,
    addrlen: libc::socklen_t,
) -> i64 {
    operation(handle, |inner, handle| {
        // SAFETY: as the caller promises.
        let address = unsafe { read_address(addr, addrlen) }?;
        Ok(inner.channel.connect(handle, &address)?)
    })
}

/// See mp_read(3).
///
/// # Safety
///
/// `buf` is valid for writes of `size` bytes until the completion was dispatched, or
/// mp_close, mp_reset, mp_unregister or mp_destroy returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_read(handle: i64, buf: *mut c_void, size: usize) -> i64 {
    // SAFETY: as the caller promises.
    unsafe { read(handle, buf, size, None) }
}

/// See mp_read_at(3).
///
/// # Safety
///
/// As for [`mp_read`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_read_at(handle: i64, buf: *mut c_void, size: usize, offset: u64) -> i64 {
    // SAFETY: as the caller promises.
    unsafe { read(handle, buf, size, Some(offset)) }
}

unsafe fn read(handle: i64, buf: *mut c_void, size: usize, offset: Option<u64>) -> i64 {
    operation(handle, |inner, handle| {
        // SAFETY: the caller of the exported call promises what `Foreign` asks for.
        let memory = unsafe { lend(buf, size) }?;
        accepted(inner.channel.start_read(handle, ReadData::ForeignOne(memory), offset))
    })
}

/// See mp_readv(3).
///
/// # Safety
///
/// `iov` is null or valid for reads of `iovcnt` elements; what they name is as the memory
/// of [`mp_read`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_readv(handle: i64, iov: *const libc::iovec, iovcnt: c_int) -> i64 {
    operation(handle, |inner, handle| {
        // SAFETY: as the caller promises.
        let pieces = unsafe { lend_all(iov, iovcnt) }?;
        accepted(inner.channel.start_read(handle, ReadData::Foreign(pieces), None))
    })
}

/// See mp_read_buffer(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_read_buffer(handle: i64) -> i64 {
    operation(handle, |inner, handle| Ok(inner.channel.read(handle)?))
}

/// See mp_read_stream(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_read_stream(handle: i64) -> i64 {
    operation(handle, |inner, handle| Ok(inner.channel.read_stream(handle)?))
}

/// See mp_read_stream_quota(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_read_stream_quota(handle: i64, quota: u16) -> i64 {
    operation(handle, |inner, handle| {
        let quota = NonZeroU16::new(quota).ok_or(INVALID)?;
        Ok(inner.channel.read_stream_with_quota(handle, quota)?)
    })
}

/// See mp_write(3).
///
/// # Safety
///
/// `buf` is valid for reads of `size` bytes, and not written to, until the completion was
/// dispatched, or mp_close, mp_reset, mp_unregister or mp_destroy returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_write(handle: i64, buf: *const c_void, size: usize) -> i64 {
    operation(handle, |inner, handle| {
        // SAFETY: as the caller promises.
        let memory = unsafe { lend(buf.cast_mut(), size) }?;
        accepted(inner.channel.write(handle, WriteData::Foreign(memory)))
    })
}

/// See mp_write_at(3).
///
/// # Safety
///
/// As for [`mp_write`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_write_at(handle: i64, buf: *const c_void, size: usize, offset: u64) -> i64 {
    operation(handle, |inner, handle| {
        // SAFETY: as the caller promises.
        let memory = unsafe { lend(buf.cast_mut(), size) }?;
        accepted(inner.channel.write_at(handle, WriteData::Foreign(memory), offset))
    })
}

/// See mp_writev(3).
///
/// # Safety
///
/// `iov` is null or valid for reads of `iovcnt` elements; what they name is as the memory
/// of [`mp_write`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_writev(handle: i64, iov: *const libc::iovec, iovcnt: c_int) -> i64 {
    operation(handle, |inner, handle| {
        // SAFETY: as the caller promises.
        let pieces = unsafe { lend_all(iov, iovcnt) }?;
        let parts: Vec<_> = pieces.into_iter().map(WriteData::Foreign).collect();
        accepted(inner.channel.write(handle, parts))
    })
}

/// See mp_write_quiet(3).
///
/// # Safety
///
/// `buf` is valid for reads of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_write_quiet(handle: i64, buf: *const c_void, size: usize) -> c_int {
    int(with_handle(handle, |inner, handle| {
        if buf.is_null() && size != 0 || size > isize::MAX as usize {
            return Err(INVALID);
        }
        // SAFETY: as the caller promises; an empty slice may not be null.
        let bytes = if size == 0 { &[] } else { unsafe { std::slice::from_raw_parts(buf.cast(), size) } };
        // A copy in the pool costs no allocation; one that does not fit, or finds the pool
        // dry, is still bounded by the handle's write queue.
        let data = match inner.channel.buffer() {
            Ok(mut buffer) if buffer.remaining() >= size => {
                buffer.extend_from_slice(bytes);
                WriteData::Buffer(buffer)
            }
            _ => WriteData::Vec(bytes.to_vec()),
        };
        inner.channel.write_quiet(handle, data)?;
        Ok(0)
    }))
}

/// See mp_write_buffer(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_write_buffer(handle: i64, buffer: u32) -> c_int {
    int(with_handle(handle, |inner, handle| {
        let data = inner.buffers.take(buffer).ok_or(STALE)?;
        match inner.channel.write_quiet(handle, data) {
            Ok(()) => Ok(0),
            Err(rejected) => {
                let reason = rejected.reason;
                if let WriteData::Buffer(data) = rejected.into_data() {
                    inner.buffers.put_back(buffer, data);
                }
                Err(reason.into())
            }
        }
    }))
}

/// See mp_writes_queued(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_writes_queued(handle: i64) -> c_int {
    int(with_handle(handle, |inner, handle| Ok(inner.channel.writes_queued(handle)?.cast_signed())))
}

/// See mp_sendto(3).
///
/// # Safety
///
/// `buf` as for [`mp_write`]; `addr` is null or valid for reads of `addrlen` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_sendto(
    handle: i64,
    buf: *const c_void,
    size: usize,
    addr: *const libc::sockaddr,
    addrlen: libc::socklen_t,
) -> i64 {
    operation(handle, |inner, handle| {
        // SAFETY: as the caller promises.
        let (memory, address) = unsafe { (lend(buf.cast_mut(), size)?, read_address(addr, addrlen)?) };
        accepted(inner.channel.send_to(handle, WriteData::Foreign(memory), &address))
    })
}

/// See mp_disconnect(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_disconnect(handle: i64) -> i64 {
    operation(handle, |inner, handle| Ok(inner.channel.disconnect(handle)?))
}

/// See mp_shutdown(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_shutdown(handle: i64, how: c_int) -> i64 {
    operation(handle, |inner, handle| {
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Err(INVALID),
        };
        Ok(inner.channel.shutdown(handle, how)?)
    })
}

/// Queues an operation on a handle; its number, or a negative errno.
#[inline]
fn operation(handle: i64, f: impl FnOnce(&mut Inner, Handle) -> Result<OpId, Errno>) -> i64 {
    long(with_handle(handle, |inner, handle| f(inner, handle).map(number::from_op)))
}

fn accepted<D: std::fmt::Debug>(result: Result<OpId, Rejected<D>>) -> Result<OpId, Errno> {
    result.map_err(Errno::from)
}

/// # Safety
///
/// As for [`Foreign::new`].
unsafe fn lend(buf: *mut c_void, size: usize) -> Result<Foreign, Errno> {
    if buf.is_null() && size != 0 || size > isize::MAX as usize {
        return Err(INVALID);
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { Foreign::new(buf.cast(), size) })
}

/// # Safety
///
/// `iov` is null or valid for reads of `iovcnt` elements, each as for [`Foreign::new`].
unsafe fn lend_all(iov: *const libc::iovec, iovcnt: c_int) -> Result<Vec<Foreign>, Errno> {
    if iov.is_null() || !(1..=IOV_MAX).contains(&iovcnt) {
        return Err(INVALID);
    }
    // SAFETY: as the caller promises.
    let pieces = unsafe { std::slice::from_raw_parts(iov, iovcnt as usize) };
    // SAFETY: as the caller promises.
    pieces.iter().map(|piece| unsafe { lend(piece.iov_base, piece.iov_len) }).collect()
}
