//! sendfile(2) and splice(2) of promoted sockets, as copies through a buffer.

use super::*;
use crate::buffer::Room;

/// sendfile(2) to a promoted socket. Bytes that the socket does not accept stay in the file.
pub(super) unsafe fn send_file(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    let mut room = Room::take();
    let mut done = 0usize;
    // SAFETY: an offset or null, as sendfile(2) asks for.
    let mut at = match unsafe { offset.as_ref() } {
        Some(at) => *at,
        // SAFETY: the file's own offset.
        None => unsafe { libc::lseek(input, 0, libc::SEEK_CUR) },
    };
    if at < 0 {
        // sendfile(2): a file without an offset cannot be sent from.
        if real::errno() == libc::ESPIPE || !offset.is_null() {
            real::set_errno(libc::EINVAL);
        }
        return -1;
    }
    while done < count {
        let want = room.len().min(count - done);
        // SAFETY: room for that many bytes.
        let got = unsafe { libc::pread(input, room.as_mut_ptr().cast(), want, at) };
        if got <= 0 {
            if got < 0 && done == 0 {
                return -1;
            }
            break;
        }
        // SAFETY: that many bytes were read.
        let sent = unsafe { write(out, room.as_ptr().cast(), got as usize) };
        if sent < 0 {
            if done == 0 {
                return -1;
            }
            break;
        }
        at += sent as off_t;
        done += sent as usize;
        if sent < got {
            break;
        }
    }
    // SAFETY: as above.
    match unsafe { offset.as_mut() } {
        Some(_) if !is_writable(offset) => return failed(libc::EFAULT),
        Some(place) => *place = at,
        // SAFETY: the file's own offset.
        None => drop(unsafe { libc::lseek(input, at, libc::SEEK_SET) }),
    }
    done as ssize_t
}

/// splice(2) from a pipe to a promoted socket. Bytes that the socket does not accept stay in the
/// pipe: they are sent from a copy made by tee(2), and read from the pipe once they are sent.
pub(super) unsafe fn splice_to(pipe: c_int, out: c_int, length: size_t, flags: c_uint) -> ssize_t {
    let mut room = Room::take();
    let (Some(from), Ok((copy, to))) =
        (real::borrow(pipe), rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC))
    else {
        return failed(libc::ENOMEM);
    };
    let nonblocking = flags & libc::SPLICE_F_NONBLOCK != 0;
    let mode =
        if nonblocking { rustix::pipe::SpliceFlags::NONBLOCK } else { rustix::pipe::SpliceFlags::empty() };
    let here = rustix::pipe::tee(from, &to, room.len().min(length), mode);
    let count = match here.and_then(|here| rustix::io::read(&copy, &mut room[..here])) {
        Ok(0) => return 0,
        Ok(count) => count,
        Err(errno) => return failed(errno.raw_os_error()),
    };
    // The socket decides whether it waits: SPLICE_F_NONBLOCK is about the pipe.
    let more = if flags & libc::SPLICE_F_MORE != 0 { libc::MSG_MORE } else { 0 };
    // SAFETY: that many bytes were read.
    let sent = unsafe { send(out, room.as_ptr().cast(), count, more) };
    let mut left = usize::try_from(sent).unwrap_or(0);
    while left > 0 {
        // The same bytes, which are here: this does not wait.
        match rustix::io::read(from, &mut room[..left]) {
            Ok(taken @ 1..) => left -= taken,
            Err(rustix::io::Errno::INTR) => {}
            _ => break,
        }
    }
    sent
}

/// splice(2) from a promoted socket to a pipe: bytes that the pipe does not accept stay unread.
pub(super) unsafe fn splice_from(input: c_int, pipe: c_int, length: size_t, flags: c_uint) -> ssize_t {
    let mut room = Room::take();
    // The socket decides whether it waits: SPLICE_F_NONBLOCK is about the pipe.
    let receive = |room: &mut [u8], more: c_int| {
        // SAFETY: room of that length.
        unsafe { recv(input, room.as_mut_ptr().cast(), room.len(), more) }
    };
    let mut limit = room.len().min(length);
    if flags & libc::SPLICE_F_NONBLOCK != 0 {
        if !ready(pipe, libc::POLLOUT) {
            real::set_errno(libc::EAGAIN);
            return -1;
        }
        // A writable pipe has room for these (pipe(7)).
        limit = limit.min(libc::PIPE_BUF);
    }
    let got = receive(&mut room[..limit], libc::MSG_PEEK);
    if got <= 0 {
        return got;
    }
    // SAFETY: that many bytes were peeked.
    let written = unsafe { real::write(pipe, room.as_ptr().cast(), got as usize) };
    // The same bytes, now consumed.
    let mut left = usize::try_from(written).unwrap_or(0);
    while left > 0 {
        match receive(&mut room[..left], libc::MSG_DONTWAIT) {
            taken @ 1.. => left -= taken as usize,
            _ => break,
        }
    }
    written
}

fn ready(fd: c_int, events: i16) -> bool {
    let mut fd = pollfd { fd, events, revents: 0 };
    // SAFETY: one descriptor.
    unsafe { real::poll(&raw mut fd, 1, 0) > 0 }
}
