//! What a set knows of its members: which are promoted, and by what the kernel tells of all.

use std::sync::atomic::Ordering;

use super::changes::tell;
use super::{EDGE, IN, Inner, OUT_TOO, at};
use crate::sockets::{self, Interest, Membership, Promoted};

impl Inner {
    /// From here on `others` has the set's TCP sockets, too; before any of them is locked.
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
                self.has_other(data, fd);
            }
            if let Some(earlier) = earlier.filter(|earlier| earlier.set == here) {
                self.has_other(earlier.data, earlier.fd);
            }
        }
    }

    /// A socket's interest in this set began, changed or ended, or the socket was promoted.
    pub(super) fn apply(&mut self, number: u32, socket: &mut sockets::Guard<'_>, now: Interest) {
        at(self.number).gets_sockets();
        let here = self.number + 1;
        let before = std::mem::replace(&mut socket.interest, now);
        let listed_in = socket.promoted.as_deref().map_or(0, |promoted| promoted.listed_in);
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
        if before.set == here && !stays {
            self.has_other_no_more(before.data, before.fd);
        }
        match socket.promoted.as_deref_mut() {
            None => {
                self.kernel_is_due = true;
                if now.set == here && !stays {
                    self.has_other(now.data, now.fd);
                }
            }
            Some(promoted) if now.set == here => {
                self.can_be_woken();
                match self.watches_doorbell(now.events) {
                    true => promoted.is_watched_in(self.number, number),
                    // It may have asked for its doorbell before a sleep that was left.
                    false => promoted.forsakes_doorbell(),
                }
                if self.shows_each(now.events) {
                    promoted.wakes_for_each();
                }
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
            Some(promoted) => promoted.leaves_set(),
        }
        if listed_in != 0 {
            // What woke that set for all of its connections may be in this one, and no longer wakes it.
            at(listed_in - 1).disturb();
        }
        // UNAWARE-PAIR: before a look at who waits in the kernel; who does looks at this after. What stands there
        // already was stored so before.
        let promoted = &at(self.number).promoted;
        if promoted.load(Ordering::Relaxed) != self.by_data.len() as u32 {
            promoted.store(self.by_data.len() as u32, Ordering::SeqCst);
        }
    }

    /// A thread waits in the set for the first time.
    pub(super) fn watch_doorbells(&mut self) {
        for number in self.by_data.values() {
            let mut guard = sockets::at(*number).lock();
            let watches = self.watches_doorbell(guard.interest.events);
            if let Some(promoted) = guard.promoted.as_deref_mut().filter(|_| watches) {
                promoted.is_watched_in(self.number, *number);
            }
        }
    }

    /// Whether a wake-up of such a member has to reach nobody but a thread that waits in the set.
    fn watches_doorbell(&self, events: u32) -> bool {
        self.awaited && !self.over_tcp && events & libc::EPOLLEXCLUSIVE as u32 == 0
    }

    /// Whether each arrival wakes the waiters of the set, even with earlier bytes unread.
    pub(super) fn shows_each(&self, events: u32) -> bool {
        self.in_a_set || (self.watched && events & EDGE != 0)
    }

    /// If somebody may sleep in the set, wakes him for what lies in the socket's ring already.
    pub(super) fn wake_for(&mut self, socket: &mut sockets::Guard<'_>) {
        if self.waiting == 0 && !self.crowd && at(self.number).unaware.load(Ordering::SeqCst) == 0 {
            return;
        }
        let Interest { set, events, .. } = socket.interest;
        let wanted = set == self.number + 1 && events & IN != 0;
        let here = |promoted: &mut Promoted| promoted.connection.look_again().unwrap_or(true);
        if wanted && socket.promoted.as_deref_mut().is_some_and(here) {
            at(self.number).wake_waiter();
        }
    }

    /// A set that has the socket no more, and was not its last.
    pub(super) fn forget(&mut self, number: u32, earlier: Membership) {
        if self.by_data.get(&earlier.data) == Some(&number) {
            self.by_data.remove(&earlier.data);
        }
        self.has_other_no_more(earlier.data, earlier.fd);
    }

    pub(super) fn has_other_no_more(&mut self, data: u64, fd: i32) {
        if self.others.get(&data) == Some(&fd) {
            self.others.remove(&data);
        }
    }

    pub(super) fn has_other(&mut self, data: u64, fd: i32) {
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
            if promoted.listed_in != 0 {
                at(promoted.listed_in - 1).disturb();
            }
            promoted.listed_in = self.number + 1;
            // It may be there from an earlier time.
            if !self.list.contains(&number) {
                self.list.push(number);
            }
        }
    }
}
