//! Loop pages: whether a loop sleeps, and who has rung for that.

#[cfg(not(ring_loom))]
use std::ptr::NonNull;

use crate::layout::Counters;
#[cfg(not(ring_loom))]
use crate::layout::LayoutError;
use crate::memory::PageMemory;
use crate::sync::{Ordering, full_fence};

/// The page of this process's own loop.
#[derive(Clone, Debug)]
pub struct LoopPage {
    page: PageMemory,
    number: u32,
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
        LoopPage { page, number: 0 }
    }

    /// Says that this loop is about to sleep. After it, every hot ring has to be looked at
    /// once more ([`crate::Receiver::look_again`]) before the loop does sleep.
    pub fn sleep(&mut self) {
        self.number = next_number(self.number);
        // ENDED-PAIR, MUTE-PAIR: release which connections this loop has ended or muted.
        self.page.header().asleep.store(self.number, Ordering::Release);
        // SLEEP-PAIR: asleep before the last look at the rings; `wants_bell` has the other.
        full_fence();
    }

    /// Says that this loop is awake.
    pub fn wake(&self) {
        self.page.header().asleep.store(0, Ordering::Relaxed);
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
    /// The sleep number it was last rung for.
    rung: u32,
    /// The sleep number seen last.
    pub(crate) seen: u32,
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
        PeerLoop { page, rung: 0, seen: 0 }
    }

    /// Whether it sleeps and nobody of this loop has rung for that. The caller has issued a
    /// full fence after what the other loop should see.
    #[inline]
    pub(crate) fn wants_bell(&mut self) -> bool {
        // ENDED-PAIR, MUTE-PAIR: acquire which connections the loop had ended or muted when it
        // went to sleep.
        self.seen = self.page.header().asleep.load(Ordering::Acquire);
        self.seen != 0 && self.seen != self.rung
    }

    /// Whether it sleeps, and this loop has rung for that.
    pub fn is_rung(&self) -> bool {
        let asleep = self.page.header().asleep.load(Ordering::Relaxed);
        asleep != 0 && asleep == self.rung
    }

    /// A bell was rung for the number seen last.
    pub(crate) fn rang(&mut self) {
        self.rung = self.seen;
    }
}

/// The number after `number`; never 0.
#[inline]
pub(crate) fn next_number(number: u32) -> u32 {
    number.checked_add(1).unwrap_or(1)
}
