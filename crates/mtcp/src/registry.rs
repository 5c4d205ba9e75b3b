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
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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
    /// Whether there is a context, or one is being made: what makes and ends contexts leaves the
    /// slots of others alone, or their calls would find them busy.
    taken: AtomicBool,
    /// Of the context that is there, or will be.
    generation: AtomicUsize,
    busy: AtomicBool,
    context: UnsafeCell<Option<Box<Context>>>,
}

// SAFETY: `context` is touched only by the thread that has changed `busy` from false to true, which
// acquires what the last one has released; a Context may move between threads.
unsafe impl Sync for Slot {}

static SLOTS: [Slot; CONTEXTS_MAX] = [const {
    Slot {
        taken: AtomicBool::new(false),
        generation: AtomicUsize::new(1),
        busy: AtomicBool::new(false),
        context: UnsafeCell::new(None),
    }
}; CONTEXTS_MAX];

const _: () = {
    const fn moves<T: Send>() {}
    moves::<Context>();
};

impl Slot {
    /// Runs this while no other call is in the slot.
    fn alone<T>(&self, work: impl FnOnce(&mut Option<Box<Context>>) -> Result<T, Errno>) -> Result<T, Errno> {
        if self.busy.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: `busy` was false and is ours until the store below.
        let context = unsafe { &mut *self.context.get() };
        let result = catch_unwind(AssertUnwindSafe(|| work(context))).unwrap_or_else(|_| {
            // Its tables may be torn, so it is not even dropped, and its slot stays taken.
            std::mem::forget(context.take());
            Err(Errno(libc::ENOTRECOVERABLE))
        });
        self.busy.store(false, Ordering::Release);
        result
    }

    /// As `alone`, if this generation's context is there.
    fn of_generation<T>(
        &self,
        generation: usize,
        work: impl FnOnce(&mut Option<Box<Context>>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let is_current = || self.generation.load(Ordering::Relaxed) == generation;
        // Before it is made busy: a stale handle disturbs nobody. And then, when it cannot change.
        if !is_current() {
            return Err(INVALID);
        }
        self.alone(|context| if is_current() { work(context) } else { Err(INVALID) })
    }
}

/// The slot of a handle, and its generation: `generation << 8 | index + 1`.
fn find(handle: Handle) -> Result<(&'static Slot, usize), Errno> {
    let number = handle.addr();
    let index = (number & 0xff).checked_sub(1).ok_or(INVALID)?;
    Ok((SLOTS.get(index).ok_or(INVALID)?, number >> 8))
}

/// Keeps a context that is made for its index.
pub(crate) fn insert(make: impl FnOnce(usize) -> Result<Context, Errno>) -> Result<Handle, Errno> {
    let free =
        |slot: &Slot| slot.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
    let index = SLOTS.iter().position(free).ok_or(Errno(libc::EMFILE))?;
    let slot = &SLOTS[index];
    let made = slot.alone(|context| {
        *context = Some(Box::new(make(index)?));
        Ok(slot.generation.load(Ordering::Relaxed) << 8 | (index + 1))
    });
    if made.is_err() {
        slot.taken.store(false, Ordering::Release);
    }
    made.map(std::ptr::without_provenance_mut)
}

/// Does something with a context.
pub(crate) fn with<T>(
    handle: Handle,
    work: impl FnOnce(&mut Context) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let (slot, generation) = find(handle)?;
    slot.of_generation(generation, |context| work(context.as_mut().ok_or(INVALID)?))
}

/// Takes a context out; its handle is stale from now on.
pub(crate) fn remove(handle: Handle) -> Result<Box<Context>, Errno> {
    let (slot, generation) = find(handle)?;
    let context = slot.of_generation(generation, |context| {
        let context = context.take().ok_or(INVALID)?;
        slot.generation.fetch_add(1, Ordering::Relaxed);
        Ok(context)
    })?;
    slot.taken.store(false, Ordering::Release);
    Ok(context)
}
