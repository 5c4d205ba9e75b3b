//! One endpoint of a promoted connection as a state machine without I/O: it decides which
//! bytes go where, and which come next. Its owner reports the bytes that the kernel
//! accepted and delivered, and executes the results: send the rest to the kernel, discard
//! or send a wake-up byte, report the end of the stream.

use ring::{Ahead, Corrupt, Endpoint, Front, Here, Path, PeerRegion, Ready, Region, WakeUp};

mod demotion;

/// How the kernel connection ended in the receiving direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KernelEnd {
    /// FIN: all bytes that were sent have arrived, over one path or the other.
    Finished,
    /// An errno, such as ECONNRESET.
    Failed(i32),
}

/// What the reader gets next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// This many bytes of the ring, more than 0.
    Ring(usize),
    /// Bytes that came through the kernel, if there are any.
    Kernel,
    /// No bytes are available.
    Nothing,
    /// The end of the stream.
    End(KernelEnd),
}

/// The protocol of one endpoint as a state machine, on memory that its owner keeps
/// mapped. A clone copies the endpoint's current state: on equal region words, it behaves
/// the same from here on.
#[derive(Clone, Debug, Hash)]
pub struct Machine {
    end: Endpoint,
    kernel_end: Option<KernelEnd>,
    /// The ring was full, and a TCP run follows that the peer has not reached yet.
    spilled: bool,
    /// Stays on TCP from here on.
    demoted: bool,
    /// How many of the kernel's bytes the peer had consumed at the last of the sends that
    /// `kernel_sends_left` counts, or may have consumed at the promotion.
    peer_consumed: u64,
    /// The ring was never full.
    never_spilled: bool,
    /// Remaining sends that wait for the peer to read the earlier bytes from the kernel.
    kernel_sends_left: u8,
}

/// The most sends that stay on the kernel, although the ring could be used, while the
/// peer keeps reading. A peer that is demoted with unread bytes on both paths may have to
/// reset the connection. A program that was handed a connection is mostly demoted before
/// it reads much. But a stream may always have some unread bytes.
const MOST_KERNEL_SENDS: u8 = 16;

impl Machine {
    /// The endpoint that owns `own`, at a time when the kernel has accepted `written`
    /// bytes of all that this endpoint ever sent, and has delivered `consumed` bytes of
    /// all that it ever received, and none are in between. From here on the peer may use
    /// its ring; this endpoint is hot.
    ///
    /// # Errors
    ///
    /// The peer violated the protocol already.
    pub fn new(own: Region, peer: PeerRegion, written: u64, consumed: u64) -> Result<Machine, Corrupt> {
        let machine = Machine::new_unaware(own, peer, written, consumed)?;
        machine.end.receiver.mark_aware();
        Ok(machine)
    }

    /// As [`Self::new`], but this endpoint waits for wake-ups; `waiter` is the one
    /// that polls it when it is hot (see [`Self::polled_by`]).
    ///
    /// # Errors
    ///
    /// As for [`Self::new`].
    pub fn new_armed(
        own: Region,
        peer: PeerRegion,
        written: u64,
        consumed: u64,
        waiter: u32,
    ) -> Result<Machine, Corrupt> {
        let mut machine = Machine::new_unaware(own, peer, written, consumed)?;
        machine.end.receiver.polled_by(waiter, WakeUp::Tcp);
        // No bytes can be unread: the peer uses its ring only once it is permitted to.
        machine.end.receiver.arm(WakeUp::Tcp)?;
        machine.end.receiver.mark_aware();
        Ok(machine)
    }

    fn new_unaware(own: Region, peer: PeerRegion, written: u64, consumed: u64) -> Result<Machine, Corrupt> {
        let mut end = Endpoint::new(own, peer)?;
        end.sender.sent_before(written);
        end.receiver.consumed_before(consumed);
        Ok(Machine {
            end,
            kernel_end: None,
            spilled: false,
            demoted: false,
            peer_consumed: written,
            never_spilled: true,
            kernel_sends_left: MOST_KERNEL_SENDS,
        })
    }

    /// Saves the position for the next process that holds this endpoint.
    #[inline]
    pub(crate) fn save(&self) {
        self.end.receiver.save();
    }

    /// Continues at the position that another process of this endpoint
    /// [saved](Self::save).
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub(crate) fn resume(&mut self) -> Result<(), Corrupt> {
        self.end.sender.resume();
        self.end.receiver.resume()
    }

    /// Writes as much as fits into the ring; returns how many bytes that were. If any are
    /// left and [`Self::sends_to_ring`], the ring is full: call [`Self::spill`], or try
    /// again later. Otherwise the rest goes to the kernel. `kernel_idle`: no bytes of
    /// this direction wait for the kernel.
    ///
    /// # Errors
    ///
    /// The peer violated the protocol: the connection is over, as after a reset.
    #[inline]
    pub fn send<'a>(
        &mut self,
        slices: impl IntoIterator<Item = &'a [u8]>,
        total: usize,
        kernel_idle: bool,
    ) -> Result<usize, Corrupt> {
        if self.end.sender.path() == Path::Tcp && !self.enter_ring(kernel_idle)? {
            return Ok(0);
        }
        self.end.write(slices, total)
    }

    /// The most bytes that one [`Self::send`] accepts.
    #[inline]
    pub fn most_at_once(&self) -> usize {
        self.end.sender.ring_length()
    }

    /// Whether the ring has room for `bytes`, by the last known head.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    #[inline]
    pub fn has_room(&mut self, bytes: usize) -> Result<bool, Corrupt> {
        Ok(self.end.sender.free(bytes)? >= bytes)
    }

    /// Ring bytes that the peer has not consumed: for programs that limit them.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn unconsumed(&mut self) -> Result<usize, Corrupt> {
        self.end.sender.unconsumed()
    }

    #[cold]
    fn enter_ring(&mut self, kernel_idle: bool) -> Result<bool, Corrupt> {
        if !kernel_idle || self.demoted || (self.spilled && !self.end.sender.drained()?) {
            return Ok(false);
        }
        let sender = &self.end.sender;
        if self.kernel_sends_left > 0
            && sender.is_in_first_run()
            && sender.peer_is_aware()
            && !sender.kernel_bytes_were_consumed()
        {
            let consumed = sender.peer_consumed_of_kernel();
            self.kernel_sends_left -= u8::from(consumed > self.peer_consumed);
            self.peer_consumed = self.peer_consumed.max(consumed);
            return Ok(false);
        }
        let entered = self.end.sender.open_ring()?;
        self.spilled &= !entered;
        Ok(entered)
    }

    /// The following bytes go to the kernel, whose back-pressure then applies, until the
    /// peer has reached them. No wake-up byte may be in flight
    /// ([`Self::wake_up_was_accepted`]): the TCP-path offset of the following bytes includes
    /// them.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    #[cold]
    pub fn spill(&mut self) -> Result<(), Corrupt> {
        // A peer that passes no runs while it consumes bytes violates the protocol.
        if !self.end.sender.open_tcp()? {
            return Err(Corrupt::RunsPassed);
        }
        self.spilled = true;
        Ok(())
    }

    /// From here on all bytes go to the kernel: bytes sent after a FIN of either endpoint
    /// then have the same result as on TCP. If [`Self::sends_to_ring`], [`Self::spill`]
    /// comes before the next byte.
    pub fn kernel_sends(&mut self) {
        self.demoted = true;
    }

    /// Whether the next byte to be read comes through the kernel, as of the last check.
    #[inline]
    pub fn reads_from_kernel(&self) -> bool {
        self.end.receiver.is_in_tcp()
    }

    /// Whether the kernel's first bytes are stream bytes, as of the last check.
    #[inline]
    pub fn reads_data_from_kernel(&self) -> bool {
        self.end.receiver.is_behind_wake_ups()
    }

    /// Stream bytes consumed, of both paths.
    #[inline]
    pub fn consumed(&self) -> u64 {
        self.end.receiver.stream()
    }

    /// Stream bytes consumed from the kernel, without wake-up bytes.
    #[inline]
    pub fn consumed_from_kernel(&self) -> u64 {
        self.end.receiver.consumed_from_tcp()
    }

    /// TCP-path offset of the bytes read, wake-up bytes included.
    #[inline]
    pub fn read_of_kernel(&self) -> u64 {
        self.end.receiver.tcp_offset()
    }

    /// Whether [`Self::kernel_sends`] was called, or the kernel connection has ended.
    #[inline]
    pub fn stays_with_kernel(&self) -> bool {
        self.demoted
    }

    /// Whether the next byte sent goes into the ring.
    #[inline]
    pub fn sends_to_ring(&self) -> bool {
        self.end.sender.path() == Path::Ring
    }

    /// The kernel accepted `count` of the bytes that [`Self::send`] left to it.
    pub fn kernel_accepted(&mut self, count: usize) {
        self.end.sender.sent_over_tcp(count as u64);
    }

    /// The wake-up that the receiver requests for the bytes sent, if any; it then counts
    /// as sent. `Doorbell`, only where `has_doorbell`: the caller writes a byte to it,
    /// or, if that fails, to TCP where [`Self::may_wake_over_tcp`]. `Tcp`: the caller
    /// sends one byte 0 through the kernel, without waiting, and calls
    /// [`Self::wake_up_was_accepted`] if the kernel accepted it, else [`Self::kernel_refused`].
    /// If the kernel had no room, no byte is needed: the receiver has unread bytes.
    #[inline]
    pub fn wants_wake_up_by(&mut self, other: &ring::PeerLoop, has_doorbell: bool) -> Option<WakeUp> {
        let mut by = self.end.sender.wants_wake_up(other)?;
        if by == WakeUp::Doorbell && !has_doorbell {
            if !self.end.sender.may_wake() {
                return None;
            }
            by = WakeUp::Tcp;
        }
        self.end.sender.woke_peer(other, false);
        Some(by)
    }

    /// See [`ring::Sender::wakes_at`].
    pub fn wakes_at(&self, now: u64) {
        self.end.sender.wakes_at(now);
    }

    /// See [`ring::Receiver::published_at`].
    pub fn published_at(&self) -> u64 {
        self.end.receiver.published_at()
    }

    /// See [`ring::Sender::peer_woke_at`].
    pub fn peer_woke_at(&self) -> u64 {
        self.end.sender.peer_woke_at()
    }

    /// Whether the peer reads no more: a wake-up byte would only cause a reset.
    pub fn peer_reads_no_more(&self) -> bool {
        self.end.sender.peer_ended()
    }

    /// Whether the peer has closed. A demoted peer does not report it.
    pub fn peer_has_closed(&self) -> bool {
        self.peer_reads_no_more() && !self.end.sender.peer_keeps_to_tcp()
    }

    /// As [`Self::wants_wake_up_by`], for an owner that wakes the peer at once and reports to
    /// [`Self::woke_peer`] whether the kernel accepted a byte on TCP: no wake-up counts as
    /// sent before. See [`ring::Sender::wants_wake_up`].
    #[inline]
    pub fn wants_wake_up(&mut self, other: &ring::PeerLoop) -> Option<WakeUp> {
        self.end.sender.wants_wake_up(other)
    }

    /// Whether a byte on TCP may wake the peer: its doorbell is full, or the bytes sent
    /// [stay unread](Self::has_unseen_bytes). The owner sends it through the kernel at once,
    /// and calls [`Self::wake_up_was_accepted`] or [`Self::kernel_refused`].
    #[cold]
    pub fn may_wake_over_tcp(&mut self) -> bool {
        self.end.sender.may_wake()
    }

    /// See [`Self::wants_wake_up`].
    pub fn woke_peer(&mut self, other: &ring::PeerLoop, accepted: bool) {
        match accepted {
            true => self.end.sender.woke_peer(other, true),
            false => self.end.sender.wake_up_had_no_room(),
        }
    }

    /// See [`Self::wants_wake_up`]: a byte was written to the doorbell.
    #[inline]
    pub fn woke_by_doorbell(&mut self, other: &ring::PeerLoop) {
        self.end.sender.woke_peer(other, false);
    }

    /// See [`ring::Sender::has_unseen_bytes`].
    pub fn has_unseen_bytes(&mut self) -> Option<u64> {
        self.end.sender.has_unseen_bytes()
    }

    /// See [`ring::Sender::is_checked_behind_tcp`].
    #[cold]
    pub fn is_checked_behind_tcp(&self) -> bool {
        self.end.sender.is_checked_behind_tcp()
    }

    /// The kernel accepted a wake-up byte.
    pub fn wake_up_was_accepted(&mut self) {
        self.end.sender.wake_up_was_accepted();
    }

    /// The kernel accepted none of the bytes it was given: no wake-up byte, or no byte
    /// after [`Self::about_to_send_over_tcp`].
    pub fn kernel_refused(&mut self) {
        self.end.sender.kernel_refused();
    }

    /// To be called before bytes that [`Self::send`] left over are given to the kernel;
    /// [`Self::kernel_accepted`] or [`Self::kernel_refused`] follow. True: give it none, but
    /// call [`Self::recall`].
    #[inline]
    pub fn about_to_send_over_tcp(&mut self) -> bool {
        self.end.sender.about_to_send_over_tcp()
    }

    /// A kernel call to send bytes begins that is not waited for here: the next one may
    /// come from another thread, or from another process that holds this endpoint.
    #[inline]
    pub fn kernel_call_begins(&mut self) {
        self.end.sender.kernel_call_begins();
    }

    /// The call ended, and its result was reported to [`Self::kernel_accepted`] or
    /// [`Self::kernel_refused`].
    #[inline]
    pub fn kernel_call_ends(&mut self) {
        self.end.sender.kernel_call_ends();
    }

    /// Messages that this endpoint sent and consumed since the promotion.
    pub fn messages(&self) -> u64 {
        self.end.sender.messages().saturating_add(self.end.receiver.messages())
    }

    /// Whether no such call is in progress.
    #[inline]
    pub fn kernel_is_idle(&self) -> bool {
        self.end.sender.kernel_is_idle()
    }

    /// The kind of the first of `unread` bytes that the kernel delivered, and that were
    /// neither discarded nor delivered to the program yet.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn front(&mut self, unread: usize) -> Result<Front, Corrupt> {
        self.end.receiver.tcp(unread as u64)
    }

    /// See [`ring::Receiver::surely_data`].
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    #[inline]
    pub fn surely_data(&mut self) -> Result<u64, Corrupt> {
        self.end.receiver.surely_data()
    }

    /// `count` of them were discarded as wake-up bytes, or delivered.
    pub fn kernel_delivered(&mut self, count: usize) {
        self.end.receiver.consumed_tcp(count as u64);
    }

    /// The kernel delivers no more.
    pub fn kernel_ended(&mut self, end: KernelEnd) {
        self.demoted = true;
        self.kernel_end.get_or_insert(end);
    }

    /// Whether [`Self::kernel_ended`] was called.
    pub fn kernel_has_ended(&self) -> bool {
        self.kernel_end.is_some()
    }

    /// The end was reported to the reader. An error is reported once; after it comes the
    /// end of the stream (as SO_ERROR is cleared by the call that reports it).
    pub fn end_was_reported(&mut self) {
        self.kernel_end = Some(KernelEnd::Finished);
    }

    /// The error that the kernel connection ended with, if it was not reported. It counts
    /// as reported from here on.
    pub fn take_error(&mut self) -> Option<i32> {
        match self.kernel_end.map(|end| self.as_on_tcp(end)) {
            Some(KernelEnd::Failed(errno)) => {
                self.end_was_reported();
                Some(errno)
            }
            Some(KernelEnd::Finished) | None => None,
        }
    }

    /// Whether [`Self::take_error`] would return one.
    pub fn has_error(&self) -> bool {
        matches!(self.kernel_end.map(|end| self.as_on_tcp(end)), Some(KernelEnd::Failed(_)))
    }

    /// Whether the bytes behind the available ones came over the other path.
    #[inline]
    pub fn nears_next_run(&self) -> bool {
        self.end.receiver.nears_next_run()
    }

    /// The available bytes; `unread` as for [`Self::front`].
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn here(&mut self, unread: usize) -> Result<Here, Corrupt> {
        self.end.receiver.here(unread as u64)
    }

    /// Their positions, in stream order.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn ahead(&mut self, unread: usize) -> Result<Vec<Ahead>, Corrupt> {
        self.end.receiver.ahead(unread as u64)
    }

    /// As [`ring::Receiver::copy_ahead`].
    pub fn copy_ahead(&self, skip: u64, buffer: &mut [u8]) -> usize {
        self.end.receiver.copy_ahead(skip, buffer)
    }

    /// What to deliver next; `unread` as for [`Self::front`].
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    #[inline]
    pub fn next(&mut self, unread: usize) -> Result<Next, Corrupt> {
        match self.end.receiver.check()? {
            Ready::Ring(count) => Ok(Next::Ring(count)),
            Ready::Tcp { .. } if unread > 0 => Ok(Next::Kernel),
            Ready::Tcp { .. } | Ready::Nothing => {
                Ok(self.kernel_end.map_or(Next::Nothing, |end| Next::End(self.as_on_tcp(end))))
            }
        }
    }

    /// The kernel sends RST for a process that dies with unread wake-up bytes. If it had
    /// consumed every byte and all of its own have arrived, TCP would have sent FIN.
    #[cold]
    fn as_on_tcp(&self, end: KernelEnd) -> KernelEnd {
        // An endpoint that closes stores `ended` and discards its wake-up bytes before.
        let over_wake_up_bytes = !self.end.sender.peer_resets()
            && self.end.sender.all_was_consumed()
            && self.end.receiver.consumed_all();
        match end {
            KernelEnd::Failed(libc::ECONNRESET) if over_wake_up_bytes => KernelEnd::Finished,
            end => end,
        }
    }

    /// Copies bytes of the ring.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    #[inline]
    pub fn read_ring(&mut self, buffer: &mut [u8]) -> Result<usize, Corrupt> {
        self.end.receiver.read(buffer)
    }

    /// As [`Self::read_ring`], from behind the first `skip` bytes, without consuming
    /// them.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn peek_ring(&mut self, skip: usize, buffer: &mut [u8]) -> Result<usize, Corrupt> {
        self.end.receiver.peek(skip, buffer)
    }

    /// Consumes up to `count` ring bytes without a copy; returns how many.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn skip_ring(&mut self, count: usize) -> Result<usize, Corrupt> {
        self.end.receiver.skip(count)
    }

    /// Ring count that the peer has published, as of the last check: it changes when more
    /// bytes arrive.
    #[inline]
    pub fn arrived(&self) -> u64 {
        self.end.receiver.arrived()
    }

    /// Whether the kernel has bytes for this endpoint, by the peer's report, which lags
    /// behind its sending.
    #[inline]
    pub fn kernel_has_bytes(&self) -> bool {
        self.end.receiver.kernel_has() > 0
    }

    /// Sets the waiter of the loop page that polls this endpoint while it is hot. To be
    /// called only while it is armed or masked.
    pub fn polled_by(&mut self, waiter: u32, by: WakeUp) {
        self.end.receiver.polled_by(waiter, by);
    }

    /// This endpoint waits for wake-ups from here on. True: bytes are available already,
    /// for which no wake-up will come.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn arm(&mut self, by: WakeUp) -> Result<bool, Corrupt> {
        self.end.publish_counts();
        self.end.receiver.arm(by)
    }

    /// See [`ring::Receiver::armed_by`].
    #[inline]
    pub fn armed_by(&self) -> WakeUp {
        self.end.receiver.armed_by()
    }

    /// To be called after an endpoint that stays armed consumed bytes of the kernel.
    /// True: ring bytes are available by now, for which no wake-up may come
    /// ([`Self::wants_wake_up_by`]), and the endpoint is not armed.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn check_behind_kernel(&mut self) -> Result<bool, Corrupt> {
        self.end.receiver.check_behind_tcp()
    }

    /// As [`Self::arm`], for an endpoint that leaves the available bytes unread. True:
    /// more arrived.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn arm_for_more(&mut self, by: WakeUp) -> Result<bool, Corrupt> {
        self.end.publish_counts();
        self.end.receiver.arm_for_more(by)
    }

    /// Ring bytes that can be consumed, now or behind those of the kernel, as of the last
    /// check.
    pub fn unconsumed_here(&self) -> usize {
        self.end.receiver.unconsumed()
    }

    /// This endpoint is about to close or to reset the kernel connection, and reads no
    /// more; false: it did neither, after all.
    pub fn reads_no_more(&mut self, ended: bool) {
        self.end.receiver.mark_ended(ended);
    }

    /// This endpoint consumes nothing for now, whatever arrives, and ignores wake-ups: no
    /// wake-up on it may count for the others of its loop. [`Self::disarm`] or
    /// [`Self::arm`] end that.
    pub fn mask(&mut self) {
        self.mask_by(WakeUp::Tcp);
    }

    /// As [`Self::mask`]; a wake-up for bytes that arrived meanwhile comes by `by`.
    pub fn mask_by(&mut self, by: WakeUp) {
        self.end.receiver.mask_by(by);
    }

    /// See [`ring::Receiver::requests_each`].
    pub fn requests_each(&mut self, each: bool) {
        self.end.receiver.requests_each(each);
    }

    /// See [`ring::Receiver::stay_armed`].
    #[cold]
    pub fn stay_armed(&mut self, each: bool) {
        self.end.receiver.stay_armed(each);
    }

    /// See [`ring::Receiver::waiter`].
    #[cold]
    pub fn waiter(&self) -> u32 {
        self.end.receiver.waiter()
    }

    /// This endpoint is polled while its loop is awake.
    pub fn disarm(&mut self) {
        self.end.receiver.disarm();
    }

    /// Publishes the message counts, for monitoring: before a loop sleeps, and whenever a
    /// connection was used that is not polled then.
    #[inline]
    pub fn publish_counts(&mut self) {
        self.end.publish_counts();
    }

    /// Whether new bytes are available: the last check before a loop sleeps.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn poll(&mut self) -> Result<bool, Corrupt> {
        Ok(matches!(self.end.receiver.poll()?, Ready::Ring(_)))
    }

    /// Whether a close now has to be a reset: ring bytes are unread.
    pub fn has_unread(&mut self) -> bool {
        self.end.receiver.unread().unwrap_or(true)
    }
}
