//! The calls: one function for each of libc's, with the same arguments, result and errno.
//!
//! # Safety
//!
//! Each has the requirements of the C function of its name.
#![allow(unsafe_code)] // C's calling convention: everything comes by address
#![allow(unsafe_op_in_unsafe_fn)] // whatever is unsafe here passes on what the caller promised
#![allow(non_snake_case)] // C names
#![allow(missing_docs)] // each is documented under its name in section 2 or 3 of the manual
#![allow(clippy::missing_safety_doc)] // said once, above

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::sync::atomic::Ordering;

use libc::{
    epoll_event, fd_set, iovec, loff_t, mmsghdr, msghdr, off_t, pid_t, pollfd, sigset_t, size_t, sockaddr,
    socklen_t, ssize_t, timespec, timeval,
};
use promote::Reason;

use crate::arming;
use crate::clock::{self, Instant};
use crate::confined;
use crate::consume::Outcome;
use crate::demotion;
use crate::descriptors;
use crate::epoll::{self, Limit};
use crate::fork as process;
use crate::hidden;
use crate::kernel;
use crate::local_listen;
use crate::memory::{Pieces, are_readable, are_writable, is_range, is_readable, is_writable, piece};
use crate::mode;
use crate::options;
use crate::poll as polling;
use crate::promoter;
use crate::real::{self, kept_errno};
use crate::receive;
use crate::select::{self as selecting, Sets};
use crate::send as sending;
use crate::sets::{self, Set};
use crate::sockets::{self, Socket, State};
use crate::stats;
use crate::table::{self, Entry};
use crate::threads;
use crate::uring;
use crate::vfork;
use crate::waiters;

mod bytes;
mod forks;
mod handlers;
mod life;
mod raw;
mod readiness;
mod submissions;

pub use bytes::*;
pub use forks::*;
pub use handlers::*;
pub use life::*;
pub use raw::*;
pub use readiness::*;

/// The tracked socket of a call about bytes.
#[inline(always)]
fn watched(fd: c_int) -> Option<(u32, &'static Socket)> {
    match table::entry(fd) {
        Entry::Socket(_) if vfork::is_elsewhere() => None,
        Entry::Socket(number) => Some((number, sockets::at(number))),
        Entry::Foreign | Entry::Multipath | Entry::Ring(_) | Entry::ClosingRing | Entry::Set(_) => None,
        Entry::Unknown => match descriptors::classify(fd) {
            Entry::Socket(number) => Some((number, sockets::at(number))),
            _ => None,
        },
    }
}

/// `before`: errno at the beginning of the call, which a successful call preserves.
fn result_of(outcome: Outcome, before: c_int) -> ssize_t {
    match outcome {
        // Bounded by what one call moves.
        Ok(count) => {
            real::set_errno(before);
            count as ssize_t
        }
        Err(errno) => failed(errno),
    }
}

fn failed(errno: c_int) -> ssize_t {
    real::set_errno(errno);
    -1
}

/// Flags of calls that do not touch the stream: errors of packets and urgent bytes are the
/// kernel's.
const KERNELS: c_int = libc::MSG_ERRQUEUE | libc::MSG_OOB;

/// A call that receives on a tracked socket; `plain` makes it in the kernel.
#[inline]
fn receiving(
    fd: c_int,
    socket: (u32, &'static Socket),
    pieces: impl Fn() -> Result<Pieces<'static>, i32>,
    flags: c_int,
    mut plain: impl FnMut() -> ssize_t,
) -> ssize_t {
    // The kernel reports what is wrong with the call's memory.
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
    let receive_rest = |into: Pieces<'_>| kernel::receive(fd, into, flags);
    let mut waited = false;
    let mut taken = 0;
    let generation = socket.generation.load(Ordering::Relaxed);
    loop {
        match socket.state() {
            State::Kernel | State::Free => {
                return Some(in_all(taken, by_kernel(taken, &pieces, &mut plain, receive_rest)));
            }
            State::Promoted if flags & KERNELS != 0 => return Some(plain()),
            State::Promoted => {
                let before = real::errno();
                let into = pieces().ok()?;
                let outcome = match into.left {
                    0 => receive::receive_nothing(socket, fd, flags),
                    _ => receive::receive(socket, fd, into, flags, &mut taken),
                };
                if let Some(outcome) = outcome {
                    return Some(result_of(outcome, before));
                }
                // Another thread closed the socket while this one waited; the number may belong to
                // another file by now. A shutdown before the close wakes this thread with the end
                // of stream.
                if gone(socket, generation) {
                    return Some(taken as ssize_t);
                }
                std::hint::spin_loop();
            }
            State::Plain | State::Offered => {
                if promoter::before_message(socket, number) && gone(socket, generation) {
                    return Some(taken as ssize_t);
                }
                if socket.state() == State::Offered
                    && !waited
                    && taken == 0
                    && promoter::is_impatient()
                    && socket.blocks(flags)
                    && flags & KERNELS == 0
                    && pieces().is_ok_and(|into| into.left > 0)
                {
                    // Waits outside the call: an answer of the monitor may come meanwhile, and must
                    // not be delayed.
                    waited = true;
                    if let Err(errno) = kept_errno(|| kernel::wait(fd, flags)) {
                        return Some(failed(errno));
                    }
                    if gone(socket, generation) {
                        return Some(taken as ssize_t);
                    }
                    continue;
                }
                let Some(busy) = socket.enter() else { continue };
                let count = by_kernel(taken, &pieces, &mut plain, receive_rest);
                if count > 0 && flags & (libc::MSG_PEEK | libc::MSG_ERRQUEUE) == 0 {
                    socket.received.fetch_add(count as u64, Ordering::Relaxed);
                    Socket::one_more(&socket.messages_received);
                }
                drop(busy);
                if count > 0 {
                    promoter::after_message(socket, number);
                }
                return Some(in_all(taken, count));
            }
        }
    }
}

/// Whether a record no longer belongs to the same socket.
fn gone(socket: &Socket, generation: u32) -> bool {
    socket.state() == State::Free || socket.generation.load(Ordering::Relaxed) != generation
}

/// The kernel's part of a call after `done` bytes went over the ring and the connection was
/// demoted: the program's own call, or the rest of it.
#[inline(always)]
fn by_kernel(
    done: usize,
    pieces: impl Fn() -> Result<Pieces<'static>, i32>,
    call: impl FnOnce() -> ssize_t,
    rest: impl FnOnce(Pieces<'_>) -> ssize_t,
) -> ssize_t {
    if done == 0 {
        return call();
    }
    // Bytes that went over the ring are returned, whatever happens to the rest.
    kept_errno(|| pieces().map_or(0, |pieces| rest(pieces.after(done)).max(0)))
}

/// The kernel's count, plus the bytes that went over the ring before.
#[inline(always)]
fn in_all(done: usize, by_kernel: ssize_t) -> ssize_t {
    if done == 0 { by_kernel } else { done as ssize_t + by_kernel }
}

/// Sends all, unless the kernel accepts less than it is given.
#[cold]
fn send_whole(fd: c_int, from: Pieces<'_>, flags: c_int) -> ssize_t {
    let mut sent = 0;
    while sent < from.left {
        let rest = from.after(sent);
        // SIGPIPE is for calls that send nothing.
        match usize::try_from(kernel::send(fd, rest, flags | libc::MSG_NOSIGNAL)) {
            Ok(count @ 1..) if count == rest.in_one_call() => sent += count,
            Ok(count) => return (sent + count) as ssize_t,
            Err(_) => break,
        }
    }
    sent as ssize_t
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

/// A call with MSG_ZEROCOPY: on a socket with SO_ZEROCOPY the kernel reports its completion. Many
/// servers set that option and never make such a call (gRPC).
#[cold]
fn sends_without_copy(socket: &'static Socket, fd: c_int) {
    let is_kernel_only = matches!(socket.state(), State::Kernel | State::Free) || mode::is_confined();
    if !is_kernel_only && kept_errno(|| kernel::option(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY)) == Some(1) {
        demotion::demote_for_option(fd);
    }
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
    let send_rest = |from: Pieces<'_>| send_whole(fd, from, flags);
    if flags & libc::MSG_ZEROCOPY != 0 {
        sends_without_copy(socket, fd);
    }
    let mut done = 0;
    let generation = socket.generation.load(Ordering::Relaxed);
    loop {
        match socket.state() {
            State::Kernel | State::Free => {
                return Some(in_all(done, by_kernel(done, &pieces, &mut plain, send_rest)));
            }
            State::Promoted => {
                let before = real::errno();
                let from = pieces().ok().filter(|from| from.left > 0)?;
                if let Some(outcome) = sending::send(socket, fd, from, flags, &mut done) {
                    return Some(result_of(outcome, before));
                }
                if gone(socket, generation) {
                    return Some(if done > 0 { done as ssize_t } else { failed(libc::EBADF) });
                }
                std::hint::spin_loop();
            }
            State::Plain | State::Offered => {
                if promoter::before_message(socket, number) && gone(socket, generation) {
                    return Some(if done > 0 { done as ssize_t } else { failed(libc::EBADF) });
                }
                let Some(busy) = socket.enter() else { continue };
                let count = by_kernel(done, &pieces, &mut plain, send_rest);
                if count > 0 {
                    socket.sent.fetch_add(count as u64, Ordering::Relaxed);
                    Socket::one_more(&socket.messages_sent);
                }
                if flags & libc::MSG_OOB != 0 {
                    stats::stays_on_tcp(socket, Reason::Option);
                    kept_errno(|| promoter::keep_on_tcp(socket, number));
                }
                drop(busy);
                if count > 0 {
                    promoter::after_message(socket, number);
                }
                return Some(in_all(done, count));
            }
        }
    }
}

/// Lets pieces outlive the frame's borrow checker: they live as long as the call.
#[inline(always)]
unsafe fn one(piece: *const iovec) -> Result<Pieces<'static>, i32> {
    // SAFETY: the caller's iovec lives as long as the call.
    let piece = unsafe { &*piece };
    if is_range(piece.iov_base.cast(), piece.iov_len) { Ok(Pieces::one(piece)) } else { Err(libc::EFAULT) }
}
