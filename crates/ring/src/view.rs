//! What somebody sees who takes part in nothing: the words of a segment and of a loop page,
//! read one by one. Nothing is checked, since nothing is concluded: they are numbers to show.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use crate::layout::{self, Header, LayoutError, SENT_MESSAGES, TAKEN_MESSAGES};
use crate::memory::PageMemory;
use crate::sync::Ordering;

/// The words of a segment that tell how its end does. What its end wrote, be it true or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// Its end has mapped both segments.
    pub aware: bool,
    /// Its receiver waits for a bell: the connection is cold there.
    pub armed: bool,
    /// Its end reads no more.
    pub ended: bool,
    /// Parts opened after the first, modulo 2^32: odd ones are of the ring.
    pub parts: u32,
    /// Bells sent, modulo 2^32.
    pub bells: u32,
    /// Stream bytes sent through the kernel connection.
    pub sent_tcp: u64,
    /// Stream bytes taken from the kernel connection.
    pub taken_tcp: u64,
    /// Ring count published.
    pub tail: u64,
    /// Ring count of the other direction that was taken.
    pub head: u64,
    /// Messages sent, a few late.
    pub sent_messages: u64,
    /// Messages taken, a few late.
    pub taken_messages: u64,
}

/// The first page of somebody's segment, mapped read-only.
#[derive(Debug)]
pub struct SegmentView(NonNull<Header>);

// SAFETY: the memory is shared by its nature, every word of it an atomic, and whoever made
// the view keeps it mapped while the view lives, on whatever thread.
unsafe impl Send for SegmentView {}

impl SegmentView {
    /// The segment whose first page is mapped at `start`.
    ///
    /// # Safety
    /// [`layout::PAGE`] bytes stay mapped there, readable, while this lives, and nobody in
    /// this process makes references to them.
    ///
    /// # Errors
    /// The memory does not begin at a cache line.
    pub unsafe fn new(start: NonNull<u8>) -> Result<SegmentView, LayoutError> {
        if start.as_ptr().addr().is_multiple_of(layout::PAGE) {
            Ok(SegmentView(start.cast()))
        } else {
            Err(LayoutError::Alignment)
        }
    }

    fn header(&self) -> &Header {
        // SAFETY: `new`'s caller keeps the page mapped, which is longer than a header; every
        // word of it is an atomic or padding.
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
            parts: header.parts_published.load(Ordering::Relaxed),
            bells: header.bells.load(Ordering::Relaxed),
            sent_tcp: header.sent.data.load(Ordering::Relaxed),
            taken_tcp: header.taken.data.load(Ordering::Relaxed),
            tail: header.tail.load(Ordering::Acquire),
            head: header.head.load(Ordering::Acquire),
            sent_messages: counter(SENT_MESSAGES),
            taken_messages: counter(TAKEN_MESSAGES),
        }
    }
}

/// Somebody's loop page, mapped read-only.
#[derive(Debug)]
pub struct LoopView(PageMemory);

impl LoopView {
    /// The loop page at `start`.
    ///
    /// # Safety
    /// [`layout::LOOP_PAGE_SIZE`] bytes stay mapped there, readable, while this lives.
    ///
    /// # Errors
    /// What lies there is no loop page of this version.
    pub unsafe fn new(start: NonNull<u8>) -> Result<LoopView, LayoutError> {
        // SAFETY: the caller keeps the same promise.
        unsafe { PageMemory::new(start) }.map(LoopView)
    }

    /// Whether any sleeper of the loop says that it sleeps.
    pub fn asleep(&self) -> bool {
        (0..layout::SLEEPERS)
            .filter_map(|sleeper| self.0.header().asleep(sleeper))
            .any(|word| word.load(Ordering::Relaxed) != 0)
    }
}
