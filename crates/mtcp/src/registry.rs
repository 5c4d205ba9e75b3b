//! Contexts as C has them: numbers that look like pointers, looked up and never followed. A stale
//! or invented one is EINVAL.
//!
//! A context is used by one thread at a time. A call that meets another one inside, of another
//! thread or of the code that a signal handler interrupted, returns EBUSY and does nothing.
//!
//! No panic is expected. One that happens all the same ends the context: the call returns
//! ENOTRECOVERABLE, and later ones EINVAL.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::context::Context;
use crate::errno::{Errno, INVALID};

/// Contexts of a process at most.
pub(crate) const CONTEXTS_MAX: usize = 64;

/// What `mctx_t` points to, as far as C is concerned.
#[repr(C)]
pub struct Opaque {
    _private: [u8; 0],
}

/// `mctx_t`.
pub type Handle = *mut Opaque;

struct Slot {
    busy: AtomicBool,
    held: UnsafeCell<Held>,
}

struct Held {
    generation: usize,
    context: Option<Box<Context>>,
}

// SAFETY: `held` is touched only by the thread that has changed `busy` from false to true, which
// acquires what the last one has released; a Context may move between threads.
unsafe impl Sync for Slot {}

static SLOTS: [Slot; CONTEXTS_MAX] = [const {
    Slot { busy: AtomicBool::new(false), held: UnsafeCell::new(Held { generation: 1, context: None }) }
}; CONTEXTS_MAX];

const _: () = {
    const fn moves<T: Send>() {}
    moves::<Context>();
};

impl Slot {
    /// Runs this while no other call is in the slot.
    fn alone<T>(&self, work: impl FnOnce(&mut Held) -> Result<T, Errno>) -> Result<T, Errno> {
        if self.busy.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: `busy` was false and is ours until the store below.
        let held = unsafe { &mut *self.held.get() };
        let result = catch_unwind(AssertUnwindSafe(|| work(held))).unwrap_or_else(|_| {
            // Its tables may be torn, so it is not even dropped.
            std::mem::forget(held.context.take());
            held.generation += 1;
            Err(Errno(libc::ENOTRECOVERABLE))
        });
        self.busy.store(false, Ordering::Release);
        result
    }
}

/// Index and generation in a handle: `generation << 8 | index + 1`.
fn parts(handle: Handle) -> Option<(usize, usize)> {
    let number = handle.addr();
    Some(((number & 0xff).checked_sub(1)?, number >> 8))
}

/// Keeps a context that is made for its index.
pub(crate) fn insert(make: impl FnOnce(usize) -> Result<Context, Errno>) -> Result<Handle, Errno> {
    let mut make = Some(make);
    for (index, slot) in SLOTS.iter().enumerate() {
        let made = slot.alone(|held| {
            let Some(make) = make.take_if(|_| held.context.is_none()) else { return Ok(None) };
            held.context = Some(Box::new(make(index)?));
            Ok(Some(held.generation << 8 | (index + 1)))
        });
        match made {
            Ok(None) | Err(Errno(libc::EBUSY)) => {}
            Ok(Some(number)) => return Ok(std::ptr::without_provenance_mut(number)),
            Err(error) => return Err(error),
        }
    }
    Err(Errno(libc::EMFILE))
}

/// Does something with a context.
pub(crate) fn with<T>(
    handle: Handle,
    work: impl FnOnce(&mut Context) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let (index, generation) = parts(handle).ok_or(INVALID)?;
    SLOTS.get(index).ok_or(INVALID)?.alone(|held| match &mut held.context {
        Some(context) if held.generation == generation => work(context),
        _ => Err(INVALID),
    })
}

/// Takes a context out; its handle is stale from now on.
pub(crate) fn remove(handle: Handle) -> Result<Box<Context>, Errno> {
    let (index, generation) = parts(handle).ok_or(INVALID)?;
    SLOTS.get(index).ok_or(INVALID)?.alone(|held| {
        if held.generation != generation {
            return Err(INVALID);
        }
        let context = held.context.take().ok_or(INVALID)?;
        held.generation += 1;
        Ok(context)
    })
}
