//! Demotion to the kernel connection, for a program that has only that.

use ring::{Corrupt, Lane, Leaving};

use super::Machine;

impl Machine {
    /// Announces copies of the unread ring bytes for the kernel, for programs to which
    /// the peer may hand the connection. Returns how many, to be read with
    /// [`Self::peek_copies`]; unless that is 0, [`Self::copied`] follows, and nothing
    /// goes through the ring until they are consumed. 0: there are none, or the peer was
    /// demoted or ended.
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

    /// Whether copies are due before a [`Self::spill`]: the peer may be about to hand the
    /// connection over, which few do, and early. True once.
    pub fn is_first_spill(&mut self) -> bool {
        std::mem::replace(&mut self.never_spilled, false)
    }

    /// See [`ring::Sender::peek_copies`].
    pub fn peek_copies(&self, left: usize, bytes: &mut [u8]) -> usize {
        self.end.sender.peek_copies(left, bytes)
    }

    /// The kernel accepted `count` more of them. [`Self::end_copies`] follows the last.
    pub fn copied(&mut self, count: usize) {
        self.end.sender.copied(count);
    }

    /// See [`ring::Sender::end_copies`].
    pub fn end_copies(&mut self, all: bool) {
        self.end.sender.end_copies(all);
    }

    /// FIN is about to be sent: [`Self::recall`] has to be called once more before.
    pub fn sends_no_more(&mut self) {
        self.end.sender.sends_no_more();
    }

    /// See [`ring::Receiver::is_given_more`].
    pub fn is_given_more(&self) -> bool {
        self.end.receiver.is_given_more()
    }

    /// Whether the peer reports that it sends nothing more.
    pub fn peer_has_finished(&self) -> bool {
        self.end.receiver.peer_has_finished()
    }

    /// Whether the peer was demoted ([`Self::leave`]): it consumes nothing from the ring
    /// any more, and another program gets the bytes from the kernel. Then
    /// [`Self::recall`] follows.
    #[inline]
    pub fn peer_left(&self) -> bool {
        self.end.sender.peer_left()
    }

    /// The peer was demoted: returns how many bytes it did not consume. These have to go
    /// to the kernel before anything else ([`Self::peek_owed`], [`Self::sent_again`]).
    /// `kernel_idle`: as for [`Self::send`].
    ///
    /// # Errors
    ///
    /// As for [`Self::send`]; or they cannot be sent in order any more.
    #[cold]
    pub fn recall(&mut self, kernel_idle: bool) -> Result<usize, Corrupt> {
        self.demoted = true;
        let owed = self.end.sender.recall()?;
        if owed > 0 && !kernel_idle { Err(Corrupt::Left) } else { Ok(owed) }
    }

    /// Requests the return of the demoted peer's unread bytes, if they lie on both paths;
    /// true if so. [`Self::get_back`] then has to return true before anything else is
    /// sent. To be called before [`Self::recall`]. `kernel_idle`: as for [`Self::send`];
    /// if it is false, `recall` refuses.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    #[cold]
    pub fn wants_back(&mut self, kernel_idle: bool) -> Result<bool, Corrupt> {
        Ok(kernel_idle && self.end.sender.wants_back()?)
    }

    /// Appends the bytes that the peer has returned to `bytes`. True: these were the
    /// last; all of them go to the kernel before anything else.
    ///
    /// # Errors
    ///
    /// The peer returned more than is possible.
    #[cold]
    pub fn get_back(&mut self, bytes: &mut Vec<u8>) -> Result<bool, Corrupt> {
        self.demoted = true;
        self.end.sender.get_back(bytes)
    }

    /// After [`Leaving::GiveBack`]: whether the peer sends nothing more before it has
    /// everything back; `None`: it takes nothing back.
    pub fn is_wanted_back(&self) -> Option<bool> {
        self.end.receiver.is_wanted_back()
    }

    /// After [`Leaving::GiveBack`]: the stream bytes that are still to be consumed, in
    /// order.
    pub fn left_to_take(&self) -> u64 {
        self.end.receiver.left_to_take()
    }

    /// Returns some of these bytes, which were consumed then, to the peer; returns how
    /// many: 0 while the peer has not read the previous ones. After the last
    /// [`Self::gave_all_back`] follows.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`]; or there is no room, since the peer has not read this
    /// endpoint's bytes.
    #[cold]
    pub fn give_back(&mut self, bytes: &[u8]) -> Result<usize, Corrupt> {
        self.end.sender.give_back(bytes)
    }

    /// All bytes were returned.
    pub fn gave_all_back(&self) {
        self.end.receiver.gave_all_back();
    }

    /// Copies the first of the owed bytes; returns how many.
    ///
    /// # Errors
    ///
    /// As for [`Self::recall`].
    pub fn peek_owed(&mut self, bytes: &mut [u8]) -> Result<usize, Corrupt> {
        self.end.sender.peek_owed(bytes)
    }

    /// The kernel accepted `count` of the owed bytes.
    ///
    /// # Errors
    ///
    /// As for [`Self::recall`].
    pub fn sent_again(&mut self, count: usize) -> Result<(), Corrupt> {
        self.end.sender.sent_again(count)
    }

    /// Demotes this endpoint: a program without ring support gets the kernel connection.
    /// The peer resends the unread bytes. [`Self::wakes_to_leave`], [`Self::end_sending`]
    /// and [`Self::leaving`] follow.
    pub fn leave(&mut self) {
        self.end.receiver.leave();
    }

    /// Whether the peer has still to resend, and may be asleep: then the kernel is to be
    /// given a wake-up byte for it ([`Self::bell_was_taken`], [`Self::kernel_refused`]).
    /// `kernel_idle`: as for [`Self::send`].
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn wakes_to_leave(&mut self, kernel_idle: bool) -> Result<bool, Corrupt> {
        // Wake it only to resend ring bytes: behind unread TCP bytes a wake-up byte would
        // obstruct the peer's own demotion.
        let receiver = &mut self.end.receiver;
        let lacks_bytes = receiver.unread().unwrap_or(true) && !receiver.is_answered();
        let sender = &mut self.end.sender;
        // Bytes that go to the kernel anyway wake it, too. A demoted peer would read a
        // wake-up byte as data.
        let asleep = kernel_idle && lacks_bytes && !sender.peer_ended() && !sender.peer_left();
        Ok(asleep && sender.open_ring()? && sender.may_ring())
    }

    /// No process of this endpoint sends through the ring from here on.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn end_sending(&mut self) -> Result<(), Corrupt> {
        self.demoted = true;
        self.end.sender.keep_to_tcp();
        if self.sends_to_ring() { self.spill() } else { Ok(()) }
    }

    /// The step that remains before the kernel connection is handed over.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn leaving(&mut self) -> Result<Leaving, Corrupt> {
        self.end.receiver.leaving()
    }

    /// The result of [`Self::leaving`] for a peer that takes nothing back.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn outlook(&mut self) -> Result<Leaving, Corrupt> {
        self.end.receiver.outlook()
    }

    /// This endpoint is demoted before the peer ([`Self::peer_left`]): the peer's unread
    /// bytes are not resent if it is demoted later.
    pub fn refuse(&mut self) {
        self.end.sender.refuse();
    }

    /// Whether any process of this endpoint has called [`Self::leave`].
    pub fn has_left(&self) -> bool {
        self.end.receiver.has_left()
    }

    /// Whether one has called [`Self::leave`] or [`Self::reads_no_more`]: only the kernel
    /// connection is left.
    pub fn is_over(&self) -> bool {
        self.end.receiver.is_over()
    }
}
