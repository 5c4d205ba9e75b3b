//! What a call consumes of a promoted connection: bytes of ring and kernel in stream order. Nothing
//! here waits.

use std::ffi::c_int;
use std::ops::ControlFlow::{self, Break, Continue};

use promote::{KernelEnd, Next};
use ring::Front;

use crate::kernel::{self, Found};
use crate::memory::Pieces;
use crate::sockets::Promoted;
use crate::stats::{COUNTERS, count};
use crate::watch::Watch;

/// The result of one call: a count, or an errno.
pub(crate) type Outcome = Result<usize, i32>;

/// More rounds than a peer that follows the protocol can cause.
const ROUNDS: u32 = 64;

/// Consumes what is here; continues if nothing is. `reported_again`: the waiter gets another event
/// for the bytes that are left.
pub(crate) fn consume(
    promoted: &mut Promoted,
    fd: c_int,
    into: Pieces<'_>,
    flags: c_int,
    reported_again: bool,
) -> ControlFlow<Outcome> {
    let peek = flags & libc::MSG_PEEK != 0;
    // Each round passes wake-up bytes or the kernel's end of stream, or ends.
    for _ in 0..ROUNDS {
        match promoted.connection.next(0) {
            Ok(Next::Ring(here)) if peek && here < into.left && promoted.connection.nears_next_run() => {
                return Break(promoted.peek_across(fd, into, flags));
            }
            Ok(Next::Ring(here)) => {
                if here < into.left && promoted.connection.poll().is_err() {
                    // More may have come since the last check: a call returns all that is here.
                    return Break(Err(promoted.corrupt(fd)));
                }
                return Break(promoted.copy(into, flags));
            }
            Ok(Next::End(end)) => {
                return Break(match end {
                    KernelEnd::Finished => Ok(0),
                    KernelEnd::Failed(errno) => Err(errno),
                });
            }
            Ok(Next::Kernel | Next::Nothing) => {}
            Err(_) => return Break(Err(promoted.corrupt(fd))),
        }
        match consume_from_kernel(promoted, fd, into, flags, reported_again) {
            FromKernel::Ends(outcome) => return Break(outcome),
            FromKernel::Nothing => break,
            FromKernel::Again => {}
        }
    }
    Continue(())
}

enum FromKernel {
    Ends(Outcome),
    Nothing,
    /// Wake-up bytes or an end of stream were passed: check again.
    Again,
}

/// Not inlined, so that reading the ring takes less of the caller's stack.
#[inline(never)]
fn consume_from_kernel(
    promoted: &mut Promoted,
    fd: c_int,
    into: Pieces<'_>,
    flags: c_int,
    reported_again: bool,
) -> FromKernel {
    let peek = flags & libc::MSG_PEEK != 0;
    if peek && promoted.connection.nears_next_run() {
        match promoted.peek_across(fd, into, flags) {
            Ok(0) => {}
            outcome => return FromKernel::Ends(outcome),
        }
    }
    if promoted.connection.reads_from_kernel() && !peek && flags & libc::MSG_TRUNC == 0 {
        // The peer's count of its TCP bytes saves a peek. The peer counts late, so that more may be
        // here: the next check reports it, or the program, whose buffer is full, reads again.
        let sure = promoted.connection.surely_data();
        match sure.map(|sure| usize::try_from(sure).unwrap_or(usize::MAX)) {
            Ok(sure) if sure > 0 && (reported_again || sure >= into.left) => {
                let into = into.at_most(sure);
                let consumed = kernel::receive(fd, into, libc::MSG_DONTWAIT);
                match (usize::try_from(consumed), crate::real::errno()) {
                    (Ok(consumed @ 1..), _) => {
                        promoted.consumed_from_kernel(consumed);
                        return FromKernel::Ends(Ok(consumed));
                    }
                    (Err(_), libc::EAGAIN | libc::EINTR) => return FromKernel::Nothing,
                    // End of stream, or an error of the call, which the kernel reports again below.
                    (Ok(0), _) | (Err(_), libc::EFAULT | libc::ENOMEM | libc::ENOBUFS) => {}
                    (Err(_), errno) => {
                        promoted.connection.kernel_ended(KernelEnd::Failed(errno));
                        return FromKernel::Again;
                    }
                }
            }
            Ok(_) => {}
            Err(_) => return FromKernel::Ends(Err(promoted.corrupt(fd))),
        }
    }
    // Wake-up bytes and copies in front of the data may exceed the program's buffer.
    if promoted.connection.reads_data_from_kernel() && flags & libc::MSG_TRUNC == 0 {
        // Copied before its kind is known, and discarded after: saves a call.
        let seen = kernel::receive(fd, into, libc::MSG_PEEK | libc::MSG_DONTWAIT);
        match (seen, crate::real::errno()) {
            (1.., _) => match promoted.seen(fd, into, seen as usize, flags) {
                Break(outcome) => return FromKernel::Ends(outcome),
                Continue(()) => return FromKernel::Again,
            },
            (0, _) => promoted.connection.kernel_ended(KernelEnd::Finished),
            (_, libc::EAGAIN | libc::EINTR) => return FromKernel::Nothing,
            // The call failed, not the connection.
            (_, errno @ (libc::EFAULT | libc::ENOMEM | libc::ENOBUFS)) => {
                return FromKernel::Ends(Err(errno));
            }
            (_, errno) => promoted.connection.kernel_ended(KernelEnd::Failed(errno)),
        }
        return FromKernel::Again;
    }
    match promoted.check_kernel(fd) {
        Found::Nothing => return FromKernel::Nothing,
        Found::End => promoted.connection.kernel_ended(KernelEnd::Finished),
        Found::Failed(errno) => promoted.connection.kernel_ended(KernelEnd::Failed(errno)),
        Found::Bytes(unread) => match promoted.connection.front(unread) {
            Ok(Front::WakeUps(wake_ups)) => drop(promoted.discard_wake_ups_of(fd, wake_ups)),
            Ok(Front::Data(bytes)) => {
                let flags = (flags & !libc::MSG_WAITALL) | libc::MSG_DONTWAIT;
                let count = kernel::receive(fd, into.at_most(bytes as usize), flags);
                if count > 0 && !peek {
                    promoted.consumed_from_kernel(count as usize);
                }
                return FromKernel::Ends(usize::try_from(count).map_err(|_| crate::real::errno()));
            }
            // The ring's bytes come before these, and are here.
            Ok(Front::Later) => {}
            Err(_) => return FromKernel::Ends(Err(promoted.corrupt(fd))),
        },
    }
    FromKernel::Again
}

impl Promoted {
    /// `count` bytes of the kernel were copied to `into`, which is right if they are data, and not
    /// consumed yet.
    pub(crate) fn seen(
        &mut self,
        fd: c_int,
        into: Pieces<'_>,
        count: usize,
        flags: c_int,
    ) -> ControlFlow<Outcome> {
        match self.connection.front(count) {
            Ok(Front::Data(bytes)) => {
                let bytes = count.min(bytes as usize);
                if flags & libc::MSG_PEEK == 0 {
                    let consumed = kernel::discard_seen(fd, into.at_most(bytes));
                    self.consumed_from_kernel(consumed);
                }
                Break(Ok(bytes))
            }
            Ok(Front::WakeUps(wake_ups)) => {
                self.discard_wake_ups_of(fd, wake_ups);
                Continue(())
            }
            Ok(Front::Later) => Continue(()),
            Err(_) => Break(Err(self.corrupt(fd))),
        }
    }

    fn copy(&mut self, into: Pieces<'_>, flags: c_int) -> Outcome {
        let mut consumed = 0;
        // No more than this ring run: a check of the next one would hide that its bytes belong to
        // the same call.
        let filled = match self.connection.next(0) {
            Ok(Next::Ring(here)) => into.at_most(here),
            _ => return Err(libc::ECONNRESET),
        };
        if flags & libc::MSG_TRUNC == 0 && !filled.is_writable() {
            return Err(libc::EFAULT);
        }
        if flags & libc::MSG_PEEK != 0 {
            if flags & libc::MSG_TRUNC != 0 {
                return Ok(filled.left);
            }
            for target in filled.targets() {
                consumed += self.connection.peek_ring(consumed, target).map_err(|_| libc::ECONNRESET)?;
            }
            return Ok(consumed);
        }
        if flags & libc::MSG_TRUNC != 0 {
            consumed = self.connection.skip_ring(filled.left).map_err(|_| libc::ECONNRESET)?;
        } else {
            for target in filled.targets() {
                consumed += self.connection.read_ring(target).map_err(|_| libc::ECONNRESET)?;
            }
        }
        self.quiet = 0;
        count(&COUNTERS.ring_receives, 1);
        count(&COUNTERS.ring_bytes_received, consumed as u64);
        Ok(consumed)
    }

    /// Whether only the ring can have new bytes, apart from an end of stream that the peer did not
    /// announce.
    pub(crate) fn has_only_an_empty_ring(&mut self) -> bool {
        matches!(self.connection.next(0), Ok(Next::Nothing))
            && !self.connection.reads_from_kernel()
            && !self.connection.peer_has_finished()
            && !self.connection.kernel_has_ended()
    }

    /// Whether its set polls it while awake.
    pub(crate) fn is_hot(&self) -> bool {
        self.listed_in != 0 && self.watch == Watch::Hot && !self.connection.has_several_users()
    }

    /// Discards up to `wake_ups` wake-up bytes; returns how many. The next wake-up has to be asked
    /// for.
    pub(crate) fn discard_wake_ups_of(&mut self, fd: c_int, wake_ups: u64) -> usize {
        self.note_use();
        if (self.several_waiters && self.connection.poll().unwrap_or(false)) || self.keeps_wake_ups() {
            // The bytes that they announced were not consumed.
            return 0;
        }
        let (dropped, failed) = kernel::discard(fd, wake_ups as usize);
        self.consumed_from_kernel(dropped);
        if let Some(errno) = failed {
            self.failed(errno);
        }
        self.watch.note_wake_up();
        if self.connection.peer_is_demoted() {
            // The demoted peer asks for the bytes that it did not read.
            let _ = self.resend(fd);
        }
        dropped
    }

    /// Bytes in the kernel; wake-up bytes in front of data are discarded, since copies may leave
    /// the data no room.
    pub(crate) fn check_behind_wake_ups(&mut self, fd: c_int) -> usize {
        let mut here = 0;
        for _ in 0..ROUNDS {
            let Found::Bytes(unread) = self.check_kernel(fd) else { return 0 };
            here = unread;
            match self.connection.front(unread) {
                Ok(Front::WakeUps(wake_ups)) if self.connection.reads_from_kernel() => {
                    if self.discard_wake_ups_of(fd, wake_ups) == 0 {
                        break;
                    }
                }
                _ => break,
            }
        }
        here
    }

    /// Bytes in the kernel that are no wake-up bytes.
    pub(crate) fn data_in_kernel(&mut self, fd: c_int) -> u64 {
        if !self.connection.reads_from_kernel() && !self.connection.kernel_has_bytes() {
            return 0;
        }
        let Found::Bytes(unread) = self.check_kernel(fd) else { return 0 };
        // Protocol violations by the peer are reported by the next read.
        self.connection.here(unread).map_or(0, |here| here.in_kernel)
    }

    /// Whether the kernel, which reports the socket readable, has more than wake-up bytes; these
    /// are discarded.
    pub(crate) fn kernel_has_event(&mut self, fd: c_int) -> bool {
        match self.check_kernel(fd) {
            Found::Nothing => false,
            Found::End | Found::Failed(_) => true,
            Found::Bytes(unread) => match self.connection.front(unread) {
                Ok(Front::WakeUps(wake_ups)) => {
                    self.discard_wake_ups_of(fd, wake_ups);
                    // Data may lie behind them.
                    wake_ups < unread as u64 || self.connection.kernel_has_ended()
                }
                Ok(Front::Data(_) | Front::Later) | Err(_) => true,
            },
        }
    }

    /// Whether one blocking recv(2) can both wait and read, because the ring is not in use.
    pub(crate) fn waits_in_kernel(&self, flags: c_int) -> bool {
        flags & (libc::MSG_DONTWAIT | libc::MSG_TRUNC) == 0 && self.kernel_reports_arrivals()
    }

    /// Whether the last check found neither bytes nor an end of stream.
    pub(crate) fn last_check_found_nothing(&mut self) -> bool {
        matches!(self.connection.next(0), Ok(Next::Kernel | Next::Nothing))
            && matches!(self.connection.surely_data(), Ok(0))
    }

    /// Discards wake-up bytes if the ring is empty: until then they keep the socket readable in the
    /// kernel.
    pub(crate) fn discard_wake_ups(&mut self, fd: c_int) {
        if let (Ok(Next::Nothing), Found::Bytes(unread)) = (self.connection.next(0), self.check_kernel(fd))
            && let Ok(Front::WakeUps(wake_ups)) = self.connection.front(unread)
        {
            self.discard_wake_ups_of(fd, wake_ups);
        }
    }

    /// The peer violated the protocol: the connection is over for both.
    pub(crate) fn corrupt(&mut self, fd: c_int) -> i32 {
        count(&COUNTERS.corrupt, 1);
        // Otherwise the peer might find that it has everything, and take the reset for this
        // process's death.
        self.connection.reads_no_more(true);
        kernel::reset_now(fd);
        self.connection.kernel_ended(KernelEnd::Failed(libc::ECONNRESET));
        libc::ECONNRESET
    }
}
