//! Whether a ring pays for what is sent: a message that needs a bell costs a little more than one
//! that the kernel carries, and its reader too; one that needs none costs next to nothing.

/// Messages after which it is asked.
pub(crate) const WINDOW: u32 = 16;
/// Bells among them that the others no longer make up for.
const BELLS: u32 = 15;
/// Messages that go through the kernel then, until the ring is tried again; more each time. Few at
/// first: connections that begin together wake each other, and find their pace later.
const REST: u32 = 1 << 6;
const LONGEST_REST: u32 = 1 << 9;

/// Messages met awake that end a rest; twice as many each time that it did not pay.
const AWAKE: u32 = 8;

/// Rests in a row after which nothing is hoped for from the ring.
const RESTS: u32 = 3;

/// What a window of messages came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is not full.
    None,
    Pays,
    /// The ring is to rest.
    Rests,
}

/// One sender's account.
#[derive(Debug)]
pub(crate) struct Worth {
    messages: u32,
    bells: u32,
    /// In a row.
    rests: u32,
    pub(crate) has_paid: bool,
    /// Messages left of the rest.
    pub(crate) rest: u32,
    next_rest: u32,
    /// Waits of this thread that had met their message awake when the rest was decided.
    met: u32,
}

impl Default for Worth {
    fn default() -> Worth {
        Worth { messages: 0, bells: 0, rests: 0, has_paid: false, rest: 0, next_rest: REST, met: 0 }
    }
}

impl Worth {
    /// A message went into the ring, with a bell or without one.
    #[inline]
    pub(crate) fn sent(&mut self, bell: bool) -> Verdict {
        self.messages += 1;
        self.bells += u32::from(bell);
        if self.messages < WINDOW { Verdict::None } else { self.judge() }
    }

    fn judge(&mut self) -> Verdict {
        let pays = self.bells < BELLS;
        (self.messages, self.bells) = (0, 0);
        if pays {
            (self.rests, self.has_paid, self.next_rest) = (0, true, REST);
            return Verdict::Pays;
        }
        self.rests += 1;
        self.rest = self.next_rest;
        self.next_rest = (self.next_rest * 2).min(LONGEST_REST);
        Verdict::Rests
    }

    /// Whether the ring has rested, been tried and rested again for long enough.
    pub(crate) fn is_hopeless(&self) -> bool {
        self.rests >= RESTS
    }

    /// The other end has given up.
    pub(crate) fn give_up(&mut self) {
        self.rests = RESTS;
    }

    /// The rest was decided when so many waits had met their message awake.
    pub(crate) fn rests_from(&mut self, met: u32) {
        self.met = met;
    }

    /// A message went through the kernel while the ring rests. True: it has rested enough, or this thread, which the
    /// other end answers, meets so many messages awake that both may be.
    pub(crate) fn rested(&mut self, met: u32) -> bool {
        self.rest = self.rest.saturating_sub(1);
        if met.wrapping_sub(self.met) >= AWAKE << self.rests.min(RESTS + 2) {
            self.rest = 0;
        }
        self.rest == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bells_send_a_ring_to_rest() {
        let mut worth = Worth::default();
        assert!((0..1000).all(|_| worth.sent(false) != Verdict::Rests));
        for rests in 0..RESTS {
            assert!(!worth.is_hopeless());
            assert!((0..100).any(|_| worth.sent(true) == Verdict::Rests));
            let rest = (REST << rests) as usize;
            assert_eq!((0..5000).position(|_| worth.rested(0)), Some(rest - 1));
        }
        assert!(worth.is_hopeless() && worth.has_paid);
        assert!((0..100).any(|_| worth.sent(false) == Verdict::Pays));
        assert!(!worth.is_hopeless());
        // Where both may be awake it is tried sooner, and less soon each time.
        for wait in [16, 32] {
            assert!((0..100).any(|_| worth.sent(true) == Verdict::Rests));
            worth.rests_from(u32::MAX);
            assert_eq!((0..).position(|met| worth.rested(met)), Some(wait - 1));
        }
    }
}
