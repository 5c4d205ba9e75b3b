//! Receiving on a promoted connection: bytes of the ring and of the kernel in their order,
//! and the waits of a blocking call.

use std::ffi::c_int;
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use promote::Reason;
use ring::WakeUp;

use crate::call_limit::CallLimit;
use crate::clock::{self, Instant};
use crate::kernel;
use crate::leaving;
use crate::memory::{Pieces, piece};
use crate::peek;
use crate::promoter;
use crate::sets::{self, EDGE};
use crate::sockets::{Busy, Guard, Interest, Promoted, Socket};
use crate::take::{Outcome, take};
use crate::waiter::{Armed, Phase, Slept, Waiter, Waiting, soonest};
use crate::waiters;

/// Bytes of one lane.
pub(crate) struct Part {
    pub(crate) count: usize,
    /// Bytes of the other lane may lie behind them.
    pub(crate) is_at_seam: bool,
}

/// Or an errno. `None`: the socket is not promoted, after all.
pub(crate) type Received = Option<Result<Part, i32>>;

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
        match receive_some(socket, &mut kept, &mut limit, fd, &rest, flags | more, *taken > 0) {
            Some(Ok(Part { count, is_at_seam })) => {
                *taken += count;
                // The kernel has more for pieces that its call did not name; a peek would see the same bytes again.
                let is_whole = flags & libc::MSG_PEEK != 0 || count < rest.in_one_call();
                let ends = *taken >= wanted && !is_at_seam && is_whole;
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

/// Receives of one lane. `told`: bytes were taken before, which are told before any error.
pub(crate) fn receive_some(
    socket: &'static Socket,
    kept: &mut Option<Busy<'static>>,
    limit: &mut CallLimit,
    fd: c_int,
    into: &Pieces<'_>,
    flags: c_int,
    told: bool,
) -> Received {
    let blocks = socket.blocks(flags);
    let mut read = Read {
        socket,
        kept,
        limit,
        fd,
        into,
        flags,
        told,
        blocks,
        looks_first: blocks && flags & (libc::MSG_PEEK | libc::MSG_TRUNC) == 0,
        dissolved_before: socket.dissolved.load(Relaxed),
        slept: false,
        asked: false,
        flags_asked: false,
        until: None,
        doorbell: None,
        waits_for_ever: false,
        limits_set: 0,
    };
    Waiter::new(None).wait(&mut read)
}

/// One such call.
struct Read<'a> {
    socket: &'static Socket,
    kept: &'a mut Option<Busy<'static>>,
    limit: &'a mut CallLimit,
    fd: c_int,
    into: &'a Pieces<'a>,
    flags: c_int,
    told: bool,
    blocks: bool,
    /// It has not looked yet, and would wait.
    looks_first: bool,
    dissolved_before: u32,
    /// Since the last look.
    slept: bool,
    /// The kernel has said that there is something.
    asked: bool,
    /// See [`Self::became_nonblocking`].
    flags_asked: bool,
    /// When the time is up, if a call of the kernel is to keep to it.
    until: Option<Instant>,
    /// What it sleeps beside.
    doorbell: Option<c_int>,
    /// It has no SO_RCVTIMEO, as that was set last so many times ago.
    waits_for_ever: bool,
    limits_set: u32,
}

impl Waiting for Read<'_> {
    type Outcome = Received;

    // In the frame of its only caller: the stack of a handler may be short.
    #[inline(always)]
    fn collect(&mut self, waiter: &mut Waiter) -> ControlFlow<Received, Phase> {
        let (socket, fd, flags) = (self.socket, self.fd, self.flags);
        let mut inner = socket.lock();
        let Interest { set, events, sets, .. } = inner.interest;
        let slept = std::mem::take(&mut self.slept);
        let Some(promoted) = inner.promoted.as_deref_mut() else {
            // connect(2) has ended the connection under a call that waits (`sk_disconnects` of Linux).
            let dissolved = slept && socket.dissolved.load(Relaxed) != self.dissolved_before;
            return Break(dissolved.then_some(Err(libc::EPIPE)));
        };
        promoted.is_used();
        let looks = std::mem::take(&mut self.looks_first);
        if looks && sets == 0 && promoted.shown <= promoted.connection.taken() {
            // Nobody has told the program that something is here: this is how it waits.
            promoted.is_read_by_waiting();
        }
        if looks && promoted.has_only_an_empty_ring() {
            // What comes next comes by the ring, most likely: the kernel is asked when that was awaited in vain.
            promoted.is_awaited_here();
            self.kept.get_or_insert_with(|| socket.keep());
            if waiter.may_look() {
                return Continue(Phase::Look);
            }
        }
        // A set that is not known may be edge-triggered.
        let told_again = if set == 0 { promoted.waiters.are_seen() } else { events & EDGE == 0 };
        // What waits in the kernel alone is met by the one call that waits for it, or by the sleep beside the doorbell.
        let hears = if promoted.waits_in_kernel(flags) {
            !self.asked && promoted.knows_nothing()
        } else {
            sets == 0
                && self.blocks
                && !self.asked
                && waiter.has_looked()
                && promoted.doorbell_to_sleep_by().is_some()
                && promoted.has_only_an_empty_ring()
        };
        if !hears && let Break(outcome) = take(promoted, fd, *self.into, flags, told_again) {
            if outcome.is_err() && !self.told {
                promoted.connection.take_error();
            }
            return Break(Some(finish(socket, inner, fd, flags, outcome)));
        }
        // This thread comes back to the record.
        self.kept.get_or_insert_with(|| socket.keep());
        // Another process that has the socket may have cleared O_NONBLOCK.
        let is_told = flags & libc::MSG_DONTWAIT != 0
            || (!self.blocks && !promoted.waits_in_kernel(flags) && promoted.is_nonblocking(fd));
        if is_told {
            return match promoted.rest(sets > 0) {
                Ok(true) => Continue(Phase::Collect),
                Ok(false) => Break(Some(Err(libc::EAGAIN))),
                Err(errno) => Break(Some(Err(errno))),
            };
        }
        if promoted.waits_in_kernel(flags) {
            waiter.stop();
            return self.asks_kernel(inner);
        }
        promoted.is_awaited_here();
        match self.limit.next_wait(fd) {
            Ok(until) => self.until = until,
            Err(errno) => return Break(Some(Err(errno))),
        }
        Continue(if self.blocks && waiter.may_look() { Phase::Look } else { Phase::Sleep })
    }

    fn begins_to_look(&mut self) {
        if let Some(promoted) = self.socket.lock().promoted.as_deref_mut() {
            promoted.heat_alone();
        }
    }

    fn looks(&mut self) -> bool {
        let Some(mut inner) = self.socket.try_lock() else { return false };
        let look = inner.promoted.as_deref_mut().map(|promoted| promoted.connection.look_again());
        look != Some(Ok(false))
    }

    #[inline(never)]
    fn arms(&mut self) -> ControlFlow<Received, Armed> {
        let mut inner = self.socket.lock();
        let sets = inner.interest.sets;
        let Some(promoted) = inner.promoted.as_deref_mut() else { return Break(None) };
        promoted.is_used();
        // Where a set has it, too, the wake-up is the set's.
        self.doorbell = if sets == 0 && self.blocks { promoted.doorbell_to_sleep_by() } else { None };
        let by = self.doorbell.map_or(WakeUp::Tcp, |_| WakeUp::Doorbell);
        match promoted.arm_by(by) {
            Ok(true) => return Continue(Armed::News),
            Ok(false) => promoted.is_slept_on(),
            Err(errno) => return Break(Some(Err(errno))),
        }
        let unseen = if self.doorbell.is_some() {
            promoted.wakes_unseen(self.fd)
        } else {
            // The kernel's call keeps to no time of ours.
            promoted.ring_unseen(self.fd);
            None
        };
        (self.waits_for_ever, self.limits_set) = (promoted.waits_for_ever, promoted.limits_set);
        let owes = promoted.owes_bells();
        drop(inner);
        if owes {
            // They wake this thread, too.
            std::thread::sleep(PAUSE);
        }
        promoter::answers();
        Continue(Armed::Asleep { unseen })
    }

    fn restarts(&self) -> bool {
        kernel::limit(self.fd, libc::SO_RCVTIMEO).is_none()
    }

    #[inline(never)]
    fn is_interrupted(&mut self) -> Received {
        self.fails(libc::EINTR)
    }

    #[inline(never)]
    fn sleeps(&mut self, until: Option<Instant>) -> Slept<Received> {
        let Some(doorbell) = self.doorbell else {
            let waited = match self.until {
                None => kernel::wait(self.fd, self.flags),
                until => kernel::wait_for(self.fd, libc::POLLIN, until),
            };
            return match waited {
                Ok(()) => self.has_slept(false, None),
                Err(errno) => {
                    if errno == libc::EAGAIN && self.blocks && kernel::is_nonblocking(self.fd) {
                        // O_NONBLOCK was set where nobody saw it.
                        waiters::nonblocking(self.socket, true);
                    }
                    self.ends(errno)
                }
            };
        };
        if self.became_nonblocking() {
            return self.ends(libc::EAGAIN);
        }
        let limit = if self.waits_for_ever { None } else { self.limit.until(self.fd) };
        let had_no_limit = limit.is_none().then_some(self.limits_set);
        match kernel::wait_beside(self.fd, doorbell, soonest(limit, until)) {
            Ok(woken) => {
                self.asked = woken.by_kernel;
                self.has_slept(woken.by_doorbell, had_no_limit)
            }
            // The next round decides whether the call ends: each handler ends a poll(2), and not each a recv(2).
            Err(libc::EINTR | libc::EAGAIN) => {
                self.asked = false;
                self.has_slept(false, had_no_limit)
            }
            Err(errno) => self.ends(errno),
        }
    }

    /// SO_RCVTIMEO, which is its own, ends it elsewhere.
    fn has_nothing(&mut self) -> Received {
        Some(Err(libc::EAGAIN))
    }

    fn is_find(outcome: &Received) -> bool {
        matches!(outcome, Some(Ok(_)))
    }
}

impl Promoted {
    /// O_NONBLOCK of a socket that counts as set so: asked again as long as other processes may have cleared it.
    fn is_nonblocking(&mut self, fd: c_int) -> bool {
        if self.stays_nonblocking {
            return true;
        }
        let is_nonblocking = kernel::is_nonblocking(fd);
        self.stays_nonblocking = is_nonblocking && !self.connection.is_shared();
        is_nonblocking
    }
}

impl Read<'_> {
    /// What comes next comes by the kernel, or with a wake-up there: one call of it waits.
    #[cold]
    fn asks_kernel(&mut self, mut inner: Guard<'_>) -> ControlFlow<Received, Phase> {
        let (socket, fd, into, flags) = (self.socket, self.fd, *self.into, self.flags);
        self.asked = true;
        let Some(promoted) = inner.promoted.as_deref_mut() else { return Break(None) };
        let at = promoted.connection.read_of_kernel();
        promoted.is_slept_on();
        drop(inner);
        let waited = self.limit.next_wait(fd).and_then(|until| match until {
            None => Ok(0),
            Some(_) => kernel::wait_for(fd, libc::POLLIN, until).map(|()| libc::MSG_DONTWAIT),
        });
        let count = match waited {
            Ok(now) => kernel::receive(fd, into, (flags & !libc::MSG_WAITALL) | libc::MSG_PEEK | now),
            Err(errno) => return Break(self.fails(errno)),
        };
        if count < 0 {
            return match crate::real::errno() {
                // Another thread took it.
                libc::EAGAIN if waited == Ok(libc::MSG_DONTWAIT) => Continue(Phase::Collect),
                errno => Break(self.fails(errno)),
            };
        }
        let mut inner = socket.lock();
        let Some(promoted) = inner.promoted.as_deref_mut() else { return Break(None) };
        promoted.is_used();
        if count > 0
            && promoted.connection.read_of_kernel() == at
            && let Break(outcome) = promoted.seen(fd, into, count as usize, flags)
        {
            return Break(Some(finish(socket, inner, fd, flags, outcome)));
        }
        Continue(Phase::Collect)
    }

    /// Whether O_NONBLOCK was set where nobody saw it, which poll(2) does not report: asked once a call.
    fn became_nonblocking(&mut self) -> bool {
        let became = !std::mem::replace(&mut self.flags_asked, true) && kernel::is_nonblocking(self.fd);
        if became {
            waiters::nonblocking(self.socket, true);
        }
        became
    }

    /// `rung`: by the doorbell. `had_no_limit`: since when it has no SO_RCVTIMEO.
    fn has_slept(&mut self, rung: bool, had_no_limit: Option<u32>) -> Slept<Received> {
        let at = clock::now();
        self.slept = true;
        let mut called = 0;
        if let Some(promoted) = self.socket.lock().promoted.as_deref_mut() {
            called = promoted.connection.peer_woke_at();
            promoted.is_awake(rung);
            promoted.waits_for_ever |=
                had_no_limit == Some(promoted.limits_set) && !promoted.connection.is_shared();
        }
        Slept { at, called, outcome: Continue(()) }
    }

    fn ends(&self, errno: i32) -> Slept<Received> {
        Slept { at: clock::now(), called: 0, outcome: Break(self.fails(errno)) }
    }

    /// The kernel, which tells an error of the connection once, failed a wait. A call that tells what it took before
    /// leaves the error to the next.
    fn fails(&self, errno: i32) -> Received {
        if let Some(promoted) = self.socket.lock().promoted.as_deref_mut() {
            promoted.is_awake(false);
            if self.told && !matches!(errno, libc::EAGAIN | libc::EINTR | libc::EFAULT) {
                promoted.failed(errno);
            }
        }
        Some(Err(errno))
    }
}

/// A call has come to this.
fn finish(
    socket: &'static Socket,
    mut inner: Guard<'_>,
    fd: c_int,
    flags: c_int,
    outcome: Outcome,
) -> Result<Part, i32> {
    let in_a_set = inner.interest.sets > 0;
    let Some(promoted) = inner.promoted.as_deref_mut() else {
        return outcome.map(|count| Part { count, is_at_seam: false });
    };
    let taken = promoted.connection.taken();
    if flags & libc::MSG_PEEK != 0 {
        promoted.shown = promoted.shown.max(taken + outcome.map_or(0, |count| count as u64));
    }
    let behind = promoted.connection.nears_next_part() || promoted.shown > taken;
    let is_at_seam = flags & libc::MSG_PEEK == 0 && behind;
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
    outcome.map(|count| Part { count, is_at_seam })
}

/// An end that nobody looks at by itself has to be looked at, since its ring still holds bytes for which no
/// bell lies in the kernel.
pub(crate) fn settle(socket: &'static Socket) {
    let set = socket.lock_alone().interest.set;
    if set > 0 {
        sets::list(set - 1, socket);
    }
}

/// Between two looks for bells that another process is about to find.
const PAUSE: Duration = Duration::from_micros(20);
