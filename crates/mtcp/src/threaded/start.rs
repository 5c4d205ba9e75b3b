//! Starts the thread.

use std::io;
use std::mem::MaybeUninit;
use std::thread;

use super::back::Back;
use super::front::Front;
use super::ring::ring;
use super::{PLACES, sleep};
use crate::signal::Interrupt;
use crate::stack::Stack;
use crate::{cpu, fork};

/// Gives a stack a thread, on one CPU if that can be, on which the program is or is not, too. `program` ends the
/// sleep of the program's threads, and `own` that of the stack's.
pub(crate) fn start(
    stack: Stack,
    (cpu, is_shared): (Option<usize>, bool),
    program: &'static Interrupt,
    own: &'static Interrupt,
) -> io::Result<Front> {
    fork::watch()?;
    let (jobs, taken) = ring(PLACES);
    let (reported, events) = ring(PLACES);
    let (program_sleeps, wakes_program) = sleep::pair();
    let (stack_sleeps, wakes_stack) = sleep::pair();
    let back = Back::new(stack, taken, reported, (stack_sleeps, own), (wakes_program, program), is_shared);
    let thread = without_signals(|| {
        thread::Builder::new().name("mtcp-stack".to_owned()).spawn(move || {
            // Where it may not be there, it runs where it is.
            let _ = cpu.map_or_else(cpu::bind_to_all, cpu::bind);
            back.main()
        })
    })?;
    Ok(Front::new(jobs, events, (program_sleeps, program), (wakes_stack, own), thread))
}

/// Starts a thread that no signal interrupts: handlers are the program's.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both are valid for writes, and `all` is filled before it is read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let started = start();
    // SAFETY: the call above has written it; it does not fail with a valid first argument.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    started
}
