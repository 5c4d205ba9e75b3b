//! poll(2) and select(2): rings are polled before the thread sleeps in the kernel.
#![allow(unsafe_code)] // descriptors and events lie in the program's memory

use std::cell::Cell;
use std::ffi::c_int;
use std::ops::ControlFlow::{self, Break, Continue};
use std::ptr::{from_ref, null};
use std::sync::atomic::Ordering;
use std::time::Duration;

use libc::{pollfd, sigset_t, timespec};
use promote::Next;
use ring::WakeUp;

use crate::beside::Beside;
use crate::clock::{self, Instant};
use crate::doorbell::Doorbell;
use crate::epoll::Limit;
use crate::promoter;
use crate::real;
use crate::receive;
use crate::sets;
use crate::sockets::{Promoted, Socket, State};
use crate::spin::KERNEL_EVERY;
use crate::table::{self, Entry};
use crate::threads;
use crate::waiter::{Armed, Phase, Slept, Waiter, Waiting, soonest};

thread_local! {
    /// When this thread last asked the kernel in such a wait.
    static ASKED: Cell<Option<Instant>> = const { Cell::new(None) };
}

const IN: i16 = libc::POLLIN | libc::POLLRDNORM;

/// Whether any of these is a promoted socket that is polled for reading.
#[inline]
pub(crate) fn concerns(fds: &[pollfd]) -> bool {
    let mut concerns = false;
    for fd in fds {
        match table::entry(fd.fd) {
            Entry::Set(set) => sets::watched_from_outside(set, false),
            _ => concerns |= fd.events & IN != 0 && promoted(fd.fd).is_some(),
        }
    }
    concerns
}

/// The descriptors of a call.
pub(crate) trait Waited {
    /// Those polled for reading, and whether the kernel has just reported them readable.
    fn to_read(&self) -> impl Iterator<Item = (c_int, bool)>;

    /// Whether all are promoted sockets, polled only for reading.
    fn asks_rings_alone(&self) -> bool;

    /// Sets the result to "nothing is ready".
    fn clear(&mut self);

    /// The entries of a poll(2) that watches the same, to which doorbells can be added.
    fn entries(&self) -> impl Iterator<Item = pollfd>;

    /// Stores the result of that poll(2); returns how many are ready. `None`: the call itself has
    /// to be made.
    fn keep(&mut self, entries: &[pollfd]) -> Option<c_int>;

    /// Makes the call in the kernel, and stores its result.
    ///
    /// # Safety
    ///
    /// `time` is null or a timeout, `mask` null or a mask.
    unsafe fn ask(&mut self, time: *const timespec, mask: *const sigset_t) -> c_int;

    /// Corrects the kernel's result for those polled for reading: see [`judge`]. Returns how many
    /// are ready.
    fn correct(&mut self) -> c_int;
}

impl Waited for [pollfd] {
    #[inline]
    fn to_read(&self) -> impl Iterator<Item = (c_int, bool)> {
        self.iter().filter(|fd| fd.events & IN != 0).map(|fd| (fd.fd, fd.revents & IN != 0))
    }

    fn asks_rings_alone(&self) -> bool {
        self.iter().all(|fd| fd.fd < 0 || (fd.events & !IN == 0 && promoted(fd.fd).is_some()))
    }

    fn clear(&mut self) {
        self.iter_mut().for_each(|fd| fd.revents = 0);
    }

    fn entries(&self) -> impl Iterator<Item = pollfd> {
        self.iter().copied()
    }

    fn keep(&mut self, entries: &[pollfd]) -> Option<c_int> {
        self.iter_mut().zip(entries).for_each(|(fd, entry)| fd.revents = entry.revents);
        Some(entries.iter().filter(|entry| entry.revents != 0).count() as c_int)
    }

    unsafe fn ask(&mut self, time: *const timespec, mask: *const sigset_t) -> c_int {
        // SAFETY: descriptors of that number, and the caller's promise.
        unsafe { real::ppoll(self.as_mut_ptr(), self.len() as libc::nfds_t, time, mask) }
    }

    fn correct(&mut self) -> c_int {
        let mut ready = 0;
        for fd in self {
            if fd.events & IN != 0
                && let Some((readable, failed)) = judge(fd.fd, fd.revents & IN != 0)
            {
                let (has, error) =
                    (if readable { fd.events & IN } else { 0 }, if failed { libc::POLLERR } else { 0 });
                fd.revents = (fd.revents & !IN) | has | error;
            }
            ready += c_int::from(fd.revents != 0);
        }
        ready
    }
}

#[inline]
pub(crate) fn promoted(fd: c_int) -> Option<&'static Socket> {
    table::socket(fd).filter(|socket| socket.state() == State::Promoted)
}

/// ppoll(2) for descriptors that include promoted sockets.
///
/// # Safety
///
/// `mask` is null or a mask.
pub(crate) unsafe fn wait<W: Waited + ?Sized>(fds: &mut W, limit: Limit, mask: *const sigset_t) -> c_int {
    let began = clock::now();
    let before = real::errno();
    let deadline = limit.deadline(began);
    let at_once = limit.is_at_once();
    let mut poll = Poll {
        fds,
        mask,
        at_once,
        began: Some(began),
        asked_kernel: ASKED.get(),
        beside: None,
        takes_beside: true,
    };
    let done = Waiter::new(deadline).wait(&mut poll);
    let errno = real::errno();
    woke(fds);
    // The program may wait outside the library next.
    for (fd, said) in fds.to_read() {
        let Some(socket) = promoted(fd).filter(|socket| said || !socket.hears.load(Ordering::Relaxed)) else {
            continue;
        };
        let mut inner = socket.lock();
        let in_a_set = inner.interest.sets > 0;
        let Some(promoted) = inner.promoted.as_deref_mut() else { continue };
        if !at_once {
            promoted.is_awaited_here();
        }
        let rests = promoted.listed_in != 0 || promoted.armed || (!in_a_set && promoted.stays_awake());
        if !rests && promoted.arm().unwrap_or(true) {
            drop(inner);
            // Nor does it wake its set, in which another thread may sleep.
            receive::settle(socket);
        }
    }
    promoter::answers();
    real::set_errno(if done < 0 { errno } else { before });
    done
}

/// A call of [`wait`]; its mask is null or a mask.
struct Poll<'a, W: ?Sized> {
    fds: &'a mut W,
    mask: *const sigset_t,
    at_once: bool,
    /// Until the first poll.
    began: Option<Instant>,
    asked_kernel: Option<Instant>,
    /// During a sleep.
    beside: Option<Beside>,
    /// The kernel accepts the doorbells in addition to the program's entries.
    takes_beside: bool,
}

impl<W: Waited + ?Sized> Waiting for Poll<'_, W> {
    type Outcome = c_int;

    fn collect(&mut self, waiter: &mut Waiter) -> ControlFlow<c_int, Phase> {
        let now = self.began.take().unwrap_or_else(clock::now);
        let ready = any_ready(self.fds);
        let is_due = self.asked_kernel.is_none_or(|asked| now >= asked + KERNEL_EVERY);
        let looks = !ready && !self.at_once && any_in_use(self.fds) && waiter.may_look();
        if ready && self.mask.is_null() && !is_due && self.fds.asks_rings_alone() {
            // The kernel's own events are asked for within `KERNEL_EVERY`.
            self.fds.clear();
            let found = self.fds.correct();
            // Otherwise another thread has read the bytes.
            if found > 0 || self.at_once {
                return Break(found);
            }
        }
        // A call that sleeps at once need not ask before.
        if ready || self.at_once || (looks && is_due) {
            self.asked_kernel = Some(now);
            ASKED.set(self.asked_kernel);
            // SAFETY: a mask or null.
            let found = unsafe { ask(self.fds, Limit::After(Duration::ZERO), self.mask) };
            if found < 0 {
                return Break(found);
            }
            let found = self.fds.correct();
            if found > 0 || self.at_once {
                return Break(found);
            }
        }
        Continue(if looks { Phase::Look } else { Phase::Sleep })
    }

    fn begins_to_look(&mut self) {
        for fd in self.fds.to_read() {
            with(fd, |promoted, _| promoted.heat_alone());
        }
    }

    fn looks(&mut self) -> bool {
        any_ready(self.fds)
    }

    fn arms(&mut self) -> ControlFlow<c_int, Armed> {
        // The sleep watches the doorbells of a few sockets, and the kernel connections of all.
        let few = self.fds.to_read().filter(|(fd, _)| promoted(*fd).is_some()).take(Beside::MOST + 1).count()
            <= Beside::MOST;
        self.beside = if few && self.takes_beside { Beside::of(self.fds.entries()) } else { None };
        let armed = arm_all(self.fds, &mut self.beside);
        if armed == Armed::News {
            are_awake(self.fds, &mut self.beside);
        }
        Continue(armed)
    }

    fn sleeps(&mut self, until: Option<Instant>) -> Slept<c_int> {
        // SAFETY: a mask or null.
        let found = unsafe { ask_beside(self.fds, &mut self.beside, Limit::until(until), self.mask) };
        let at = clock::now();
        let errno = real::errno();
        let called = are_awake(self.fds, &mut self.beside);
        woke(self.fds);
        real::set_errno(errno);
        let found = found.unwrap_or_else(|| {
            self.takes_beside = false;
            // SAFETY: a mask or null.
            unsafe { ask(self.fds, Limit::After(Duration::ZERO), self.mask) }
        });
        let outcome = match found {
            ..0 => Break(found),
            _ => match self.fds.correct() {
                0 => Continue(()),
                found => Break(found),
            },
        };
        Slept { at, called, outcome }
    }

    fn has_nothing(&mut self) -> c_int {
        0
    }

    fn is_find(found: &c_int) -> bool {
        *found > 0
    }

    fn is_interrupted(&mut self) -> c_int {
        are_awake(self.fds, &mut self.beside);
        real::set_errno(libc::EINTR);
        -1
    }
}

/// Runs for a socket whose ring has to be polled. `said`: the kernel reports it readable.
fn with<T>((fd, said): (c_int, bool), run: impl FnOnce(&mut Promoted, c_int) -> T) -> Option<T> {
    let socket = promoted(fd)?;
    if socket.hears.load(Ordering::Relaxed) && !said {
        return None;
    }
    Some(run(socket.lock().promoted.as_deref_mut()?, fd))
}

/// Whether a ring among them is in use, so that a spin may pay.
fn any_in_use<W: Waited + ?Sized>(fds: &W) -> bool {
    fds.to_read().any(|(fd, _)| promoted(fd).is_some_and(|socket| !socket.hears.load(Ordering::Relaxed)))
}

fn has_bytes(promoted: &mut Promoted) -> bool {
    !matches!(promoted.connection.next(0), Ok(Next::Nothing | Next::Kernel))
}

fn any_ready<W: Waited + ?Sized>(fds: &W) -> bool {
    fds.to_read().any(|fd| with(fd, |promoted, _| has_bytes(promoted)).unwrap_or(false))
}

fn arm_all<W: Waited + ?Sized>(fds: &W, beside: &mut Option<Beside>) -> Armed {
    let (mut news, mut unseen) = (false, None);
    for (fd, _) in fds.to_read() {
        let Some(socket) = promoted(fd) else { continue };
        if threads::is_alone() && socket.hears.load(Ordering::Relaxed) {
            continue;
        }
        let mut inner = socket.lock();
        let in_a_set = inner.interest.sets > 0;
        if let Some(promoted) = inner.promoted.as_deref_mut() {
            promoted.is_used();
            // A socket that its epoll set polls gets no wake-up of its own.
            if !promoted.will_hear() {
                let watched = (promoted.doorbell_to_sleep_by().filter(|_| !in_a_set))
                    .is_some_and(|bell| beside.as_mut().is_some_and(|beside| beside.push(bell)));
                news |= promoted.arm_to_sleep_by(if watched { WakeUp::Doorbell } else { WakeUp::Tcp });
            }
            promoted.is_slept_on();
            unseen = soonest(unseen, promoted.wakes_unseen(fd));
        }
    }
    if news { Armed::News } else { Armed::Asleep { unseen } }
}

/// After a sleep, or one that was called off: the doorbells are not watched any more. Returns when
/// the peer sent the wake-up that ended it; 0: not known.
fn are_awake<W: Waited + ?Sized>(fds: &W, beside: &mut Option<Beside>) -> u64 {
    let mut called = 0;
    for (fd, said) in fds.to_read() {
        let Some(socket) = promoted(fd).filter(|socket| said || !socket.hears.load(Ordering::Relaxed)) else {
            continue;
        };
        let mut inner = socket.lock();
        let Some(promoted) = inner.promoted.as_deref_mut() else { continue };
        let own = promoted.doorbell.as_ref().and_then(Doorbell::own);
        let rung = own.zip(beside.as_mut()).and_then(|(own, beside)| beside.is_rung(own)) == Some(true);
        promoted.is_awake(rung);
        if said || rung {
            called = called.max(promoted.connection.peer_woke_at());
        }
    }
    called
}

/// After a sleep: other threads need not consider this one any more.
fn woke<W: Waited + ?Sized>(fds: &W) {
    if threads::is_alone() {
        return;
    }
    for socket in fds.to_read().filter_map(|(fd, _)| promoted(fd)) {
        if let Some(promoted) = socket.lock().promoted.as_deref_mut() {
            promoted.is_used();
        }
    }
}

/// Whether a descriptor is readable, given the kernel's report, with the ring's bytes added and
/// wake-up bytes ignored; and whether it has failed: the kernel reported the error to the library,
/// and will not repeat it. `None`: the kernel's report stands.
pub(crate) fn judge(fd: c_int, said: bool) -> Option<(bool, bool)> {
    with((fd, said), |promoted, fd| {
        let readable = has_bytes(promoted) || (said && has_news(promoted, fd));
        (readable, promoted.connection.has_error())
    })
}

/// Whether a socket that the kernel reports readable has anything to read.
fn has_news(promoted: &mut Promoted, fd: c_int) -> bool {
    let kernel_knows = promoted.connection.reads_data_from_kernel() && !promoted.connection.peer_left();
    // FIN may lie behind wake-up bytes, and a call that does not wait asks once.
    kernel_knows || promoted.kernel_has_news(fd) || has_bytes(promoted) || promoted.kernel_has_news(fd)
}

/// # Safety
///
/// `mask` is null or a mask.
unsafe fn ask<W: Waited + ?Sized>(fds: &mut W, limit: Limit, mask: *const sigset_t) -> c_int {
    let time = limit.time();
    // SAFETY: a time or null, and the caller's mask.
    unsafe { fds.ask(time.as_ref().map_or(null(), from_ref), mask) }
}

/// As [`ask`], with the doorbells. `None`: the kernel refuses so many, and the call has to be made
/// without them.
///
/// # Safety
///
/// `mask` is null or a mask.
unsafe fn ask_beside<W: Waited + ?Sized>(
    fds: &mut W,
    beside: &mut Option<Beside>,
    limit: Limit,
    mask: *const sigset_t,
) -> Option<c_int> {
    let Some(beside) = beside else {
        // SAFETY: the caller's promise.
        return Some(unsafe { ask(fds, limit, mask) });
    };
    let time = limit.time();
    // SAFETY: a time or null, and the caller's mask.
    match unsafe { beside.ask(time.as_ref().map_or(null(), from_ref), mask) } {
        Ok(entries) => fds.keep(entries),
        // With the doorbells they exceed RLIMIT_NOFILE.
        Err(libc::EINVAL) => None,
        Err(errno) => {
            real::set_errno(errno);
            Some(-1)
        }
    }
}
