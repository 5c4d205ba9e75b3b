//! One end of a promoted connection as a state machine without I/O: which bytes go where, and
//! which come next. Its owner tells what the kernel took, gave and reported, and does what it is
//! told: send the rest to the kernel, drop a bell, ring one, report the end.

use ring::{Ahead, Corrupt, End, Front, Here, Lane, PeerSegment, Ready, Segment, WakeUp};

mod back;

/// How the kernel connection ended in the direction that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KernelEnd {
    /// FIN: all that was sent is here, in one lane or the other.
    Finished,
    /// An errno, such as ECONNRESET.
    Failed(i32),
}

/// What the reader gets next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// So many bytes of the ring, more than 0.
    Ring(usize),
    /// Bytes that came through the kernel, if there are any.
    Kernel,
    /// Nothing is here.
    Nothing,
    /// The stream is at its end.
    End(KernelEnd),
}

/// The protocol of one end as a state machine, on memory that its owner keeps mapped. A clone
/// is the end as it is now: with the words of its segment as they are now, it does the same
/// from here on.
#[derive(Clone, Debug, Hash)]
pub struct Machine {
    end: End,
    kernel_end: Option<KernelEnd>,
    /// The ring was full, and a TCP part follows that the peer has not come to yet.
    spilled: bool,
    /// Stays on TCP from here on.
    demoted: bool,
    /// What the peer had taken of the kernel's bytes at the last of these sends, or may have at the promotion.
    peer_took: u64,
    /// The ring was never full.
    is_young: bool,
    /// Sends left that wait for the peer to have read what went through the kernel before.
    patience: u8,
}

/// Sends through the kernel, once the ring could be used, that find the peer reading on, at the most. Bytes of both lanes
/// that lie unread are what a peer that leaves may have to reset the connection for, and one that was handed a connection
/// mostly leaves before it reads much; but a stream may always have some unread.
const PATIENCE: u8 = 16;

impl Machine {
    /// The end that owns `own`, at a time when the kernel has taken `written` bytes of what
    /// this end ever sent, and has given `consumed` of what it ever received, and nothing
    /// lies in between. From here on the peer may use its ring; this end is hot.
    ///
    /// # Errors
    ///
    /// The other end broke the rules already.
    pub fn new(own: Segment, peer: PeerSegment, written: u64, consumed: u64) -> Result<Machine, Corrupt> {
        let machine = Machine::unaware(own, peer, written, consumed)?;
        machine.end.receiver.mark_aware();
        Ok(machine)
    }

    /// As [`Self::new`], but this end waits for bells; `sleeper` is who looks at it when it
    /// is hot (see [`Self::looked_at_by`]).
    ///
    /// # Errors
    ///
    /// As for [`Self::new`].
    pub fn new_armed(
        own: Segment,
        peer: PeerSegment,
        written: u64,
        consumed: u64,
        sleeper: u32,
    ) -> Result<Machine, Corrupt> {
        let mut machine = Machine::unaware(own, peer, written, consumed)?;
        machine.end.receiver.looked_at_by(sleeper, WakeUp::Tcp);
        // Nothing can be here: the peer uses its ring only after it was told that it may.
        machine.end.receiver.arm(WakeUp::Tcp)?;
        machine.end.receiver.mark_aware();
        Ok(machine)
    }

    fn unaware(own: Segment, peer: PeerSegment, written: u64, consumed: u64) -> Result<Machine, Corrupt> {
        let mut end = End::new(own, peer)?;
        end.sender.sent_before(written);
        end.receiver.took_before(consumed);
        Ok(Machine {
            end,
            kernel_end: None,
            spilled: false,
            demoted: false,
            peer_took: written,
            is_young: true,
            patience: PATIENCE,
        })
    }

    /// Leaves word for the next process that has this end.
    #[inline]
    pub(crate) fn save(&self) {
        self.end.receiver.save();
    }

    /// Goes on where another process that has this end has [saved](Self::save) that it is.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub(crate) fn resume(&mut self) -> Result<(), Corrupt> {
        self.end.sender.resume();
        self.end.receiver.resume()
    }

    /// Sends what goes into the ring; returns how many bytes that were. If any are left
    /// and [`Self::sends_to_ring`], the ring is full: [`Self::spill`], or try again later.
    /// Otherwise the rest is the kernel's. `kernel_idle`: nothing of this direction waits
    /// for the kernel.
    ///
    /// # Errors
    ///
    /// The other end broke the rules: the connection is over, as after a reset.
    #[inline]
    pub fn send<'a>(
        &mut self,
        slices: impl IntoIterator<Item = &'a [u8]>,
        total: usize,
        kernel_idle: bool,
    ) -> Result<usize, Corrupt> {
        if self.end.sender.lane() == Lane::Tcp && !self.enter_ring(kernel_idle)? {
            return Ok(0);
        }
        self.end.write(slices, total)
    }

    /// Bytes that one [`Self::send`] takes at most.
    #[inline]
    pub fn most_at_once(&self) -> usize {
        self.end.sender.ring_length()
    }

    /// Whether the ring has room for so many bytes, as far as it is known to be used.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    #[inline]
    pub fn has_room(&mut self, bytes: usize) -> Result<bool, Corrupt> {
        Ok(self.end.sender.free(bytes)? >= bytes)
    }

    /// Bytes in the ring that the peer has not taken: for programs that limit them.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn untaken(&mut self) -> Result<usize, Corrupt> {
        self.end.sender.untaken()
    }

    #[cold]
    fn enter_ring(&mut self, kernel_idle: bool) -> Result<bool, Corrupt> {
        if !kernel_idle || self.demoted || (self.spilled && !self.end.sender.drained()?) {
            return Ok(false);
        }
        let sender = &self.end.sender;
        if self.patience > 0
            && sender.is_in_first_part()
            && sender.peer_is_aware()
            && !sender.kernel_bytes_were_taken()
        {
            let took = sender.peer_took_of_kernel();
            self.patience -= u8::from(took > self.peer_took);
            self.peer_took = self.peer_took.max(took);
            return Ok(false);
        }
        let entered = self.end.sender.open_ring()?;
        self.spilled &= !entered;
        Ok(entered)
    }

    /// What follows goes to the kernel, whose back-pressure then is the connection's, until
    /// the peer has come there. No bell may be under way ([`Self::bell_was_taken`]):
    /// the kernel's place of what follows is counted from them.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    #[cold]
    pub fn spill(&mut self) -> Result<(), Corrupt> {
        // A peer that passes no parts while it takes bytes keeps to no rules.
        if !self.end.sender.open_tcp()? {
            return Err(Corrupt::PartsTaken);
        }
        self.spilled = true;
        Ok(())
    }

    /// From here on everything is to go to the kernel: what is sent behind FIN, either end's,
    /// meets there what it would meet on TCP. If [`Self::sends_to_ring`], [`Self::spill`]
    /// comes before the next byte.
    pub fn kernel_sends(&mut self) {
        self.demoted = true;
    }

    /// Whether the next byte to be read comes through the kernel, as of the last look.
    #[inline]
    pub fn reads_from_kernel(&self) -> bool {
        self.end.receiver.is_in_tcp()
    }

    /// Whether whatever the kernel has is stream bytes at first, as of the last look.
    #[inline]
    pub fn reads_data_from_kernel(&self) -> bool {
        self.end.receiver.is_behind_bells()
    }

    /// Stream bytes that were taken, from both lanes.
    #[inline]
    pub fn taken(&self) -> u64 {
        self.end.receiver.stream()
    }

    /// Stream bytes that were taken from the kernel, no bells among them.
    #[inline]
    pub fn taken_from_kernel(&self) -> u64 {
        self.end.receiver.taken_from_tcp()
    }

    /// TCP-lane offset of what was read, bells among it.
    #[inline]
    pub fn read_of_kernel(&self) -> u64 {
        self.end.receiver.tcp_lane()
    }

    /// Whether [`Self::kernel_sends`] was called, or the kernel connection has an end.
    #[inline]
    pub fn stays_with_kernel(&self) -> bool {
        self.demoted
    }

    /// Whether the next byte sent goes into the ring.
    #[inline]
    pub fn sends_to_ring(&self) -> bool {
        self.end.sender.lane() == Lane::Ring
    }

    /// The kernel took so many bytes that [`Self::send`] had left to it.
    pub fn kernel_took(&mut self, count: usize) {
        self.end.sender.sent_over_tcp(count as u64);
    }

    /// Whether the receiver wants a wake-up for what was sent, and by what. If so it counts as rung. `Doorbell`, only
    /// where `has_doorbell`: the caller writes a byte to it, or, if that fails, to TCP where [`Self::may_wake_over_tcp`].
    /// `Tcp`: the caller has the kernel send one byte 0, without waiting, and calls [`Self::bell_was_taken`] if the kernel
    /// took it, else [`Self::kernel_refused`] (that it had no room is fine: unread bytes lie before the receiver then).
    #[inline]
    pub fn wants_bell(&mut self, other: &ring::PeerLoop, has_doorbell: bool) -> Option<WakeUp> {
        let mut by = self.end.sender.wants_wake_up(other)?;
        if by == WakeUp::Doorbell && !has_doorbell {
            if !self.end.sender.may_ring() {
                return None;
            }
            by = WakeUp::Tcp;
        }
        self.end.sender.rang(other, false);
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

    /// Whether the other end reads no more: a bell would only meet a reset.
    pub fn peer_reads_no_more(&self) -> bool {
        self.end.sender.peer_ended()
    }

    /// Whether the other end has closed. One that left does not say so.
    pub fn peer_has_closed(&self) -> bool {
        self.peer_reads_no_more() && !self.end.sender.peer_keeps_to_tcp()
    }

    /// As [`Self::wants_bell`], for an owner that wakes the peer at once and reports to [`Self::rang`] whether
    /// the kernel took a byte of TCP: before that nothing counts as rung. See [`ring::Sender::wants_wake_up`].
    #[inline]
    pub fn wants_wake_up(&mut self, other: &ring::PeerLoop) -> Option<WakeUp> {
        self.end.sender.wants_wake_up(other)
    }

    /// Whether a byte of TCP may wake the peer: its doorbell has no room, or what was sent [lies unseen](Self::lies_unseen).
    /// The owner has the kernel send it at once, and tells [`Self::bell_was_taken`] or [`Self::kernel_refused`].
    #[cold]
    pub fn may_wake_over_tcp(&mut self) -> bool {
        self.end.sender.may_ring()
    }

    /// See [`Self::wants_wake_up`].
    pub fn rang(&mut self, other: &ring::PeerLoop, taken: bool) {
        match taken {
            true => self.end.sender.rang(other, true),
            false => self.end.sender.rang_in_vain(),
        }
    }

    /// See [`Self::wants_wake_up`]: the doorbell has a byte more.
    #[inline]
    pub fn rang_doorbell(&mut self, other: &ring::PeerLoop) {
        self.end.sender.rang(other, false);
    }

    /// See [`ring::Sender::lies_unseen`].
    pub fn lies_unseen(&mut self) -> Option<u64> {
        self.end.sender.lies_unseen()
    }

    /// See [`ring::Sender::is_looked_for_behind_tcp`].
    #[cold]
    pub fn is_looked_for_behind_tcp(&self) -> bool {
        self.end.sender.is_looked_for_behind_tcp()
    }

    /// The kernel took a bell.
    pub fn bell_was_taken(&mut self) {
        self.end.sender.bell_was_taken();
    }

    /// The kernel took nothing of what it was given: no bell, or no byte after
    /// [`Self::about_to_send_over_tcp`].
    pub fn kernel_refused(&mut self) {
        self.end.sender.kernel_refused();
    }

    /// To be called before bytes that [`Self::send`] left over are given to the kernel;
    /// [`Self::kernel_took`] or [`Self::kernel_refused`] follow. True: nothing is to be given,
    /// but [`Self::recall`] asked.
    #[inline]
    pub fn about_to_send_over_tcp(&mut self) -> bool {
        self.end.sender.about_to_send_over_tcp()
    }

    /// The kernel is being given bytes by a call that is not waited for here: the next one may
    /// come from another thread, or from another process that has this end.
    #[inline]
    pub fn kernel_call_begins(&mut self) {
        self.end.sender.kernel_call_begins();
    }

    /// The call ended, and [`Self::kernel_took`] or [`Self::kernel_refused`] were told.
    #[inline]
    pub fn kernel_call_ends(&mut self) {
        self.end.sender.kernel_call_ends();
    }

    /// Messages that this end sent and took since the promotion.
    pub fn messages(&self) -> u64 {
        self.end.sender.messages().saturating_add(self.end.receiver.messages())
    }

    /// Whether no such call is under way.
    #[inline]
    pub fn kernel_is_idle(&self) -> bool {
        self.end.sender.kernel_is_idle()
    }

    /// What the first of `unread` bytes are that the kernel gave and that were neither
    /// dropped nor delivered yet.
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

    /// So many of them were dropped as bells, or delivered.
    pub fn took_from_kernel(&mut self, count: usize) {
        self.end.receiver.took_tcp(count as u64);
    }

    /// The kernel has no more to give.
    pub fn kernel_ended(&mut self, end: KernelEnd) {
        self.demoted = true;
        self.kernel_end.get_or_insert(end);
    }

    /// Whether [`Self::kernel_ended`] was called.
    pub fn kernel_has_ended(&self) -> bool {
        self.kernel_end.is_some()
    }

    /// The reader was told of the end. An error is told once; after it the stream is at
    /// its end (as SO_ERROR is cleared by the call that reports it).
    pub fn end_was_told(&mut self) {
        self.kernel_end = Some(KernelEnd::Finished);
    }

    /// The error that the kernel connection ended with, if nobody was told of it. It counts as
    /// told from here on.
    pub fn take_error(&mut self) -> Option<i32> {
        match self.kernel_end.map(|end| self.as_on_tcp(end)) {
            Some(KernelEnd::Failed(errno)) => {
                self.end_was_told();
                Some(errno)
            }
            Some(KernelEnd::Finished) | None => None,
        }
    }

    /// Whether [`Self::take_error`] would return one.
    pub fn has_error(&self) -> bool {
        matches!(self.kernel_end.map(|end| self.as_on_tcp(end)), Some(KernelEnd::Failed(_)))
    }

    /// Whether the bytes behind those that can be taken now came by the other lane.
    #[inline]
    pub fn nears_next_part(&self) -> bool {
        self.end.receiver.nears_next_part()
    }

    /// Bytes that are here; `unread` as for [`Self::front`].
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn here(&mut self, unread: usize) -> Result<Here, Corrupt> {
        self.end.receiver.here(unread as u64)
    }

    /// Where these bytes lie, in their order.
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
        match self.end.receiver.look()? {
            Ready::Ring(count) => Ok(Next::Ring(count)),
            Ready::Tcp { .. } if unread > 0 => Ok(Next::Kernel),
            Ready::Tcp { .. } | Ready::Nothing => {
                Ok(self.kernel_end.map_or(Next::Nothing, |end| Next::End(self.as_on_tcp(end))))
            }
        }
    }

    /// A process that died over unread bells resets the connection. If it had taken every byte
    /// and all of its own are here, TCP would have sent FIN.
    #[cold]
    fn as_on_tcp(&self, end: KernelEnd) -> KernelEnd {
        // Who closes says that he has ended, and takes his bells out before.
        let over_bells =
            !self.end.sender.peer_resets() && self.end.sender.all_was_taken() && self.end.receiver.took_all();
        match end {
            KernelEnd::Failed(libc::ECONNRESET) if over_bells => KernelEnd::Finished,
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

    /// As [`Self::read_ring`], from behind the first `skip` bytes, but takes nothing.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn peek_ring(&mut self, skip: usize, buffer: &mut [u8]) -> Result<usize, Corrupt> {
        self.end.receiver.peek(skip, buffer)
    }

    /// Takes up to `count` bytes of the ring without a copy; returns how many.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn skip_ring(&mut self, count: usize) -> Result<usize, Corrupt> {
        self.end.receiver.skip(count)
    }

    /// Ring bytes that ever came, as of the last look: it changes when more do.
    #[inline]
    pub fn arrived(&self) -> u64 {
        self.end.receiver.arrived()
    }

    /// Whether bytes lie in the kernel for this end, as far as the other end tells: what it
    /// says lags behind what it did.
    #[inline]
    pub fn kernel_has_bytes(&self) -> bool {
        self.end.receiver.kernel_has() > 0
    }

    /// Names the sleeper of the loop page that looks at this end while it is hot. To be
    /// called while it is armed or muted only.
    pub fn looked_at_by(&mut self, sleeper: u32, by: WakeUp) {
        self.end.receiver.looked_at_by(sleeper, by);
    }

    /// This end waits for bells from here on. True: something is here already, and no bell
    /// will come for it.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn arm(&mut self, by: WakeUp) -> Result<bool, Corrupt> {
        self.end.tell_counts();
        self.end.receiver.arm(by)
    }

    /// See [`ring::Receiver::armed_by`].
    #[inline]
    pub fn armed_by(&self) -> WakeUp {
        self.end.receiver.armed_by()
    }

    /// After bytes of the kernel were taken by an end that stays armed: true if bytes of the
    /// ring are here by now, for which no bell may come ([`Self::wants_bell`]). It is not armed
    /// then.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn look_behind_kernel(&mut self) -> Result<bool, Corrupt> {
        self.end.receiver.look_behind_tcp()
    }

    /// As [`Self::arm`], for an end that leaves what is here where it is. True: more came.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn arm_for_more(&mut self, by: WakeUp) -> Result<bool, Corrupt> {
        self.end.tell_counts();
        self.end.receiver.arm_for_more(by)
    }

    /// Bytes of the ring that can be taken, now or behind those of the kernel, as of the last look.
    pub fn untaken_here(&self) -> usize {
        self.end.receiver.untaken()
    }

    /// This end is about to close or to reset the kernel connection, and reads no more; false: it did neither, after all.
    pub fn reads_no_more(&mut self, ended: bool) {
        self.end.receiver.mark_ended(ended);
    }

    /// This end takes nothing for now, whatever comes, and hears no bell: no bell on it may
    /// stand for the others of its loop. [`Self::disarm`] or [`Self::arm`] end that.
    pub fn mute(&mut self) {
        self.mute_by(WakeUp::Tcp);
    }

    /// The same; a wake-up that is wanted for what came meanwhile comes by this.
    pub fn mute_by(&mut self, by: WakeUp) {
        self.end.receiver.mute_by(by);
    }

    /// See [`ring::Receiver::rings_each`].
    pub fn rings_each(&mut self, each: bool) {
        self.end.receiver.rings_each(each);
    }

    /// See [`ring::Receiver::stay_armed`].
    #[cold]
    pub fn stay_armed(&mut self, each: bool) {
        self.end.receiver.stay_armed(each);
    }

    /// See [`ring::Receiver::sleeper`].
    #[cold]
    pub fn sleeper(&self) -> u32 {
        self.end.receiver.sleeper()
    }

    /// This end looks by itself while its loop is awake.
    pub fn disarm(&mut self) {
        self.end.receiver.disarm();
    }

    /// Stores what was counted since, for whoever looks on: before a loop sleeps, and
    /// whenever a connection that is not looked at then was used.
    #[inline]
    pub fn tell_counts(&mut self) {
        self.end.tell_counts();
    }

    /// Whether anything new is here, for the last look before a loop sleeps.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn look_again(&mut self) -> Result<bool, Corrupt> {
        Ok(matches!(self.end.receiver.look_again()?, Ready::Ring(_)))
    }

    /// Whether a close now has to be a reset: bytes of the ring were never read.
    pub fn has_unread(&mut self) -> bool {
        self.end.receiver.unread().unwrap_or(true)
    }
}
