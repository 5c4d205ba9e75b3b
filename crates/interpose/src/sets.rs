//! The epoll sets of this process that have promoted sockets: which of these are looked at by
//! the set's own waits, and what the kernel's events about them mean.
//!
//! A socket in a set's list is *hot* while it is not armed: its peer rings no bell for it,
//! only for the set when that says that it sleeps. Locks are taken in the order set, socket.
#![allow(unsafe_code)] // sets are leaked, and used by address

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use libc::epoll_event;
use promote::{KernelEnd, Next};
use ring::Front;
use ring::layout::SLEEPERS;

use crate::kernel::{self, Found};
use crate::lock::{Held, Lock};
use crate::promoter;
use crate::real;
use crate::sockets::{self, Interest, Promoted, Registered, Socket};

/// The most sets of one process that are followed.
const MOST: usize = 4096;
/// Sleeps of a set without bytes after which a socket is no longer looked at.
const COOLING: u8 = 16;
/// The kernel is asked for events of its own at least this often.
pub(crate) const KERNEL_EVERY: Duration = Duration::from_micros(50);

const IN: u32 = libc::EPOLLIN as u32;
const IN_TOO: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
const OUT_TOO: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
const EDGE: u32 = libc::EPOLLET as u32;
const ONCE: u32 = libc::EPOLLONESHOT as u32;

/// One epoll set.
pub(crate) struct Set {
    lock: Lock,
    /// Descriptors that name it.
    names: AtomicU32,
    /// One of them, as a program last used it.
    epfd: AtomicI32,
    /// Promoted sockets that it has.
    pub(crate) promoted: AtomicU32,
    /// 1: the kernel has to be told of changes.
    pub(crate) untold: AtomicU32,
    inner: UnsafeCell<Inner>,
}

// SAFETY: `inner` is reached through `Guard` only, which holds the lock.
unsafe impl Sync for Set {}

pub(crate) struct Inner {
    number: u32,
    /// Sockets that waits look at: their numbers.
    list: Vec<u32>,
    /// Promoted sockets by what the program has the kernel say about them.
    by_data: HashMap<u64, u32>,
    /// Everything else in the set, by the same, and its descriptor.
    others: HashMap<u64, i32>,
    /// The program has the same said about several of them: nothing can be concluded from
    /// what the kernel says.
    ambiguous: bool,
    /// Sockets of whose changes the kernel has to be told.
    untold: Vec<u32>,
    /// Its word of the loop page.
    sleeper: Option<u32>,
    /// Threads that wait now.
    waiting: u32,
    /// Several threads have waited at once: bells of each socket wake, none of the set's.
    crowd: bool,
    /// Where the next look begins, so that none is always last.
    turn: usize,
    asked_kernel: Instant,
    /// Something may be ready that only the kernel knows of.
    kernel_is_due: bool,
}

static SETS: [AtomicPtr<Set>; MOST] = [const { AtomicPtr::new(null_mut()) }; MOST];
static USED: AtomicU32 = AtomicU32::new(0);
static FREE: std::sync::Mutex<Vec<u32>> = std::sync::Mutex::new(Vec::new());
static TAKEN_SLEEPERS: AtomicU64 = AtomicU64::new(0);

/// A new set; `None`: too many.
pub(crate) fn add() -> Option<u32> {
    if let Some(number) = FREE.lock().ok()?.pop() {
        at(number).names.store(1, Ordering::Relaxed);
        // A fork may have found it among those that are no more.
        at(number).lock().crowd = false;
        return Some(number);
    }
    let number = USED.fetch_add(1, Ordering::Relaxed);
    let place = SETS.get(number as usize)?;
    let set = Set {
        lock: Lock::new(),
        names: AtomicU32::new(1),
        epfd: AtomicI32::new(-1),
        promoted: AtomicU32::new(0),
        untold: AtomicU32::new(0),
        inner: UnsafeCell::new(Inner {
            number,
            list: Vec::new(),
            by_data: HashMap::new(),
            others: HashMap::new(),
            ambiguous: false,
            untold: Vec::new(),
            sleeper: None,
            waiting: 0,
            crowd: false,
            turn: 0,
            asked_kernel: Instant::now(),
            kernel_is_due: true,
        }),
    };
    place.store(Box::into_raw(Box::new(set)), Ordering::Release);
    Some(number)
}

/// One more descriptor names it.
pub(crate) fn name(number: u32) {
    at(number).names.fetch_add(1, Ordering::Relaxed);
}

/// One of its descriptors is gone.
pub(crate) fn remove(number: u32) {
    if at(number).names.fetch_sub(1, Ordering::AcqRel) > 1 {
        return;
    }
    let mut inner = at(number).lock();
    inner.list.clear();
    inner.untold.clear();
    inner.others.clear();
    inner.ambiguous = false;
    for socket in std::mem::take(&mut inner.by_data).into_values() {
        let mut socket = sockets::at(socket).lock();
        if socket.interest.set == number + 1 {
            socket.interest = Interest::default();
        }
    }
    inner.waiting = 0;
    inner.crowd = false;
    if let Some(sleeper) = inner.sleeper.take() {
        TAKEN_SLEEPERS.fetch_and(!(1 << sleeper), Ordering::Relaxed);
    }
    drop(inner);
    at(number).promoted.store(0, Ordering::Relaxed);
    if let Ok(mut free) = FREE.lock() {
        free.push(number);
    }
}

pub(crate) fn at(number: u32) -> &'static Set {
    let set = SETS[number as usize].load(Ordering::Acquire);
    // SAFETY: the table has numbers that `add` gave only; sets are never freed.
    unsafe { &*set }
}

/// Before a fork: the child has the kernel's sets, too.
pub(crate) fn about_to_fork() {
    for place in SETS.iter().take(USED.load(Ordering::Relaxed) as usize) {
        let set = place.load(Ordering::Acquire);
        if !set.is_null() {
            // SAFETY: as for `at`.
            unsafe { &*set }.lock().tell_kernel();
        }
    }
}

/// In the child of a fork.
pub(crate) fn forked() {
    for place in SETS.iter().take(USED.load(Ordering::Relaxed) as usize) {
        let set = place.load(Ordering::Acquire);
        if !set.is_null() {
            // SAFETY: as for `at`.
            let set = unsafe { &*set };
            set.lock.reset();
            let mut inner = set.lock();
            inner.waiting = 0;
            // The kernel's set is the parent's, too, who looks at its sockets.
            inner.crowd = true;
        }
    }
}

impl Set {
    pub(crate) fn lock(&self) -> Guard<'_> {
        Guard { set: self, _held: self.lock.hold() }
    }
}

/// Holds a set's lock.
pub(crate) struct Guard<'a> {
    set: &'a Set,
    _held: Held<'a>,
}

impl std::ops::Deref for Guard<'_> {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        // SAFETY: the lock is held while the guard lives.
        unsafe { &*self.set.inner.get() }
    }
}

impl std::ops::DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        // SAFETY: as for `deref`; there is one guard at a time.
        unsafe { &mut *self.set.inner.get() }
    }
}

/// What a program asks of a set about one of its sockets.
#[derive(Clone, Copy)]
pub(crate) enum Change {
    Add(Wish),
    Modify(Wish),
    Delete,
}

/// The socket's descriptor in the set, and what is to be told about it.
#[derive(Clone, Copy)]
pub(crate) struct Wish {
    pub(crate) fd: i32,
    pub(crate) events: u32,
    pub(crate) data: u64,
}

/// The kernel has made a change.
pub(crate) fn changed(number: u32, epfd: i32, socket_number: u32, fd: i32, change: Change) {
    let mut inner = at(number).lock();
    let mut socket = sockets::at(socket_number).lock();
    let before = socket.interest;
    let registered =
        |wish: Wish| Some(Registered { epfd, fd: wish.fd, events: wish.events, data: wish.data });
    let now = match change {
        Change::Add(wish) | Change::Modify(wish) => {
            let elsewhere = before.set != 0 && (before.set != number + 1 || before.fd != wish.fd);
            if elsewhere {
                if let Some(promoted) = socket.promoted.as_deref_mut() {
                    promoted.show_in_kernel();
                }
                Interest { several: true, ..before }
            } else {
                Interest { registered: registered(wish), ..wish.interest(number, before) }
            }
        }
        Change::Delete if before.set == number + 1 && before.fd == fd => {
            Interest { several: before.several, ..Interest::default() }
        }
        Change::Delete => before,
    };
    inner.apply(socket_number, &mut socket, now);
}

/// The socket was promoted, or closed (`gone`): what its set has to know.
pub(crate) fn refresh(number: u32, socket_number: u32, gone: bool) {
    let mut inner = at(number).lock();
    let mut socket = sockets::at(socket_number).lock();
    if socket.interest.set == number + 1 {
        let now = if gone { Interest::default() } else { socket.interest };
        inner.apply(socket_number, &mut socket, now);
    }
}

/// A change that the kernel need not know of before it is asked for events, since the wait
/// itself looks at the socket: programs make several for each message. `None`: it is the
/// kernel's after all, and has been told what came before.
pub(crate) fn defer(
    number: u32,
    epfd: i32,
    socket_number: u32,
    fd: i32,
    change: Change,
) -> Option<Result<(), i32>> {
    let set = at(number);
    let mut inner = set.lock();
    let mut socket = sockets::at(socket_number).lock();
    let before = socket.interest;
    let present = before.set == number + 1 && before.fd == fd;
    // Edges and single shots begin anew with each change, also in what the kernel has to tell.
    let plain = |events: u32| events & (EDGE | ONCE | libc::EPOLLEXCLUSIVE as u32) == 0;
    let now = match change {
        _ if inner.waiting > 0
            || inner.crowd
            || inner.ambiguous
            || before.several
            || socket.promoted.is_none() =>
        {
            None
        }
        Change::Add(_) if present => return Some(Err(libc::EEXIST)),
        Change::Add(wish) if before.set == 0 && plain(wish.events) => Some(wish.interest(number, before)),
        Change::Modify(wish) if present && plain(wish.events) && plain(before.events) => {
            Some(wish.interest(number, before))
        }
        Change::Delete if present && plain(before.events) => {
            Some(Interest { registered: before.registered, untold: before.untold, ..Interest::default() })
        }
        _ => None,
    };
    let Some(mut now) = now else {
        tell(&mut socket.interest);
        return None;
    };
    let wanted =
        (now.set != 0).then_some(Registered { epfd, fd: now.fd, events: now.events, data: now.data });
    if wanted != now.registered && !now.untold {
        now.untold = true;
        inner.untold.push(socket_number);
        set.untold.store(1, Ordering::Relaxed);
    }
    set.epfd.store(epfd, Ordering::Relaxed);
    inner.apply(socket_number, &mut socket, now);
    Some(Ok(()))
}

/// Before one of a socket's several descriptors is closed: the kernel must know what the
/// program last asked of it.
pub(crate) fn settle(socket: &Socket) {
    tell(&mut socket.lock().interest);
}

/// Tells the kernel what it has not been told of one socket.
fn tell(interest: &mut Interest) {
    if !interest.untold {
        return;
    }
    interest.untold = false;
    let before = interest.registered;
    let epfd = match (before, interest.set) {
        (Some(before), 0) => before.epfd,
        (None, 0) => return,
        (_, set) => at(set - 1).epfd.load(Ordering::Relaxed),
    };
    let wanted = (interest.set != 0).then_some(Registered {
        epfd,
        fd: interest.fd,
        events: interest.events,
        data: interest.data,
    });
    let (operation, told) = match (before, wanted) {
        (None, Some(wanted)) => (libc::EPOLL_CTL_ADD, wanted),
        (Some(before), None) => (libc::EPOLL_CTL_DEL, before),
        (Some(before), Some(wanted)) if before != wanted => (libc::EPOLL_CTL_MOD, wanted),
        _ => return,
    };
    let mut event = epoll_event { events: told.events, u64: told.data };
    // SAFETY: an event to read.
    unsafe { real::epoll_ctl(told.epfd, operation, told.fd, &raw mut event) };
    interest.registered = wanted;
}

/// Somebody waits for the set itself, by poll(2) or in another set: nobody looks at its
/// sockets then, and each hears its own bells.
pub(crate) fn watched_from_outside(number: u32) {
    let mut inner = at(number).lock();
    if !inner.crowd {
        inner.tell_kernel();
        inner.share();
    }
}

impl Wish {
    fn interest(self, number: u32, before: Interest) -> Interest {
        Interest {
            set: number + 1,
            fd: self.fd,
            events: self.events,
            data: self.data,
            spent: false,
            several: before.several,
            registered: before.registered,
            untold: before.untold,
        }
    }
}

/// Something else than a TCP socket changed in the set: the kernel knows of it alone.
pub(crate) fn other_changed(number: u32, fd: i32, change: Option<Change>) {
    let mut inner = at(number).lock();
    inner.kernel_is_due = true;
    if let Some(Change::Add(wish) | Change::Modify(wish)) = change {
        inner.has_other(wish.data, fd);
    }
}

/// Has the set look at a socket whose ring holds bytes that no bell told of.
pub(crate) fn list(number: u32, socket: &'static Socket) {
    let mut inner = at(number).lock();
    let mut guard = socket.lock();
    if guard.interest.set != number + 1 {
        return;
    }
    let data = guard.interest.data;
    let Some(socket_number) = inner.by_data.get(&data).copied() else { return };
    if let Some(promoted) = guard.promoted.as_deref_mut() {
        inner.list(socket_number, promoted);
    }
}

/// A wait of one thread in a set.
impl Inner {
    /// A socket's interest in this set began, changed or ended, or the socket was promoted.
    fn apply(&mut self, number: u32, socket: &mut sockets::Guard<'_>, now: Interest) {
        let here = self.number + 1;
        let before = std::mem::replace(&mut socket.interest, now);
        let known = before.set == here && self.by_data.get(&before.data) == Some(&number);
        if known && (now.set != here || now.data != before.data) {
            self.by_data.remove(&before.data);
        }
        // One that left stays in the list, and hot, until the set sleeps: programs take
        // sockets out and put them in again all the time.
        if before.set == here && self.others.get(&before.data) == Some(&before.fd) {
            self.others.remove(&before.data);
        }
        match socket.promoted.as_deref_mut() {
            None => {
                self.kernel_is_due = true;
                if now.set == here {
                    self.has_other(now.data, now.fd);
                }
            }
            Some(promoted) if now.set == here => {
                // What a change of the interest asks for is told anew, as epoll_ctl(2) does.
                promoted.reported = u64::MAX;
                promoted.told_writable = false;
                let same = self.by_data.insert(now.data, number).is_some_and(|other| other != number);
                if same || self.others.contains_key(&now.data) {
                    self.ambiguous = true;
                }
                if promoted.listed_in != here && !promoted.armed {
                    promoted.connection.mute();
                    promoted.armed = true;
                }
                if now.events & OUT_TOO != 0 || promoted.connection.look_again().unwrap_or(true) {
                    self.list(number, promoted);
                }
            }
            Some(_) => {}
        }
        at(self.number).promoted.store(self.by_data.len() as u32, Ordering::Relaxed);
    }

    fn has_other(&mut self, data: u64, fd: i32) {
        self.others.insert(data, fd);
        if self.by_data.contains_key(&data) {
            self.ambiguous = true;
        }
    }

    /// Tells the kernel what it was not told; before each time it is asked for events.
    pub(crate) fn tell_kernel(&mut self) {
        if self.untold.is_empty() {
            return;
        }
        while let Some(number) = self.untold.pop() {
            tell(&mut sockets::at(number).lock().interest);
        }
        at(self.number).untold.store(0, Ordering::Relaxed);
    }

    /// Waits of this set look at it from now on.
    fn list(&mut self, number: u32, promoted: &mut Promoted) {
        if promoted.listed_in != self.number + 1 {
            promoted.listed_in = self.number + 1;
            // It may be there from an earlier time.
            if !self.list.contains(&number) {
                self.list.push(number);
            }
        }
    }

    /// Whether there is anything to look at.
    pub(crate) fn looks(&self) -> bool {
        !self.list.is_empty()
    }

    /// Whether the kernel has to be asked by now.
    pub(crate) fn kernel_is_due(&self, now: Instant) -> bool {
        self.kernel_is_due || now >= self.asked_kernel + KERNEL_EVERY
    }

    pub(crate) fn kernel_was_asked(&mut self, now: Instant) {
        self.kernel_is_due = false;
        self.asked_kernel = now;
    }

    /// A thread begins to wait; [`Self::leave`] ends that.
    pub(crate) fn enter(&mut self) {
        self.waiting += 1;
        if (self.waiting > 1 || self.ambiguous) && !self.crowd {
            self.tell_kernel();
            self.share();
        }
        if self.sleeper.is_none() && !self.crowd {
            self.sleeper = take_sleeper();
        }
    }

    pub(crate) fn leave(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// From here on several threads or processes wait in this set: each socket's own bells
    /// wake them.
    fn share(&mut self) {
        self.crowd = true;
        for number in &self.list {
            if let Some(promoted) = sockets::at(*number).lock().promoted.as_deref_mut()
                && !promoted.armed
            {
                let _ = promoted.arm();
            }
        }
    }

    fn sleeper_of(&self, promoted: &Promoted) -> Option<u32> {
        self.sleeper
            .filter(|_| !self.crowd && !promoted.shown_in_kernel && !promoted.connection.has_several_users())
    }

    /// Events of the sockets in the list that have bytes, as many as there is room for.
    pub(crate) fn collect(&mut self, epfd: i32, events: &mut [epoll_event]) -> usize {
        let mut count = 0;
        let length = self.list.len();
        for place in 0..length {
            if count == events.len() {
                break;
            }
            let number = self.list[(self.turn + place) % length];
            let socket = sockets::at(number);
            let mut guard = socket.lock();
            let inner = &mut *guard;
            let (interest, Some(promoted)) = (&mut inner.interest, inner.promoted.as_deref_mut()) else {
                continue;
            };
            if promoted.listed_in != self.number + 1 || interest.set != self.number + 1 || interest.spent {
                continue;
            }
            let edge = interest.events & EDGE != 0;
            let mut ready = 0;
            if interest.events & IN != 0 && promoted.connection.look_again().unwrap_or(true) {
                let arrived = promoted.connection.arrived();
                if !edge || promoted.reported != arrived {
                    promoted.reported = arrived;
                    promoted.quiet = 0;
                    ready |= interest.events & IN_TOO;
                }
            }
            let writable = interest.events & OUT_TOO;
            if writable != 0 {
                if !promoted.connection.sends_to_ring() || promoted.connection.kernel_has_ended() {
                    // The kernel knows.
                    self.kernel_is_due = true;
                } else if !edge || !promoted.told_writable || ready != 0 {
                    promoted.told_writable = true;
                    ready |= writable;
                }
            }
            if ready == 0 {
                continue;
            }
            if ready & IN_TOO != 0
                && let Some(sleeper) = self.sleeper_of(promoted)
            {
                promoted.heat(sleeper);
            }
            spend(epfd, interest);
            events[count] = epoll_event { events: ready, u64: interest.data };
            count += 1;
        }
        self.turn = if length == 0 { 0 } else { (self.turn + 1) % length };
        count
    }

    /// What of the kernel's events is true of promoted sockets: bells are none. Keeps the
    /// true ones, merged with the first `told` ones; returns how many there are in all.
    pub(crate) fn filter(&mut self, epfd: i32, events: &mut [epoll_event], told: usize) -> usize {
        if self.ambiguous {
            return events.len();
        }
        let mut kept = told;
        for place in told..events.len() {
            let mut event = events[place];
            let data = event.u64;
            if let Some(number) = self.by_data.get(&data).copied() {
                let mut guard = sockets::at(number).lock();
                let inner = &mut *guard;
                if let Some(promoted) = inner.promoted.as_deref_mut() {
                    let fd = inner.interest.fd;
                    if event.events & IN_TOO != 0 && !self.has_news(number, promoted, fd) {
                        event.events &= !IN_TOO;
                    }
                    if promoted.connection.has_error() {
                        // The kernel told us, and no longer tells the program.
                        event.events |= libc::EPOLLERR as u32;
                    }
                    promoted.reported = promoted.connection.arrived();
                    if inner.interest.events & ONCE != 0 {
                        if event.events == 0 {
                            rearm(epfd, &inner.interest);
                        } else {
                            inner.interest.spent = true;
                        }
                    }
                }
                if let Some(before) = events[..told].iter_mut().find(|before| before.u64 == data) {
                    before.events |= event.events;
                    continue;
                }
            }
            if event.events != 0 {
                events[kept] = event;
                kept += 1;
            }
        }
        kept
    }

    /// Whether a socket that the kernel calls readable has anything to read. Bells are taken
    /// out, unless the kernel has to keep the socket readable for other threads.
    fn has_news(&mut self, number: u32, promoted: &mut Promoted, fd: i32) -> bool {
        let sleeper = self.sleeper_of(promoted);
        let ring = |promoted: &mut Promoted| {
            matches!(promoted.connection.next(0), Ok(Next::Ring(_) | Next::End(_)) | Err(_))
        };
        if ring(promoted) && sleeper.is_none() {
            return true;
        }
        if promoted.connection.reads_from_kernel() {
            // The kernel knows best, and its ring is not in use.
            return true;
        }
        let mut news = false;
        match kernel::look(fd) {
            Found::Nothing => {}
            Found::End => news = true,
            Found::Failed(errno) => {
                promoted.connection.kernel_ended(KernelEnd::Failed(errno));
                news = true;
            }
            Found::Bytes(unread) => match promoted.connection.front(unread) {
                Ok(Front::Bells(bells)) => {
                    let dropped = promoted.drop_bells_of(fd, bells);
                    // Data may lie behind them.
                    news = dropped < unread;
                }
                Ok(Front::Data(_) | Front::Later) | Err(_) => news = true,
            },
        }
        match sleeper {
            Some(sleeper) => {
                self.list(number, promoted);
                promoted.heat(sleeper);
            }
            None => {
                if promoted.arm().unwrap_or(true) {
                    self.list(number, promoted);
                }
            }
        }
        news | ring(promoted)
    }

    /// Before this thread sleeps in the kernel. False: something is here.
    pub(crate) fn go_to_sleep(&mut self) -> bool {
        let here = self.number + 1;
        let mut cooled = false;
        for place in 0..self.list.len() {
            let mut guard = sockets::at(self.list[place]).lock();
            let inner = &mut *guard;
            let Some(promoted) = inner.promoted.as_deref_mut().filter(|promoted| promoted.listed_in == here)
            else {
                cooled = true;
                continue;
            };
            promoted.connection.tell_counts();
            let ours = inner.interest.set == here;
            let wanted = ours && inner.interest.events & IN != 0 && !inner.interest.spent;
            promoted.quiet = promoted.quiet.saturating_add(1);
            let cools = promoted.quiet > COOLING || !ours;
            if !promoted.armed && (!wanted || cools || self.sleeper_of(promoted) != Some(promoted.sleeper)) {
                // A bell on it would not wake this set, or it only costs.
                if !wanted {
                    promoted.connection.mute();
                    promoted.armed = true;
                } else if promoted.arm().unwrap_or(true) {
                    return false;
                }
            }
            if cools && (!ours || !promoted.connection.look_again().unwrap_or(true)) {
                promoted.listed_in = 0;
                cooled = true;
            }
        }
        if cooled {
            self.list.retain(|number| {
                let listed = |promoted: &Promoted| promoted.listed_in == here;
                sockets::at(*number).lock().promoted.as_deref().is_some_and(listed)
            });
        }
        if let Some(sleeper) = self.sleeper.filter(|_| !self.crowd) {
            promoter::sleep(sleeper);
            if self.any_ready() {
                promoter::wake(sleeper);
                return false;
            }
            return true;
        }
        !self.any_ready()
    }

    /// After a sleep.
    pub(crate) fn woke(&self) {
        if let Some(sleeper) = self.sleeper {
            promoter::wake(sleeper);
        }
    }

    fn any_ready(&self) -> bool {
        self.list.iter().any(|number| {
            let mut guard = sockets::at(*number).lock();
            let inner = &mut *guard;
            let Some(promoted) = inner.promoted.as_deref_mut() else { return false };
            inner.interest.set == self.number + 1
                && inner.interest.events & IN != 0
                && !inner.interest.spent
                && promoted.connection.look_again().unwrap_or(true)
                && (inner.interest.events & EDGE == 0 || promoted.reported != promoted.connection.arrived())
        })
    }
}

impl Promoted {
    /// Others than its set wait for it: what comes is seen in the kernel from here on.
    pub(crate) fn show_in_kernel(&mut self) {
        if !self.shown_in_kernel {
            self.shown_in_kernel = true;
            self.connection.prefer_tcp();
            // What is here already, and had no bell, is seen by the first set alone.
            let _ = self.arm();
        }
    }

    /// From here on the set looks at it by itself while it is awake.
    pub(crate) fn heat(&mut self, sleeper: u32) {
        if self.shown_in_kernel {
            return;
        }
        if self.sleeper != sleeper {
            if !self.armed {
                self.connection.mute();
                self.armed = true;
            }
            self.connection.looked_at_by(sleeper);
            self.sleeper = sleeper;
        }
        if self.armed {
            self.connection.disarm();
            self.armed = false;
        }
    }
}

/// EPOLLONESHOT is used up by an event that the kernel does not know of.
fn spend(epfd: i32, interest: &mut Interest) {
    if interest.events & ONCE != 0 {
        interest.spent = true;
        let mut nothing = epoll_event { events: ONCE, u64: interest.data };
        // SAFETY: an event to read.
        unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, interest.fd, &raw mut nothing) };
    }
}

/// An event that was none must not use EPOLLONESHOT up.
fn rearm(epfd: i32, interest: &Interest) {
    let mut event = epoll_event { events: interest.events, u64: interest.data };
    // SAFETY: as for `spend`.
    unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, interest.fd, &raw mut event) };
}

fn take_sleeper() -> Option<u32> {
    let mut taken = TAKEN_SLEEPERS.load(Ordering::Relaxed);
    loop {
        let free = taken.trailing_ones();
        if free >= SLEEPERS {
            return None;
        }
        match TAKEN_SLEEPERS.compare_exchange(taken, taken | 1 << free, Ordering::Relaxed, Ordering::Relaxed)
        {
            Ok(_) => return Some(free),
            Err(now) => taken = now,
        }
    }
}
