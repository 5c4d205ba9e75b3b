//! When the peer has to wake this endpoint, which is armed, masked or hot.

use super::{Ready, Receiver};
use crate::Corrupt;
use crate::sync::{Ordering, full_fence};
use crate::wake_up::{EACH, WakeUp, next_number};

impl Receiver {
    /// Requests a wake-up; to be called before this endpoint waits on the kernel
    /// connection. True: bytes arrived meanwhile, and this endpoint is not armed and
    /// stays awake.
    ///
    /// # Errors
    /// The peer violated the protocol.
    pub fn arm(&mut self, by: WakeUp) -> Result<bool, Corrupt> {
        self.release();
        self.publish_count();
        self.request_wake_up(by);
        // ARM-PAIR: armed before this last check; `wants_tcp_wake_up` has the other fence.
        self.check_armed()
    }

    /// To be called after each consumption of TCP-path bytes by an endpoint that stays
    /// armed meanwhile. A sender that returned to its ring, and found no room for its
    /// wake-up byte behind these bytes, relies on this check. True: ring bytes are
    /// unread, and this endpoint is not armed.
    ///
    /// # Errors
    /// The peer violated the protocol.
    pub fn check_behind_tcp(&mut self) -> Result<bool, Corrupt> {
        self.check_armed()
    }

    /// Checks the ring once more, behind the stores before. True: ring bytes are unread,
    /// and this endpoint is not armed.
    fn check_armed(&mut self) -> Result<bool, Corrupt> {
        full_fence();
        let ready = self.poll();
        if let Ok(Ready::Tcp { .. } | Ready::Nothing) = ready {
            return Ok(false);
        }
        self.disarm();
        ready.map(|_| true)
    }

    fn request_wake_up(&mut self, by: WakeUp) {
        // Processes that share an endpoint share no doorbell.
        let by = if self.stays_armed { WakeUp::Tcp } else { by };
        self.number = next_number(self.number) | by.bit() | if self.each { EACH } else { 0 };
        let own = self.own.header();
        own.arming.store(self.number, Ordering::Relaxed);
        own.armed.store(self.number, Ordering::Relaxed);
    }

    /// Whether an armed endpoint requests a wake-up for each publication from its next
    /// [`Receiver::arm`] on, instead of one: for a waiter with edge-triggered events of
    /// the kernel connection that polls nothing in between.
    pub fn requests_each(&mut self, each: bool) {
        self.each = each || (self.stays_armed && self.each);
    }

    /// As [`Receiver::arm`], for an endpoint that leaves the available bytes unread,
    /// since they are too few. True: more arrived meanwhile, and this endpoint is not
    /// armed.
    ///
    /// # Errors
    /// The peer violated the protocol.
    #[cold]
    pub fn arm_for_more(&mut self, by: WakeUp) -> Result<bool, Corrupt> {
        let before = self.tail;
        self.mask_by(by);
        self.refresh()?;
        let more = self.tail != before;
        if more {
            self.disarm();
        }
        Ok(more)
    }

    /// As [`Receiver::arm`], for an endpoint that consumes nothing for now, whatever
    /// arrives: it is woken once, and that wake-up does not count for other connections
    /// of its loop.
    pub fn mask(&mut self) {
        self.mask_by(WakeUp::Tcp);
    }

    /// As [`Receiver::mask`], woken by `by`.
    pub fn mask_by(&mut self, by: WakeUp) {
        self.release();
        self.request_wake_up(by);
        // ARM-PAIR: a later check sees the bytes published before, and later ones cause
        // a wake-up.
        full_fence();
    }

    /// The connection is hot: its waiter polls it while awake.
    #[inline]
    pub fn disarm(&mut self) {
        if self.stays_armed {
            return;
        }
        // WAITER-PAIR: release the waiter's number.
        self.own.header().armed.store(0, Ordering::Release);
    }

    /// From here on this endpoint is never hot, so that each wake-up counts for this
    /// connection alone: several threads or processes wait for it. `each`: a wake-up for
    /// each publication.
    pub fn stay_armed(&mut self, each: bool) {
        self.stays_armed = true;
        self.each |= each;
        self.mask();
    }

    /// The wake-up that it requested when it was armed last.
    #[inline]
    pub fn armed_by(&self) -> WakeUp {
        WakeUp::of(self.number)
    }

    /// The waiter that [`Receiver::polled_by`] set last, in any process that holds
    /// this endpoint.
    #[cold]
    pub fn waiter(&self) -> u32 {
        WakeUp::of_waiter(self.own.header().waiter.load(Ordering::Relaxed)).0
    }

    /// Sets the waiter that polls it while it is hot, and how that waiter is woken;
    /// [`NO_WAITER`] for one that never sleeps. To be called only while it is armed or
    /// masked.
    ///
    /// [`NO_WAITER`]: crate::layout::NO_WAITER
    pub fn polled_by(&mut self, waiter: u32, by: WakeUp) {
        self.own.header().waiter.store(waiter | by.bit(), Ordering::Relaxed);
    }
}
