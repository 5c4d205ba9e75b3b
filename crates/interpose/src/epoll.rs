//! The waits of epoll sets: rings are looked at before the kernel is asked to sleep.
#![allow(unsafe_code)] // events lie in the program's memory

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::time::Duration;

use libc::{epoll_event, sigset_t, timespec};

use crate::clock::{self, TICK};
use crate::memory::{is_readable, is_writable};
use crate::promoter;
use crate::real;
use crate::sets::{self, Change, Place, Set, Wish};
use crate::signals;
use crate::sockets::{self, State};
use crate::spin::{Sleep, Wait};
use crate::table::{self, Entry};
use crate::threads;

/// How long a wait may take.
#[derive(Clone, Copy)]
pub(crate) enum Limit {
    Never,
    /// From its beginning.
    After(Duration),
}

/// The set and the socket that a change concerns, if both are ours.
fn concerned(epfd: c_int, fd: c_int) -> Option<Place> {
    match (table::entry(epfd), table::entry(fd)) {
        (Entry::Set(set), Entry::Socket(socket)) => Some(Place { set, epfd, socket, fd }),
        _ => None,
    }
}

/// # Safety
///
/// `event` is as epoll_ctl(2) has it, or no address that a program can have and the kernel has not read it.
#[inline(always)]
unsafe fn change(operation: c_int, fd: c_int, event: *const epoll_event) -> Option<Change> {
    if operation == libc::EPOLL_CTL_DEL {
        return Some(Change::Delete);
    }
    // Without a socket of ours the kernel has read it.
    if sockets::any() && !is_readable(event) {
        return None;
    }
    // SAFETY: the caller's promise. The event is packed: its words need not be aligned.
    let wish = unsafe {
        let (events, data) = (&raw const (*event).events, &raw const (*event).u64);
        Wish { fd, events: events.read_unaligned(), data: data.read_unaligned() }
    };
    match operation {
        libc::EPOLL_CTL_ADD => Some(Change::Add(wish)),
        libc::EPOLL_CTL_MOD => Some(Change::Modify(wish)),
        _ => None,
    }
}

/// epoll_ctl(2), which `call` makes; returns what that did, or would have done: where the set's waits look at
/// the socket themselves the kernel is told later.
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
    let Some(place) = concerned(set_fd, fd) else { return make_unknown(set_fd, fd, change, call) };
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

/// The same of a set or a descriptor that is not known, or of neither's concern.
fn make_unknown(
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
            // The kernel took it for a set: it was made before we saw, or came from another process.
            table::set(set_fd, Entry::Set(set));
        }
        match (concerned(set_fd, fd).zip(change), table::entry(set_fd), table::entry(fd)) {
            (Some((place, change)), ..) => sets::made(place, change),
            (None, Entry::Set(set), other) => {
                if let Entry::Set(inner) = other {
                    sets::watched_from_outside(inner, true);
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
    // SAFETY: the caller's promise. What the kernel has not written yet may be anything, as
    // any bytes are an event.
    let room = unsafe { std::slice::from_raw_parts_mut(events, most_events) };
    let ask = |room: &mut [epoll_event], limit: Limit| {
        let at_once = matches!(limit, Limit::After(Duration::ZERO));
        loop {
            // SAFETY: room of that length; the mask is the caller's.
            let found = unsafe { kernel_wait(fd, room, limit, mask) };
            let Ok(count @ 1..) = usize::try_from(found) else { return found };
            match sets::without_own(&mut room[..count]) {
                // It had the room of what may be behind it.
                0 if at_once => {}
                left => return left as c_int,
            }
        }
    };
    let began = clock::now();
    let before = real::errno();
    let deadline = match limit {
        Limit::Never => None,
        Limit::After(limit) => Some(began + limit),
    };
    let at_once = matches!(limit, Limit::After(Duration::ZERO));
    let mut wait: Option<Wait> = None;
    let mut slept = false;
    let mut overdue = Duration::ZERO;
    let handled = signals::handled();
    let mut inner = set.lock();
    inner.enter();
    let done = loop {
        let now = if slept || wait.is_some() { clock::now() } else { began };
        let due = at_once || inner.kernel_is_due(now);
        let share = if due { inner.share_of_rings(room.len()) } else { room.len() };
        let mut told = inner.collect(fd, &mut room[..share], !slept && wait.is_none());
        // Who sleeps at once need not ask before.
        let spins = || Wait::new(deadline);
        let sleeps =
            told == 0 && !at_once && share > 0 && (!inner.looks() || !wait.get_or_insert_with(spins).spins());
        if due && !sleeps {
            inner.kernel_was_asked(now);
            inner.tell_kernel();
            let found =
                if told < room.len() { ask(&mut room[told..], Limit::After(Duration::ZERO)) } else { 0 };
            match usize::try_from(found) {
                Ok(found) => told = inner.filter(fd, &mut room[..told + found], told),
                Err(_) if told == 0 => break -1,
                Err(_) => {}
            }
            if std::mem::take(&mut inner.rang) && told == 0 {
                // One that asks once is told of what a doorbell announced.
                told = inner.collect(fd, room, false);
            }
            if told == 0 && share == 0 {
                continue;
            }
        }
        if told > 0 || at_once {
            if let Some(wait) = &mut wait {
                wait.found();
            }
            break told as c_int;
        }
        if !sleeps && let Some(wait) = &mut wait {
            drop(inner);
            wait.again();
            inner = set.lock();
            if wait.spins() && signals::handled() == handled {
                continue;
            }
            wait.stop();
        }
        if !inner.go_to_sleep(fd, overdue) {
            continue;
        }
        let unseen = inner.unseen;
        let soon = unseen.map(|unseen| clock::now() + unseen);
        inner.tell_kernel();
        drop(inner);
        if signals::end_a_wait(handled, || false) {
            inner = set.lock();
            inner.woke();
            real::set_errno(libc::EINTR);
            break -1;
        }
        let left = match [deadline, soon].into_iter().flatten().min() {
            None => Limit::Never,
            Some(until) => Limit::After(until.saturating_sub(clock::now())),
        };
        let begun = Sleep::begin();
        let found = ask(room, left);
        let errno = real::errno();
        overdue = unseen.filter(|_| found == 0).unwrap_or(overdue);
        inner = set.lock();
        inner.woke();
        slept = true;
        let Ok(found) = usize::try_from(found) else {
            real::set_errno(errno);
            break -1;
        };
        inner.kernel_was_asked(clock::now());
        let mut told = inner.filter(fd, &mut room[..found], 0);
        begun.end(inner.called_at());
        if told == 0 {
            told = inner.collect(fd, room, false);
        }
        if told > 0 || deadline.is_some_and(|deadline| clock::now() >= deadline) {
            break told as c_int;
        }
    };
    let errno = real::errno();
    inner.leave(fd);
    drop(inner);
    promoter::answers();
    real::set_errno(if done < 0 { errno } else { before });
    done
}

/// A wait in a set that has no promoted sockets, which `call` makes; it may get some meanwhile.
///
/// # Safety
///
/// As for [`wait`].
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
    if matches!(limit, Limit::After(Duration::ZERO)) || is_refused {
        return call();
    }
    let began = clock::milliseconds();
    let set = sets::at(number);
    // UNAWARE-PAIR: it is seen by whoever has the set's socket promoted and changes it then.
    set.unaware.fetch_add(1, Ordering::SeqCst);
    let late = set.promoted.load(Ordering::SeqCst) > 0;
    let found = if late { 0 } else { call() };
    set.unaware.fetch_sub(1, Ordering::SeqCst);
    let count = usize::try_from(found).unwrap_or(0);
    if !late && (count == 0 || promoted_set(fd).is_none()) {
        return found;
    }
    // SAFETY: the caller's promise; so many events were written.
    let room = unsafe { std::slice::from_raw_parts_mut(events, count) };
    let left = sets::without_own(room);
    let room = &mut room[..left];
    let told = real::kept_errno(|| set.lock().filter(fd, room, 0));
    if told > 0 {
        return told as c_int;
    }
    let left = match limit {
        Limit::Never => Limit::Never,
        Limit::After(limit) => {
            // It must not end early: rather a tick late, the one time that its set gets a promoted socket.
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

/// Whether a wait in this set is the kernel's alone from here on: no socket of it is [promoted](promoted_set), and nobody is there who
/// could promote one before it ends. A handler ends it, and one that promotes a socket just before leaves that armed.
#[inline]
pub(crate) fn is_the_kernels(promoted: Option<&'static Set>) -> bool {
    promoted.is_none() && threads::is_alone()
}

/// The set of a descriptor, if it has promoted sockets.
#[inline]
pub(crate) fn promoted_set(fd: c_int) -> Option<&'static Set> {
    match table::entry(fd) {
        Entry::Set(number) => {
            let set = sets::at(number);
            let ours = set.promoted.load(Ordering::Relaxed) > 0
                || set.untold.load(Ordering::Relaxed) > 0
                || set.was_woken.load(Ordering::Relaxed);
            ours.then_some(set)
        }
        _ => None,
    }
}

/// A limit in milliseconds; below 0: none.
pub(crate) fn milliseconds(timeout: c_int) -> Limit {
    u64::try_from(timeout).map_or(Limit::Never, |timeout| Limit::After(Duration::from_millis(timeout)))
}

/// A limit as ppoll(2) has it; `Err`: the call is to be left to the kernel, which refuses it.
pub(crate) fn time(timeout: Option<&timespec>) -> Result<Limit, ()> {
    let Some(timeout) = timeout else { return Ok(Limit::Never) };
    match (u64::try_from(timeout.tv_sec), u32::try_from(timeout.tv_nsec)) {
        (Ok(seconds), Ok(nanos)) if nanos < 1_000_000_000 => Ok(Limit::After(Duration::new(seconds, nanos))),
        _ => Err(()),
    }
}
