//! What is asked of the kernel connection beneath a promoted one.
#![allow(unsafe_code)] // libc's calls, with memory of this module

use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::Duration;

use libc::{iovec, msghdr};
use promote::KernelEnd;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::buffer::Room;
use crate::clock::{self, Instant};
use crate::memory::{Pieces, VECTOR};
use crate::real;
use crate::sockets::Promoted;

/// What a look at the kernel connection found.
pub(crate) enum Found {
    /// So many bytes, none of them taken.
    Bytes(usize),
    /// Nothing yet.
    Nothing,
    /// FIN, behind everything.
    End,
    /// errno of the connection.
    Failed(i32),
}

/// Whether the kernel holds bytes that it has not sent yet.
pub(crate) fn has_unsent(fd: c_int) -> bool {
    // linux/sockios.h
    const SIOCOUTQNSD: libc::c_ulong = 0x894b;
    let mut unsent: c_int = 0;
    // SAFETY: it writes one int.
    let status = unsafe { real::ioctl(fd, SIOCOUTQNSD, (&raw mut unsent).cast()) };
    status == 0 && unsent > 0
}

/// Looks at what can be read.
///
/// The kernel tells an error once: [`Promoted::look`] keeps it.
fn look(fd: c_int) -> Found {
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
    /// What the kernel has to read. An error is kept for the program.
    pub(crate) fn look(&mut self, fd: c_int) -> Found {
        let found = look(fd);
        if let Found::Failed(errno) = found {
            self.failed(errno);
        }
        found
    }

    /// An error that the kernel tells once was met. That a number is another's by now is none of the connection.
    pub(crate) fn failed(&mut self, errno: i32) {
        if !matches!(errno, libc::EBADF | libc::ENOTSOCK) {
            self.connection.kernel_ended(KernelEnd::Failed(errno));
        }
    }
}

/// Which ends, and whether an error, poll(2) tells of.
pub(crate) fn ends(fd: c_int) -> u32 {
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

/// Whether the connection has an end or an error behind whatever can be read.
pub(crate) fn has_ended(fd: c_int) -> bool {
    ends(fd) != 0
}

/// Waits until something can be read, exactly as a read would: blocking or not, with the
/// socket's timeout, interrupted by signals, a cancellation point. The error is errno.
pub(crate) fn wait(fd: c_int, flags: c_int) -> Result<(), i32> {
    let mut byte = 0u8;
    let flags = libc::MSG_PEEK | (flags & libc::MSG_DONTWAIT);
    // SAFETY: one byte of room.
    if unsafe { real::recv(fd, (&raw mut byte).cast(), 1, flags) } < 0 { Err(real::errno()) } else { Ok(()) }
}

/// Drops up to `count` bytes; returns how many, and the error that was in the way, which the kernel tells once.
pub(crate) fn discard(fd: c_int, count: usize) -> (usize, Option<c_int>) {
    // With MSG_TRUNC nothing is written (tcp(7)), but tools that watch a program's memory believe
    // that it is. Bells are few.
    if count <= 64 { discard_into(fd, count, &mut [0; 64]) } else { discard_much(fd, count) }
}

#[cold]
fn discard_much(fd: c_int, count: usize) -> (usize, Option<c_int>) {
    discard_into(fd, count, &mut Room::take())
}

fn discard_into(fd: c_int, count: usize, room: &mut [u8]) -> (usize, Option<c_int>) {
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

/// Drops as many bytes as these pieces have room for, and writes nothing there: they hold the same
/// bytes already. Returns how many.
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

/// Apart, since its vector would be on the stack of each call.
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

/// Sends what there is room for now; returns how much, or errno.
pub(crate) fn send_now(fd: c_int, bytes: &[u8]) -> Result<usize, i32> {
    // SAFETY: readable bytes.
    let sent = unsafe {
        real::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    };
    usize::try_from(sent).map_err(|_| real::errno())
}

/// SO_RCVTIMEO or SO_SNDTIMEO, if it is set.
pub(crate) fn limit(fd: c_int, name: c_int) -> Option<Duration> {
    let mut limit = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let mut length = size_of_val(&limit) as u32;
    // SAFETY: room for one timeval.
    unsafe { real::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut limit).cast(), &raw mut length) };
    let micros = limit.tv_sec.saturating_mul(1_000_000).saturating_add(limit.tv_usec);
    (micros > 0).then(|| Duration::from_micros(micros.unsigned_abs()))
}

/// Whether a call that waits has such a timeout: no signal has it restarted then (signal(7)).
pub(crate) fn has_limit(fd: c_int, name: c_int) -> bool {
    limit(fd, name).is_some()
}

/// Waits until the socket can be read, by the mark that it has now. The error is errno: EAGAIN if the time is up.
pub(crate) fn wait_for_bytes(fd: c_int, until: Option<Instant>) -> Result<(), i32> {
    wait_for(fd, libc::POLLIN, until)
}

/// Waits until the socket has room. The error as for [`wait_for_bytes`].
pub(crate) fn wait_for_room(fd: c_int, until: Option<Instant>) -> Result<(), i32> {
    wait_for(fd, libc::POLLOUT, until)
}

fn wait_for(fd: c_int, events: i16, until: Option<Instant>) -> Result<(), i32> {
    let timeout = until.map_or(-1, |until| {
        let left = until.saturating_sub(clock::now());
        c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
    });
    let mut one = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one entry.
    match unsafe { real::poll(&raw mut one, 1, timeout) } {
        0 => Err(libc::EAGAIN),
        1.. => Ok(()),
        // RLIMIT_NOFILE is 0.
        _ if real::errno() == libc::EINVAL => select_one(fd, events, until),
        _ => Err(real::errno()),
    }
}

#[cold]
fn select_one(fd: c_int, events: i16, until: Option<Instant>) -> Result<(), i32> {
    let Some(place) = usize::try_from(fd).ok().filter(|place| *place < libc::FD_SETSIZE) else {
        return Err(libc::EINVAL);
    };
    let mut set = [0u64; libc::FD_SETSIZE / u64::BITS as usize];
    set[place / u64::BITS as usize] = 1 << (place % u64::BITS as usize);
    let set = set.as_mut_ptr().cast();
    let (read, write) = if events == libc::POLLIN { (set, null_mut()) } else { (null_mut(), set) };
    let left = until.map(|until| until.saturating_sub(clock::now()));
    let time = left.map(|left| libc::timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: a set that has the descriptor, and a time or null.
    match unsafe { real::pselect(fd + 1, read, write, null_mut(), time, std::ptr::null()) } {
        0 => Err(libc::EAGAIN),
        1.. => Ok(()),
        _ => Err(real::errno()),
    }
}

/// Sends a bell. True: the kernel took it.
pub(crate) fn ring(fd: c_int) -> Result<bool, i32> {
    match send_now(fd, &[0]) {
        Ok(_) => Ok(true),
        Err(libc::EAGAIN) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Whether a call that finds nothing is told so: O_NONBLOCK, as it is now.
pub(crate) fn is_nonblocking(fd: c_int) -> bool {
    let flags = flags(fd);
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// O_NONBLOCK and its like.
pub(crate) fn flags(fd: c_int) -> c_int {
    // SAFETY: F_GETFL takes no argument.
    unsafe { real::fcntl(fd, libc::F_GETFL, null_mut()) }
}

pub(crate) fn set_flags(fd: c_int, flags: c_int) {
    // SAFETY: F_SETFL takes a number.
    unsafe {
        real::fcntl(fd, libc::F_SETFL, std::ptr::without_provenance_mut(flags.unsigned_abs() as usize))
    };
}

/// Closes `fd` and has it name what `other` does.
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

/// What the close of the last descriptor brings, while there is another one elsewhere: RST over bytes that nobody
/// read, and where the program asks for it; else FIN.
pub(crate) fn end(fd: c_int) {
    let mut linger = libc::linger { l_onoff: 0, l_linger: 0 };
    let mut length = size_of::<libc::linger>() as u32;
    let at = (&raw mut linger).cast();
    // SAFETY: room for the option's value.
    unsafe { real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, at, &raw mut length) };
    let aborts = linger.l_onoff != 0 && linger.l_linger == 0;
    if aborts || matches!(look(fd), Found::Bytes(_)) {
        return reset_now(fd);
    }
    // SAFETY: shutdown(2) takes numbers.
    unsafe { real::shutdown(fd, libc::SHUT_RDWR) };
}

/// Ends the connection with RST at once; the descriptor stays.
pub(crate) fn reset_now(fd: c_int) {
    let nobody = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
    // SAFETY: connect(2) takes AF_UNSPEC of any length to dissolve a connection.
    unsafe { real::connect(fd, &raw const nobody, size_of_val(&nobody) as u32) };
}

/// Whether the socket has a peer.
pub(crate) fn is_connected(fd: c_int) -> bool {
    real::borrow(fd).is_some_and(|fd| rustix::net::getpeername(fd).is_ok_and(|peer| peer.is_some()))
}

pub(crate) fn is_open(fd: c_int) -> bool {
    // SAFETY: F_GETFD takes no argument.
    unsafe { real::fcntl(fd, libc::F_GETFD, std::ptr::null_mut()) >= 0 }
}

/// Whether a program that takes this one's place gets the descriptor.
pub(crate) fn is_inherited(fd: c_int) -> bool {
    // SAFETY: F_GETFD takes no argument.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFD, null_mut()) };
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}

/// Whether such a program gets it from here on.
pub(crate) fn set_close_at_exec(fd: c_int, closes: bool) {
    let flags = if closes { libc::FD_CLOEXEC } else { 0 };
    // SAFETY: F_SETFD takes a number.
    unsafe {
        real::fcntl(fd, libc::F_SETFD, std::ptr::without_provenance_mut(flags.unsigned_abs() as usize))
    };
}

/// An option that is an int.
pub(crate) fn option(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut length = size_of::<c_int>() as u32;
    // SAFETY: room for one int.
    let status = unsafe { real::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut length) };
    (status == 0).then_some(value)
}

/// Whether a packet filter is attached to the socket.
pub(crate) fn has_filter(fd: c_int) -> bool {
    let mut length = 0;
    // SAFETY: of a filter's length nothing is written but that (sk_get_filter). One of eBPF is EACCES.
    let status =
        unsafe { real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_GET_FILTER, null_mut(), &raw mut length) };
    length > 0 || (status < 0 && real::errno() == libc::EACCES)
}

/// Which socket it is, for as long as the system runs; 0: none.
pub(crate) fn cookie(fd: c_int) -> u64 {
    let mut value = 0u64;
    let mut length = size_of::<u64>() as u32;
    let place = (&raw mut value).cast();
    // SAFETY: room for the 64 bits of a cookie.
    unsafe { real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE, place, &raw mut length) };
    value
}

/// Sets an option; what the kernel says to it does not matter.
pub(crate) fn set<T>(fd: c_int, level: c_int, name: c_int, value: &T) {
    // SAFETY: a readable value of its size.
    unsafe {
        real::setsockopt(fd, level, name, (&raw const *value).cast(), size_of::<T>() as u32);
    }
}

const EMPTY: iovec = iovec { iov_base: null_mut(), iov_len: 0 };

fn message(vector: &mut [iovec]) -> msghdr {
    // SAFETY: a message of zeros names nothing.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vector.as_mut_ptr();
    message.msg_iovlen = vector.len();
    message
}
