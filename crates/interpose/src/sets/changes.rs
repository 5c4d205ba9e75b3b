//! epoll_ctl(2): changes that programs make to their sets, and when the kernel gets them.

use std::sync::atomic::Ordering;

use libc::epoll_event;

use super::{EDGE, Guard, ONCE, at, oneshot};
use crate::demotion;
use crate::real;
use crate::sockets::{self, Interest, Membership, Socket, State};
use crate::table::{self, Entry};

/// A change to one socket of a set.
#[derive(Clone, Copy)]
pub(crate) enum Change {
    Add(Request),
    Modify(Request),
    Delete,
}

/// The socket's descriptor in the set, and the `epoll_event` for it.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) fd: i32,
    pub(crate) events: u32,
    pub(crate) data: u64,
}

/// The arguments of an epoll_ctl(2): numbers of set and socket here, and their descriptors.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) set: u32,
    pub(crate) epfd: i32,
    pub(crate) socket: u32,
    pub(crate) fd: i32,
}

/// Applies a change in the kernel by `call`, which returns 0 on success. Returns its status and
/// leaves errno as it set it. `change` is evaluated afterwards: the kernel has then read the event,
/// and a read just behind the program's own smaller writes would stall on them (store forwarding).
pub(crate) fn make(place: Place, change: impl FnOnce() -> Option<Change>, call: impl FnOnce() -> i32) -> i32 {
    let set = at(place.set);
    let socket = sockets::at(place.socket);
    // The lock keeps the socket from being promoted between the call and the record of it. Its
    // holder may be promoting it, and waiting for the set.
    let Some(mut guard) = socket.try_lock() else { return make_locked(place, change, call) };
    if guard.promoted.is_some() || set.mixed.load(Ordering::SeqCst) {
        drop(guard);
        return make_locked(place, change, call);
    }
    let status = call();
    if status != 0 {
        return status;
    }
    let Some(change) = change() else { return 0 };
    if !set.uses_descriptor(place.epfd) {
        set.use_descriptor(place.epfd);
    }
    set.note_sockets();
    let before = guard.interest.membership();
    let noted = note(&mut guard.interest, place, change);
    drop(guard);
    if !noted {
        real::kept_errno(|| record(place, change));
    } else if set.mixed.load(Ordering::SeqCst) {
        // MIXED-PAIR: the record is written before `mixed` is read; `mixed` is stored before the
        // records of all sockets are read.
        correct(place.set, socket, before);
    }
    0
}

/// The set became mixed while a socket's interest changed: `others` may hold the interest as it was
/// `before`.
#[cold]
fn correct(number: u32, socket: &Socket, before: Option<Membership>) {
    let mut inner = at(number).lock();
    let guard = socket.lock();
    if let Some(before) = before.filter(|before| before.set == number + 1) {
        inner.remove_other(before.data, before.fd);
    }
    let now = guard.interest;
    if now.set == number + 1 && guard.promoted.is_none() {
        inner.add_other(now.data, now.fd);
    }
}

/// The fast path, for a socket on TCP in at most one set: some programs make five changes for each
/// message. False: not this case, and nothing was recorded.
#[inline]
fn note(interest: &mut Interest, Place { set, fd, .. }: Place, change: Change) -> bool {
    let present = interest.set == set + 1 && interest.fd == fd;
    match change {
        _ if interest.earlier.is_some() || interest.deferred => return false,
        Change::Modify(request) if present => request.note(set, interest),
        Change::Add(request) if interest.set == 0 && interest.sets == 0 => {
            request.note(set, interest);
            interest.sets = 1;
        }
        Change::Delete if present && interest.sets == 1 => *interest = Interest::default(),
        _ => return false,
    }
    true
}

/// As [`make`], with the set locked. A waiter that the kernel wakes meanwhile waits for the record:
/// otherwise it would read the event as one of the old interest, and report EPOLLONESHOT twice.
fn make_locked(place: Place, change: impl FnOnce() -> Option<Change>, call: impl FnOnce() -> i32) -> i32 {
    let set = at(place.set);
    let mut inner = set.lock();
    inner.mix();
    if sockets::at(place.socket).state() == State::Promoted {
        // UNAWARE-PAIR: the first waiter that returns after the set got a promoted socket reads
        // this.
        set.promoted.fetch_max(1, Ordering::SeqCst);
    }
    let status = call();
    match (status == 0).then(change).flatten() {
        Some(change) => real::kept_errno(|| follow(inner, place, change, false)),
        None => set.promoted.store(inner.by_data.len() as u32, Ordering::SeqCst),
    }
    status
}

/// Records a change that the kernel has made already.
pub(crate) fn record(place: Place, change: Change) {
    let mut inner = at(place.set).lock();
    inner.mix();
    follow(inner, place, change, true);
}

/// `late`: events may have been reported since the change.
fn follow(mut inner: Guard<'_>, place: Place, change: Change, late: bool) {
    let Place { set, epfd, socket: socket_number, fd } = place;
    at(set).use_descriptor(epfd);
    let mut socket = sockets::at(socket_number).lock();
    let promoted = socket.promoted.is_some();
    let before = socket.interest;
    let present = before.set == set + 1 && before.fd == fd;
    let earlier = before.earlier.filter(|earlier| earlier.set == set + 1 && earlier.fd == fd);
    let now = match change {
        Change::Add(request) if before.set == 0 || present => {
            Interest { sets: before.sets + u32::from(before.set == 0), ..request.registered(set, before) }
        }
        Change::Add(request) => Interest {
            sets: before.sets + 1,
            earlier: before.membership(),
            ..request.registered(set, before)
        },
        Change::Modify(request) if before.set == 0 || present => {
            Interest { sets: before.sets.max(1), ..request.registered(set, before) }
        }
        Change::Modify(request) => {
            let now =
                earlier.map(|earlier| Membership { events: request.events, data: request.data, ..earlier });
            Interest { earlier: now.or(before.earlier), ..before }
        }
        Change::Delete if present => {
            let sets = before.sets.saturating_sub(1);
            Interest { sets, earlier: before.earlier, ..Interest::default() }
        }
        Change::Delete => {
            let sets = before.sets.saturating_sub(1);
            Interest { sets, earlier: before.earlier.filter(|one| Some(*one) != earlier), ..before }
        }
    };
    let now = Interest { maybe_disabled: now.maybe_disabled || (late && now.events & ONCE != 0), ..now };
    match earlier {
        Some(earlier) if now.earlier != before.earlier => inner.forget(socket_number, earlier),
        _ => {}
    }
    inner.apply(socket_number, &mut socket, now);
    inner.wake_for(&mut socket);
    drop(socket);
    drop(inner);
    if let Some(other) = now.earlier {
        at(other.set - 1).lock().mix();
    }
    match change {
        Change::Delete => restore_earlier(now, socket_number),
        // A socket in several sets: only the kernel can report its events to all of them.
        _ if promoted && now.is_one_of_several() => demotion::demote_if_possible(fd),
        _ => {}
    }
}

/// The socket was removed from its last set: the set before it applies again, if it still has the
/// socket.
pub(super) fn restore_earlier(left: Interest, socket_number: u32) {
    let Some(earlier) = left.earlier.filter(|_| left.set == 0) else { return };
    let set = at(earlier.set - 1);
    let mut inner = set.lock();
    inner.mix();
    let mut socket = sockets::at(socket_number).lock();
    if socket.interest.set != 0 || socket.interest.earlier != Some(earlier) {
        return;
    }
    let Membership { fd, events, data, .. } = earlier;
    let left = Interest { sets: socket.interest.sets, ..Interest::default() };
    let now = Request { fd, events, data }.registered(earlier.set - 1, left);
    inner.apply(socket_number, &mut socket, now);
    inner.wake_for(&mut socket);
}

/// A closed socket was in this set, too.
pub(crate) fn forget(socket_number: u32, earlier: Membership) {
    at(earlier.set - 1).lock().forget(socket_number, earlier);
}

/// A socket on TCP is closed: its set drops it. False: more has to be done.
pub(crate) fn let_go(socket: &Socket) -> bool {
    let mut guard = socket.lock();
    if guard.promoted.is_some() || guard.interest.earlier.is_some() {
        return false;
    }
    let before = std::mem::take(&mut guard.interest).membership();
    drop(guard);
    if let Some(before) = before
        // MIXED-PAIR, as for `make`.
        && at(before.set - 1).mixed.load(Ordering::SeqCst)
    {
        correct(before.set - 1, socket, Some(before));
    }
    true
}

/// The socket was promoted, or closed (`gone`): updates its set.
pub(crate) fn refresh(number: u32, socket_number: u32, gone: bool) {
    let mut inner = at(number).lock();
    inner.mix();
    let mut socket = sockets::at(socket_number).lock();
    if socket.interest.set == number + 1 {
        let now = match gone {
            true => Interest::default(),
            false => Interest { maybe_disabled: socket.interest.events & ONCE != 0, ..socket.interest },
        };
        inner.apply(socket_number, &mut socket, now);
    }
}

/// The socket was demoted: only the kernel reports its events from here on.
pub(crate) fn demoted(number: u32, socket_number: u32) {
    let mut inner = at(number).lock();
    let mut socket = sockets::at(socket_number).lock();
    if socket.interest.set != number + 1 {
        return;
    }
    flush_interest(&mut socket.interest);
    let Interest { data, fd, .. } = socket.interest;
    if inner.by_data.get(&data) == Some(&socket_number) {
        inner.by_data.remove(&data);
    }
    inner.list.retain(|listed| *listed != socket_number);
    inner.add_other(data, fd);
    inner.kernel_is_due = true;
    if inner.waiting > 0 {
        at(number).wake_waiter();
    }
    let Interest { events, disabled, maybe_disabled, .. } = socket.interest;
    let epfd = at(number).epfd.load(Ordering::Relaxed);
    if events & EDGE != 0 && !disabled && !maybe_disabled {
        // The kernel does not repeat an edge that it reported while the set polled the ring.
        oneshot::rearm(epfd, &socket.interest);
    }
    // UNAWARE-PAIR: as for `apply`.
    at(number).promoted.store(inner.by_data.len() as u32, Ordering::SeqCst);
}

/// Defers a change until the kernel is next asked for events, since waits poll the socket
/// themselves: programs make several changes for each message. `None`: the change has to go to the
/// kernel, which has all earlier ones by now.
pub(crate) fn defer(place: Place, change: Change) -> Option<Result<(), i32>> {
    let Place { set: number, epfd, socket: socket_number, fd } = place;
    let set = at(number);
    let mut inner = set.lock();
    inner.mix();
    let mut socket = sockets::at(socket_number).lock();
    let elsewhere = |registered: Membership| registered.set != number + 1;
    if socket.interest.set == 0 && socket.interest.registered.is_none_or(elsewhere) {
        // Changes of the other set that are still deferred.
        flush_interest(&mut socket.interest);
    }
    let before = socket.interest;
    let present = before.set == number + 1 && before.fd == fd;
    // Edges and one-shots begin anew with each change, in the kernel, too.
    let plain = |events: u32| events & (EDGE | ONCE | libc::EPOLLEXCLUSIVE as u32) == 0;
    let now = match change {
        _ if inner.waiting > 0
            || !inner.awaited
            || inner.several_waiters
            || inner.ambiguous
            || set.unaware.load(Ordering::SeqCst) > 0
            || before.is_one_of_several()
            || socket.promoted.is_none() =>
        {
            None
        }
        Change::Add(_) if present => return Some(Err(libc::EEXIST)),
        Change::Add(request) if before.set == 0 && plain(request.events) => {
            Some(Interest { sets: 1, ..request.interest(number, before) })
        }
        Change::Modify(request) if present && plain(request.events) && plain(before.events) => {
            Some(request.interest(number, before))
        }
        Change::Delete if present && plain(before.events) => {
            Some(Interest { registered: before.registered, deferred: before.deferred, ..Interest::default() })
        }
        _ => None,
    };
    let Some(mut now) = now else {
        flush_interest(&mut socket.interest);
        return None;
    };
    if now.membership() != now.registered && !now.deferred {
        now.deferred = true;
        inner.deferred.push(socket_number);
        set.deferred.store(1, Ordering::Relaxed);
    }
    set.use_descriptor(epfd);
    inner.apply(socket_number, &mut socket, now);
    Some(Ok(()))
}

/// Whether a descriptor that is about to be closed has a promoted socket in a set, and the socket
/// has other descriptors.
pub(crate) fn outlives(socket: &Socket, fd: i32) -> bool {
    let guard = socket.lock();
    guard.promoted.is_some()
        && guard.interest.set != 0
        && guard.interest.fd == fd
        && socket.names.load(Ordering::Relaxed) > 1
}

/// Removes a descriptor from every set in the kernel, which its close will not do.
pub(crate) fn remove_from_all(fd: i32) {
    for set in (0..table::end()).filter(|set| matches!(table::entry(*set), Entry::Set(_))) {
        let mut event = epoll_event { events: 0, u64: 0 };
        // SAFETY: an event to read. Sets without the descriptor return ENOENT.
        unsafe { real::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, &raw mut event) };
    }
}

/// Makes the deferred epoll_ctl(2) calls of one socket.
pub(crate) fn flush_interest(interest: &mut Interest) {
    if !interest.deferred {
        return;
    }
    interest.deferred = false;
    let before = interest.registered;
    let wanted = interest.membership();
    let same = |before: &Membership, wanted: &Membership| (before.set, before.fd) == (wanted.set, wanted.fd);
    match (before, wanted) {
        (before, wanted) if before == wanted => {}
        (Some(before), Some(wanted)) if same(&before, &wanted) => register(libc::EPOLL_CTL_MOD, wanted),
        (before, wanted) => {
            before.into_iter().for_each(|before| register(libc::EPOLL_CTL_DEL, before));
            wanted.into_iter().for_each(|wanted| register(libc::EPOLL_CTL_ADD, wanted));
        }
    }
    interest.registered = wanted;
}

fn register(operation: i32, membership: Membership) {
    let epfd = at(membership.set - 1).epfd.load(Ordering::Relaxed);
    let mut event = epoll_event { events: membership.events, u64: membership.data };
    // SAFETY: an event to read.
    unsafe { real::epoll_ctl(epfd, operation, membership.fd, &raw mut event) };
}

/// The set itself is polled, by poll(2) or by another set: such waiters do not poll its sockets, so
/// that each socket needs wake-ups of its own.
pub(crate) fn polled_from_outside(number: u32, in_a_set: bool) {
    let mut inner = at(number).lock();
    if inner.watched && inner.in_a_set >= in_a_set {
        return;
    }
    inner.watched = true;
    inner.in_a_set |= in_a_set;
    if !inner.over_tcp {
        inner.register_deferred();
        inner.arm_each(true);
    }
    for socket in inner.by_data.values() {
        let mut socket = sockets::at(*socket).lock();
        let events = socket.interest.events;
        if let Some(promoted) =
            socket.promoted.as_deref_mut().filter(|_| inner.wakes_for_each_arrival(events))
        {
            promoted.wake_for_each();
        }
    }
}

impl Request {
    /// The interest while its epoll_ctl(2) is deferred.
    fn interest(self, number: u32, before: Interest) -> Interest {
        Interest { registered: before.registered, ..self.registered(number, before) }
    }

    /// The interest once the kernel has it.
    fn registered(self, number: u32, mut before: Interest) -> Interest {
        self.note(number, &mut before);
        before
    }

    /// The same, field by field: some programs do so for each message, and no field is read just
    /// after it was written.
    #[inline(always)]
    fn note(self, number: u32, interest: &mut Interest) {
        let Request { fd, events, data } = self;
        interest.set = number + 1;
        interest.fd = fd;
        interest.events = events;
        interest.data = data;
        interest.registered = Some(Membership { set: number + 1, fd, events, data });
        interest.disabled = false;
        interest.maybe_disabled = false;
    }
}

/// A member that is no TCP socket changed: only the kernel has its events.
pub(crate) fn other_changed(number: u32, fd: i32, change: Option<Change>) {
    let mut inner = at(number).lock();
    inner.kernel_is_due = true;
    if let Some(Change::Add(request) | Change::Modify(request)) = change {
        inner.add_other(request.data, fd);
    }
}

/// Makes the set poll a socket whose ring holds bytes that no wake-up announced.
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
        if inner.waiting > 0 || inner.several_waiters {
            at(number).wake_waiter();
        }
    }
}
