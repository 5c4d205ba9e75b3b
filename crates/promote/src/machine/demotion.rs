//! Demotion to the kernel connection, for a program that has only that.

use ring::{Corrupt, DemotionStep, Path};

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
        if sender.path() != Path::Ring || sender.unconsumed()? == 0 || !sender.may_wake() {
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

    /// Whether the peer was demoted ([`Self::demote`]): it consumes nothing from the ring
    /// any more, and another program gets the bytes from the kernel. Then
    /// [`Self::recall`] follows.
    #[inline]
    pub fn peer_is_demoted(&self) -> bool {
        self.end.sender.peer_is_demoted()
    }

    /// The peer was demoted: returns how many bytes it did not consume. These have to go
    /// to the kernel before anything else ([`Self::peek_owed`], [`Self::resent`]).
    /// `kernel_idle`: as for [`Self::send`].
    ///
    /// # Errors
    ///
    /// As for [`Self::send`]; or they cannot be sent in order any more.
    #[cold]
    pub fn recall(&mut self, kernel_idle: bool) -> Result<usize, Corrupt> {
        self.demoted = true;
        let owed = self.end.sender.recall()?;
        if owed > 0 && !kernel_idle { Err(Corrupt::Demoted) } else { Ok(owed) }
    }

    /// Requests the return of the demoted peer's unread bytes, if they lie on both paths;
    /// true if so. [`Self::accept_returned`] then has to return true before anything else is
    /// sent. To be called before [`Self::recall`]. `kernel_idle`: as for [`Self::send`];
    /// if it is false, `recall` refuses.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    #[cold]
    pub fn wants_return(&mut self, kernel_idle: bool) -> Result<bool, Corrupt> {
        Ok(kernel_idle && self.end.sender.wants_return()?)
    }

    /// Appends the bytes that the peer has returned to `bytes`. True: these were the
    /// last; all of them go to the kernel before anything else.
    ///
    /// # Errors
    ///
    /// The peer returned more than is possible.
    #[cold]
    pub fn accept_returned(&mut self, bytes: &mut Vec<u8>) -> Result<bool, Corrupt> {
        self.demoted = true;
        self.end.sender.accept_returned(bytes)
    }

    /// After [`DemotionStep::Return`]: whether the peer sends nothing more before it has
    /// everything back; `None`: it takes nothing back.
    pub fn is_return_wanted(&self) -> Option<bool> {
        self.end.receiver.is_return_wanted()
    }

    /// After [`DemotionStep::Return`]: the stream bytes that are still to be consumed, in
    /// order.
    pub fn left_to_consume(&self) -> u64 {
        self.end.receiver.left_to_consume()
    }

    /// Returns some of these bytes, which were consumed then, to the peer; returns how
    /// many: 0 while the peer has not read the previous ones. After the last
    /// [`Self::returned_all`] follows.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`]; or there is no room, since the peer has not read this
    /// endpoint's bytes.
    #[cold]
    pub fn return_bytes(&mut self, bytes: &[u8]) -> Result<usize, Corrupt> {
        self.end.sender.return_bytes(bytes)
    }

    /// All bytes were returned.
    pub fn returned_all(&self) {
        self.end.receiver.returned_all();
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
    pub fn resent(&mut self, count: usize) -> Result<(), Corrupt> {
        self.end.sender.resent(count)
    }

    /// Demotes this endpoint: a program without ring support gets the kernel connection.
    /// The peer resends the unread bytes. [`Self::wakes_to_demote`], [`Self::end_sending`]
    /// and [`Self::demotion_step`] follow.
    pub fn demote(&mut self) {
        self.end.receiver.demote();
    }

    /// Whether the peer has still to resend, and may be asleep: then the kernel is to be
    /// given a wake-up byte for it ([`Self::wake_up_was_accepted`], [`Self::kernel_refused`]).
    /// `kernel_idle`: as for [`Self::send`].
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn wakes_to_demote(&mut self, kernel_idle: bool) -> Result<bool, Corrupt> {
        // Wake it only to resend ring bytes: behind unread TCP bytes a wake-up byte would
        // obstruct the peer's own demotion.
        let receiver = &mut self.end.receiver;
        let lacks_bytes = receiver.unread().unwrap_or(true) && !receiver.is_answered();
        let sender = &mut self.end.sender;
        // Bytes that go to the kernel anyway wake it, too. A demoted peer would read a
        // wake-up byte as data.
        let asleep = kernel_idle && lacks_bytes && !sender.peer_ended() && !sender.peer_is_demoted();
        Ok(asleep && sender.open_ring()? && sender.may_wake())
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
    pub fn demotion_step(&mut self) -> Result<DemotionStep, Corrupt> {
        self.end.receiver.demotion_step()
    }

    /// The result of [`Self::demotion_step`] for a peer that takes nothing back.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn step_without_return(&mut self) -> Result<DemotionStep, Corrupt> {
        self.end.receiver.step_without_return()
    }

    /// This endpoint is demoted before the peer ([`Self::peer_is_demoted`]): the peer's unread
    /// bytes are not resent if it is demoted later.
    pub fn refuse(&mut self) {
        self.end.sender.refuse();
    }

    /// Whether any process of this endpoint has called [`Self::demote`].
    pub fn is_demoted(&self) -> bool {
        self.end.receiver.is_demoted()
    }

    /// Whether one has called [`Self::demote`] or [`Self::reads_no_more`]: only the kernel
    /// connection is left.
    pub fn is_over(&self) -> bool {
        self.end.receiver.is_over()
    }
}
