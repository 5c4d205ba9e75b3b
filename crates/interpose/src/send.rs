//! Sending on a promoted connection: into the ring, or through the kernel if the ring is full or no
//! longer used.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;
use std::time::Duration;

use ring::{Corrupt, WakeUp};

use crate::call_limit::CallLimit;
use crate::clock::{self, Instant};
use crate::consume::Outcome;
use crate::kernel;
use crate::memory::Pieces;
use crate::real;
use crate::signals;
use crate::sockets::{Promoted, Socket, WHOLE_RING};
use crate::spin;
use crate::stats::{COUNTERS, count};

/// Wait for a full ring while its reader makes progress: copying on is cheaper than the detour
/// through the kernel.
const PATIENCE: Duration = Duration::from_micros(50);
/// Messages up to this size go into the ring whole or not at all: another thread's or process's
/// bytes would come into the middle of one. The kernel, too, takes such a message in one piece.
const WHOLE: usize = 4096;
/// Spins between two reads of the clock.
const SPINS: u32 = 32;

/// Longer than any delay of an acknowledgement (TCP_DELACK_MAX of Linux, 200 ms), which may be all
/// that a wake-up byte waits for.
const ACKNOWLEDGED: Duration = Duration::from_millis(300);
const PAUSE: Duration = Duration::from_millis(1);

thread_local! {
    /// The connection on which this thread sent last.
    static LAST: Cell<*const Promoted> = const { Cell::new(ptr::null()) };
}

/// The next step, decided under the socket's lock.
enum Step {
    Done,
    /// The ring is full: check again.
    Full,
    /// The rest goes through the kernel.
    Kernel,
    /// The kernel has no room for bytes that have to be sent first.
    Blocked,
    Failed(i32),
}

impl Step {
    fn is_last(&self) -> bool {
        matches!(self, Step::Done | Step::Failed(_))
    }
}

/// Sends on a promoted socket. `None`: it turned out not to be promoted, or was demoted after
/// `done` bytes.
pub(crate) fn send(
    socket: &'static Socket,
    fd: c_int,
    from: Pieces<'_>,
    flags: c_int,
    done: &mut usize,
) -> Option<Outcome> {
    let mut deadline: Option<Instant> = None;
    let mut limit = CallLimit::of(libc::SO_SNDTIMEO);
    let mut spins = 0u32;
    let mut kept = None;
    let mut handled = signals::handled();
    loop {
        let mut inner = socket.lock();
        let promoted = inner.promoted.as_deref_mut()?;
        let before = *done;
        let step =
            promoted.step(fd, from, done, flags, deadline.is_some_and(|deadline| clock::now() >= deadline));
        if !step.is_last() {
            // This thread returns to the record.
            kept.get_or_insert_with(|| socket.keep());
        }
        match step {
            Step::Done => return Some(Ok(*done)),
            Step::Failed(errno) => return Some(if *done > 0 { Ok(*done) } else { Err(errno) }),
            Step::Full => {
                drop(inner);
                if socket.blocks(flags)
                    && let Err(errno) = limit.next_wait(fd)
                {
                    return Some(if *done > 0 { Ok(*done) } else { Err(errno) });
                }
                if signals::handled() != handled {
                    let restarts = || *done == 0 && kernel::limit(fd, libc::SO_SNDTIMEO).is_none();
                    if socket.blocks(flags) && signals::end_a_wait(handled, restarts) {
                        return Some(if *done > 0 { Ok(*done) } else { Err(libc::EINTR) });
                    }
                    handled = signals::handled();
                }
                if *done > before || deadline.is_none() {
                    deadline = Some(clock::now() + PATIENCE);
                }
                spins = spins.wrapping_add(1);
                for _ in 0..SPINS {
                    std::hint::spin_loop();
                }
                if spins.is_multiple_of(8) {
                    std::thread::yield_now();
                }
            }
            Step::Blocked => {
                drop(inner);
                let room = if socket.blocks(flags) && *done == 0 {
                    limit.next_wait(fd).and_then(|_| kernel::wait_for(fd, libc::POLLOUT, limit.until(fd)))
                } else {
                    Err(libc::EAGAIN)
                };
                if let Err(errno) = room {
                    return Some(if *done > 0 { Ok(*done) } else { Err(errno) });
                }
            }
            Step::Kernel => {
                promoted.connection.kernel_call_begins();
                let more = promoted.corked || flags & libc::MSG_MORE != 0;
                // Set before the call: another thread's bytes must not go by the ring meanwhile.
                promoted.held |= more;
                drop(inner);
                let quiet = if *done > 0 { libc::MSG_NOSIGNAL } else { 0 };
                // A call with a timeout sends what fits and waits again, until the time is up.
                let room = match socket.blocks(flags).then(|| limit.next_wait(fd)) {
                    None | Some(Ok(None)) => Ok(0),
                    Some(Ok(until)) => {
                        kernel::wait_for(fd, libc::POLLOUT, until).map(|()| libc::MSG_DONTWAIT)
                    }
                    Some(Err(errno)) => Err(errno),
                };
                let (sent, errno) = match room {
                    Ok(now) => (kernel::send(fd, from.after(*done), flags | quiet | now), real::errno()),
                    Err(errno) => (-1, errno),
                };
                let retries = room == Ok(libc::MSG_DONTWAIT);
                let mut inner = socket.lock();
                if let Some(promoted) = inner.promoted.as_deref_mut() {
                    promoted.connection.kernel_call_ends();
                    if sent <= 0 {
                        promoted.connection.kernel_refused();
                    } else {
                        promoted.connection.kernel_accepted(sent as usize);
                        promoted.held = more;
                    }
                }
                drop(inner);
                if sent < 0 && retries && errno == libc::EAGAIN {
                    // Another thread used the room.
                    continue;
                }
                if sent < 0 {
                    real::set_errno(errno);
                    return Some(if *done > 0 { Ok(*done) } else { Err(errno) });
                }
                *done += sent as usize;
                // A call that accepts less than it got would block, or was interrupted; a long
                // vector takes several calls.
                let short = (sent as usize) < from.after(*done - sent as usize).in_one_call();
                if *done >= from.left || (short && !retries) {
                    return Some(Ok(*done));
                }
            }
        }
    }
}

impl Promoted {
    fn step(&mut self, fd: c_int, from: Pieces<'_>, done: &mut usize, flags: c_int, impatient: bool) -> Step {
        if let Some(errno) = self.connection.take_error() {
            return Step::Failed(errno);
        }
        if flags & libc::MSG_OOB != 0 || self.connection.peer_reads_no_more() {
            // The kernel decides the result.
            self.connection.kernel_sends();
        }
        if self.connection.peer_is_demoted()
            && let Some(step) = self.resend_first(fd)
        {
            return step;
        }
        // The kernel holds the bytes back, for 200 ms at most, unless more follow there.
        let is_held_back = self.corked || self.held || flags & libc::MSG_MORE != 0;
        if !self.connection.stays_with_kernel() && !is_held_back {
            let mut rest = from.after(*done).at_most(self.connection.most_at_once());
            if !rest.is_readable() {
                return Step::Failed(libc::EFAULT);
            }
            let whole = rest.left.min(WHOLE).min(self.send_limit as usize);
            // A sender without answers has to check whether the peer has consumed all:
            // `ring::Sender::write` then records the time, by which a set orders its connections.
            let turns_here = LAST.replace(self) != &raw const *self;
            if turns_here || self.send_limit != WHOLE_RING {
                match self.connection.unconsumed() {
                    Ok(_) if self.send_limit == WHOLE_RING => {}
                    Ok(unconsumed) => {
                        rest = rest.at_most((self.send_limit as usize).saturating_sub(unconsumed))
                    }
                    Err(_) => return Step::Failed(self.corrupt(fd)),
                }
            }
            let idle = self.connection.kernel_is_idle();
            let sent = match self.connection.has_room(whole) {
                Ok(has_room) if !has_room || rest.left < whole => Ok(0),
                _ => self.connection.send(rest.sources(), rest.left, idle),
            };
            let Ok(sent) = sent else { return Step::Failed(self.corrupt(fd)) };
            if sent > 0 {
                *done += sent;
                let woken = self.wake_peer(fd);
                spin::sent(woken.is_some());
                count(&COUNTERS.ring_sends, 1);
                count(&COUNTERS.ring_bytes_sent, sent as u64);
                if self.connection.peer_is_demoted() {
                    // Includes what was just sent; the next call continues if it has to wait.
                    let _ = self.resend(fd);
                }
            }
            if sent == from.after(*done - sent).left {
                return Step::Done;
            }
            if self.connection.sends_to_ring() && !impatient {
                return Step::Full;
            }
        }
        if self.connection.sends_to_ring() && self.spill(fd).is_err() {
            return Step::Failed(self.corrupt(fd));
        }
        if self.connection.about_to_send_over_tcp() {
            return self.resend_first(fd).unwrap_or(Step::Kernel);
        }
        Step::Kernel
    }

    /// The following bytes go through the kernel.
    #[cold]
    fn spill(&mut self, fd: c_int) -> Result<(), Corrupt> {
        if self.connection.is_first_spill() {
            self.copy_unconsumed(fd);
        }
        self.connection.spill()
    }

    /// The peer was demoted: the bytes that it did not consume go first.
    #[cold]
    fn resend_first(&mut self, fd: c_int) -> Option<Step> {
        match self.resend(fd) {
            Ok(()) => None,
            Err(libc::EAGAIN) => Some(Step::Blocked),
            Err(errno) => Some(Step::Failed(errno)),
        }
    }

    /// Wakes the peer, if it asked for that; returns by what.
    fn wake_peer(&mut self, fd: c_int) -> Option<WakeUp> {
        if self.connection.wants_wake_up(&self.other)? == WakeUp::Doorbell {
            count(&COUNTERS.wake_ups, 1);
            self.connection.wakes_at(clock::nanoseconds());
            if self.wake_by_doorbell() {
                return Some(WakeUp::Doorbell);
            }
            if !self.connection.may_wake_over_tcp() {
                return None;
            }
        }
        let accepted = self.send_wake_up(fd);
        if accepted || self.connection.is_checked_behind_tcp() {
            self.connection.woke_peer(&self.other, accepted);
        } else {
            // Not counted: the next message sends another one.
            self.connection.kernel_refused();
        }
        accepted.then_some(WakeUp::Tcp)
    }

    /// This thread most likely sleeps for an answer, and has done so for a while: a peer that stays
    /// unarmed between two waits may wait outside the library.
    pub(crate) fn wake_unseen(&mut self, fd: c_int) {
        if self.connection.has_unseen_bytes().is_some() && self.connection.may_wake_over_tcp() {
            count(&COUNTERS.wake_ups, 1);
            self.end_delays(fd);
            match kernel::send_now(fd, &[0]) {
                Ok(_) => self.connection.wake_up_was_accepted(),
                Err(errno) => {
                    self.connection.kernel_refused();
                    if !matches!(errno, libc::EAGAIN | libc::EPIPE) {
                        // The kernel reports it once.
                        self.failed(errno);
                    }
                }
            }
        }
    }

    /// Sends a wake-up byte that counts for this connection alone.
    pub(crate) fn wake_over_tcp(&mut self, fd: c_int) {
        match self.send_wake_up(fd) {
            true => self.connection.wake_up_was_accepted(),
            false => self.connection.kernel_refused(),
        }
    }

    /// A wake-up byte must not wait for acknowledgements (Nagle's algorithm).
    fn end_delays(&mut self, fd: c_int) {
        if std::mem::take(&mut self.kernel_delays) {
            kernel::set(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1i32);
        }
    }

    /// Sends a wake-up byte; returns whether the kernel accepted it. Waits for room if the peer has
    /// nothing else to read.
    fn send_wake_up(&mut self, fd: c_int) -> bool {
        count(&COUNTERS.wake_ups, 1);
        self.connection.wakes_at(clock::nanoseconds());
        self.end_delays(fd);
        let mut deadline = None;
        loop {
            match kernel::send_now(fd, &[0]) {
                Ok(_) => return true,
                Err(libc::EAGAIN) if self.connection.is_checked_behind_tcp() => return false,
                Err(libc::EAGAIN) => {}
                Err(_) => {
                    // The connection ended meanwhile: the kernel reports it to the next send.
                    self.connection.kernel_sends();
                    return false;
                }
            }
            let now = clock::now();
            match deadline {
                None => {
                    // The program may not use this socket again soon. socket(7): the kernel doubles
                    // the value.
                    if let Some(size) = kernel::option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF) {
                        kernel::set(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &size);
                    }
                    deadline = Some(now + ACKNOWLEDGED);
                }
                Some(deadline) if now > deadline => return false,
                Some(_) => std::thread::sleep(PAUSE),
            }
        }
    }
}
