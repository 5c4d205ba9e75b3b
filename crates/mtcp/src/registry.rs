//! Contexts as C has them: numbers that look like pointers, looked up and never followed. A stale
//! or invented one is EINVAL.
//!
//! Threads that use one context take turns. A thread that has to wait leaves the context to the
//! others: the first one, the leader, sleeps until packets arrive; further ones are its followers.
//! A call that changes something wakes them. A call that a signal handler makes inside another call
//! on the same context returns EBUSY and does nothing.
//!
//! No panic is expected. One that happens all the same ends the context: the call returns
//! ENOTRECOVERABLE, and later ones EINVAL.
//!
//! A context is served by the threads that call it. When the last of them ends without destroying it, it
//! leaves its queue to other contexts, until another thread calls it.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::carrier::Waiter;
use crate::context::{Context, Pause};
use crate::errno::{Errno, FORKED, INTERRUPTED, INVALID, TORN};
use crate::lifecycle;
use crate::signal::CONTEXTS_MAX;

/// What `mctx_t` points to, as far as C is concerned.
#[repr(C)]
pub struct Opaque {
    _private: [u8; 0],
}

/// `mctx_t`.
pub type Handle = *mut Opaque;

struct Slot {
    /// Whether there is a context, or one is being made: threads that make contexts leave the slots
    /// of others alone.
    taken: AtomicBool,
    state: Mutex<State>,
    /// Something may have changed for followers.
    changed: Condvar,
}

struct State {
    /// Of the context that is there, or will be.
    generation: usize,
    context: Option<Box<Context>>,
    /// Threads that have called it and have not ended.
    threads: usize,
    /// A thread sleeps on the device, or is about to go on.
    leader: bool,
    /// The leader sleeps, and was not woken yet.
    asleep: bool,
    followers: usize,
    /// Sleeps of leaders that a signal has ended: it ends the waits of their followers, too.
    interrupts: u64,
}

static SLOTS: [Slot; CONTEXTS_MAX] = [const {
    let state = State {
        generation: 1,
        context: None,
        threads: 0,
        leader: false,
        asleep: false,
        followers: 0,
        interrupts: 0,
    };
    Slot { taken: AtomicBool::new(false), state: Mutex::new(state), changed: Condvar::new() }
}; CONTEXTS_MAX];

thread_local! {
    /// Contexts, by index, that this thread is inside a call of.
    static INSIDE: Cell<u64> = const { Cell::new(0) };

    static CALLED: Called =
        const { Called { process: Cell::new(0), generations: [const { Cell::new(0) }; CONTEXTS_MAX] } };
}

/// The contexts that this thread has called.
struct Called {
    process: Cell<u32>,
    /// By index; 0 if none.
    generations: [Cell<usize>; CONTEXTS_MAX],
}

impl Called {
    /// Whether this is the thread's first call on the context.
    fn note(&self, index: usize, generation: usize) -> bool {
        if self.generations[index].get() == generation {
            return false;
        }
        let process = std::process::id();
        if self.process.replace(process) != process {
            // What a forked child has inherited was the parent's.
            self.generations.iter().for_each(|inherited| inherited.set(0));
        }
        self.generations[index].set(generation);
        true
    }
}

impl Drop for Called {
    fn drop(&mut self) {
        // A forked child leaves the contexts to its parent.
        if self.process.get() != std::process::id() {
            return;
        }
        for (index, (slot, called)) in SLOTS.iter().zip(&self.generations).enumerate() {
            // exit(3) inside a call: this thread may hold the lock, and never returns.
            let is_inside = INSIDE.get() & 1 << index != 0;
            if called.get() > 0 && !is_inside {
                slot.lock().uncount_thread(called.get());
            }
        }
    }
}

/// That this thread is inside a call.
struct Inside(u64);

impl Inside {
    fn enter(index: usize) -> Result<Inside, Errno> {
        let bit = 1 << index;
        if INSIDE.get() & bit != 0 {
            return Err(Errno(libc::EBUSY));
        }
        INSIDE.set(INSIDE.get() | bit);
        Ok(Inside(bit))
    }

    /// Does something meanwhile that signal handlers may interrupt with calls of their own.
    fn outside<T>(&self, work: impl FnOnce() -> T) -> T {
        INSIDE.set(INSIDE.get() & !self.0);
        let result = work();
        INSIDE.set(INSIDE.get() | self.0);
        result
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(INSIDE.get() & !self.0);
    }
}

impl State {
    /// The calling thread calls the context, and is one of its threads until it ends.
    fn count_thread(&mut self, index: usize, generation: usize) {
        let Some(context) = self.context.as_mut().filter(|_| self.generation == generation) else { return };
        let is_new = CALLED.try_with(|called| called.note(index, generation));
        // What is called while the thread ends has one for ever.
        if is_new.unwrap_or(true) {
            self.threads += 1;
            if self.threads == 1 {
                context.join();
            }
        }
    }

    fn uncount_thread(&mut self, generation: usize) {
        if let Some(context) = self.context.as_mut().filter(|_| self.generation == generation) {
            self.threads -= 1;
            if self.threads == 0 {
                context.leave();
            }
        }
    }

    /// Does something with the context, if it is still this one.
    fn run<T, E: From<Errno>>(
        &mut self,
        generation: usize,
        work: impl FnOnce(&mut Context) -> Result<T, E>,
    ) -> Result<T, E> {
        let current = self.context.as_mut().filter(|context| self.generation == generation && !context.torn);
        let context = current.ok_or(INVALID)?;
        if context.link.is_left_behind() {
            return Err(FORKED.into());
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| work(context)));
        context.torn = outcome.is_err() || context.link.is_torn();
        outcome.unwrap_or(Err(TORN.into()))
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the threads that wait for the context.
    fn wake(&self, state: &mut State) {
        if std::mem::take(&mut state.asleep)
            && let Some(context) = &state.context
        {
            context.waiter().wake();
        }
        if state.followers > 0 {
            self.changed.notify_all();
        }
    }

    /// Leaves the context to other threads until something may have changed, or this time has
    /// passed. A leader sleeps on the device, no longer than its stack allows; so does a follower, if nothing
    /// ends the leader's sleep when a call gives the stack something to do.
    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        inside: &Inside,
        limit: Option<Duration>,
        (waiter, timeout): (Waiter, Option<Duration>),
    ) -> (MutexGuard<'a, State>, Result<(), Errno>) {
        if state.leader {
            let limit = if waiter.can_wake() { limit } else { timeout };
            state.followers += 1;
            state = match limit {
                Some(limit) => {
                    self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
            state.followers -= 1;
            return (state, Ok(()));
        }
        (state.leader, state.asleep) = (true, true);
        let generation = state.generation;
        drop(state);
        let result = inside.outside(|| waiter.wait(timeout)).map(|_| ());
        state = self.lock();
        // Another context may have the slot by now, if nobody could end this sleep.
        if waiter.can_wake() || state.generation == generation {
            (state.leader, state.asleep) = (false, false);
            state.interrupts += u64::from(result == Err(INTERRUPTED));
        }
        (state, result)
    }
}

/// The index of a handle, and its generation: `generation << 8 | index + 1`.
fn find(handle: Handle) -> Result<(usize, usize), Errno> {
    let number = handle.addr();
    let index = (number & 0xff).checked_sub(1).filter(|&index| index < CONTEXTS_MAX);
    Ok((index.ok_or(INVALID)?, number >> 8))
}

/// Keeps a context that is made for its index.
pub(crate) fn insert(make: impl FnOnce(usize) -> Result<Context, Errno>) -> Result<Handle, Errno> {
    let free =
        |slot: &Slot| slot.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
    let index = SLOTS.iter().position(free).ok_or(Errno(libc::EMFILE))?;
    let slot = &SLOTS[index];
    let made = make(index).map(|context| {
        let mut state = slot.lock();
        state.context = Some(Box::new(context));
        state.threads = 0;
        state.generation << 8 | (index + 1)
    });
    if made.is_err() {
        slot.taken.store(false, Ordering::Release);
    }
    made.map(std::ptr::without_provenance_mut)
}

/// Does something with a context that does not wait.
pub(crate) fn with<T>(
    handle: Handle,
    work: impl FnOnce(&mut Context) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let (index, generation) = find(handle)?;
    let slot = &SLOTS[index];
    let inside = Inside::enter(index)?;
    let mut state = slot.lock();
    state.count_thread(index, generation);
    let result = state.run(generation, work);
    slot.wake(&mut state);
    finish(handle, inside, state);
    result
}

/// Ends a call, and with it a context that is torn.
fn finish(handle: Handle, inside: Inside, state: MutexGuard<'_, State>) {
    // A leader ends it when it is awake: this may be a signal handler that interrupts its sleep.
    let torn = !state.leader && state.context.as_ref().is_some_and(|context| context.torn);
    drop((state, inside));
    if torn {
        // Another thread may have done so.
        let _ = lifecycle::destroy(handle);
    }
}

/// Does something with a context, again after each sleep that it asks for.
pub(crate) fn with_waits<T>(
    handle: Handle,
    mut work: impl FnMut(&mut Context) -> Result<T, Pause>,
) -> Result<T, Errno> {
    let (index, generation) = find(handle)?;
    let slot = &SLOTS[index];
    let inside = Inside::enter(index)?;
    let mut state = slot.lock();
    state.count_thread(index, generation);
    let interrupts = state.interrupts;
    // The call itself may change something; later only what its turns brought does.
    let mut changed = true;
    let result = loop {
        let limit = match state.run(generation, &mut work) {
            Err(Pause::Sleep(limit)) => limit,
            Err(Pause::Failed(error)) => break Err(error),
            Ok(value) => break Ok(value),
        };
        let before = |context: &mut Context| {
            changed |= context.take_moved();
            Ok::<_, Errno>(context.before_sleep(limit))
        };
        let sleep = match state.run(generation, before) {
            Ok(sleep) => sleep,
            Err(error) => break Err(error),
        };
        if std::mem::take(&mut changed) {
            slot.wake(&mut state);
        }
        let (awake, slept) = slot.sleep(state, &inside, limit, sleep);
        state = awake;
        if let Err(error) = slept {
            break Err(error);
        }
        if (state.generation, state.interrupts) != (generation, interrupts) {
            break Err(INTERRUPTED);
        }
    };
    slot.wake(&mut state);
    finish(handle, inside, state);
    result
}

/// Takes a context out; its handle is stale from now on. Waits of other threads end with EINTR.
pub(crate) fn remove(handle: Handle) -> Result<Box<Context>, Errno> {
    let (index, generation) = find(handle)?;
    let slot = &SLOTS[index];
    let _inside = Inside::enter(index)?;
    let mut state = slot.lock();
    if state.generation != generation {
        return Err(INVALID);
    }
    slot.wake(&mut state);
    let context = state.context.take().ok_or(INVALID)?;
    state.generation += 1;
    // The next context of this slot will use the same eventfd. A device of the caller's has none,
    // and nothing here ends its sleep. A forked child has none of the threads that sleep.
    if context.waiter().can_wake() && !context.link.is_left_behind() {
        state.followers += 1;
        while state.leader || state.followers > 1 {
            state = slot.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.followers -= 1;
    } else {
        (state.leader, state.asleep) = (false, false);
    }
    drop(state);
    slot.taken.store(false, Ordering::Release);
    Ok(context)
}
