//! Socket options and queries of a promoted socket that the kernel cannot answer.
#![allow(unsafe_code)] // values lie in the program's memory

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::Relaxed;

use libc::socklen_t;
use promote::{KernelEnd, Next, Reason};

use crate::demotion;
use crate::kernel;
use crate::kernel_options;
use crate::memory::{are_writable, is_readable, is_writable};
use crate::real;
use crate::sockets::{self, Promoted, Socket, State};
use crate::table;

/// getsockopt(2) of a tracked socket; `None`: the kernel answers.
///
/// # Safety
///
/// As getsockopt(2).
pub(crate) unsafe fn get(
    fd: c_int,
    socket: &Socket,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> Option<c_int> {
    // This option receives data.
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_ZEROCOPY_RECEIVE) {
        demotion::demote_for(fd, Reason::Option);
    }
    let is_ours =
        matches!((level, name), (libc::IPPROTO_TCP, libc::TCP_NODELAY) | (libc::SOL_SOCKET, libc::SO_ERROR));
    if !is_ours || socket.state() != State::Promoted || !is_writable(length) {
        return None;
    }
    // SAFETY: `length` was checked to be readable.
    let room = unsafe { length.read_unaligned() };
    // The kernel refuses more.
    let room = (room <= c_int::MAX as u32).then_some((room as usize).min(size_of::<c_int>()))?;
    if !are_writable(value.cast::<u8>(), room) {
        return None;
    }
    let answer = match name {
        libc::TCP_NODELAY if level == libc::IPPROTO_TCP => socket.lock().promoted.as_deref()?.no_delay,
        // An error that the kernel reported to the library instead of the program.
        _ => socket.lock().promoted.as_deref_mut()?.connection.take_error()?,
    };
    // SAFETY: there is room for that many bytes, and for the length.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const answer).cast::<u8>(), value.cast(), room);
        length.write_unaligned(room as socklen_t);
    }
    Some(0)
}

/// setsockopt(2) of a tracked socket; `None`: the kernel does it.
///
/// # Safety
///
/// As setsockopt(2).
pub(crate) unsafe fn set(
    fd: c_int,
    number: u32,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> Option<c_int> {
    let socket = sockets::at(number);
    let is_number = length as usize >= size_of::<c_int>() && is_readable(value.cast::<c_int>());
    // SAFETY: the caller's promise.
    let wanted = is_number.then(|| unsafe { value.cast::<c_int>().read_unaligned() });
    if kernel_options::turns_on(level, name, wanted) {
        // Inherited by what a listener accepts.
        socket.may_have_options.store(true, Relaxed);
        match (level, name) {
            // They change what reads, writes and peeks do.
            (libc::IPPROTO_TCP, libc::TCP_ULP | libc::TCP_REPAIR) | (libc::SOL_SOCKET, libc::SO_PEEK_OFF) => {
                demotion::demote_for(fd, Reason::Option)
            }
            _ => real::kept_errno(|| demotion::demote_for_option(fd)),
        }
        return None;
    }
    let wanted = wanted?;
    if (level, name) == (libc::SOL_SOCKET, libc::SO_SNDBUF) {
        limit(socket, wanted);
        return None;
    }
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_INQ) && matches!(wanted, 0 | 1) {
        socket.reports_unread.store(wanted == 1, Relaxed);
    }
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_CORK) {
        socket.lock().promoted.as_deref_mut()?.corked = wanted != 0;
    }
    if (level, name) != (libc::IPPROTO_TCP, libc::TCP_NODELAY) || socket.state() != State::Promoted {
        return None;
    }
    // Wake-up bytes may have turned it on in the kernel; getsockopt(2) returns the program's value.
    let mut inner = socket.lock();
    let promoted = inner.promoted.as_deref_mut()?;
    promoted.no_delay = c_int::from(wanted != 0);
    if wanted != 0 {
        // Bytes that TCP_CORK holds back are sent.
        promoted.kernel_delays = false;
        kernel::set(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1);
    }
    Some(0)
}

/// An option was set.
pub(crate) fn was_set(fd: c_int, level: c_int, name: c_int) {
    // asm-generic/socket.h
    const SO_RCVTIMEO_NEW: c_int = 66;
    if level == libc::SOL_SOCKET
        && matches!(name, libc::SO_RCVTIMEO | SO_RCVTIMEO_NEW)
        && let Some(socket) = table::socket(fd)
        && let Some(promoted) = socket.lock().promoted.as_deref_mut()
    {
        promoted.has_no_timeout = false;
        promoted.timeout_changes = promoted.timeout_changes.wrapping_add(1);
    }
}

/// SO_SNDBUF: a program that sets a small buffer expects to block soon if the peer does not read.
/// Much less than a few pages would send most bytes through the kernel.
fn limit(socket: &Socket, wanted: c_int) {
    let limit = wanted.unsigned_abs().saturating_mul(2).max(LEAST_LIMIT);
    socket.send_limit.store(limit, Relaxed);
    if let Some(promoted) = socket.lock().promoted.as_deref_mut() {
        promoted.send_limit = limit;
    }
}

/// Bytes.
const LEAST_LIMIT: u32 = 32 << 10;

/// The value that recvmsg(2) adds for TCP_INQ: the unread bytes, and 1 for FIN (`tcp_inq_hint`).
pub(crate) fn unread_hint(socket: &Socket, fd: c_int) -> Option<c_int> {
    if !socket.reports_unread.load(Relaxed) {
        return None;
    }
    let mut inner = socket.lock();
    let promoted = inner.promoted.as_deref_mut()?;
    let is_in_ring = !promoted.connection.reads_from_kernel() && !promoted.connection.kernel_has_bytes();
    let in_kernel = if is_in_ring { 0 } else { promoted.check_behind_wake_ups(fd) };
    let here = promoted.shows(in_kernel);
    // After 0 a program waits: ask the kernel, whose event may have been reported already. If the
    // set polls the ring that is not the case, unless the set reported the kernel's event.
    let is_asked =
        |promoted: &mut Promoted| !promoted.is_hot() || std::mem::take(&mut promoted.kernel_reported);
    let may_end = promoted.connection.peer_has_finished() || (here == 0 && is_asked(promoted));
    Some(here.saturating_add((may_end && promoted.has_fin(fd)).into()))
}

/// FIONREAD of a promoted socket: the bytes that reads would get at once. After an edge, programs
/// stop reading after this many. `None`: it is not promoted.
pub(crate) fn unread(socket: &Socket, fd: c_int) -> Option<c_int> {
    if socket.state() != State::Promoted {
        return None;
    }
    let mut inner = socket.lock();
    let promoted = inner.promoted.as_deref_mut()?;
    let in_kernel = promoted.check_behind_wake_ups(fd);
    Some(promoted.shows(in_kernel))
}

impl Promoted {
    /// Whether FIN has come, or the reset of a killed peer, which the next read reports as FIN.
    fn has_fin(&mut self, fd: c_int) -> bool {
        // The kernel reports a reset once, perhaps to this library.
        if self.connection.has_error() {
            return false;
        }
        let ends = kernel::hangups(fd);
        if ends & libc::POLLERR as u32 == 0 {
            return ends & libc::POLLRDHUP as u32 != 0;
        }
        self.check_kernel(fd);
        matches!(self.connection.next(0), Ok(Next::End(KernelEnd::Finished)))
    }

    /// Returns how many bytes are here to the program, `in_kernel` of them in the kernel.
    fn shows(&mut self, in_kernel: usize) -> c_int {
        // Protocol violations by the peer are reported by the next read.
        let here = self.connection.here(in_kernel).map_or(0, |here| here.readable);
        self.shown = self.shown.max(self.connection.consumed() + here);
        c_int::try_from(here).unwrap_or(c_int::MAX)
    }
}
