//! Receiving on a promoted connection: bytes of ring and kernel in stream order, and the waits of a
//! blocking call.

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

/// Bytes from either the ring or the kernel.
pub(crate) struct Part {
    pub(crate) count: usize,
    /// Bytes from the other one may follow.
    pub(crate) is_at_seam: bool,
}

/// Or an errno. `None`: the socket turned out not to be promoted.
pub(crate) type Received = Option<Result<Part, i32>>;

/// Receives on a promoted socket. `None`: it turned out not to be promoted, and `taken` bytes are
/// fewer than the call waits for.
pub(crate) fn receive(
    socket: &'static Socket,
    fd: c_int,
    into: Pieces<'_>,
    flags: c_int,
    taken: &mut usize,
) -> Option<Outcome> {
    let waits = flags & (libc::MSG_PEEK | libc::MSG_DONTWAIT) == 0;
    // Bytes that a waiting call needs before it returns.
    let wanted = if waits && flags & libc::MSG_WAITALL != 0 { into.left } else { 1 };
    if peek::waits_for_all(socket, flags) {
        return peek::all(socket, fd, into, flags);
    }
    let mut kept = None;
    let mut limit = CallLimit::of(libc::SO_RCVTIMEO);
    loop {
        // Bytes on the other path belong to the same read, which does not wait for them.
        let more = if *taken >= wanted { libc::MSG_DONTWAIT } else { 0 };
        let rest = into.after(*taken);
        match receive_some(socket, &mut kept, &mut limit, fd, &rest, flags | more, *taken > 0) {
            Some(Ok(Part { count, is_at_seam })) => {
                *taken += count;
                // The kernel may have more for pieces beyond its call; a peek would see the same
                // bytes again.
                let is_whole = flags & libc::MSG_PEEK != 0 || count < rest.in_one_call();
                let ends = *taken >= wanted && !is_at_seam && is_whole;
                if count == 0 || *taken >= into.left || ends {
                    return Some(Ok(*taken));
                }
            }
            // Consumed bytes are returned first, as Linux does; the next call gets the error, or it
            // was an interruption.
            Some(Err(_)) if *taken > 0 => return Some(Ok(*taken)),
            Some(Err(errno)) => return Some(Err(errno)),
            None => return (*taken >= wanted).then_some(Ok(*taken)),
        }
    }
}

/// Receives into an empty buffer: waits as for one byte, and leaves it there. However the wait
/// ends, the kernel returns 0.
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

/// Receives from either the ring or the kernel. `partial`: the call has bytes already, which it
/// returns before any error.
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

/// A call of [`receive_some`].
struct Read<'a> {
    socket: &'static Socket,
    kept: &'a mut Option<Busy<'static>>,
    limit: &'a mut CallLimit,
    fd: c_int,
    into: &'a Pieces<'a>,
    flags: c_int,
    told: bool,
    blocks: bool,
    /// It has not checked yet, and would wait.
    looks_first: bool,
    dissolved_before: u32,
    /// Since the last check.
    slept: bool,
    /// The kernel has reported something.
    asked: bool,
    /// See [`Self::became_nonblocking`].
    flags_asked: bool,
    /// When the call times out, if it sleeps in a call of the kernel.
    until: Option<Instant>,
    /// The doorbell that it also watches while it sleeps.
    doorbell: Option<c_int>,
    /// SO_RCVTIMEO is not set, as of this many changes of it.
    waits_for_ever: bool,
    limits_set: u32,
}

impl Waiting for Read<'_> {
    type Outcome = Received;

    // Inlined into its only caller: the stack of a handler may be short.
    #[inline(always)]
    fn collect(&mut self, waiter: &mut Waiter) -> ControlFlow<Received, Phase> {
        let (socket, fd, flags) = (self.socket, self.fd, self.flags);
        let mut inner = socket.lock();
        let Interest { set, events, sets, .. } = inner.interest;
        let slept = std::mem::take(&mut self.slept);
        let Some(promoted) = inner.promoted.as_deref_mut() else {
            // connect(2) has dissolved the connection during this wait (`sk_disconnects` of Linux).
            let dissolved = slept && socket.dissolved.load(Relaxed) != self.dissolved_before;
            return Break(dissolved.then_some(Err(libc::EPIPE)));
        };
        promoted.is_used();
        let looks = std::mem::take(&mut self.looks_first);
        if looks && sets == 0 && promoted.shown <= promoted.connection.taken() {
            // Nothing has reported these bytes to the program: this read is how it waits.
            promoted.is_read_by_waiting();
        }
        if looks && promoted.has_only_an_empty_ring() {
            // The next bytes most likely come by the ring: the kernel is asked only after a spin
            // that found nothing.
            promoted.is_awaited_here();
            self.kept.get_or_insert_with(|| socket.keep());
            if waiter.may_look() {
                return Continue(Phase::Look);
            }
        }
        // A set that is not tracked may be edge-triggered.
        let told_again = if set == 0 { promoted.waiters.are_seen() } else { events & EDGE == 0 };
        // If only the kernel can have data, one blocking recv(2) both waits and reads; else the
        // sleep that also watches the doorbell reports it.
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
        // This thread returns to the record.
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
        // If a set has it, too, the wake-up is the set's.
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
            // The kernel's call does not end at a time of ours.
            promoted.ring_unseen(self.fd);
            None
        };
        (self.waits_for_ever, self.limits_set) = (promoted.waits_for_ever, promoted.limits_set);
        let owes = promoted.owes_bells();
        drop(inner);
        if owes {
            // The wake-up bytes would wake this thread, too.
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
                        // O_NONBLOCK was set outside the library.
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
            // The next round decides whether the call ends: every handler ends a poll(2), but not
            // every recv(2).
            Err(libc::EINTR | libc::EAGAIN) => {
                self.asked = false;
                self.has_slept(false, had_no_limit)
            }
            Err(errno) => self.ends(errno),
        }
    }

    /// The call's own SO_RCVTIMEO ends it elsewhere.
    fn has_nothing(&mut self) -> Received {
        Some(Err(libc::EAGAIN))
    }

    fn is_find(outcome: &Received) -> bool {
        matches!(outcome, Some(Ok(_)))
    }
}

impl Promoted {
    /// O_NONBLOCK of a socket that counts as nonblocking: asked again as long as other processes
    /// may have cleared it.
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
    /// The next bytes come by the kernel, or with a wake-up there: one call both waits and reads.
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
                // Another thread consumed it.
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

    /// Whether O_NONBLOCK was set outside the library, which poll(2) does not report: asked once a
    /// call.
    fn became_nonblocking(&mut self) -> bool {
        let became = !std::mem::replace(&mut self.flags_asked, true) && kernel::is_nonblocking(self.fd);
        if became {
            waiters::nonblocking(self.socket, true);
        }
        became
    }

    /// `rung`: the doorbell woke it. `had_no_limit`: the change of SO_RCVTIMEO since which it has
    /// none.
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

    /// A wait failed in the kernel, which reports an error of the connection once. A call that
    /// returns bytes leaves the error to the next one.
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

/// Finishes a call: re-arms the connection as needed.
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
        // The ring's bytes are consumed. Discard their copies in the kernel, which leave no room
        // for the next bytes, an edge.
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

/// A set has to poll this endpoint: its ring still holds bytes, and the kernel has no wake-up for
/// them.
pub(crate) fn settle(socket: &'static Socket) {
    let set = socket.lock_alone().interest.set;
    if set > 0 {
        sets::list(set - 1, socket);
    }
}

/// Between two checks for wake-up bytes that another process is about to find.
const PAUSE: Duration = Duration::from_micros(20);
