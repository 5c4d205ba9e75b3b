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

use crate::clock::{self, Instant};
use crate::doorbell::Doorbell;
use crate::epoll::Limit;
use crate::poll_entries::PollEntries;
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
    /// Calls of this thread that did not wait and found nothing, since its last other one.
    static EMPTY_POLLS: Cell<u8> = const { Cell::new(0) };
}

/// So many in a row are a busy loop: a program that waits by system calls of its own has no reason to
/// ask twice.
const BUSY_LOOP: u8 = 2;

const IN: i16 = libc::POLLIN | libc::POLLRDNORM;

/// Whether any of these is a promoted socket that is polled for reading.
#[inline]
pub(crate) fn concerns(fds: &[pollfd]) -> bool {
    let mut concerns = false;
    for fd in fds {
        match table::entry(fd.fd) {
            Entry::Set(set) => sets::polled_from_outside(set, false),
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
    fn polls_rings_only(&self) -> bool;

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

    fn polls_rings_only(&self) -> bool {
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
        polled: None,
        accepts_doorbells: true,
    };
    let done = Waiter::new(deadline).wait(&mut poll);
    let errno = real::errno();
    woke(fds);
    let is_empty = at_once && done == 0;
    let empty_polls = EMPTY_POLLS.replace(if is_empty { EMPTY_POLLS.get().saturating_add(1) } else { 0 });
    let in_busy_loop = at_once && empty_polls >= BUSY_LOOP;
    // The program may wait outside the library next.
    for (fd, reported) in fds.to_read() {
        let Some(socket) =
            promoted(fd).filter(|socket| reported || !socket.kernel_reports_arrivals.load(Ordering::Relaxed))
        else {
            continue;
        };
        let mut inner = socket.lock();
        let in_a_set = inner.interest.sets > 0;
        let Some(promoted) = inner.promoted.as_deref_mut() else { continue };
        if !at_once {
            promoted.note_wait();
        } else if in_busy_loop && reported {
            promoted.note_busy_poll();
        }
        let is_covered =
            promoted.listed_in != 0 || promoted.watch.is_armed() || (!in_a_set && promoted.stays_unarmed());
        if !is_covered && promoted.arm().unwrap_or(true) {
            drop(inner);
            // Nor does it wake its set, in which another thread may sleep.
            receive::list_in_set(socket);
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
    polled: Option<PollEntries>,
    /// The kernel accepts the doorbells in addition to the program's entries.
    accepts_doorbells: bool,
}

impl<W: Waited + ?Sized> Waiting for Poll<'_, W> {
    type Outcome = c_int;

    fn collect(&mut self, waiter: &mut Waiter) -> ControlFlow<c_int, Phase> {
        let now = self.began.take().unwrap_or_else(clock::now);
        let ready = any_ready(self.fds);
        let is_due = self.asked_kernel.is_none_or(|asked| now >= asked + KERNEL_EVERY);
        let may_spin = !ready && !self.at_once && any_in_use(self.fds) && waiter.may_spin();
        if ready && self.mask.is_null() && !is_due && self.fds.polls_rings_only() {
            // The kernel's own events are asked for within `KERNEL_EVERY`.
            self.fds.clear();
            let found = self.fds.correct();
            // Otherwise another thread has read the bytes.
            if found > 0 || self.at_once {
                return Break(found);
            }
        }
        // A call that sleeps at once need not ask before.
        if ready || self.at_once || (may_spin && is_due) {
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
        Continue(if may_spin { Phase::Spin } else { Phase::Sleep })
    }

    fn begin_spin(&mut self) {
        for fd in self.fds.to_read() {
            with(fd, |promoted, _| promoted.heat_outside_set());
        }
    }

    fn poll_rings(&mut self) -> bool {
        any_ready(self.fds)
    }

    fn arm(&mut self) -> ControlFlow<c_int, Armed> {
        // The sleep watches the doorbells of a few sockets, and the kernel connections of all.
        let few =
            self.fds.to_read().filter(|(fd, _)| promoted(*fd).is_some()).take(PollEntries::MOST + 1).count()
                <= PollEntries::MOST;
        self.polled = if few && self.accepts_doorbells { PollEntries::of(self.fds.entries()) } else { None };
        let armed = arm_all(self.fds, &mut self.polled);
        if armed == Armed::Pending {
            end_sleep(self.fds, &mut self.polled);
        }
        Continue(armed)
    }

    fn sleep(&mut self, until: Option<Instant>) -> Slept<c_int> {
        // SAFETY: a mask or null.
        let found = unsafe { ask_with_doorbells(self.fds, &mut self.polled, Limit::until(until), self.mask) };
        let at = clock::now();
        let errno = real::errno();
        let peer_woke_at = end_sleep(self.fds, &mut self.polled);
        woke(self.fds);
        real::set_errno(errno);
        let found = found.unwrap_or_else(|| {
            self.accepts_doorbells = false;
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
        Slept { at, peer_woke_at, outcome }
    }

    fn timed_out(&mut self) -> c_int {
        0
    }

    fn is_found(found: &c_int) -> bool {
        *found > 0
    }

    fn interrupted(&mut self) -> c_int {
        end_sleep(self.fds, &mut self.polled);
        real::set_errno(libc::EINTR);
        -1
    }
}

/// Runs for a socket whose ring has to be polled. `reported`: the kernel reports it readable.
fn with<T>((fd, reported): (c_int, bool), run: impl FnOnce(&mut Promoted, c_int) -> T) -> Option<T> {
    let socket = promoted(fd)?;
    if socket.kernel_reports_arrivals.load(Ordering::Relaxed) && !reported {
        return None;
    }
    Some(run(socket.lock().promoted.as_deref_mut()?, fd))
}

/// Whether a ring among them is in use, so that a spin may pay.
fn any_in_use<W: Waited + ?Sized>(fds: &W) -> bool {
    fds.to_read().any(|(fd, _)| {
        promoted(fd).is_some_and(|socket| !socket.kernel_reports_arrivals.load(Ordering::Relaxed))
    })
}

fn has_bytes(promoted: &mut Promoted) -> bool {
    !matches!(promoted.connection.next(0), Ok(Next::Nothing | Next::Kernel))
}

fn any_ready<W: Waited + ?Sized>(fds: &W) -> bool {
    fds.to_read().any(|fd| with(fd, |promoted, _| has_bytes(promoted)).unwrap_or(false))
}

fn arm_all<W: Waited + ?Sized>(fds: &W, polled: &mut Option<PollEntries>) -> Armed {
    let (mut pending, mut unseen) = (false, None);
    for (fd, _) in fds.to_read() {
        let Some(socket) = promoted(fd) else { continue };
        if threads::is_alone() && socket.kernel_reports_arrivals.load(Ordering::Relaxed) {
            continue;
        }
        let mut inner = socket.lock();
        let in_a_set = inner.interest.sets > 0;
        if let Some(promoted) = inner.promoted.as_deref_mut() {
            promoted.note_use();
            // A socket that its epoll set polls gets no wake-up of its own.
            if !promoted.kernel_reports_arrivals() {
                let doorbell = if in_a_set { None } else { promoted.doorbell_to_sleep_by() };
                let watched = doorbell
                    .is_some_and(|doorbell| polled.as_mut().is_some_and(|polled| polled.push(doorbell)));
                pending |= promoted.arm_to_sleep_by(if watched { WakeUp::Doorbell } else { WakeUp::Tcp });
            }
            promoted.note_sleep();
            unseen = soonest(unseen, promoted.wake_unseen_if_due(fd));
        }
    }
    if pending { Armed::Pending } else { Armed::Asleep { unseen } }
}

/// After a sleep, or one that was called off: the doorbells are not watched any more. Returns when
/// the peer sent the wake-up that ended it; 0: not known.
fn end_sleep<W: Waited + ?Sized>(fds: &W, polled: &mut Option<PollEntries>) -> u64 {
    let mut peer_woke_at = 0;
    for (fd, reported) in fds.to_read() {
        let Some(socket) =
            promoted(fd).filter(|socket| reported || !socket.kernel_reports_arrivals.load(Ordering::Relaxed))
        else {
            continue;
        };
        let mut inner = socket.lock();
        let Some(promoted) = inner.promoted.as_deref_mut() else { continue };
        let own = promoted.doorbell.as_ref().and_then(Doorbell::own);
        let by_doorbell =
            own.zip(polled.as_mut()).and_then(|(own, polled)| polled.is_readable(own)) == Some(true);
        promoted.note_wake(by_doorbell);
        if reported || by_doorbell {
            peer_woke_at = peer_woke_at.max(promoted.connection.peer_woke_at());
        }
    }
    peer_woke_at
}

/// After a sleep: other threads need not consider this one any more.
fn woke<W: Waited + ?Sized>(fds: &W) {
    if threads::is_alone() {
        return;
    }
    for socket in fds.to_read().filter_map(|(fd, _)| promoted(fd)) {
        if let Some(promoted) = socket.lock().promoted.as_deref_mut() {
            promoted.note_use();
        }
    }
}

/// Whether a descriptor is readable, given the kernel's report, with the ring's bytes added and
/// wake-up bytes ignored; and whether it has failed: the kernel reported the error to the library,
/// and will not repeat it. `None`: the kernel's report stands.
pub(crate) fn judge(fd: c_int, reported: bool) -> Option<(bool, bool)> {
    with((fd, reported), |promoted, fd| {
        let readable = has_bytes(promoted) || (reported && has_event(promoted, fd));
        (readable, promoted.connection.has_error())
    })
}

/// Whether a socket that the kernel reports readable has anything to read.
fn has_event(promoted: &mut Promoted, fd: c_int) -> bool {
    let kernel_knows = promoted.connection.reads_data_from_kernel() && !promoted.connection.peer_is_demoted();
    // FIN may lie behind wake-up bytes, and a call that does not wait asks once.
    kernel_knows || promoted.kernel_has_event(fd) || has_bytes(promoted) || promoted.kernel_has_event(fd)
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
unsafe fn ask_with_doorbells<W: Waited + ?Sized>(
    fds: &mut W,
    polled: &mut Option<PollEntries>,
    limit: Limit,
    mask: *const sigset_t,
) -> Option<c_int> {
    let Some(polled) = polled else {
        // SAFETY: the caller's promise.
        return Some(unsafe { ask(fds, limit, mask) });
    };
    let time = limit.time();
    // SAFETY: a time or null, and the caller's mask.
    match unsafe { polled.ask(time.as_ref().map_or(null(), from_ref), mask) } {
        Ok(entries) => fds.keep(entries),
        // With the doorbells they exceed RLIMIT_NOFILE.
        Err(libc::EINVAL) => None,
        Err(errno) => {
            real::set_errno(errno);
            Some(-1)
        }
    }
}
