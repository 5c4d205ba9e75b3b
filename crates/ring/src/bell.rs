//! Loop pages: which sleepers of a loop sleep, and who has rung for that.

#[cfg(not(ring_loom))]
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

#[cfg(not(ring_loom))]
use crate::layout::LayoutError;
use crate::layout::{Counters, NO_SLEEPER, SLEEPERS};
use crate::memory::PageMemory;
use crate::sync::{Ordering, full_fence};

/// The page of this process's own loop.
#[derive(Clone, Debug)]
pub struct LoopPage {
    page: PageMemory,
    /// The last sleep number of each sleeper, which is one thread at a time.
    numbers: Numbers,
}

impl LoopPage {
    /// The loop page at `start`: new, and no other loop's, since its numbers start again.
    ///
    /// # Safety
    /// [`crate::layout::LOOP_PAGE_SIZE`] bytes stay mapped there, readable and writable,
    /// while this lives, and nobody in this process makes references to them.
    ///
    /// # Errors
    /// What lies there is no loop page of this version.
    #[cfg(not(ring_loom))]
    #[allow(unsafe_code)]
    pub unsafe fn new(start: NonNull<u8>) -> Result<LoopPage, LayoutError> {
        // SAFETY: the caller keeps the same promise.
        let page = unsafe { PageMemory::new(start) }?;
        Ok(LoopPage::of(page))
    }

    pub(crate) fn of(page: PageMemory) -> LoopPage {
        LoopPage { page, numbers: Numbers::new() }
    }

    /// Says that this sleeper of the loop (0 if it has but one) is about to sleep. After it,
    /// every hot ring of it has to be looked at once more ([`crate::Receiver::look_again`])
    /// before it does sleep. Does nothing if there is no such sleeper.
    pub fn sleep(&self, sleeper: u32) {
        let Some(word) = self.page.header().asleep(sleeper) else { return };
        let number = next_number(self.numbers.of(sleeper));
        self.numbers.set(sleeper, number);
        // ENDED-PAIR, MUTE-PAIR: release which connections this loop has ended or muted.
        word.store(number, Ordering::Release);
        // SLEEP-PAIR: asleep before the last look at the rings; `wants_bell` has the other.
        full_fence();
    }

    /// The number of that sleeper's sleep; 0: it is awake, or there is none such.
    #[cold]
    pub fn asleep(&self, sleeper: u32) -> u32 {
        self.page.header().asleep(sleeper).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Says that this sleeper is awake.
    pub fn wake(&self, sleeper: u32) {
        if let Some(word) = self.page.header().asleep(sleeper) {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Words for statistics.
    pub fn counters(&self) -> &Counters {
        &self.page.header().counters
    }
}

/// The page of a loop at the other end of some connections, and what this end's loop has
/// rung it for. One for each pair of loops, shared by all connections between them.
#[derive(Clone, Debug)]
pub struct PeerLoop {
    page: PageMemory,
    /// The sleep number that each of its sleepers was last rung for. Threads may share it:
    /// two that ring for one sleep do no harm.
    rung: Numbers,
}

impl PeerLoop {
    /// The other loop's page at `start`.
    ///
    /// # Safety
    /// [`crate::layout::LOOP_PAGE_SIZE`] bytes stay mapped there, readable, while this lives.
    ///
    /// # Errors
    /// What lies there is no loop page of this version.
    #[cfg(not(ring_loom))]
    #[allow(unsafe_code)]
    pub unsafe fn new(start: NonNull<u8>) -> Result<PeerLoop, LayoutError> {
        // SAFETY: the caller keeps the same promise.
        let page = unsafe { PageMemory::new(start) }?;
        Ok(PeerLoop::of(page))
    }

    pub(crate) fn of(page: PageMemory) -> PeerLoop {
        PeerLoop { page, rung: Numbers::new() }
    }

    /// The number of the sleep that nobody of this loop has rung that sleeper for; 0 if
    /// there is none. The caller has issued a full fence after what it should see.
    #[inline]
    pub(crate) fn wants_bell(&self, sleeper: u32) -> u32 {
        let Some(word) = self.page.header().asleep(sleeper) else { return 0 };
        // ENDED-PAIR, MUTE-PAIR: acquire which connections the loop had ended or muted when it
        // went to sleep.
        let number = word.load(Ordering::Acquire);
        if number == self.rung.of(sleeper) { 0 } else { number }
    }

    /// Whether that sleeper sleeps, and this loop has rung for that.
    pub fn is_rung(&self, sleeper: u32) -> bool {
        let asleep = self.page.header().asleep(sleeper).map_or(0, |word| word.load(Ordering::Relaxed));
        asleep != 0 && asleep == self.rung.of(sleeper)
    }

    /// A bell was rung for that sleep.
    pub(crate) fn rang(&self, sleeper: u32, number: u32) {
        self.rung.set(sleeper, number);
    }
}

/// A number for each sleeper. Threads may share them, and order nothing by them.
#[derive(Debug)]
struct Numbers([AtomicU32; SLEEPERS as usize]);

impl Numbers {
    fn new() -> Numbers {
        Numbers([const { AtomicU32::new(0) }; SLEEPERS as usize])
    }

    /// 0 if there is no such sleeper.
    #[inline(always)]
    fn of(&self, sleeper: u32) -> u32 {
        self.0.get(sleeper as usize).map_or(0, |number| number.load(Relaxed))
    }

    #[inline(always)]
    fn set(&self, sleeper: u32, number: u32) {
        if let Some(place) = self.0.get(sleeper as usize) {
            place.store(number, Relaxed);
        }
    }
}

impl Clone for Numbers {
    fn clone(&self) -> Numbers {
        let numbers = Numbers::new();
        (0..SLEEPERS).for_each(|sleeper| numbers.set(sleeper, self.of(sleeper)));
        numbers
    }
}

/// How a receiver asks to be woken. A sender that cannot write to the doorbell wakes over TCP: a
/// waiter in reach of its doorbell watches the kernel connection, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeUp {
    /// A byte in the TCP lane.
    Tcp,
    /// A byte in the receiver's doorbell, a pipe or a message queue beside the connection.
    Doorbell,
}

/// With an arming number: a bell is wanted for each publication, not for the first one only.
pub(crate) const EACH: u32 = 1 << 31;
/// With an arming number, or a sleeper: [`WakeUp::Doorbell`].
const DOORBELL: u32 = 1 << 30;

impl WakeUp {
    /// The bit that a word has for it.
    pub(crate) fn bit(self) -> u32 {
        match self {
            WakeUp::Tcp => 0,
            WakeUp::Doorbell => DOORBELL,
        }
    }

    pub(crate) fn of(word: u32) -> WakeUp {
        if word & DOORBELL == 0 { WakeUp::Tcp } else { WakeUp::Doorbell }
    }

    /// The word of a sleeper without the bit; [`NO_SLEEPER`] has all bits.
    pub(crate) fn of_sleeper(word: u32) -> (u32, WakeUp) {
        if word == NO_SLEEPER { (word, WakeUp::Tcp) } else { (word & !DOORBELL, WakeUp::of(word)) }
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
