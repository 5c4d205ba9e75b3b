//! Slots in the order in which they became ready, each at most once.

/// In place of a link: the slot is not in the queue. Zero, so that a table without any takes no memory.
const ABSENT: u32 = 0;
/// In place of a link: nothing follows.
const END: u32 = 1;
/// Links of slots begin here.
const SLOTS: u32 = 2;

/// A queue of slots, linked through a table of its own. A slot is in it at most once, so it never holds
/// more than the table has. Removing a record does not remove its slot: users skip slots that have
/// nothing to do.
pub(crate) struct Queue {
    /// Links to the first slot and, unless there is none, to the last.
    first: u32,
    last: u32,
    /// Of each slot, a link to the one behind it.
    next: Vec<u32>,
}

impl Queue {
    pub(crate) fn new(bound: usize) -> Queue {
        Queue { first: END, last: END, next: vec![ABSENT; bound] }
    }

    #[inline]
    pub(crate) fn push(&mut self, slot: u32) {
        if self.contains(slot) {
            return;
        }
        self.next[slot as usize] = END;
        let link = slot + SLOTS;
        match self.first {
            END => self.first = link,
            _ => self.next[(self.last - SLOTS) as usize] = link,
        }
        self.last = link;
    }

    pub(crate) fn push_first(&mut self, slot: u32) {
        if self.contains(slot) {
            return;
        }
        self.next[slot as usize] = self.first;
        if self.is_empty() {
            self.last = slot + SLOTS;
        }
        self.first = slot + SLOTS;
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        let slot = self.first - SLOTS;
        self.first = std::mem::replace(&mut self.next[slot as usize], ABSENT);
        Some(slot)
    }

    pub(crate) fn contains(&self, slot: u32) -> bool {
        self.next[slot as usize] != ABSENT
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first == END
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// It is a queue without what is there already.
        #[test]
        fn equals_a_list(steps in prop::collection::vec((0u32..6, 0u8..5), 1..60)) {
            let mut queue = Queue::new(6);
            let mut model = VecDeque::new();
            for (slot, step) in steps {
                match step {
                    0 | 1 if !model.contains(&slot) => model.push_back(slot),
                    2 if !model.contains(&slot) => model.push_front(slot),
                    _ => {}
                }
                match step {
                    0 | 1 => queue.push(slot),
                    2 => queue.push_first(slot),
                    _ => prop_assert_eq!(queue.pop(), model.pop_front()),
                }
                prop_assert!((0..6).all(|slot| queue.contains(slot) == model.contains(&slot)));
                prop_assert_eq!(queue.is_empty(), model.is_empty());
            }
        }
    }
}
