//! The memory of one connection on the heap: two regions and two loop pages, whose words
//! can be saved and restored.
#![allow(unsafe_code)] // regions lie at addresses

use std::alloc::{Layout, alloc_zeroed};
use std::hash::{Hash, Hasher};
use std::ptr::NonNull;

use ring::layout::{LOOP_PAGE_SIZE, MIN_SIZE, RING_OFFSET, format_loop_page, format_region};
use ring::{LoopPage, PeerLoop, PeerRegion, Region};

/// Bytes of the smallest ring.
pub(crate) const RING: usize = MIN_SIZE - RING_OFFSET;

const WORDS: usize = RING_OFFSET / 8;
/// Where the words lie, in bytes (docs/promotion.md, section 2).
const AWARE: usize = 12;
const ARMED: usize = 64;
const ENDED: usize = 68;
const RUNS_PUBLISHED: usize = 128;
const RUNS_PASSED: usize = 132;
const RECORDS: usize = 192;
const RECORD_PLACES: u32 = 8;
const SENT_DATA: usize = 384;
const WAKE_UPS: usize = 400;
const CONSUMED_DATA: usize = 408;
const TAIL: usize = 1024;
const BASE: usize = 1032;
const HEAD: usize = 1040;
const ASLEEP: usize = 64;

/// Lives as long as the process: machines hold its addresses, and one is enough for a search.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    regions: [NonNull<u8>; 2],
    pages: [NonNull<u8>; 2],
}

/// The words as they were at some moment.
#[derive(Clone)]
pub(crate) struct Words {
    headers: [[u64; WORDS]; 2],
    asleep: [u32; 2],
}

impl Memory {
    pub(crate) fn new() -> Memory {
        let allocate = |size: usize, head: &[u8]| {
            let layout = Layout::from_size_align(size, 4096).unwrap();
            // SAFETY: the size is not 0, and `head` is shorter.
            unsafe {
                let start = NonNull::new(alloc_zeroed(layout)).unwrap();
                start.as_ptr().copy_from_nonoverlapping(head.as_ptr(), head.len());
                start
            }
        };
        Memory {
            regions: [(); 2].map(|()| allocate(MIN_SIZE, &format_region(MIN_SIZE).unwrap())),
            pages: [(); 2].map(|()| allocate(LOOP_PAGE_SIZE, &format_loop_page())),
        }
    }

    pub(crate) fn regions(&self, side: usize) -> (Region, PeerRegion) {
        // SAFETY: the memory is never freed, and reached by address only.
        unsafe {
            (
                Region::new(self.regions[side], MIN_SIZE).unwrap(),
                PeerRegion::new(self.regions[1 - side], MIN_SIZE).unwrap(),
            )
        }
    }

    pub(crate) fn pages(&self, side: usize) -> (LoopPage, PeerLoop) {
        // SAFETY: as above.
        unsafe { (LoopPage::new(self.pages[side]).unwrap(), PeerLoop::new(self.pages[1 - side]).unwrap()) }
    }

    pub(crate) fn words(&self) -> Words {
        // SAFETY: both lie in the memory, which nothing writes meanwhile.
        unsafe {
            Words {
                headers: self.regions.map(|region| region.cast().read()),
                asleep: self.pages.map(|page| page.add(ASLEEP).cast().read()),
            }
        }
    }

    pub(crate) fn put_back(&self, words: &Words) {
        for side in [0, 1] {
            // SAFETY: as above.
            unsafe {
                self.regions[side].cast().write(words.headers[side]);
                self.pages[side].add(ASLEEP).cast().write(words.asleep[side]);
            }
        }
    }

    /// Whether `bytes` are at the place of those from ring count `count` on, in the ring
    /// of `side`.
    pub(crate) fn holds(&self, side: usize, count: u64, bytes: &[u8]) -> bool {
        let (first, second) = self.places(side, count, bytes.len());
        *first == bytes[..first.len()] && *second == bytes[first.len()..]
    }

    /// Puts them there.
    pub(crate) fn put(&self, side: usize, count: u64, bytes: &[u8]) {
        let (first, second) = self.places(side, count, bytes.len());
        first.copy_from_slice(&bytes[..first.len()]);
        second.copy_from_slice(&bytes[first.len()..]);
    }

    #[allow(clippy::mut_from_ref)]
    fn places(&self, side: usize, count: u64, len: usize) -> (&mut [u8], &mut [u8]) {
        // SAFETY: both runs lie in the ring and apart; callers use them at once, while no
        // machine is at work.
        unsafe {
            let base = self.regions[side].add(BASE).cast::<u64>().read();
            let at = ((count - base) % RING as u64) as usize;
            let ring = self.regions[side].as_ptr().add(RING_OFFSET);
            let first = len.min(RING - at);
            (
                std::slice::from_raw_parts_mut(ring.add(at), first),
                std::slice::from_raw_parts_mut(ring, len - first),
            )
        }
    }

    /// Declares an endpoint aware that is not.
    pub(crate) fn pretend_aware(&self, side: usize) {
        // SAFETY: inside the region.
        unsafe { self.regions[side].add(AWARE).cast::<u32>().write(1) };
    }
}

impl Words {
    fn long(&self, side: usize, offset: usize) -> u64 {
        self.headers[side][offset / 8]
    }

    fn word(&self, side: usize, offset: usize) -> u32 {
        (self.long(side, offset) >> (offset % 8 * 8)) as u32
    }

    pub(crate) fn tail(&self, side: usize) -> u64 {
        self.long(side, TAIL)
    }

    /// The part of a side's words that decides what comes next. Of arming numbers that is
    /// whether they are equal: the next is always a new one.
    pub(crate) fn hash_side(&self, side: usize, hasher: &mut impl Hasher) {
        let armed = self.word(side, ARMED);
        let woken_for = self.word(1 - side, WAKE_UPS);
        let (published, passed) = (self.word(side, RUNS_PUBLISHED), self.word(1 - side, RUNS_PASSED));
        let flags = u64::from(self.word(side, AWARE)) << 32
            | u64::from(armed != 0) << 2
            | u64::from(armed == woken_for) << 1
            | u64::from(self.word(side, ENDED));
        hasher.write_u64(flags);
        hasher.write_u64(u64::from(published) << 32 | u64::from(passed));
        for record in passed..published {
            let place = RECORDS + (record % RECORD_PLACES) as usize * 16;
            hasher.write_u64(self.long(side, place));
            hasher.write_u64(self.long(side, place + 8));
        }
        for offset in [TAIL, BASE, HEAD, SENT_DATA, SENT_DATA + 8, CONSUMED_DATA, CONSUMED_DATA + 8] {
            hasher.write_u64(self.long(side, offset));
        }
        (self.asleep[side] != 0).hash(hasher);
    }
}
