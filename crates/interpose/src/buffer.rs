//! Buffers for copies, for which a small alternate stack has no room: mappings that are kept for
//! later calls of any thread. A signal handler that runs while one is in use gets another, without
//! a lock.
#![allow(unsafe_code)] // mappings

use std::ops::{Deref, DerefMut};
use std::ptr::null_mut;
use std::slice::{from_raw_parts, from_raw_parts_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::{mappings, sanitizer};

/// Bytes of each mapping.
const ROOM: usize = 16 << 10;
/// Bytes on the stack, used if no mapping can be had.
const LEAST: usize = 64;

/// Free mappings; further ones are unmapped.
static FREE: [AtomicPtr<u8>; 16] = [const { AtomicPtr::new(null_mut()) }; 16];

/// A mapping of ROOM bytes with any contents; freed when dropped.
pub(crate) struct Mapping(*mut u8);

/// A buffer: a mapping, or a few bytes on the stack.
pub(crate) struct Room {
    mapping: Option<Mapping>,
    least: [u8; LEAST],
}

impl Mapping {
    /// `None`: there is no memory.
    pub(crate) fn take() -> Option<Mapping> {
        let taken = FREE.iter().find_map(|free| {
            let is_there = !free.load(Ordering::Relaxed).is_null();
            // ROOM-PAIR: acquire what its last user did with it.
            let memory = if is_there { free.swap(null_mut(), Ordering::Acquire) } else { null_mut() };
            (!memory.is_null()).then_some(memory)
        });
        taken
            .inspect(|memory| sanitizer::acquires(*memory))
            .or_else(|| mappings::reserve(ROOM, libc::MAP_PRIVATE).ok())
            .map(Mapping)
    }

    pub(crate) fn words(&mut self) -> &mut [u64] {
        // SAFETY: ROOM bytes, from the beginning of a page, which this value owns.
        unsafe { from_raw_parts_mut(self.0.cast(), ROOM / size_of::<u64>()) }
    }
}

impl Room {
    pub(crate) fn take() -> Room {
        Room { mapping: Mapping::take(), least: [0; LEAST] }
    }
}

impl Deref for Room {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.mapping {
            // SAFETY: ROOM mapped bytes, which this value owns.
            Some(Mapping(bytes)) => unsafe { from_raw_parts(*bytes, ROOM) },
            None => &self.least,
        }
    }
}

impl DerefMut for Room {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.mapping {
            // SAFETY: as for `deref`.
            Some(Mapping(bytes)) => unsafe { from_raw_parts_mut(*bytes, ROOM) },
            None => &mut self.least,
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        sanitizer::releases(self.0);
        let keeps = |free: &AtomicPtr<u8>| {
            // ROOM-PAIR
            free.compare_exchange(null_mut(), self.0, Ordering::Release, Ordering::Relaxed).is_ok()
        };
        if !FREE.iter().any(keeps) {
            // SAFETY: such a mapping, which is no longer in use.
            unsafe { libc::munmap(self.0.cast(), ROOM) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More threads than mappings are kept, each with two at a time, as when a handler interrupts a
    /// call.
    #[test]
    fn each_mapping_has_one_user() {
        std::thread::scope(|scope| {
            for thread in 0..2 * FREE.len() as u8 {
                scope.spawn(move || {
                    for _ in 0..100 {
                        let mut room = Room::take();
                        room.fill(thread);
                        Room::take().fill(!thread);
                        assert!(room.iter().all(|byte| *byte == thread));
                    }
                });
            }
        });
        // They are kept.
        assert!(FREE.iter().filter(|free| !free.load(Ordering::Relaxed).is_null()).count() >= 2);
    }
}
