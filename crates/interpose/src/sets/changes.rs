//! What programs ask of their epoll sets, and when the kernel is told of it.
#![allow(unsafe_code)] // epoll_ctl(2)

use std::sync::atomic::Ordering;

use libc::epoll_event;

use super::{EDGE, IN, Inner, ONCE, OUT_TOO, at};
use crate::kernel::Found;
use crate::leaving;
use crate::real;
use crate::sockets::{self, Interest, Membership, Promoted, Registered, Socket, State};
use crate::table::{self, Entry};

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

/// Has the kernel make a change, by `call`, which returns 0 then; returns what that did. Whoever the
/// kernel wakes for it meanwhile waits until it is known here, too: an event would be taken for
/// what it was before, and EPOLLONESHOT be told of twice.
pub(crate) fn make(
    number: u32,
    epfd: i32,
    socket_number: u32,
    fd: i32,
    change: Change,
    call: impl FnOnce() -> i32,
) -> i32 {
    let set = at(number);
    let mut inner = set.lock();
    let promoted = sockets::at(socket_number).state() == State::Promoted;
    if promoted {
        // UNAWARE-PAIR: who wakes in the set's first wait with a promoted socket looks at this.
        set.promoted.fetch_max(1, Ordering::SeqCst);
    }
    let status = call();
    if status != 0 {
        set.promoted.store(inner.by_data.len() as u32, Ordering::SeqCst);
        return status;
    }
    set.epfd.store(epfd, Ordering::Relaxed);
    let mut socket = sockets::at(socket_number).lock();
    let before = socket.interest;
    let present = |fd: i32| before.set == number + 1 && before.fd == fd;
    let earlier = before.earlier.filter(|earlier| earlier.set == number + 1 && earlier.fd == fd);
    let registered =
        |wish: Wish| Some(Registered { epfd, fd: wish.fd, events: wish.events, data: wish.data });
    let now = match change {
        Change::Add(wish) if before.set == 0 || present(wish.fd) => Interest {
            sets: before.sets + u32::from(before.set == 0),
            registered: registered(wish),
            ..wish.interest(number, before)
        },
        Change::Add(wish) => Interest {
            sets: before.sets + 1,
            earlier: before.membership(),
            registered: registered(wish),
            ..wish.interest(number, before)
        },
        Change::Modify(wish) if before.set == 0 || present(wish.fd) => Interest {
            sets: before.sets.max(1),
            registered: registered(wish),
            ..wish.interest(number, before)
        },
        Change::Modify(wish) => {
            let now = earlier.map(|earlier| Membership { events: wish.events, data: wish.data, ..earlier });
            Interest { earlier: now.or(before.earlier), ..before }
        }
        Change::Delete if present(fd) => {
            let sets = before.sets.saturating_sub(1);
            Interest { sets, earlier: before.earlier, ..Interest::default() }
        }
        Change::Delete => {
            let sets = before.sets.saturating_sub(1);
            Interest { sets, earlier: before.earlier.filter(|one| Some(*one) != earlier), ..before }
        }
    };
    match earlier {
        Some(earlier) if now.earlier != before.earlier => inner.forget(socket_number, earlier),
        _ => {}
    }
    inner.apply(socket_number, &mut socket, now);
    inner.prod(epfd, &mut socket);
    drop(socket);
    drop(inner);
    match change {
        Change::Delete => come_back(now, socket_number),
        // Only the kernel can tell all of them.
        _ if promoted && now.is_one_of_several() => leaving::leave_if_possible(fd),
        _ => {}
    }
    status
}

/// The socket's last set has it no more: the one before is its set again, if that still has it.
pub(super) fn come_back(left: Interest, socket_number: u32) {
    let Some(earlier) = left.earlier.filter(|_| left.set == 0) else { return };
    let set = at(earlier.set - 1);
    let mut inner = set.lock();
    let mut socket = sockets::at(socket_number).lock();
    if socket.interest.set != 0 || socket.interest.earlier != Some(earlier) {
        return;
    }
    let Membership { fd, events, data, .. } = earlier;
    let epfd = set.epfd.load(Ordering::Relaxed);
    let now = Interest {
        set: earlier.set,
        fd,
        events,
        data,
        sets: socket.interest.sets,
        registered: Some(Registered { epfd, fd, events, data }),
        ..Interest::default()
    };
    inner.apply(socket_number, &mut socket, now);
    inner.prod(epfd, &mut socket);
}

/// A socket that is closed was in this set, too.
pub(crate) fn forget(socket_number: u32, earlier: Membership) {
    at(earlier.set - 1).lock().forget(socket_number, earlier);
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

/// The socket is promoted no more: the kernel alone tells of it.
pub(crate) fn demoted(number: u32, socket_number: u32) {
    let mut inner = at(number).lock();
    let mut socket = sockets::at(socket_number).lock();
    if socket.interest.set != number + 1 {
        return;
    }
    tell(&mut socket.interest);
    let Interest { data, fd, .. } = socket.interest;
    if inner.by_data.get(&data) == Some(&socket_number) {
        inner.by_data.remove(&data);
    }
    inner.has_other(data, fd);
    inner.kernel_is_due = true;
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
    let elsewhere = |registered: Registered| registered.epfd != epfd;
    if socket.interest.set == 0 && socket.interest.registered.is_none_or(elsewhere) {
        // What another set was not told.
        tell(&mut socket.interest);
    }
    let before = socket.interest;
    let present = before.set == number + 1 && before.fd == fd;
    // Edges and single shots begin anew with each change, also in what the kernel has to tell.
    let plain = |events: u32| events & (EDGE | ONCE | libc::EPOLLEXCLUSIVE as u32) == 0;
    let now = match change {
        _ if inner.waiting > 0
            || inner.crowd
            || inner.ambiguous
            || set.unaware.load(Ordering::SeqCst) > 0
            || before.is_one_of_several()
            || socket.promoted.is_none() =>
        {
            None
        }
        Change::Add(_) if present => return Some(Err(libc::EEXIST)),
        Change::Add(wish) if before.set == 0 && plain(wish.events) => {
            Some(Interest { sets: 1, ..wish.interest(number, before) })
        }
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

/// Before one of a socket's descriptors is closed: the kernel must know what the program last
/// asked of it, and must not be told once the number is another's.
pub(crate) fn settle(socket: &Socket) {
    tell(&mut socket.lock().interest);
}

/// Takes a descriptor out of every set in the kernel, which its close will not do.
pub(crate) fn take_out(fd: i32) {
    for set in (0..table::end()).filter(|set| matches!(table::entry(*set), Entry::Set(_))) {
        let mut event = epoll_event { events: 0, u64: 0 };
        // SAFETY: an event to read. Those that do not have it say so.
        unsafe { real::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, &raw mut event) };
    }
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
            sets: before.sets,
            earlier: before.earlier,
            registered: before.registered,
            untold: before.untold,
            prods: false,
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
        let stays = socket.promoted.is_none()
            && !self.hides
            && (before.set, before.fd, before.data) == (now.set, now.fd, now.data)
            && now.set == here;
        if before.set == here && !stays && self.others.get(&before.data) == Some(&before.fd) {
            self.others.remove(&before.data);
        }
        match socket.promoted.as_deref_mut() {
            None => {
                self.kernel_is_due = true;
                if now.set == here && !stays {
                    self.has_other(now.data, now.fd);
                }
            }
            Some(promoted) if now.set == here => {
                // What a change of the interest asks for is told anew, as epoll_ctl(2) does.
                promoted.reported = u64::MAX;
                promoted.told_writable = false;
                let same = self.by_data.insert(now.data, number).is_some_and(|other| other != number);
                self.hides |= same;
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
        // UNAWARE-PAIR: before a look at who waits in the kernel; who does looks at this after. What stands there
        // already was stored so before.
        let promoted = &at(self.number).promoted;
        if promoted.load(Ordering::Relaxed) != self.by_data.len() as u32 {
            promoted.store(self.by_data.len() as u32, Ordering::SeqCst);
        }
    }

    /// If somebody sleeps in the set, and what lies in the socket's ring has no bell: the
    /// kernel, which can write to it, wakes him.
    fn prod(&mut self, epfd: i32, socket: &mut sockets::Guard<'_>) {
        if self.waiting == 0 && at(self.number).unaware.load(Ordering::SeqCst) == 0 {
            return;
        }
        let interest = socket.interest;
        let waits = interest.set == self.number + 1 && interest.events & (IN | OUT_TOO) == IN;
        // What is in the kernel, a bell for one, has woken him already.
        let needs_one = |promoted: &mut Promoted| {
            promoted.connection.look_again().unwrap_or(true)
                && matches!(promoted.look(interest.fd), Found::Nothing)
        };
        if !waits || !socket.promoted.as_deref_mut().is_some_and(needs_one) {
            return;
        }
        let mut event = epoll_event { events: interest.events | OUT_TOO, u64: interest.data };
        // SAFETY: an event to read.
        let status = unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, interest.fd, &raw mut event) };
        socket.interest.prods = status == 0;
    }

    /// A set that has the socket no more, and was not its last.
    fn forget(&mut self, number: u32, earlier: Membership) {
        if self.by_data.get(&earlier.data) == Some(&number) {
            self.by_data.remove(&earlier.data);
        }
        if self.others.get(&earlier.data) == Some(&earlier.fd) {
            self.others.remove(&earlier.data);
        }
    }

    fn has_other(&mut self, data: u64, fd: i32) {
        self.hides |= self.others.insert(data, fd).is_some_and(|other| other != fd);
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
    pub(super) fn list(&mut self, number: u32, promoted: &mut Promoted) {
        if promoted.listed_in != self.number + 1 {
            promoted.listed_in = self.number + 1;
            // It may be there from an earlier time.
            if !self.list.contains(&number) {
                self.list.push(number);
            }
        }
    }
}
