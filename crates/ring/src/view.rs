//! An observer's view: the words of a region and of a loop page, loaded one by one.
//! Nothing is validated, since nothing depends on them: they are numbers to display.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use crate::layout::{self, CONSUMED_MESSAGES, Header, LayoutError, SENT_MESSAGES};
use crate::memory::PageMemory;
use crate::sync::Ordering;

/// The words of a region that describe its endpoint, as that endpoint wrote them:
/// unverified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// Its endpoint has mapped both regions.
    pub aware: bool,
    /// Its receiver waits for a wake-up: the connection is cold there.
    pub armed: bool,
    /// Its endpoint reads no more.
    pub ended: bool,
    /// Runs opened after the first, modulo 2^32: odd ones are ring runs.
    pub runs: u32,
    /// Wake-up bytes sent, modulo 2^32.
    pub tcp_wake_ups: u32,
    /// Stream bytes sent through the kernel connection.
    pub sent_tcp: u64,
    /// Stream bytes consumed from the kernel connection.
    pub consumed_tcp: u64,
    /// Ring count published.
    pub tail: u64,
    /// Ring count of the other direction that was consumed.
    pub head: u64,
    /// Messages sent; lags by a few.
    pub sent_messages: u64,
    /// Messages consumed; lags by a few.
    pub consumed_messages: u64,
}

/// The first page of a region, mapped read-only.
#[derive(Debug)]
pub struct RegionView(NonNull<Header>);

// SAFETY: the memory is shared by design and every word of it is an atomic. The creator
// of the view keeps it mapped while the view lives, on any thread.
unsafe impl Send for RegionView {}

impl RegionView {
    /// The region whose first page is mapped at `start`.
    ///
    /// # Safety
    /// [`layout::PAGE`] bytes stay mapped there, readable, while this lives, and no
    /// references to them exist in this process.
    ///
    /// # Errors
    /// The memory does not begin at a cache line.
    pub unsafe fn new(start: NonNull<u8>) -> Result<RegionView, LayoutError> {
        if start.as_ptr().addr().is_multiple_of(layout::PAGE) {
            Ok(RegionView(start.cast()))
        } else {
            Err(LayoutError::Alignment)
        }
    }

    fn header(&self) -> &Header {
        // SAFETY: the caller of `new` keeps the page mapped, which is longer than a
        // header; every word of it is an atomic or padding.
        unsafe { self.0.as_ref() }
    }

    /// The words, each loaded once.
    pub fn words(&self) -> Words {
        let header = self.header();
        let counter = |index: usize| header.counters[index].load(Ordering::Relaxed);
        Words {
            aware: header.aware.load(Ordering::Relaxed) != 0,
            armed: header.armed.load(Ordering::Relaxed) != 0,
            ended: header.ended.load(Ordering::Relaxed) != 0,
            runs: header.runs_published.load(Ordering::Relaxed),
            tcp_wake_ups: header.tcp_wake_ups.load(Ordering::Relaxed),
            sent_tcp: header.sent.data.load(Ordering::Relaxed),
            consumed_tcp: header.consumed.data.load(Ordering::Relaxed),
            tail: header.tail.load(Ordering::Acquire),
            head: header.head.load(Ordering::Acquire),
            sent_messages: counter(SENT_MESSAGES),
            consumed_messages: counter(CONSUMED_MESSAGES),
        }
    }
}

/// A loop page, mapped read-only.
#[derive(Debug)]
pub struct LoopView(PageMemory);

impl LoopView {
    /// The loop page at `start`.
    ///
    /// # Safety
    /// [`layout::LOOP_PAGE_SIZE`] bytes stay mapped there, readable, while this lives.
    ///
    /// # Errors
    /// The memory is not a loop page of this version.
    pub unsafe fn new(start: NonNull<u8>) -> Result<LoopView, LayoutError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { PageMemory::new(start) }.map(LoopView)
    }

    /// Whether any waiter of the loop has published that it sleeps.
    pub fn asleep(&self) -> bool {
        (0..layout::WAITERS)
            .filter_map(|waiter| self.0.header().asleep(waiter))
            .any(|word| word.load(Ordering::Relaxed) != 0)
    }
}
