//! Loop pages: which waiters of a loop sleep, and which of these sleeps were ended by a
//! wake-up already.

#[cfg(not(ring_loom))]
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

#[cfg(not(ring_loom))]
use crate::layout::LayoutError;
use crate::layout::{Counters, NO_WAITER, WAITERS};
use crate::memory::PageMemory;
use crate::sync::{Ordering, full_fence};

/// The page of this process's own event loop.
#[derive(Clone, Debug)]
pub struct LoopPage {
    page: PageMemory,
    /// The last sleep number of each waiter. Each waiter is used by one thread at a time.
    numbers: Numbers,
}

impl LoopPage {
    /// The loop page at `start`. It must be new and no other loop's, since its numbers
    /// restart.
    ///
    /// # Safety
    /// [`crate::layout::LOOP_PAGE_SIZE`] bytes stay mapped there, readable and writable,
    /// while this lives, and no references to them exist in this process.
    ///
    /// # Errors
    /// The memory is not a loop page of this version.
    #[cfg(not(ring_loom))]
    #[allow(unsafe_code)]
    pub unsafe fn new(start: NonNull<u8>) -> Result<LoopPage, LayoutError> {
        // SAFETY: the caller upholds the same contract.
        let page = unsafe { PageMemory::new(start) }?;
        Ok(LoopPage::of(page))
    }

    pub(crate) fn of(page: PageMemory) -> LoopPage {
        LoopPage { page, numbers: Numbers::new() }
    }

    /// Publishes that this waiter of the loop (0 if it has only one) is about to sleep.
    /// Before it sleeps, every hot ring of it has to be polled once more
    /// ([`crate::Receiver::poll`]). Does nothing if there is no such waiter.
    pub fn sleep(&self, waiter: u32) {
        let Some(word) = self.page.header().asleep(waiter) else { return };
        let number = next_number(self.numbers.of(waiter));
        self.numbers.set(waiter, number);
        // ENDED-PAIR, MASK-PAIR: release which connections this loop has ended or masked.
        word.store(number, Ordering::Release);
        // SLEEP-PAIR: store asleep before the last check of the rings; `wants_tcp_wake_up` has
        // the other fence.
        full_fence();
    }

    /// The sleep number of that waiter; 0: it is awake, or does not exist.
    #[cold]
    pub fn asleep(&self, waiter: u32) -> u32 {
        self.page.header().asleep(waiter).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Publishes that this waiter is awake.
    pub fn wake(&self, waiter: u32) {
        if let Some(word) = self.page.header().asleep(waiter) {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Words for statistics.
    pub fn counters(&self) -> &Counters {
        &self.page.header().counters
    }
}

/// The page of a loop of the peer, and the sleeps for which this endpoint's loop has
/// woken it. One for each pair of loops, shared by all connections between them.
#[derive(Clone, Debug)]
pub struct PeerLoop {
    page: PageMemory,
    /// The sleep number of each waiter's last wake-up. Threads may share it: two wake-ups
    /// for one sleep do no harm.
    woken_for: Numbers,
}

impl PeerLoop {
    /// The peer loop's page at `start`.
    ///
    /// # Safety
    /// [`crate::layout::LOOP_PAGE_SIZE`] bytes stay mapped there, readable, while this lives.
    ///
    /// # Errors
    /// The memory is not a loop page of this version.
    #[cfg(not(ring_loom))]
    #[allow(unsafe_code)]
    pub unsafe fn new(start: NonNull<u8>) -> Result<PeerLoop, LayoutError> {
        // SAFETY: the caller upholds the same contract.
        let page = unsafe { PageMemory::new(start) }?;
        Ok(PeerLoop::of(page))
    }

    pub(crate) fn of(page: PageMemory) -> PeerLoop {
        PeerLoop { page, woken_for: Numbers::new() }
    }

    /// The sleep number of that waiter if this loop has not woken it yet; else 0. The
    /// caller has issued a full fence after the stores that the waiter should see.
    #[inline]
    pub(crate) fn unwoken_sleep(&self, waiter: u32) -> u32 {
        let Some(word) = self.page.header().asleep(waiter) else { return 0 };
        // ENDED-PAIR, MASK-PAIR: acquire which connections the loop had ended or masked
        // when it went to sleep.
        let number = word.load(Ordering::Acquire);
        if number == self.woken_for.of(waiter) { 0 } else { number }
    }

    /// Whether that waiter sleeps and this loop has woken it already.
    pub fn is_woken(&self, waiter: u32) -> bool {
        let asleep = self.page.header().asleep(waiter).map_or(0, |word| word.load(Ordering::Relaxed));
        asleep != 0 && asleep == self.woken_for.of(waiter)
    }

    /// Records the wake-up of that sleep.
    pub(crate) fn record_wake_up(&self, waiter: u32, number: u32) {
        self.woken_for.set(waiter, number);
    }
}

/// A number for each waiter. Threads may share them, and order nothing by them.
#[derive(Debug)]
struct Numbers([AtomicU32; WAITERS as usize]);

impl Numbers {
    fn new() -> Numbers {
        Numbers([const { AtomicU32::new(0) }; WAITERS as usize])
    }

    /// 0 if there is no such waiter.
    #[inline(always)]
    fn of(&self, waiter: u32) -> u32 {
        self.0.get(waiter as usize).map_or(0, |number| number.load(Relaxed))
    }

    #[inline(always)]
    fn set(&self, waiter: u32, number: u32) {
        if let Some(place) = self.0.get(waiter as usize) {
            place.store(number, Relaxed);
        }
    }
}

impl Clone for Numbers {
    fn clone(&self) -> Numbers {
        let numbers = Numbers::new();
        (0..WAITERS).for_each(|waiter| numbers.set(waiter, self.of(waiter)));
        numbers
    }
}

/// How a receiver requests its wake-up. A sender that cannot write to the doorbell wakes
/// over TCP: a waiter that polls its doorbell polls the kernel connection, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeUp {
    /// A byte on the TCP path.
    Tcp,
    /// A byte in the receiver's doorbell, a pipe or a message queue beside the connection.
    Doorbell,
}

/// With an arming number: a wake-up is requested for each publication, not only for the
/// first.
pub(crate) const EACH: u32 = 1 << 31;
/// With an arming number, or a waiter: [`WakeUp::Doorbell`].
const DOORBELL: u32 = 1 << 30;

impl WakeUp {
    /// The bit of a word that encodes it.
    pub(crate) fn bit(self) -> u32 {
        match self {
            WakeUp::Tcp => 0,
            WakeUp::Doorbell => DOORBELL,
        }
    }

    pub(crate) fn of(word: u32) -> WakeUp {
        if word & DOORBELL == 0 { WakeUp::Tcp } else { WakeUp::Doorbell }
    }

    /// The waiter in a word, without the bit; [`NO_WAITER`] has all bits.
    pub(crate) fn of_waiter(word: u32) -> (u32, WakeUp) {
        if word == NO_WAITER { (word, WakeUp::Tcp) } else { (word & !DOORBELL, WakeUp::of(word)) }
    }
}

/// The number after `number`, without [`EACH`] and [`WakeUp`]; never 0.
#[inline]
pub(crate) fn next_number(number: u32) -> u32 {
    match (number & !(EACH | DOORBELL)) + 1 {
        DOORBELL => 1,
        next => next,
    }
}
