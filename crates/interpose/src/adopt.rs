//! The switch of a connection to its rings, after a last comparison of the kernel's counts with
//! ours.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use promote::{Connection, Reason};
use ring::WakeUp;
use ring::layout::NO_WAITER;

use crate::kernel;
use crate::promoter::Grant;
use crate::real;
use crate::sets;
use crate::sockets::{Promoted, Socket, State};
use crate::stats;
use crate::uring;
use crate::waiters::Waiters;
use crate::watch::Watch;

/// Promotes a connection, if our counts agree with the kernel's and no call is in progress.
pub(crate) fn adopt(socket: &'static Socket, grant: Grant) -> Result<(), Reason> {
    let Grant { token, own, peer, other, doorbell } = grant;
    let number = token.get() as u32;
    let raw = socket.fd.load(Ordering::Relaxed);
    let Some(fd) = real::borrow(raw) else { return Err(Reason::ClosedEarly) };
    let mut inner = socket.lock();
    if socket.holders.are_several() || inner.interest.is_one_of_several() {
        return Err(Reason::Shared);
    }
    // BUSY-PAIR: calls that began before count themselves; calls that begin now find it promoted,
    // and wait for the lock.
    if !socket.change_state(State::Offered, State::Promoted) {
        return Err(Reason::ClosedEarly);
    }
    let mut patience = 64;
    while socket.busy.load(Ordering::SeqCst) > 0 && patience > 0 {
        patience -= 1;
        std::thread::yield_now();
    }
    let at = sys::tcp::positions(fd).ok().flatten();
    let written = socket.sent.load(Ordering::Relaxed);
    let consumed = socket.received.load(Ordering::Relaxed);
    let refusal = match at {
        _ if socket.busy.load(Ordering::SeqCst) > 0 => Some(Reason::Busy),
        None => Some(Reason::ClosedEarly),
        Some(at) => ((at.written, at.consumed) != (written, consumed)).then_some(Reason::Bypass),
    };
    if refusal == Some(Reason::Bypass) {
        uring::trusts(false);
    }
    if let Some(why) = refusal {
        socket.set_state(State::Offered);
        return Err(why);
    }
    let no_delay = kernel::option(raw, libc::IPPROTO_TCP, libc::TCP_NODELAY).unwrap_or(1);
    let held = kernel::has_unsent(raw);
    let Ok(mut connection) = Connection::new_armed(own, peer, written, consumed, NO_WAITER) else {
        socket.set_state(State::Offered);
        return Err(Reason::NoMemory);
    };
    // The program may wait for it outside the library, edge-triggered: assumed until a wait is
    // seen.
    let unseen = inner.interest.sets == 0;
    connection.requests_each(unseen);
    let armed = !unseen || !connection.arm(WakeUp::Tcp).unwrap_or(true);
    let reports_unread = kernel::option(raw, libc::IPPROTO_TCP, libc::TCP_INQ) == Some(1);
    socket.reports_unread.store(reports_unread, Ordering::Relaxed);
    stats::in_memory(socket);
    inner.promoted = Some(Box::new(Promoted {
        connection,
        other,
        doorbell,
        has_no_timeout: false,
        timeout_changes: 0,
        stays_nonblocking: false,
        send_limit: socket.send_limit.load(Ordering::Relaxed),
        inherited: false,
        shown_in_kernel: false,
        detached: VecDeque::new(),
        returned: VecDeque::new(),
        waiters: Waiters::default(),
        unseen: Default::default(),
        parent_sleep: None,
        slept_by: 0,
        several_waiters: false,
        watch: if armed { Watch::Armed } else { Watch::Unarmed },
        waiter: NO_WAITER,
        listed_in: 0,
        reported: 0,
        reported_of_kernel: 0,
        shown: 0,
        reported_writable: false,
        quiet: 0,
        empty_polls: 0,
        published: 0,
        kernel_reported: true,
        corked: kernel::option(raw, libc::IPPROTO_TCP, libc::TCP_CORK) == Some(1),
        held,
        demote_once_read: false,
        no_delay,
        kernel_delays: no_delay == 0,
        cookie: kernel::cookie(raw),
        token,
    }));
    let interest = inner.interest;
    drop(inner);
    if interest.set > 0 {
        sets::refresh(interest.set - 1, number, false);
    }
    Ok(())
}
