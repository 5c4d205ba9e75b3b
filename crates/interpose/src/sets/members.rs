//! The members of a set: which are promoted, and which `epoll_data` each has.

use std::sync::atomic::Ordering;

use super::changes::flush_interest;
use super::{EDGE, IN, Inner, OUT_TOO, at};
use crate::sockets::{self, Interest, Membership, Promoted};

impl Inner {
    /// From here on `others` has the set's TCP sockets, too. To be called before any of them is
    /// locked.
    pub(super) fn mix(&mut self) {
        let here = self.number + 1;
        // MIXED-PAIR
        let mixed = &at(self.number).mixed;
        if mixed.load(Ordering::SeqCst) {
            return;
        }
        mixed.store(true, Ordering::SeqCst);
        self.kernel_is_due = true;
        for (_, socket) in sockets::all() {
            let Interest { set, data, fd, earlier, .. } = socket.lock_alone().interest;
            if set == here {
                self.add_other(data, fd);
            }
            if let Some(earlier) = earlier.filter(|earlier| earlier.set == here) {
                self.add_other(earlier.data, earlier.fd);
            }
        }
    }

    /// Records a new, changed or ended interest of a socket in this set, or its promotion.
    pub(super) fn apply(&mut self, number: u32, socket: &mut sockets::Guard<'_>, now: Interest) {
        at(self.number).note_sockets();
        let here = self.number + 1;
        let before = std::mem::replace(&mut socket.interest, now);
        let listed_in = socket.promoted.as_deref().map_or(0, |promoted| promoted.listed_in);
        let known = before.set == here && self.by_data.get(&before.data) == Some(&number);
        if known && (now.set != here || now.data != before.data) {
            self.by_data.remove(&before.data);
        }
        // A removed socket stays in the list, and hot, until the set sleeps: programs remove
        // sockets and add them again all the time.
        let stays = socket.promoted.is_none()
            && !self.has_duplicates
            && (before.set, before.fd, before.data) == (now.set, now.fd, now.data)
            && now.set == here;
        if before.set == here && !stays {
            self.remove_other(before.data, before.fd);
        }
        match socket.promoted.as_deref_mut() {
            None => {
                self.kernel_is_due = true;
                if now.set == here && !stays {
                    self.add_other(now.data, now.fd);
                }
            }
            Some(promoted) if now.set == here => {
                self.prepare_wake_up();
                match self.watches_doorbells() {
                    true => promoted.watch_doorbell_in(self.number, number),
                    // It may have armed its doorbell for a sleep that did not come about.
                    false => promoted.stop_using_doorbell(),
                }
                if self.wakes_for_each_arrival(now.events) {
                    promoted.wake_for_each();
                }
                // Like epoll_ctl(2), a change reports again what is ready.
                promoted.reported = u64::MAX;
                promoted.reported_writable = false;
                let same = self.by_data.insert(now.data, number).is_some_and(|other| other != number);
                self.has_duplicates |= same;
                if same || self.others.contains_key(&now.data) {
                    self.ambiguous = true;
                }
                if promoted.listed_in != here && !promoted.watch.is_armed() {
                    promoted.mask();
                }
                if now.events & OUT_TOO != 0 || promoted.connection.poll().unwrap_or(true) {
                    self.list(number, promoted);
                }
            }
            Some(promoted) => promoted.left_set(),
        }
        // The wake-up for all connections of the set that polls this one may lie in it, and no longer
        // wakes that set. Where it still does, a thread that re-enables its connections need not end
        // another one's sleep.
        let still_wakes = listed_in == now.set && now.events & IN != 0 && now.events & OUT_TOO == 0;
        if listed_in != 0 && !still_wakes {
            at(listed_in - 1).wake_if_asleep();
        }
        // UNAWARE-PAIR: stored before the waiters in the kernel are read; such a waiter reads it
        // after counting itself. An equal value was stored so before.
        let promoted = &at(self.number).promoted;
        if promoted.load(Ordering::Relaxed) != self.by_data.len() as u32 {
            promoted.store(self.by_data.len() as u32, Ordering::SeqCst);
        }
    }

    /// A thread waits in the set for the first time.
    pub(super) fn watch_doorbells(&mut self) {
        if !self.watches_doorbells() {
            return;
        }
        for number in self.by_data.values() {
            if let Some(promoted) = sockets::at(*number).lock().promoted.as_deref_mut() {
                promoted.watch_doorbell_in(self.number, *number);
            }
        }
    }

    /// Whether only threads that wait in the set need wake-ups of its members.
    fn watches_doorbells(&self) -> bool {
        self.awaited && !self.over_tcp
    }

    /// Whether each arrival wakes the waiters of the set, even with earlier bytes unread.
    pub(super) fn wakes_for_each_arrival(&self, events: u32) -> bool {
        self.in_a_set || (self.watched && events & EDGE != 0)
    }

    /// Wakes the waiters of the set for bytes that lie in the socket's ring already.
    pub(super) fn wake_for(&mut self, socket: &mut sockets::Guard<'_>) {
        if self.waiting == 0 && !self.several_waiters && at(self.number).unaware.load(Ordering::SeqCst) == 0 {
            return;
        }
        let Interest { set, events, .. } = socket.interest;
        let wanted = set == self.number + 1 && events & IN != 0;
        let here = |promoted: &mut Promoted| promoted.connection.poll().unwrap_or(true);
        if wanted && socket.promoted.as_deref_mut().is_some_and(here) {
            at(self.number).wake_waiter();
        }
    }

    /// The socket is no longer in this set, which was not its last one.
    pub(super) fn forget(&mut self, number: u32, earlier: Membership) {
        if self.by_data.get(&earlier.data) == Some(&number) {
            self.by_data.remove(&earlier.data);
        }
        self.remove_other(earlier.data, earlier.fd);
    }

    pub(super) fn remove_other(&mut self, data: u64, fd: i32) {
        if self.others.get(&data) == Some(&fd) {
            self.others.remove(&data);
        }
    }

    pub(super) fn add_other(&mut self, data: u64, fd: i32) {
        self.has_duplicates |= self.others.insert(data, fd).is_some_and(|other| other != fd);
        if self.by_data.contains_key(&data) {
            self.ambiguous = true;
        }
    }

    /// Makes the deferred epoll_ctl(2) calls; before the kernel is asked for events.
    pub(crate) fn register_deferred(&mut self) {
        if self.deferred.is_empty() {
            return;
        }
        while let Some(number) = self.deferred.pop() {
            flush_interest(&mut sockets::at(number).lock().interest);
        }
        at(self.number).deferred.store(0, Ordering::Relaxed);
    }

    /// Waits of this set poll the socket from now on.
    pub(super) fn list(&mut self, number: u32, promoted: &mut Promoted) {
        if promoted.listed_in != self.number + 1 {
            if promoted.listed_in != 0 {
                at(promoted.listed_in - 1).wake_if_asleep();
            }
            promoted.listed_in = self.number + 1;
            // It may still be in the list.
            if !self.list.contains(&number) {
                self.list.push(number);
            }
        }
    }
}
