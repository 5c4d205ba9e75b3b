//! Copies of ring bytes in the kernel, so that the kernel has the whole stream. Needed
//! where the peer may hand the connection over before it read them, and they could not be
//! resent by then, or not in order.

use super::Sender;
use crate::Corrupt;
use crate::layout::COPIES_MOST;
use crate::runs::{self, Path};
use crate::sync::Ordering;

impl Sender {
    /// Announces copies of the ring bytes that the peer did not consume; returns how
    /// many. All of them have to be given to the kernel next ([`Sender::peek_copies`],
    /// [`Sender::copied`], [`Sender::end_copies`]), and nothing goes through the ring
    /// until they are consumed. 0: there are none, they would not follow the kernel's
    /// bytes, or copies of some exist. To be called after [`Sender::may_wake`] has
    /// permitted it.
    ///
    /// # Errors
    /// The peer consumed bytes that were never sent.
    #[cold]
    pub fn announce_copies(&mut self) -> Result<usize, Corrupt> {
        if self.path() != Path::Ring {
            return Ok(0);
        }
        let unconsumed = self.unconsumed()?;
        let own = self.own.header();
        let run = self.stream().wrapping_sub(runs::run_start(own, self.runs.wrapping_sub(1)));
        let all_consumed = self.head >= own.copied_tail.load(Ordering::Relaxed);
        if unconsumed == 0 || unconsumed as u64 > run || !all_consumed {
            return Ok(0);
        }
        let number = own.copied.load(Ordering::Relaxed) & !COPIES_MOST;
        let number = number.wrapping_add(COPIES_MOST + 1);
        own.copied.store(number, Ordering::Relaxed);
        // COPY-PAIR: release that the words change.
        own.copied_at.store(self.tcp, Ordering::Release);
        own.copied_tail.store(self.tail, Ordering::Release);
        // COPY-PAIR: release their position. No ring is longer than `COPIES_MOST`.
        own.copied.store(number | unconsumed as u32, Ordering::Release);
        Ok(unconsumed)
    }

    /// Reads the first of the last `left` copies; returns how many bytes that is.
    pub fn peek_copies(&self, left: usize, bytes: &mut [u8]) -> usize {
        let left = left.min(self.own.ring_length());
        let count = left.min(bytes.len());
        self.copy_last(left, &mut bytes[..count]);
        count
    }

    /// The kernel accepted `count` more copies.
    #[cold]
    pub fn copied(&mut self, count: usize) {
        self.tcp = self.tcp.wrapping_add(count as u64);
        // COUNT-PAIR: as for wake-up bytes, which they are to a receiver that consumes
        // the ring.
        self.own.header().sent.tcp.store(self.tcp, Ordering::Release);
    }

    /// The kernel gets no more copies; fewer than `all` are useless.
    #[cold]
    pub fn end_copies(&mut self, all: bool) {
        if !all {
            self.forget_copies();
        }
        // COPY-PAIR: release whether all are there.
        self.kernel_refused();
    }

    /// They count as ordinary wake-up bytes from here on.
    pub(super) fn forget_copies(&self) {
        let copied = &self.own.header().copied;
        copied.store(copied.load(Ordering::Relaxed) & !COPIES_MOST, Ordering::Relaxed);
    }

    /// Whether the kernel has copies of all unread ring bytes.
    pub(super) fn has_copied(&self, unconsumed: usize) -> bool {
        let own = self.own.header();
        let copied = (own.copied.load(Ordering::Relaxed) & COPIES_MOST) as usize;
        copied > 0 && unconsumed <= copied && own.copied_tail.load(Ordering::Relaxed) == self.tail
    }
}
