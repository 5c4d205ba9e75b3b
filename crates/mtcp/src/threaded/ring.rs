//! A ring between two threads: one pushes, the other pops, in the same order, without a lock.
//!
//! Both work in batches. What was pushed is there for the other thread once it is published, and places that were
//! emptied are free for the first one once they are released: a store for each batch.

use super::sync::{Arc, AtomicUsize, Ordering, Place};

struct Ring<T> {
    places: Box<[Place<T>]>,
    /// Values that were published, ever. Only the producer stores it.
    filled: Line<AtomicUsize>,
    /// Places that were released, ever. Only the consumer stores it.
    emptied: Line<AtomicUsize>,
}

/// On cache lines of its own, of which some processors fetch two at once.
#[repr(align(128))]
struct Line<T>(T);

// SAFETY: a place is used by one thread at a time, as the two counters say, and its value moves from one to the
// other.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T> Ring<T> {
    fn place(&self, count: usize) -> &Place<T> {
        &self.places[count & (self.places.len() - 1)]
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        let (emptied, filled) =
            (self.emptied.0.load(Ordering::Relaxed), self.filled.0.load(Ordering::Relaxed));
        let mut count = emptied;
        while count != filled {
            // SAFETY: both threads are gone, and have stored what they did: these were pushed and not popped.
            drop(unsafe { self.place(count).take() });
            count = count.wrapping_add(1);
        }
    }
}

/// A ring of so many places, a power of two.
pub(crate) fn ring<T: Send>(places: usize) -> (Producer<T>, Consumer<T>) {
    assert!(places.is_power_of_two());
    let ring = Arc::new(Ring {
        places: (0..places).map(|_| Place::new()).collect(),
        filled: Line(AtomicUsize::new(0)),
        emptied: Line(AtomicUsize::new(0)),
    });
    (Producer { ring: ring.clone(), filled: 0, emptied: 0 }, Consumer { ring, emptied: 0, filled: 0 })
}

/// The end that pushes.
pub(crate) struct Producer<T> {
    ring: Arc<Ring<T>>,
    /// Values pushed, ever.
    filled: usize,
    /// Places released, ever, as far as is known.
    emptied: usize,
}

impl<T> Producer<T> {
    /// Whether there is room for so many more.
    pub(crate) fn has_room(&mut self, count: usize) -> bool {
        let places = self.ring.places.len();
        if places - self.filled.wrapping_sub(self.emptied) < count {
            // EMPTIED-PAIR: acquire the end of the reading of those places.
            self.emptied = self.ring.emptied.0.load(Ordering::Acquire);
        }
        places - self.filled.wrapping_sub(self.emptied) >= count
    }

    /// Pushes a value; gives it back if there is no room.
    pub(crate) fn push(&mut self, value: T) -> Result<(), T> {
        if !self.has_room(1) {
            return Err(value);
        }
        // SAFETY: the place is free, as `has_room` found, and the consumer does not use it until it is published.
        unsafe { self.ring.place(self.filled).put(value) };
        self.filled = self.filled.wrapping_add(1);
        Ok(())
    }

    /// Lets the other thread have what was pushed.
    pub(crate) fn publish(&mut self) {
        // FILLED-PAIR: release the values.
        self.ring.filled.0.store(self.filled, Ordering::Release);
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        self.publish();
    }
}

/// The end that pops.
pub(crate) struct Consumer<T> {
    ring: Arc<Ring<T>>,
    /// Values popped, ever.
    emptied: usize,
    /// Values published, ever, as far as is known.
    filled: usize,
}

impl<T> Consumer<T> {
    pub(crate) fn is_empty(&mut self) -> bool {
        if self.emptied == self.filled {
            // FILLED-PAIR: acquire the values.
            self.filled = self.ring.filled.0.load(Ordering::Acquire);
        }
        self.emptied == self.filled
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: it was published, and the producer does not use the place until it is released.
        let value = unsafe { self.ring.place(self.emptied).take() };
        self.emptied = self.emptied.wrapping_add(1);
        Some(value)
    }

    /// Lets the other thread use the places of what was popped.
    pub(crate) fn release(&mut self) {
        // EMPTIED-PAIR: release the end of the reading of those places.
        self.ring.emptied.0.store(self.emptied, Ordering::Release);
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        self.release();
    }
}
