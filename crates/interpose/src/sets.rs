//! The epoll sets of this process that have promoted sockets: which of these the set's own waits
//! poll, and what the kernel's events about them imply.
//!
//! A socket in a set's list is *hot* while it is not armed: its peer sends no wake-up for it, only
//! for the set while the set is marked asleep. Lock order: set, then socket.
#![allow(unsafe_code)] // sets are leaked, and used by address

use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use ring::layout::WAITERS;
use rustc_hash::FxHashMap;

use crate::clock::Instant;
use crate::free_list::FreeList;
use crate::lock::{Held, Lock};
use crate::sockets::{self, Interest};

mod changes;
mod members;
mod oneshot;
mod ready;
mod wait;
mod waking;

pub(crate) use changes::{
    Change, Place, Request, defer, demoted, flush_interest, forget, let_go, list, make, other_changed,
    outlives, polled_from_outside, record, refresh, remove_from_all,
};
pub(crate) use ready::prepare;
use wait::Found;
pub(crate) use waking::without_own;

/// Epoll sets of one process that are tracked at most.
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
    /// Descriptors of this set.
    names: AtomicU32,
    /// The descriptor that a program used last.
    epfd: AtomicI32,
    /// Promoted sockets in this set.
    pub(crate) promoted: AtomicU32,
    /// 1: some epoll_ctl(2) calls are deferred.
    pub(crate) deferred: AtomicU32,
    /// TCP sockets were added to it.
    has_sockets: AtomicBool,
    /// It has, or had, a promoted socket or a socket that is in several sets. From then on `others`
    /// holds all other members.
    mixed: AtomicBool,
    /// Threads that have waited in the kernel since before the set had promoted sockets.
    pub(crate) unaware: AtomicU32,
    /// A thread sleeps, and the loop page marks this set's waiter asleep.
    is_numbered: AtomicBool,
    /// The kernel may report events of our own descriptors: see [`waking`].
    pub(crate) was_woken: AtomicBool,
    next_free: AtomicU32,
    inner: UnsafeCell<Inner>,
}

// SAFETY: `inner` is reached through `Guard` only, which holds the lock.
unsafe impl Sync for Set {}

#[derive(Default)]
pub(crate) struct Inner {
    number: u32,
    /// Numbers of the sockets that waits poll.
    list: Vec<u32>,
    /// Results of the last poll. The allocation is reused.
    found: Vec<Found>,
    /// Sockets of the kernel's last events whose peers have sent FIN. The allocation is reused.
    finished: Vec<Found>,
    /// When the newest reported bytes were published.
    latest: u64,
    /// Promoted sockets by their `epoll_data`.
    by_data: FxHashMap<u64, u32>,
    /// Descriptors of all other members by their `epoll_data`; TCP sockets only once the set is
    /// mixed.
    others: FxHashMap<u64, i32>,
    /// Several members of one map had the same `epoll_data`, and the map holds only one of them.
    has_duplicates: bool,
    /// Several members have the same `epoll_data`: the kernel's events do not identify a socket.
    ambiguous: bool,
    /// Sockets with deferred epoll_ctl(2) calls.
    deferred: Vec<u32>,
    /// The set's word of the loop page.
    waiter: Option<u32>,
    /// Threads that wait now, and whether one ever did. A program that waits by raw system calls
    /// gets only the kernel's events.
    waiting: u32,
    awaited: bool,
    /// The set itself is polled; and it is a member of another set, where each arrival is an edge.
    watched: bool,
    in_a_set: bool,
    /// Several threads have waited at once: each socket is armed separately, and the set's waiter
    /// is not used.
    several_waiters: bool,
    /// Waiters may exist that are no threads of this process in epoll_wait(2): the members'
    /// doorbells are not watched.
    over_tcp: bool,
    /// [`ready`] is registered in the kernel's set, so that waiters can be woken.
    is_wakeable: bool,
    /// Where the next poll starts, so that no socket is always last.
    turn: usize,
    asked_kernel: Instant,
    /// Only the kernel can report some of what may be ready.
    kernel_is_due: bool,
    /// For waits with room for one event: whose turn it was.
    kernels_turn: bool,
    /// [`Inner::peer_woke_at`].
    peer_woke_at: u64,
    /// A doorbell woke the set: the list has to be polled.
    pub(crate) doorbell_woke: bool,
    /// When the next peer that may wait unseen is due for a wake-up.
    pub(crate) unseen: Option<Instant>,
}

static SETS: [AtomicPtr<Set>; MOST] = [const { AtomicPtr::new(null_mut()) }; MOST];
static USED: AtomicU32 = AtomicU32::new(0);
static FREE: FreeList = FreeList::new();
static USED_WAITERS: AtomicU64 = AtomicU64::new(0);

/// Adds a set; `None`: too many.
pub(crate) fn add() -> Option<u32> {
    if let Some(number) = FREE.pop(|number| &at(number).next_free) {
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

/// Another descriptor refers to it.
pub(crate) fn name(number: u32) {
    at(number).names.fetch_add(1, Ordering::Relaxed);
}

/// One of its descriptors was closed. True: it was the last.
pub(crate) fn remove(number: u32) -> bool {
    if at(number).names.fetch_sub(1, Ordering::AcqRel) > 1 {
        return false;
    }
    let mut inner = at(number).lock();
    for socket in std::mem::take(&mut inner.list) {
        // This set no longer polls the socket, and another set may get the number.
        if let Some(promoted) = sockets::at(socket).lock().promoted.as_deref_mut()
            && promoted.listed_in == number + 1
        {
            promoted.listed_in = 0;
            if !promoted.watch.is_armed() {
                let _ = promoted.arm();
            }
        }
    }
    let here = number + 1;
    let mut restored = Vec::new();
    let mut forget = |socket_number: u32| {
        let mut guard = sockets::at(socket_number).lock_alone();
        if let Some(promoted) = guard.promoted.as_deref_mut() {
            promoted.set_was_closed(number);
        }
        let interest = &mut guard.interest;
        if interest.registered.is_some_and(|registered| registered.set == here) {
            // The kernel's registration ended with the set.
            interest.registered = None;
            interest.deferred &= interest.set != here;
        }
        if interest.set == here {
            let Interest { sets, earlier, .. } = *interest;
            *interest = Interest { sets: sets.saturating_sub(1), earlier, ..Interest::default() };
            restored.push((*interest, socket_number));
        } else if interest.earlier.is_some_and(|earlier| earlier.set == here) {
            interest.earlier = None;
            interest.sets = interest.sets.saturating_sub(1);
        }
    };
    // A socket promoted later would count as a member of the next set with this number.
    if at(number).has_sockets.swap(false, Ordering::Relaxed) {
        sockets::all().for_each(|(number, _)| forget(number));
    }
    if let Some(waiter) = inner.waiter {
        USED_WAITERS.fetch_and(!(1 << waiter), Ordering::Relaxed);
    }
    *inner = Inner::new(number);
    let set = at(number);
    set.mixed.store(false, Ordering::SeqCst);
    set.deferred.store(0, Ordering::Relaxed);
    set.is_numbered.store(false, Ordering::Relaxed);
    set.was_woken.store(false, Ordering::Relaxed);
    drop(inner);
    for (left, socket) in restored {
        changes::restore_earlier(left, socket);
    }
    at(number).promoted.store(0, Ordering::Relaxed);
    FREE.push(number, &at(number).next_free);
    true
}

pub(crate) fn at(number: u32) -> &'static Set {
    let set = SETS[number as usize].load(Ordering::Acquire);
    // SAFETY: the table has numbers that `add` gave only; sets are never freed.
    unsafe { &*set }
}

/// Before a fork: the child shares the kernel's sets.
pub(crate) fn about_to_fork() {
    all().for_each(|set| set.lock().register_deferred());
}

fn all() -> impl Iterator<Item = &'static Set> {
    let used = SETS.iter().take(USED.load(Ordering::Relaxed) as usize);
    // SAFETY: as for `at`; null while `add` is running.
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
        // The kernel's set is shared with the parent, which polls its sockets, unless the set is
        // closed.
        inner.several_waiters = set.names.load(Ordering::Relaxed) > 0;
        inner.over_tcp = inner.several_waiters;
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

    /// Whether epoll_ctl(2) is called for it by this descriptor.
    pub(crate) fn uses_descriptor(&self, fd: i32) -> bool {
        self.epfd.load(Ordering::Relaxed) == fd
    }

    pub(crate) fn epfd(&self) -> i32 {
        self.epfd.load(Ordering::Relaxed)
    }

    pub(crate) fn use_descriptor(&self, fd: i32) {
        self.epfd.store(fd, Ordering::Relaxed);
    }

    fn note_sockets(&self) {
        if !self.has_sockets.load(Ordering::Relaxed) {
            self.has_sockets.store(true, Ordering::Relaxed);
        }
    }
}

/// Holds the lock of a set.
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

fn allocate_waiter() -> Option<u32> {
    let mut used = USED_WAITERS.load(Ordering::Relaxed);
    loop {
        let free = used.trailing_ones();
        if free >= WAITERS {
            return None;
        }
        match USED_WAITERS.compare_exchange(used, used | 1 << free, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return Some(free),
            Err(now) => used = now,
        }
    }
}
