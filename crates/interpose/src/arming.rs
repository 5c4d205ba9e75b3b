//! How an endpoint asks to be woken (docs/promotion.md, section 4): by its doorbell or over TCP,
//! and when it polls instead.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use ring::WakeUp;
use ring::layout::NO_WAITER;

use crate::doorbell::Doorbell;
use crate::hidden;
use crate::kernel;
use crate::mode;
use crate::receive;
use crate::sets;
use crate::sockets::{self, Promoted};
use crate::watch::Watch;

/// Repeated checks at most for bytes that arrive while arming.
const ROUNDS: u32 = 64;

/// The program is about to put a file of its own at the number of a hidden descriptor (dup2(2)),
/// which gets another one. False: it has just been closed.
#[cold]
pub(crate) fn vacate_number(fd: c_int) -> bool {
    for (_, socket) in sockets::all() {
        let mut inner = socket.lock_alone();
        let Some(promoted) = inner.promoted.as_deref_mut() else { continue };
        let Some(doorbell) = promoted.doorbell.as_ref().filter(|doorbell| doorbell.has(fd)) else { continue };
        // Its set knows it by its number.
        let set = if doorbell.is_member { doorbell.set } else { 0 };
        promoted.stop_using_doorbell();
        let moved = hidden::moves(fd);
        if set != 0 {
            promoted.watch_doorbell_in(set - 1, socket.number());
        }
        drop(inner);
        receive::list_in_set(socket);
        return moved;
    }
    hidden::moves(fd)
}

impl Promoted {
    /// Wakes the peer by its doorbell. False: it has none, or the doorbell is full.
    pub(crate) fn wake_by_doorbell(&mut self) -> bool {
        let woken =
            self.doorbell.as_ref().is_some_and(|doorbell| !mode::is_confined() && doorbell.wake_peer());
        if woken {
            self.connection.woke_by_doorbell(&self.other);
        }
        woken
    }

    /// Whether at most one thread, of this process, waits for it, as far as is seen.
    pub(crate) fn has_one_waiter(&self) -> bool {
        !self.shown_in_kernel && self.slept_by == 0 && !self.inherited && !self.connection.has_several_users()
    }

    /// Whether a doorbell reaches that waiter.
    fn may_have_doorbell(&self) -> bool {
        self.has_one_waiter() && !self.connection.is_held_elsewhere() && !mode::is_confined()
    }

    /// How the set that it is in is woken.
    #[inline]
    pub(crate) fn wake_up_in_set(&self) -> WakeUp {
        let watches =
            |doorbell: &Doorbell| doorbell.set != 0 && doorbell.is_member && doorbell.own().is_some();
        let watched = self.doorbell.as_ref().is_some_and(watches);
        if watched && self.may_have_doorbell() { WakeUp::Doorbell } else { WakeUp::Tcp }
    }

    /// The doorbell for a thread that is about to sleep on this socket, which is in no set, to watch
    /// in addition to it.
    #[inline]
    pub(crate) fn doorbell_to_sleep_by(&mut self) -> Option<c_int> {
        if !self.may_have_doorbell() {
            return None;
        }
        if self.listed_in != 0 {
            // The set that it was removed from may sleep, counting on a wake-up by this connection.
            sets::at(self.listed_in - 1).wake_if_asleep();
            self.listed_in = 0;
        }
        if self.doorbell.as_ref()?.set != 0 {
            // It was in a set before.
            self.stop_using_doorbell();
        }
        self.doorbell.as_ref()?.own()
    }

    /// Whether the wake-up that was asked for comes by the doorbell, which only waits of ours
    /// watch.
    #[inline]
    pub(crate) fn is_armed_by_doorbell(&self) -> bool {
        self.watch.is_armed() && self.connection.armed_by() == WakeUp::Doorbell
    }

    /// The thread that slept on it is awake. `by_doorbell`: the doorbell woke it.
    pub(crate) fn note_wake(&mut self, by_doorbell: bool) {
        self.note_use();
        if by_doorbell && let Some(doorbell) = &self.doorbell {
            doorbell.empty();
        }
        if self.is_armed_by_doorbell() && self.doorbell.as_ref().is_none_or(|doorbell| doorbell.set == 0) {
            self.heat_outside_set();
        }
    }

    /// Waits of this set watch its doorbell from here on. `number`: the socket's.
    pub(crate) fn watch_doorbell_in(&mut self, set: u32, number: u32) {
        let Some(doorbell) = &mut self.doorbell else { return };
        doorbell.is_member = true;
        if doorbell.set == set + 1 {
            return;
        }
        if doorbell.set != 0 {
            self.stop_using_doorbell();
        }
        let Some(doorbell) = &mut self.doorbell else { return };
        if doorbell.control(sets::at(set).epfd(), libc::EPOLL_CTL_ADD, number) {
            doorbell.set = set + 1;
            // From here on the kernel may report the doorbell to the program, even if no member is
            // promoted any more.
            sets::at(set).was_woken.store(true, Ordering::Relaxed);
        }
        // The waiter is set again, together with the kind of wake-up.
        self.ask_by(self.wake_up_in_set());
    }

    /// It is no longer a member of its set, which may still watch the doorbell.
    pub(crate) fn left_set(&mut self) {
        if let Some(doorbell) = &mut self.doorbell {
            doorbell.is_member = false;
        }
        if self.is_armed_by_doorbell() {
            self.ask_over_tcp();
        }
    }

    /// The doorbell is not watched any more; wake-ups come over TCP until it is watched again.
    pub(crate) fn stop_using_doorbell(&mut self) {
        let set = self.doorbell.as_ref().map_or(0, |doorbell| doorbell.set);
        if set == 0 {
            if self.is_armed_by_doorbell() {
                self.ask_over_tcp();
            }
            return;
        }
        self.ask_over_tcp();
        self.unwatch_doorbell();
        if let Some(doorbell) = &mut self.doorbell {
            doorbell.set = 0;
        }
        // The set may not have seen the doorbell's last edge.
        sets::at(set - 1).wake_if_asleep();
    }

    /// Another process is about to share it: wake-ups have to lie in the kernel, for either process
    /// to read or close. True: its doorbell may have announced bytes, which the other process may
    /// consume from the set.
    pub(crate) fn prepare_fork(&mut self) -> bool {
        // A waiter that is set may be set with the doorbell.
        let was_armed = self.doorbell.is_some() && (self.is_armed_by_doorbell() || self.waiter != NO_WAITER);
        self.has_no_timeout = false;
        self.stays_nonblocking = false;
        if was_armed {
            self.ask_over_tcp();
        }
        self.connection.share(std::process::id());
        was_armed
    }

    /// The connection ends here, or is demoted. A forked process may share the doorbell: closing it
    /// would leave it in the set.
    pub(crate) fn unwatch_doorbell(&self) {
        if let Some(doorbell) = self.doorbell.as_ref().filter(|doorbell| doorbell.set != 0) {
            doorbell.control(sets::at(doorbell.set - 1).epfd(), libc::EPOLL_CTL_DEL, 0);
        }
    }

    /// The set is closed.
    pub(crate) fn set_was_closed(&mut self, set: u32) {
        if self.doorbell.as_ref().is_some_and(|doorbell| doorbell.set == set + 1) {
            self.stop_using_doorbell();
        }
    }

    /// From here on new bytes are announced over TCP, whatever was asked for before.
    fn ask_over_tcp(&mut self) {
        self.ask_by(WakeUp::Tcp);
    }

    /// As [`Self::ask_over_tcp`], by the given kind of wake-up.
    fn ask_by(&mut self, by: WakeUp) {
        self.connection.mask_by(by);
        self.connection.polled_by(NO_WAITER, WakeUp::Tcp);
        // The next check finds bytes that are here already.
        (self.watch, self.waiter) = (Watch::Stale, NO_WAITER);
    }

    /// Asks for a wake-up, for the set if it is in one. True: bytes are here already, and no
    /// wake-up will come for them.
    pub(crate) fn arm(&mut self) -> Result<bool, i32> {
        self.note_use();
        self.arm_by(self.wake_up_in_set())
    }

    /// As [`Self::arm`], by the given kind of wake-up.
    pub(crate) fn arm_by(&mut self, by: WakeUp) -> Result<bool, i32> {
        self.watch = Watch::Unarmed;
        let pending = self.connection.arm(by).map_err(|_| libc::ECONNRESET)?;
        self.watch = Watch::armed_unless(pending);
        Ok(pending)
    }

    /// As [`Self::arm_by`], and leaves the bytes here unread. True: more have come.
    pub(crate) fn arm_for_more(&mut self, by: WakeUp) -> Result<bool, i32> {
        self.watch = Watch::Unarmed;
        let more = self.connection.arm_for_more(by).map_err(|_| libc::ECONNRESET)?;
        self.watch = Watch::armed_unless(more);
        Ok(more)
    }

    /// Nothing is read for now, whatever comes.
    pub(crate) fn mask(&mut self) {
        self.connection.mask();
        self.watch = Watch::Armed;
    }

    /// From here on it is polled: by this waiter of the loop page, or by the one thread that waits
    /// for it ([`NO_WAITER`]).
    pub(crate) fn heat(&mut self, waiter: u32) {
        if self.shown_in_kernel || self.slept_by != 0 {
            return;
        }
        self.connection.requests_each(false);
        if self.waiter != waiter {
            if !self.watch.is_armed() {
                self.mask();
            }
            let by = if waiter == NO_WAITER { WakeUp::Tcp } else { self.wake_up_in_set() };
            self.connection.polled_by(waiter, by);
            self.waiter = waiter;
        }
        if self.watch.is_armed() {
            self.connection.disarm();
        }
        self.watch = if waiter == NO_WAITER { Watch::Unarmed } else { Watch::Hot };
    }

    /// Before a thread sleeps in the kernel: asks for a wake-up. True: there is something to read.
    pub(crate) fn arm_to_sleep(&mut self) -> bool {
        self.note_use();
        self.arm_to_sleep_by(self.wake_up_in_set())
    }

    /// As [`Self::arm_to_sleep`], by the given kind of wake-up.
    pub(crate) fn arm_to_sleep_by(&mut self, by: WakeUp) -> bool {
        self.connection.requests_each(false);
        self.arm_by(by).unwrap_or(true)
    }

    /// Marks it polled by the one thread that waits for it, which arms it before it stops.
    pub(crate) fn heat_outside_set(&mut self) {
        if self.listed_in == 0 && !self.connection.has_several_users() {
            self.heat(NO_WAITER);
        }
    }

    /// After bytes were consumed. An armed endpoint re-arms as soon as its ring is empty. So does
    /// one that is hot outside a set, since its thread may not return. True: bytes are left, and
    /// the kernel holds no wake-up for them.
    pub(crate) fn rearm_after_read(&mut self, fd: c_int, in_a_set: bool) -> bool {
        if self.is_hot() {
            return false;
        }
        if !in_a_set
            && self.watch.is_armed()
            && !self.connection.reads_from_kernel()
            && self.may_stay_unarmed()
        {
            // It was armed for a wait that found these bytes without sleeping.
            self.heat_outside_set();
        }
        if !in_a_set && self.stays_unarmed() {
            if self.connection.kernel_has_bytes() {
                self.discard_wake_ups(fd);
            }
            return false;
        }
        if self.kernel_reports_arrivals() {
            // The peer sends a wake-up when it returns to the ring, if there is room for one.
            let here = self.connection.check_behind_kernel().unwrap_or(true);
            self.watch = Watch::armed_unless(here);
            return here;
        }
        if self.connection.kernel_has_bytes() {
            self.discard_wake_ups(fd);
        }
        self.arm().unwrap_or(false)
    }

    /// Bytes are left, and the waiter is outside the library, in a set by the program's own system
    /// calls. If that set is edge-triggered, it needs another wake-up for the bytes that follow.
    #[cold]
    pub(crate) fn rearm_for_unseen_sets(&mut self, fd: c_int) {
        let mut more = false;
        for _ in 0..ROUNDS {
            let Ok(came) = self.arm_for_more(WakeUp::Tcp) else { return };
            if !came {
                break;
            }
            more = true;
        }
        if more {
            // No wake-up came for these. The kernel reports its bytes, which are old wake-ups, once
            // more when the low-water mark is set (tcp_set_rcvlowat).
            kernel::set(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &1i32);
        }
    }

    /// Whether the kernel reports everything that arrives: a wake-up comes for the ring's next
    /// bytes, and data over TCP is reported as such.
    pub(crate) fn kernel_reports_arrivals(&self) -> bool {
        self.watch == Watch::Armed
            && self.connection.armed_by() == WakeUp::Tcp
            && self.connection.reads_from_kernel()
    }
}
