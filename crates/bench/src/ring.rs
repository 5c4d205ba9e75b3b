//! How the client and the hand-written server set up io_uring, so that neither has what the other lacks.

use std::io;

use io_uring::{Builder, IoUring, Submitter};
use sys::mapping::Mapping;
use sys::uring;

/// A ring of one thread with deferred task work and room for so many completions (io_uring_setup(2)).
pub(crate) fn builder(completions: u32) -> Builder {
    let mut builder = IoUring::builder();
    builder
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_submit_all()
        .setup_no_sqarray()
        .setup_clamp()
        .setup_cqsize(completions.next_power_of_two());
    builder
}

/// A registered ring of buffers from which the kernel takes one as data arrives (io_uring_register_buf_ring(3)), and
/// whose content nobody reads: the benchmark only counts bytes.
///
/// It must be dropped after its io_uring instance, or once nothing that receives is pending.
pub(crate) struct BufferRing {
    ring: uring::BufferRing,
    memory: Mapping,
    length: usize,
}

impl BufferRing {
    /// Registers buffers as group `group`.
    pub(crate) fn register(submitter: &Submitter<'_>, group: u16, size: BufferSize) -> io::Result<Self> {
        let BufferSize { length, count } = size;
        let mut buffers = Self {
            ring: uring::BufferRing::of(submitter, group, count)?,
            memory: Mapping::anonymous(usize::from(count) * length)?,
            length,
        };
        for buffer in 0..count {
            buffers.give_back(buffer);
        }
        buffers.publish();
        Ok(buffers)
    }

    /// Queues a buffer for reuse; the kernel sees it after [`publish`](Self::publish).
    pub(crate) fn give_back(&mut self, buffer: u16) {
        // SAFETY: `buffer` is one of those that were registered, so it lies within the memory, which lives as long
        // as the kernel uses it; see the type.
        unsafe {
            let address = self.memory.address().add(usize::from(buffer) * self.length);
            self.ring.provide(buffer, address, self.length as u32);
        }
    }

    /// Shows the kernel what was given back.
    pub(crate) fn publish(&mut self) {
        self.ring.publish();
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
