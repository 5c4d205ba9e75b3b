//! Descriptors of listeners, of epoll sets and of the library, as the program closes and duplicates
//! them.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::super::MEMBERS;
use super::super::names::{DESCRIPTORS, Kind, is_on, kind_of, set_kind};
use super::super::word::Word;
use super::{SET_DESCRIPTORS, listeners, say};
use crate::kernel;
use crate::real::kept_errno;
use crate::vfork;

/// The epoll set of each descriptor, numbered in the order of creation; 0: none.
static NAMED_SETS: [AtomicU32; DESCRIPTORS] = [const { AtomicU32::new(0) }; DESCRIPTORS];
/// Sets that have a descriptor whose number is too high.
const UNTRACKED: u32 = u32::MAX;
/// Sets that this process, or one that it was forked from, has created.
static SETS_MADE: AtomicU32 = AtomicU32::new(0);

fn named_set(fd: c_int) -> u32 {
    NAMED_SETS.get(fd as usize).map_or(0, |set| set.load(Relaxed))
}

fn name_set(fd: c_int, number: u32) {
    if let Some(set) = NAMED_SETS.get(fd as usize)
        && set.load(Relaxed) != number
        && !vfork::borrows_memory()
    {
        set.store(number, Relaxed);
    }
}

/// An epoll set was created.
pub(crate) fn made_set(fd: c_int) {
    if is_on() {
        name_set(fd, SETS_MADE.fetch_add(1, Relaxed).saturating_add(1));
    }
}

pub(super) fn makes_sets() -> bool {
    SETS_MADE.load(Relaxed) != 0
}

/// Whether all changes of an epoll set are seen: none of its descriptors has too high a number.
pub(super) fn is_tracked(epfd: c_int) -> bool {
    named_set(epfd) != UNTRACKED
}

/// All descriptors of an epoll set: Tokio waits by one, and changes the set by another.
pub(super) fn names(epfd: c_int) -> impl Iterator<Item = c_int> {
    let number = named_set(epfd);
    (0..DESCRIPTORS as c_int).filter(move |fd| number != 0 && named_set(*fd) == number)
}

/// `fd` is about to be closed.
#[cold]
fn close_known(fd: c_int) {
    if vfork::borrows_memory() {
        return;
    }
    let mut listeners = listeners();
    match kind_of(fd) {
        Kind::Listener(number) => {
            set_kind(fd, Kind::Nothing);
            let Some(listener) = &mut listeners[number] else { return };
            listener.names -= 1;
            if listener.names == 0 {
                listener.release_all(number);
                listeners[number] = None;
            } else if listener.fd == fd {
                listener.fd = named(Kind::Listener(number)).unwrap_or(-1);
            }
        }
        Kind::Set(set) => {
            set_kind(fd, Kind::Nothing);
            if let Some(other) = named(Kind::Set(set)) {
                return SET_DESCRIPTORS[set].store(other + 1, Relaxed);
            }
            for (number, listener) in listeners.iter_mut().enumerate() {
                if let Some(listener) = listener {
                    listener.release(number, set);
                }
            }
            SET_DESCRIPTORS[set].store(0, Relaxed);
        }
        Kind::Unique => drop(set_kind(fd, Kind::Nothing)),
        Kind::Nothing => {}
    }
}

/// A descriptor of a listener or set.
fn named(is: Kind) -> Option<c_int> {
    (0..DESCRIPTORS as c_int).find(|fd| kind_of(*fd) == is)
}

/// `fd` is about to be closed.
#[inline]
pub(crate) fn closing(fd: c_int) {
    if is_on() {
        name_set(fd, 0);
        if kind_of(fd) != Kind::Nothing {
            kept_errno(|| close_known(fd));
        }
    }
}

/// All from `first` to `last` are about to be closed.
pub(crate) fn closing_range(first: c_int, last: c_int) {
    let last = if is_on() { last.min(DESCRIPTORS as c_int - 1) } else { -1 };
    (first..=last).for_each(closing);
}

/// The program puts a file of its own at a number of the library's.
#[cold]
pub(crate) fn vacate_number(fd: c_int) {
    if vfork::borrows_memory() {
        return;
    }
    for (number, listener) in listeners().iter_mut().enumerate() {
        if let Some(listener) = listener.as_mut().filter(|listener| listener.uses(number, fd)) {
            listener.give_up(number, Word::Descriptors);
        }
    }
}

/// `new` refers to the same open file as `fd`.
pub(crate) fn duplicated(fd: c_int, new: c_int) {
    if is_on() && fd != new && !vfork::borrows_memory() {
        kept_errno(|| has_name(fd, new));
    }
}

fn has_name(fd: c_int, new: c_int) {
    if new >= DESCRIPTORS as c_int && named_set(fd) != 0 {
        // So that a set either has its listener by now, or gets no sibling.
        let _held = listeners();
        names(fd).for_each(|name| name_set(name, UNTRACKED));
    }
    name_set(new, named_set(fd));
    if kind_of(fd) == Kind::Nothing {
        return;
    }
    let mut listeners = listeners();
    let is = kind_of(fd);
    // Changes by an untracked number would not be applied to siblings.
    let is_tracked = set_kind(new, is);
    match is {
        Kind::Listener(number) => match &mut listeners[number] {
            Some(listener) if is_tracked => listener.names += 1,
            Some(listener) => listener.give_up(number, Word::Descriptors),
            None => {}
        },
        Kind::Set(set) if !is_tracked => {
            for (number, listener) in listeners.iter_mut().enumerate() {
                if let Some(listener) =
                    listener.as_mut().filter(|_| MEMBERS[set][number].descriptor().is_some())
                {
                    listener.give_up(number, Word::Descriptors);
                }
            }
        }
        Kind::Set(_) | Kind::Unique | Kind::Nothing => {}
    }
}

/// `fd` came from another process, whose steering this one does not have.
#[cold]
pub(crate) fn received(fd: c_int) {
    let is = |name, value| kept_errno(|| kernel::option(fd, libc::SOL_SOCKET, name)) == Some(value);
    if is_on()
        && !vfork::borrows_memory()
        && is(libc::SO_ACCEPTCONN, 1)
        && is(libc::SO_PROTOCOL, libc::IPPROTO_TCP)
    {
        let _said_as_it_drops = listeners();
        say(format_args!("{}", Word::Received.of(fd)));
    }
}
