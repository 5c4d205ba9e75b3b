//! Connections whose rings do not pay, as where each message wakes a process that sleeps on the same core. A ring that
//! rests costs a little more than TCP alone; so once both directions have rested again and again, both ends go
//! back to TCP, and are offered anew after more messages.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use promote::TcpPositions;
use ring::Corrupt;

use crate::family;
use crate::leaving;
use crate::mode;
use crate::promoter;
use crate::sockets::{Guard, Promoted, Socket, State};
use crate::spin;
use crate::stats::{COUNTERS, count};
use crate::worth::Verdict;

impl Promoted {
    /// A message went into the ring: whether the next ones should is decided.
    #[inline]
    pub(crate) fn judge(&mut self, rung: bool) -> Result<(), Corrupt> {
        match self.worth.sent(rung) {
            Verdict::None => Ok(()),
            verdict => self.follow(verdict),
        }
    }

    #[cold]
    fn follow(&mut self, verdict: Verdict) -> Result<(), Corrupt> {
        if mode::is_eager() {
            // Tests want rings, whatever they cost.
            return Ok(());
        }
        if self.connection.peer_retires() {
            self.worth.give_up();
        } else if verdict != Verdict::Rests {
            family::pays();
            return Ok(());
        }
        self.connection.rest()?;
        self.worth.rests_from(spin::met());
        family::does_not_pay(self.worth.rest);
        if self.worth.is_hopeless() && !self.connection.is_shared() {
            self.connection.wish_to_retire(true);
        }
        Ok(())
    }

    /// A message went through the kernel while the ring rests. If the connection has gone back to TCP, where it is
    /// there.
    pub(crate) fn rests(&mut self) -> Option<TcpPositions> {
        if self.worth.is_hopeless() && self.can_retire() {
            if self.connection.peer_wishes_to_retire() {
                self.connection.retire();
            }
            // Of nonsense that the other end wrote, whoever reads is told.
            if let Ok(Some(positions)) = self.connection.retired() {
                return Some(positions);
            }
        }
        if self.worth.rested(spin::met()) && !self.connection.stays_with_kernel() {
            self.connection.wish_to_retire(false);
            self.connection.end_rest();
        }
        None
    }

    /// Other processes may be in the middle of a call, and what was promised to sets and poll(2) is not undone.
    fn can_retire(&self) -> bool {
        !self.connection.is_shared() && !self.shown_in_kernel
    }
}

/// Goes back to TCP, where the connection is at these positions. Whoever is in a call on it comes back to find that.
#[cold]
pub(crate) fn retire(socket: &'static Socket, inner: Guard<'_>, fd: c_int, at: TcpPositions) {
    let Some(promoted) = inner.promoted.as_deref() else { return };
    let retreats = if promoted.worth.has_paid { 1 } else { socket.retreats.load(Ordering::Relaxed) + 1 };
    count(&COUNTERS.retired, 1);
    socket.retreats.store(retreats, Ordering::Relaxed);
    socket.sent.store(at.written, Ordering::Relaxed);
    socket.received.store(at.consumed, Ordering::Relaxed);
    promoter::look_much_later(socket, retreats);
    leaving::back_to_tcp(socket, inner, fd, State::Plain);
}
