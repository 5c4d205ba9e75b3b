//! The memory of a connection for the model checker, which tracks every byte of the ring
//! and reports copies that the orderings do not separate.
#![allow(unsafe_code)]

use std::sync::Arc;

use loom::cell::UnsafeCell;

use crate::layout::{Header, LoopHeader};

#[derive(Debug)]
struct Shared {
    header: Header,
    ring: Vec<UnsafeCell<u8>>,
}

impl Shared {
    fn copy_out(&self, index: usize, bytes: &mut [u8]) -> usize {
        let length = self.ring.len();
        for (place, byte) in (index..).zip(bytes.iter_mut()) {
            // SAFETY: the checker reports any concurrent write.
            *byte = self.ring[place % length].with(|cell| unsafe { *cell });
        }
        (index + bytes.len()) % length
    }
}

/// This endpoint's own region.
#[derive(Clone, Debug)]
pub struct Region(Arc<Shared>);

/// The peer's region.
#[derive(Clone, Debug)]
pub struct PeerRegion(Arc<Shared>);

impl Region {
    /// A region, and the peer's view of it.
    pub(crate) fn model(ring_length: usize) -> (Region, PeerRegion) {
        let ring = (0..ring_length).map(|_| UnsafeCell::new(0)).collect();
        let shared = Arc::new(Shared { header: Header::default(), ring });
        (Region(shared.clone()), PeerRegion(shared))
    }

    pub(crate) fn header(&self) -> &Header {
        &self.0.header
    }

    /// Bytes of the ring.
    pub fn ring_length(&self) -> usize {
        self.0.ring.len()
    }

    pub(crate) fn copy_in(&self, index: usize, bytes: &[u8]) -> usize {
        let length = self.ring_length();
        for (place, byte) in (index..).zip(bytes) {
            // SAFETY: the checker reports any concurrent access.
            self.0.ring[place % length].with_mut(|cell| unsafe { *cell = *byte });
        }
        (index + bytes.len()) % length
    }

    pub(crate) fn copy_out(&self, index: usize, bytes: &mut [u8]) -> usize {
        self.0.copy_out(index, bytes)
    }
}

impl PeerRegion {
    pub(crate) fn prefetch_second_line(&self) {}

    pub(crate) fn header(&self) -> &Header {
        &self.0.header
    }

    /// Bytes of the ring.
    pub fn ring_length(&self) -> usize {
        self.0.ring.len()
    }

    pub(crate) fn copy_out(&self, index: usize, bytes: &mut [u8]) -> usize {
        self.0.copy_out(index, bytes)
    }
}

/// A loop page.
#[derive(Clone, Debug)]
pub(crate) struct PageMemory(Arc<LoopHeader>);

impl PageMemory {
    pub(crate) fn model() -> PageMemory {
        PageMemory(Arc::new(LoopHeader::default()))
    }

    pub(crate) fn header(&self) -> &LoopHeader {
        &self.0
    }
}
