//! poll(2) and its relatives: rings are looked at before the kernel is asked to sleep.
#![allow(unsafe_code)] // descriptors and events lie in the program's memory

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::time::Duration;

use libc::{pollfd, sigset_t, timespec};
use promote::Next;
use ring::WakeUp;

use crate::beside::Beside;
use crate::clock::{self, Instant};
use crate::doorbell::Doorbell;
use crate::epoll::Limit;
use crate::promoter;
use crate::real;
use crate::receive;
use crate::sets;
use crate::signals;
use crate::sockets::{Promoted, Socket, State};
use crate::spin::{KERNEL_EVERY, Sleep, Wait};
use crate::table::{self, Entry};
use crate::threads;
use crate::waiters::soonest;

thread_local! {
    /// When this thread last asked the kernel in such a wait.
    static ASKED: Cell<Option<Instant>> = const { Cell::new(None) };
}

const IN: i16 = libc::POLLIN | libc::POLLRDNORM;

/// Whether any of these is promoted, and asked for reading.
#[inline]
pub(crate) fn concerns(fds: &[pollfd]) -> bool {
    let mut concerns = false;
    for fd in fds {
        match table::entry(fd.fd) {
            Entry::Set(set) => sets::watched_from_outside(set, false),
            _ => concerns |= fd.events & IN != 0 && promoted(fd.fd).is_some(),
        }
    }
    concerns
}

/// The descriptors that a call waits for.
pub(crate) trait Waited {
    /// Those waited for until they can be read, and whether the kernel has just reported that.
    fn to_read(&self) -> impl Iterator<Item = (c_int, bool)>;

    /// Whether it asks of nothing but promoted sockets, and only whether these can be read.
    fn asks_rings_alone(&self) -> bool;

    /// As if the kernel had said that nothing is ready.
    fn clear(&mut self);

    /// As poll(2) has them, which can watch doorbells beside them.
    fn as_poll(&mut self) -> Option<&mut [pollfd]>;

    /// Has the kernel wait, and keeps what it says; its result.
    ///
    /// # Safety
    ///
    /// `time` is null or a time, `mask` null or a mask.
    unsafe fn ask(&mut self, time: *const timespec, mask: *const sigset_t) -> c_int;

    /// Corrects what the kernel said of those to read by what is [true](judge). Returns how many are ready.
    fn correct(&mut self) -> c_int;
}

impl Waited for [pollfd] {
    #[inline]
    fn to_read(&self) -> impl Iterator<Item = (c_int, bool)> {
        self.iter().filter(|fd| fd.events & IN != 0).map(|fd| (fd.fd, fd.revents & IN != 0))
    }

    fn asks_rings_alone(&self) -> bool {
        self.iter().all(|fd| fd.fd < 0 || (fd.events & !IN == 0 && promoted(fd.fd).is_some()))
    }

    fn clear(&mut self) {
        self.iter_mut().for_each(|fd| fd.revents = 0);
    }

    fn as_poll(&mut self) -> Option<&mut [pollfd]> {
        Some(self)
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

/// ppoll(2) for descriptors among which are promoted ones.
///
/// # Safety
///
/// `mask` is null or a mask.
pub(crate) unsafe fn wait<W: Waited + ?Sized>(fds: &mut W, limit: Limit, mask: *const sigset_t) -> c_int {
    let began = clock::now();
    let before = real::errno();
    let deadline = match limit {
        Limit::Never => None,
        Limit::After(limit) => Some(began + limit),
    };
    let at_once = matches!(limit, Limit::After(Duration::ZERO));
    let mut wait: Option<Wait> = None;
    let mut asked_kernel = ASKED.get();
    let handled = signals::handled();
    let mut overdue = Duration::ZERO;
    let mut has_room = true;
    let done = loop {
        let now = if wait.is_some() { clock::now() } else { began };
        let ready = any_ready(fds);
        // Who sleeps at once need not ask before.
        let due = |asked: Instant| now >= asked + KERNEL_EVERY;
        let spins = || Wait::new(deadline);
        let spins = !ready && !at_once && any_in_use(fds) && wait.get_or_insert_with(spins).spins();
        if ready && mask.is_null() && !asked_kernel.is_none_or(due) && fds.asks_rings_alone() {
            // What the kernel alone knows it is asked soon.
            fds.clear();
            let found = fds.correct();
            // Else another thread has read them.
            if found > 0 || at_once {
                break found;
            }
        }
        if ready || at_once || (spins && asked_kernel.is_none_or(due)) {
            asked_kernel = Some(now);
            ASKED.set(asked_kernel);
            // SAFETY: the caller's promise.
            let found = unsafe { ask(fds, Limit::After(Duration::ZERO), mask) };
            if found < 0 {
                break found;
            }
            let found = fds.correct();
            if found > 0 || at_once {
                break found;
            }
        }
        if spins && let Some(wait) = &mut wait {
            for fd in fds.to_read() {
                with(fd, |promoted, _| promoted.heat_alone());
            }
            if spin(fds, wait, handled) || (wait.spins() && signals::handled() == handled) {
                continue;
            }
            wait.stop();
        }
        // Who sleeps in the kernel hears bells.
        let few = fds.to_read().filter(|(fd, _)| promoted(*fd).is_some()).take(Beside::MOST + 1).count()
            <= Beside::MOST;
        let mut beside = fds.as_poll().filter(|_| few && has_room).and_then(|fds| Beside::of(fds));
        let Armed { news, unseen } = arm_all(fds, &mut beside, overdue);
        if news {
            are_awake(fds, &mut beside);
            continue;
        }
        if signals::end_a_wait(handled, || false) {
            are_awake(fds, &mut beside);
            real::set_errno(libc::EINTR);
            break -1;
        }
        let soon = unseen.map(|unseen| clock::now() + unseen);
        let left = match [deadline, soon].into_iter().flatten().min() {
            None => Limit::Never,
            Some(until) => Limit::After(until.saturating_sub(clock::now())),
        };
        let slept = Sleep::begin();
        // SAFETY: the caller's promise.
        let found = unsafe { ask_beside(fds, &mut beside, left, mask) };
        let errno = real::errno();
        overdue = unseen.filter(|_| found == 0).unwrap_or(overdue);
        slept.end(are_awake(fds, &mut beside));
        woke(fds);
        if found < 0 && errno == libc::EINVAL && beside.is_some() {
            // With the doorbells they may be more than RLIMIT_NOFILE.
            has_room = false;
            continue;
        }
        real::set_errno(errno);
        if found < 0 {
            break found;
        }
        let found = fds.correct();
        if found > 0 || deadline.is_some_and(|deadline| clock::now() >= deadline) {
            break found;
        }
    };
    let errno = real::errno();
    if done > 0
        && let Some(wait) = &mut wait
    {
        wait.found();
    }
    woke(fds);
    // The program may wait in a way of its own the next time.
    for (fd, said) in fds.to_read() {
        let Some(socket) = promoted(fd).filter(|socket| said || !socket.hears.load(Ordering::Relaxed)) else {
            continue;
        };
        let mut inner = socket.lock();
        let in_a_set = inner.interest.sets > 0;
        let Some(promoted) = inner.promoted.as_deref_mut() else { continue };
        if !at_once {
            promoted.is_awaited_here();
        }
        let rests = promoted.listed_in != 0 || promoted.armed || (!in_a_set && promoted.stays_awake());
        if !rests && promoted.arm().unwrap_or(true) {
            drop(inner);
            // Its set, in which another thread may sleep, is not woken for this either.
            receive::settle(socket);
        }
    }
    promoter::answers();
    real::set_errno(if done < 0 { errno } else { before });
    done
}

/// Of those that have to be looked at. `said`: the kernel calls it readable.
fn with<T>((fd, said): (c_int, bool), run: impl FnOnce(&mut Promoted, c_int) -> T) -> Option<T> {
    let socket = promoted(fd)?;
    if socket.hears.load(Ordering::Relaxed) && !said {
        return None;
    }
    Some(run(socket.lock().promoted.as_deref_mut()?, fd))
}

/// Whether a ring is in use among them, which is worth a look before sleeping.
fn any_in_use<W: Waited + ?Sized>(fds: &W) -> bool {
    fds.to_read().any(|(fd, _)| promoted(fd).is_some_and(|socket| !socket.hears.load(Ordering::Relaxed)))
}

fn has_bytes(promoted: &mut Promoted) -> bool {
    !matches!(promoted.connection.next(0), Ok(Next::Nothing | Next::Kernel))
}

fn any_ready<W: Waited + ?Sized>(fds: &W) -> bool {
    fds.to_read().any(|fd| with(fd, |promoted, _| has_bytes(promoted)).unwrap_or(false))
}

fn spin<W: Waited + ?Sized>(fds: &W, wait: &mut Wait, handled: u32) -> bool {
    loop {
        if any_ready(fds) {
            return true;
        }
        if !wait.again() || signals::handled() != handled {
            return false;
        }
    }
}

/// What a thread that is about to sleep finds.
struct Armed {
    /// Something is here already.
    news: bool,
    /// How soon one of the peers may count as one that waits unseen.
    unseen: Option<Duration>,
}

fn arm_all<W: Waited + ?Sized>(fds: &W, beside: &mut Option<Beside>, overdue: Duration) -> Armed {
    let (mut news, mut unseen) = (false, None);
    for (fd, _) in fds.to_read() {
        let Some(socket) = promoted(fd) else { continue };
        if threads::is_alone() && socket.hears.load(Ordering::Relaxed) {
            continue;
        }
        let mut inner = socket.lock();
        let in_a_set = inner.interest.sets > 0;
        if let Some(promoted) = inner.promoted.as_deref_mut() {
            promoted.is_used();
            // One that its epoll set looks at hears no bells of its own.
            if !promoted.will_hear() {
                let watched = (promoted.doorbell_to_sleep_by().filter(|_| !in_a_set))
                    .is_some_and(|bell| beside.as_mut().is_some_and(|beside| beside.push(bell)));
                news |= promoted.arm_to_sleep_by(if watched { WakeUp::Doorbell } else { WakeUp::Tcp });
            }
            promoted.is_slept_on();
            match promoted.unseen_for() {
                Some(soon) if soon <= overdue => promoted.ring_unseen(fd),
                soon => unseen = soonest(unseen, soon),
            }
        }
    }
    Armed { news, unseen }
}

/// After a sleep, or before one that is not to be, nobody watches these doorbells. When the peer called that woke this thread;
/// 0: not known.
fn are_awake<W: Waited + ?Sized>(fds: &W, beside: &mut Option<Beside>) -> u64 {
    let mut called = 0;
    for (fd, said) in fds.to_read() {
        let Some(socket) = promoted(fd).filter(|socket| said || !socket.hears.load(Ordering::Relaxed)) else {
            continue;
        };
        let mut inner = socket.lock();
        let Some(promoted) = inner.promoted.as_deref_mut() else { continue };
        let own = promoted.doorbell.as_ref().and_then(Doorbell::own);
        let rung = own.zip(beside.as_mut()).and_then(|(own, beside)| beside.is_rung(own)) == Some(true);
        promoted.is_awake(rung);
        if said || rung {
            called = called.max(promoted.connection.peer_woke_at());
        }
    }
    called
}

/// After a sleep: no other thread has to mind this one any more.
fn woke<W: Waited + ?Sized>(fds: &W) {
    if threads::is_alone() {
        return;
    }
    for socket in fds.to_read().filter_map(|(fd, _)| promoted(fd)) {
        if let Some(promoted) = socket.lock().promoted.as_deref_mut() {
            promoted.is_used();
        }
    }
}

/// Whether a descriptor can be read, which the kernel said or not, with the ring's bytes added and doorbells ignored; and
/// whether it has failed, which the kernel has reported to the library and does not report again. `None`: the kernel's
/// report stands.
pub(crate) fn judge(fd: c_int, said: bool) -> Option<(bool, bool)> {
    with((fd, said), |promoted, fd| {
        let readable = has_bytes(promoted) || (said && has_news(promoted, fd));
        (readable, promoted.connection.has_error())
    })
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
unsafe fn ask<W: Waited + ?Sized>(fds: &mut W, limit: Limit, mask: *const sigset_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { ask_beside(fds, &mut None, limit, mask) }
}

/// # Safety
///
/// `mask` is null or a mask.
unsafe fn ask_beside<W: Waited + ?Sized>(
    fds: &mut W,
    beside: &mut Option<Beside>,
    limit: Limit,
    mask: *const sigset_t,
) -> c_int {
    let time = match limit {
        Limit::Never => None,
        Limit::After(limit) => Some(clock::timespec(limit)),
    };
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    match (beside, fds.as_poll()) {
        // SAFETY: a time or null, and the caller's mask.
        (Some(beside), Some(fds)) => unsafe { beside.ask(fds, time, mask) },
        // SAFETY: as before.
        _ => unsafe { fds.ask(time, mask) },
    }
}
