//! What a sender does once one of the two ends has left the rings to somebody who knows of none: it sends again what the
//! other end did not take, or gives back what it did not take itself.

use super::Sender;
use crate::Corrupt;
use crate::layout::{FINISHED, GAVE_BACK, LEFT_BOTH, REFUSED, WANTS_BACK};
use crate::parts::Lane;
use crate::sync::Ordering;

impl Sender {
    /// The other end has left: how many bytes of the ring it did not take, which the kernel is to
    /// get now, before any others ([`Sender::peek_owed`], [`Sender::sent_again`]).
    ///
    /// # Errors
    /// The other end has taken what was never sent, or bytes that it did not take lie before
    /// others that the kernel has.
    #[cold]
    pub fn recall(&mut self) -> Result<usize, Corrupt> {
        // LEAVE-PAIR: acquire the last head.
        if self.peer.header().left.load(Ordering::Acquire) == 0 {
            return Ok(0);
        }
        match self.own.header().owes.load(Ordering::Relaxed) {
            0 => {}
            REFUSED => return Ok(0),
            WANTS_BACK => return Err(Corrupt::Left),
            owes => return Ok((owes as usize - 1).min(self.own.ring_length())),
        }
        let owes = self.untaken_by_kernel()?;
        if self.peer.header().left.load(Ordering::Relaxed) == LEFT_BOTH || self.is_in_both(owes) {
            self.refuse();
            // Behind FIN the other end puts an heir in its place.
            return if self.is_finished() { Ok(0) } else { Err(Corrupt::Left) };
        }
        // The other end reads records no more; where this part begins is nobody's business.
        if self.lane() == Lane::Ring && !self.open_tcp()? {
            return Err(Corrupt::PartsTaken);
        }
        self.owes(owes);
        Ok(owes)
    }

    /// Bytes of the ring that the other end did not take, if they are not in the kernel, too.
    fn untaken_by_kernel(&mut self) -> Result<usize, Corrupt> {
        self.untaken().map(|untaken| if self.has_copied(untaken) { 0 } else { untaken })
    }

    /// Whether such bytes are followed by others that the kernel has.
    fn is_in_both(&self, untaken: usize) -> bool {
        untaken > 0 && self.lane() == Lane::Tcp && self.tcp != self.tcp_start
    }

    fn is_finished(&self) -> bool {
        self.own.header().at_kernel.load(Ordering::Relaxed) == FINISHED
    }

    /// Whether the other end, which has left, is to give back what it did not take, since that lies in both lanes: asks it
    /// to. Then nothing may be given to the kernel, nor to the ring, until [`Sender::get_back`] has it all. To be asked
    /// before [`Sender::recall`], which refuses such bytes, and only while no call of the kernel is under way.
    ///
    /// # Errors
    /// The other end has taken what was never sent.
    #[cold]
    pub fn wants_back(&mut self) -> Result<bool, Corrupt> {
        match self.own.header().owes.load(Ordering::Relaxed) {
            WANTS_BACK => return Ok(true),
            0 if self.peer_left() => {}
            _ => return Ok(false),
        }
        // RETURN-PAIR: acquire the head first, which moves on once `left` says that all comes back.
        let untaken = self.untaken_by_kernel()?;
        let left = self.peer.header().left.load(Ordering::Relaxed);
        // Who sends nothing more may have been left by then.
        let wants = !self.is_finished() && (left == LEFT_BOTH || self.is_in_both(untaken));
        if wants {
            // RETURN-PAIR: release how much was sent in all.
            self.own.header().owes.store(WANTS_BACK, Ordering::Release);
        }
        Ok(wants)
    }

    /// Appends what the other end has given back to `bytes`. True: that was all, and goes to the kernel before anything
    /// else.
    ///
    /// # Errors
    /// The other end gives more at once than its ring holds, or more than was ever sent.
    #[cold]
    pub fn get_back(&mut self, bytes: &mut Vec<u8>) -> Result<bool, Corrupt> {
        let (own, peer) = (self.own.header(), self.peer.header());
        // RETURN-PAIR: acquire the last bytes.
        let all = peer.left.load(Ordering::Acquire) == GAVE_BACK;
        // RETURN-PAIR: acquire these bytes.
        let given = peer.given_back.load(Ordering::Acquire);
        let got = own.got_back.load(Ordering::Relaxed);
        let count = given.wrapping_sub(got) as usize;
        if count > self.peer.ring_length() || given > self.stream() {
            return Err(Corrupt::GivenBack);
        }
        let behind_base = peer.tail.load(Ordering::Relaxed).wrapping_sub(peer.base.load(Ordering::Relaxed));
        let index = (behind_base % self.peer.ring_length() as u64) as usize;
        let before = bytes.len();
        bytes.resize(before + count, 0);
        self.peer.copy_out(index, &mut bytes[before..]);
        // RETURN-PAIR: release the end of the copying.
        own.got_back.store(given, Ordering::Release);
        if all {
            self.owes(0);
        }
        Ok(all)
    }

    /// Gives some of `bytes` back to the other end, which sent them, in the free part of this end's ring, which sends
    /// nothing more; returns how many: none while that has not taken those before.
    ///
    /// # Errors
    /// The other end took what was never given; or the ring is full of bytes that it has not read.
    #[cold]
    pub fn give_back(&mut self, bytes: &[u8]) -> Result<usize, Corrupt> {
        let given = self.own.header().given_back.load(Ordering::Relaxed);
        // RETURN-PAIR: acquire the end of the copying.
        if self.peer.header().got_back.load(Ordering::Acquire) != given {
            return Ok(0);
        }
        let count = self.refresh()?.min(bytes.len());
        if count == 0 {
            return Err(Corrupt::Left);
        }
        self.own.copy_in(self.index, &bytes[..count]);
        // RETURN-PAIR: release these bytes.
        self.own.header().given_back.store(given.wrapping_add(count as u64), Ordering::Release);
        Ok(count)
    }

    /// This end leaves, and the other has not: what that does not take is lost if it leaves later, too.
    pub fn refuse(&self) {
        // LEAVE-PAIR: one who leaves waits for this, or for bytes that are sent again.
        self.own.header().owes.store(REFUSED, Ordering::Release);
    }

    fn owes(&self, count: usize) {
        // LEAVE-PAIR: release the part that was opened for them.
        self.own.header().owes.store(count as u32 + 1, Ordering::Release);
    }

    /// Copies the first of the bytes that are owed; returns how many.
    ///
    /// # Errors
    /// As for [`Sender::recall`].
    pub fn peek_owed(&mut self, bytes: &mut [u8]) -> Result<usize, Corrupt> {
        let owes = self.recall()?;
        let count = owes.min(bytes.len());
        // `recall` keeps it within the ring's length.
        self.copy_last(owes, &mut bytes[..count]);
        Ok(count)
    }

    /// Copies the first of the last `count` bytes of the ring, which are no more than its length.
    pub(super) fn copy_last(&self, count: usize, bytes: &mut [u8]) {
        let index = self.index + self.own.ring_length() - count;
        let index = if index < self.own.ring_length() { index } else { index - self.own.ring_length() };
        self.own.copy_out(index, bytes);
    }

    /// The kernel took `count` of the bytes that were owed.
    ///
    /// # Errors
    /// As for [`Sender::recall`].
    pub fn sent_again(&mut self, count: usize) -> Result<(), Corrupt> {
        let owes = self.recall()?;
        self.owes(owes.saturating_sub(count));
        Ok(())
    }
}
