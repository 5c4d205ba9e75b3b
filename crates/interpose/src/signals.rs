//! Signals that a thread handles while it is in a call of ours.
//!
//! A call that looks at rings is no system call that a signal could end, and a handler may do there what no lock of
//! ours survives: leave by siglongjmp(3), or use the connection whose lock is held. So handlers are reached by way
//! of [`arrives`], which counts them, and has those wait that come while the thread holds a lock: they are sent to
//! it again, blocked until it holds none. All that begins with the first TCP socket: before, each handler is the
//! kernel's to call, on whatever stack the program gave it.
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

/// Numbers of signals are below this (NSIG of Linux is 64).
const MOST: usize = 65;

/// What programs have handle their signals, where the kernel knows [`entrance`] only.
static HANDLERS: [AtomicPtr<c_void>; MOST] = [const { AtomicPtr::new(null_mut()) }; MOST];

/// What is known of one thread, for itself and for the handlers that interrupt it.
#[repr(C)]
struct Local {
    /// Locks that it holds, or is about to.
    locks: AtomicU32,
    /// Handlers that ran, and the signal of the last one.
    handled: AtomicU32,
    last: AtomicU32,
    /// Signals that wait for the locks, as bits from signal 1 on.
    waiting: AtomicU64,
}

// Thread-local as a library has it that is loaded at the program's start: found without a call, also in a handler.
// Zeros are a `Local`.
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
    // SAFETY: an address is computed, and nothing else touched: the thread's pointer, and the words' distance to it.
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
        // The reference does not leave the thread: `local` is private, and its users keep it to themselves.
        &*local
    }
}

/// While it lives, signals of this thread wait.
#[derive(Debug)]
pub(crate) struct Quiet(());

impl Quiet {
    #[inline(always)]
    pub(crate) fn begin() -> Quiet {
        let locks = &local().locks;
        // A handler leaves this as it found it.
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
            let_them_come();
        }
    }
}

/// Whether this is a handler on an alternate stack, too small for what the monitor is asked and answers.
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

/// In the child of a fork, which may go on elsewhere than its parent: it holds nothing.
pub(crate) fn forked() {
    local().locks.store(0, Relaxed);
    if local().waiting.load(Relaxed) != 0 {
        let_them_come();
    }
}

/// Those that waited.
#[cold]
fn let_them_come() {
    let waited = local().waiting.swap(0, Relaxed);
    real::kept_errno(|| change_mask(libc::SIG_UNBLOCK, waited));
}

fn change_mask(how: c_int, signals: u64) {
    // The kernel's own set is these bits. SAFETY: a set to read; the old one is not asked for.
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

/// Whether the kernel would have ended a call with EINTR that waits since [`handled`] was `since`: readiness calls always
/// (signal(7)), others unless the handler was installed with SA_RESTART.
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

/// What the kernel does at a signal.
fn action(signal: c_int) -> Option<libc::sigaction> {
    // SAFETY: zeros are an action, and there is room for one.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        (real::sigaction(signal, null(), &raw mut action) == 0).then_some(action)
    }
}

/// What the kernel calls for signals that have a handler, in its place and with its stack: the handler itself is jumped
/// to, and is at the top of what a debugger or an unwinder sees.
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

/// The handler that is to run now; null: it runs later.
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
        // If the handler comes back, what is locked stays locked; if it leaves by siglongjmp, no signal may wait for
        // that.
        local.locks.store(0, Relaxed);
    } else if local.locks.load(Relaxed) > 0 {
        // SAFETY: the kernel's frame of this signal.
        if real::kept_errno(|| unsafe { send_again(signal, info, context) }) {
            // Another may interrupt this.
            local.waiting.fetch_or(bit(signal), Relaxed);
            return null_mut();
        }
    }
    local.last.store(signal.unsigned_abs(), Relaxed);
    local.handled.store(local.handled.load(Relaxed).wrapping_add(1), Relaxed);
    handler
}

/// Signals of faults, which are handled so that [`faults`] can go on, whether the program handles them or not.
const OF_FAULTS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];
/// So, where it does not.
const OF_GUARD: c_int = libc::SA_SIGINFO | libc::SA_ONSTACK;
/// It begins: handlers that are installed from here on are.
static BEGUN: AtomicBool = AtomicBool::new(false);
/// It has begun: all that were installed before are, and faults are recovered from.
static GUARDS: AtomicBool = AtomicBool::new(false);
/// The flags that go with what the program left to the kernel.
static LEFT: [AtomicI32; MOST] = [const { AtomicI32::new(0) }; MOST];

/// Whether handlers are reached by [`entrance`], or just come to be.
#[inline(always)]
pub(crate) fn has_begun() -> bool {
    BEGUN.load(Relaxed)
}

/// Whether faults can be recovered from.
#[inline(always)]
pub(crate) fn guards() -> bool {
    GUARDS.load(Acquire)
}

/// Before the first record of a socket, and before the first address of the program's that is tried. False: there may
/// be no system call for it. Threads that do it at the same time all go through it: there is no lock that a handler could
/// find held.
#[cold]
pub(crate) fn begin() -> bool {
    if !mode::is_confined() && !guards() {
        BEGUN.store(true, Relaxed);
        (1..MOST as c_int).for_each(|signal| take_over(signal, null_mut()));
        GUARDS.store(true, Release);
    }
    guards()
}

/// Has what the program has the kernel do at a signal come by [`entrance`], too; `known` is its handler as far as that is
/// in [`HANDLERS`]. What another thread installs meanwhile is found by what the kernel had last, and taken over as well.
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
                    // Another thread has [`install`] do it.
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

/// The action that brings faults to [`entrance`] where the program leaves them to the kernel; a handler of the program's
/// is called from there.
fn guarded(signal: c_int, found: libc::sigaction) -> libc::sigaction {
    if let Some(left) = LEFT.get(signal.unsigned_abs() as usize) {
        left.store(found.sa_flags, Relaxed);
    }
    let sa_flags = (found.sa_flags & !libc::SA_RESETHAND) | OF_GUARD;
    libc::sigaction { sa_sigaction: entrance as *const () as usize, sa_flags, ..found }
}

/// Whether the kernel does the same by both.
fn is_same(one: &libc::sigaction, other: &libc::sigaction) -> bool {
    // SAFETY: the kernel's own set is the first 64 bits of libc's.
    let mask = |action: &libc::sigaction| unsafe { (&raw const action.sa_mask).cast::<u64>().read() };
    let all = |action: &libc::sigaction| (action.sa_sigaction, action.sa_flags, mask(action));
    all(one) == all(other)
}

/// What sigaction(2) returns of a signal that the program leaves to the kernel, without what [`begin`] added.
pub(crate) fn without_guard(signal: c_int, action: &mut libc::sigaction) {
    if action.sa_sigaction == libc::SIG_DFL
        && OF_FAULTS.contains(&signal)
        && let Some(left) =
            LEFT.get(signal.unsigned_abs() as usize).filter(|_| action.sa_flags & OF_GUARD == OF_GUARD)
    {
        action.sa_flags = left.load(Relaxed);
    }
}

/// The program has no handler: the kernel does what it does of itself.
///
/// # Safety
///
/// `info` is the kernel's.
#[cold]
unsafe fn leave_to_kernel(signal: c_int, info: *const siginfo_t) {
    // SAFETY: zeros are an action, SIG_DFL.
    exchange(signal, &unsafe { std::mem::zeroed() });
    // What an instruction brought it brings again. SAFETY: the caller's promise.
    let is_sent =
        unsafe { (*info).si_code <= 0 || (signal == libc::SIGBUS && (*info).si_code == libc::BUS_MCEERR_AO) };
    if is_sent {
        // It is blocked until the frame is left. SAFETY: numbers.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::syscall(libc::SYS_gettid), signal) };
    }
}

/// Has the kernel do another thing at a signal; what it did till then.
fn exchange(signal: c_int, action: &libc::sigaction) -> Option<libc::sigaction> {
    // SAFETY: an action of which the handler is this library's, the program's own or none, and room for one.
    unsafe {
        let mut was: libc::sigaction = std::mem::zeroed();
        (real::sigaction(signal, &raw const *action, &raw mut was) == 0).then_some(was)
    }
}

/// Without its handler the thread cannot go on.
fn is_of_an_instruction(signal: c_int) -> bool {
    let such = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
    such.contains(&signal)
}

/// Sends it to this thread, where it stays blocked when its frame is left.
unsafe fn send_again(signal: c_int, info: *mut siginfo_t, context: *mut ucontext_t) -> bool {
    let Some(action) = action(signal).filter(|_| !mode::is_confined()) else { return false };
    // SA_NODEFER leaves it open.
    change_mask(libc::SIG_BLOCK, bit(signal));
    // SAFETY: system calls without memory but the information, which is there for those who asked for it.
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

/// What [`entrance`] stands for: `None` for no signal at all, and where it must not stand.
fn handler_of(signal: c_int) -> Option<&'static AtomicPtr<c_void>> {
    usize::try_from(signal).ok().filter(|signal| *signal > 0).and_then(|signal| HANDLERS.get(signal))
}

/// Has a signal's handler reached by way of [`entrance`]; `call` installs what it is given, and returns what
/// was installed before, or SIG_ERR. Returns what the program had installed before, or SIG_ERR.
///
/// `keeps`: the kernel goes on with this handler after the first signal, and this process is the one that it is for.
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
        return if has_begun() && was != libc::SIG_ERR { came_late(signal, was) } else { was };
    }
    let is_function = !matches!(handler, libc::SIG_DFL | libc::SIG_IGN | libc::SIG_ERR) && handler != ours;
    if is_function && keeps {
        // Before the kernel may call it.
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

/// Something was installed past [`entrance`], before which the kernel had `was`, while it began. Returns what the program
/// had installed.
#[cold]
pub(crate) fn came_late(signal: c_int, was: usize) -> usize {
    let Some(place) = handler_of(signal) else { return was };
    let before = place.load(Relaxed);
    take_over(signal, before);
    if was == entrance as *const () as usize { before as usize } else { was }
}

/// What the program has installed, if the kernel knows `installed`.
pub(crate) fn as_installed(signal: c_int, installed: usize) -> usize {
    match handler_of(signal) {
        Some(place) if installed == entrance as *const () as usize => place.load(Relaxed) as usize,
        _ => installed,
    }
}
