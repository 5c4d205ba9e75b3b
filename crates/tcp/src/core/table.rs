//! Records of one kind, reserved at their bound.

use std::ops::{Index, IndexMut};

/// A table whose slots are reused. A slot's generation changes when it is taken and when it is
/// freed, so that a handle to an earlier record is recognised.
pub(crate) struct Table<T> {
    items: Vec<T>,
    generations: Vec<u32>,
    free: Vec<u32>,
    bound: usize,
}

impl<T> Table<T> {
    pub(crate) fn new(bound: usize) -> Table<T> {
        Table {
            items: Vec::with_capacity(bound),
            generations: Vec::with_capacity(bound),
            free: Vec::with_capacity(bound),
            bound,
        }
    }

    pub(crate) fn insert(&mut self, item: T) -> Option<u32> {
        if let Some(&slot) = self.free.last() {
            self.items[slot as usize] = item;
        } else if self.items.len() < self.bound {
            self.items.push(item);
            self.generations.push(0);
            self.free.push(self.items.len() as u32 - 1);
        }
        self.take()
    }

    /// A slot whose record is reset instead of replaced: for records that are long and mostly
    /// unused.
    pub(crate) fn insert_reset(&mut self, reset: impl FnOnce(&mut T)) -> Option<u32>
    where
        T: Default,
    {
        match self.free.last() {
            Some(&slot) => {
                reset(&mut self.items[slot as usize]);
                self.take()
            }
            None => self.insert(T::default()),
        }
    }

    /// Takes the free slot that `free` names last.
    fn take(&mut self) -> Option<u32> {
        let slot = self.free.pop()?;
        // Odd while the slot is taken.
        self.generations[slot as usize] = self.generations[slot as usize].wrapping_add(1);
        Some(slot)
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        debug_assert!(self.is_taken(slot));
        self.generations[slot as usize] = self.generations[slot as usize].wrapping_add(1);
        self.free.push(slot);
    }

    pub(crate) fn is_taken(&self, slot: u32) -> bool {
        self.generations.get(slot as usize).is_some_and(|generation| generation & 1 == 1)
    }

    pub(crate) fn generation(&self, slot: u32) -> u32 {
        self.generations[slot as usize]
    }

    /// The record of a slot, also of one that is free; none if it was never taken.
    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        self.items.get(slot as usize)
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }

    pub(crate) fn bound(&self) -> usize {
        self.bound
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() == self.bound
    }

    /// Slots that are taken.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> {
        (0..self.items.len() as u32).filter(|&slot| self.is_taken(slot))
    }
}

impl<T> Index<u32> for Table<T> {
    type Output = T;

    fn index(&self, slot: u32) -> &T {
        &self.items[slot as usize]
    }
}

impl<T> IndexMut<u32> for Table<T> {
    fn index_mut(&mut self, slot: u32) -> &mut T {
        &mut self.items[slot as usize]
    }
}
