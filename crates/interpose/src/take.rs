//! What a call takes of a promoted connection: bytes of the ring and of the kernel in their order. Nothing here waits.

use std::ffi::c_int;
use std::ops::ControlFlow::{self, Break, Continue};

use promote::{KernelEnd, Next};
use ring::Front;

use crate::kernel::{self, Found};
use crate::memory::Pieces;
use crate::sockets::Promoted;
use crate::stats::{COUNTERS, count};

/// What one call came to: a count, or an errno.
pub(crate) type Outcome = Result<usize, i32>;

/// More than any end that keeps to the rules makes necessary.
const ROUNDS: u32 = 64;

/// Takes what is here; continues if nothing is. `told_again`: who waits hears of what is left.
pub(crate) fn take(
    promoted: &mut Promoted,
    fd: c_int,
    into: Pieces<'_>,
    flags: c_int,
    told_again: bool,
) -> ControlFlow<Outcome> {
    let peek = flags & libc::MSG_PEEK != 0;
    // Each round passes bells, or an end of the kernel connection, or ends.
    for _ in 0..ROUNDS {
        match promoted.connection.next(0) {
            Ok(Next::Ring(here)) if peek && here < into.left && promoted.connection.nears_next_part() => {
                return Break(promoted.peek_across(fd, into, flags));
            }
            Ok(Next::Ring(here)) => {
                if here < into.left && promoted.connection.look_again().is_err() {
                    // More may have come since the last look: a call takes all that is here.
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
        match take_from_kernel(promoted, fd, into, flags, told_again) {
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
    /// Bells or an end were passed: what is here now?
    Again,
}

/// Apart, so that what the ring has is taken on less of the caller's stack.
#[inline(never)]
fn take_from_kernel(
    promoted: &mut Promoted,
    fd: c_int,
    into: Pieces<'_>,
    flags: c_int,
    told_again: bool,
) -> FromKernel {
    let peek = flags & libc::MSG_PEEK != 0;
    if peek && promoted.connection.nears_next_part() {
        match promoted.peek_across(fd, into, flags) {
            Ok(0) => {}
            outcome => return FromKernel::Ends(outcome),
        }
    }
    if promoted.connection.reads_from_kernel() && !peek && flags & libc::MSG_TRUNC == 0 {
        // What the other end has counted need not be looked at before. It counts late, so that more may be
        // here: then the next look tells, or the program, whose buffer is full.
        let sure = promoted.connection.surely_data();
        match sure.map(|sure| usize::try_from(sure).unwrap_or(usize::MAX)) {
            Ok(sure) if sure > 0 && (told_again || sure >= into.left) => {
                let into = into.at_most(sure);
                let taken = kernel::receive(fd, into, libc::MSG_DONTWAIT);
                match (usize::try_from(taken), crate::real::errno()) {
                    (Ok(taken @ 1..), _) => {
                        promoted.took_from_kernel(taken);
                        return FromKernel::Ends(Ok(taken));
                    }
                    (Err(_), libc::EAGAIN | libc::EINTR) => return FromKernel::Nothing,
                    // The end, or what the call lacks, which the kernel says again.
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
    // Doorbells and copies before the data may be more than there is room for.
    if promoted.connection.reads_data_from_kernel() && flags & libc::MSG_TRUNC == 0 {
        // Copied before it is known what it is, and taken after: a call less.
        let seen = kernel::receive(fd, into, libc::MSG_PEEK | libc::MSG_DONTWAIT);
        match (seen, crate::real::errno()) {
            (1.., _) => match promoted.seen(fd, into, seen as usize, flags) {
                Break(outcome) => return FromKernel::Ends(outcome),
                Continue(()) => return FromKernel::Again,
            },
            (0, _) => promoted.connection.kernel_ended(KernelEnd::Finished),
            (_, libc::EAGAIN | libc::EINTR) => return FromKernel::Nothing,
            // It is the call that failed, not the connection.
            (_, errno @ (libc::EFAULT | libc::ENOMEM | libc::ENOBUFS)) => {
                return FromKernel::Ends(Err(errno));
            }
            (_, errno) => promoted.connection.kernel_ended(KernelEnd::Failed(errno)),
        }
        return FromKernel::Again;
    }
    match promoted.look(fd) {
        Found::Nothing => return FromKernel::Nothing,
        Found::End => promoted.connection.kernel_ended(KernelEnd::Finished),
        Found::Failed(errno) => promoted.connection.kernel_ended(KernelEnd::Failed(errno)),
        Found::Bytes(unread) => match promoted.connection.front(unread) {
            Ok(Front::Bells(bells)) => drop(promoted.drop_bells_of(fd, bells)),
            Ok(Front::Data(bytes)) => {
                let flags = (flags & !libc::MSG_WAITALL) | libc::MSG_DONTWAIT;
                let count = kernel::receive(fd, into.at_most(bytes as usize), flags);
                if count > 0 && !peek {
                    promoted.took_from_kernel(count as usize);
                }
                return FromKernel::Ends(usize::try_from(count).map_err(|_| crate::real::errno()));
            }
            // The ring's bytes come before these, and are there.
            Ok(Front::Later) => {}
            Err(_) => return FromKernel::Ends(Err(promoted.corrupt(fd))),
        },
    }
    FromKernel::Again
}

impl Promoted {
    /// So many bytes of the kernel were copied to where they go, if they are data, and not taken.
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
                    let taken = kernel::discard_seen(fd, into.at_most(bytes));
                    self.took_from_kernel(taken);
                }
                Break(Ok(bytes))
            }
            Ok(Front::Bells(bells)) => {
                self.drop_bells_of(fd, bells);
                Continue(())
            }
            Ok(Front::Later) => Continue(()),
            Err(_) => Break(Err(self.corrupt(fd))),
        }
    }

    fn copy(&mut self, into: Pieces<'_>, flags: c_int) -> Outcome {
        let mut taken = 0;
        // No more than this part: a look at the next one would hide that its bytes belong to the same call.
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
                taken += self.connection.peek_ring(taken, target).map_err(|_| libc::ECONNRESET)?;
            }
            return Ok(taken);
        }
        if flags & libc::MSG_TRUNC != 0 {
            taken = self.connection.skip_ring(filled.left).map_err(|_| libc::ECONNRESET)?;
        } else {
            for target in filled.targets() {
                taken += self.connection.read_ring(target).map_err(|_| libc::ECONNRESET)?;
            }
        }
        self.quiet = 0;
        count(&COUNTERS.ring_receives, 1);
        count(&COUNTERS.ring_bytes_received, taken as u64);
        Ok(taken)
    }

    /// Whether nothing can be here but what comes by the ring, and an end that the other end did not tell of.
    pub(crate) fn has_only_an_empty_ring(&mut self) -> bool {
        matches!(self.connection.next(0), Ok(Next::Nothing))
            && !self.connection.reads_from_kernel()
            && !self.connection.peer_has_finished()
            && !self.connection.kernel_has_ended()
    }

    /// Whether its set looks at it by itself while it is awake.
    pub(crate) fn is_hot(&self) -> bool {
        // One that was disarmed since something came is nobody's.
        self.listed_in != 0 && self.hot && !self.armed && !self.connection.has_several_users()
    }

    /// Takes so many bells out of the kernel; returns how many there were. Whoever waits for
    /// more has to ask for the next.
    pub(crate) fn drop_bells_of(&mut self, fd: c_int, bells: u64) -> usize {
        self.is_used();
        if (self.contended && self.connection.look_again().unwrap_or(false)) || self.owes_bells() {
            // What they announced was not consumed.
            return 0;
        }
        let (dropped, failed) = kernel::discard(fd, bells as usize);
        self.took_from_kernel(dropped);
        if let Some(errno) = failed {
            self.failed(errno);
        }
        self.stale = true;
        if self.connection.peer_left() {
            // It asks for what it did not take.
            let _ = self.send_again(fd);
        }
        dropped
    }

    /// Bytes in the kernel; bells before data are taken out, since copies may leave it no room.
    pub(crate) fn look_behind_bells(&mut self, fd: c_int) -> usize {
        let mut here = 0;
        for _ in 0..ROUNDS {
            let Found::Bytes(unread) = self.look(fd) else { return 0 };
            here = unread;
            match self.connection.front(unread) {
                Ok(Front::Bells(bells)) if self.connection.reads_from_kernel() => {
                    if self.drop_bells_of(fd, bells) == 0 {
                        break;
                    }
                }
                _ => break,
            }
        }
        here
    }

    /// Bytes in the kernel that are no bells.
    pub(crate) fn data_in_kernel(&mut self, fd: c_int) -> u64 {
        if !self.connection.reads_from_kernel() && !self.connection.kernel_has_bytes() {
            return 0;
        }
        let Found::Bytes(unread) = self.look(fd) else { return 0 };
        // Of nonsense that the other end wrote, whoever reads is told.
        self.connection.here(unread).map_or(0, |here| here.in_kernel)
    }

    /// Whether the kernel, which calls the socket readable, holds more than bells; these are
    /// taken out.
    pub(crate) fn kernel_has_news(&mut self, fd: c_int) -> bool {
        match self.look(fd) {
            Found::Nothing => false,
            Found::End | Found::Failed(_) => true,
            Found::Bytes(unread) => match self.connection.front(unread) {
                Ok(Front::Bells(bells)) => {
                    self.drop_bells_of(fd, bells);
                    // Data may lie behind them.
                    bells < unread as u64 || self.connection.kernel_has_ended()
                }
                Ok(Front::Data(_) | Front::Later) | Err(_) => true,
            },
        }
    }

    /// The ring is not in use: a call of the kernel that may wait also looks.
    pub(crate) fn waits_in_kernel(&self, flags: c_int) -> bool {
        flags & (libc::MSG_DONTWAIT | libc::MSG_TRUNC) == 0 && self.will_hear()
    }

    /// Neither bytes nor an end are known of, as of the last look.
    pub(crate) fn knows_nothing(&mut self) -> bool {
        matches!(self.connection.next(0), Ok(Next::Kernel | Next::Nothing))
            && matches!(self.connection.surely_data(), Ok(0))
    }

    /// Takes bells out of the kernel, if the ring is empty: while it is not, they keep the
    /// socket readable for whoever asks the kernel.
    pub(crate) fn drop_bells(&mut self, fd: c_int) {
        if let (Ok(Next::Nothing), Found::Bytes(unread)) = (self.connection.next(0), self.look(fd))
            && let Ok(Front::Bells(bells)) = self.connection.front(unread)
        {
            self.drop_bells_of(fd, bells);
        }
    }

    /// The other end broke the rules: the connection is over for both.
    pub(crate) fn corrupt(&mut self, fd: c_int) -> i32 {
        count(&COUNTERS.corrupt, 1);
        // Else the other end might find that it has everything, and take the reset for this end's death.
        self.connection.reads_no_more(true);
        kernel::reset_now(fd);
        self.connection.kernel_ended(KernelEnd::Failed(libc::ECONNRESET));
        libc::ECONNRESET
    }
}
