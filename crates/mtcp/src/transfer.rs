//! Bytes: of sockets and of pipes.

use std::ffi::{c_char, c_int};
use std::slice;

use libc::{iovec, ssize_t};
use tcp::sockets::{Readiness, Socket};

use crate::context::{Context, Pause};
use crate::errno::{AGAIN, BAD, Errno, FAULT, INVALID, NOT_SOCKET, int, length};
use crate::files::File;
use crate::pipe::{End, Pipe};
use crate::registry::{self, Handle};

/// Reads what has arrived; 0 at the end of the stream.
///
/// # Safety
/// `buffer` is null or valid for writes of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_read(mctx: Handle, id: c_int, buffer: *mut c_char, len: usize) -> ssize_t {
    // SAFETY: as the caller promises.
    unsafe { mtcp_recv(mctx, id, buffer, len, 0) }
}

/// As [`mtcp_read`]; with MSG_PEEK the bytes stay.
///
/// # Safety
/// `buffer` is null or valid for writes of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_recv(
    mctx: Handle,
    id: c_int,
    buffer: *mut c_char,
    len: usize,
    flags: c_int,
) -> ssize_t {
    length(registry::with_waits(mctx, |context| {
        if buffer.is_null() && len > 0 {
            return Err(FAULT.into());
        }
        // SAFETY: as the caller promises.
        let out = unsafe { buffer_of(buffer, len) };
        let peek = match flags & !libc::MSG_DONTWAIT {
            0 => false,
            libc::MSG_PEEK => true,
            _ => return Err(INVALID.into()),
        };
        read(context, id, out, peek, flags & libc::MSG_DONTWAIT != 0)
    }))
}

/// # Safety
/// `buffer` is valid for writes of `len` bytes, or `len` is 0.
unsafe fn buffer_of<'a>(buffer: *mut c_char, len: usize) -> &'a mut [u8] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: as the caller promises; no object is larger than isize::MAX.
    unsafe { slice::from_raw_parts_mut(buffer.cast(), len.min(isize::MAX as usize)) }
}

/// ENOTCONN while it is being opened, where POSIX has EAGAIN.
fn is_open(context: &Context, socket: Socket) -> Result<(), Errno> {
    if context.link.is_opening(socket)? { Err(Errno(libc::ENOTCONN)) } else { Ok(()) }
}

/// A call on no bytes returns EAGAIN where mTCP's does: 0 would be the end of the stream.
fn none_to_move(bytes: &[u8], nonblocking: bool) -> Result<(), Errno> {
    if bytes.is_empty() && nonblocking { Err(AGAIN) } else { Ok(()) }
}

fn read(
    context: &mut Context,
    id: c_int,
    out: &mut [u8],
    peek: bool,
    dont_wait: bool,
) -> Result<usize, Pause> {
    match *context.files.get(id)? {
        File::Socket { socket, nonblocking, .. } => {
            is_open(context, socket)?;
            none_to_move(out, nonblocking)?;
            context.call(nonblocking || dont_wait, |link| link.read(socket, out, peek))
        }
        File::Pipe { pipe, end: End::Read, nonblocking } if !peek => {
            none_to_move(out, nonblocking)?;
            let read = context.pipe(pipe)?.read(out);
            context.moved_pipe(pipe, End::Write, read, nonblocking || dont_wait)
        }
        File::Pipe { .. } => Err(INVALID.into()),
        File::Epoll(_) => Err(NOT_SOCKET.into()),
    }
}

/// Writes as much as there is room for, at least one byte.
///
/// # Safety
/// `buffer` is null or valid for reads of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_write(mctx: Handle, id: c_int, buffer: *const c_char, len: usize) -> ssize_t {
    length(registry::with_waits(mctx, |context| {
        if buffer.is_null() && len > 0 {
            return Err(FAULT.into());
        }
        let bytes = match len {
            0 => &[],
            // SAFETY: as the caller promises; no object is larger than isize::MAX.
            _ => unsafe { slice::from_raw_parts(buffer.cast(), len.min(isize::MAX as usize)) },
        };
        write(context, id, bytes, false)
    }))
}

fn write(context: &mut Context, id: c_int, bytes: &[u8], dont_wait: bool) -> Result<usize, Pause> {
    match *context.files.get(id)? {
        File::Socket { socket, nonblocking, .. } => {
            is_open(context, socket)?;
            none_to_move(bytes, nonblocking)?;
            context.call(nonblocking || dont_wait, |link| link.write(socket, bytes))
        }
        File::Pipe { pipe, end: End::Write, nonblocking } => {
            none_to_move(bytes, nonblocking)?;
            let written = context.pipe(pipe)?.write(bytes);
            context.moved_pipe(pipe, End::Read, written, nonblocking || dont_wait)
        }
        File::Pipe { .. } => Err(INVALID.into()),
        File::Epoll(_) => Err(NOT_SOCKET.into()),
    }
}

/// # Safety
/// `vectors` is null or valid for reads of `count` vectors.
unsafe fn vectors_of<'a>(vectors: *const iovec, count: c_int) -> Result<&'a [iovec], Errno> {
    let count = usize::try_from(count).map_err(|_| INVALID)?;
    if count == 0 {
        return Ok(&[]);
    }
    if vectors.is_null() {
        return Err(FAULT);
    }
    // SAFETY: as the caller promises.
    let vectors = unsafe { slice::from_raw_parts(vectors, count) };
    if vectors.iter().any(|vector| vector.iov_base.is_null() && vector.iov_len > 0) {
        return Err(FAULT);
    }
    // What is done is returned as an int.
    let total = vectors.iter().try_fold(0usize, |sum, vector| sum.checked_add(vector.iov_len));
    total.filter(|&total| total <= c_int::MAX as usize).ok_or(INVALID)?;
    Ok(vectors)
}

/// Does this for each buffer, until one is not filled or emptied. Only the first may block.
fn each(vectors: &[iovec], mut one: impl FnMut(&iovec, bool) -> Result<usize, Pause>) -> Result<i32, Pause> {
    let mut total = 0;
    for vector in vectors.iter().filter(|vector| vector.iov_len > 0) {
        match one(vector, total > 0) {
            Ok(len) => {
                total += len;
                if len < vector.iov_len {
                    break;
                }
            }
            Err(error) if total == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(total as i32)
}

/// As [`mtcp_read`], into several buffers.
///
/// # Safety
/// `vectors` is null or valid for reads of `count` vectors, each of which is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_readv(mctx: Handle, id: c_int, vectors: *const iovec, count: c_int) -> c_int {
    int(registry::with_waits(mctx, |context| {
        // SAFETY: as the caller promises.
        let vectors = unsafe { vectors_of(vectors, count) }?;
        context.files.get(id)?;
        each(vectors, |vector, more| {
            // SAFETY: as the caller promises.
            let out = unsafe { buffer_of(vector.iov_base.cast(), vector.iov_len) };
            read(context, id, out, false, more)
        })
    }))
}

/// As [`mtcp_write`], from several buffers.
///
/// # Safety
/// `vectors` is null or valid for reads of `count` vectors, each of which is valid for reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_writev(mctx: Handle, id: c_int, vectors: *const iovec, count: c_int) -> c_int {
    int(registry::with_waits(mctx, |context| {
        // SAFETY: as the caller promises.
        let vectors = unsafe { vectors_of(vectors, count) }?;
        context.files.get(id)?;
        each(vectors, |vector, more| {
            // SAFETY: as the caller promises; only read from here.
            let bytes = unsafe { buffer_of(vector.iov_base.cast(), vector.iov_len) };
            write(context, id, bytes, more)
        })
    }))
}

/// A pipe inside a context: `ids[0]` reads what `ids[1]` writes. Its calls wait, for another thread,
/// until `mtcp_setsock_nonblock`.
///
/// # Safety
/// `ids` is null or valid for writes of two ints.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_pipe(mctx: Handle, ids: *mut c_int) -> c_int {
    int(registry::with(mctx, |context| {
        if ids.is_null() {
            return Err(FAULT);
        }
        if !context.files.has_room(2) {
            return Err(Errno(libc::ENFILE));
        }
        let free = context.pipes.iter().position(Option::is_none);
        let pipe = free.unwrap_or_else(|| {
            context.pipes.push(None);
            context.pipes.len() - 1
        });
        context.pipes[pipe] = Some(Pipe::default());
        for (place, end) in [End::Read, End::Write].into_iter().enumerate() {
            let id = context.files.insert(File::Pipe { pipe, end, nonblocking: false })?;
            // SAFETY: as the caller promises.
            unsafe { ids.add(place).write(id) };
        }
        Ok(0)
    }))
}

impl Context {
    fn pipe(&mut self, pipe: usize) -> Result<&mut Pipe, Errno> {
        self.pipes[pipe].as_mut().ok_or(BAD)
    }

    /// Ends a read from a pipe or a write into it: reports it to the other end, or waits for that.
    fn moved_pipe(
        &mut self,
        pipe: usize,
        other: End,
        moved: Result<usize, Errno>,
        nonblocking: bool,
    ) -> Result<usize, Pause> {
        match moved {
            Err(AGAIN) if !nonblocking => {
                self.turn()?;
                Err(Pause::Sleep(None))
            }
            Err(error) => Err(error.into()),
            Ok(len) => {
                self.note_pipe(pipe, other);
                Ok(len)
            }
        }
    }

    /// Something happened that this end of a pipe is interested in.
    fn note_pipe(&mut self, pipe: usize, end: End) {
        if let Some(held) = &self.pipes[pipe] {
            self.files.wake(&held.members[end as usize], Readiness::ALL);
        }
    }

    /// An end of a pipe was closed.
    pub(crate) fn close_pipe(&mut self, pipe: usize, end: End) {
        let Some(held) = &mut self.pipes[pipe] else { return };
        held.closed[end as usize] = true;
        self.files.forget(&std::mem::take(&mut held.members[end as usize]));
        if held.closed == [true; 2] {
            self.pipes[pipe] = None;
        } else {
            self.note_pipe(pipe, if end == End::Read { End::Write } else { End::Read });
        }
    }
}
