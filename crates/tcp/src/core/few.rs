//! A short list without allocation.

use std::ops::{Deref, DerefMut};

/// Up to `N` items, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Few<T, const N: usize> {
    items: [T; N],
    len: u32,
}

impl<T: Copy + Default, const N: usize> Default for Few<T, N> {
    fn default() -> Few<T, N> {
        Few { items: [T::default(); N], len: 0 }
    }
}

impl<T: Copy + Default, const N: usize> Few<T, N> {
    pub(crate) fn is_full(&self) -> bool {
        self.len as usize == N
    }

    /// Puts an item before the one at `at`. The last item is lost if the list was full.
    pub(crate) fn insert(&mut self, at: usize, item: T) {
        let len = (self.len as usize + 1).min(N);
        if at < len {
            self.items.copy_within(at..len - 1, at + 1);
            self.items[at] = item;
            self.len = len as u32;
        }
    }

    pub(crate) fn push(&mut self, item: T) {
        self.insert(self.len as usize, item);
    }

    pub(crate) fn remove(&mut self, at: usize) -> T {
        let item = self[at];
        self.drain(at, 1);
        item
    }

    /// Removes `count` items from `at` on.
    pub(crate) fn drain(&mut self, at: usize, count: usize) {
        let len = self.len as usize;
        self.items.copy_within(at + count..len, at);
        self.len = (len - count) as u32;
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }
}

impl<T, const N: usize> Deref for Few<T, N> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items[..self.len as usize]
    }
}

impl<T, const N: usize> DerefMut for Few<T, N> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.items[..self.len as usize]
    }
}
