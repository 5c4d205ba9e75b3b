//! Calls on the kernel connection beneath a promoted one.
#![allow(unsafe_code)] // libc's calls, with memory of this module

use std::ffi::c_int;
use std::net::SocketAddr;
use std::ptr::null_mut;
use std::time::Duration;

use libc::{iovec, msghdr};
use promote::KernelEnd;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::buffer::Room;
use crate::clock::{self, Instant};
use crate::hidden;
use crate::memory::{Pieces, VECTOR};
use crate::real;
use crate::signals;
use crate::sockets::Promoted;

/// The result of a check of the kernel connection.
pub(crate) enum Found {
    /// Unread bytes.
    Bytes(usize),
    /// Nothing yet.
    Nothing,
    /// FIN, behind everything.
    End,
    /// errno of the connection.
    Failed(i32),
}

/// Whether the kernel holds unsent bytes.
pub(crate) fn has_unsent(fd: c_int) -> bool {
    // linux/sockios.h
    const SIOCOUTQNSD: libc::c_ulong = 0x894b;
    let mut unsent: c_int = 0;
    // SAFETY: it writes one int.
    let status = unsafe { real::ioctl(fd, SIOCOUTQNSD, (&raw mut unsent).cast()) };
    status == 0 && unsent > 0
}

/// Checks what can be read.
///
/// The kernel reports an error once: [`Promoted::check_kernel`] keeps it.
fn check(fd: c_int) -> Found {
    let mut byte = 0u8;
    // SAFETY: one byte of room.
    let count = unsafe { real::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
    match count {
        0 => Found::End,
        1.. => {
            let mut unread: c_int = 0;
            // SAFETY: FIONREAD writes one int. tcp(7).
            let status = unsafe { real::ioctl(fd, libc::FIONREAD, (&raw mut unread).cast()) };
            Found::Bytes(if status == 0 { unread.max(1).unsigned_abs() as usize } else { 1 })
        }
        _ => match real::errno() {
            libc::EAGAIN | libc::EINTR => Found::Nothing,
            errno => Found::Failed(errno),
        },
    }
}

impl Promoted {
    /// Checks what the kernel has to read. An error is kept for the program.
    pub(crate) fn check_kernel(&mut self, fd: c_int) -> Found {
        let found = check(fd);
        if let Found::Failed(errno) = found {
            self.failed(errno);
        }
        found
    }

    /// Keeps an error, which the kernel reports once. A number that belongs to another file by now
    /// is no error of the connection.
    pub(crate) fn failed(&mut self, errno: i32) {
        if !matches!(errno, libc::EBADF | libc::ENOTSOCK) {
            self.connection.kernel_ended(KernelEnd::Failed(errno));
        }
    }
}

/// The ends of stream and errors that poll(2) reports.
pub(crate) fn hangups(fd: c_int) -> u32 {
    const OPEN: [c_int; 3] = [1, 4, 5]; // ESTABLISHED, FIN_WAIT1 and FIN_WAIT2 of Linux
    let mut one = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one descriptor.
    if unsafe { real::poll(&raw mut one, 1, 0) } < 0 {
        // RLIMIT_NOFILE is 0.
        let state = option(fd, libc::IPPROTO_TCP, libc::TCP_INFO).map(|info| info & 0xff);
        let ended = state.is_some_and(|state| !OPEN.contains(&state));
        one.revents = if ended { libc::POLLRDHUP } else { 0 };
    }
    // epoll(7) has the same bits.
    u32::from(one.revents.cast_unsigned())
}

/// Whether the connection has an end of stream or an error, possibly behind bytes.
pub(crate) fn has_ended(fd: c_int) -> bool {
    hangups(fd) != 0
}

/// Waits until something can be read, exactly as a read would: blocking or not, with the socket's
/// timeout, interrupted by signals, a cancellation point. The error is errno.
pub(crate) fn wait(fd: c_int, flags: c_int) -> Result<(), i32> {
    let mut byte = 0u8;
    let flags = libc::MSG_PEEK | (flags & libc::MSG_DONTWAIT);
    // SAFETY: one byte of room.
    if unsafe { real::recv(fd, (&raw mut byte).cast(), 1, flags) } < 0 { Err(real::errno()) } else { Ok(()) }
}

/// Discards up to `count` bytes; returns how many, and the error that stopped it, which the kernel
/// reports once.
pub(crate) fn discard(fd: c_int, count: usize) -> (usize, Option<c_int>) {
    // With MSG_TRUNC nothing is written (tcp(7)), but memory checkers assume that it is.
    let mut room = Room::take();
    let mut dropped = 0;
    while dropped < count {
        let piece = (count - dropped).min(room.len());
        let flags = RecvFlags::TRUNC | RecvFlags::DONTWAIT;
        match real::borrow(fd).map(|fd| rustix::net::recv(fd, &mut room[..piece], flags)) {
            Some(Ok((taken @ 1.., _))) => dropped += taken,
            Some(Err(errno)) if !matches!(errno, Errno::AGAIN | Errno::INTR) => {
                return (dropped, Some(errno.raw_os_error()));
            }
            _ => break,
        }
    }
    (dropped, None)
}

/// Discards as many bytes as these pieces hold, and writes nothing there: they have the same bytes
/// already. Returns how many.
pub(crate) fn discard_seen(fd: c_int, seen: Pieces<'_>) -> usize {
    usize::try_from(receive(fd, seen, libc::MSG_TRUNC | libc::MSG_DONTWAIT)).unwrap_or(0)
}

/// Receives; negative: errno is set.
pub(crate) fn receive(fd: c_int, into: Pieces<'_>, flags: c_int) -> isize {
    if let Some((base, len)) = into.alone() {
        // SAFETY: the piece is the caller's memory.
        return unsafe { real::recv(fd, base.cast(), len, flags) };
    }
    receive_pieces(fd, into, flags)
}

/// Not inlined, since its vector would be on the stack of each call.
#[inline(never)]
fn receive_pieces(fd: c_int, into: Pieces<'_>, flags: c_int) -> isize {
    let mut room = [EMPTY; VECTOR];
    let vector = into.vector(&mut room);
    let mut message = message(vector);
    // SAFETY: the vector is the caller's memory.
    unsafe { real::recvmsg(fd, &raw mut message, flags) }
}

/// Sends; negative: errno is set.
pub(crate) fn send(fd: c_int, from: Pieces<'_>, flags: c_int) -> isize {
    if let Some((base, len)) = from.alone() {
        // SAFETY: as for `receive`.
        return unsafe { real::send(fd, base.cast_const().cast(), len, flags) };
    }
    send_pieces(fd, from, flags)
}

/// As [`receive_pieces`].
#[inline(never)]
fn send_pieces(fd: c_int, from: Pieces<'_>, flags: c_int) -> isize {
    let mut room = [EMPTY; VECTOR];
    let vector = from.vector(&mut room);
    let message = message(vector);
    // SAFETY: as for `receive`.
    unsafe { real::sendmsg(fd, &raw const message, flags) }
}

/// Sends what fits now; returns how much, or errno.
pub(crate) fn send_now(fd: c_int, bytes: &[u8]) -> Result<usize, i32> {
    // SAFETY: readable bytes.
    let sent = unsafe {
        real::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    };
    usize::try_from(sent).map_err(|_| real::errno())
}

/// SO_RCVTIMEO or SO_SNDTIMEO, if it is set. With one, no signal restarts a blocking call
/// (signal(7)).
pub(crate) fn limit(fd: c_int, name: c_int) -> Option<Duration> {
    let limit = value(fd, libc::SOL_SOCKET, name, libc::timeval { tv_sec: 0, tv_usec: 0 })?;
    let micros = limit.tv_sec.saturating_mul(1_000_000).saturating_add(limit.tv_usec);
    (micros > 0).then(|| Duration::from_micros(micros.unsigned_abs()))
}

/// Waits until the socket can be read (POLLIN), or has room (POLLOUT); it may return early. The
/// error is errno: EAGAIN after the timeout.
pub(crate) fn wait_for(fd: c_int, events: i16, until: Option<Instant>) -> Result<(), i32> {
    let timeout = until.map_or(-1, |until| {
        let left = until.saturating_sub(clock::now());
        c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
    });
    let mut one = libc::pollfd { fd, events, revents: 0 };
    let handled = signals::handled();
    // SAFETY: one entry.
    match unsafe { real::poll(&raw mut one, 1, timeout) } {
        0 => Err(libc::EAGAIN),
        1.. => Ok(()),
        // RLIMIT_NOFILE is 0.
        _ if real::errno() == libc::EINVAL => {
            std::thread::sleep(Duration::from_millis(1));
            if signals::handled() == handled { Ok(()) } else { Err(libc::EINTR) }
        }
        _ => Err(real::errno()),
    }
}

/// What ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Woken {
    pub(crate) by_kernel: bool,
    pub(crate) by_doorbell: bool,
}

/// Waits until the socket or its doorbell can be read. Errors as for [`wait_for`], and EINTR after
/// each handler.
pub(crate) fn wait_with_doorbell(fd: c_int, doorbell: c_int, until: Option<Instant>) -> Result<Woken, i32> {
    let mut both = [fd, doorbell].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let left = until.map(|until| clock::timespec(until.saturating_sub(clock::now())));
    let left = left.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: two entries, and a time or null.
    match unsafe { real::ppoll(both.as_mut_ptr(), 2, left, std::ptr::null()) } {
        0 => Err(libc::EAGAIN),
        1.. => {
            if both[1].revents & libc::POLLNVAL != 0 {
                // The program has closed it by a raw system call.
                hidden::given_to_program(doorbell);
            }
            Ok(Woken { by_kernel: both[0].revents != 0, by_doorbell: both[1].revents & libc::POLLIN != 0 })
        }
        // RLIMIT_NOFILE is 1 or 0.
        _ if real::errno() == libc::EINVAL => {
            let _ = wait_for(fd, libc::POLLIN, Some(clock::now() + Duration::from_millis(1)));
            Ok(Woken { by_kernel: true, by_doorbell: true })
        }
        _ => Err(real::errno()),
    }
}

/// Whether a call without data returns EAGAIN: O_NONBLOCK, as it is now.
pub(crate) fn is_nonblocking(fd: c_int) -> bool {
    let flags = control(fd, libc::F_GETFL, 0);
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// fcntl(2) with a number, or without an argument; less than 0: it failed.
pub(crate) fn control(fd: c_int, command: c_int, number: c_int) -> c_int {
    let number = std::ptr::without_provenance_mut(number.unsigned_abs() as usize);
    // SAFETY: the commands used take no address.
    unsafe { real::fcntl(fd, command, number) }
}

/// Makes `fd` refer to the file of `other`.
pub(crate) fn replace(fd: c_int, other: c_int) {
    let keep = if is_inherited(fd) { 0 } else { libc::O_CLOEXEC };
    // SAFETY: dup3(2) takes numbers.
    unsafe { real::dup3(other, fd, keep) };
}

/// The next close of this socket's last descriptor sends RST.
pub(crate) fn reset_at_close(fd: c_int) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    set(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
}

/// Does what close(2) of the last descriptor would do, while another one exists elsewhere: RST if
/// bytes are unread or SO_LINGER asks for it; otherwise FIN.
pub(crate) fn end(fd: c_int) {
    let linger = libc::linger { l_onoff: 0, l_linger: 0 };
    let linger = value(fd, libc::SOL_SOCKET, libc::SO_LINGER, linger);
    let aborts = linger.is_some_and(|linger| linger.l_onoff != 0 && linger.l_linger == 0);
    if aborts || matches!(check(fd), Found::Bytes(_)) {
        return reset_now(fd);
    }
    // SAFETY: shutdown(2) takes numbers.
    unsafe { real::shutdown(fd, libc::SHUT_RDWR) };
}

/// Ends the connection with RST at once; the descriptor stays.
pub(crate) fn reset_now(fd: c_int) {
    let unspecified = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
    // SAFETY: connect(2) takes AF_UNSPEC of any length to dissolve a connection.
    unsafe { real::connect(fd, &raw const unspecified, size_of_val(&unspecified) as u32) };
}

/// The Internet address of a socket.
pub(crate) fn address(fd: c_int) -> Option<SocketAddr> {
    SocketAddr::try_from(rustix::net::getsockname(real::borrow(fd)?).ok()?).ok()
}

/// That of its peer, if it has one.
pub(crate) fn peer(fd: c_int) -> Option<SocketAddr> {
    SocketAddr::try_from(rustix::net::getpeername(real::borrow(fd)?).ok()??).ok()
}

pub(crate) fn is_open(fd: c_int) -> bool {
    control(fd, libc::F_GETFD, 0) >= 0
}

/// Whether exec(2) keeps the descriptor.
pub(crate) fn is_inherited(fd: c_int) -> bool {
    control(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC == 0
}

/// Sets whether exec(2) closes it.
pub(crate) fn set_close_at_exec(fd: c_int, closes: bool) {
    control(fd, libc::F_SETFD, if closes { libc::FD_CLOEXEC } else { 0 });
}

/// An option that is an int.
pub(crate) fn option(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    value(fd, level, name, 0)
}

/// An option of integers, of which the kernel may write only a part.
fn value<T: Copy>(fd: c_int, level: c_int, name: c_int, mut value: T) -> Option<T> {
    let mut length = size_of::<T>() as u32;
    // SAFETY: room for the value.
    let status = unsafe { real::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut length) };
    (status == 0).then_some(value)
}

/// Whether a packet filter is attached to the socket.
pub(crate) fn has_filter(fd: c_int) -> bool {
    let mut length = 0;
    // SAFETY: for a length of 0 only the length is written (sk_get_filter). An eBPF filter is
    // EACCES.
    let status =
        unsafe { real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_GET_FILTER, null_mut(), &raw mut length) };
    length > 0 || (status < 0 && real::errno() == libc::EACCES)
}

/// Identifies the socket for as long as the system runs; 0: none.
pub(crate) fn cookie(fd: c_int) -> u64 {
    value(fd, libc::SOL_SOCKET, libc::SO_COOKIE, 0u64).unwrap_or(0)
}

/// Sets an option, and ignores errors.
pub(crate) fn set<T>(fd: c_int, level: c_int, name: c_int, value: &T) {
    // SAFETY: a readable value of its size.
    unsafe {
        real::setsockopt(fd, level, name, (&raw const *value).cast(), size_of::<T>() as u32);
    }
}

const EMPTY: iovec = iovec { iov_base: null_mut(), iov_len: 0 };

fn message(vector: &mut [iovec]) -> msghdr {
    // SAFETY: a message of zeros has no addresses.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vector.as_mut_ptr();
    message.msg_iovlen = vector.len();
    message
}
