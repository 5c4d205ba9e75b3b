//! How an endpoint asks to be woken (docs/promotion.md, section 4): whom it arms for, by its doorbell or over TCP, and when
//! it looks by itself.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use ring::WakeUp;
use ring::layout::NO_SLEEPER;

use crate::doorbell::Doorbell;
use crate::kernel;
use crate::mode;
use crate::receive;
use crate::sets;
use crate::sockets::{self, Promoted};

/// Looks for what came while it asked, at the most.
const ROUNDS: u32 = 64;

/// Its promoted connection has one of these, which the program is about to replace by a file of its own (dup2(2)).
#[cold]
pub(crate) fn leave_number(fd: c_int) {
    for (_, socket) in sockets::all() {
        let mut inner = socket.lock_alone();
        let Some(promoted) = inner.promoted.as_deref_mut() else { continue };
        if promoted.doorbell.as_ref().is_some_and(|bell| bell.has(fd)) {
            promoted.forsakes_doorbell();
            promoted.doorbell = None;
            drop(inner);
            receive::settle(socket);
        }
    }
}

impl Promoted {
    /// Wakes the peer by its doorbell. False: it has none, or that has no room.
    pub(crate) fn rings_doorbell(&mut self) -> bool {
        let rang = self.doorbell.as_ref().is_some_and(|bell| !mode::is_confined() && bell.wake_peer());
        if rang {
            self.connection.rang_doorbell(&self.other);
        }
        rang
    }

    /// Whether nobody waits for it but one thread of this process, as far as is seen.
    pub(crate) fn has_one_waiter(&self) -> bool {
        !self.shown_in_kernel && self.slept_by == 0 && !self.inherited && !self.connection.has_several_users()
    }

    /// Whether that one may be woken by the doorbell.
    fn may_have_doorbell(&self) -> bool {
        self.has_one_waiter() && !self.connection.is_held_elsewhere() && !mode::is_confined()
    }

    /// What wakes the set that it is in.
    #[inline]
    pub(crate) fn wake_up_in_set(&self) -> WakeUp {
        let watches = |bell: &Doorbell| bell.set != 0 && bell.is_member && bell.own().is_some();
        let watched = self.doorbell.as_ref().is_some_and(watches);
        if watched && self.may_have_doorbell() { WakeUp::Doorbell } else { WakeUp::Tcp }
    }

    /// The doorbell that a thread which is about to sleep on it alone watches beside the socket.
    #[inline]
    pub(crate) fn doorbell_to_sleep_by(&mut self) -> Option<c_int> {
        if self.listed_in != 0 || !self.may_have_doorbell() {
            return None;
        }
        if self.doorbell.as_ref()?.set != 0 {
            // It was in a set before.
            self.forsakes_doorbell();
        }
        self.doorbell.as_ref()?.own()
    }

    /// Whether a wake-up that was asked for comes by the doorbell, which only a wait of ours watches.
    #[inline]
    pub(crate) fn is_armed_by_doorbell(&self) -> bool {
        self.armed && self.connection.armed_by() == WakeUp::Doorbell
    }

    /// The thread that slept on it is awake. `rung`: by the doorbell.
    pub(crate) fn is_awake(&mut self, rung: bool) {
        self.is_used();
        if rung && let Some(bell) = &self.doorbell {
            bell.empty();
        }
        if self.is_armed_by_doorbell() && self.doorbell.as_ref().is_none_or(|bell| bell.set == 0) {
            self.heat_alone();
        }
    }

    /// The waits of a set watch its doorbell from here on. `number`: the socket's.
    pub(crate) fn is_watched_in(&mut self, set: u32, number: u32) {
        let Some(bell) = &mut self.doorbell else { return };
        bell.is_member = true;
        if bell.set == set + 1 {
            return;
        }
        if bell.set != 0 {
            self.forsakes_doorbell();
        }
        let Some(bell) = &mut self.doorbell else { return };
        if bell.control(sets::at(set).epfd(), libc::EPOLL_CTL_ADD, number) {
            bell.set = set + 1;
            // From here on the kernel may report what no program asked for, also when no member is promoted any more.
            sets::at(set).was_woken.store(true, Ordering::Relaxed);
        }
        // Its sleeper is named anew, with what wakes it.
        self.asks_over_tcp();
    }

    /// It is no member of that set any more, which may go on to watch the doorbell.
    pub(crate) fn leaves_set(&mut self) {
        if let Some(bell) = &mut self.doorbell {
            bell.is_member = false;
        }
        if self.is_armed_by_doorbell() {
            self.asks_over_tcp();
        }
    }

    /// Nobody watches its doorbell any more; wake-ups come over TCP until somebody does.
    pub(crate) fn forsakes_doorbell(&mut self) {
        let set = self.doorbell.as_ref().map_or(0, |bell| bell.set);
        if set == 0 {
            if self.is_armed_by_doorbell() {
                self.asks_over_tcp();
            }
            return;
        }
        self.asks_over_tcp();
        self.unwatches_doorbell();
        if let Some(bell) = &mut self.doorbell {
            bell.set = 0;
        }
        // An edge that it had not seen went with it.
        sets::at(set - 1).disturb();
    }

    /// From here on another process has it, too: what announces bytes lies in the kernel, for whoever reads or closes it.
    /// True: its doorbell may have announced some, which the other process may take from the set.
    pub(crate) fn is_about_to_fork(&mut self) -> bool {
        // A sleeper that is named may be named with the doorbell.
        let asked = self.doorbell.is_some() && (self.is_armed_by_doorbell() || self.sleeper != NO_SLEEPER);
        self.waits_for_ever = false;
        self.stays_nonblocking = false;
        if asked {
            self.asks_over_tcp();
        }
        self.connection.share(std::process::id());
        asked
    }

    /// The connection ends here, or goes back to TCP. A process that was forked from this one may have the doorbell, too: a
    /// close would leave it in the set.
    pub(crate) fn unwatches_doorbell(&self) {
        if let Some(bell) = self.doorbell.as_ref().filter(|bell| bell.set != 0) {
            bell.control(sets::at(bell.set - 1).epfd(), libc::EPOLL_CTL_DEL, 0);
        }
    }

    /// The set ends.
    pub(crate) fn outlives_set(&mut self, set: u32) {
        if self.doorbell.as_ref().is_some_and(|bell| bell.set == set + 1) {
            self.forsakes_doorbell();
        }
    }

    /// Whatever it asked for before, a wake-up comes over TCP for what arrives from here on.
    fn asks_over_tcp(&mut self) {
        self.connection.mute();
        self.connection.looked_at_by(NO_SLEEPER, WakeUp::Tcp);
        (self.armed, self.hot, self.sleeper) = (true, false, NO_SLEEPER);
        // What is here already is found by the next look.
        self.stale = true;
    }

    /// Asks for a bell, by which its set is woken if it is in one. True: something is here, and none will come for it.
    pub(crate) fn arm(&mut self) -> Result<bool, i32> {
        self.is_used();
        self.arm_by(self.wake_up_in_set())
    }

    /// The same, by this.
    pub(crate) fn arm_by(&mut self, by: WakeUp) -> Result<bool, i32> {
        self.stale = false;
        let news = self.connection.arm(by).map_err(|_| libc::ECONNRESET)?;
        (self.armed, self.hot) = (!news, false);
        Ok(news)
    }

    /// Before a thread sleeps in the kernel: asks for a bell. True: there is something to read.
    pub(crate) fn arm_to_sleep(&mut self) -> bool {
        self.is_used();
        self.arm_to_sleep_by(self.wake_up_in_set())
    }

    /// The same, by this.
    pub(crate) fn arm_to_sleep_by(&mut self, by: WakeUp) -> bool {
        self.connection.rings_each(false);
        self.arm_by(by).unwrap_or(true)
    }

    /// Looked at by the thread that waits for it, which tells when it no longer does.
    pub(crate) fn heat_alone(&mut self) {
        if self.listed_in == 0 && !self.connection.has_several_users() {
            self.heat(NO_SLEEPER);
        }
    }

    /// After bytes were taken. An end that waits for bells asks for the next one as soon as
    /// its ring is empty; one that is hot alone does, too, since its owner may not come back.
    /// True if bytes are left for which no bell lies in the kernel.
    pub(crate) fn wants_list(&mut self, fd: c_int, in_a_set: bool) -> bool {
        if self.is_hot() {
            return false;
        }
        if !in_a_set && self.armed && !self.connection.reads_from_kernel() && self.may_stay_awake() {
            // It had asked before the wait that found these without a sleep.
            self.heat_alone();
        }
        if !in_a_set && self.stays_awake() {
            if self.connection.kernel_has_bytes() {
                self.drop_bells(fd);
            }
            return false;
        }
        if self.will_hear() {
            // The peer rings when it comes back to the ring, if there is room for a bell.
            let here = self.connection.look_behind_kernel().unwrap_or(true);
            (self.armed, self.hot) = (!here, false);
            return here;
        }
        if self.connection.kernel_has_bytes() {
            self.drop_bells(fd);
        }
        self.arm().unwrap_or(false)
    }

    /// Bytes are left, and whoever waits for more does so where the library does not see it, in a set that it was put
    /// in by a system call of the program's own: if that set is edge-triggered, it hears of what comes behind them by
    /// another bell only.
    #[cold]
    pub(crate) fn tells_unseen_sets(&mut self, fd: c_int) {
        let mut more = false;
        for _ in 0..ROUNDS {
            self.stale = false;
            let Ok(came) = self.connection.arm_for_more(WakeUp::Tcp) else { return };
            (self.armed, self.hot) = (!came, false);
            if !came {
                break;
            }
            more = true;
        }
        if more {
            // No bell came for these. The kernel tells again of what lies in it, bells of before, if its mark is set
            // (tcp_set_rcvlowat).
            kernel::set(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &1i32);
        }
    }

    /// Whether a bell will come for the next bytes of the ring, and what is in the kernel tells
    /// of itself.
    pub(crate) fn will_hear(&self) -> bool {
        self.armed
            && !self.stale
            && self.connection.armed_by() == WakeUp::Tcp
            && self.connection.reads_from_kernel()
    }
}
