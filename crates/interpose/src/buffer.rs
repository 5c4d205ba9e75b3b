//! Room for bytes that a call copies by itself, for which a small alternate stack has none: one mapping a thread, made at its
//! first use. A signal handler that comes while it is in use has another.
#![allow(unsafe_code)] // mappings, and the thread's own word for its one

use std::ffi::c_void;
use std::ptr::null;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::mappings;

/// Bytes of each.
const ROOM: usize = 16 << 10;
/// Bytes on the stack, where there is no memory for one.
const LEAST: usize = 256;

/// The key of pthread_key_create(3), and 1; 0: none yet.
static KEY: AtomicU32 = AtomicU32::new(0);

/// Runs with room, whose bytes may be any.
pub(crate) fn with<T>(run: impl FnOnce(&mut [u8]) -> T) -> T {
    match Buffer::take() {
        // SAFETY: ROOM bytes that are mapped, and nobody else's while the buffer lives.
        Some(buffer) => run(unsafe { std::slice::from_raw_parts_mut(buffer.0.cast(), ROOM) }),
        None => run(&mut [0; LEAST]),
    }
}

/// A mapping that is in use; given back when dropped.
struct Buffer(*mut c_void);

impl Buffer {
    fn take() -> Option<Buffer> {
        let key = key()?;
        // SAFETY: a key that was made.
        let kept = unsafe { libc::pthread_getspecific(key) };
        if kept.is_null() {
            return mappings::reserve(ROOM).ok().map(|memory| Buffer(memory.cast()));
        }
        // A handler that comes before this has given it back by now. SAFETY: so.
        unsafe { libc::pthread_setspecific(key, null()) };
        Some(Buffer(kept))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: a key that was made, and a mapping that nobody uses any more.
        unsafe {
            let free = key().filter(|key| libc::pthread_getspecific(*key).is_null());
            if free.is_none_or(|key| libc::pthread_setspecific(key, self.0) != 0) {
                unmap(self.0);
            }
        }
    }
}

/// # Safety
///
/// It is such a mapping.
unsafe extern "C" fn unmap(memory: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(memory, ROOM) };
}

fn key() -> Option<libc::pthread_key_t> {
    if let Some(key) = KEY.load(Relaxed).checked_sub(1) {
        return Some(key);
    }
    let mut key = 0;
    // SAFETY: room for a key; at the end of each thread its mapping is given up.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(unmap)) } != 0 {
        return None;
    }
    match KEY.compare_exchange(0, key + 1, Relaxed, Relaxed) {
        Ok(_) => Some(key),
        Err(other) => {
            // SAFETY: the key that was just made, which nobody has used.
            unsafe { libc::pthread_key_delete(key) };
            other.checked_sub(1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_one_and_who_interrupts_it_another() {
        let place = || with(|room| room.as_ptr().addr());
        let first = with(|room| {
            room.fill(1);
            assert_ne!(place(), room.as_ptr().addr());
            assert!(room.iter().all(|byte| *byte == 1));
            room.as_ptr().addr()
        });
        // One of the two is kept.
        assert_eq!(place(), place());
        assert_ne!(first, 0);
    }
}
