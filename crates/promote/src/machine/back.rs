//! The way back to the kernel connection: an end leaves the rings for somebody who has only that.

use ring::{Corrupt, Lane, Leaving};

use super::Machine;

impl Machine {
    /// What the other end did not take from the ring is to be given to the kernel, too, for those to whom that may hand the
    /// connection: so many bytes, which [`Self::peek_copies`] reads. Unless that is 0 [`Self::copied`] follows, and nothing goes
    /// through the ring until they are taken. 0: there are none, or the other end has left or ended.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    #[cold]
    pub fn announce_copies(&mut self) -> Result<usize, Corrupt> {
        let sender = &mut self.end.sender;
        if sender.lane() != Lane::Ring || sender.untaken()? == 0 || !sender.may_ring() {
            return Ok(0);
        }
        let copies = sender.announce_copies();
        if !matches!(copies, Ok(1..)) {
            sender.kernel_refused();
        }
        copies
    }

    /// Whether copies are due before a [`Self::spill`]: the other end may be about to hand the connection over, which few do,
    /// and early. True once.
    pub fn is_first_spill(&mut self) -> bool {
        std::mem::replace(&mut self.is_young, false)
    }

    /// See [`ring::Sender::peek_copies`].
    pub fn peek_copies(&self, left: usize, bytes: &mut [u8]) -> usize {
        self.end.sender.peek_copies(left, bytes)
    }

    /// The kernel took so many more of them. [`Self::end_copies`] follows the last.
    pub fn copied(&mut self, count: usize) {
        self.end.sender.copied(count);
    }

    /// See [`ring::Sender::end_copies`].
    pub fn end_copies(&mut self, all: bool) {
        self.end.sender.end_copies(all);
    }

    /// FIN is about to be sent: [`Self::recall`] has to be asked once more before.
    pub fn sends_no_more(&mut self) {
        self.end.sender.sends_no_more();
    }

    /// See [`ring::Receiver::is_given_more`].
    pub fn is_given_more(&self) -> bool {
        self.end.receiver.is_given_more()
    }

    /// Whether the other end has said that it sends nothing more.
    pub fn peer_has_finished(&self) -> bool {
        self.end.receiver.peer_has_finished()
    }

    /// Whether the other end takes nothing from the ring any more: somebody else is to see its
    /// bytes, in the kernel ([`Self::leave`]). Then [`Self::recall`] tells what to do.
    #[inline]
    pub fn peer_left(&self) -> bool {
        self.end.sender.peer_left()
    }

    /// The other end has left: how many bytes it did not take, which have to go to the kernel
    /// before anything else ([`Self::peek_owed`], [`Self::sent_again`]). `kernel_idle`: as for
    /// [`Self::send`].
    ///
    /// # Errors
    ///
    /// As for [`Self::send`]; or they cannot be sent in their order any more.
    #[cold]
    pub fn recall(&mut self, kernel_idle: bool) -> Result<usize, Corrupt> {
        self.demoted = true;
        let owes = self.end.sender.recall()?;
        if owes > 0 && !kernel_idle { Err(Corrupt::Left) } else { Ok(owes) }
    }

    /// Whether the other end, which has left, has bytes of both lanes that it did not take, and is to give them back:
    /// [`Self::get_back`] has to say that all is here before anything else is sent. To be asked before [`Self::recall`].
    /// `kernel_idle`: as for [`Self::send`]; where it is not, that refuses.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    #[cold]
    pub fn wants_back(&mut self, kernel_idle: bool) -> Result<bool, Corrupt> {
        Ok(kernel_idle && self.end.sender.wants_back()?)
    }

    /// Appends what the other end has given back to `bytes`. True: all is here, and has to go to the kernel before
    /// anything else.
    ///
    /// # Errors
    ///
    /// What was given back cannot be.
    #[cold]
    pub fn get_back(&mut self, bytes: &mut Vec<u8>) -> Result<bool, Corrupt> {
        self.demoted = true;
        self.end.sender.get_back(bytes)
    }

    /// Behind [`Leaving::GiveBack`]: whether the other end sends nothing more before it has everything back; `None`: it
    /// takes nothing back.
    pub fn is_wanted_back(&self) -> Option<bool> {
        self.end.receiver.is_wanted_back()
    }

    /// Behind [`Leaving::GiveBack`]: the stream bytes that are still to be taken, in their order.
    pub fn left_to_take(&self) -> u64 {
        self.end.receiver.left_to_take()
    }

    /// Gives back some of these bytes, which were taken then; returns how many: 0 while the other end has not got those
    /// before. After the last [`Self::gave_all_back`] follows.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`]; or there is no room, since the other end has not read what this one sent.
    #[cold]
    pub fn give_back(&mut self, bytes: &[u8]) -> Result<usize, Corrupt> {
        self.end.sender.give_back(bytes)
    }

    /// All was given back.
    pub fn gave_all_back(&self) {
        self.end.receiver.gave_all_back();
    }

    /// Copies the first of the bytes that are owed; returns how many.
    ///
    /// # Errors
    ///
    /// As for [`Self::recall`].
    pub fn peek_owed(&mut self, bytes: &mut [u8]) -> Result<usize, Corrupt> {
        self.end.sender.peek_owed(bytes)
    }

    /// The kernel took so many of the bytes that were owed.
    ///
    /// # Errors
    ///
    /// As for [`Self::recall`].
    pub fn sent_again(&mut self, count: usize) -> Result<(), Corrupt> {
        self.end.sender.sent_again(count)
    }

    /// Somebody else is to have the kernel connection, who knows of no rings and bells. The other end sends again what was
    /// not taken. [`Self::wakes_to_leave`], [`Self::end_sending`] and [`Self::leaving`] follow.
    pub fn leave(&mut self) {
        self.end.receiver.leave();
    }

    /// Whether the other end has still to send again, and sleeps perhaps: then the kernel is to be given a bell for it
    /// ([`Self::bell_was_taken`], [`Self::kernel_refused`]). `kernel_idle`: as for [`Self::send`].
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn wakes_to_leave(&mut self, kernel_idle: bool) -> Result<bool, Corrupt> {
        // Wake it only for ring bytes to send again: behind unread TCP bytes a wake-up byte would be in its way if it leaves, too.
        let receiver = &mut self.end.receiver;
        let lacks_bytes = receiver.unread().unwrap_or(true) && !receiver.is_answered();
        let sender = &mut self.end.sender;
        // What the kernel is given anyway wakes, too. Who has left would take a bell for data.
        let asleep = kernel_idle && lacks_bytes && !sender.peer_ended() && !sender.peer_left();
        Ok(asleep && sender.open_ring()? && sender.may_ring())
    }

    /// Nobody who has this end sends to the ring from here on.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn end_sending(&mut self) -> Result<(), Corrupt> {
        self.demoted = true;
        self.end.sender.keep_to_tcp();
        if self.sends_to_ring() { self.spill() } else { Ok(()) }
    }

    /// What has to be done before the kernel connection is handed over.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn leaving(&mut self) -> Result<Leaving, Corrupt> {
        self.end.receiver.leaving()
    }

    /// What [`Self::leaving`] would come to where the other end can take nothing back.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn outlook(&mut self) -> Result<Leaving, Corrupt> {
        self.end.receiver.outlook()
    }

    /// This end has left, and the other has not ([`Self::peer_left`]): what that does not take is not sent again
    /// if it leaves later.
    pub fn refuse(&mut self) {
        self.end.sender.refuse();
    }

    /// Whether a process that has this end, too, has called [`Self::leave`].
    pub fn has_left(&self) -> bool {
        self.end.receiver.has_left()
    }

    /// Whether one has called [`Self::leave`] or [`Self::reads_no_more`]: the kernel connection is all there is.
    pub fn is_over(&self) -> bool {
        self.end.receiver.is_over()
    }
}
