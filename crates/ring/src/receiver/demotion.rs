//! When the ring of an endpoint is used, and how the endpoint is demoted.

use super::Receiver;
use crate::Corrupt;
use crate::layout::{BUSY, DEMOTED, DEMOTED_ON_BOTH, ENDED, FINISHED, REFUSED, RETURNED_ALL, WANTS_RETURN};
use crate::runs::{self, Opening, Path};
use crate::sync::{Ordering, full_fence};

/// What a demoted endpoint has to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DemotionStep {
    /// The peer is giving bytes to the kernel, or about to end its stream: call again,
    /// and once after its end.
    Wait,
    /// The next bytes of the kernel, now or soon, are this many wake-up bytes; all other
    /// bytes behind them are stream bytes.
    WakeUps(u64),
    /// The unread bytes lie on both paths. They have to be consumed until the peer
    /// requests all of them ([`Receiver::is_return_wanted`]) and none are left
    /// ([`Receiver::left_to_consume`]), and then be returned.
    Return,
    /// The ring has bytes that the peer cannot resend in order.
    Lost,
}

impl Receiver {
    /// Permits the peer to use its ring. From now on this endpoint polls it, or has
    /// armed.
    pub fn mark_aware(&self) {
        // Earlier arming is ordered by the fences of `arm` and `wants_tcp_wake_up`.
        self.own.header().aware.store(1, Ordering::Release);
    }

    /// Demotes this endpoint, which consumes nothing from the ring any more. The peer
    /// resends the unread bytes through the kernel, and all later bytes behind them.
    /// [`Receiver::demotion_step`] follows.
    pub fn demote(&mut self) {
        self.release();
        // Wake-up bytes behind unread TCP bytes, and the ring bytes that they announced.
        let on_both_paths = self.refresh().is_ok()
            && self.path() == Path::Tcp
            && self.next.is_some()
            && (self.wake_ups_before_copies().is_none() || self.peer_is_sending());
        // DEMOTION-PAIR: release the last head.
        self.own
            .header()
            .demoted
            .store(if on_both_paths { DEMOTED_ON_BOTH } else { DEMOTED }, Ordering::Release);
        // DEMOTION-PAIR: the peer sees it, or its kernel call is seen behind this.
        full_fence();
    }

    /// Stream bytes that the peer has sent, and this endpoint has not consumed. After
    /// [`DemotionStep::Return`] these are all.
    pub fn left_to_consume(&self) -> u64 {
        let peer = self.peer.header();
        let sent = peer.tail.load(Ordering::Acquire).wrapping_add(peer.sent.data.load(Ordering::Relaxed));
        sent.wrapping_sub(self.stream())
    }

    /// All unread bytes were returned.
    pub fn returned_all(&self) {
        // RETURN-PAIR: release the last bytes.
        self.own.header().demoted.store(RETURNED_ALL, Ordering::Release);
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
    pub fn is_demoted(&self) -> bool {
        self.own.header().demoted.load(Ordering::Relaxed) != 0
    }

    /// Whether a process of this endpoint has demoted it, or reads no more.
    pub fn is_over(&self) -> bool {
        self.is_demoted() || self.own.header().ended.load(Ordering::Relaxed) == ENDED
    }

    /// The step that remains after [`Receiver::demote`], before the kernel connection is
    /// read by a program that cannot discard wake-up bytes.
    ///
    /// # Errors
    /// The peer violated the protocol.
    pub fn demotion_step(&mut self) -> Result<DemotionStep, Corrupt> {
        let step = self.step_without_return()?;
        let (own, peer) = (self.own.header(), self.peer.header());
        let on_both_paths =
            step == DemotionStep::Lost || own.demoted.load(Ordering::Relaxed) == DEMOTED_ON_BOTH;
        let finished = self.peer_has_finished();
        match peer.owes.load(Ordering::Relaxed) {
            WANTS_RETURN => Ok(DemotionStep::Return),
            0 if on_both_paths && !finished && step != DemotionStep::Wait => {
                // RETURN-PAIR: the next head releases this.
                own.demoted.store(DEMOTED_ON_BOTH, Ordering::Relaxed);
                Ok(DemotionStep::Return)
            }
            _ => Ok(step),
        }
    }

    /// Whether the peer sends nothing more until this endpoint, which reads on meanwhile,
    /// has returned everything; `None`: it requests no return.
    pub fn is_return_wanted(&self) -> Option<bool> {
        // RETURN-PAIR: acquire the count of all bytes sent.
        match self.peer.header().owes.load(Ordering::Acquire) {
            WANTS_RETURN => Some(true),
            0 => Some(false),
            _ => None,
        }
    }

    /// After [`Receiver::demote`]: whether the peer has resent the unread bytes, or is
    /// about to.
    pub fn is_answered(&self) -> bool {
        // DEMOTION-PAIR: words loaded behind this are no older than the answer.
        is_answer(self.peer.header().owes.load(Ordering::Acquire))
    }

    /// The result of [`Receiver::demotion_step`] for a peer that takes no bytes back.
    ///
    /// # Errors
    /// The peer violated the protocol.
    pub fn step_without_return(&mut self) -> Result<DemotionStep, Corrupt> {
        let peer = self.peer.header();
        // DEMOTION-PAIR: acquire the count of the bytes that the kernel accepted.
        let at_kernel = peer.at_kernel.load(Ordering::Acquire);
        if at_kernel == BUSY {
            return Ok(DemotionStep::Wait);
        }
        // DEMOTION-PAIR: resent bytes are not counted before the answer is stored.
        let sent = peer.sent.tcp.load(Ordering::Acquire);
        let owed = peer.owes.load(Ordering::Acquire);
        let answered = is_answer(owed);
        self.refresh()?;
        let peer = self.peer.header();
        if owed == 0 && self.tail != self.head && peer.demoted.load(Ordering::Relaxed) != 0 {
            // DEMOTION-PAIR: it is about to answer, or to refuse.
            return Ok(DemotionStep::Wait);
        }
        let runs = peer.runs_published.load(Ordering::Relaxed);
        // Resent bytes lie behind all wake-up bytes, in the run that was opened for them.
        let resent =
            (answered && runs > 0).then(|| runs::run_tcp_start(peer, runs.wrapping_sub(1))).flatten();
        let sent = resent.unwrap_or(sent);
        let unread = self.tail != self.head && !answered;
        if let Some(wake_ups) = self.wake_ups_before_copies() {
            return Ok(DemotionStep::WakeUps(wake_ups));
        }
        let finished = unread && (at_kernel == FINISHED || owed == REFUSED);
        // DEMOTION-PAIR: the peer answers before its FIN, so whether it saw this demotion is
        // certain after the FIN.
        let undecided = finished && owed == 0 && self.own.header().demoted.load(Ordering::Relaxed) == DEMOTED;
        let in_kernel = sent.saturating_sub(self.tcp);
        Ok(match (self.path(), self.next) {
            (Path::Ring, Some(Opening { tcp_start: Some(start), .. })) if sent > start && !answered => {
                DemotionStep::Lost
            }
            _ if undecided => DemotionStep::Wait,
            (Path::Ring, _) if finished => DemotionStep::Lost,
            (Path::Ring, _) => DemotionStep::WakeUps(in_kernel),
            (Path::Tcp, next) => {
                let wake_ups = self.tcp_start.saturating_sub(self.tcp);
                let wake_ups_behind = next.is_some_and(|next| {
                    in_kernel > wake_ups.saturating_add(next.start.wrapping_sub(self.stream()))
                });
                let in_turn = runs::unread(peer, self.runs)? > 1 && unread;
                if wake_ups_behind || in_turn || finished {
                    DemotionStep::Lost
                } else {
                    DemotionStep::WakeUps(wake_ups)
                }
            }
        })
    }

    /// How many wake-up bytes lie before the unread bytes, if the kernel has all of
    /// those, in order and contiguous: data and copies of the ring bytes.
    fn wake_ups_before_copies(&self) -> Option<u64> {
        let copies = self.copies()?;
        match (self.path(), self.next) {
            (Path::Ring, next) => next
                .and_then(|next| next.tcp_start)
                .is_none_or(|start| start == copies.end)
                .then(|| copies.start.saturating_sub(self.tcp)),
            (Path::Tcp, next) => {
                let wake_ups = self.tcp_start.saturating_sub(self.tcp);
                let data = next?.start.wrapping_sub(self.stream());
                let behind = self.tcp.saturating_add(wake_ups).saturating_add(data);
                (behind == copies.start).then_some(wake_ups)
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
    !matches!(owed, 0 | REFUSED | WANTS_RETURN)
}
