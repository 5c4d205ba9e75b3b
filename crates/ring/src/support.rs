//! Memory of two endpoints, for tests: on the heap, where miri checks every access.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use crate::layout::{LOOP_PAGE_SIZE, MIN_SIZE, format_loop_page, format_region};
use crate::{Endpoint, LoopPage, PeerLoop, PeerRegion, Region};

/// Zeroed memory that begins with `head`.
struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

impl Memory {
    fn new(size: usize, head: &[u8]) -> Memory {
        let layout = Layout::from_size_align(size, 4096).unwrap();
        // SAFETY: the size is not 0, and `head` is shorter.
        let start = unsafe {
            let start = NonNull::new(alloc_zeroed(layout)).unwrap();
            start.as_ptr().copy_from_nonoverlapping(head.as_ptr(), head.len());
            start
        };
        Memory { start, layout }
    }

    fn region() -> Memory {
        Memory::new(MIN_SIZE, &format_region(MIN_SIZE).unwrap())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: with the layout of its allocation; `Pair` drops the halves first.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Two endpoints and their loops.
pub(crate) struct Pair {
    pub(crate) endpoints: [Endpoint; 2],
    pub(crate) pages: [LoopPage; 2],
    /// Each endpoint's view of the peer's loop.
    pub(crate) peers: [PeerLoop; 2],
    /// Declared last, as it is dropped last.
    memory: [[Memory; 2]; 2],
}

impl Pair {
    pub(crate) fn new() -> Pair {
        let regions = [Memory::region(), Memory::region()];
        let loops = [(); 2].map(|()| Memory::new(LOOP_PAGE_SIZE, &format_loop_page()));
        // SAFETY: `Pair` keeps all memory until its endpoints are dropped.
        let endpoints = [0, 1].map(|endpoint| unsafe {
            let own = Region::new(regions[endpoint].start, MIN_SIZE).unwrap();
            let peer = PeerRegion::new(regions[1 - endpoint].start, MIN_SIZE).unwrap();
            Endpoint::new(own, peer).unwrap()
        });
        // SAFETY: as above.
        let pages = [0, 1].map(|endpoint| unsafe { LoopPage::new(loops[endpoint].start).unwrap() });
        // SAFETY: as above.
        let peers = [0, 1].map(|endpoint| unsafe { PeerLoop::new(loops[1 - endpoint].start).unwrap() });
        Pair { endpoints, pages, peers, memory: [regions, loops] }
    }

    /// Both directions use their ring from the first byte on.
    pub(crate) fn in_ring() -> Pair {
        let mut pair = Pair::new();
        pair.endpoints.iter().for_each(|endpoint| endpoint.receiver.mark_aware());
        pair.endpoints.iter_mut().for_each(|endpoint| assert!(endpoint.sender.open_ring().unwrap()));
        pair
    }

    /// The position at which an endpoint writes next, if it does not wrap.
    pub(crate) fn ring_position(&self, endpoint: usize) -> u64 {
        let word = |offset: usize| {
            // SAFETY: inside the allocation, on the thread that uses the endpoints.
            unsafe { self.memory[0][endpoint].start.add(offset).cast::<u64>().read() }
        };
        word(1024) - word(1032)
    }
}
