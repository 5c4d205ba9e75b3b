//! The waits of epoll sets: rings are polled before the thread sleeps in the kernel.
#![allow(unsafe_code)] // events lie in the program's memory

use std::ffi::c_int;
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::atomic::Ordering;
use std::time::Duration;

use libc::{epoll_event, sigset_t, timespec};

use crate::clock::{self, Instant, TICK};
use crate::memory::{is_readable, is_writable};
use crate::promoter;
use crate::real;
use crate::sets::{self, Change, Place, Request, Set};
use crate::sockets::{self, State};
use crate::table::{self, Entry};
use crate::threads;
use crate::waiter::{Armed, Phase, Slept, Waiter, Waiting};

/// The timeout of a wait.
#[derive(Clone, Copy)]
pub(crate) enum Limit {
    Never,
    /// From the beginning of the wait.
    After(Duration),
}

impl Limit {
    /// When the wait times out; `None`: never.
    pub(crate) fn deadline(self, began: Instant) -> Option<Instant> {
        match self {
            Limit::Never => None,
            Limit::After(limit) => Some(began + limit),
        }
    }

    /// From now on.
    pub(crate) fn until(deadline: Option<Instant>) -> Limit {
        deadline.map_or(Limit::Never, |deadline| Limit::After(deadline.saturating_sub(clock::now())))
    }

    /// As ppoll(2) takes it.
    pub(crate) fn time(self) -> Option<timespec> {
        match self {
            Limit::Never => None,
            Limit::After(limit) => Some(clock::timespec(limit)),
        }
    }

    pub(crate) fn is_at_once(self) -> bool {
        matches!(self, Limit::After(Duration::ZERO))
    }
}

/// The set and the socket that a change concerns, if both are tracked.
fn concerned(epfd: c_int, fd: c_int) -> Option<Place> {
    match (table::entry(epfd), table::entry(fd)) {
        (Entry::Set(set), Entry::Socket(socket)) => Some(Place { set, epfd, socket, fd }),
        _ => None,
    }
}

/// # Safety
///
/// `event` is as epoll_ctl(2) requires, or an address that is in no process and that the kernel has
/// not read.
#[inline(always)]
unsafe fn change(operation: c_int, fd: c_int, event: *const epoll_event) -> Option<Change> {
    if operation == libc::EPOLL_CTL_DEL {
        return Some(Change::Delete);
    }
    // Without a tracked socket the kernel has read it.
    if sockets::any() && !is_readable(event) {
        return None;
    }
    // SAFETY: the caller's promise. The event is packed: its fields need not be aligned.
    let request = unsafe {
        let (events, data) = (&raw const (*event).events, &raw const (*event).u64);
        Request { fd, events: events.read_unaligned(), data: data.read_unaligned() }
    };
    match operation {
        libc::EPOLL_CTL_ADD => Some(Change::Add(request)),
        libc::EPOLL_CTL_MOD => Some(Change::Modify(request)),
        _ => None,
    }
}

/// epoll_ctl(2), made by `call`; returns its status, or the one it would have had: while the set's
/// waits poll the socket themselves the call is deferred.
///
/// # Safety
///
/// As epoll_ctl(2).
pub(crate) unsafe fn control(
    set_fd: c_int,
    operation: c_int,
    fd: c_int,
    event: *const epoll_event,
    call: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let change = || unsafe { change(operation, fd, event) };
    let Some(place) = concerned(set_fd, fd) else { return make_untracked(set_fd, fd, change, call) };
    if sockets::at(place.socket).state() != State::Promoted {
        return sets::make(place, change, call);
    }
    match change().and_then(|change| real::kept_errno(|| sets::defer(place, change))) {
        None => sets::make(place, change, call),
        Some(Ok(())) => 0,
        Some(Err(errno)) => {
            real::set_errno(errno);
            -1
        }
    }
}

/// The same if the set or the descriptor is not tracked.
fn make_untracked(
    set_fd: c_int,
    fd: c_int,
    change: impl FnOnce() -> Option<Change>,
    call: impl FnOnce() -> c_int,
) -> c_int {
    let status = call();
    if status != 0 {
        return status;
    }
    let change = change();
    real::kept_errno(|| {
        if let (Entry::Unknown | Entry::Foreign, Entry::Socket(_)) = (table::entry(set_fd), table::entry(fd))
            && let Some(set) = change.and_then(|_| sets::add())
        {
            // The kernel accepted it as a set: it was created before the library started, or by
            // another process.
            table::set(set_fd, Entry::Set(set));
        }
        match (concerned(set_fd, fd).zip(change), table::entry(set_fd), table::entry(fd)) {
            (Some((place, change)), ..) => sets::record(place, change),
            (None, Entry::Set(set), other) => {
                if let Entry::Set(inner) = other {
                    sets::polled_from_outside(inner, true);
                }
                sets::other_changed(set, fd, change);
            }
            _ => {}
        }
    });
    0
}

/// A wait in a set that has promoted sockets.
///
/// # Safety
///
/// As epoll_pwait(2): room for `most` events, and a mask or null.
pub(crate) unsafe fn wait(
    fd: c_int,
    set: &'static Set,
    events: *mut epoll_event,
    most: c_int,
    limit: Limit,
    mask: *const sigset_t,
) -> c_int {
    let most_events = usize::try_from(most).unwrap_or(0);
    // SAFETY: the caller's promise. Memory that the kernel has not written may hold any bytes, all
    // of which are valid events.
    let room = unsafe { std::slice::from_raw_parts_mut(events, most_events) };
    let began = clock::now();
    let before = real::errno();
    let at_once = limit.is_at_once();
    let mut wait = SetWait { fd, set, inner: None, room, mask, at_once, began: Some(began), in_rings: false };
    wait.inner().enter();
    let done = Waiter::new(limit.deadline(began)).wait(&mut wait);
    let errno = real::errno();
    wait.inner().leave(fd);
    drop(wait);
    promoter::answers();
    real::set_errno(if done < 0 { errno } else { before });
    done
}

/// A call of [`wait`]; its mask is null or a mask.
struct SetWait<'a> {
    fd: c_int,
    set: &'static Set,
    /// Locked, except while it sleeps or pauses.
    inner: Option<sets::Guard<'static>>,
    room: &'a mut [epoll_event],
    mask: *const sigset_t,
    at_once: bool,
    /// Until the first poll.
    began: Option<Instant>,
    /// The last poll found events in rings.
    in_rings: bool,
}

impl SetWait<'_> {
    fn inner(&mut self) -> &mut sets::Inner {
        self.split().0
    }

    fn split(&mut self) -> (&mut sets::Inner, &mut [epoll_event]) {
        let set = self.set;
        (self.inner.get_or_insert_with(|| set.lock()), self.room)
    }

    /// Asks the kernel for events, behind the first ones, and removes our own. Less than 0: errno.
    fn ask(&mut self, reported: usize, limit: Limit) -> c_int {
        loop {
            let room = &mut self.room[reported..];
            // SAFETY: room of that length; a mask or null.
            let found = unsafe { kernel_wait(self.fd, room, limit, self.mask) };
            let Ok(count @ 1..) = usize::try_from(found) else { return found };
            match sets::without_own(&mut room[..count]) {
                // It took the place of an event behind it.
                0 if limit.is_at_once() => {}
                left => return left as c_int,
            }
        }
    }
}

impl Waiting for SetWait<'_> {
    type Outcome = c_int;

    fn collect(&mut self, waiter: &mut Waiter) -> ControlFlow<c_int, Phase> {
        let first = self.began.is_some();
        let now = self.began.take().unwrap_or_else(clock::now);
        let (fd, at_once) = (self.fd, self.at_once);
        let (inner, room) = self.split();
        let all = room.len();
        let is_due = at_once || inner.kernel_is_due(now);
        let share = if is_due { inner.share_of_rings(all) } else { all };
        let mut reported = inner.collect(fd, &mut room[..share], 0, first);
        let in_rings = reported;
        // A call that sleeps at once need not ask before.
        let sleeps =
            reported == 0 && !at_once && share > 0 && (!inner.has_rings_to_poll() || !waiter.may_spin());
        if is_due && !sleeps {
            inner.kernel_was_asked(now);
            inner.register_deferred();
            let found = if reported < all { self.ask(reported, Limit::After(Duration::ZERO)) } else { 0 };
            let (inner, room) = self.split();
            match usize::try_from(found) {
                Ok(found) => reported = inner.filter(fd, &mut room[..reported + found], reported),
                Err(_) if reported == 0 => return Break(-1),
                Err(_) => {}
            }
            let woken = std::mem::take(&mut inner.doorbell_woke);
            if woken || in_rings > 0 {
                let kernel_events = inner.place_finished(room, reported);
                if woken {
                    // Connections that a doorbell announced: a call that does not wait reports
                    // them, and they may be older than those found.
                    reported = inner.collect_more(fd, room, kernel_events, false);
                }
            }
            if reported == 0 && share == 0 {
                return Continue(Phase::Collect);
            }
        }
        self.in_rings = in_rings > 0;
        match reported {
            0 if at_once => Break(0),
            0 if sleeps => Continue(Phase::Sleep),
            0 => Continue(Phase::Spin),
            reported => Break(reported as c_int),
        }
    }

    fn begin_spin(&mut self) {
        // Other threads may wait in the set, or change it.
        self.inner = None;
    }

    fn poll_rings(&mut self) -> bool {
        true
    }

    fn arm(&mut self) -> ControlFlow<c_int, Armed> {
        let fd = self.fd;
        let inner = self.inner();
        if !inner.go_to_sleep(fd) {
            return Continue(Armed::Pending);
        }
        let unseen = inner.unseen;
        inner.register_deferred();
        self.inner = None;
        Continue(Armed::Asleep { unseen })
    }

    fn sleep(&mut self, until: Option<Instant>) -> Slept<c_int> {
        let found = self.ask(0, Limit::until(until));
        let at = clock::now();
        let (fd, errno) = (self.fd, real::errno());
        let (inner, room) = self.split();
        inner.woke();
        let Ok(found) = usize::try_from(found) else {
            // Doorbells may have announced bytes that are older than those in polled rings.
            inner.ask_kernel_next();
            real::set_errno(errno);
            return Slept { at, peer_woke_at: 0, outcome: Break(-1) };
        };
        inner.kernel_was_asked(at);
        let mut reported = inner.filter(fd, &mut room[..found], 0);
        let peer_woke_at = inner.peer_woke_at();
        if std::mem::take(&mut inner.doorbell_woke) || reported == 0 {
            reported = inner.collect(fd, room, reported, false);
        }
        let outcome = if reported > 0 { Break(reported as c_int) } else { Continue(()) };
        Slept { at, peer_woke_at, outcome }
    }

    fn timed_out(&mut self) -> c_int {
        0
    }

    fn is_found(found: &c_int) -> bool {
        *found > 0
    }

    fn found_in_rings(&self) -> bool {
        self.in_rings
    }

    fn interrupted(&mut self) -> c_int {
        self.inner().woke();
        real::set_errno(libc::EINTR);
        -1
    }
}

/// A wait by `call` in a set without promoted sockets; it may get some meanwhile.
///
/// # Safety
///
/// As for [`wait`].
#[inline(never)]
pub(crate) unsafe fn wait_unaware(
    fd: c_int,
    events: *mut epoll_event,
    most: c_int,
    limit: Limit,
    mask: *const sigset_t,
    call: impl FnOnce() -> c_int,
) -> c_int {
    let Entry::Set(number) = table::entry(fd) else { return call() };
    let is_refused = most <= 0 || (sockets::any() && !is_writable(events));
    if limit.is_at_once() || is_refused {
        return call();
    }
    let began = clock::milliseconds();
    let set = sets::at(number);
    // UNAWARE-PAIR: counted before `promoted` is read. A thread that promotes a socket of the set,
    // and changes the set then, reads the count.
    set.unaware.fetch_add(1, Ordering::SeqCst);
    let late = set.promoted.load(Ordering::SeqCst) > 0;
    let found = if late { 0 } else { call() };
    set.unaware.fetch_sub(1, Ordering::SeqCst);
    let count = usize::try_from(found).unwrap_or(0);
    if !late && (count == 0 || promoted_set(fd).is_none()) {
        return found;
    }
    // SAFETY: the caller's promise; `count` events were written.
    let room = unsafe { std::slice::from_raw_parts_mut(events, count) };
    let left = sets::without_own(room);
    let room = &mut room[..left];
    let reported = real::kept_errno(|| set.lock().filter(fd, room, 0));
    if reported > 0 {
        return reported as c_int;
    }
    let left = match limit {
        Limit::Never => Limit::Never,
        Limit::After(limit) => {
            // It must not end early: rather a tick late, the one time that its set gets a promoted
            // socket.
            let waited = clock::milliseconds().saturating_sub(began + TICK);
            Limit::After(limit.saturating_sub(Duration::from_millis(waited)))
        }
    };
    if !is_writable(events) {
        real::set_errno(libc::EFAULT);
        return -1;
    }
    // SAFETY: the caller's promise.
    unsafe { wait(fd, set, events, most, left, mask) }
}

/// # Safety
///
/// As epoll_pwait(2).
unsafe fn kernel_wait(fd: c_int, room: &mut [epoll_event], limit: Limit, mask: *const sigset_t) -> c_int {
    let most = c_int::try_from(room.len()).unwrap_or(c_int::MAX);
    // SAFETY: the caller's promise.
    unsafe {
        match limit {
            Limit::Never => real::epoll_pwait(fd, room.as_mut_ptr(), most, -1, mask),
            Limit::After(limit) => {
                // Rounded up: a wait must not end early.
                let milliseconds = limit.as_nanos().div_ceil(1_000_000);
                let milliseconds = c_int::try_from(milliseconds).unwrap_or(c_int::MAX);
                real::epoll_pwait(fd, room.as_mut_ptr(), most, milliseconds, mask)
            }
        }
    }
}

/// Whether the kernel alone handles this wait: no socket of the set is [promoted](promoted_set),
/// and no other thread can promote one before the wait ends. A handler ends the wait, and one that
/// promotes a socket just before it leaves the socket armed.
#[inline]
pub(crate) fn is_kernel_only(promoted: Option<&'static Set>) -> bool {
    promoted.is_none() && threads::is_alone()
}

/// The set of a descriptor, if it has promoted sockets or changes for the kernel.
#[inline]
pub(crate) fn promoted_set(fd: c_int) -> Option<&'static Set> {
    match table::entry(fd) {
        Entry::Set(number) => {
            let set = sets::at(number);
            let ours = set.promoted.load(Ordering::Relaxed) > 0
                || set.deferred.load(Ordering::Relaxed) > 0
                || set.was_woken.load(Ordering::Relaxed);
            ours.then_some(set)
        }
        _ => None,
    }
}

/// A timeout in milliseconds; below 0: none.
pub(crate) fn milliseconds(timeout: c_int) -> Limit {
    u64::try_from(timeout).map_or(Limit::Never, |timeout| Limit::After(Duration::from_millis(timeout)))
}

/// A timeout as ppoll(2) takes it; `Err`: the kernel has to refuse the call.
pub(crate) fn time(timeout: Option<&timespec>) -> Result<Limit, ()> {
    let Some(timeout) = timeout else { return Ok(Limit::Never) };
    match (u64::try_from(timeout.tv_sec), u32::try_from(timeout.tv_nsec)) {
        (Ok(seconds), Ok(nanos)) if nanos < 1_000_000_000 => Ok(Limit::After(Duration::new(seconds, nanos))),
        _ => Err(()),
    }
}
