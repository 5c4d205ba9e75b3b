//! Connections that go to a program, or a part of this one, that knows of no rings: by exec, in
//! a message, into stdio. They are brought back to TCP before, for good, and nothing is lost:
//! what lies unread in the ring the other end sends again through the kernel, or it goes to an heir.

use std::ffi::c_int;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use libc::iovec;
use promote::Reason;
use ring::{Front, Leaving};

use crate::buffer::Room;
use crate::clock::{self, Instant};
use crate::kernel::{self, Found};
use crate::memory::Pieces;
use crate::promoter;
use crate::real;
use crate::sets;
use crate::sockets::{self, Guard, Promoted, Socket, State};
use crate::stats;
use crate::table::{self, Entry};
use crate::take::{Outcome, take};
use crate::vfork;

/// A call that the other end is just making takes a moment, unless it was stopped in the middle
/// of it. Then it is waited for so long.
const PATIENCE: Duration = Duration::from_secs(30);
/// Looks for a bell that is on its way at a close, which nobody expects to wait: it takes microseconds, unless the other
/// end lost its core in the middle of it. The pauses take some 100 ms in all, since timers are late by 50 us (prctl(2)).
const BELL_LOOKS: u32 = 1500;
/// Those of them without a pause between.
const BELL_YIELDS: u32 = 50;
/// Between two looks at what it came to.
const PAUSE: Duration = Duration::from_micros(20);
/// Bytes that lie in no lane at most: more than the buffers of both ends hold (tcp_rmem and tcp_wmem of tcp(7)).
const APART_MOST: usize = 64 << 20;

/// Somebody else is about to use the socket of this descriptor.
pub(crate) fn leave(fd: c_int) {
    leave_for(fd, Reason::Shared);
}

/// The socket of this descriptor is the kernel's from here on.
pub(crate) fn leave_for(fd: c_int, why: Reason) {
    if let Entry::Socket(number) = table::entry(fd) {
        real::kept_errno(|| bring_back(number, sockets::at(number), fd, why));
    }
}

/// An option was set on the socket of this descriptor that the kernel has to act on: it goes back to TCP at once, or, if
/// bytes lie unread in the ring, which are the kernel's only if the other end's program makes a call, once they were read.
pub(crate) fn leave_for_option(fd: c_int) {
    let Entry::Socket(number) = table::entry(fd) else { return };
    let mut inner = sockets::at(number).lock();
    if let Some(promoted) = inner.promoted.as_deref_mut()
        && promoted.connection.has_unread()
    {
        promoted.connection.kernel_sends();
        promoted.leaves_once_read = true;
        return;
    }
    drop(inner);
    leave_for(fd, Reason::Option);
}

/// The kernel alone is to tell of the socket of this descriptor, which stays this process's. Where
/// its bytes cannot be had through the kernel they stay where they are: what is in the way, FIN
/// or bytes behind them, makes the socket readable for everybody.
pub(crate) fn leave_if_possible(fd: c_int) {
    let Entry::Socket(number) = table::entry(fd) else { return };
    let possible = {
        let mut inner = sockets::at(number).lock();
        let Some(promoted) = inner.promoted.as_deref_mut() else { return };
        let possible = matches!(promoted.outlook(fd), Leaving::Bells(_));
        if !possible {
            promoted.shown_in_kernel = true;
            let _ = promoted.arm();
        }
        possible
    };
    if possible {
        leave(fd);
    }
}

/// Another program is about to be started, with all descriptors that are not closed on exec(2); `forked`: as [`stays_here`]
/// has it. Returns those that it does not get, and which sockets they are: [`inherit_again`] follows.
pub(crate) fn keep_here(forked: bool) -> Vec<(c_int, u64)> {
    let (kept, gone): (Vec<c_int>, Vec<c_int>) = inherited().partition(|fd| stays_here(*fd, forked));
    kept.iter().for_each(|fd| kernel::set_close_at_exec(*fd, true));
    gone.into_iter().for_each(leave);
    kept.into_iter().map(|fd| (fd, kernel::cookie(fd))).collect()
}

/// Programs get these again.
pub(crate) fn inherit_again(kept: Vec<(c_int, u64)>) {
    // The numbers may be others' by now.
    let same = |(fd, cookie): &(c_int, u64)| kernel::cookie(*fd) == *cookie;
    real::kept_errno(|| {
        kept.into_iter().filter(same).for_each(|(fd, _)| kernel::set_close_at_exec(fd, false))
    });
}

/// Has `call` start another program beside this one, with all descriptors that are not closed on exec(2).
pub(crate) fn spawning<T>(call: impl FnOnce() -> T) -> T {
    if vfork::borrows_sockets() {
        return call();
    }
    SPAWNS.fetch_add(1, Ordering::Relaxed);
    let kept = real::kept_errno(|| keep_here(false));
    let result = call();
    // A program that another thread is just starting would get them.
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

/// Whether a descriptor is not to go to another program that inherits it, since that would have to wait until the other end's
/// program looks: it has bytes in both lanes that nobody read, as streams have. Most programs that inherit one know nothing of
/// it; those that are meant to have it get it as standard input or output. `forked`: only if another process goes on with it.
pub(crate) fn stays_here(fd: c_int, forked: bool) -> bool {
    let Entry::Socket(number) = table::entry(fd) else { return false };
    if fd <= libc::STDERR_FILENO {
        return false;
    }
    let mut inner = sockets::at(number).lock();
    let Some(promoted) = inner.promoted.as_deref_mut() else { return false };
    (!forked || (promoted.inherited && promoted.connection.is_held_elsewhere())) && promoted.is_lost(fd)
}

/// This process can have no promoted connection any more, nor get one.
pub(crate) fn leave_all(why: Reason) {
    for (number, socket) in sockets::all() {
        bring_back(number, socket, socket.fd.load(Ordering::Relaxed), why);
    }
}

fn bring_back(number: u32, socket: &'static Socket, fd: c_int, why: Reason) {
    match socket.state() {
        State::Free | State::Kernel => {}
        State::Plain | State::Offered => {
            stats::stays(socket, why);
            promoter::keep_on_tcp(socket, number);
            // Another thread may just have promoted it.
            if socket.state() == State::Promoted {
                bring_back(number, socket, fd, why);
            }
        }
        State::Promoted => {
            let mut inner = socket.lock();
            let Some(promoted) = inner.promoted.as_deref_mut() else { return };
            let mut is_replaced = false;
            if promoted.leave(fd).is_none() {
                is_replaced = promoted.bequeath(fd, number).is_some();
                if !is_replaced {
                    // Wrong bytes would be worse than none.
                    promoted.corrupt(fd);
                }
            }
            if !promoted.connection.kernel_is_idle() && !promoted.connection.is_shared() {
                // Another thread is in the middle of a call, and will not tell what comes of it: stream bytes only.
                promoted.connection.kernel_refused();
            }
            if is_replaced {
                // Its set has lost the file that lay under the number.
                (inner.interest.registered, inner.interest.untold) = (None, true);
            }
            back_to_tcp(socket, inner, fd);
            call_back_here(|socket| Some(socket.lock()));
        }
    }
}

/// Does `call`, a connect(2) that dissolves the connection. If it does the socket stays on TCP: what the monitor may
/// still answer is of the connection before.
pub(crate) fn dissolve(socket: &'static Socket, fd: c_int, call: impl FnOnce() -> c_int) -> c_int {
    // Nobody promotes it meanwhile.
    let mut inner = socket.lock();
    if let Some(promoted) = inner.promoted.as_deref_mut() {
        // Before the reset, so that the other end's program gets the error.
        promoted.connection.reads_no_more(true);
    }
    let status = call();
    match inner.promoted.as_deref_mut() {
        None if status == 0 && socket.state() != State::Kernel => {
            stats::stays(socket, Reason::ClosedEarly);
            real::kept_errno(|| promoter::keep_on_tcp(socket, socket.number()));
        }
        None => {}
        // The kernel refused. If the other end has seen it, that sends through the kernel from here on.
        Some(promoted) if status != 0 => promoted.connection.reads_no_more(false),
        Some(_) => {
            socket.dissolved.fetch_add(1, Ordering::Relaxed);
            real::kept_errno(|| back_to_tcp(socket, inner, fd));
        }
    }
    status
}

/// The kernel alone has the connection from here on: its options are the program's, and its set's waits know.
fn back_to_tcp(socket: &'static Socket, mut inner: Guard<'_>, fd: c_int) {
    let Some(promoted) = inner.promoted.as_deref() else { return };
    promoter::withdraw(promoted.token, false);
    kernel::set(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &promoted.no_delay);
    // Also of a set that it was taken out of, which nobody would tell later.
    sets::tell(&mut inner.interest);
    let set = inner.interest.set;
    inner.becomes(State::Kernel);
    drop(inner);
    if set > 0 {
        sets::demoted(set - 1, socket.number());
    }
}

/// The other end may be this process's own, and its thread this one.
fn call_back_here(lock: impl Fn(&'static Socket) -> Option<Guard<'static>>) {
    for (_, socket) in sockets::all().filter(|(_, socket)| socket.state() == State::Promoted) {
        if let Some(mut inner) = lock(socket)
            && let Some(promoted) = inner.promoted.as_deref_mut()
            && promoted.connection.peer_left()
        {
            let _ = promoted.send_again_now(socket.fd.load(Ordering::Relaxed));
        }
    }
}

impl Promoted {
    /// What leaving would come to now. Behind FIN nothing can be sent again.
    fn outlook(&mut self, fd: c_int) -> Leaving {
        let ended = matches!(self.look(fd), Found::End | Found::Failed(_));
        if ended && self.connection.has_unread() {
            return Leaving::Lost;
        }
        // Of nonsense that the other end wrote, whoever leaves is told.
        self.connection.outlook().unwrap_or(Leaving::Wait)
    }

    /// Whether bytes that nobody read can be had in their order through the other end only, if at all, nor be left to an heir.
    fn is_lost(&mut self, fd: c_int) -> bool {
        self.outlook(fd) == Leaving::Lost && !self.connection.peer_has_closed()
    }

    /// Gives the connection back to the kernel, with nothing of ours in it. `None`: bytes that
    /// lie unread cannot be had again in their order.
    fn leave(&mut self, fd: c_int) -> Option<()> {
        if self.connection.peer_left() {
            self.send_again(fd).ok()?;
        }
        self.connection.leave();
        // This process's own needs no wake-up, which would lie in its way if it leaves next.
        call_back_here(Socket::try_lock);
        let idle = self.connection.kernel_is_idle();
        if self.connection.wakes_to_leave(idle).ok()? {
            self.ring_now(fd);
        }
        self.copy_untaken(fd);
        self.connection.end_sending().ok()?;
        if self.connection.peer_left() {
            // It left at the same time.
            self.send_again(fd).ok()?;
        } else {
            self.connection.refuse();
        }
        let mut deadline = None;
        let bells = loop {
            // Before: what the other end says behind its end is all that it will.
            let ended = kernel::has_ended(fd);
            match self.connection.leaving().ok()? {
                Leaving::Bells(bells) => break bells,
                Leaving::GiveBack => return self.give_back(fd),
                // One that was killed meanwhile comes to no end of it, and one that closed did not see this end leave.
                Leaving::Wait if ended => return None,
                Leaving::Wait => wait_for_other_end(&mut deadline)?,
                Leaving::Lost => return None,
            }
        };
        self.discard_bells(fd, bells)?;
        // Behind FIN nothing can be sent again.
        let ended = matches!(self.look(fd), Found::End | Found::Failed(_));
        (!ended || !self.connection.has_unread()).then_some(())
    }

    /// Takes out bells that the kernel has, or is about to have.
    fn discard_bells(&mut self, fd: c_int, bells: u64) -> Option<()> {
        let mut left = bells as usize;
        let mut deadline = None;
        while left > 0 {
            // They were given to the kernel before they were counted.
            match kernel::discard(fd, left) {
                (0, None) if matches!(self.look(fd), Found::Nothing) => wait(&mut deadline)?,
                (0, failed) => {
                    if let Some(errno) = failed {
                        self.failed(errno);
                    }
                    break;
                }
                (dropped, _) => {
                    self.took_from_kernel(dropped);
                    left -= dropped;
                }
            }
        }
        Some(())
    }

    /// What is left lies in both lanes, in an order that the kernel alone cannot have any more: the other end, which waits
    /// for it, sends it through the kernel.
    #[cold]
    fn give_back(&mut self, fd: c_int) -> Option<()> {
        self.take_apart(fd)?;
        let Ok(Leaving::Bells(bells)) = self.connection.outlook() else { return None };
        self.discard_bells(fd, bells)?;
        let mut deadline = None;
        while !self.apart.is_empty() {
            match self.connection.give_back(self.apart.as_slices().0).ok()? {
                0 if matches!(self.look(fd), Found::End | Found::Failed(_)) => return None,
                0 => wait_for_other_end(&mut deadline)?,
                count => {
                    self.apart.drain(..count);
                    deadline = None;
                }
            }
        }
        self.connection.gave_all_back();
        Some(())
    }

    /// Takes a piece of what is here to [`Promoted::apart`], as [`take`] does.
    pub(crate) fn set_apart(&mut self, fd: c_int) -> ControlFlow<Outcome> {
        let mut piece = Room::take();
        let room = iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() };
        let taken = take(self, fd, Pieces::one(&room), libc::MSG_DONTWAIT, false);
        if let ControlFlow::Break(Ok(count)) = taken {
            self.apart.extend(&piece[..count]);
        }
        taken
    }

    /// Takes all that the other end sends, which may wait for room for it, until that wants it back.
    fn take_apart(&mut self, fd: c_int) -> Option<()> {
        let mut deadline = None;
        while self.apart.len() <= APART_MOST {
            match self.set_apart(fd) {
                ControlFlow::Break(Ok(1..)) => {
                    deadline = None;
                    continue;
                }
                ControlFlow::Break(_) => return None,
                ControlFlow::Continue(()) => {}
            }
            if self.connection.is_wanted_back()? && self.connection.left_to_take() == 0 {
                return Some(());
            }
            wait_for_other_end(&mut deadline)?;
        }
        None
    }

    /// The other end has left: what it did not take goes to the kernel. EAGAIN: a part of it
    /// waits for room there, and the next call on this socket tries again.
    #[cold]
    pub(crate) fn send_again(&mut self, fd: c_int) -> Result<(), i32> {
        self.send_again_waiting(fd, false)
    }

    /// FIN is about to be sent, behind all that this end sent; `last`: by nobody but this process.
    pub(crate) fn before_end(&mut self, fd: c_int, last: bool) {
        // Behind FIN the other end gives nothing back.
        self.send_all_again(fd);
        if last {
            self.connection.sends_no_more();
            self.send_all_again(fd);
        }
    }

    /// What the other end did not take from the ring goes to the kernel, too, where those find it to whom that may hand the
    /// connection when this end cannot send it again, or in its order: FIN, or others' bytes, or many more, are about to follow.
    #[cold]
    #[inline(never)] // its piece would be on every caller's stack
    pub(crate) fn copy_untaken(&mut self, fd: c_int) {
        // Of nonsense that the other end wrote, whoever reads is told.
        let Ok(untaken @ 1..) = self.connection.announce_copies() else { return };
        let (mut left, mut room_made) = (untaken, false);
        let mut piece = Room::take();
        while left > 0 {
            let count = self.connection.peek_copies(left, &mut piece);
            match kernel::send_now(fd, &piece[..count]) {
                Ok(sent) => {
                    self.connection.copied(sent);
                    left -= sent;
                }
                Err(libc::EAGAIN) if !std::mem::replace(&mut room_made, true) => {
                    // As for what is sent again.
                    kernel::set(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &(left as c_int));
                }
                Err(_) => break,
            }
        }
        self.connection.end_copies(left == 0);
    }

    /// [`Self::send_again`] where nobody asks again.
    fn send_all_again(&mut self, fd: c_int) {
        if self.connection.peer_left() {
            let _ = self.send_again_waiting(fd, true);
        }
    }

    /// This end is about to be closed, and has said so: takes bells out, which are no unread data, and the one that the
    /// other end is just giving to the kernel, which would meet a reset behind the close.
    pub(crate) fn drop_last_bells(&mut self, fd: c_int) {
        for look in 0.. {
            self.drop_bells(fd);
            // Over unread bytes this is a reset, whatever comes.
            if !self.connection.is_given_more() || self.connection.has_unread() {
                return;
            }
            match self.look(fd) {
                Found::Nothing => {}
                Found::Bytes(unread) if matches!(self.connection.front(unread), Ok(Front::Bells(_))) => {}
                _ => return,
            }
            match look {
                0..BELL_YIELDS => std::thread::yield_now(),
                BELL_YIELDS..BELL_LOOKS => std::thread::sleep(PAUSE),
                _ => return,
            }
        }
    }

    /// As [`Self::send_again`]; `all`: it waits for room.
    fn send_again_waiting(&mut self, fd: c_int, all: bool) -> Result<(), i32> {
        let mut deadline = None;
        while !self.has_back(fd)? {
            let ended = matches!(self.look(fd), Found::End | Found::Failed(_));
            // It may have ended just behind the last of it.
            if wait(&mut deadline).is_none() || (ended && !self.has_back(fd)?) {
                return Err(self.corrupt(fd));
            }
        }
        let (mut deadline, mut before) = (None, usize::MAX);
        loop {
            match self.send_again_now(fd) {
                // There was room for what came back before, if not at once.
                Err(libc::EAGAIN) if all || !self.returned.is_empty() => {
                    if std::mem::replace(&mut before, self.returned.len()) != self.returned.len() {
                        deadline = None;
                    }
                    if wait(&mut deadline).is_none() {
                        // Other processes of this end do not know of it.
                        let gone = all || self.connection.is_shared();
                        return Err(if gone { self.corrupt(fd) } else { libc::EAGAIN });
                    }
                }
                done => return done,
            }
        }
    }

    /// Whether the other end, which has left, is to give something back.
    fn is_owed_by_other_end(&mut self, fd: c_int) -> Result<bool, i32> {
        let idle = self.connection.kernel_is_idle();
        self.connection.wants_back(idle).map_err(|_| self.corrupt(fd))
    }

    /// Whether nothing is missing of what the other end, which has left, has to give back. It does so at once.
    fn has_back(&mut self, fd: c_int) -> Result<bool, i32> {
        if !self.is_owed_by_other_end(fd)? {
            return Ok(true);
        }
        let mut bytes = Vec::new();
        let all = self.connection.get_back(&mut bytes);
        self.returned.extend(bytes);
        match all {
            // Two that leave each other would wait for each other.
            Ok(all) if (all || !self.connection.has_left()) && self.returned.len() <= APART_MOST => Ok(all),
            _ => Err(self.corrupt(fd)),
        }
    }

    /// As [`Self::send_again`], without waiting for what the other end gives back.
    fn send_again_now(&mut self, fd: c_int) -> Result<(), i32> {
        // Other processes of this end do not know of a part of it.
        if (self.connection.is_shared() && self.is_owed_by_other_end(fd)?) || !self.has_back(fd)? {
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
                Ok(sent) => self.connection.sent_again(sent).map_err(|_| self.corrupt(fd))?,
                Err(libc::EAGAIN) if self.returned.is_empty() && !std::mem::replace(&mut room_made, true) => {
                    // Nobody may come back to this socket soon. socket(7): the kernel doubles it.
                    kernel::set(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &(owed as c_int));
                }
                Err(errno) => return Err(errno),
            }
        }
    }
}

/// The same for who waits for an answer of the other end, which may be this process's own.
fn wait_for_other_end(deadline: &mut Option<Instant>) -> Option<()> {
    call_back_here(Socket::try_lock);
    wait(deadline)
}

/// Waits a moment; `None`: for too long already.
pub(crate) fn wait(deadline: &mut Option<Instant>) -> Option<()> {
    let now = clock::now();
    (now < *deadline.get_or_insert(now + PATIENCE)).then(|| std::thread::sleep(PAUSE))
}
