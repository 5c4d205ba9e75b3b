//! poll(2) and its relatives: rings are looked at before the kernel is asked to sleep.
#![allow(unsafe_code)] // descriptors and events lie in the program's memory

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::time::Duration;

use libc::{pollfd, sigset_t, timespec};
use promote::Next;

use crate::clock::{self, Instant};
use crate::epoll::Limit;
use crate::promoter;
use crate::real;
use crate::receive;
use crate::sets;
use crate::signals;
use crate::sockets::{Promoted, Socket, State};
use crate::spin::{KERNEL_EVERY, Wait};
use crate::stats::{COUNTERS, count};
use crate::table::{self, Entry};
use crate::threads;

const IN: i16 = libc::POLLIN | libc::POLLRDNORM;

/// Whether any of these is promoted, and asked for reading.
#[inline]
pub(crate) fn concerns(fds: &[pollfd]) -> bool {
    let mut concerns = false;
    for fd in fds {
        match table::entry(fd.fd) {
            Entry::Set(set) => sets::watched_from_outside(set),
            _ => concerns |= promoted(fd).is_some(),
        }
    }
    concerns
}

#[inline]
fn promoted(fd: &pollfd) -> Option<&'static Socket> {
    if fd.events & IN == 0 {
        return None;
    }
    table::socket(fd.fd).filter(|socket| socket.state() == State::Promoted)
}

/// ppoll(2) for descriptors among which are promoted ones.
///
/// # Safety
///
/// `mask` is null or a mask.
pub(crate) unsafe fn wait(fds: &mut [pollfd], limit: Limit, mask: *const sigset_t) -> c_int {
    let began = clock::now();
    let before = real::errno();
    let deadline = match limit {
        Limit::Never => None,
        Limit::After(limit) => Some(began + limit),
    };
    let at_once = matches!(limit, Limit::After(Duration::ZERO));
    let mut wait: Option<Wait> = None;
    let mut asked_kernel: Option<Instant> = None;
    let handled = signals::handled();
    let done = loop {
        let now = if wait.is_some() { clock::now() } else { began };
        let ready = any_ready(fds);
        // Who sleeps at once need not ask before.
        let due = |asked: Instant| now >= asked + KERNEL_EVERY;
        let spins = || Wait::new(deadline);
        let spins = !ready && !at_once && any_in_use(fds) && wait.get_or_insert_with(spins).spins();
        if ready || at_once || (spins && asked_kernel.is_none_or(due)) {
            asked_kernel = Some(now);
            // SAFETY: the caller's promise.
            let found = unsafe { kernel_poll(fds, Limit::After(Duration::ZERO), mask) };
            if found < 0 {
                break found;
            }
            let found = settle(fds);
            if found > 0 || at_once {
                break found;
            }
        }
        if spins
            && let Some(wait) = &mut wait
            && wait.again()
        {
            for fd in fds.iter() {
                with(fd, |promoted, _| promoted.heat_alone());
            }
            if spin(fds, wait, handled) {
                wait.found();
                count(&COUNTERS.spun, 1);
            }
            continue;
        }
        // Who sleeps in the kernel hears bells.
        if arm_all(fds) {
            continue;
        }
        if signals::end_a_wait(handled, || false) {
            real::set_errno(libc::EINTR);
            break -1;
        }
        let left = match deadline {
            None => Limit::Never,
            Some(deadline) => Limit::After(deadline.saturating_sub(clock::now())),
        };
        // SAFETY: the caller's promise.
        let found = unsafe { kernel_poll(fds, left, mask) };
        woke(fds);
        if found < 0 {
            break found;
        }
        let found = settle(fds);
        if found > 0 || deadline.is_some_and(|deadline| clock::now() >= deadline) {
            break found;
        }
    };
    let errno = real::errno();
    woke(fds);
    // The program may wait in a way of its own the next time.
    for fd in fds.iter() {
        let news = with(fd, |promoted, _| {
            promoted.is_awaited_here();
            promoted.listed_in == 0 && !promoted.armed && promoted.arm().unwrap_or(true)
        });
        if let (Some(true), Some(socket)) = (news, promoted(fd)) {
            // Its set, in which another thread may sleep, is not woken for this either.
            receive::settle(socket);
        }
    }
    promoter::answers();
    real::set_errno(if done < 0 { errno } else { before });
    done
}

/// Of those that have to be looked at.
fn with<T>(fd: &pollfd, run: impl FnOnce(&mut Promoted, c_int) -> T) -> Option<T> {
    let socket = promoted(fd)?;
    if socket.hears.load(Ordering::Relaxed) && fd.revents & IN == 0 {
        return None;
    }
    Some(run(socket.lock().promoted.as_deref_mut()?, fd.fd))
}

/// Whether a ring is in use among them, which is worth a look before sleeping.
fn any_in_use(fds: &[pollfd]) -> bool {
    fds.iter().any(|fd| promoted(fd).is_some_and(|socket| !socket.hears.load(Ordering::Relaxed)))
}

fn has_bytes(promoted: &mut Promoted) -> bool {
    !matches!(promoted.connection.next(0), Ok(Next::Nothing | Next::Kernel))
}

fn any_ready(fds: &[pollfd]) -> bool {
    fds.iter().any(|fd| with(fd, |promoted, _| has_bytes(promoted)).unwrap_or(false))
}

fn spin(fds: &[pollfd], wait: &mut Wait, handled: u32) -> bool {
    loop {
        if any_ready(fds) {
            return true;
        }
        if !wait.again() || signals::handled() != handled {
            return false;
        }
    }
}

/// True: something is here already.
fn arm_all(fds: &[pollfd]) -> bool {
    let mut news = false;
    for fd in fds {
        let Some(socket) = promoted(fd) else { continue };
        if threads::is_alone() && socket.hears.load(Ordering::Relaxed) {
            continue;
        }
        if let Some(promoted) = socket.lock().promoted.as_deref_mut() {
            // One that its epoll set looks at hears no bells of its own.
            news |= !promoted.will_hear() && promoted.arm_to_sleep();
            promoted.is_slept_on();
        }
    }
    news
}

/// After a sleep: no other thread has to mind this one any more.
fn woke(fds: &[pollfd]) {
    if threads::is_alone() {
        return;
    }
    for socket in fds.iter().filter_map(promoted) {
        if let Some(promoted) = socket.lock().promoted.as_deref_mut() {
            promoted.is_used();
        }
    }
}

/// What the kernel said, with what rings hold, and without what only bells said. Returns how
/// many descriptors are ready.
fn settle(fds: &mut [pollfd]) -> c_int {
    let mut ready = 0;
    for fd in fds {
        let kernel_says = fd.revents & IN != 0;
        let news = with(fd, |promoted, raw| has_bytes(promoted) || (kernel_says && has_news(promoted, raw)));
        match news {
            Some(true) => fd.revents |= fd.events & IN,
            Some(false) => fd.revents &= !IN,
            None => {}
        }
        // The kernel told us of the error, and no longer tells the program.
        if with(fd, |promoted, _| promoted.connection.has_error()).unwrap_or(false) {
            fd.revents |= libc::POLLERR;
        }
        ready += c_int::from(fd.revents != 0);
    }
    ready
}

/// Whether a socket that the kernel calls readable has anything to read.
fn has_news(promoted: &mut Promoted, fd: c_int) -> bool {
    let kernel_knows = promoted.connection.reads_data_from_kernel() && !promoted.connection.peer_left();
    // FIN may lie behind bells, and who does not wait asks once.
    kernel_knows || promoted.kernel_has_news(fd) || has_bytes(promoted) || promoted.kernel_has_news(fd)
}

/// # Safety
///
/// `mask` is null or a mask.
unsafe fn kernel_poll(fds: &mut [pollfd], limit: Limit, mask: *const sigset_t) -> c_int {
    let time = match limit {
        Limit::Never => None,
        // Longer than any machine runs, if it does not fit.
        Limit::After(limit) => Some(timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        }),
    };
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: descriptors of that number, a time or null, and the caller's mask.
    unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, time, mask) }
}
