//! Receiving on a promoted connection: bytes of the ring and of the kernel in their order,
//! and the waits of a blocking call.

use std::ffi::c_int;
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use promote::{KernelEnd, Next, Reason};
use ring::Front;
use ring::WakeUp;

use crate::call_limit::CallLimit;
use crate::clock::{self, Instant};
use crate::kernel::{self, Found};
use crate::leaving;
use crate::memory::{Pieces, piece};
use crate::peek;
use crate::promoter;
use crate::sets::{self, EDGE};
use crate::signals;
use crate::sockets::{Busy, Guard, Interest, Promoted, Socket};
use crate::spin::{Sleep, Wait};
use crate::stats::{COUNTERS, count};
use crate::waiters;

/// What one call came to: a count, or an errno.
pub(crate) type Outcome = Result<usize, i32>;

/// Receives on a socket that was promoted. `None`: it is not, after all, and only `taken` bytes were: fewer than what
/// the call waits for.
pub(crate) fn receive(
    socket: &'static Socket,
    fd: c_int,
    into: Pieces<'_>,
    flags: c_int,
    taken: &mut usize,
) -> Option<Outcome> {
    let waits = flags & (libc::MSG_PEEK | libc::MSG_DONTWAIT) == 0;
    // Bytes before which a call that waits does not return.
    let wanted = if waits && flags & libc::MSG_WAITALL != 0 { into.left } else { 1 };
    if peek::waits_for_all(socket, flags) {
        return peek::all(socket, fd, into, flags);
    }
    let mut kept = None;
    let mut limit = CallLimit::of(libc::SO_RCVTIMEO);
    loop {
        // What is here in the other lane belongs to the same read; nobody waits for it.
        let more = if *taken >= wanted { libc::MSG_DONTWAIT } else { 0 };
        let rest = into.after(*taken);
        match receive_some(socket, &mut kept, &mut limit, fd, rest, flags | more, *taken > 0) {
            Some(Ok((count, seam))) => {
                *taken += count;
                // The kernel has more for pieces that its call did not name; a peek would see the same bytes again.
                let is_whole = flags & libc::MSG_PEEK != 0 || count < rest.in_one_call();
                let ends = *taken >= wanted && !seam && is_whole;
                if count == 0 || *taken >= into.left || ends {
                    return Some(Ok(*taken));
                }
            }
            // What was taken is told first, as Linux does; the error is there the next time,
            // or was an interruption.
            Some(Err(_)) if *taken > 0 => return Some(Ok(*taken)),
            Some(Err(errno)) => return Some(Err(errno)),
            None => return (*taken >= wanted).then_some(Ok(*taken)),
        }
    }
}

/// Receives into no room at all: waits as for a byte, and leaves it there. However a wait of it ends, the kernel
/// returns 0.
#[cold]
pub(crate) fn receive_nothing(socket: &'static Socket, fd: c_int, flags: c_int) -> Option<Outcome> {
    let mut byte = 0;
    let room = piece(&raw mut byte, 1);
    let flags = flags & !(libc::MSG_WAITALL | libc::MSG_TRUNC) | libc::MSG_PEEK;
    match receive(socket, fd, Pieces::one(&room), flags, &mut 0)? {
        Err(libc::EINTR | libc::EAGAIN) if socket.blocks(flags) => Some(Ok(0)),
        outcome => Some(outcome.map(|_| 0)),
    }
}

/// One lane's bytes; and whether bytes of the other may lie behind them. `told`: bytes were
/// taken before, which are told before any error.
pub(crate) fn receive_some(
    socket: &'static Socket,
    kept: &mut Option<Busy<'static>>,
    limit: &mut CallLimit,
    fd: c_int,
    into: Pieces<'_>,
    flags: c_int,
    told: bool,
) -> Option<Result<(usize, bool), i32>> {
    let mut wait: Option<Wait> = None;
    let mut slept: Option<(Sleep, bool, Option<u32>)> = None;
    let mut handled = signals::handled();
    let dissolved_before = socket.dissolved.load(Relaxed);
    let mut asked = false;
    let mut overdue = Duration::ZERO;
    let mut flags_asked = false;
    let blocks = socket.blocks(flags);
    let mut looks_first = blocks && flags & (libc::MSG_PEEK | libc::MSG_TRUNC) == 0;
    loop {
        let mut inner = socket.lock();
        let Interest { set, events, sets, .. } = inner.interest;
        let Some(promoted) = inner.promoted.as_deref_mut() else {
            // connect(2) has ended the connection under a call that waits (`sk_disconnects` of Linux).
            let dissolved = slept.is_some() && socket.dissolved.load(Relaxed) != dissolved_before;
            return dissolved.then_some(Err(libc::EPIPE));
        };
        promoted.is_used();
        if let Some((slept, rung, had_no_limit)) = slept.take() {
            slept.end(promoted.connection.peer_woke_at());
            promoted.is_awake(rung);
            promoted.waits_for_ever |=
                had_no_limit == Some(promoted.limits_set) && !promoted.connection.is_shared();
        }
        let looks = std::mem::take(&mut looks_first);
        if looks && sets == 0 && promoted.shown <= promoted.connection.taken() {
            // Nobody has told the program that something is here: this is how it waits.
            promoted.is_read_by_waiting();
        }
        if looks && promoted.has_only_an_empty_ring() {
            // What comes next comes by the ring, most likely: the kernel is asked when that was awaited in vain.
            promoted.is_awaited_here();
            kept.get_or_insert_with(|| socket.keep());
            let wait = wait.get_or_insert_with(|| Wait::new(None));
            if wait.spins() {
                promoted.heat_alone();
                drop(inner);
                spin(socket, wait, handled);
                continue;
            }
        }
        // A set that is not known may be edge-triggered.
        let told_again = if set == 0 { promoted.waiters.are_seen() } else { events & EDGE == 0 };
        // What waits in the kernel alone is met by the one call that waits for it, or by the sleep beside the doorbell.
        let sleeps = || blocks && !asked && wait.as_ref().is_some_and(|wait| !wait.spins());
        let hears = if promoted.waits_in_kernel(flags) {
            !asked && promoted.knows_nothing()
        } else {
            sets == 0
                && sleeps()
                && promoted.doorbell_to_sleep_by().is_some()
                && promoted.has_only_an_empty_ring()
        };
        if !hears && let Break(outcome) = take(promoted, fd, into, flags, told_again) {
            if outcome.is_err() && !told {
                promoted.connection.take_error();
            }
            if let Some(wait) = &mut wait {
                wait.found();
            }
            return Some(finish(socket, inner, fd, flags, outcome));
        }
        // This thread comes back to the record.
        kept.get_or_insert_with(|| socket.keep());
        // Another process that has the socket may have cleared O_NONBLOCK.
        let is_told = flags & libc::MSG_DONTWAIT != 0
            || (!blocks && !promoted.waits_in_kernel(flags) && kernel::is_nonblocking(fd));
        if is_told {
            match promoted.rest(sets > 0) {
                Ok(true) => continue,
                Ok(false) => return Some(Err(libc::EAGAIN)),
                Err(errno) => return Some(Err(errno)),
            }
        }
        if promoted.waits_in_kernel(flags) {
            asked = true;
            let at = promoted.connection.read_of_kernel();
            promoted.is_slept_on();
            drop(inner);
            let waited = limit.next_wait(fd).and_then(|until| match until {
                None => Ok(0),
                Some(_) => kernel::wait_for(fd, libc::POLLIN, until).map(|()| libc::MSG_DONTWAIT),
            });
            let count = match waited {
                Ok(now) => kernel::receive(fd, into, (flags & !libc::MSG_WAITALL) | libc::MSG_PEEK | now),
                Err(errno) => return Some(Err(failed(socket, errno, told))),
            };
            if count < 0 {
                match crate::real::errno() {
                    // Another thread took it.
                    libc::EAGAIN if waited == Ok(libc::MSG_DONTWAIT) => continue,
                    errno => return Some(Err(failed(socket, errno, told))),
                }
            }
            let mut inner = socket.lock();
            let promoted = inner.promoted.as_deref_mut()?;
            promoted.is_used();
            if count > 0
                && promoted.connection.read_of_kernel() == at
                && let Break(outcome) = promoted.seen(fd, into, count as usize, flags)
            {
                return Some(finish(socket, inner, fd, flags, outcome));
            }
            continue;
        }
        // A blocking call: looks for a while, then sleeps as the kernel's own call does.
        promoted.is_awaited_here();
        let until = match limit.next_wait(fd) {
            Ok(until) => until,
            Err(errno) => return Some(Err(errno)),
        };
        let wait = wait.get_or_insert_with(|| Wait::new(None));
        if blocks && wait.spins() && signals::handled() == handled {
            promoted.heat_alone();
            drop(inner);
            if spin(socket, wait, handled) || wait.spins() {
                continue;
            }
            inner = socket.lock();
        }
        wait.stop();
        let promoted = inner.promoted.as_deref_mut()?;
        promoted.is_used();
        // Where a set has it, too, the wake-up is the set's.
        let doorbell = if sets == 0 && blocks { promoted.doorbell_to_sleep_by() } else { None };
        let by = doorbell.map_or(WakeUp::Tcp, |_| WakeUp::Doorbell);
        match promoted.arm_by(by) {
            Ok(true) => continue,
            Ok(false) => promoted.is_slept_on(),
            Err(errno) => return Some(Err(errno)),
        }
        let mut unseen = promoted.unseen_for();
        if unseen.take_if(|soon| *soon <= overdue || doorbell.is_none()).is_some() {
            promoted.ring_unseen(fd);
        }
        let owes = promoted.owes_bells();
        let (waits_for_ever, limits_set) = (promoted.waits_for_ever, promoted.limits_set);
        drop(inner);
        if owes {
            // They wake this thread, too.
            std::thread::sleep(PAUSE);
        }
        promoter::answers();
        if signals::end_a_wait(handled, || kernel::limit(fd, libc::SO_RCVTIMEO).is_none()) {
            return Some(Err(failed(socket, libc::EINTR, told)));
        }
        handled = signals::handled();
        if doorbell.is_some() && became_nonblocking(socket, fd, &mut flags_asked) {
            return Some(Err(failed(socket, libc::EAGAIN, told)));
        }
        let begun = Sleep::begin();
        let mut had_no_limit = None;
        let waited = match (doorbell, until) {
            (Some(doorbell), _) => {
                let limit = if waits_for_ever { None } else { limit.until(fd) };
                had_no_limit = limit.is_none().then_some(limits_set);
                let waited = sleep_beside(fd, doorbell, limit, unseen);
                overdue = unseen.filter(|_| waited == Err(libc::EAGAIN)).unwrap_or(overdue);
                asked = waited.is_ok_and(|woken| woken.by_kernel);
                waited.map(|woken| woken.by_doorbell)
            }
            (None, None) => kernel::wait(fd, flags).map(|()| false),
            (None, Some(_)) => kernel::wait_for(fd, libc::POLLIN, until).map(|()| false),
        };
        slept = Some((begun, waited == Ok(true), had_no_limit));
        if doorbell.is_some()
            && (waited == Err(libc::EINTR) || (waited == Err(libc::EAGAIN) && unseen.is_some()))
        {
            // The next round asks whether the call ends by that: unlike recv(2) a poll(2) does by each handler.
            continue;
        }
        if let Err(errno) = waited {
            if errno == libc::EAGAIN && blocks && kernel::is_nonblocking(fd) {
                // O_NONBLOCK was set where nobody saw it.
                waiters::nonblocking(socket, true);
            }
            return Some(Err(failed(socket, errno, told)));
        }
    }
}

/// Whether O_NONBLOCK was set where nobody saw it, which poll(2) does not tell: asked once a call.
fn became_nonblocking(socket: &Socket, fd: c_int, asked: &mut bool) -> bool {
    let became = !std::mem::replace(asked, true) && kernel::is_nonblocking(fd);
    if became {
        waiters::nonblocking(socket, true);
    }
    became
}

/// Sleeps until the limit; `most`: for so long at most.
fn sleep_beside(
    fd: c_int,
    doorbell: c_int,
    limit: Option<Instant>,
    most: Option<Duration>,
) -> Result<kernel::Woken, i32> {
    let soon = most.map(|most| clock::now() + most);
    kernel::wait_beside(fd, doorbell, [limit, soon].into_iter().flatten().min())
}

/// The kernel, which tells an error of the connection once, failed a wait. A call that tells what it took before
/// leaves the error to the next.
fn failed(socket: &Socket, errno: i32, told: bool) -> i32 {
    if let Some(promoted) = socket.lock().promoted.as_deref_mut() {
        promoted.is_awake(false);
        if told && !matches!(errno, libc::EAGAIN | libc::EINTR | libc::EFAULT) {
            promoted.failed(errno);
        }
    }
    errno
}

/// A call has come to this.
fn finish(
    socket: &'static Socket,
    mut inner: Guard<'_>,
    fd: c_int,
    flags: c_int,
    outcome: Outcome,
) -> Result<(usize, bool), i32> {
    let in_a_set = inner.interest.sets > 0;
    let Some(promoted) = inner.promoted.as_deref_mut() else { return outcome.map(|count| (count, false)) };
    let taken = promoted.connection.taken();
    if flags & libc::MSG_PEEK != 0 {
        promoted.shown = promoted.shown.max(taken + outcome.map_or(0, |count| count as u64));
    }
    let behind = promoted.connection.nears_next_part() || promoted.shown > taken;
    let seam = flags & libc::MSG_PEEK == 0 && behind;
    if promoted.connection.nears_next_part()
        && promoted.connection.look_again() == Ok(false)
        && promoted.connection.reads_from_kernel()
        && !promoted.connection.reads_data_from_kernel()
    {
        // The ring's bytes are taken: copies of them leave the kernel no room for what comes next, which is an edge.
        promoted.look_behind_bells(fd);
    }
    if flags & libc::MSG_PEEK == 0 && outcome.is_ok_and(|count| count > 0) {
        promoted.was_read();
    }
    let list = promoted.wants_list(fd, in_a_set);
    if list && !in_a_set && !promoted.waiters.are_seen() && outcome.is_ok() {
        promoted.tells_unseen_sets(fd);
    }
    let leaves = promoted.leaves_once_read && !promoted.connection.has_unread();
    drop(inner);
    if list {
        settle(socket);
    }
    if leaves {
        leaving::leave_for(fd, Reason::Option);
    }
    outcome.map(|count| (count, seam))
}

/// Looks until something is there (true), or the kernel is to be asked, or looking no longer pays, or a handler ran.
fn spin(socket: &Socket, wait: &mut Wait, handled: u32) -> bool {
    loop {
        if let Some(mut inner) = socket.try_lock() {
            match inner.promoted.as_deref_mut().map(|promoted| promoted.connection.look_again()) {
                Some(Ok(false)) => {}
                _ => return true,
            }
        }
        if !wait.again() || signals::handled() != handled {
            return false;
        }
    }
}

/// An end that nobody looks at by itself has to be looked at, since its ring still holds bytes for which no
/// bell lies in the kernel.
pub(crate) fn settle(socket: &'static Socket) {
    let set = socket.lock_alone().interest.set;
    if set > 0 {
        sets::list(set - 1, socket);
    }
}

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
        if peek && promoted.connection.nears_next_part() {
            match promoted.peek_across(fd, into, flags) {
                Ok(0) => {}
                outcome => return Break(outcome),
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
                            return Break(Ok(taken));
                        }
                        (Err(_), libc::EAGAIN | libc::EINTR) => return Continue(()),
                        // The end, or what the call lacks, which the kernel says again.
                        (Ok(0), _) | (Err(_), libc::EFAULT | libc::ENOMEM | libc::ENOBUFS) => {}
                        (Err(_), errno) => {
                            promoted.connection.kernel_ended(KernelEnd::Failed(errno));
                            continue;
                        }
                    }
                }
                Ok(_) => {}
                Err(_) => return Break(Err(promoted.corrupt(fd))),
            }
        }
        // Doorbells and copies before the data may be more than there is room for.
        if promoted.connection.reads_data_from_kernel() && flags & libc::MSG_TRUNC == 0 {
            // Copied before it is known what it is, and taken after: a call less.
            let seen = kernel::receive(fd, into, libc::MSG_PEEK | libc::MSG_DONTWAIT);
            match (seen, crate::real::errno()) {
                (1.., _) => match promoted.seen(fd, into, seen as usize, flags) {
                    Break(outcome) => return Break(outcome),
                    Continue(()) => continue,
                },
                (0, _) => promoted.connection.kernel_ended(KernelEnd::Finished),
                (_, libc::EAGAIN | libc::EINTR) => return Continue(()),
                // It is the call that failed, not the connection.
                (_, errno @ (libc::EFAULT | libc::ENOMEM | libc::ENOBUFS)) => return Break(Err(errno)),
                (_, errno) => promoted.connection.kernel_ended(KernelEnd::Failed(errno)),
            }
            continue;
        }
        match promoted.look(fd) {
            Found::Nothing => return Continue(()),
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
                    return Break(usize::try_from(count).map_err(|_| crate::real::errno()));
                }
                // The ring's bytes come before these, and are there.
                Ok(Front::Later) => {}
                Err(_) => return Break(Err(promoted.corrupt(fd))),
            },
        }
    }
    Continue(())
}

/// Between two looks for bells that another process is about to find.
const PAUSE: Duration = Duration::from_micros(20);
/// More than any end that keeps to the rules makes necessary.
const ROUNDS: u32 = 64;

impl Promoted {
    /// So many bytes of the kernel were copied to where they go, if they are data, and not taken.
    fn seen(&mut self, fd: c_int, into: Pieces<'_>, count: usize, flags: c_int) -> ControlFlow<Outcome> {
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
    fn has_only_an_empty_ring(&mut self) -> bool {
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
    fn waits_in_kernel(&self, flags: c_int) -> bool {
        flags & (libc::MSG_DONTWAIT | libc::MSG_TRUNC) == 0 && self.will_hear()
    }

    /// Neither bytes nor an end are known of, as of the last look.
    fn knows_nothing(&mut self) -> bool {
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
