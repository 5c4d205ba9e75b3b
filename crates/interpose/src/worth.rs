//! Whether a ring pays for what is sent: a message that needs a bell costs a little more than one
//! that the kernel carries, and its reader too; one that needs none costs next to nothing.

/// Messages after which it is asked.
const WINDOW: u32 = 16;
/// Bells among them that the others no longer make up for.
const BELLS: u32 = 15;
/// Messages that go through the kernel then, until the ring is tried again; more each time. Few at
/// first: connections that begin together wake each other, and find their pace later.
const REST: u32 = 1 << 6;
const LONGEST_REST: u32 = 1 << 13;

/// One sender's account.
#[derive(Debug)]
pub(crate) struct Worth {
    messages: u32,
    bells: u32,
    /// Messages left of the rest.
    rest: u32,
    next_rest: u32,
}

impl Default for Worth {
    fn default() -> Worth {
        Worth { messages: 0, bells: 0, rest: 0, next_rest: REST }
    }
}

impl Worth {
    /// A message went into the ring, with a bell or without one. True: the ring is to rest.
    pub(crate) fn sent(&mut self, bell: bool) -> bool {
        self.messages += 1;
        self.bells += u32::from(bell);
        if self.messages < WINDOW {
            return false;
        }
        let rests = self.bells >= BELLS;
        if rests {
            self.rest = self.next_rest;
            self.next_rest = (self.next_rest * 2).min(LONGEST_REST);
        } else {
            self.next_rest = REST;
        }
        (self.messages, self.bells) = (0, 0);
        rests
    }

    /// A message went through the kernel while the ring rests. True: it has rested enough.
    pub(crate) fn rested(&mut self) -> bool {
        self.rest = self.rest.saturating_sub(1);
        self.rest == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bells_send_a_ring_to_rest() {
        let mut worth = Worth::default();
        assert!((0..1000).all(|_| !worth.sent(false)));
        assert!((0..100).any(|_| worth.sent(true)));
        assert_eq!((0..5000).position(|_| worth.rested()), Some(REST as usize - 1));
        assert!((0..100).any(|_| worth.sent(true)));
        assert_eq!((0..5000).position(|_| worth.rested()), Some(2 * REST as usize - 1));
    }
}
