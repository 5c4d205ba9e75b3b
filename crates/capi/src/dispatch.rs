//! Handing out completions, and what else concerns the channel's queue.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use megapipe::{Buffer, Channel, Completion, DispatchError, Event, ReadData, SockAddr, Source, WriteData};

use crate::abi::{self, MpEvent};
use crate::errno::{Errno, INVALID, STALE, int, long};
use crate::number::{self, LWSOCKET};
use crate::thread::{Inner, Slot, with_channel};

/// See mp_dispatch(3).
///
/// # Safety
///
/// `event` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_dispatch(channel: *const Slot, timeout_ns: i64, event: *mut MpEvent) -> c_int {
    let timeout = u64::try_from(timeout_ns).ok().map(Duration::from_nanos);
    // SAFETY: as the caller promises.
    unsafe { next(channel, event, |channel| channel.dispatch(timeout)) }
}

/// See mp_next_ready(3).
///
/// # Safety
///
/// As for [`mp_dispatch`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_next_ready(channel: *const Slot, event: *mut MpEvent) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { next(channel, event, Channel::next_ready) }
}

/// # Safety
///
/// As for [`mp_dispatch`].
unsafe fn next(
    channel: *const Slot,
    event: *mut MpEvent,
    f: impl FnOnce(&mut Channel) -> Result<Option<Completion>, DispatchError>,
) -> c_int {
    if channel.is_null() || event.is_null() {
        return int(Err(INVALID));
    }
    int(with_channel(channel, |inner| match f(&mut inner.channel)? {
        Some(completion) => {
            let told = tell(inner, completion);
            // SAFETY: not null, and the caller promises the rest.
            unsafe { event.write(told) };
            Ok(1)
        }
        None => Ok(0),
    }))
}

/// See mp_flush(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_flush(channel: *const Slot) -> c_int {
    if channel.is_null() {
        return int(Err(INVALID));
    }
    int(with_channel(channel, |inner| {
        inner.channel.flush()?;
        Ok(0)
    }))
}

/// See mp_cancel(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_cancel(channel: *const Slot, op: i64) -> c_int {
    if channel.is_null() {
        return int(Err(INVALID));
    }
    int(with_channel(channel, |inner| {
        let op = number::to_op(op).ok_or(Errno(libc::ENOENT))?;
        inner.channel.cancel(op)?;
        Ok(0)
    }))
}

/// See mp_timer(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_timer(channel: *const Slot, after_ns: i64, cookie: *mut c_void) -> i64 {
    if channel.is_null() {
        return long(Err(INVALID));
    }
    long(with_channel(channel, |inner| {
        let after = u64::try_from(after_ns).map(Duration::from_nanos).map_err(|_| INVALID)?;
        Ok(number::from_op(inner.channel.timer(after, cookie as u64)?))
    }))
}

/// See mp_move_timer(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_move_timer(channel: *const Slot, timer: i64, after_ns: i64) -> c_int {
    if channel.is_null() {
        return int(Err(INVALID));
    }
    int(with_channel(channel, |inner| {
        let after = u64::try_from(after_ns).map(Duration::from_nanos).map_err(|_| INVALID)?;
        let timer = number::to_op(timer).ok_or(Errno(libc::ENOENT))?;
        inner.channel.move_timer(timer, after)?;
        Ok(0)
    }))
}

/// See mp_buffer_release(3).
#[unsafe(no_mangle)]
pub extern "C" fn mp_buffer_release(channel: *const Slot, buffer: u32) -> c_int {
    if channel.is_null() {
        return int(Err(INVALID));
    }
    int(with_channel(channel, |inner| inner.buffers.take(buffer).map(|_| 0).ok_or(STALE)))
}

/// A completion as C sees it.
fn tell(inner: &mut Inner, completion: Completion) -> MpEvent {
    let mut told = MpEvent {
        cookie: completion.cookie as usize as *mut c_void,
        handle: number::from_handle(inner.number, completion.handle),
        op: number::from_op(completion.op),
        ..MpEvent::NONE
    };
    match completion.event {
        Event::Accept { result, more } => {
            told.cmd = abi::ACCEPT;
            told.more = more.into();
            let accepted = result.map_err(Errno::from).and_then(|accepted| {
                told.pending = accepted.pending.into();
                if let Some(peer) = accepted.peer {
                    tell_address(inner, &mut told, peer.into());
                }
                number_of(inner, accepted.socket)
            });
            match accepted {
                Ok(fd) => told.fd = fd,
                Err(Errno(errno)) => told.size = -i64::from(errno),
            }
        }
        Event::Read { result, data, more } => {
            told.cmd = abi::READ;
            told.more = more.into();
            told.size = bytes(result);
            match data {
                ReadData::Buffer(buffer) => tell_buffer(inner, &mut told, buffer),
                ReadData::ForeignOne(memory) => told.buf = memory.address().cast(),
                ReadData::Foreign(pieces) => told.buf = first_address(pieces.first()),
                ReadData::None | ReadData::Vec(_) | ReadData::Vectored(_) => {}
            }
        }
        Event::Write { result, data } => {
            told.cmd = abi::WRITE;
            told.size = bytes(result);
            match &data {
                WriteData::Foreign(memory) => told.buf = memory.address().cast(),
                WriteData::Vectored(parts) => {
                    if let Some(WriteData::Foreign(memory)) = parts.first() {
                        told.buf = memory.address().cast();
                    }
                }
                _ => {}
            }
        }
        Event::Connect(result) => {
            told.cmd = abi::CONNECT;
            told.size = bytes(result.map(|()| 0));
        }
        Event::Disconnect(result) => {
            told.cmd = abi::DISCONNECT;
            told.size = bytes(result.map(|()| 0));
        }
        Event::Timer(result) => {
            told.cmd = abi::TIMER;
            told.size = bytes(result.map(|()| 0));
        }
        Event::Poll(result) => {
            told.cmd = abi::POLL;
            told.size = bytes(result.map(|ready| ready.bits().into()));
        }
        Event::Writable => told.cmd = abi::WRITABLE,
        Event::Wake => told.cmd = abi::WAKE,
    }
    told
}

/// Shows an address until the next dispatch.
fn tell_address(inner: &mut Inner, told: &mut MpEvent, address: SockAddr) {
    let address = inner.address.insert(address);
    told.addr = address.as_ptr().cast();
    told.addrlen = address.len();
}

/// Hands out a filled pool buffer; the channel keeps it until C releases it.
fn tell_buffer(inner: &mut Inner, told: &mut MpEvent, mut buffer: Buffer) {
    told.buf = buffer.as_mut_ptr().cast();
    told.truncated = buffer.is_truncated().into();
    if let Some(sender) = buffer.sender() {
        tell_address(inner, told, sender);
    }
    match inner.buffers.insert(buffer) {
        Ok(number) => told.buffer = number,
        // Not with pools of at most 2^15 buffers and a table of 2^16 places.
        Err(_) => {
            told.buf = std::ptr::null_mut();
            told.size = -i64::from(libc::ENOBUFS);
        }
    }
}

/// The number by which C knows a socket that is in nobody's hands yet.
pub(crate) fn number_of(inner: &mut Inner, source: Source) -> Result<i32, Errno> {
    match source {
        Source::Fd(fd) => Ok(std::os::fd::IntoRawFd::into_raw_fd(fd)),
        Source::LwSocket(socket) => match inner.lwsockets.insert(socket) {
            Ok(number) => Ok(number as i32 | LWSOCKET),
            Err(_) => Err(crate::errno::LWSOCKETS),
        },
    }
}

fn first_address(memory: Option<&megapipe::Foreign>) -> *mut c_void {
    memory.map_or(std::ptr::null_mut(), |memory| memory.address().cast())
}

fn bytes(result: std::io::Result<usize>) -> i64 {
    match result {
        Ok(count) => count as i64,
        Err(error) => -i64::from(Errno::from(error).0),
    }
}
