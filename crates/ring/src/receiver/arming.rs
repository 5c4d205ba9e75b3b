//! When the other end has to ring: an end is armed, muted or hot.

use super::{Ready, Receiver};
use crate::Corrupt;
use crate::bell::{EACH, WakeUp, next_number};
use crate::sync::{Ordering, full_fence};

impl Receiver {
    /// Asks for a bell; to be called before this end waits on the kernel connection. True:
    /// something came meanwhile, this end stays awake and is not armed.
    ///
    /// # Errors
    /// The other end's words are nonsense.
    pub fn arm(&mut self, by: WakeUp) -> Result<bool, Corrupt> {
        self.release();
        self.tell_count();
        self.ask_for_bell(by);
        // BELL-PAIR: armed before this last look; `wants_bell` has the other fence.
        self.look_armed()
    }

    /// For an end that stays armed while it takes bytes of the TCP lane, after each of them: a
    /// sender that came back to its ring meanwhile, and whose bell found no room behind these
    /// bytes, has counted on this look. True: ring bytes are here, and this end is not armed.
    ///
    /// # Errors
    /// The other end's words are nonsense.
    pub fn look_behind_tcp(&mut self) -> Result<bool, Corrupt> {
        self.look_armed()
    }

    /// Looks once more behind what was stored before. True: ring bytes are here, and this end is
    /// not armed.
    fn look_armed(&mut self) -> Result<bool, Corrupt> {
        full_fence();
        let ready = self.look_again();
        if let Ok(Ready::Tcp { .. } | Ready::Nothing) = ready {
            return Ok(false);
        }
        self.disarm();
        ready.map(|_| true)
    }

    fn ask_for_bell(&mut self, by: WakeUp) {
        // Processes that share an endpoint share no doorbell.
        let by = if self.stays_armed { WakeUp::Tcp } else { by };
        self.number = next_number(self.number) | by.bit() | if self.each { EACH } else { 0 };
        let own = self.own.header();
        own.arming.store(self.number, Ordering::Relaxed);
        own.armed.store(self.number, Ordering::Relaxed);
    }

    /// Whether an armed end is rung for each publication from its next [`Receiver::arm`] on, instead of once: for
    /// somebody who waits by edges of the kernel connection, and looks at nothing in between.
    pub fn rings_each(&mut self, each: bool) {
        self.each = each || (self.stays_armed && self.each);
    }

    /// As [`Receiver::arm`], for an end that leaves what is here where it is, since that is too
    /// little. True: more came meanwhile, and this end is not armed.
    ///
    /// # Errors
    /// The other end's words are nonsense.
    #[cold]
    pub fn arm_for_more(&mut self, by: WakeUp) -> Result<bool, Corrupt> {
        let before = self.tail;
        self.mute_by(by);
        self.refresh()?;
        let more = self.tail != before;
        if more {
            self.disarm();
        }
        Ok(more)
    }

    /// As [`Receiver::arm`], for an end that takes nothing for now, whatever comes: it is rung
    /// once, and other connections of its loop are not counted as rung through this one.
    pub fn mute(&mut self) {
        self.mute_by(WakeUp::Tcp);
    }

    /// The same, by this.
    pub fn mute_by(&mut self, by: WakeUp) {
        self.release();
        self.ask_for_bell(by);
        // BELL-PAIR: whoever looks after this sees what came before, and is rung for the rest.
        full_fence();
    }

    /// The connection is hot: whoever looks at it does so by itself while its sleeper is awake.
    #[inline]
    pub fn disarm(&mut self) {
        if self.stays_armed {
            return;
        }
        // SLEEPER-PAIR: release who that is.
        self.own.header().armed.store(0, Ordering::Release);
    }

    /// From here on this end is never hot, so that each wake-up is its own and counts for no
    /// other connection: several threads or processes wait for it. `each`: a wake-up for each
    /// publication.
    pub fn stay_armed(&mut self, each: bool) {
        self.stays_armed = true;
        self.each |= each;
        self.mute();
    }

    /// How it asked to be woken when it was armed last.
    #[inline]
    pub fn armed_by(&self) -> WakeUp {
        WakeUp::of(self.number)
    }

    /// The sleeper that [`Receiver::looked_at_by`] named last, in any process that has this end.
    #[cold]
    pub fn sleeper(&self) -> u32 {
        WakeUp::of_sleeper(self.own.header().sleeper.load(Ordering::Relaxed)).0
    }

    /// Names the sleeper that looks at it while it is hot, and how that is woken; [`NO_SLEEPER`] for one
    /// that never sleeps. To be called while it is armed or muted only.
    ///
    /// [`NO_SLEEPER`]: crate::layout::NO_SLEEPER
    pub fn looked_at_by(&mut self, sleeper: u32, by: WakeUp) {
        self.own.header().sleeper.store(sleeper | by.bit(), Ordering::Relaxed);
    }
}
