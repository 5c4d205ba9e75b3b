//! The waits of epoll sets: rings are looked at before the kernel is asked to sleep.
#![allow(unsafe_code)] // events lie in the program's memory

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use libc::{epoll_event, sigset_t, timespec};

use crate::promoter;
use crate::real;
use crate::sets::{self, Set};
use crate::sockets::Interest;
use crate::spin::Wait;
use crate::stats::{COUNTERS, count};
use crate::table::{self, Entry};

/// How long a wait may take.
#[derive(Clone, Copy)]
pub(crate) enum Limit {
    Never,
    /// From its beginning.
    After(Duration),
}

/// epoll_ctl(2), after the kernel has done it.
pub(crate) fn changed(set_fd: c_int, operation: c_int, fd: c_int, event: Option<epoll_event>) {
    let Entry::Socket(number) = table::entry(fd) else {
        if let Entry::Set(set) = table::entry(set_fd) {
            sets::kernel_changed(set);
        }
        return;
    };
    let set = match table::entry(set_fd) {
        Entry::Set(set) => set,
        // It was made before we saw, or came from another process.
        Entry::Unknown | Entry::Foreign => {
            let Some(set) = sets::add() else { return };
            table::set(set_fd, Entry::Set(set));
            set
        }
        Entry::Socket(_) => return,
    };
    let interest = match (operation, event) {
        (libc::EPOLL_CTL_DEL, _) | (_, None) => None,
        (_, Some(event)) => Some(Interest {
            set: set + 1,
            fd,
            events: event.events,
            data: event.u64,
            spent: false,
            several: false,
        }),
    };
    sets::update(set, number, interest);
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
        // SAFETY: room of that length; the mask is the caller's.
        unsafe { kernel_wait(fd, room, limit, mask) }
    };
    let began = Instant::now();
    let deadline = match limit {
        Limit::Never => None,
        Limit::After(limit) => Some(began + limit),
    };
    let at_once = matches!(limit, Limit::After(Duration::ZERO));
    let mut wait: Option<Wait> = None;
    let mut inner = set.lock();
    inner.enter();
    let done = loop {
        let now = if wait.is_some() { Instant::now() } else { began };
        let mut told = inner.collect(fd, room);
        if at_once || inner.kernel_is_due(now) {
            inner.kernel_was_asked(now);
            let found =
                if told < room.len() { ask(&mut room[told..], Limit::After(Duration::ZERO)) } else { 0 };
            match usize::try_from(found) {
                Ok(found) => told = inner.filter(fd, &mut room[..told + found], told),
                Err(_) if told == 0 => break -1,
                Err(_) => {}
            }
        }
        if told > 0 || at_once {
            if let Some(wait) = wait.filter(Wait::spins) {
                wait.found();
                count(&COUNTERS.spun, 1);
            }
            break told as c_int;
        }
        let wait = wait.get_or_insert_with(|| Wait::new(deadline));
        drop(inner);
        let again = wait.again();
        inner = set.lock();
        if again || !inner.go_to_sleep() {
            continue;
        }
        drop(inner);
        let left = match deadline {
            None => Limit::Never,
            Some(deadline) => Limit::After(deadline.saturating_duration_since(Instant::now())),
        };
        let found = ask(room, left);
        let errno = real::errno();
        inner = set.lock();
        inner.woke();
        let Ok(found) = usize::try_from(found) else {
            real::set_errno(errno);
            break -1;
        };
        inner.kernel_was_asked(Instant::now());
        let mut told = inner.filter(fd, &mut room[..found], 0);
        if told == 0 {
            told = inner.collect(fd, room);
        }
        if told > 0 || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            break told as c_int;
        }
    };
    inner.leave();
    drop(inner);
    promoter::answers();
    done
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

/// The set of a descriptor, if it has promoted sockets.
#[inline]
pub(crate) fn promoted_set(fd: c_int) -> Option<&'static Set> {
    match table::entry(fd) {
        Entry::Set(number) => {
            let set = sets::at(number);
            (set.promoted.load(Ordering::Relaxed) > 0).then_some(set)
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
