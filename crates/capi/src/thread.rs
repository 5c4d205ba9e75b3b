//! The channels of the calling thread, and the guard around each call.
//!
//! C names channels by address and handles by number; both are looked up among the
//! channels of the calling thread and never followed before they are found there. One
//! channel per thread is the rule, so the one used last is tried first.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::BTreeMap;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{PoisonError, RwLock};

use megapipe::{Buffer, Channel, Handle, LwSocket, SockAddr, Waker};

use crate::errno::{BROKEN, BUSY, CHANNELS, Errno, FORKED, STALE, WRONG_THREAD};
use crate::number::{self, CHANNEL_MAX};
use crate::table::Table;

/// What `mp_channel *` points to.
pub struct Slot {
    number: u16,
    state: AtomicU8,
    inner: UnsafeCell<Inner>,
}

/// A channel, and what C holds of it by number. Fields are dropped in this order.
pub(crate) struct Inner {
    pub(crate) number: u16,
    /// Pool buffers that were handed out with an event.
    pub(crate) buffers: Table<Buffer>,
    /// Lightweight sockets that are not registered.
    pub(crate) lwsockets: Table<LwSocket>,
    /// Sender of the datagram that was handed out last.
    pub(crate) address: Option<SockAddr>,
    pub(crate) channel: Channel,
}

/// Values of `Slot::state`.
const READY: u8 = 0;
/// A call is under way: another one comes from a signal handler.
const IN_CALL: u8 = 1;
/// A call panicked.
const TORN: u8 = 2;

thread_local! {
    static LAST: Cell<*const Slot> = const { Cell::new(ptr::null()) };
    static MINE: RefCell<Mine> = const { RefCell::new(Mine(Vec::new())) };
}

/// The channels of a thread; what is left of them ends with it.
struct Mine(Vec<*const Slot>);

impl Drop for Mine {
    fn drop(&mut self) {
        LAST.set(ptr::null());
        for slot in self.0.drain(..) {
            forget_address(slot);
            // SAFETY: the pointer came from `Box::into_raw` in `add` and left the only
            // list that had it.
            let slot = unsafe { Box::from_raw(slot.cast_mut()) };
            let mut inner = slot.inner.into_inner();
            if inner.channel.is_here() {
                // Nobody is there to hear of an error; what is left ends with the channel.
                let _ = take_back_all(&mut inner);
                let _ = end(inner);
            } else {
                // A forked child that exits leaves the parent's channel alone.
                mem::forget(inner);
            }
        }
    }
}

/// The channels of the process, by address: for wakers, and to tell a wrong thread from a
/// wrong pointer.
static EVERYWHERE: RwLock<Everywhere> = RwLock::new(Everywhere { last_number: 0, channels: BTreeMap::new() });

struct Everywhere {
    last_number: u16,
    channels: BTreeMap<usize, Known>,
}

struct Known {
    number: u16,
    process: u32,
    waker: Waker,
}

/// Adds a channel to those of the calling thread.
pub(crate) fn add(channel: Channel) -> Result<*const Slot, Errno> {
    let mut everywhere = EVERYWHERE.write().unwrap_or_else(PoisonError::into_inner);
    let number = everywhere.free_number().ok_or(CHANNELS)?;
    let waker = channel.waker();
    let inner =
        Inner { number, buffers: Table::new(16, 16), lwsockets: Table::new(24, 6), address: None, channel };
    let state = AtomicU8::new(READY);
    let slot: *const Slot = Box::into_raw(Box::new(Slot { number, state, inner: UnsafeCell::new(inner) }));
    everywhere.last_number = number;
    everywhere.channels.insert(slot as usize, Known { number, process: std::process::id(), waker });
    MINE.with_borrow_mut(|mine| mine.0.push(slot));
    LAST.set(slot);
    Ok(slot)
}

/// Ends a channel of the calling thread. In a forked child only the child's copy ends.
pub(crate) fn remove(address: *const Slot) -> Result<(), Errno> {
    let slot = by_address(address)?;
    if slot.state.load(Ordering::Relaxed) == IN_CALL {
        return Err(BUSY);
    }
    // SAFETY: no call is under way, and this thread is the only one to make calls.
    let inner = unsafe { &mut *slot.inner.get() };
    if inner.channel.is_here() {
        take_back_all(inner)?;
    }
    LAST.set(ptr::null());
    MINE.with_borrow_mut(|mine| mine.0.retain(|&slot| slot != address));
    forget_address(address);
    // SAFETY: the pointer came from `Box::into_raw` in `add` and is in no list any more.
    let slot = unsafe { Box::from_raw(address.cast_mut()) };
    end(slot.inner.into_inner())
}

/// Ends what uses memory that C lent.
fn take_back_all(inner: &mut Inner) -> Result<(), Errno> {
    let taken = catch_unwind(AssertUnwindSafe(|| inner.channel.take_back_all()));
    Ok(taken.map_err(|_| BROKEN)??)
}

fn end(inner: Inner) -> Result<(), Errno> {
    catch_unwind(AssertUnwindSafe(|| drop(inner))).map_err(|_| BROKEN)
}

/// Wakes a channel of any thread.
pub(crate) fn wake(address: *const Slot) -> Result<(), Errno> {
    let everywhere = EVERYWHERE.read().unwrap_or_else(PoisonError::into_inner);
    let known = everywhere.channels.get(&(address as usize)).ok_or(STALE)?;
    if known.process != std::process::id() {
        return Err(FORKED);
    }
    known.waker.wake();
    Ok(())
}

/// Runs `f` on a channel of the calling thread.
#[inline]
pub(crate) fn with_channel<T>(
    address: *const Slot,
    f: impl FnOnce(&mut Inner) -> Result<T, Errno>,
) -> Result<T, Errno> {
    enter(by_address(address)?, f)
}

/// Runs `f` on the channel of a handle, which must be one of the calling thread.
#[inline]
pub(crate) fn with_handle<T>(
    handle: i64,
    f: impl FnOnce(&mut Inner, Handle) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let (number, handle) = number::to_handle(handle).ok_or(STALE)?;
    enter(by_number(number)?, |inner| f(inner, handle))
}

#[inline]
fn enter<T>(slot: &Slot, f: impl FnOnce(&mut Inner) -> Result<T, Errno>) -> Result<T, Errno> {
    match slot.state.load(Ordering::Relaxed) {
        READY => {}
        IN_CALL => return Err(BUSY),
        _ => return Err(BROKEN),
    }
    slot.state.store(IN_CALL, Ordering::Relaxed);
    // SAFETY: the slot is this thread's, and IN_CALL keeps every other call away from it,
    // those of signal handlers included, until this one returns.
    let inner = unsafe { &mut *slot.inner.get() };
    let result =
        if inner.channel.is_here() { catch_unwind(AssertUnwindSafe(|| f(inner))) } else { Ok(Err(FORKED)) };
    match result {
        Ok(result) => {
            slot.state.store(READY, Ordering::Relaxed);
            result
        }
        Err(_) => {
            slot.state.store(TORN, Ordering::Relaxed);
            Err(BROKEN)
        }
    }
}

#[inline]
fn by_address<'a>(address: *const Slot) -> Result<&'a Slot, Errno> {
    match live(LAST.get()) {
        Some(slot) if ptr::eq(slot, address) => Ok(slot),
        _ => find(|slot| ptr::eq(slot, address)).ok_or_else(|| elsewhere(|at, _| at == address as usize)),
    }
}

#[inline]
fn by_number<'a>(number: u16) -> Result<&'a Slot, Errno> {
    match live(LAST.get()) {
        Some(slot) if slot.number == number => Ok(slot),
        _ => find(|slot| slot.number == number).ok_or_else(|| elsewhere(|_, known| known.number == number)),
    }
}

/// A slot from one of the thread's lists.
#[inline]
fn live<'a>(slot: *const Slot) -> Option<&'a Slot> {
    // SAFETY: the lists hold null or live slots, which only `remove` and the end of the
    // thread free: both on this thread, and neither while a call is under way.
    unsafe { slot.as_ref() }
}

/// Finds one of this thread's channels and tries it first from now on.
#[cold]
fn find<'a>(is_it: impl Fn(&Slot) -> bool) -> Option<&'a Slot> {
    let search = |mine: &RefCell<Mine>| {
        let mine = mine.borrow();
        mine.0.iter().find_map(|&slot| live(slot).filter(|slot| is_it(slot)))
    };
    let found = MINE.try_with(search).ok()??;
    LAST.set(found);
    Some(found)
}

/// Why a channel is not among this thread's.
#[cold]
fn elsewhere(is_it: impl Fn(usize, &Known) -> bool) -> Errno {
    let everywhere = EVERYWHERE.read().unwrap_or_else(PoisonError::into_inner);
    match everywhere.channels.iter().find(|(at, known)| is_it(**at, known)) {
        Some((_, known)) if known.process != std::process::id() => FORKED,
        Some(_) => WRONG_THREAD,
        None => STALE,
    }
}

fn forget_address(slot: *const Slot) {
    let mut everywhere = EVERYWHERE.write().unwrap_or_else(PoisonError::into_inner);
    everywhere.channels.remove(&(slot as usize));
}

impl Everywhere {
    /// The next number that is not in use. Going round keeps the handles of a channel
    /// that is gone from naming anything for as long as can be.
    fn free_number(&self) -> Option<u16> {
        let in_use = |number| self.channels.values().any(|known| known.number == number);
        (1..=CHANNEL_MAX)
            .map(|step| (self.last_number + step - 1) % CHANNEL_MAX + 1)
            .find(|&number| !in_use(number))
    }
}

#[cfg(test)]
mod tests {
    use megapipe::{Config, EngineKind};

    use super::*;

    fn made() -> *const Slot {
        let config = Config { engine: Some(EngineKind::Epoll), ..Config::default() };
        add(Channel::new(config).unwrap()).unwrap()
    }

    #[test]
    fn a_panic_stops_at_the_call_and_breaks_the_channel_only() {
        let (torn, whole) = (made(), made());
        assert_eq!(
            with_channel(torn, |_| -> Result<(), Errno> { panic!("a defect, for this test") }),
            Err(BROKEN)
        );
        assert_eq!(with_channel(torn, |_| Ok(())), Err(BROKEN));
        assert_eq!(with_channel(whole, |_| Ok(())), Ok(()));
        assert_eq!(remove(torn), Ok(()));
        assert_eq!(remove(torn), Err(STALE));
        assert_eq!(remove(whole), Ok(()));
    }

    #[test]
    fn a_call_within_a_call_is_refused() {
        let slot = made();
        let inner = with_channel(slot, |_| Ok((with_channel(slot, |_| Ok(())), remove(slot))));
        assert_eq!(inner, Ok((Err(BUSY), Err(BUSY))));
        assert_eq!(remove(slot), Ok(()));
    }

    #[test]
    fn numbers_go_round() {
        let first = made();
        let number = with_channel(first, |inner| Ok(inner.number)).unwrap();
        assert_eq!(remove(first), Ok(()));
        let second = made();
        assert_ne!(with_channel(second, |inner| Ok(inner.number)), Ok(number));
        assert_eq!(remove(second), Ok(()));
    }
}
