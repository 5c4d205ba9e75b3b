//! Slots in the order in which they became ready, each at most once.

use std::collections::VecDeque;

/// A queue of slots. A slot is in it at most once, so it never holds more than the table has.
/// Removing a record does not remove its slot: users skip slots that have nothing to do.
pub(crate) struct Queue {
    slots: VecDeque<u32>,
    queued: Vec<bool>,
}

impl Queue {
    pub(crate) fn new(bound: usize) -> Queue {
        Queue { slots: VecDeque::with_capacity(bound), queued: vec![false; bound] }
    }

    pub(crate) fn push(&mut self, slot: u32) {
        if !std::mem::replace(&mut self.queued[slot as usize], true) {
            self.slots.push_back(slot);
        }
    }

    pub(crate) fn push_first(&mut self, slot: u32) {
        if !std::mem::replace(&mut self.queued[slot as usize], true) {
            self.slots.push_front(slot);
        }
    }

    pub(crate) fn pop(&mut self) -> Option<u32> {
        let slot = self.slots.pop_front()?;
        self.queued[slot as usize] = false;
        Some(slot)
    }

    pub(crate) fn contains(&self, slot: u32) -> bool {
        self.queued[slot as usize]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}
