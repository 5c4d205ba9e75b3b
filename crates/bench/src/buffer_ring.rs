//! Buffers from which the kernel takes one as data arrives (io_uring_register_buf_ring(3)).

use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::Submitter;
use io_uring::types::BufRingEntry;
use sys::mapping::Mapping;

/// A registered ring of buffers whose content nobody reads: the benchmark only counts bytes.
///
/// It must be dropped after its io_uring instance, or once nothing that receives is pending.
pub(crate) struct BufferRing {
    ring: Mapping,
    memory: Mapping,
    length: usize,
    mask: u16,
    tail: u16,
}

impl BufferRing {
    /// Registers buffers as group `group`.
    pub(crate) fn register(submitter: &Submitter<'_>, group: u16, size: BufferSize) -> io::Result<Self> {
        let BufferSize { length, count } = size;
        let mut buffers = Self {
            ring: Mapping::anonymous(usize::from(count) * size_of::<BufRingEntry>())?,
            memory: Mapping::anonymous(usize::from(count) * length)?,
            length,
            mask: count - 1,
            tail: 0,
        };
        let address = buffers.ring.address() as u64;
        // SAFETY: the mappings live as long as the kernel uses them; see the type.
        unsafe { submitter.register_buf_ring_with_flags(address, count, group, 0)? };
        for buffer in 0..count {
            buffers.give_back(buffer);
        }
        buffers.publish();
        Ok(buffers)
    }

    /// Queues a buffer for reuse; the kernel sees it after [`publish`](Self::publish).
    pub(crate) fn give_back(&mut self, buffer: u16) {
        let index = usize::from(self.tail & self.mask);
        let ring = self.ring.address().cast::<BufRingEntry>();
        // SAFETY: `index` is within the ring and `buffer` within the memory; the kernel reads an
        // entry only once the tail is past it.
        unsafe {
            let entry = &mut *ring.add(index);
            let address = self.memory.address().add(usize::from(buffer) * self.length);
            entry.set_addr(address as u64);
            entry.set_len(self.length as u32);
            entry.set_bid(buffer);
        }
        self.tail = self.tail.wrapping_add(1);
    }

    /// Shows the kernel what was given back.
    pub(crate) fn publish(&self) {
        let ring = self.ring.address().cast::<BufRingEntry>();
        // SAFETY: the tail lies within the ring's first entry, aligned for u16, and is shared with
        // the kernel, which reads it with acquire ordering.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(ring).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }
}

/// What a pool of receive buffers is best made of.
///
/// The kernel goes round in the pool, so all of it should stay in the cache: with 1024 buffers of 4
/// KiB for messages of 64 B, a transaction costs 4 to 5 % more than with 256 buffers of 256 B.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BufferSize {
    /// Bytes of one buffer.
    pub(crate) length: usize,
    /// A power of two.
    pub(crate) count: u16,
}

impl BufferSize {
    /// For messages of `size` bytes: one buffer for each connection, as far as the cache goes.
    pub(crate) fn of(size: usize, connections: usize) -> Self {
        let length = size.next_power_of_two().clamp(256, 16 << 10);
        let count = connections.next_power_of_two().min(CACHED_BYTES / length).clamp(16, 16_384);
        Self { length, count: count as u16 }
    }
}

/// What all buffers together may take of the cache.
const CACHED_BYTES: usize = 1 << 20;
