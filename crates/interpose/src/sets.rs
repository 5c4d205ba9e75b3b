//! The epoll sets of this process that have promoted sockets: which of these are looked at by
//! the set's own waits, and what the kernel's events about them mean.
//!
//! A socket in a set's list is *hot* while it is not armed: its peer rings no bell for it,
//! only for the set when that says that it sleeps. Locks are taken in the order set, socket.
#![allow(unsafe_code)] // sets are leaked, and used by address

use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use ring::layout::SLEEPERS;
use rustc_hash::FxHashMap;

use crate::clock::Instant;
use crate::free_list::FreeList;
use crate::lock::{Held, Lock};
use crate::sockets::{self, Interest};

mod changes;
mod looks;
mod members;
mod ready;
mod shots;
mod waking;

pub(crate) use changes::{
    Change, Place, Wish, defer, demoted, forget, let_go, list, made, make, other_changed, outlives, refresh,
    take_out, tell, watched_from_outside,
};
use looks::Found;
pub(crate) use ready::{hidden, leave_number, prepare};
pub(crate) use waking::without_own;

/// The most sets of one process that are followed.
const MOST: usize = 4096;
const IN: u32 = libc::EPOLLIN as u32;
const IN_TOO: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
const OUT_TOO: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
pub(crate) const EDGE: u32 = libc::EPOLLET as u32;
const ONCE: u32 = libc::EPOLLONESHOT as u32;

/// One epoll set.
#[derive(Default)]
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
    /// TCP sockets were put into it.
    has_sockets: AtomicBool,
    /// It has, or had, a promoted socket or one of several sets: all others are in `others`.
    mixed: AtomicBool,
    /// Threads that wait in the kernel since before it had promoted sockets.
    pub(crate) unaware: AtomicU32,
    /// A thread sleeps by the number of the set's sleeper.
    is_numbered: AtomicBool,
    /// The kernel may report what no program asked for: see [`waking`].
    pub(crate) was_woken: AtomicBool,
    next_free: AtomicU32,
    inner: UnsafeCell<Inner>,
}

// SAFETY: `inner` is reached through `Guard` only, which holds the lock.
unsafe impl Sync for Set {}

#[derive(Default)]
pub(crate) struct Inner {
    number: u32,
    /// Sockets that waits look at: their numbers.
    list: Vec<u32>,
    /// What the last look found. Room that is kept.
    found: Vec<Found>,
    /// Of what the kernel told last: sockets whose peers have ended. Likewise.
    ended: Vec<Found>,
    /// When the newest bytes that were reported had been published.
    latest: u64,
    /// Promoted sockets by what the program has the kernel say about them.
    by_data: FxHashMap<u64, u32>,
    /// Everything else in the set, by the same, and its descriptor; TCP sockets as soon as it is mixed.
    others: FxHashMap<u64, i32>,
    /// Several of either have the same said, and one of them stands there.
    hides: bool,
    /// The program has the same said about several of them: nothing can be concluded from
    /// what the kernel says.
    ambiguous: bool,
    /// Sockets of whose changes the kernel has to be told.
    untold: Vec<u32>,
    /// Its word of the loop page.
    sleeper: Option<u32>,
    /// Threads that wait now, and whether one ever did: a set that is waited for by system calls of the program's own
    /// hears of what the kernel knows only.
    waiting: u32,
    awaited: bool,
    /// Somebody waits for the set itself; and in another set, where each arrival is an edge.
    watched: bool,
    in_a_set: bool,
    /// Several threads have waited at once: each socket asks for wake-ups of its own, and none by the number of the set's sleeper.
    crowd: bool,
    /// Somebody may wait in it who is no thread of this process in epoll_wait(2): its members' doorbells are not watched.
    over_tcp: bool,
    /// The kernel knows by what its waiters can be woken.
    wakes: bool,
    /// Where the next look begins, so that none is always last.
    turn: usize,
    asked_kernel: Instant,
    /// Something may be ready that only the kernel knows of.
    kernel_is_due: bool,
    /// Where a wait has room for one event: whose turn it was.
    kernels_turn: bool,
    /// [`Inner::called_at`].
    called_at: u64,
    /// A doorbell woke it: a look at the list is due.
    pub(crate) rang: bool,
    /// When the peer of one of its sockets counts as one that waits unseen.
    pub(crate) unseen: Option<Instant>,
}

static SETS: [AtomicPtr<Set>; MOST] = [const { AtomicPtr::new(null_mut()) }; MOST];
static USED: AtomicU32 = AtomicU32::new(0);
static FREE: FreeList = FreeList::new();
static TAKEN_SLEEPERS: AtomicU64 = AtomicU64::new(0);

/// A new set; `None`: too many.
pub(crate) fn add() -> Option<u32> {
    if let Some(number) = FREE.take(|number| &at(number).next_free) {
        at(number).names.store(1, Ordering::Relaxed);
        return Some(number);
    }
    let number = USED.fetch_add(1, Ordering::Relaxed);
    let place = SETS.get(number as usize)?;
    let set = Set {
        names: AtomicU32::new(1),
        epfd: AtomicI32::new(-1),
        inner: UnsafeCell::new(Inner::new(number)),
        ..Set::default()
    };
    place.store(Box::into_raw(Box::new(set)), Ordering::Release);
    Some(number)
}

/// One more descriptor names it.
pub(crate) fn name(number: u32) {
    at(number).names.fetch_add(1, Ordering::Relaxed);
}

/// One of its descriptors is gone. True: it was the last.
pub(crate) fn remove(number: u32) -> bool {
    if at(number).names.fetch_sub(1, Ordering::AcqRel) > 1 {
        return false;
    }
    let mut inner = at(number).lock();
    for socket in std::mem::take(&mut inner.list) {
        // Nobody looks at it now, and another set may get the number.
        if let Some(promoted) = sockets::at(socket).lock().promoted.as_deref_mut()
            && promoted.listed_in == number + 1
        {
            promoted.listed_in = 0;
            if !promoted.armed {
                let _ = promoted.arm();
            }
        }
    }
    let here = number + 1;
    let mut come_back = Vec::new();
    let mut forget = |socket_number: u32| {
        let mut guard = sockets::at(socket_number).lock_alone();
        if let Some(promoted) = guard.promoted.as_deref_mut() {
            promoted.outlives_set(number);
        }
        let interest = &mut guard.interest;
        if interest.registered.is_some_and(|registered| registered.set == here) {
            // Nor would the kernel be told what it seems to know of that one.
            interest.registered = None;
            interest.untold &= interest.set != here;
        }
        if interest.set == here {
            let Interest { sets, earlier, .. } = *interest;
            *interest = Interest { sets: sets.saturating_sub(1), earlier, ..Interest::default() };
            come_back.push((*interest, socket_number));
        } else if interest.earlier.is_some_and(|earlier| earlier.set == here) {
            interest.earlier = None;
            interest.sets = interest.sets.saturating_sub(1);
        }
    };
    // One that is promoted later would be taken for a member of the set that gets the number.
    if at(number).has_sockets.swap(false, Ordering::Relaxed) {
        sockets::all().for_each(|(number, _)| forget(number));
    }
    if let Some(sleeper) = inner.sleeper {
        TAKEN_SLEEPERS.fetch_and(!(1 << sleeper), Ordering::Relaxed);
    }
    *inner = Inner::new(number);
    let set = at(number);
    set.mixed.store(false, Ordering::SeqCst);
    set.untold.store(0, Ordering::Relaxed);
    set.is_numbered.store(false, Ordering::Relaxed);
    set.was_woken.store(false, Ordering::Relaxed);
    drop(inner);
    for (left, socket) in come_back {
        changes::come_back(left, socket);
    }
    at(number).promoted.store(0, Ordering::Relaxed);
    FREE.give(number, &at(number).next_free);
    true
}

pub(crate) fn at(number: u32) -> &'static Set {
    let set = SETS[number as usize].load(Ordering::Acquire);
    // SAFETY: the table has numbers that `add` gave only; sets are never freed.
    unsafe { &*set }
}

/// Before a fork: the child has the kernel's sets, too.
pub(crate) fn about_to_fork() {
    all().for_each(|set| set.lock().tell_kernel());
}

fn all() -> impl Iterator<Item = &'static Set> {
    let used = SETS.iter().take(USED.load(Ordering::Relaxed) as usize);
    // SAFETY: as for `at`; null where one is just being made.
    used.filter_map(|place| unsafe { place.load(Ordering::Acquire).as_ref() })
}

/// In the child of a fork.
pub(crate) fn forked() {
    FREE.reset();
    for set in all() {
        set.lock.reset();
        let mut inner = set.lock();
        inner.waiting = 0;
        set.is_numbered.store(false, Ordering::Relaxed);
        // The kernel's set is the parent's, too, who looks at its sockets: unless it is a set no more.
        inner.crowd = set.names.load(Ordering::Relaxed) > 0;
        inner.over_tcp = inner.crowd;
    }
}

impl Inner {
    fn new(number: u32) -> Inner {
        Inner { number, kernel_is_due: true, ..Inner::default() }
    }
}

impl Set {
    pub(crate) fn lock(&self) -> Guard<'_> {
        Guard { set: self, _held: self.lock.hold() }
    }

    /// Whether the kernel is told of it by this descriptor.
    pub(crate) fn is_named(&self, fd: i32) -> bool {
        self.epfd.load(Ordering::Relaxed) == fd
    }

    pub(crate) fn epfd(&self) -> i32 {
        self.epfd.load(Ordering::Relaxed)
    }

    pub(crate) fn is_used_by(&self, fd: i32) {
        self.epfd.store(fd, Ordering::Relaxed);
    }

    fn gets_sockets(&self) {
        if !self.has_sockets.load(Ordering::Relaxed) {
            self.has_sockets.store(true, Ordering::Relaxed);
        }
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
