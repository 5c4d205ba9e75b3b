//! Handlers of signals that end the wait of the thread that they run in.
//!
//! A signal that arrives just before a thread goes to sleep would not interrupt the sleep. So the
//! handler raises an eventfd that the thread's contexts wait for.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use libc::{c_int, sighandler_t};

use crate::errno::{Errno, INVALID};
use crate::registry::CONTEXTS_MAX;

/// Signals are 1 to 64.
const SIGNALS: usize = 65;

static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(libc::SIG_DFL) }; SIGNALS];

/// Contexts by index: the thread that uses each (0 for none), and its eventfd.
static WAITERS: [(AtomicUsize, AtomicI32); CONTEXTS_MAX] =
    [const { (AtomicUsize::new(0), AtomicI32::new(-1)) }; CONTEXTS_MAX];

/// The eventfd of a context that was made.
pub(crate) fn add(index: usize, interrupt: BorrowedFd<'_>) {
    WAITERS[index].1.store(interrupt.as_raw_fd(), Ordering::Release);
    used_here(index);
}

/// The calling thread is the one to be interrupted.
pub(crate) fn used_here(index: usize) {
    // SAFETY: pthread_self has no conditions.
    WAITERS[index].0.store(unsafe { libc::pthread_self() } as usize, Ordering::Release);
}

/// The context is being destroyed: its eventfd will be closed.
pub(crate) fn remove(index: usize) {
    WAITERS[index].0.store(0, Ordering::Release);
    WAITERS[index].1.store(-1, Ordering::Release);
}

/// As signal(2). Returns the program's handler so far.
pub(crate) fn register(signal: c_int, handler: sighandler_t) -> Result<sighandler_t, Errno> {
    let slot = usize::try_from(signal).ok().filter(|&signal| signal > 0);
    let slot = slot.and_then(|signal| HANDLERS.get(signal)).ok_or(INVALID)?;
    let before = slot.swap(handler, Ordering::AcqRel);
    let installed = match handler {
        libc::SIG_DFL | libc::SIG_IGN => handler,
        _ => relay as *const () as sighandler_t,
    };
    // SAFETY: all bytes zero are a valid sigaction: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = installed;
    // SAFETY: a live sigaction; `relay` takes one number, as without SA_SIGINFO.
    if unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) } < 0 {
        let error = std::io::Error::last_os_error();
        slot.store(before, Ordering::Release);
        return Err(error.into());
    }
    Ok(before)
}

/// Calls the program's handler, then ends the waits of this thread.
extern "C" fn relay(signal: c_int) {
    // SAFETY: the address of this thread's errno is always valid.
    let errno = unsafe { *libc::__errno_location() };
    let handler = HANDLERS.get(signal as usize).map_or(libc::SIG_DFL, |slot| slot.load(Ordering::Acquire));
    if handler != libc::SIG_DFL && handler != libc::SIG_IGN {
        // SAFETY: the program registered this address as a function of one number.
        let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
        handler(signal);
    }
    // SAFETY: pthread_self has no conditions.
    let thread = unsafe { libc::pthread_self() } as usize;
    for (user, interrupt) in &WAITERS {
        let interrupt = interrupt.load(Ordering::Acquire);
        if user.load(Ordering::Acquire) == thread && interrupt >= 0 {
            // SAFETY: `remove` runs before the descriptor is closed, in this thread or in one that
            // this thread has handed the context to.
            sys::eventfd::raise(unsafe { BorrowedFd::borrow_raw(interrupt) });
        }
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}
