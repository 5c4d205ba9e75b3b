//! Signals that a thread handles during a call of the library.
//!
//! A call that spins on rings is no system call that a signal could interrupt. A handler may also
//! do there what our locks do not survive: leave by siglongjmp(3), or use the connection whose lock
//! is held. So handlers are entered through [`arrives`], which counts them, and defers those that
//! run while the thread holds a lock: the signal is sent again, and blocked until it holds none.
//! This begins with the first TCP socket: before that the kernel calls each handler directly, on
//! any stack that the program gave it.
#![allow(unsafe_code)] // signal frames are changed as sigreturn(2) reads them, and words of the thread are found

use std::arch::{asm, global_asm, naked_asm};
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
    compiler_fence,
};

use libc::{siginfo_t, ucontext_t};

use crate::faults;
use crate::mode;
use crate::real;

/// Signal numbers are below this (NSIG of Linux is 64).
const MOST: usize = 65;

/// The program's handlers of signals for which the kernel has [`entrance`].
static HANDLERS: [AtomicPtr<c_void>; MOST] = [const { AtomicPtr::new(null_mut()) }; MOST];

/// State of one thread, for itself and for the handlers that interrupt it.
#[repr(C)]
struct Local {
    /// Locks that it holds, or is about to take.
    locks: AtomicU32,
    /// Handlers that ran, and the signal of the last one.
    handled: AtomicU32,
    last: AtomicU32,
    /// Signals deferred by locks, as bits from signal 1 on.
    waiting: AtomicU64,
}

// Thread-local storage of a library that is loaded at the start: addressed without a call, also in
// a handler. Zeros are a `Local`.
global_asm!(
    ".pushsection .tbss.megapipe_local,\"awT\",%nobits",
    ".hidden megapipe_local",
    ".globl megapipe_local",
    ".type megapipe_local, %object",
    ".balign 8",
    "megapipe_local:",
    ".zero {size}",
    ".size megapipe_local, {size}",
    ".popsection",
    size = const size_of::<Local>(),
);

#[inline(always)]
fn local() -> &'static Local {
    let local: *const Local;
    // SAFETY: only an address is computed, from the thread pointer and the offset of the words.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!(
            "mov {local}, qword ptr fs:[0]",
            "add {local}, qword ptr [rip + megapipe_local@GOTTPOFF]",
            local = out(reg) local,
            options(pure, nomem, nostack),
        );
        #[cfg(target_arch = "aarch64")]
        asm!(
            "mrs {local}, tpidr_el0",
            "adrp {far}, :gottprel:megapipe_local",
            "ldr {far}, [{far}, #:gottprel_lo12:megapipe_local]",
            "add {local}, {local}, {far}",
            local = out(reg) local,
            far = out(reg) _,
            options(pure, nomem, nostack),
        );
        // The reference stays in the thread: `local` is private, and its callers do not pass it on.
        &*local
    }
}

/// While it lives, signals of this thread are deferred.
#[derive(Debug)]
pub(crate) struct Quiet(());

impl Quiet {
    #[inline(always)]
    pub(crate) fn begin() -> Quiet {
        let locks = &local().locks;
        // A handler restores this value.
        locks.store(locks.load(Relaxed) + 1, Relaxed);
        compiler_fence(std::sync::atomic::Ordering::SeqCst);
        Quiet(())
    }
}

impl Drop for Quiet {
    #[inline(always)]
    fn drop(&mut self) {
        let local = local();
        compiler_fence(std::sync::atomic::Ordering::SeqCst);
        let left = local.locks.load(Relaxed).saturating_sub(1);
        local.locks.store(left, Relaxed);
        if left == 0 && local.waiting.load(Relaxed) != 0 {
            unblock_deferred();
        }
    }
}

/// Whether this is a handler on an alternate stack that is too small for exchanges with the
/// monitor.
pub(crate) fn is_on_small_stack() -> bool {
    const ENOUGH: usize = 64 << 10;
    if !has_begun() || mode::is_confined() {
        return false;
    }
    // SAFETY: zeros are a stack, and there is room for one.
    let stack = unsafe {
        let mut stack: libc::stack_t = std::mem::zeroed();
        libc::sigaltstack(null(), &raw mut stack);
        stack
    };
    stack.ss_flags & libc::SS_ONSTACK != 0 && stack.ss_size < ENOUGH
}

/// In the child of a fork, which may continue elsewhere than its parent: it holds no lock.
pub(crate) fn forked() {
    local().locks.store(0, Relaxed);
    if local().waiting.load(Relaxed) != 0 {
        unblock_deferred();
    }
}

/// Unblocks the deferred signals.
#[cold]
fn unblock_deferred() {
    let waited = local().waiting.swap(0, Relaxed);
    real::kept_errno(|| change_mask(libc::SIG_UNBLOCK, waited));
}

fn change_mask(how: c_int, signals: u64) {
    // The kernel's own set is these bits. SAFETY: a set to read; the old one is not returned.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const signals, null_mut::<u64>(), size_of::<u64>())
    };
}

fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// Handlers that ran in this thread.
#[inline]
pub(crate) fn handled() -> u32 {
    local().handled.load(Relaxed)
}

/// Whether the kernel would have ended a call with EINTR that has waited since [`handled`] was
/// `since`: readiness calls always (signal(7)), others unless the handler was installed with
/// SA_RESTART.
#[inline]
pub(crate) fn end_a_wait(since: u32, restarts: impl FnOnce() -> bool) -> bool {
    handled() != since && !(last_restarts() && restarts())
}

#[cold]
fn last_restarts() -> bool {
    // Below `MOST`: it is a signal's number.
    let signal = local().last.load(Relaxed) as c_int;
    action(signal).is_some_and(|action| action.sa_flags & libc::SA_RESTART != 0)
}

/// The kernel's action for a signal.
fn action(signal: c_int) -> Option<libc::sigaction> {
    // SAFETY: zeros are an action, and there is room for one.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        (real::sigaction(signal, null(), &raw mut action) == 0).then_some(action)
    }
}

/// The function that the kernel calls for signals with a handler, on the same stack. It jumps to
/// the handler, which is thus the innermost frame for debuggers and unwinders.
#[unsafe(naked)]
unsafe extern "C" fn entrance(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "call {arrives}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "ret",
        arrives = sym arrives,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "stp x29, x30, [sp, #-48]!",
        "stp x0, x1, [sp, #16]",
        "str x2, [sp, #32]",
        "bl {arrives}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldr x2, [sp, #32]",
        "ldp x29, x30, [sp], #48",
        "cbz x16, 2f",
        "br x16",
        "2:",
        "ret",
        arrives = sym arrives,
    );
}

/// The handler to be run now; null: it is deferred.
unsafe extern "C" fn arrives(signal: c_int, info: *mut siginfo_t, context: *mut ucontext_t) -> *mut c_void {
    let local = local();
    let handler = HANDLERS[signal.unsigned_abs() as usize].load(Relaxed);
    if is_of_an_instruction(signal) {
        // SAFETY: the kernel's frame of this signal.
        if unsafe { faults::recovers(context) } {
            return null_mut();
        }
        if handler.is_null() {
            // SAFETY: the kernel's information about this signal.
            unsafe { leave_to_kernel(signal, info) };
            return null_mut();
        }
        // If the handler returns, held locks are still held; if it leaves by siglongjmp, no signal
        // may be deferred for them.
        local.locks.store(0, Relaxed);
    } else if local.locks.load(Relaxed) > 0 {
        // SAFETY: the kernel's frame of this signal.
        if real::kept_errno(|| unsafe { send_again(signal, info, context) }) {
            // Another signal may interrupt this.
            local.waiting.fetch_or(bit(signal), Relaxed);
            return null_mut();
        }
    }
    local.last.store(signal.unsigned_abs(), Relaxed);
    local.handled.store(local.handled.load(Relaxed).wrapping_add(1), Relaxed);
    handler
}

/// Signals of faults: handled in any case, so that [`faults`] can recover.
const OF_FAULTS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];
/// The flags of that handler if the program has none.
const OF_GUARD: c_int = libc::SA_SIGINFO | libc::SA_ONSTACK;
/// Set first: handlers that are installed from here on go through [`entrance`].
static BEGUN: AtomicBool = AtomicBool::new(false);
/// Set last: so do all that were installed before, and faults are recovered from.
static GUARDS: AtomicBool = AtomicBool::new(false);
/// The flags of actions that the program left to the kernel.
static LEFT: [AtomicI32; MOST] = [const { AtomicI32::new(0) }; MOST];

/// Whether handlers go through [`entrance`], or are about to.
#[inline(always)]
pub(crate) fn has_begun() -> bool {
    BEGUN.load(Relaxed)
}

/// Whether faults can be recovered from.
#[inline(always)]
pub(crate) fn guards() -> bool {
    GUARDS.load(Acquire)
}

/// Before the first record of a socket, and before the first address of the program is tried.
/// False: system calls may be forbidden. Concurrent threads all run it: there is no lock that a
/// handler could find held.
#[cold]
pub(crate) fn begin() -> bool {
    if !mode::is_confined() && !guards() {
        BEGUN.store(true, Relaxed);
        (1..MOST as c_int).for_each(|signal| take_over(signal, null_mut()));
        GUARDS.store(true, Release);
    }
    guards()
}

/// Makes the program's action for a signal go through [`entrance`], too; `known` is its handler as
/// far as that is in [`HANDLERS`]. An action that another thread installs meanwhile is seen in the
/// kernel's previous action, and taken over as well.
fn take_over(signal: c_int, mut known: *mut c_void) {
    let Some(mut found) = action(signal) else { return };
    let mut expected = found;
    loop {
        let ours = match (found.sa_sigaction, handler_of(signal)) {
            (libc::SIG_DFL, _) if OF_FAULTS.contains(&signal) => guarded(signal, found),
            (libc::SIG_DFL | libc::SIG_IGN, _) => found,
            (handler, Some(place))
                if handler != entrance as *const () as usize && found.sa_flags & libc::SA_RESETHAND == 0 =>
            {
                let handler = handler as *mut c_void;
                if place
                    .compare_exchange(known, handler, Relaxed, Relaxed)
                    .is_err_and(|there| there != handler)
                {
                    // Another thread does it in [`install`].
                    return;
                }
                known = handler;
                libc::sigaction { sa_sigaction: entrance as *const () as usize, ..found }
            }
            _ => found,
        };
        if is_same(&ours, &expected) {
            return;
        }
        let Some(was) = exchange(signal, &ours).filter(|was| !is_same(was, &expected)) else { return };
        (found, expected) = (was, ours);
    }
}

/// The action that brings faults to [`entrance`] when the program leaves them to the kernel; a
/// handler of the program is called from there.
fn guarded(signal: c_int, found: libc::sigaction) -> libc::sigaction {
    if let Some(left) = LEFT.get(signal.unsigned_abs() as usize) {
        left.store(found.sa_flags, Relaxed);
    }
    let sa_flags = (found.sa_flags & !libc::SA_RESETHAND) | OF_GUARD;
    libc::sigaction { sa_sigaction: entrance as *const () as usize, sa_flags, ..found }
}

/// Whether both actions do the same.
fn is_same(one: &libc::sigaction, other: &libc::sigaction) -> bool {
    // SAFETY: the kernel's own set is the first 64 bits of libc's.
    let mask = |action: &libc::sigaction| unsafe { (&raw const action.sa_mask).cast::<u64>().read() };
    let all = |action: &libc::sigaction| (action.sa_sigaction, action.sa_flags, mask(action));
    all(one) == all(other)
}

/// Undoes the change of [`begin`] in what sigaction(2) returns for a signal that the program leaves
/// to the kernel.
pub(crate) fn without_guard(signal: c_int, action: &mut libc::sigaction) {
    if action.sa_sigaction == libc::SIG_DFL
        && OF_FAULTS.contains(&signal)
        && let Some(left) =
            LEFT.get(signal.unsigned_abs() as usize).filter(|_| action.sa_flags & OF_GUARD == OF_GUARD)
    {
        action.sa_flags = left.load(Relaxed);
    }
}

/// The program has no handler: the kernel applies its default.
///
/// # Safety
///
/// `info` is from the kernel.
#[cold]
unsafe fn leave_to_kernel(signal: c_int, info: *const siginfo_t) {
    // SAFETY: zeros are an action, SIG_DFL.
    exchange(signal, &unsafe { std::mem::zeroed() });
    // A fault recurs at its instruction. SAFETY: the caller's promise.
    let is_sent =
        unsafe { (*info).si_code <= 0 || (signal == libc::SIGBUS && (*info).si_code == libc::BUS_MCEERR_AO) };
    if is_sent {
        // It is blocked until the frame is left. SAFETY: only numbers.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::syscall(libc::SYS_gettid), signal) };
    }
}

/// Installs another action; returns the previous one.
fn exchange(signal: c_int, action: &libc::sigaction) -> Option<libc::sigaction> {
    // SAFETY: an action whose handler is this library's, the program's or none, and room for one.
    unsafe {
        let mut was: libc::sigaction = std::mem::zeroed();
        (real::sigaction(signal, &raw const *action, &raw mut was) == 0).then_some(was)
    }
}

/// Whether an instruction caused it, without whose handler the thread cannot continue.
fn is_of_an_instruction(signal: c_int) -> bool {
    let such = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
    such.contains(&signal)
}

/// Sends the signal to this thread again, and keeps it blocked when its frame is left.
unsafe fn send_again(signal: c_int, info: *mut siginfo_t, context: *mut ucontext_t) -> bool {
    let Some(action) = action(signal).filter(|_| !mode::is_confined()) else { return false };
    // SA_NODEFER leaves it unblocked.
    change_mask(libc::SIG_BLOCK, bit(signal));
    // SAFETY: system calls that access only the information, which exists for handlers that asked
    // for it.
    let status = unsafe {
        let (process, thread) = (libc::getpid(), libc::syscall(libc::SYS_gettid));
        match action.sa_flags & libc::SA_SIGINFO {
            0 => libc::syscall(libc::SYS_tgkill, process, thread, signal),
            _ => libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info),
        }
    };
    if status == 0 {
        // SAFETY: sigreturn(2) takes the mask from there.
        unsafe { libc::sigaddset(&raw mut (*context).uc_sigmask, signal) };
    }
    status == 0
}

/// The place of a signal's handler; `None`: the number is invalid, or [`entrance`] must not be used
/// for it.
fn handler_of(signal: c_int) -> Option<&'static AtomicPtr<c_void>> {
    usize::try_from(signal).ok().filter(|signal| *signal > 0).and_then(|signal| HANDLERS.get(signal))
}

/// Installs a signal's handler behind [`entrance`]; `call` installs what it is given, and returns
/// the previous one, or SIG_ERR. Returns the program's previous handler, or SIG_ERR.
///
/// `keeps`: the kernel keeps this handler after the first signal, and it is for this process.
pub(crate) fn install(
    signal: c_int,
    handler: usize,
    keeps: bool,
    call: impl FnOnce(usize) -> usize,
) -> usize {
    let ours = entrance as *const () as usize;
    let Some(place) = handler_of(signal) else { return call(handler) };
    if !has_begun() {
        let was = call(handler);
        return if has_begun() && was != libc::SIG_ERR { installed_late(signal, was) } else { was };
    }
    let is_function = !matches!(handler, libc::SIG_DFL | libc::SIG_IGN | libc::SIG_ERR) && handler != ours;
    if is_function && keeps {
        // Stored before the kernel may call it.
        let before = place.swap(handler as *mut c_void, Relaxed);
        let was = call(ours);
        if was == libc::SIG_ERR {
            place.store(before, Relaxed);
        }
        return if was == ours { before as usize } else { was };
    }
    let was = call(handler);
    let before = place.load(Relaxed);
    if handler == libc::SIG_DFL && was != libc::SIG_ERR && keeps && OF_FAULTS.contains(&signal) {
        let _ = place.compare_exchange(before, null_mut(), Relaxed, Relaxed);
        take_over(signal, null_mut());
    }
    if was == ours { before as usize } else { was }
}

/// A handler was installed without [`entrance`] while that began; the kernel's previous one is
/// `was`. Returns the program's previous handler.
#[cold]
pub(crate) fn installed_late(signal: c_int, was: usize) -> usize {
    let Some(place) = handler_of(signal) else { return was };
    let before = place.load(Relaxed);
    take_over(signal, before);
    if was == entrance as *const () as usize { before as usize } else { was }
}

/// The program's handler, if the kernel has `installed`.
pub(crate) fn as_installed(signal: c_int, installed: usize) -> usize {
    match handler_of(signal) {
        Some(place) if installed == entrance as *const () as usize => place.load(Relaxed) as usize,
        _ => installed,
    }
}
