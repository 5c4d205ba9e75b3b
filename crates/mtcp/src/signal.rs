//! Handlers of signals that end the waits of all contexts, as those of SIGINT do in mTCP.
//!
//! A signal that arrives just before a thread goes to sleep would not interrupt the sleep, and one
//! that another thread handles would not either. So the handler raises an eventfd that the sleeping
//! thread waits for, too.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libc::{c_int, sighandler_t};

use crate::errno::{Errno, INVALID};

/// Contexts of a process at most: a bit of a word each.
pub(crate) const CONTEXTS_MAX: usize = u64::BITS as usize;

/// Signals are 1 to 64.
const SIGNALS: usize = 65;

static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(libc::SIG_DFL) }; SIGNALS];

/// What ends the sleep of a context's thread.
pub(crate) struct Interrupt {
    /// Raised to end the sleep.
    eventfd: OwnedFd,
    /// By a signal, rather than by another thread's call.
    signalled: AtomicBool,
}

/// Of contexts by index. They are never closed: a handler in another thread may be about to raise
/// one while its context ends.
static INTERRUPTS: [OnceLock<Interrupt>; CONTEXTS_MAX] = [const { OnceLock::new() }; CONTEXTS_MAX];

/// Of the stacks' own threads, which no signal interrupts.
static STACKS: [OnceLock<Interrupt>; CONTEXTS_MAX] = [const { OnceLock::new() }; CONTEXTS_MAX];

impl Interrupt {
    /// That of a context that is being made. What ended waits of the one before is forgotten.
    pub(crate) fn of(index: usize) -> io::Result<&'static Interrupt> {
        Interrupt::at(&INTERRUPTS[index])
    }

    /// That of the stack's own thread, if it gets one.
    pub(crate) fn of_stack(index: usize) -> io::Result<&'static Interrupt> {
        Interrupt::at(&STACKS[index])
    }

    fn at(place: &'static OnceLock<Interrupt>) -> io::Result<&'static Interrupt> {
        if place.get().is_none() {
            let made = Interrupt { eventfd: sys::eventfd::create()?, signalled: AtomicBool::new(false) };
            // Only the thread that has taken the slot makes one.
            let _ = place.set(made);
        }
        let interrupt = place.get().ok_or(io::ErrorKind::Other)?;
        interrupt.clear();
        Ok(interrupt)
    }

    /// Ends the sleep.
    pub(crate) fn wake(&self) {
        sys::eventfd::raise(self.eventfd.as_fd());
    }

    /// Lets the next sleep last. Returns whether a signal had ended this one.
    pub(crate) fn clear(&self) -> bool {
        sys::eventfd::drain(self.eventfd.as_fd());
        self.signalled.swap(false, Ordering::AcqRel)
    }
}

impl AsFd for Interrupt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
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
        let error = io::Error::last_os_error();
        slot.store(before, Ordering::Release);
        return Err(error.into());
    }
    Ok(before)
}

/// Calls the program's handler, then ends the waits. Loads, stores and writes to eventfds alone:
/// nothing here may lock or allocate.
extern "C" fn relay(signal: c_int) {
    // SAFETY: the address of this thread's errno is always valid.
    let errno = unsafe { *libc::__errno_location() };
    let handler = HANDLERS.get(signal as usize).map_or(libc::SIG_DFL, |slot| slot.load(Ordering::Acquire));
    if handler != libc::SIG_DFL && handler != libc::SIG_IGN {
        // SAFETY: the program registered this address as a function of one number.
        let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
        handler(signal);
    }
    for interrupt in INTERRUPTS.iter().filter_map(OnceLock::get) {
        interrupt.signalled.store(true, Ordering::Release);
        interrupt.wake();
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}
