//! The buffers that the kernel has at hand for reads.
//!
//! The kernel uses its buffers in turn, the pool gives out the last used first: a small
//! stock keeps the same few buffers, and their cache lines, in use.
#![allow(unsafe_code)] // buffers are lent to the kernel by address

use std::io;

use sys::uring::{BufferRing, Ring};

use crate::buffer::Pool;
use crate::engine::view::View;

/// The one group of provided buffers.
pub(super) const BUFFER_GROUP: u16 = 0;

/// Buffers in stock at first; doubled when they run out while the pool has more.
const LEVEL: usize = 256;

pub(super) struct Stock {
    ring: BufferRing,
    /// How many buffers to keep in stock.
    level: usize,
}

impl Stock {
    pub(super) fn new(ring: &Ring, pool: &Pool) -> io::Result<Stock> {
        let ring = BufferRing::new(ring, BUFFER_GROUP, pool.count())?;
        Ok(Stock { ring, level: LEVEL.min(pool.count().into()) })
    }

    /// Fills the stock up from the pool's free buffers.
    #[inline]
    pub(super) fn refill(&mut self, view: &mut View<'_>) {
        if view.stocked() >= self.level || view.read_pool().free_count() == 0 {
            return;
        }
        while view.stocked() < self.level
            && let Some(id) = view.stock_buffer()
        {
            let pool = view.read_pool();
            // SAFETY: `id` was free, so no `Buffer` shows it, and it becomes one again only
            // when the kernel reports it filled. The engine is dropped before the pool, or
            // the pool is leaked.
            unsafe { self.ring.provide(id, pool.address(id), pool.buffer_size()) };
        }
        self.ring.publish();
    }

    /// The kernel found nothing in stock.
    pub(super) fn ran_out(&mut self, view: &View<'_>) {
        if view.read_pool().free_count() > 0 {
            self.level = (self.level * 2).min(view.read_pool().count().into());
        }
    }
}
