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
use crate::consume::{Outcome, consume};
use crate::demotion;
use crate::kernel;
use crate::memory::{Pieces, piece};
use crate::peek;
use crate::promoter;
use crate::sets::{self, EDGE};
use crate::sockets::{Busy, Guard, Interest, Promoted, Socket};
use crate::waiter::{Armed, Phase, Slept, Waiter, Waiting, soonest};
use crate::waiters;

/// Bytes from either the ring or the kernel.
pub(crate) struct Run {
    pub(crate) count: usize,
    /// Bytes from the other one may follow.
    pub(crate) is_at_seam: bool,
}

/// Or an errno. `None`: the socket turned out not to be promoted.
pub(crate) type Received = Option<Result<Run, i32>>;

/// Receives on a promoted socket. `None`: it turned out not to be promoted, and `consumed` bytes
/// are fewer than the call waits for.
pub(crate) fn receive(
    socket: &'static Socket,
    fd: c_int,
    into: Pieces<'_>,
    flags: c_int,
    consumed: &mut usize,
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
        let more = if *consumed >= wanted { libc::MSG_DONTWAIT } else { 0 };
        let rest = into.after(*consumed);
        match receive_some(socket, &mut kept, &mut limit, fd, &rest, flags | more, *consumed > 0) {
            Some(Ok(Run { count, is_at_seam })) => {
                *consumed += count;
                // The kernel may have more for pieces beyond its call; a peek would see the same
                // bytes again.
                let is_whole = flags & libc::MSG_PEEK != 0 || count < rest.in_one_call();
                let ends = *consumed >= wanted && !is_at_seam && is_whole;
                if count == 0 || *consumed >= into.left || ends {
                    return Some(Ok(*consumed));
                }
            }
            // Consumed bytes are returned first, as Linux does; the next call gets the error, or it
            // was an interruption.
            Some(Err(_)) if *consumed > 0 => return Some(Ok(*consumed)),
            Some(Err(errno)) => return Some(Err(errno)),
            None => return (*consumed >= wanted).then_some(Ok(*consumed)),
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
    partial: bool,
) -> Received {
    let blocks = socket.blocks(flags);
    let mut read = Read {
        socket,
        kept,
        limit,
        fd,
        into,
        flags,
        partial,
        blocks,
        checks_first: blocks && flags & (libc::MSG_PEEK | libc::MSG_TRUNC) == 0,
        dissolved_before: socket.dissolved.load(Relaxed),
        slept: false,
        kernel_reported: false,
        flags_checked: false,
        until: None,
        doorbell: None,
        has_no_timeout: false,
        timeout_changes: 0,
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
    partial: bool,
    blocks: bool,
    /// It has not checked yet, and would wait.
    checks_first: bool,
    dissolved_before: u32,
    /// Since the last check.
    slept: bool,
    /// The kernel has reported something.
    kernel_reported: bool,
    /// See [`Self::became_nonblocking`].
    flags_checked: bool,
    /// When the call times out, if it sleeps in a call of the kernel.
    until: Option<Instant>,
    /// The doorbell that it also watches while it sleeps.
    doorbell: Option<c_int>,
    /// SO_RCVTIMEO is not set, as of this many changes of it.
    has_no_timeout: bool,
    timeout_changes: u32,
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
        promoted.note_use();
        let is_first_check = std::mem::take(&mut self.checks_first);
        if is_first_check && sets == 0 && promoted.shown <= promoted.connection.consumed() {
            // Nothing has reported these bytes to the program: this read is how it waits.
            promoted.note_blocking_read();
        }
        if is_first_check && promoted.has_only_an_empty_ring() {
            // The next bytes most likely come by the ring: the kernel is asked only after a spin
            // that found nothing.
            promoted.note_wait();
            self.kept.get_or_insert_with(|| socket.keep());
            if waiter.may_spin() {
                return Continue(Phase::Spin);
            }
        }
        // A set that is not tracked may be edge-triggered.
        let reported_again = if set == 0 { promoted.waiters.are_seen() } else { events & EDGE == 0 };
        // If only the kernel can have data, one blocking recv(2) both waits and reads; else the
        // sleep that also watches the doorbell reports it.
        let waits_first = if promoted.waits_in_kernel(flags) {
            !self.kernel_reported && promoted.last_check_found_nothing()
        } else {
            sets == 0
                && self.blocks
                && !self.kernel_reported
                && waiter.has_spun()
                && promoted.doorbell_to_sleep_by().is_some()
                && promoted.has_only_an_empty_ring()
        };
        if !waits_first && let Break(outcome) = consume(promoted, fd, *self.into, flags, reported_again) {
            if outcome.is_err() && !self.partial {
                promoted.connection.take_error();
            }
            return Break(Some(finish(socket, inner, fd, flags, outcome)));
        }
        // This thread returns to the record.
        self.kept.get_or_insert_with(|| socket.keep());
        // Another process that has the socket may have cleared O_NONBLOCK.
        let must_return = flags & libc::MSG_DONTWAIT != 0
            || (!self.blocks && !promoted.waits_in_kernel(flags) && promoted.is_nonblocking(fd));
        if must_return {
            return match promoted.arm_unless_covered(sets > 0) {
                Ok(true) => Continue(Phase::Collect),
                Ok(false) => Break(Some(Err(libc::EAGAIN))),
                Err(errno) => Break(Some(Err(errno))),
            };
        }
        if promoted.waits_in_kernel(flags) {
            waiter.stop();
            return self.wait_in_kernel(inner);
        }
        promoted.note_wait();
        match self.limit.next_wait(fd) {
            Ok(until) => self.until = until,
            Err(errno) => return Break(Some(Err(errno))),
        }
        Continue(if self.blocks && waiter.may_spin() { Phase::Spin } else { Phase::Sleep })
    }

    fn begin_spin(&mut self) {
        if let Some(promoted) = self.socket.lock().promoted.as_deref_mut() {
            promoted.heat_outside_set();
        }
    }

    fn poll_rings(&mut self) -> bool {
        let Some(mut inner) = self.socket.try_lock() else { return false };
        let checked = inner.promoted.as_deref_mut().map(|promoted| promoted.connection.poll());
        checked != Some(Ok(false))
    }

    #[inline(never)]
    fn arm(&mut self) -> ControlFlow<Received, Armed> {
        let mut inner = self.socket.lock();
        let sets = inner.interest.sets;
        let Some(promoted) = inner.promoted.as_deref_mut() else { return Break(None) };
        promoted.note_use();
        // If a set has it, too, the wake-up is the set's.
        self.doorbell = if sets == 0 && self.blocks { promoted.doorbell_to_sleep_by() } else { None };
        let by = self.doorbell.map_or(WakeUp::Tcp, |_| WakeUp::Doorbell);
        match promoted.arm_by(by) {
            Ok(true) => return Continue(Armed::Pending),
            Ok(false) => promoted.note_sleep(),
            Err(errno) => return Break(Some(Err(errno))),
        }
        let unseen = if self.doorbell.is_some() {
            promoted.wake_unseen_if_due(self.fd)
        } else {
            // The kernel's call does not end at a time of ours.
            promoted.wake_unseen(self.fd);
            None
        };
        (self.has_no_timeout, self.timeout_changes) = (promoted.has_no_timeout, promoted.timeout_changes);
        let keeps_wake_ups = promoted.keeps_wake_ups();
        drop(inner);
        if keeps_wake_ups {
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
    fn interrupted(&mut self) -> Received {
        self.failure(libc::EINTR)
    }

    #[inline(never)]
    fn sleep(&mut self, until: Option<Instant>) -> Slept<Received> {
        let Some(doorbell) = self.doorbell else {
            let waited = match self.until {
                None => kernel::wait(self.fd, self.flags),
                until => kernel::wait_for(self.fd, libc::POLLIN, until),
            };
            return match waited {
                Ok(()) => self.after_sleep(false, None),
                Err(errno) => {
                    if errno == libc::EAGAIN && self.blocks && kernel::is_nonblocking(self.fd) {
                        // O_NONBLOCK was set outside the library.
                        waiters::nonblocking(self.socket, true);
                    }
                    self.ended(errno)
                }
            };
        };
        if self.became_nonblocking() {
            return self.ended(libc::EAGAIN);
        }
        let limit = if self.has_no_timeout { None } else { self.limit.until(self.fd) };
        let had_no_limit = limit.is_none().then_some(self.timeout_changes);
        match kernel::wait_with_doorbell(self.fd, doorbell, soonest(limit, until)) {
            Ok(woken) => {
                self.kernel_reported = woken.by_kernel;
                self.after_sleep(woken.by_doorbell, had_no_limit)
            }
            // The next round decides whether the call ends: every handler ends a poll(2), but not
            // every recv(2).
            Err(libc::EINTR | libc::EAGAIN) => {
                self.kernel_reported = false;
                self.after_sleep(false, had_no_limit)
            }
            Err(errno) => self.ended(errno),
        }
    }

    /// The call's own SO_RCVTIMEO ends it elsewhere.
    fn timed_out(&mut self) -> Received {
        Some(Err(libc::EAGAIN))
    }

    fn is_found(outcome: &Received) -> bool {
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
    fn wait_in_kernel(&mut self, mut inner: Guard<'_>) -> ControlFlow<Received, Phase> {
        let (socket, fd, into, flags) = (self.socket, self.fd, *self.into, self.flags);
        self.kernel_reported = true;
        let Some(promoted) = inner.promoted.as_deref_mut() else { return Break(None) };
        let at = promoted.connection.read_of_kernel();
        promoted.note_sleep();
        drop(inner);
        let waited = self.limit.next_wait(fd).and_then(|until| match until {
            None => Ok(0),
            Some(_) => kernel::wait_for(fd, libc::POLLIN, until).map(|()| libc::MSG_DONTWAIT),
        });
        let count = match waited {
            Ok(now) => kernel::receive(fd, into, (flags & !libc::MSG_WAITALL) | libc::MSG_PEEK | now),
            Err(errno) => return Break(self.failure(errno)),
        };
        if count < 0 {
            return match crate::real::errno() {
                // Another thread consumed it.
                libc::EAGAIN if waited == Ok(libc::MSG_DONTWAIT) => Continue(Phase::Collect),
                errno => Break(self.failure(errno)),
            };
        }
        let mut inner = socket.lock();
        let Some(promoted) = inner.promoted.as_deref_mut() else { return Break(None) };
        promoted.note_use();
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
        let became = !std::mem::replace(&mut self.flags_checked, true) && kernel::is_nonblocking(self.fd);
        if became {
            waiters::nonblocking(self.socket, true);
        }
        became
    }

    /// `by_doorbell`: the doorbell woke it. `had_no_limit`: the change of SO_RCVTIMEO since which it has
    /// none.
    fn after_sleep(&mut self, by_doorbell: bool, had_no_limit: Option<u32>) -> Slept<Received> {
        let at = clock::now();
        self.slept = true;
        let mut peer_woke_at = 0;
        if let Some(promoted) = self.socket.lock().promoted.as_deref_mut() {
            peer_woke_at = promoted.connection.peer_woke_at();
            promoted.note_wake(by_doorbell);
            promoted.has_no_timeout |=
                had_no_limit == Some(promoted.timeout_changes) && !promoted.connection.is_shared();
        }
        Slept { at, peer_woke_at, outcome: Continue(()) }
    }

    fn ended(&self, errno: i32) -> Slept<Received> {
        Slept { at: clock::now(), peer_woke_at: 0, outcome: Break(self.failure(errno)) }
    }

    /// A wait failed in the kernel, which reports an error of the connection once. A call that
    /// returns bytes leaves the error to the next one.
    fn failure(&self, errno: i32) -> Received {
        if let Some(promoted) = self.socket.lock().promoted.as_deref_mut() {
            promoted.note_wake(false);
            if self.partial && !matches!(errno, libc::EAGAIN | libc::EINTR | libc::EFAULT) {
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
) -> Result<Run, i32> {
    let in_a_set = inner.interest.sets > 0;
    let Some(promoted) = inner.promoted.as_deref_mut() else {
        return outcome.map(|count| Run { count, is_at_seam: false });
    };
    let consumed = promoted.connection.consumed();
    if flags & libc::MSG_PEEK != 0 {
        promoted.shown = promoted.shown.max(consumed + outcome.map_or(0, |count| count as u64));
    }
    let behind = promoted.connection.nears_next_run() || promoted.shown > consumed;
    let is_at_seam = flags & libc::MSG_PEEK == 0 && behind;
    if promoted.connection.nears_next_run()
        && promoted.connection.poll() == Ok(false)
        && promoted.connection.reads_from_kernel()
        && !promoted.connection.reads_data_from_kernel()
    {
        // The ring's bytes are consumed. Discard their copies in the kernel, which leave no room
        // for the next bytes, an edge.
        promoted.check_behind_wake_ups(fd);
    }
    if flags & libc::MSG_PEEK == 0 && outcome.is_ok_and(|count| count > 0) {
        promoted.note_read();
    }
    let list = promoted.rearm_after_read(fd, in_a_set);
    if list && !in_a_set && !promoted.waiters.are_seen() && outcome.is_ok() {
        promoted.rearm_for_unseen_sets(fd);
    }
    let leaves = promoted.demote_once_read && !promoted.connection.has_unread();
    drop(inner);
    if list {
        list_in_set(socket);
    }
    if leaves {
        demotion::demote_for(fd, Reason::Option);
    }
    outcome.map(|count| Run { count, is_at_seam })
}

/// A set has to poll this endpoint: its ring still holds bytes, and the kernel has no wake-up for
/// them.
pub(crate) fn list_in_set(socket: &'static Socket) {
    let set = socket.lock_alone().interest.set;
    if set > 0 {
        sets::list(set - 1, socket);
    }
}

/// Between two checks for wake-up bytes that another process is about to find.
const PAUSE: Duration = Duration::from_micros(20);
