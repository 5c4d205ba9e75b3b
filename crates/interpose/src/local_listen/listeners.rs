//! The listeners of this process, and how their siblings are created and closed.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::fmt;
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicBool, AtomicI32,
    Ordering::{Relaxed, Release},
};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::epoll_event;
use steering::{Inherited, Slot};

use super::names::{DESCRIPTORS, Kind, LISTENERS, ON, SETS, is_on, kind_of, set_kind};
use super::steering::Steering;
use super::word::Word;
use super::{MEMBERS, Member, OF_SET, OUT_OF_SET, WAITED_IN, addresses, sibling, word};
use crate::hidden;
use crate::kernel;
use crate::lock::{Held, Lock};
use crate::real::{self, kept_errno};
use crate::report;
use crate::settings::Settings;
use crate::table;
use crate::threads;
use crate::vfork;

mod descriptors;
mod exec;
mod options;
mod process;

pub(crate) use descriptors::{closing, closing_range, duplicated, made_set, received, vacate_number};
pub(crate) use exec::{before_exec, exec_failed};
pub(super) use options::may_be_shut_down;
pub(crate) use options::{hides_option, polled_outside_epoll, set_option, shut_down};
pub(crate) use process::{Still, changes_user, confined, forked, hold_still};

/// A listening socket of the program.
struct Listener {
    /// Descriptors that refer to it, and one of them.
    names: u32,
    fd: c_int,
    backlog: c_int,
    /// The process that called listen(2), or was executed with it.
    owner: u32,
    /// The program itself set SO_REUSEPORT.
    own_group: bool,
    /// This library set it.
    late: bool,
    /// `None`: it gets no siblings.
    steering: Option<Steering>,
    /// Siblings that were made while this process could still bind them.
    reserve: Vec<c_int>,
    /// The slots of the siblings in the steering, by set.
    slots: Vec<(usize, Slot)>,
    /// Siblings of sets that do not wait for the listener now.
    paused: Vec<(usize, c_int)>,
    waiters: Waiters,
    /// [`Word::Waits`] was printed for it.
    is_known_to_wait: bool,
}

/// The epoll sets of this process that waited for a listener.
#[derive(Clone, Copy)]
enum Waiters {
    None,
    /// In the listener's own process: siblings begin with a second set.
    One(Place),
    Several,
}

/// A listener in an epoll set, with its event there.
#[derive(Clone, Copy)]
struct Place {
    set: usize,
    event: epoll_event,
}

struct State {
    lock: Lock,
    listeners: UnsafeCell<[Option<Listener>; LISTENERS]>,
}

// SAFETY: `listeners` is reached through `Guard` only, which holds the lock.
unsafe impl Sync for State {}

static STATE: State = State { lock: Lock::new(), listeners: UnsafeCell::new([const { None }; LISTENERS]) };
/// A descriptor of each set, plus 1; 0: free.
static SET_DESCRIPTORS: [AtomicI32; SETS] = [const { AtomicI32::new(0) }; SETS];
/// The library's own descriptors have at least this number.
static LOWEST: AtomicI32 = AtomicI32::new(0);
/// The kernel has refused the program: it is not tried again.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Siblings that are made at most before a process changes its user: one for each thread.
const RESERVE: usize = 16;

/// Without a hold of its own in code that runs while its thread forks, which holds the lock itself.
struct Guard<'a>(&'a State, Option<Held<'a>>);

fn listeners() -> Guard<'static> {
    Guard(&STATE, (!process::forks()).then(|| STATE.lock.hold()))
}

/// Lines from holders of the lock: written once it is free, since a write to a full pipe would keep
/// it held.
static UNWRITTEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn unwritten() -> MutexGuard<'static, Vec<String>> {
    UNWRITTEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn say(line: fmt::Arguments<'_>) {
    unwritten().push(line.to_string());
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut *unwritten());
        self.1 = None;
        lines.iter().for_each(|line| report::log_line(format_args!("{line}")));
    }
}

impl std::ops::Deref for Guard<'_> {
    type Target = [Option<Listener>; LISTENERS];

    fn deref(&self) -> &Self::Target {
        // SAFETY: the lock is held while the guard lives, by this thread's fork if not by the
        // guard.
        unsafe { &*self.0.listeners.get() }
    }
}

impl std::ops::DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        // SAFETY: as for `deref`; there is one guard at a time.
        unsafe { &mut *self.0.listeners.get() }
    }
}

/// At the start: listeners that this program was executed with are its own.
pub(crate) fn start(settings: &Settings) {
    if !settings.local_listen {
        return;
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let numbers = limit.map_or(DESCRIPTORS, |limit| usize::try_from(limit).unwrap_or(DESCRIPTORS));
    LOWEST.store((numbers.min(DESCRIPTORS) / 4 * 3) as c_int, Relaxed);
    ON.store(true, Relaxed);
    let open = table::open();
    let listens = |fd: &c_int| kernel::option(*fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Some(1);
    let inherited: Vec<c_int> = open.iter().copied().filter(listens).collect();
    if inherited.is_empty() {
        return;
    }
    let steering = Inherited::among(open.iter().filter_map(|fd| real::borrow(*fd)));
    // The option may have been set by an earlier library. If the program set it, several listeners
    // have one address.
    let addresses: Vec<_> = inherited.iter().map(|fd| kernel::address(*fd)).collect();
    for (fd, address) in inherited.iter().zip(&addresses) {
        const MOST: c_int = 65_535; // the kernel cuts it at net.core.somaxconn
        let own_group = addresses.iter().filter(|other| *other == address).count() > 1;
        note(*fd, MOST, Some((own_group, &steering)));
    }
    // A listener's steering has duplicates of these by now, which a child would inherit.
    steering.iter().flat_map(Inherited::descriptors).for_each(sibling::close);
}

/// listen(2) succeeded.
#[cold]
pub(crate) fn listened(fd: c_int, backlog: c_int) {
    if is_on() {
        kept_errno(|| note(fd, backlog, None));
    }
}

/// `executed`: for a listener that was inherited by exec: whether the earlier program set
/// SO_REUSEPORT itself, and all inherited steering.
fn note(fd: c_int, backlog: c_int, executed: Option<(bool, &[Inherited<'_>])>) {
    if vfork::borrows_memory() {
        return;
    }
    let mut listeners = listeners();
    if !is_on() {
        return;
    }
    match kind_of(fd) {
        Kind::Listener(number) => {
            let Some(listener) = &mut listeners[number] else { return };
            listener.backlog = backlog;
            siblings(number).for_each(|sibling| {
                sibling::listen(listener.fd, sibling, backlog).unwrap_or_default();
            });
            return;
        }
        Kind::Unique => return say(format_args!("{}", Word::Option.of(fd))),
        Kind::Nothing | Kind::Set(_) => {}
    }
    let is_tcp = kernel::option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP);
    if !is_tcp {
        return;
    }
    let place = listeners.iter().position(Option::is_none);
    let Some(number) = place.filter(|number| set_kind(fd, Kind::Listener(*number))) else {
        return say(format_args!("{}", Word::Descriptors.of(fd)));
    };
    let is_set = || kernel::option(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT) == Some(1);
    let (own_group, inherited) = executed.unwrap_or_else(|| (is_set(), &[]));
    let shares_address = own_group && leave_group(&mut *listeners, fd);
    let steering = if shares_address { None } else { steering(fd, inherited) };
    listeners[number] = Some(Listener {
        names: 1,
        fd,
        backlog,
        owner: std::process::id(),
        own_group,
        late: false,
        steering,
        reserve: Vec::new(),
        slots: Vec::new(),
        paused: Vec::new(),
        waiters: Waiters::None,
        is_known_to_wait: false,
    });
}

/// Whether the program has other listeners at this address, in a group of its own: then the group
/// is left alone.
fn leave_group(listeners: &mut [Option<Listener>], fd: c_int) -> bool {
    let Some(address) = kernel::address(fd) else { return false };
    let mut is_shared = false;
    for (number, other) in listeners.iter_mut().enumerate() {
        let other = other.as_mut().filter(|other| other.own_group);
        if let Some(other) = other.filter(|other| kernel::address(other.fd) == Some(address)) {
            is_shared = true;
            other.give_up(number, Word::Group);
        }
    }
    if is_shared {
        say(format_args!("{}", Word::Group.of(fd)));
    }
    is_shared
}

/// Made before any fork, so that all workers share it.
fn steering(fd: c_int, inherited: &[Inherited<'_>]) -> Option<Steering> {
    if REFUSED.load(Relaxed) {
        return None;
    }
    let steering = Steering::new(fd, LOWEST.load(Relaxed), inherited);
    if let Err(error) = &steering {
        REFUSED.store(true, Relaxed);
        say(format_args!("{}: {error}", Word::Bpf.of(fd)));
    }
    steering.ok()
}

/// Records a change of a listener in an epoll set, which the kernel has made; `None`: it was
/// removed.
#[cold]
pub(super) fn control(number: usize, epfd: c_int, fd: c_int, event: Option<epoll_event>) {
    if vfork::borrows_memory() {
        return;
    }
    let mut listeners = listeners();
    let Some(listener) = listeners[number].as_mut().filter(|listener| listener.steering.is_some()) else {
        return;
    };
    let waits = event.filter(|event| event.events & libc::EPOLLIN as u32 != 0);
    let outcome = match waits {
        Some(event) => match set_number(epfd) {
            Some(set) => listener.enter(number, Place { set, event }),
            None => Err(Word::Descriptors),
        },
        None => {
            if let Kind::Set(set) = kind_of(epfd) {
                listener.leave(number, set);
            }
            Ok(())
        }
    };
    match outcome {
        Ok(()) => {}
        // It may wait in another way later.
        Err(Word::Waits) if listener.is_known_to_wait => {}
        Err(Word::Waits) => {
            listener.is_known_to_wait = true;
            say(format_args!("{}", Word::Waits.of(fd)));
        }
        Err(word) => listener.give_up(number, word),
    }
}

/// Many waits reported a listener, and no accept through this library followed.
#[cold]
pub(super) fn accepts_unseen(number: usize) {
    if !vfork::borrows_memory()
        && let Some(listener) = &mut listeners()[number]
    {
        listener.give_up(number, Word::Accepts);
    }
}

/// A wait begins in a set from which listeners were removed.
#[cold]
pub(super) fn settle(set: usize) {
    for (number, listener) in listeners().iter_mut().enumerate() {
        let is_out = OUT_OF_SET[set].load(Relaxed) & 1 << number != 0;
        if let Some(listener) = listener.as_mut().filter(|_| is_out) {
            listener.pause(number, set);
        }
    }
}

/// The number of a set, assigned with its first listener.
fn set_number(epfd: c_int) -> Option<usize> {
    if !descriptors::is_tracked(epfd) {
        return None;
    }
    if let Kind::Set(set) = kind_of(epfd) {
        return Some(set);
    }
    let set = SET_DESCRIPTORS.iter().position(|fd| fd.load(Relaxed) == 0)?;
    set_kind(epfd, Kind::Set(set)).then(|| SET_DESCRIPTORS[set].store(epfd + 1, Relaxed))?;
    for name in descriptors::names(epfd) {
        set_kind(name, Kind::Set(set));
    }
    Some(set)
}

impl Listener {
    fn enter(&mut self, number: usize, place: Place) -> Result<(), Word> {
        let member = &MEMBERS[place.set][number];
        member.by_edge.store(place.event.events & libc::EPOLLET as u32 != 0, Relaxed);
        member.data.store(place.event.u64, Relaxed);
        if place.event.events & libc::EPOLLONESHOT as u32 != 0 {
            self.release(number, place.set);
            return Err(Word::Waits);
        }
        if let Some(sibling) = member.descriptor() {
            let was_out = OUT_OF_SET[place.set].fetch_and(!(1 << number), Relaxed) & 1 << number != 0;
            OF_SET[place.set].fetch_or(1 << number, Relaxed);
            let operation = if was_out { libc::EPOLL_CTL_ADD } else { libc::EPOLL_CTL_MOD };
            return change(place.set, operation, sibling, without_exclusive(place.event));
        }
        if self.blocks() {
            return Err(Word::Waits);
        }
        if let Some(index) = self.paused.iter().position(|(set, _)| *set == place.set) {
            let (_, sibling) = self.paused.swap_remove(index);
            return self.begin(number, place, sibling);
        }
        let is_worker = self.owner != std::process::id() && !self.own_group;
        match self.waiters {
            _ if is_worker => self.claim(number, place),
            Waiters::Several => self.claim(number, place),
            Waiters::One(first) if first.set != place.set => {
                self.waiters = Waiters::Several;
                self.claim(number, first)?;
                self.claim(number, place)
            }
            Waiters::None | Waiters::One(_) => {
                self.waiters = Waiters::One(place);
                Ok(())
            }
        }
    }

    /// From the kernel: the flag belongs to the open file, and other processes may have changed it.
    fn blocks(&self) -> bool {
        kernel::control(self.fd, libc::F_GETFL, 0) & libc::O_NONBLOCK == 0
    }

    /// Makes a sibling for a set.
    fn claim(&mut self, number: usize, place: Place) -> Result<(), Word> {
        let sibling = match self.reserve.pop() {
            Some(sibling) => sibling,
            None => self.make_sibling()?,
        };
        self.begin(number, place, sibling)?;
        say(format_args!("local-listen: {} has a queue of its own here", word::name(self.fd)));
        if threads::is_alone() {
            // The others were for more threads.
            self.reserve.drain(..).for_each(close);
        }
        Ok(())
    }

    fn make_sibling(&mut self) -> Result<c_int, Word> {
        if !self.own_group && !self.late {
            // Set after the program's own bind(2), which failed if the address was in use.
            kernel::set(self.fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, &1);
            self.late = true;
        }
        let sibling = sibling::make(self.fd, LOWEST.load(Relaxed))?;
        if hidden::keep(sibling) {
            return Ok(sibling);
        }
        sibling::close(sibling);
        Err(Word::Descriptors)
    }

    /// Starts steering connections to the sibling.
    fn begin(&mut self, number: usize, place: Place, sibling: c_int) -> Result<(), Word> {
        let begun = self.try_to_begin(number, place, sibling);
        if begun.is_err() {
            close(sibling);
        }
        begun
    }

    fn try_to_begin(&mut self, number: usize, place: Place, sibling: c_int) -> Result<(), Word> {
        // A sibling that listens and cannot join would reset its connections.
        self.steering.as_ref().and_then(|steering| steering.probe().ok()).ok_or(Word::Bpf)?;
        sibling::listen(self.fd, sibling, self.backlog)?;
        // The program belongs to the group, which the listener joins with its first sibling.
        let (shared, queue) = (real::borrow(self.fd), real::borrow(sibling));
        let (shared, queue) = shared.zip(queue).ok_or(Word::Descriptors)?;
        let steering = self.steering.as_mut().ok_or(Word::Bpf)?;
        let (slot, words) = steering.join(shared, queue).map_err(|_| Word::Places)?;
        self.slots.push((place.set, slot));
        if let Err(word) = change(place.set, libc::EPOLL_CTL_ADD, sibling, without_exclusive(place.event)) {
            self.stop_steering(place.set);
            return Err(word);
        }
        let member = &MEMBERS[place.set][number];
        if let Some(address) = kernel::address(sibling) {
            addresses::has_sibling(number, address);
        }
        member.uncounted.store(0, Relaxed);
        // WORDS-PAIR
        member.words.store(std::ptr::from_ref(words).cast_mut(), Release);
        member.fd.store(sibling + 1, Relaxed);
        OF_SET[place.set].fetch_or(1 << number, Relaxed);
        Ok(())
    }

    /// The listener was removed from a set: removes the sibling as well.
    fn leave(&mut self, number: usize, set: usize) {
        if matches!(self.waiters, Waiters::One(place) if place.set == set) {
            self.waiters = Waiters::None;
        }
        let member = &MEMBERS[set][number];
        let Some(sibling) = member.descriptor() else { return };
        let _ = change(set, libc::EPOLL_CTL_DEL, sibling, epoll_event { events: 0, u64: 0 });
        OF_SET[set].fetch_and(!(1 << number), Relaxed);
        if WAITED_IN.get() != set {
            // Its thread may keep sleeping.
            return self.pause(number, set);
        }
        OUT_OF_SET[set].fetch_or(1 << number, Relaxed);
        if let Some(words) = member.words() {
            words.cannot_accept();
        }
    }

    /// Stops a sibling; its queue moves to the others of the group.
    fn pause(&mut self, number: usize, set: usize) {
        let Some(sibling) = forget(set, number) else { return };
        self.stop_steering(set);
        // SAFETY: shutdown(2) takes numbers. The socket may listen again later.
        unsafe { real::shutdown(sibling, libc::SHUT_RD) };
        self.paused.push((set, sibling));
    }

    /// Stops steering connections to a set's sibling.
    fn stop_steering(&mut self, set: usize) {
        // Fork handlers in the child still see the slots of the parent.
        let own = self.steering.as_ref().filter(|_| !process::is_forked());
        for (_, slot) in self.slots.extract_if(.., |(of, _)| *of == set) {
            if let Some(steering) = own {
                steering.leave(slot);
            }
        }
    }

    /// Closes a set's sibling; its queue moves to the others of the group.
    fn release(&mut self, number: usize, set: usize) {
        if matches!(self.waiters, Waiters::One(place) if place.set == set) {
            self.waiters = Waiters::None;
        }
        if let Some(sibling) = forget(set, number) {
            self.stop_steering(set);
            close(sibling);
        }
        self.paused.extract_if(.., |(paused, _)| *paused == set).for_each(|(_, sibling)| close(sibling));
    }

    /// Leaves the listener as it is from here on, for a permanent reason.
    fn give_up(&mut self, number: usize, word: Word) {
        if self.steering.is_none() {
            return;
        }
        let detaches = word == Word::Group && !self.slots.is_empty();
        // While the program is attached, which moves their queues to this listener.
        self.release_all(number);
        if detaches {
            // It would send all connections to this one.
            kernel::set(self.fd, libc::SOL_SOCKET, libc::SO_DETACH_REUSEPORT_BPF, &0);
        }
        say(format_args!("{}", word.of(self.fd)));
    }

    /// Releases all siblings.
    fn release_all(&mut self, number: usize) {
        (0..SETS).for_each(|set| self.release(number, set));
        self.reserve.drain(..).for_each(close);
        self.steering = None;
    }

    fn has_siblings(&self, number: usize) -> bool {
        siblings(number).next().is_some() || !self.paused.is_empty()
    }

    fn uses(&self, number: usize, fd: c_int) -> bool {
        self.steering.as_ref().is_some_and(|steering| steering.descriptors().contains(&fd))
            || self.reserve.contains(&fd)
            || self.paused.iter().any(|(_, sibling)| *sibling == fd)
            || siblings(number).any(|sibling| sibling == fd)
    }
}

/// The listening siblings of a listener.
fn siblings(number: usize) -> impl Iterator<Item = c_int> {
    MEMBERS.iter().filter_map(move |set| set[number].descriptor())
}

/// Drops a listener's sibling in a set from this process's records.
fn forget(set: usize, number: usize) -> Option<c_int> {
    let member: &Member = &MEMBERS[set][number];
    let sibling = member.descriptor()?;
    member.fd.store(0, Relaxed);
    member.words.store(null_mut(), Relaxed);
    OF_SET[set].fetch_and(!(1 << number), Relaxed);
    OUT_OF_SET[set].fetch_and(!(1 << number), Relaxed);
    Some(sibling)
}

fn close(fd: c_int) {
    hidden::no_longer_keep(fd);
    sibling::close(fd);
}

/// EPOLLEXCLUSIVE spares the other waiters of a socket: a sibling has one.
fn without_exclusive(event: epoll_event) -> epoll_event {
    epoll_event { events: event.events & !(libc::EPOLLEXCLUSIVE as u32), ..event }
}

fn change(set: usize, operation: c_int, fd: c_int, mut event: epoll_event) -> Result<(), Word> {
    let epfd = SET_DESCRIPTORS[set].load(Relaxed) - 1;
    // SAFETY: a live event.
    let status = unsafe { real::epoll_ctl(epfd, operation, fd, &raw mut event) };
    if status == 0 { Ok(()) } else { Err(Word::Descriptors) }
}
