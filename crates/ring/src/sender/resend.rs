//! What a sender does once one of the two endpoints is demoted, for a program without
//! ring support: it resends the ring bytes that the peer did not consume, or returns the
//! bytes that it did not consume itself.

use super::Sender;
use crate::Corrupt;
use crate::layout::{DEMOTED_ON_BOTH, FINISHED, REFUSED, RETURNED_ALL, WANTS_RETURN};
use crate::runs::Path;
use crate::sync::Ordering;

impl Sender {
    /// The peer was demoted: returns how many ring bytes it did not consume. The kernel
    /// has to get these now, before any others ([`Sender::peek_owed`],
    /// [`Sender::resent`]).
    ///
    /// # Errors
    /// The peer consumed bytes that were never sent, or its unread ring bytes lie before
    /// others that the kernel has.
    #[cold]
    pub fn recall(&mut self) -> Result<usize, Corrupt> {
        // DEMOTION-PAIR: acquire the last head.
        if self.peer.header().demoted.load(Ordering::Acquire) == 0 {
            return Ok(0);
        }
        match self.own.header().owes.load(Ordering::Relaxed) {
            0 => {}
            REFUSED => return Ok(0),
            WANTS_RETURN => return Err(Corrupt::Demoted),
            owed => return Ok((owed as usize - 1).min(self.own.ring_length())),
        }
        let owed = self.unconsumed_without_copies()?;
        if self.peer.header().demoted.load(Ordering::Relaxed) == DEMOTED_ON_BOTH
            || self.is_on_both_paths(owed)
        {
            self.refuse();
            // Behind FIN the peer replaces the connection by a successor.
            return if self.is_finished() { Ok(0) } else { Err(Corrupt::Demoted) };
        }
        // The peer reads no more records; where this run begins no longer matters.
        if self.path() == Path::Ring && !self.open_tcp()? {
            return Err(Corrupt::RunsPassed);
        }
        self.set_owed(owed);
        Ok(owed)
    }

    /// Ring bytes that the peer did not consume, unless the kernel has copies of them.
    fn unconsumed_without_copies(&mut self) -> Result<usize, Corrupt> {
        self.unconsumed().map(|unconsumed| if self.has_copied(unconsumed) { 0 } else { unconsumed })
    }

    /// Whether unread ring bytes are followed by others that the kernel has.
    fn is_on_both_paths(&self, unconsumed: usize) -> bool {
        unconsumed > 0 && self.path() == Path::Tcp && self.tcp != self.tcp_start
    }

    fn is_finished(&self) -> bool {
        self.own.header().at_kernel.load(Ordering::Relaxed) == FINISHED
    }

    /// Requests the return of the bytes that the demoted peer did not consume, if they
    /// lie on both paths; true if it was requested. Then nothing may be given to the
    /// kernel or the ring until [`Sender::accept_returned`] has it all. To be called before
    /// [`Sender::recall`], which refuses such bytes, and only while no kernel call is in
    /// progress.
    ///
    /// # Errors
    /// The peer consumed bytes that were never sent.
    #[cold]
    pub fn wants_return(&mut self) -> Result<bool, Corrupt> {
        match self.own.header().owes.load(Ordering::Relaxed) {
            WANTS_RETURN => return Ok(true),
            0 if self.peer_is_demoted() => {}
            _ => return Ok(false),
        }
        // RETURN-PAIR: acquire the head first: it moves on once `left` announces the
        // return.
        let unconsumed = self.unconsumed_without_copies()?;
        let left = self.peer.header().demoted.load(Ordering::Relaxed);
        // An endpoint that sends nothing more may have been demoted by then.
        let wants = !self.is_finished() && (left == DEMOTED_ON_BOTH || self.is_on_both_paths(unconsumed));
        if wants {
            // RETURN-PAIR: release the count of all bytes sent.
            self.own.header().owes.store(WANTS_RETURN, Ordering::Release);
        }
        Ok(wants)
    }

    /// Appends the bytes that the peer has returned to `bytes`. True: these were the
    /// last; all of them go to the kernel before anything else.
    ///
    /// # Errors
    /// The peer returned more at once than its ring holds, or more than was ever sent.
    #[cold]
    pub fn accept_returned(&mut self, bytes: &mut Vec<u8>) -> Result<bool, Corrupt> {
        let (own, peer) = (self.own.header(), self.peer.header());
        // RETURN-PAIR: acquire the last bytes.
        let all = peer.demoted.load(Ordering::Acquire) == RETURNED_ALL;
        // RETURN-PAIR: acquire these bytes.
        let given = peer.returned.load(Ordering::Acquire);
        let got = own.returned_accepted.load(Ordering::Relaxed);
        let count = given.wrapping_sub(got) as usize;
        if count > self.peer.ring_length() || given > self.stream() {
            return Err(Corrupt::Returned);
        }
        let behind_base = peer.tail.load(Ordering::Relaxed).wrapping_sub(peer.base.load(Ordering::Relaxed));
        let index = (behind_base % self.peer.ring_length() as u64) as usize;
        let before = bytes.len();
        bytes.resize(before + count, 0);
        self.peer.copy_out(index, &mut bytes[before..]);
        // RETURN-PAIR: release our copying.
        own.returned_accepted.store(given, Ordering::Release);
        if all {
            self.set_owed(0);
        }
        Ok(all)
    }

    /// Returns some of `bytes` to the peer, which sent them, in the free part of this
    /// endpoint's ring, which sends nothing more. Returns the number of bytes: 0 while
    /// the peer has not read the previous ones.
    ///
    /// # Errors
    /// The peer read bytes that were never returned; or the ring is full of unread bytes.
    #[cold]
    pub fn return_bytes(&mut self, bytes: &[u8]) -> Result<usize, Corrupt> {
        let given = self.own.header().returned.load(Ordering::Relaxed);
        // RETURN-PAIR: acquire the peer's copying.
        if self.peer.header().returned_accepted.load(Ordering::Acquire) != given {
            return Ok(0);
        }
        let count = self.refresh()?.min(bytes.len());
        if count == 0 {
            return Err(Corrupt::Demoted);
        }
        self.own.copy_in(self.index, &bytes[..count]);
        // RETURN-PAIR: release these bytes.
        self.own.header().returned.store(given.wrapping_add(count as u64), Ordering::Release);
        Ok(count)
    }

    /// This endpoint is demoted before the peer: the peer's unread bytes are lost if it
    /// is demoted later, too.
    pub fn refuse(&self) {
        // DEMOTION-PAIR: a peer that is demoted waits for this, or for bytes that are
        // resent.
        self.own.header().owes.store(REFUSED, Ordering::Release);
    }

    fn set_owed(&self, count: usize) {
        // DEMOTION-PAIR: release the run that was opened for them.
        self.own.header().owes.store(count as u32 + 1, Ordering::Release);
    }

    /// Copies the first of the owed bytes; returns how many.
    ///
    /// # Errors
    /// As for [`Sender::recall`].
    pub fn peek_owed(&mut self, bytes: &mut [u8]) -> Result<usize, Corrupt> {
        let owed = self.recall()?;
        let count = owed.min(bytes.len());
        // `recall` bounds it by the ring's length.
        self.copy_last(owed, &mut bytes[..count]);
        Ok(count)
    }

    /// Copies the first of the last `count` ring bytes, which are at most the ring's
    /// length.
    pub(super) fn copy_last(&self, count: usize, bytes: &mut [u8]) {
        let index = self.index + self.own.ring_length() - count;
        let index = if index < self.own.ring_length() { index } else { index - self.own.ring_length() };
        self.own.copy_out(index, bytes);
    }

    /// The kernel accepted `count` of the owed bytes.
    ///
    /// # Errors
    /// As for [`Sender::recall`].
    pub fn resent(&mut self, count: usize) -> Result<(), Corrupt> {
        let owed = self.recall()?;
        self.set_owed(owed.saturating_sub(count));
        Ok(())
    }
}
