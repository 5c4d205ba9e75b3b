//! The calls, one function for each of libc's, with its arguments, result and errno.
//!
//! # Safety
//!
//! Each asks of its caller what the C function of its name asks for.
#![allow(unsafe_code)] // C's calling convention: everything comes by address
#![allow(unsafe_op_in_unsafe_fn)] // whatever is unsafe here passes on what the caller promised
#![allow(missing_docs)] // each is documented under its name in section 2 of the manual
#![allow(clippy::missing_safety_doc)] // said once, above

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::sync::atomic::Ordering;

use libc::{
    epoll_event, fd_set, iovec, loff_t, mmsghdr, msghdr, off_t, pid_t, pollfd, sigset_t, size_t, sockaddr,
    socklen_t, ssize_t, timespec, timeval,
};

use crate::descriptors;
use crate::epoll::{self, Limit};
use crate::fork as process;
use crate::kernel;
use crate::leaving;
use crate::memory::{Pieces, is_memory, piece};
use crate::options;
use crate::poll as polling;
use crate::promoter;
use crate::real;
use crate::receive;
use crate::select::{self as selecting, Sets};
use crate::send as sending;
use crate::sets::Set;
use crate::sockets::{self, Socket, State};
use crate::stats::{self, Stays};
use crate::table::{self, Entry};

/// The socket that a call about bytes names, if it is watched.
#[inline(always)]
fn watched(fd: c_int) -> Option<(u32, &'static Socket)> {
    match table::entry(fd) {
        Entry::Socket(number) => Some((number, sockets::at(number))),
        Entry::Foreign | Entry::Set(_) => None,
        Entry::Unknown => match descriptors::classify(fd) {
            Entry::Socket(number) => Some((number, sockets::at(number))),
            _ => None,
        },
    }
}

/// `before`: errno at the beginning of the call, which one that succeeds leaves alone.
fn told(outcome: receive::Outcome, before: c_int) -> ssize_t {
    match outcome {
        // Bounded by what one call moves.
        Ok(count) => {
            real::set_errno(before);
            count as ssize_t
        }
        Err(errno) => {
            real::set_errno(errno);
            -1
        }
    }
}

/// A call that receives on a watched socket: `plain` is the kernel's own.
#[inline]
fn receiving(
    fd: c_int,
    socket: (u32, &'static Socket),
    pieces: impl Fn() -> Result<Pieces<'static>, i32>,
    flags: c_int,
    mut plain: impl FnMut() -> ssize_t,
) -> ssize_t {
    // Nothing to move, or a vector that the kernel refuses.
    receiving_pieces(fd, socket, pieces, flags, &mut plain).unwrap_or_else(plain)
}

/// The same; `None`: the socket is promoted, and there are no pieces to receive into.
#[inline]
fn receiving_pieces(
    fd: c_int,
    (number, socket): (u32, &'static Socket),
    pieces: impl Fn() -> Result<Pieces<'static>, i32>,
    flags: c_int,
    mut plain: impl FnMut() -> ssize_t,
) -> Option<ssize_t> {
    let mut waited = false;
    let generation = socket.generation.load(Ordering::Relaxed);
    let before = real::errno();
    loop {
        match socket.state() {
            State::Kernel | State::Free => return Some(plain()),
            // Errors of packets and urgent bytes are the kernel's.
            State::Promoted if flags & (libc::MSG_ERRQUEUE | libc::MSG_OOB) != 0 => return Some(plain()),
            State::Promoted => {
                let into = pieces().ok().filter(|into| into.left > 0)?;
                if let Some(outcome) = receive::receive(socket, fd, into, flags) {
                    return Some(told(outcome, before));
                }
                // It is not any more: this thread waited, and another closed it. The number may
                // be another file's by now.
                if gone(socket, generation) {
                    return Some(told(Err(libc::EBADF), before));
                }
                std::hint::spin_loop();
            }
            State::Plain | State::Offered => {
                promoter::before_message(socket, number);
                if socket.state() == State::Offered
                    && !waited
                    && promoter::is_impatient()
                    && blocks(socket, flags)
                {
                    // An answer may come while this waits, which then must hold nothing up.
                    waited = true;
                    if let Err(errno) = kernel::wait(fd, flags) {
                        return Some(told(Err(errno), before));
                    }
                    if gone(socket, generation) {
                        return Some(told(Err(libc::EBADF), before));
                    }
                    continue;
                }
                let Some(busy) = socket.enter() else { continue };
                let count = plain();
                if count > 0 && flags & libc::MSG_PEEK == 0 {
                    socket.received.fetch_add(count as u64, Ordering::Relaxed);
                    socket.messages_received.fetch_add(1, Ordering::Relaxed);
                }
                drop(busy);
                if count > 0 {
                    after(socket, number);
                }
                return Some(count);
            }
        }
    }
}

/// Whether a record is no longer the socket that it was.
fn gone(socket: &Socket, generation: u32) -> bool {
    socket.state() == State::Free || socket.generation.load(Ordering::Relaxed) != generation
}

/// Whether a call that finds nothing waits, as far as was seen.
fn blocks(socket: &Socket, flags: c_int) -> bool {
    flags & libc::MSG_DONTWAIT == 0 && !socket.nonblocking.load(Ordering::Relaxed)
}

/// As [`receiving`], for sending.
#[inline]
fn sends(
    fd: c_int,
    socket: (u32, &'static Socket),
    pieces: impl Fn() -> Result<Pieces<'static>, i32>,
    flags: c_int,
    mut plain: impl FnMut() -> ssize_t,
) -> ssize_t {
    sending_pieces(fd, socket, pieces, flags, &mut plain).unwrap_or_else(plain)
}

/// As [`receiving_pieces`], for sending.
#[inline]
fn sending_pieces(
    fd: c_int,
    (number, socket): (u32, &'static Socket),
    pieces: impl Fn() -> Result<Pieces<'static>, i32>,
    flags: c_int,
    mut plain: impl FnMut() -> ssize_t,
) -> Option<ssize_t> {
    let generation = socket.generation.load(Ordering::Relaxed);
    let before = real::errno();
    loop {
        match socket.state() {
            State::Kernel | State::Free => return Some(plain()),
            State::Promoted => {
                let from = pieces().ok().filter(|from| from.left > 0)?;
                if let Some(outcome) = sending::send(socket, fd, from, flags) {
                    return Some(told(outcome, before));
                }
                if gone(socket, generation) {
                    return Some(told(Err(libc::EBADF), before));
                }
                std::hint::spin_loop();
            }
            State::Plain | State::Offered => {
                promoter::before_message(socket, number);
                let Some(busy) = socket.enter() else { continue };
                let count = plain();
                if count > 0 {
                    socket.sent.fetch_add(count as u64, Ordering::Relaxed);
                    socket.messages_sent.fetch_add(1, Ordering::Relaxed);
                }
                if flags & libc::MSG_OOB != 0 {
                    stats::stays(Stays::Kernel);
                    socket.set_state(State::Kernel);
                }
                drop(busy);
                if count > 0 {
                    after(socket, number);
                }
                return Some(count);
            }
        }
    }
}

/// Runs what may ask the kernel something, whose errors are not the program's.
#[inline]
fn kept_errno<T>(run: impl FnOnce() -> T) -> T {
    let errno = real::errno();
    let result = run();
    real::set_errno(errno);
    result
}

#[inline]
fn after(socket: &'static Socket, number: u32) {
    kept_errno(|| promoter::after_message(socket, number));
}

/// One buffer as the pieces of a call.
#[inline(always)]
fn whole(base: *const c_void, length: size_t) -> iovec {
    piece(base.cast(), length)
}

/// Lets pieces outlive the frame's borrow checker: they live as long as the call.
#[inline(always)]
unsafe fn one(piece: *const iovec) -> Result<Pieces<'static>, i32> {
    // SAFETY: the caller's iovec lives as long as the call.
    Ok(Pieces::one(unsafe { &*piece }))
}

// Bytes

#[inline]
pub unsafe fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t {
    if table::is_foreign(fd) { real::read(fd, buffer, count) } else { ours::read(fd, buffer, count) }
}

/// The same calls on descriptors that may be ours: apart, so that others cost a look and a
/// jump, and no frame.
mod ours {
    use super::*;

    #[inline(never)]
    pub(super) unsafe fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t {
        let Some(socket) = watched(fd) else { return real::read(fd, buffer, count) };
        let piece = whole(buffer, count);
        receiving(fd, socket, || one(&raw const piece), 0, || real::read(fd, buffer, count))
    }

    #[inline(never)]
    pub(super) unsafe fn recv(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t {
        let Some(socket) = watched(fd) else { return real::recv(fd, buffer, length, flags) };
        let piece = whole(buffer, length);
        receiving(fd, socket, || one(&raw const piece), flags, || real::recv(fd, buffer, length, flags))
    }

    #[inline(never)]
    pub(super) unsafe fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t {
        let Some(socket) = watched(fd) else { return real::write(fd, buffer, count) };
        let piece = whole(buffer, count);
        sends(fd, socket, || one(&raw const piece), 0, || real::write(fd, buffer, count))
    }

    #[inline(never)]
    pub(super) unsafe fn send(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t {
        let Some(socket) = watched(fd) else { return real::send(fd, buffer, length, flags) };
        let piece = whole(buffer, length);
        sends(fd, socket, || one(&raw const piece), flags, || real::send(fd, buffer, length, flags))
    }
}

pub unsafe fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    let Some(socket) = watched(fd) else { return real::readv(fd, iov, count) };
    receiving(fd, socket, || vector(iov, count), 0, || real::readv(fd, iov, count))
}

unsafe fn vector(iov: *const iovec, count: c_int) -> Result<Pieces<'static>, i32> {
    Pieces::new(iov, usize::try_from(count).map_err(|_| libc::EINVAL)?)
}

#[inline]
pub unsafe fn recv(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t {
    if table::is_foreign(fd) {
        real::recv(fd, buffer, length, flags)
    } else {
        ours::recv(fd, buffer, length, flags)
    }
}

pub unsafe fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_length: *mut socklen_t,
) -> ssize_t {
    let plain = || real::recvfrom(fd, buffer, length, flags, address, address_length);
    let Some(socket) = watched(fd) else { return plain() };
    let piece = whole(buffer, length);
    let count = receiving(fd, socket, || one(&raw const piece), flags, plain);
    if socket.1.state() == State::Promoted && count >= 0 && is_memory(address) && is_memory(address_length) {
        // tcp(7): a stream tells no source.
        *address_length = 0;
    }
    count
}

pub unsafe fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let Some(socket) = watched(fd).filter(|_| is_memory(message)) else {
        return received_descriptors(real::recvmsg(fd, message, flags), message);
    };
    let count =
        receiving(fd, socket, || Pieces::of_message(&*message), flags, || real::recvmsg(fd, message, flags));
    if socket.1.state() == State::Promoted && count >= 0 {
        (*message).msg_namelen = 0;
        (*message).msg_controllen = 0;
        // As Linux leaves it.
        (*message).msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
    }
    count
}

/// Descriptors that came in a message are of kinds that nobody has seen.
unsafe fn received_descriptors(count: ssize_t, message: *mut msghdr) -> ssize_t {
    if count >= 0 && is_memory(message) && (*message).msg_controllen > 0 {
        carried(message, descriptors::unknown);
    }
    count
}

/// The descriptors that a message carries.
unsafe fn carried(message: *const msghdr, mut tell: impl FnMut(c_int)) {
    let mut header = libc::CMSG_FIRSTHDR(message);
    while !header.is_null() {
        if ((*header).cmsg_level, (*header).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            let bytes = ((*header).cmsg_len).saturating_sub(libc::CMSG_LEN(0) as usize);
            let data = libc::CMSG_DATA(header).cast::<c_int>();
            for place in 0..bytes / size_of::<c_int>() {
                tell(data.add(place).read_unaligned());
            }
        }
        header = libc::CMSG_NXTHDR(message, header);
    }
}

pub unsafe fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let promoted = watched(fd).is_some_and(|(_, socket)| socket.state() != State::Kernel);
    if !promoted || !is_memory(messages) {
        return real::recvmmsg(fd, messages, count, flags, timeout);
    }
    let until = match epoll::time(timeout.as_ref()) {
        Ok(Limit::Never) => None,
        Ok(Limit::After(limit)) => Some(std::time::Instant::now() + limit),
        Err(()) => return real::recvmmsg(fd, messages, count, flags, timeout),
    };
    let before = real::errno();
    let mut done = 0;
    for place in 0..count.min(libc::UIO_MAXIOV as c_uint) {
        let message = messages.add(place as usize);
        // recvmmsg(2): after the first message, MSG_WAITFORONE turns waiting off.
        let waits = done == 0 || flags & libc::MSG_WAITFORONE == 0;
        let flags = (flags & !libc::MSG_WAITFORONE) | if waits { 0 } else { libc::MSG_DONTWAIT };
        let received = recvmsg(fd, &raw mut (*message).msg_hdr, flags);
        if received < 0 {
            if done == 0 {
                return -1;
            }
            break;
        }
        (*message).msg_len = received as c_uint;
        done += 1;
        // The time is looked at after a message only (recvmmsg(2), BUGS).
        if until.is_some_and(|until| std::time::Instant::now() >= until) {
            break;
        }
    }
    if let (Some(timeout), Some(until)) = (timeout.as_mut(), until) {
        let left = until.saturating_duration_since(std::time::Instant::now());
        timeout.tv_sec = left.as_secs() as i64;
        timeout.tv_nsec = i64::from(left.subsec_nanos());
    }
    real::set_errno(before);
    done
}

#[inline]
pub unsafe fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t {
    if table::is_foreign(fd) { real::write(fd, buffer, count) } else { ours::write(fd, buffer, count) }
}

pub unsafe fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    let Some(socket) = watched(fd) else { return real::writev(fd, iov, count) };
    sends(fd, socket, || vector(iov, count), 0, || real::writev(fd, iov, count))
}

#[inline]
pub unsafe fn send(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t {
    if table::is_foreign(fd) {
        real::send(fd, buffer, length, flags)
    } else {
        ours::send(fd, buffer, length, flags)
    }
}

pub unsafe fn sendto(
    fd: c_int,
    buffer: *const c_void,
    length: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_length: socklen_t,
) -> ssize_t {
    let plain = || real::sendto(fd, buffer, length, flags, address, address_length);
    let Some(socket) = watched(fd) else { return plain() };
    let piece = whole(buffer, length);
    sends(fd, socket, || one(&raw const piece), flags, plain)
}

pub unsafe fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let Some(socket) = watched(fd).filter(|_| is_memory(message)) else {
        if is_memory(message) && (*message).msg_controllen > 0 {
            carried(message, leaving::leave);
        }
        return real::sendmsg(fd, message, flags);
    };
    sends(fd, socket, || Pieces::of_message(&*message), flags, || real::sendmsg(fd, message, flags))
}

pub unsafe fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    let promoted = watched(fd).is_some_and(|(_, socket)| socket.state() != State::Kernel);
    if !promoted || !is_memory(messages) {
        return real::sendmmsg(fd, messages, count, flags);
    }
    let mut done = 0;
    for place in 0..count.min(libc::UIO_MAXIOV as c_uint) {
        let message = messages.add(place as usize);
        let before = real::errno();
        let sent = sendmsg(fd, &raw const (*message).msg_hdr, flags);
        if sent < 0 {
            if done > 0 {
                real::set_errno(before);
                break;
            }
            return -1;
        }
        (*message).msg_len = sent as c_uint;
        done += 1;
    }
    done
}

pub unsafe fn sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    let plain = || real::sendfile(out, input, offset, count);
    let Some(socket) = watched(out) else { return plain() };
    sending_pieces(out, socket, || Err(libc::EINVAL), 0, plain)
        .unwrap_or_else(|| copies::send_file(out, input, offset, count))
}

pub unsafe fn splice(
    input: c_int,
    input_offset: *mut loff_t,
    output: c_int,
    output_offset: *mut loff_t,
    length: size_t,
    flags: c_uint,
) -> ssize_t {
    let plain = || real::splice(input, input_offset, output, output_offset, length, flags);
    // What the kernel refuses, or finds nothing to do for, moves nothing.
    let moves = |other: c_int| {
        let is_pipe = || {
            // SAFETY: F_GETPIPE_SZ takes no argument.
            unsafe { real::fcntl(other, libc::F_GETPIPE_SZ, std::ptr::null_mut()) >= 0 }
        };
        length > 0 && input_offset.is_null() && output_offset.is_null() && kept_errno(is_pipe)
    };
    // Whatever is spliced is counted like any other bytes.
    if let Some(socket) = watched(output) {
        return sending_pieces(output, socket, || Err(libc::EINVAL), 0, plain).unwrap_or_else(
            || match moves(input) {
                true => copies::splice_to(input, output, length, flags),
                false => plain(),
            },
        );
    }
    match watched(input) {
        Some(socket) => {
            receiving_pieces(input, socket, || Err(libc::EINVAL), 0, plain).unwrap_or_else(|| {
                match moves(output) {
                    true => copies::splice_from(input, output, length, flags),
                    false => plain(),
                }
            })
        }
        None => plain(),
    }
}

#[path = "copies.rs"]
mod copies;

// Readiness

pub unsafe fn epoll_create(size: c_int) -> c_int {
    let fd = real::epoll_create(size);
    made_set(fd)
}

pub unsafe fn epoll_create1(flags: c_int) -> c_int {
    let fd = real::epoll_create1(flags);
    made_set(fd)
}

fn made_set(fd: c_int) -> c_int {
    if fd >= 0 {
        descriptors::set(fd);
    }
    fd
}

pub unsafe fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let before = real::errno();
    let wish = is_memory(event).then(|| *event);
    if let Some(outcome) = epoll::deferred(set, operation, fd, wish) {
        return told(outcome.map(|()| 0), before) as c_int;
    }
    let status = real::epoll_ctl(set, operation, fd, event);
    if status == 0 {
        epoll::changed(set, operation, fd, wish);
    }
    status
}

/// A wait whose events have nowhere to go, as the kernel finds out once there are some.
unsafe fn unreachable_memory(
    set: c_int,
    promoted: &'static Set,
    limit: Limit,
    mask: *const sigset_t,
) -> c_int {
    let mut event = epoll_event { events: 0, u64: 0 };
    let count = epoll::wait(set, promoted, &raw mut event, 1, limit, mask);
    if count > 0 {
        real::set_errno(libc::EFAULT);
        return -1;
    }
    count
}

pub unsafe fn epoll_wait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int {
    kept_errno(promoter::answers);
    match epoll::promoted_set(set) {
        Some(promoted) if most > 0 && is_memory(events) => {
            epoll::wait(set, promoted, events, most, epoll::milliseconds(timeout), std::ptr::null())
        }
        Some(promoted) if most > 0 => {
            unreachable_memory(set, promoted, epoll::milliseconds(timeout), std::ptr::null())
        }
        _ => real::epoll_wait(set, events, most, timeout),
    }
}

pub unsafe fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    kept_errno(promoter::answers);
    match epoll::promoted_set(set) {
        Some(promoted) if most > 0 && is_memory(events) => {
            epoll::wait(set, promoted, events, most, epoll::milliseconds(timeout), mask)
        }
        Some(promoted) if most > 0 => unreachable_memory(set, promoted, epoll::milliseconds(timeout), mask),
        _ => real::epoll_pwait(set, events, most, timeout, mask),
    }
}

pub unsafe fn epoll_pwait2(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    kept_errno(promoter::answers);
    match (epoll::promoted_set(set), epoll::time(timeout.as_ref())) {
        (Some(promoted), Ok(limit)) if most > 0 && is_memory(events) => {
            epoll::wait(set, promoted, events, most, limit, mask)
        }
        (Some(promoted), Ok(limit)) if most > 0 => unreachable_memory(set, promoted, limit, mask),
        _ => real::epoll_pwait2(set, events, most, timeout, mask),
    }
}

/// The descriptors of a poll among which are promoted sockets.
unsafe fn promoted_among<'a>(fds: *mut pollfd, count: libc::nfds_t) -> Option<&'a mut [pollfd]> {
    if !is_memory(fds) || count == 0 || count > 1 << 20 {
        return None;
    }
    // SAFETY: poll(2): `count` entries lie there.
    let fds = unsafe { std::slice::from_raw_parts_mut(fds, count as usize) };
    polling::concerns(fds).then_some(fds)
}

pub unsafe fn poll(fds: *mut pollfd, count: libc::nfds_t, timeout: c_int) -> c_int {
    kept_errno(promoter::answers);
    match promoted_among(fds, count) {
        Some(fds) => polling::wait(fds, epoll::milliseconds(timeout), std::ptr::null()),
        None => real::poll(fds, count, timeout),
    }
}

pub unsafe fn ppoll(
    fds: *mut pollfd,
    count: libc::nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    kept_errno(promoter::answers);
    match (promoted_among(fds, count), epoll::time(timeout.as_ref())) {
        (Some(fds), Ok(limit)) => polling::wait(fds, limit, mask),
        _ => real::ppoll(fds, count, timeout, mask),
    }
}

pub unsafe fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    kept_errno(promoter::answers);
    let sets = Sets { read, write, except };
    let limit = timeout
        .as_ref()
        .map(|timeout| timespec { tv_sec: timeout.tv_sec, tv_nsec: timeout.tv_usec.saturating_mul(1000) });
    match epoll::time(limit.as_ref()) {
        Ok(limit) if selecting::concerns(count, sets) => {
            let began = std::time::Instant::now();
            let ready = selecting::wait(count, sets, limit, std::ptr::null());
            if let (Some(timeout), Limit::After(limit)) = (timeout.as_mut(), limit) {
                // Linux's select leaves the time that was not slept (select(2)).
                let left = limit.saturating_sub(began.elapsed());
                timeout.tv_sec = left.as_secs() as i64;
                timeout.tv_usec = i64::from(left.subsec_micros());
            }
            ready
        }
        _ => real::select(count, read, write, except, timeout),
    }
}

pub unsafe fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    kept_errno(promoter::answers);
    let sets = Sets { read, write, except };
    match epoll::time(timeout.as_ref()) {
        Ok(limit) if selecting::concerns(count, sets) => selecting::wait(count, sets, limit, mask),
        _ => real::pselect(count, read, write, except, timeout, mask),
    }
}

// Life

pub unsafe fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let fd = real::socket(domain, kind, protocol);
    if fd >= 0 {
        let is_tcp = matches!(domain, libc::AF_INET | libc::AF_INET6)
            && kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == libc::SOCK_STREAM
            && matches!(protocol, 0 | libc::IPPROTO_TCP);
        if is_tcp {
            descriptors::tcp(fd, kind & libc::SOCK_NONBLOCK != 0);
        } else {
            descriptors::foreign(fd);
        }
    }
    fd
}

pub unsafe fn socketpair(domain: c_int, kind: c_int, protocol: c_int, pair: *mut c_int) -> c_int {
    let status = real::socketpair(domain, kind, protocol, pair);
    if status == 0 {
        descriptors::foreign(*pair);
        descriptors::foreign(*pair.add(1));
    }
    status
}

pub unsafe fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    let status = real::connect(fd, address, length);
    if let Some((number, socket)) = watched(fd) {
        let errno = real::errno();
        if status == 0 || errno == libc::EINPROGRESS {
            promoter::connected(socket, number);
        }
        real::set_errno(errno);
    }
    status
}

pub unsafe fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let new = real::accept(fd, address, length);
    accepted(fd, new, 0)
}

pub unsafe fn accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int {
    let new = real::accept4(fd, address, length, flags);
    accepted(fd, new, flags)
}

fn accepted(listener: c_int, new: c_int, flags: c_int) -> c_int {
    if new < 0 {
        return new;
    }
    let errno = real::errno();
    if watched(listener).is_some() {
        if let Some((number, socket)) = descriptors::tcp(new, flags & libc::SOCK_NONBLOCK != 0) {
            if let Some(listener) = table::socket(listener) {
                // Options are inherited.
                socket.send_limit.store(listener.send_limit.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            promoter::accepted(socket, number);
        }
    } else {
        descriptors::foreign(new);
    }
    real::set_errno(errno);
    new
}

pub unsafe fn shutdown(fd: c_int, how: c_int) -> c_int {
    if let Some(socket) = table::socket(fd)
        && socket.state() == State::Promoted
        && how != libc::SHUT_RD
        && let Some(promoted) = socket.lock().promoted.as_deref_mut()
    {
        // FIN comes behind what the ring holds; what is sent later is the kernel's to refuse.
        promoted.connection.kernel_sends();
    }
    real::shutdown(fd, how)
}

pub unsafe fn close(fd: c_int) -> c_int {
    if promoter::is_hidden(fd) {
        real::set_errno(libc::EBADF);
        return -1;
    }
    let before = real::errno();
    descriptors::closing(fd);
    real::set_errno(before);
    real::close(fd)
}

pub unsafe fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const ONLY_MARK: c_int = libc::CLOSE_RANGE_CLOEXEC as c_int;
    let (Ok(low), high) = (c_int::try_from(first), c_int::try_from(last).unwrap_or(c_int::MAX)) else {
        return real::close_range(first, last, flags);
    };
    if flags & ONLY_MARK != 0 || first > last {
        return real::close_range(first, last, flags);
    }
    let before = real::errno();
    descriptors::closing_range(low, high);
    real::set_errno(before);
    // The descriptor that the program does not know of stays.
    match promoter::hidden().filter(|hidden| (low..=high).contains(hidden)) {
        None => real::close_range(first, last, flags),
        Some(hidden) => {
            let hidden = hidden.unsigned_abs();
            let below = if first < hidden { real::close_range(first, hidden - 1, flags) } else { 0 };
            let above = if last > hidden { real::close_range(hidden + 1, last, flags) } else { 0 };
            below.min(above)
        }
    }
}

/// closefrom(3), which returns nothing.
pub unsafe fn closefrom(first: c_int) {
    close_range(first.max(0).unsigned_abs(), c_uint::MAX, 0);
}

pub unsafe fn dup(fd: c_int) -> c_int {
    let new = real::dup(fd);
    if new >= 0 {
        descriptors::same(fd, new);
    }
    new
}

pub unsafe fn dup2(fd: c_int, new: c_int) -> c_int {
    replaced(fd, new, || real::dup2(fd, new))
}

pub unsafe fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int {
    replaced(fd, new, || real::dup3(fd, new, flags))
}

fn replaced(fd: c_int, new: c_int, call: impl Fn() -> c_int) -> c_int {
    // What lies at the new number is closed by the call, if it does anything: `fd` is open.
    let before = real::errno();
    if process::borrows_memory() {
        // For the program that the child of a vfork(2) executes.
        leaving::leave(fd);
    }
    let open = fd != new && {
        // SAFETY: F_GETFD takes no argument.
        unsafe { real::fcntl(fd, libc::F_GETFD, std::ptr::null_mut()) >= 0 }
    };
    if open && promoter::is_hidden(new) && !promoter::leave_number() {
        // dup2(2): a race with whoever opens that number.
        real::set_errno(libc::EBUSY);
        return -1;
    }
    if open && new >= 0 {
        descriptors::closing(new);
    }
    real::set_errno(before);
    let status = call();
    if status >= 0 {
        descriptors::same(fd, new);
    }
    status
}

pub unsafe fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    let result = real::fcntl(fd, command, argument);
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC if result >= 0 => descriptors::same(fd, result),
        libc::F_SETFL if result >= 0 => {
            if let Some(socket) = table::socket(fd) {
                let nonblocking = argument.addr() as c_int & libc::O_NONBLOCK != 0;
                options::nonblocking(socket, nonblocking);
            }
        }
        _ => {}
    }
    result
}

pub unsafe fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let Some(socket) = table::socket(fd) else { return real::ioctl(fd, request, argument) };
    if request == libc::FIONREAD as c_ulong
        && is_memory(argument)
        && let Some(unread) = kept_errno(|| options::unread(socket, fd))
    {
        argument.cast::<c_int>().write_unaligned(unread);
        return 0;
    }
    let result = real::ioctl(fd, request, argument);
    if request == libc::FIONBIO as c_ulong && result >= 0 && is_memory(argument) {
        options::nonblocking(socket, argument.cast::<c_int>().read_unaligned() != 0);
    }
    result
}

pub unsafe fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    let ours = table::socket(fd).and_then(|socket| options::get(socket, level, name, value, length));
    ours.unwrap_or_else(|| real::getsockopt(fd, level, name, value, length))
}

pub unsafe fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    let ours = table::socket(fd).and_then(|socket| options::set(socket, level, name, value, length));
    ours.unwrap_or_else(|| real::setsockopt(fd, level, name, value, length))
}

/// syscall(2), by which some programs close descriptors, and do more.
pub unsafe fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let fd = a as c_int;
    match number {
        libc::SYS_close => c_long::from(close(fd)),
        libc::SYS_close_range => c_long::from(close_range(a as c_uint, b as c_uint, c as c_int)),
        libc::SYS_read => read(fd, b as *mut c_void, c as usize) as c_long,
        libc::SYS_write => write(fd, b as *const c_void, c as usize) as c_long,
        libc::SYS_readv => readv(fd, b as *const iovec, c as c_int) as c_long,
        libc::SYS_writev => writev(fd, b as *const iovec, c as c_int) as c_long,
        libc::SYS_recvfrom => {
            recvfrom(fd, b as *mut c_void, c as usize, d as c_int, e as *mut sockaddr, f as *mut socklen_t)
                as c_long
        }
        libc::SYS_sendto => {
            sendto(fd, b as *const c_void, c as usize, d as c_int, e as *const sockaddr, f as socklen_t)
                as c_long
        }
        libc::SYS_recvmsg => recvmsg(fd, b as *mut msghdr, c as c_int) as c_long,
        libc::SYS_sendmsg => sendmsg(fd, b as *const msghdr, c as c_int) as c_long,
        libc::SYS_accept4 => c_long::from(accept4(fd, b as *mut sockaddr, c as *mut socklen_t, d as c_int)),
        libc::SYS_dup => c_long::from(dup(fd)),
        libc::SYS_dup3 => c_long::from(dup3(fd, b as c_int, c as c_int)),
        _ => real::syscall(number, a, b, c, d, e, f),
    }
}

pub unsafe fn fork() -> pid_t {
    process::fork(real::fork)
}

#[allow(non_snake_case)] // the C name
pub unsafe fn _Fork() -> pid_t {
    process::fork(real::_Fork)
}

/// fdopen(3): the C library's own calls read and write from then on.
pub unsafe fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
    leaving::leave(fd);
    real::fdopen(fd, mode)
}

/// posix_spawn(3) is to give a descriptor to another program.
pub unsafe fn posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, new: c_int) -> c_int {
    leaving::leave(fd);
    real::posix_spawn_file_actions_adddup2(actions, fd, new)
}

/// A descriptor of any other kind was made.
#[inline]
pub fn made(fd: c_int) -> c_int {
    descriptors::foreign(fd);
    fd
}

/// _exit(2): the summary comes first.
#[allow(non_snake_case)] // the C name
pub unsafe fn _exit(status: c_int) -> c_int {
    crate::finish();
    real::_exit(status)
}

pub unsafe fn execve(
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    crate::before_exec();
    real::execve(path, arguments, environment)
}

pub unsafe fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int {
    crate::before_exec();
    real::execv(path, arguments)
}

pub unsafe fn execvp(file: *const c_char, arguments: *const *const c_char) -> c_int {
    crate::before_exec();
    real::execvp(file, arguments)
}

pub unsafe fn execvpe(
    file: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    crate::before_exec();
    real::execvpe(file, arguments, environment)
}

pub unsafe fn fexecve(
    fd: c_int,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    crate::before_exec();
    real::fexecve(fd, arguments, environment)
}

pub unsafe fn execveat(
    at: c_int,
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    flags: c_int,
) -> c_int {
    crate::before_exec();
    real::execveat(at, path, arguments, environment, flags)
}
