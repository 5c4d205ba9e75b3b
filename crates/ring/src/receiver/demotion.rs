//! When the ring of an endpoint is used, and how the endpoint is demoted.

use super::Receiver;
use crate::Corrupt;
use crate::layout::{BUSY, ENDED, FINISHED, GAVE_BACK, LEFT, LEFT_BOTH, REFUSED, WANTS_BACK};
use crate::parts::{self, Lane, Opening};
use crate::sync::{Ordering, full_fence};

/// What a demoted endpoint has to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// The peer is giving bytes to the kernel, or about to end its stream: call again,
    /// and once after its end.
    Wait,
    /// The next bytes of the kernel, now or soon, are this many wake-up bytes; all other
    /// bytes behind them are stream bytes.
    Bells(u64),
    /// The unread bytes lie on both paths. They have to be consumed until the peer
    /// requests all of them ([`Receiver::is_wanted_back`]) and none are left
    /// ([`Receiver::left_to_take`]), and then be returned.
    GiveBack,
    /// The ring has bytes that the peer cannot resend in order.
    Lost,
}

impl Receiver {
    /// Permits the peer to use its ring. From now on this endpoint polls it, or has
    /// armed.
    pub fn mark_aware(&self) {
        // Earlier arming is ordered by the fences of `arm` and `wants_bell`.
        self.own.header().aware.store(1, Ordering::Release);
    }

    /// Demotes this endpoint, which consumes nothing from the ring any more. The peer
    /// resends the unread bytes through the kernel, and all later bytes behind them.
    /// [`Receiver::leaving`] follows.
    pub fn leave(&mut self) {
        self.release();
        // Wake-up bytes behind unread TCP bytes, and the ring bytes that they announced.
        let on_both_paths = self.refresh().is_ok()
            && self.lane() == Lane::Tcp
            && self.next.is_some()
            && (self.bells_before_copies().is_none() || self.peer_is_sending());
        // LEAVE-PAIR: release the last head.
        self.own.header().left.store(if on_both_paths { LEFT_BOTH } else { LEFT }, Ordering::Release);
        // LEAVE-PAIR: the peer sees it, or its kernel call is seen behind this.
        full_fence();
    }

    /// Stream bytes that the peer has sent, and this endpoint has not consumed. After
    /// [`Leaving::GiveBack`] these are all.
    pub fn left_to_take(&self) -> u64 {
        let peer = self.peer.header();
        let sent = peer.tail.load(Ordering::Acquire).wrapping_add(peer.sent.data.load(Ordering::Relaxed));
        sent.wrapping_sub(self.stream())
    }

    /// All unread bytes were returned.
    pub fn gave_all_back(&self) {
        // RETURN-PAIR: release the last bytes.
        self.own.header().left.store(GAVE_BACK, Ordering::Release);
    }

    /// Whether the kernel has, or is about to have, bytes of the peer that this endpoint
    /// did not consume.
    pub fn is_given_more(&self) -> bool {
        let peer = self.peer.header();
        // CLOSE-PAIR: acquire the count of the bytes that the kernel accepted.
        self.peer_is_sending() || peer.sent.tcp.load(Ordering::Relaxed) > self.tcp
    }

    /// Whether the peer has called [`crate::Sender::sends_no_more`].
    pub fn peer_has_finished(&self) -> bool {
        self.peer.header().at_kernel.load(Ordering::Relaxed) == FINISHED
    }

    /// Whether a process of this endpoint has demoted it.
    pub fn has_left(&self) -> bool {
        self.own.header().left.load(Ordering::Relaxed) != 0
    }

    /// Whether a process of this endpoint has demoted it, or reads no more.
    pub fn is_over(&self) -> bool {
        self.has_left() || self.own.header().ended.load(Ordering::Relaxed) == ENDED
    }

    /// The step that remains after [`Receiver::leave`], before the kernel connection is
    /// read by a program that cannot discard wake-up bytes.
    ///
    /// # Errors
    /// The peer violated the protocol.
    pub fn leaving(&mut self) -> Result<Leaving, Corrupt> {
        let outlook = self.outlook()?;
        let (own, peer) = (self.own.header(), self.peer.header());
        let on_both_paths = outlook == Leaving::Lost || own.left.load(Ordering::Relaxed) == LEFT_BOTH;
        let finished = self.peer_has_finished();
        match peer.owes.load(Ordering::Relaxed) {
            WANTS_BACK => Ok(Leaving::GiveBack),
            0 if on_both_paths && !finished && outlook != Leaving::Wait => {
                // RETURN-PAIR: the next head releases this.
                own.left.store(LEFT_BOTH, Ordering::Relaxed);
                Ok(Leaving::GiveBack)
            }
            _ => Ok(outlook),
        }
    }

    /// Whether the peer sends nothing more until this endpoint, which reads on meanwhile,
    /// has returned everything; `None`: it requests no return.
    pub fn is_wanted_back(&self) -> Option<bool> {
        // RETURN-PAIR: acquire the count of all bytes sent.
        match self.peer.header().owes.load(Ordering::Acquire) {
            WANTS_BACK => Some(true),
            0 => Some(false),
            _ => None,
        }
    }

    /// After [`Receiver::leave`]: whether the peer has resent the unread bytes, or is
    /// about to.
    pub fn is_answered(&self) -> bool {
        // LEAVE-PAIR: words loaded behind this are no older than the answer.
        is_answer(self.peer.header().owes.load(Ordering::Acquire))
    }

    /// The result of [`Receiver::leaving`] for a peer that takes no bytes back.
    ///
    /// # Errors
    /// The peer violated the protocol.
    pub fn outlook(&mut self) -> Result<Leaving, Corrupt> {
        let peer = self.peer.header();
        // LEAVE-PAIR: acquire the count of the bytes that the kernel accepted.
        let at_kernel = peer.at_kernel.load(Ordering::Acquire);
        if at_kernel == BUSY {
            return Ok(Leaving::Wait);
        }
        // LEAVE-PAIR: resent bytes are not counted before the answer is stored.
        let sent = peer.sent.tcp.load(Ordering::Acquire);
        let owed = peer.owes.load(Ordering::Acquire);
        let answered = is_answer(owed);
        self.refresh()?;
        let peer = self.peer.header();
        if owed == 0 && self.tail != self.head && peer.left.load(Ordering::Relaxed) != 0 {
            // LEAVE-PAIR: it is about to answer, or to refuse.
            return Ok(Leaving::Wait);
        }
        let parts = peer.parts_published.load(Ordering::Relaxed);
        // Resent bytes lie behind all wake-up bytes, in the run that was opened for them.
        let resent =
            (answered && parts > 0).then(|| parts::run_tcp_start(peer, parts.wrapping_sub(1))).flatten();
        let sent = resent.unwrap_or(sent);
        let unread = self.tail != self.head && !answered;
        if let Some(bells) = self.bells_before_copies() {
            return Ok(Leaving::Bells(bells));
        }
        let finished = unread && (at_kernel == FINISHED || owed == REFUSED);
        // LEAVE-PAIR: the peer answers before its FIN, so whether it saw this demotion is
        // certain after the FIN.
        let undecided = finished && owed == 0 && self.own.header().left.load(Ordering::Relaxed) == LEFT;
        let in_kernel = sent.saturating_sub(self.tcp);
        Ok(match (self.lane(), self.next) {
            (Lane::Ring, Some(Opening { tcp_start: Some(start), .. })) if sent > start && !answered => {
                Leaving::Lost
            }
            _ if undecided => Leaving::Wait,
            (Lane::Ring, _) if finished => Leaving::Lost,
            (Lane::Ring, _) => Leaving::Bells(in_kernel),
            (Lane::Tcp, next) => {
                let bells = self.tcp_start.saturating_sub(self.tcp);
                let bells_behind = next.is_some_and(|next| {
                    in_kernel > bells.saturating_add(next.start.wrapping_sub(self.stream()))
                });
                let in_turn = parts::unread(peer, self.parts)? > 1 && unread;
                if bells_behind || in_turn || finished { Leaving::Lost } else { Leaving::Bells(bells) }
            }
        })
    }

    /// How many wake-up bytes lie before the unread bytes, if the kernel has all of
    /// those, in order and contiguous: data and copies of the ring bytes.
    fn bells_before_copies(&self) -> Option<u64> {
        let copies = self.copies()?;
        match (self.lane(), self.next) {
            (Lane::Ring, next) => next
                .and_then(|next| next.tcp_start)
                .is_none_or(|start| start == copies.end)
                .then(|| copies.start.saturating_sub(self.tcp)),
            (Lane::Tcp, next) => {
                let bells = self.tcp_start.saturating_sub(self.tcp);
                let data = next?.start.wrapping_sub(self.stream());
                let behind = self.tcp.saturating_add(bells).saturating_add(data);
                (behind == copies.start).then_some(bells)
            }
        }
    }

    /// Whether the peer is giving bytes to the kernel.
    fn peer_is_sending(&self) -> bool {
        // COPY-PAIR: acquire whether all are there.
        self.peer.header().at_kernel.load(Ordering::Acquire) == BUSY
    }

    /// Publishes whether this endpoint reads no more. To be called before its last
    /// descriptor is closed or its kernel connection is reset, so that no wake-up for a
    /// sleeping loop is sent to it. False: the close or reset did not happen.
    pub fn mark_ended(&self, ended: bool) {
        self.own.header().ended.store(if ended { ENDED } else { 0 }, Ordering::Relaxed);
        // CLOSE-PAIR: a peer that sends a wake-up byte sees it, or is seen behind this.
        full_fence();
    }
}

/// Whether `owes` is the number of bytes that were, or are to be, resent.
fn is_answer(owed: u32) -> bool {
    !matches!(owed, 0 | REFUSED | WANTS_BACK)
}
