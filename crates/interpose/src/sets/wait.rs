//! One thread's wait in a set: which promoted sockets are ready, what the kernel's events about
//! them imply, and how the set goes to sleep.

use std::sync::atomic::Ordering;

use libc::epoll_event;
use promote::Next;

use super::{EDGE, IN, IN_TOO, Inner, ONCE, OUT_TOO, allocate_waiter, at, oneshot};
use crate::clock::Instant;
use crate::doorbell::{self, Doorbell};
use crate::kernel;
use crate::pages;
use crate::sockets::{self, Interest, Promoted};
use crate::spin::KERNEL_EVERY;
use crate::waiter::soonest;
use crate::watch::Watch;

/// Sleeps of a set without bytes after which a socket is no longer polled.
const COOLING: u8 = 16;

/// An end of stream, beside EPOLLIN.
const HANG_UP: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP) as u32;

/// Events that the kernel adds to each interest (epoll_ctl(2)).
const IMPLICIT: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

/// Calls that found nothing after which a socket is no longer polled, either: they have cost as
/// much as a wake-up by then, and a program that never sleeps would poll forever.
const EMPTY_POLLS_MAX: u8 = 128;

/// Ready sockets that are put in order at most. With 50 at a time the lookups would take 8 % of the
/// time in which Redis answers.
const ORDERED: usize = 8;

/// A socket that a poll found ready.
pub(super) struct Found {
    /// The time that decides its place among the ready ones; 0 if more than [`ORDERED`] are ready,
    /// and none is looked up.
    since: u64,
    /// When its peer published (`Connection::published_at`); `None`: not looked up.
    published: Option<u64>,
    /// Its place among the events.
    place: usize,
    number: u32,
    event: epoll_event,
    /// The kernel reported it, with the peer's end of stream.
    ends: bool,
}

/// Not inlined: a sort takes half a KiB of stack, and handlers wait on small ones.
#[inline(never)]
fn sort<Key: Ord>(found: &mut [Found], key: impl Fn(&Found) -> Key) {
    found.sort_unstable_by_key(key);
}

impl Inner {
    /// Whether the list has a ring to poll.
    pub(crate) fn has_rings_to_poll(&self) -> bool {
        self.list.iter().any(|number| !sockets::at(*number).kernel_reports_arrivals.load(Ordering::Relaxed))
    }

    /// Whether the kernel has to be asked by now.
    pub(crate) fn kernel_is_due(&self, now: Instant) -> bool {
        self.kernel_is_due || now >= self.asked_kernel + KERNEL_EVERY
    }

    pub(crate) fn ask_kernel_next(&mut self) {
        self.kernel_is_due = true;
    }

    /// How many of `events` rings may fill when the kernel is asked, too: rings that are always
    /// ready would starve listeners and timers. A single event goes to either in turn.
    pub(crate) fn share_of_rings(&mut self, events: usize) -> usize {
        match events {
            0 => 0,
            1 => {
                self.kernels_turn = !self.kernels_turn;
                usize::from(!self.kernels_turn)
            }
            _ => events - (events / 4).max(1),
        }
    }

    /// When the peer of the last promoted socket that the kernel reported sent its wake-up.
    pub(crate) fn peer_woke_at(&self) -> u64 {
        self.peer_woke_at
    }

    pub(crate) fn kernel_was_asked(&mut self, now: Instant) {
        self.kernel_is_due = false;
        self.asked_kernel = now;
    }

    /// A thread begins to wait; [`Self::leave`] ends the wait.
    pub(crate) fn enter(&mut self) {
        self.waiting += 1;
        if !self.awaited {
            self.awaited = true;
            self.watch_doorbells();
        }
        let unaware = at(self.number).unaware.load(Ordering::SeqCst);
        if (self.waiting > 1 || unaware > 0 || self.ambiguous) && !self.several_waiters {
            self.register_deferred();
            self.arm_each(self.ambiguous);
        }
        if self.waiter.is_none() && !self.several_waiters {
            self.waiter = allocate_waiter();
        }
    }

    pub(crate) fn leave(&mut self, epfd: i32) {
        self.waiting = self.waiting.saturating_sub(1);
        // No wake-up announces these connections: wake another waiter of the set.
        if self.several_waiters && self.any_ready(epfd, |promoted| promoted.watch != Watch::Armed) {
            at(self.number).wake_waiter();
        }
    }

    /// From here on several threads wait in this set, or waiters that are not in epoll_wait(2) here
    /// (`over_tcp`): each socket is armed separately.
    #[cold]
    pub(super) fn arm_each(&mut self, over_tcp: bool) {
        self.several_waiters = true;
        self.over_tcp |= over_tcp;
        let mut pending = false;
        for number in self.by_data.values() {
            if let Some(promoted) = sockets::at(*number).lock().promoted.as_deref_mut() {
                if self.over_tcp {
                    promoted.stop_using_doorbell();
                }
                if promoted.connection.poll().unwrap_or(true) && !self.list.contains(number) {
                    // Its doorbell may have announced these bytes.
                    promoted.listed_in = self.number + 1;
                    self.list.push(*number);
                }
            }
        }
        for number in &self.list {
            let mut guard = sockets::at(*number).lock();
            if let Some(promoted) = guard.promoted.as_deref_mut()
                && promoted.watch != Watch::Armed
            {
                pending |= promoted.arm_to_sleep();
            }
        }
        if pending {
            at(self.number).wake_waiter();
        }
    }

    fn waiter_of(&self, promoted: &Promoted) -> Option<u32> {
        let alone =
            !promoted.shown_in_kernel && promoted.slept_by == 0 && !promoted.connection.has_several_users();
        self.waiter.filter(|_| !self.several_waiters && alone)
    }

    /// Reports the sockets of the list that have bytes, as many as there is room for, in the order
    /// in which their peers wrote. `kernel_events` events of the kernel lie at the beginning, and
    /// move behind them. Returns the number of all. `first`: the first poll of a call; spinning
    /// repeats it.
    pub(crate) fn collect(
        &mut self,
        epfd: i32,
        events: &mut [epoll_event],
        kernel_events: usize,
        first: bool,
    ) -> usize {
        if kernel_events == 0 {
            self.finished.clear();
        }
        self.found.clear();
        let kernel_events = self.place_finished(events, kernel_events);
        self.collect_more(epfd, events, kernel_events, first)
    }

    /// As [`Self::collect`], for sockets that it did not find and doorbells have announced since.
    /// The kernel's events lie behind those of the sockets found.
    pub(crate) fn collect_more(
        &mut self,
        epfd: i32,
        events: &mut [epoll_event],
        mut kernel_events: usize,
        first: bool,
    ) -> usize {
        let before = self.found.len();
        // For the binary search.
        sort(&mut self.found, |found| found.number);
        let mut cooled = false;
        let (length, mut polled) = (self.list.len(), 0);
        while polled < length && self.found.len() + kernel_events < events.len() {
            let number = self.list[(self.turn + polled) % length];
            polled += 1;
            if self.found[..before].binary_search_by_key(&number, |found| found.number).is_ok() {
                continue;
            }
            let socket = sockets::at(number);
            let mut guard = socket.lock();
            let inner = &mut *guard;
            let (interest, Some(promoted)) = (&mut inner.interest, inner.promoted.as_deref_mut()) else {
                continue;
            };
            let listed = promoted.listed_in == self.number + 1 && interest.set == self.number + 1;
            if !listed || oneshot::is_disabled(epfd, interest) {
                continue;
            }
            let edge = interest.events & EDGE != 0;
            let mut ready = 0;
            if interest.events & IN != 0 && has_bytes(promoted, edge) && promoted.is_unreported(edge) {
                promoted.report(interest.fd, edge);
                promoted.quiet = 0;
                promoted.empty_polls = 0;
                ready |= interest.events & IN_TOO;
            }
            let writable = interest.events & OUT_TOO;
            if writable != 0 {
                if !promoted.connection.sends_to_ring() || promoted.connection.kernel_has_ended() {
                    // Only the kernel can say.
                    self.ask_kernel_next();
                } else if !edge || !promoted.reported_writable || ready != 0 {
                    promoted.reported_writable = true;
                    ready |= writable;
                }
            }
            if ready == 0 {
                promoted.empty_polls = promoted.empty_polls.saturating_add(u8::from(first));
                if promoted.empty_polls > EMPTY_POLLS_MAX
                    && writable == 0
                    && promoted.may_stop_polling(interest)
                {
                    promoted.empty_polls = 0;
                    promoted.listed_in = 0;
                    cooled = true;
                }
                continue;
            }
            if ready & IN_TOO != 0
                && let Some(waiter) = self.waiter_of(promoted)
            {
                promoted.heat(waiter);
            }
            if interest.events & ONCE != 0 && promoted.connection.peer_has_finished() {
                // The kernel is not asked again until the program re-arms the interest.
                ready |= kernel::hangups(interest.fd) & (interest.events | IMPLICIT);
            }
            oneshot::disable(epfd, interest);
            let place = self.found.len();
            let mut event = epoll_event { events: ready, u64: interest.data };
            let reported = &mut events[before..=place + kernel_events];
            if let Some(at) = reported[..kernel_events].iter().position(|reported| reported.u64 == event.u64)
            {
                // The kernel reports it, too: one call must report a connection once, since the
                // program may close it for the first event.
                event.events |= reported[at].events;
                reported.copy_within(at + 1.., at);
                kernel_events -= 1;
            }
            self.found.push(Found { since: 0, published: None, place, number, event, ends: false });
            events[place + kernel_events] = event;
        }
        let count = self.found.len() + kernel_events;
        if self.found.len() > before {
            events[before..count].rotate_left(kernel_events);
            self.put_in_order(events);
        }
        // Without more room, the next poll starts at the next socket.
        self.turn = if length == 0 { 0 } else { (self.turn + polled) % length };
        if cooled {
            self.forget_cold();
        }
        count
    }

    /// Looks up when the peers of the sockets found wrote: one cache line of each peer's memory.
    fn look_up_times(&mut self) {
        for found in self.found.iter_mut().filter(|found| found.published.is_none()) {
            let mut guard = sockets::at(found.number).lock();
            let Some(promoted) = guard.promoted.as_deref_mut() else { continue };
            let published = promoted.connection.published_at();
            // A socket with bytes left over comes before those written later, and behind those that
            // were reported with it.
            found.since = if promoted.published == published { self.latest } else { published };
            (promoted.published, found.published) = (published, Some(published));
        }
    }

    fn put_in_order(&mut self, events: &mut [epoll_event]) {
        if (2..=ORDERED).contains(&self.found.len()) {
            self.look_up_times();
        }
        for found in &mut self.found {
            // The kernel's event may have been merged into it since.
            found.event = events[found.place];
        }
        // Of more than are looked up, ends come last, behind the bytes of the same peer.
        let all = self.found.len() <= ORDERED;
        sort(&mut self.found, |found| {
            (found.ends && !all, found.published.is_none(), found.since, found.published, found.place)
        });
        for (place, found) in self.found.iter_mut().enumerate() {
            found.place = place;
            events[place] = found.event;
        }
        self.latest = self.found.iter().map(|found| found.since).fold(self.latest, u64::max);
    }

    /// Removes sockets that are no longer polled from the list.
    fn forget_cold(&mut self) {
        let here = self.number + 1;
        self.list.retain(|number| {
            let listed = |promoted: &Promoted| promoted.listed_in == here;
            sockets::at(*number).lock().promoted.as_deref().is_some_and(listed)
        });
    }

    /// Corrects the kernel's events about promoted sockets: a wake-up byte is no event. Keeps the
    /// correct ones, merged into the first `earlier` events; returns the number of all.
    pub(crate) fn filter(&mut self, epfd: i32, events: &mut [epoll_event], earlier: usize) -> usize {
        self.finished.clear();
        let mut kept = earlier;
        for place in earlier..events.len() {
            let epoll_event { events: reported, u64: data } = events[place];
            if let Some(number) = doorbell::socket_of(data, reported) {
                self.doorbell_woke_for(number);
                continue;
            }
            let promoted = self.by_data.get(&data).copied();
            let merges = self.ambiguous || promoted.is_some();
            let before = events[..earlier].iter().position(|before| merges && before.u64 == data);
            let is = match promoted {
                // Only `epoll_data` identifies the socket, and several have the same.
                Some(number) if !self.ambiguous => {
                    self.true_events(epfd, number, data, reported, before.is_some())
                }
                _ => reported,
            };
            if let Some(before) = before {
                events[before].events |= is;
            } else if is != 0 {
                let event = epoll_event { events: is, u64: data };
                let ends = is & (IN_TOO | HANG_UP) != 0 && !self.ambiguous;
                if let Some(number) = promoted.filter(|number| ends && self.peer_finished(*number)) {
                    self.finished.push(Found {
                        since: 0,
                        published: None,
                        place: kept,
                        number,
                        event,
                        ends: true,
                    });
                }
                events[kept] = event;
                kept += 1;
            }
        }
        kept
    }

    /// Whether the peer of a promoted socket has sent its end of stream, which the kernel reports.
    fn peer_finished(&self, number: u32) -> bool {
        let guard = sockets::at(number).lock();
        guard.promoted.as_deref().is_some_and(|promoted| promoted.connection.peer_has_finished())
    }

    /// Places the ends of stream that the kernel has just reported among the sockets found, which
    /// come first among the `earlier` events. Returns the number of other events.
    pub(crate) fn place_finished(&mut self, events: &mut [epoll_event], earlier: usize) -> usize {
        let before = self.found.len();
        for (nth, mut end) in self.finished.drain(..).enumerate() {
            events[before + nth..=end.place].rotate_right(1);
            end.place = before + nth;
            self.found.push(end);
        }
        if self.found.len() > before {
            self.put_in_order(events);
        }
        earlier - self.found.len()
    }

    /// The doorbell of a socket woke the set.
    fn doorbell_woke_for(&mut self, number: u32) {
        let mut guard = sockets::at(number).lock_alone();
        let is_member = guard.interest.set == self.number + 1;
        let Some(promoted) = guard.promoted.as_deref_mut() else { return };
        let here = self.number + 1;
        // If another set watches it by now, its edge is for that set. A forked process shares the
        // set with its parent.
        let is_ours = |doorbell: &&mut Doorbell| doorbell.set == here || promoted.inherited;
        let Some(doorbell) = promoted.doorbell.as_mut().filter(is_ours) else { return };
        self.doorbell_woke = true;
        doorbell.woke_set();
        self.peer_woke_at = promoted.connection.peer_woke_at();
        promoted.watch.note_wake_up();
        if !is_member {
            return;
        }
        drop(guard);
        let mut guard = sockets::at(number).lock();
        let Some(promoted) = guard.promoted.as_deref_mut() else { return };
        self.list(number, promoted);
        match self.waiter_of(promoted) {
            Some(waiter) => promoted.heat(waiter),
            // The list reports the bytes that are here.
            None => drop(promoted.arm()),
        }
    }

    /// The part of the kernel's event about a promoted socket that is true. `earlier`: the same
    /// call reports another event of it.
    fn true_events(&mut self, epfd: i32, number: u32, data: u64, reported: u32, earlier: bool) -> u32 {
        let mut guard = sockets::at(number).lock();
        let inner = &mut *guard;
        let ours = inner.interest.set == self.number + 1 && inner.interest.data == data;
        if !ours {
            return reported;
        }
        if inner.interest.disabled && reported & !IMPLICIT == 0 && !earlier && inner.promoted.is_some() {
            // `oneshot::disable` cannot keep the kernel from reporting these again.
            return 0;
        }
        let mut is = reported;
        let Some(promoted) = inner.promoted.as_deref_mut() else { return is };
        self.peer_woke_at = promoted.connection.peer_woke_at();
        let fd = inner.interest.fd;
        let edge = inner.interest.events & EDGE != 0;
        if is & IN_TOO != 0 {
            if self.has_event(number, promoted, fd, edge) {
                promoted.report(fd, edge);
                promoted.kernel_reported = true;
            } else {
                is &= !IN_TOO;
            }
        }
        if promoted.connection.has_error() {
            // The kernel reported the error to us, and will not repeat it to the program.
            is |= libc::EPOLLERR as u32;
        }
        let once = inner.interest.events & ONCE != 0;
        if once && is != 0 {
            oneshot::note_disabled(&mut inner.interest);
        } else if once {
            oneshot::rearm(epfd, &inner.interest);
        }
        is
    }

    /// Whether a socket that the kernel reports readable has anything to read. Wake-up bytes are
    /// discarded, unless they have to keep the socket readable for other threads.
    fn has_event(&mut self, number: u32, promoted: &mut Promoted, fd: i32, edge: bool) -> bool {
        let waiter = self.waiter_of(promoted);
        let ring = |promoted: &mut Promoted| match promoted.connection.poll() {
            Ok(true) => promoted.is_unreported(edge),
            Ok(false) => matches!(promoted.connection.next(0), Ok(Next::End(_)) | Err(_)),
            Err(_) => true,
        };
        if ring(promoted) && waiter.is_none() {
            return true;
        }
        if promoted.connection.reads_data_from_kernel() && !promoted.connection.peer_is_demoted() {
            // The kernel's report is right, and the ring is not in use. (A stale wake-up byte would
            // be no event.)
            return true;
        }
        let pending = promoted.kernel_has_event(fd);
        match waiter {
            Some(waiter) => {
                self.list(number, promoted);
                promoted.heat(waiter);
            }
            None => {
                if promoted.arm().unwrap_or(true) {
                    self.list(number, promoted);
                }
            }
        }
        // Data or FIN may have come behind a wake-up byte: an edge is reported once, and a call
        // that does not wait asks once.
        pending || ring(promoted) || promoted.kernel_has_event(fd)
    }

    /// Before this thread sleeps in the kernel. False: something is ready.
    pub(crate) fn go_to_sleep(&mut self, epfd: i32) -> bool {
        self.unseen = None;
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
            promoted.connection.publish_counts();
            self.unseen = soonest(self.unseen, promoted.wake_unseen_if_due(inner.interest.fd));
            let ours = inner.interest.set == here;
            let wanted = ours && inner.interest.events & IN != 0 && !inner.interest.disabled;
            promoted.quiet = promoted.quiet.saturating_add(1);
            let cools = promoted.quiet > COOLING || !ours;
            if !promoted.watch.is_armed()
                && (!wanted || cools || self.waiter_of(promoted) != Some(promoted.waiter))
            {
                // Either a wake-up for it would not wake this set, or it has been quiet and polling
                // it only costs.
                if !wanted {
                    promoted.mask();
                } else if !promoted.arm_for_next(&inner.interest) {
                    return false;
                }
            }
            if cools && (!ours || !promoted.connection.poll().unwrap_or(true)) {
                promoted.listed_in = 0;
                cooled = true;
            }
        }
        if cooled {
            self.forget_cold();
        }
        if let Some(waiter) = self.waiter.filter(|_| !self.several_waiters) {
            // Stored first: a thread that reads a wake-up byte meant for this sleep has to see it.
            at(self.number).is_numbered.store(true, Ordering::SeqCst);
            pages::sleep(waiter);
            if self.any_ready(epfd, |_| true) {
                self.woke();
                return false;
            }
            return true;
        }
        !self.any_ready(epfd, |_| true)
    }

    /// After a sleep.
    pub(crate) fn woke(&self) {
        if let Some(waiter) = self.waiter {
            pages::wake(waiter);
            at(self.number).is_numbered.store(false, Ordering::Relaxed);
        }
    }

    fn any_ready(&self, epfd: i32, of: impl Fn(&Promoted) -> bool) -> bool {
        self.list.iter().any(|number| {
            let mut guard = sockets::at(*number).lock();
            let inner = &mut *guard;
            let Some(promoted) = inner.promoted.as_deref_mut() else { return false };
            let Interest { set, events, .. } = inner.interest;
            let edge = events & EDGE != 0;
            set == self.number + 1
                && of(promoted)
                && events & IN != 0
                && !oneshot::is_disabled(epfd, &mut inner.interest)
                && has_bytes(promoted, edge)
                && promoted.is_unreported(edge)
        })
    }
}

fn has_bytes(promoted: &mut Promoted, edge: bool) -> bool {
    // For an edge: the kernel reported its bytes before the ring's once, and will not report them
    // again because of these.
    promoted.connection.poll().unwrap_or(true) || (edge && promoted.connection.unconsumed_here() > 0)
}

impl Promoted {
    /// Whether the bytes of the ring have to be reported. An edge-triggered set reports each
    /// arrival once. Bytes that came through the kernel since, and were consumed by now, were an
    /// arrival, too: a program that called FIONREAD before expects an edge for them, and leaves the
    /// bytes behind them unread until then.
    fn is_unreported(&self, edge: bool) -> bool {
        !edge
            || self.reported != self.connection.arrived()
            || self.connection.consumed_from_kernel() > self.reported_of_kernel
    }

    /// Records that everything which has arrived is reported now.
    fn report(&mut self, fd: i32, edge: bool) {
        if edge {
            self.reported_of_kernel = self.connection.consumed_from_kernel() + self.data_in_kernel(fd);
        }
        self.reported = self.connection.arrived();
    }

    /// Arms for the next bytes. False: unreported bytes are here.
    fn arm_for_next(&mut self, interest: &Interest) -> bool {
        self.note_use();
        self.connection.requests_each(false);
        if self.is_unreported(interest.events & EDGE != 0) {
            return !self.arm_to_sleep();
        }
        // The bytes here were reported; only more are an event.
        self.arm_for_more(self.wake_up_in_set()) == Ok(false)
    }

    /// Whether a set that no longer polls it is woken for the next bytes.
    fn may_stop_polling(&mut self, interest: &Interest) -> bool {
        // A wake-up that may have arrived already is not sent again.
        let rings = interest.events & IN != 0 && (self.watch == Watch::Armed || self.arm_for_next(interest));
        rings && !self.connection.poll().unwrap_or(true)
    }
}
