//! Demotion: a connection that another program, or code in this one outside the library, is about
//! to use (by exec, in a message, through stdio) goes back to TCP first, for good. Nothing is lost:
//! the peer resends unread bytes of the ring through the kernel, or a successor connection holds
//! them.

use std::ffi::c_int;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use libc::iovec;
use promote::Reason;
use ring::{DemotionStep, Front};

use crate::buffer::Room;
use crate::clock::{self, Instant};
use crate::consume::{Outcome, consume};
use crate::kernel::{self, Found};
use crate::memory::Pieces;
use crate::promoter;
use crate::real;
use crate::sets;
use crate::sockets::{self, Guard, Promoted, Socket, State};
use crate::stats;
use crate::table::{self, Entry};
use crate::vfork;

/// A call that the peer is in takes a moment, unless the peer was stopped in the middle of it. Then
/// the wait takes this long.
const PATIENCE: Duration = Duration::from_secs(30);
/// Checks for a wake-up byte in flight at a close, where no wait is expected: it takes
/// microseconds, unless the peer lost its core halfway. The pauses take some 100 ms in all, since
/// timers are late by 50 us (prctl(2)).
const WAKE_UP_CHECKS: u32 = 1500;
/// Those without a pause.
const WAKE_UP_YIELDS: u32 = 50;
/// Between two checks.
const PAUSE: Duration = Duration::from_micros(20);
/// Detached bytes at most: more than the buffers of both endpoints hold (tcp_rmem and tcp_wmem of
/// tcp(7)).
const DETACHED_MAX: usize = 64 << 20;

/// Demotes the socket of this descriptor, which others are about to use.
pub(crate) fn demote(fd: c_int) {
    demote_for(fd, Reason::Shared);
}

/// Demotes the socket of this descriptor.
pub(crate) fn demote_for(fd: c_int, why: Reason) {
    if let Entry::Socket(number) = table::entry(fd) {
        real::kept_errno(|| demote_socket(number, sockets::at(number), fd, why));
    }
}

/// An option was set on the socket of this descriptor that only the kernel can apply. The socket is
/// demoted at once, or, if the ring holds unread bytes, once they were read: the peer could resend
/// them only when its program makes a call.
pub(crate) fn demote_for_option(fd: c_int) {
    let Entry::Socket(number) = table::entry(fd) else { return };
    let mut inner = sockets::at(number).lock();
    if let Some(promoted) = inner.promoted.as_deref_mut()
        && promoted.connection.has_unread()
    {
        promoted.connection.kernel_sends();
        promoted.demote_once_read = true;
        return;
    }
    drop(inner);
    demote_for(fd, Reason::Option);
}

/// Demotes the socket of this descriptor, whose events only the kernel can report to all sets. If
/// its bytes cannot go through the kernel the socket stays promoted: what prevents it, FIN or bytes
/// behind them, makes the socket readable for every waiter.
pub(crate) fn demote_if_possible(fd: c_int) {
    let Entry::Socket(number) = table::entry(fd) else { return };
    let possible = {
        let mut inner = sockets::at(number).lock();
        let Some(promoted) = inner.promoted.as_deref_mut() else { return };
        let possible = matches!(promoted.demotion_now(fd), DemotionStep::WakeUps(_));
        if !possible {
            promoted.shown_in_kernel = true;
            let _ = promoted.arm();
        }
        possible
    };
    if possible {
        demote(fd);
    }
}

/// Before another program is started with all descriptors that are not closed on exec(2); `forked`:
/// see [`stays_here`]. Returns the descriptors that are kept from it, and their sockets' cookies,
/// for [`inherit_again`].
pub(crate) fn keep_here(forked: bool) -> Vec<(c_int, u64)> {
    let (kept, gone): (Vec<c_int>, Vec<c_int>) = inherited().partition(|fd| stays_here(*fd, forked));
    kept.iter().for_each(|fd| kernel::set_close_at_exec(*fd, true));
    gone.into_iter().for_each(demote);
    kept.into_iter().map(|fd| (fd, kernel::cookie(fd))).collect()
}

/// Lets programs inherit these again.
pub(crate) fn inherit_again(kept: Vec<(c_int, u64)>) {
    // The numbers may belong to other files by now.
    let same = |(fd, cookie): &(c_int, u64)| kernel::cookie(*fd) == *cookie;
    real::kept_errno(|| {
        kept.into_iter().filter(same).for_each(|(fd, _)| kernel::set_close_at_exec(fd, false))
    });
}

/// Runs `call`, which starts another program beside this one, with all descriptors that are not
/// closed on exec(2).
pub(crate) fn spawning<T>(call: impl FnOnce() -> T) -> T {
    if vfork::borrows_sockets() {
        return call();
    }
    SPAWNS.fetch_add(1, Ordering::Relaxed);
    let kept = real::kept_errno(|| keep_here(false));
    let result = call();
    // Else a program that another thread is just starting would get them.
    if SPAWNS.fetch_sub(1, Ordering::Relaxed) == 1 {
        inherit_again(kept);
    }
    result
}

/// Threads that are starting programs.
static SPAWNS: AtomicU32 = AtomicU32::new(0);

fn inherited() -> impl Iterator<Item = c_int> {
    let inherited = |fd: &c_int| matches!(table::entry(*fd), Entry::Socket(_)) && kernel::is_inherited(*fd);
    (0..table::end()).filter(inherited)
}

/// Whether a descriptor is kept from another program that inherits it: its bytes lie unread on both
/// paths, as those of a stream do, and a demotion would have to wait until the peer's program makes
/// a call. Most programs that inherit one never use it; those that are meant to get it as standard
/// input or output. `forked`: only if another process keeps the connection.
pub(crate) fn stays_here(fd: c_int, forked: bool) -> bool {
    let Entry::Socket(number) = table::entry(fd) else { return false };
    if fd <= libc::STDERR_FILENO {
        return false;
    }
    let mut inner = sockets::at(number).lock();
    let Some(promoted) = inner.promoted.as_deref_mut() else { return false };
    (!forked || (promoted.inherited && promoted.connection.is_held_elsewhere())) && promoted.is_lost(fd)
}

/// Demotes all connections of this process, which may get no more.
pub(crate) fn demote_all(why: Reason) {
    for (number, socket) in sockets::all() {
        demote_socket(number, socket, socket.fd.load(Ordering::Relaxed), why);
    }
}

fn demote_socket(number: u32, socket: &'static Socket, fd: c_int, why: Reason) {
    match socket.state() {
        State::Free | State::Kernel => {}
        State::Plain | State::Offered => {
            stats::stays_on_tcp(socket, why);
            promoter::keep_on_tcp(socket, number);
            // Another thread may have promoted it just now.
            if socket.state() == State::Promoted {
                demote_socket(number, socket, fd, why);
            }
        }
        State::Promoted => {
            let mut inner = socket.lock();
            let Some(promoted) = inner.promoted.as_deref_mut() else { return };
            let mut is_replaced = false;
            if promoted.demote(fd).is_none() {
                is_replaced = promoted.replace_with_successor(fd, number).is_some();
                if !is_replaced {
                    // Wrong bytes would be worse than none.
                    promoted.corrupt(fd);
                }
            }
            if !promoted.connection.kernel_is_idle() && !promoted.connection.is_shared() {
                // Another thread is in a call of the kernel, and will not record the result: stream
                // bytes only.
                promoted.connection.kernel_refused();
            }
            if is_replaced {
                // The file that its set has registered is no longer at this number.
                (inner.interest.registered, inner.interest.deferred) = (None, true);
            }
            return_to_tcp(socket, inner, fd);
            resend_here(|socket| Some(socket.lock()));
        }
    }
}

/// Runs `call`, a connect(2) that dissolves the connection. If it does the socket stays on TCP: the
/// monitor's pending answer is about the old connection.
pub(crate) fn dissolve(socket: &'static Socket, fd: c_int, call: impl FnOnce() -> c_int) -> c_int {
    // Keeps it from being promoted meanwhile.
    let mut inner = socket.lock();
    if let Some(promoted) = inner.promoted.as_deref_mut() {
        // Before the reset, so that the peer's program gets the error.
        promoted.connection.reads_no_more(true);
    }
    let status = call();
    match inner.promoted.as_deref_mut() {
        None if status == 0 && socket.state() != State::Kernel => {
            stats::stays_on_tcp(socket, Reason::ClosedEarly);
            real::kept_errno(|| promoter::keep_on_tcp(socket, socket.number()));
        }
        None => {}
        // The kernel refused. A peer that has seen the flag sends through the kernel from here on.
        Some(promoted) if status != 0 => promoted.connection.reads_no_more(false),
        Some(_) => {
            socket.dissolved.fetch_add(1, Ordering::Relaxed);
            real::kept_errno(|| return_to_tcp(socket, inner, fd));
        }
    }
    status
}

/// From here on only the kernel has the connection: its options are the program's again, and its
/// set is updated.
fn return_to_tcp(socket: &'static Socket, mut inner: Guard<'_>, fd: c_int) {
    let Some(promoted) = inner.promoted.as_deref() else { return };
    promoter::withdraw(promoted.token, false);
    kernel::set(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &promoted.no_delay);
    // Includes the set that it was removed from, where nothing would do so later.
    sets::flush_interest(&mut inner.interest);
    let set = inner.interest.set;
    inner.becomes(State::Kernel);
    drop(inner);
    if set > 0 {
        sets::demoted(set - 1, socket.number());
    }
}

/// Resends for demoted peers: the peer may be in this process, and served by this thread only.
fn resend_here(lock: impl Fn(&'static Socket) -> Option<Guard<'static>>) {
    for (_, socket) in sockets::all().filter(|(_, socket)| socket.state() == State::Promoted) {
        if let Some(mut inner) = lock(socket)
            && let Some(promoted) = inner.promoted.as_deref_mut()
            && promoted.connection.peer_is_demoted()
        {
            let _ = promoted.resend_now(socket.fd.load(Ordering::Relaxed));
        }
    }
}

impl Promoted {
    /// What a demotion would come to now. Nothing can be resent behind FIN.
    fn demotion_now(&mut self, fd: c_int) -> DemotionStep {
        let ended = matches!(self.check_kernel(fd), Found::End | Found::Failed(_));
        if ended && self.connection.has_unread() {
            return DemotionStep::Lost;
        }
        // Protocol violations by the peer are reported by the demotion.
        self.connection.step_without_return().unwrap_or(DemotionStep::Wait)
    }

    /// Whether unread bytes depend on the peer for their order, and cannot go to a successor
    /// connection.
    fn is_lost(&mut self, fd: c_int) -> bool {
        self.demotion_now(fd) == DemotionStep::Lost && !self.connection.peer_has_closed()
    }

    /// Returns the connection to the kernel, with no byte of ours in it. `None`: unread bytes
    /// cannot be recovered in order.
    fn demote(&mut self, fd: c_int) -> Option<()> {
        if self.connection.peer_is_demoted() {
            self.resend(fd).ok()?;
        }
        self.connection.demote();
        // A peer in this process needs no wake-up, which would be in its way if it is demoted next.
        resend_here(Socket::try_lock);
        let idle = self.connection.kernel_is_idle();
        if self.connection.wakes_to_demote(idle).ok()? {
            self.wake_over_tcp(fd);
        }
        self.copy_unconsumed(fd);
        self.connection.end_sending().ok()?;
        if self.connection.peer_is_demoted() {
            // Both were demoted at the same time.
            self.resend(fd).ok()?;
        } else {
            self.connection.refuse();
        }
        let mut deadline = None;
        let wake_ups = loop {
            // Checked first: a peer that has ended publishes nothing more.
            let ended = kernel::has_ended(fd);
            match self.connection.demotion_step().ok()? {
                DemotionStep::WakeUps(wake_ups) => break wake_ups,
                DemotionStep::Return => return self.return_rest(fd),
                // A killed peer never finishes, and one that closed did not see this demotion.
                DemotionStep::Wait if ended => return None,
                DemotionStep::Wait => wait_for_peer(&mut deadline)?,
                DemotionStep::Lost => return None,
            }
        };
        self.await_wake_ups(fd, wake_ups)?;
        // Nothing can be resent behind FIN.
        let ended = matches!(self.check_kernel(fd), Found::End | Found::Failed(_));
        (!ended || !self.connection.has_unread()).then_some(())
    }

    /// Discards wake-up bytes that the kernel has, or is about to have.
    fn await_wake_ups(&mut self, fd: c_int, wake_ups: u64) -> Option<()> {
        let mut left = wake_ups as usize;
        let mut deadline = None;
        while left > 0 {
            // The peer sent them before it counted them.
            match kernel::discard(fd, left) {
                (0, None) if matches!(self.check_kernel(fd), Found::Nothing) => wait(&mut deadline)?,
                (0, failed) => {
                    if let Some(errno) = failed {
                        self.failed(errno);
                    }
                    break;
                }
                (dropped, _) => {
                    self.consumed_from_kernel(dropped);
                    left -= dropped;
                }
            }
        }
        Some(())
    }

    /// The unread bytes lie on both paths, in an order that the kernel alone cannot reproduce: the
    /// peer, which waits for them, resends them through the kernel.
    #[cold]
    fn return_rest(&mut self, fd: c_int) -> Option<()> {
        self.detach_all(fd)?;
        let Ok(DemotionStep::WakeUps(wake_ups)) = self.connection.step_without_return() else { return None };
        self.await_wake_ups(fd, wake_ups)?;
        let mut deadline = None;
        while !self.detached.is_empty() {
            match self.connection.return_bytes(self.detached.as_slices().0).ok()? {
                0 if matches!(self.check_kernel(fd), Found::End | Found::Failed(_)) => return None,
                0 => wait_for_peer(&mut deadline)?,
                count => {
                    self.detached.drain(..count);
                    deadline = None;
                }
            }
        }
        self.connection.returned_all();
        Some(())
    }

    /// Moves a piece of what is here to [`Promoted::detached`].
    pub(crate) fn detach(&mut self, fd: c_int) -> ControlFlow<Outcome> {
        let mut piece = Room::take();
        let room = iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() };
        let consumed = consume(self, fd, Pieces::one(&room), libc::MSG_DONTWAIT, false);
        if let ControlFlow::Break(Ok(count)) = consumed {
            self.detached.extend(&piece[..count]);
        }
        consumed
    }

    /// Moves all that the peer sends, which may wait for room, until the peer asks for it back.
    fn detach_all(&mut self, fd: c_int) -> Option<()> {
        let mut deadline = None;
        while self.detached.len() <= DETACHED_MAX {
            match self.detach(fd) {
                ControlFlow::Break(Ok(1..)) => {
                    deadline = None;
                    continue;
                }
                ControlFlow::Break(_) => return None,
                ControlFlow::Continue(()) => {}
            }
            if self.connection.is_return_wanted()? && self.connection.left_to_consume() == 0 {
                return Some(());
            }
            wait_for_peer(&mut deadline)?;
        }
        None
    }

    /// The peer was demoted: the bytes that it did not consume go to the kernel. EAGAIN: some wait
    /// for room there, and the next call on this socket retries.
    #[cold]
    pub(crate) fn resend(&mut self, fd: c_int) -> Result<(), i32> {
        self.resend_waiting(fd, false)
    }

    /// Before FIN, which follows all that this endpoint sent; `last`: no other process has the
    /// socket.
    pub(crate) fn before_fin(&mut self, fd: c_int, last: bool) {
        // Behind FIN the peer returns nothing.
        self.resend_all(fd);
        if last {
            self.connection.sends_no_more();
            self.resend_all(fd);
        }
    }

    /// Copies the ring bytes that the peer has not consumed into the kernel. If the peer hands the
    /// connection on, they are found there in case this endpoint cannot resend them, or not in
    /// order: FIN, another process's bytes or a spill are about to follow.
    #[cold]
    #[inline(never)] // its buffer would be on every caller's stack
    pub(crate) fn copy_unconsumed(&mut self, fd: c_int) {
        // Protocol violations by the peer are reported by the next read.
        let Ok(unconsumed @ 1..) = self.connection.announce_copies() else { return };
        let (mut left, mut room_made) = (unconsumed, false);
        let mut piece = Room::take();
        while left > 0 {
            let count = self.connection.peek_copies(left, &mut piece);
            match kernel::send_now(fd, &piece[..count]) {
                Ok(sent) => {
                    self.connection.copied(sent);
                    left -= sent;
                }
                Err(libc::EAGAIN) if !std::mem::replace(&mut room_made, true) => {
                    // As in `resend_now`.
                    kernel::set(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &(left as c_int));
                }
                Err(_) => break,
            }
        }
        self.connection.end_copies(left == 0);
    }

    /// [`Self::resend`] where no later call retries.
    fn resend_all(&mut self, fd: c_int) {
        if self.connection.peer_is_demoted() {
            let _ = self.resend_waiting(fd, true);
        }
    }

    /// This endpoint is about to be closed, and has announced it. Discards wake-up bytes, which are
    /// no unread data, and the one that the peer is just sending, for which the kernel would send
    /// RST after the close.
    pub(crate) fn discard_last_wake_ups(&mut self, fd: c_int) {
        for check in 0.. {
            self.discard_wake_ups(fd);
            // With unread bytes the close sends RST in any case.
            if !self.connection.is_given_more() || self.connection.has_unread() {
                return;
            }
            match self.check_kernel(fd) {
                Found::Nothing => {}
                Found::Bytes(unread) if matches!(self.connection.front(unread), Ok(Front::WakeUps(_))) => {}
                _ => return,
            }
            match check {
                0..WAKE_UP_YIELDS => std::thread::yield_now(),
                WAKE_UP_YIELDS..WAKE_UP_CHECKS => std::thread::sleep(PAUSE),
                _ => return,
            }
        }
    }

    /// As [`Self::resend`]; `all`: waits for room.
    fn resend_waiting(&mut self, fd: c_int, all: bool) -> Result<(), i32> {
        let mut deadline = None;
        while !self.has_returned(fd)? {
            let ended = matches!(self.check_kernel(fd), Found::End | Found::Failed(_));
            // It may have ended just behind the last bytes.
            if wait(&mut deadline).is_none() || (ended && !self.has_returned(fd)?) {
                return Err(self.corrupt(fd));
            }
        }
        let (mut deadline, mut before) = (None, usize::MAX);
        loop {
            match self.resend_now(fd) {
                // The kernel had room for the returned bytes before, and will again.
                Err(libc::EAGAIN) if all || !self.returned.is_empty() => {
                    if std::mem::replace(&mut before, self.returned.len()) != self.returned.len() {
                        deadline = None;
                    }
                    if wait(&mut deadline).is_none() {
                        // Other processes of this endpoint do not have these bytes.
                        let gone = all || self.connection.is_shared();
                        return Err(if gone { self.corrupt(fd) } else { libc::EAGAIN });
                    }
                }
                done => return done,
            }
        }
    }

    /// Whether the demoted peer has to return bytes.
    fn peer_owes(&mut self, fd: c_int) -> Result<bool, i32> {
        let idle = self.connection.kernel_is_idle();
        self.connection.wants_return(idle).map_err(|_| self.corrupt(fd))
    }

    /// Whether all bytes that the demoted peer has to return are here. It returns them at once.
    fn has_returned(&mut self, fd: c_int) -> Result<bool, i32> {
        if !self.peer_owes(fd)? {
            return Ok(true);
        }
        let mut bytes = Vec::new();
        let all = self.connection.accept_returned(&mut bytes);
        self.returned.extend(bytes);
        match all {
            // Two endpoints demoted at once would wait for each other.
            Ok(all) if (all || !self.connection.is_demoted()) && self.returned.len() <= DETACHED_MAX => {
                Ok(all)
            }
            _ => Err(self.corrupt(fd)),
        }
    }

    /// As [`Self::resend`], without waiting for bytes that the peer returns.
    fn resend_now(&mut self, fd: c_int) -> Result<(), i32> {
        // Other processes of this endpoint do not have some of these bytes.
        if (self.connection.is_shared() && self.peer_owes(fd)?) || !self.has_returned(fd)? {
            return Err(libc::EAGAIN);
        }
        let (mut piece, mut room_made) = (Room::take(), false);
        loop {
            let idle = self.connection.kernel_is_idle();
            let (owed, count) = match self.returned.len() {
                0 => {
                    let owed = self.connection.recall(idle).map_err(|_| self.corrupt(fd))?;
                    (owed, self.connection.peek_owed(&mut piece).map_err(|_| self.corrupt(fd))?)
                }
                owed => {
                    let first = self.returned.as_slices().0;
                    let count = first.len().min(piece.len());
                    piece[..count].copy_from_slice(&first[..count]);
                    (owed, count)
                }
            };
            if owed == 0 {
                return Ok(());
            }
            match kernel::send_now(fd, &piece[..count]) {
                Ok(sent) if !self.returned.is_empty() => drop(self.returned.drain(..sent)),
                Ok(sent) => self.connection.resent(sent).map_err(|_| self.corrupt(fd))?,
                Err(libc::EAGAIN) if self.returned.is_empty() && !std::mem::replace(&mut room_made, true) => {
                    // The program may not use this socket again soon. socket(7): the kernel doubles
                    // the value.
                    kernel::set(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &(owed as c_int));
                }
                Err(errno) => return Err(errno),
            }
        }
    }
}

/// As [`wait`], for an answer of the peer, which may be in this process.
fn wait_for_peer(deadline: &mut Option<Instant>) -> Option<()> {
    resend_here(Socket::try_lock);
    wait(deadline)
}

/// Sleeps a moment; `None`: the deadline has passed.
pub(crate) fn wait(deadline: &mut Option<Instant>) -> Option<()> {
    let now = clock::now();
    (now < *deadline.get_or_insert(now + PATIENCE)).then(|| std::thread::sleep(PAUSE))
}
