//! How an end takes part: from when on its ring is used, and what is left to do when it leaves.

use super::Receiver;
use crate::Corrupt;
use crate::layout::{BUSY, ENDED, FINISHED, GAVE_BACK, LEFT, LEFT_BOTH, REFUSED, WANTS_BACK};
use crate::parts::{self, Lane, Opening};
use crate::sync::{Ordering, full_fence};

/// What an end that leaves has to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// The other end is just giving something to the kernel, or about to end: ask again, and once behind its end.
    Wait,
    /// So many bells are the next that the kernel has, or is about to have; behind them come
    /// stream bytes only, all that are left.
    Bells(u64),
    /// What is left lies in both lanes: to be read on until the other end wants all of it back
    /// ([`Receiver::is_wanted_back`]) and nothing is left to take ([`Receiver::left_to_take`]), and given back then.
    GiveBack,
    /// Bytes lie in the ring that the other end cannot send again in their order.
    Lost,
}

impl Receiver {
    /// Lets the other end use its ring. From now on this end looks there, or has armed.
    pub fn mark_aware(&self) {
        // What was armed before is ordered by the fences of `arm` and `wants_bell`.
        self.own.header().aware.store(1, Ordering::Release);
    }

    /// Takes nothing from the ring any more: the other end sends what was not taken again,
    /// through the kernel, and everything else behind it. [`Receiver::leaving`] follows.
    pub fn leave(&mut self) {
        self.release();
        // Bells behind bytes that nobody took, and the ring's bytes that they announced.
        let both = self.refresh().is_ok()
            && self.lane() == Lane::Tcp
            && self.next.is_some()
            && (self.bells_before_copies().is_none() || self.is_given_now());
        // LEAVE-PAIR: release the last head.
        self.own.header().left.store(if both { LEFT_BOTH } else { LEFT }, Ordering::Release);
        // LEAVE-PAIR: the other end sees it, or what it does at the kernel is seen behind this.
        full_fence();
    }

    /// Stream bytes that the other end has sent, and this end has not taken. Behind [`Leaving::GiveBack`] that is all.
    pub fn left_to_take(&self) -> u64 {
        let peer = self.peer.header();
        let sent = peer.tail.load(Ordering::Acquire).wrapping_add(peer.sent.data.load(Ordering::Relaxed));
        sent.wrapping_sub(self.stream())
    }

    /// All that was left was given back.
    pub fn gave_all_back(&self) {
        // RETURN-PAIR: release the last bytes.
        self.own.header().left.store(GAVE_BACK, Ordering::Release);
    }

    /// Whether the kernel has something, or is about to have it, that the other end gave it and this one did not take.
    pub fn is_given_more(&self) -> bool {
        let peer = self.peer.header();
        // CLOSE-PAIR: acquire the count of what the kernel took.
        self.is_given_now() || peer.sent.tcp.load(Ordering::Relaxed) > self.tcp
    }

    /// Whether the other end has called [`crate::Sender::sends_no_more`].
    pub fn peer_has_finished(&self) -> bool {
        self.peer.header().at_kernel.load(Ordering::Relaxed) == FINISHED
    }

    /// Whether a process of this end has left.
    pub fn has_left(&self) -> bool {
        self.own.header().left.load(Ordering::Relaxed) != 0
    }

    /// Whether a process of this end has left, or reads no more.
    pub fn is_over(&self) -> bool {
        self.has_left() || self.own.header().ended.load(Ordering::Relaxed) == ENDED
    }

    /// What is still to be done after [`Receiver::leave`], before anybody reads the kernel
    /// connection who knows of no bells.
    ///
    /// # Errors
    /// The other end's words are nonsense.
    pub fn leaving(&mut self) -> Result<Leaving, Corrupt> {
        let outlook = self.outlook()?;
        let (own, peer) = (self.own.header(), self.peer.header());
        let both = outlook == Leaving::Lost || own.left.load(Ordering::Relaxed) == LEFT_BOTH;
        let finished = self.peer_has_finished();
        match peer.owes.load(Ordering::Relaxed) {
            WANTS_BACK => Ok(Leaving::GiveBack),
            0 if both && !finished && outlook != Leaving::Wait => {
                // RETURN-PAIR: the next head releases this.
                own.left.store(LEFT_BOTH, Ordering::Relaxed);
                Ok(Leaving::GiveBack)
            }
            _ => Ok(outlook),
        }
    }

    /// Whether the other end has sent all that it will before this end, which reads on meanwhile, has given everything
    /// back; `None`: it wants nothing back.
    pub fn is_wanted_back(&self) -> Option<bool> {
        // RETURN-PAIR: acquire how much was sent in all.
        match self.peer.header().owes.load(Ordering::Acquire) {
            WANTS_BACK => Some(true),
            0 => Some(false),
            _ => None,
        }
    }

    /// Behind [`Receiver::leave`]: whether the other end has sent again, or is about to, what was not taken.
    pub fn is_answered(&self) -> bool {
        // LEAVE-PAIR: no word read behind this is from before the answer.
        is_answer(self.peer.header().owes.load(Ordering::Acquire))
    }

    /// What [`Receiver::leaving`] comes to where the other end cannot take anything back.
    ///
    /// # Errors
    /// The other end's words are nonsense.
    pub fn outlook(&mut self) -> Result<Leaving, Corrupt> {
        let peer = self.peer.header();
        // LEAVE-PAIR: acquire the count of what the kernel took.
        let at_kernel = peer.at_kernel.load(Ordering::Acquire);
        if at_kernel == BUSY {
            return Ok(Leaving::Wait);
        }
        // LEAVE-PAIR: bytes that were sent again are not counted before the answer is there.
        let sent = peer.sent.tcp.load(Ordering::Acquire);
        let owes = peer.owes.load(Ordering::Acquire);
        let answered = is_answer(owes);
        self.refresh()?;
        let peer = self.peer.header();
        if owes == 0 && self.tail != self.head && peer.left.load(Ordering::Relaxed) != 0 {
            // LEAVE-PAIR: it is about to answer, or to refuse.
            return Ok(Leaving::Wait);
        }
        let parts = peer.parts_published.load(Ordering::Relaxed);
        // Bytes sent again lie behind all bells, in the part that was opened for them.
        let again = (answered && parts > 0).then(|| parts::opened_at(peer, parts.wrapping_sub(1))).flatten();
        let sent = again.unwrap_or(sent);
        let unread = self.tail != self.head && !answered;
        if let Some(bells) = self.bells_before_copies() {
            return Ok(Leaving::Bells(bells));
        }
        let finished = unread && (at_kernel == FINISHED || owes == REFUSED);
        // LEAVE-PAIR: whether it saw that this end left is certain behind its FIN, before which it answers.
        let undecided = finished && owes == 0 && self.own.header().left.load(Ordering::Relaxed) == LEFT;
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

    /// How many bells lie before all that was not taken, if the kernel has that in its order and with nothing in between,
    /// copies of what is in the ring.
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

    /// Whether the other end is just giving something to the kernel.
    fn is_given_now(&self) -> bool {
        // COPY-PAIR: acquire whether all are there.
        self.peer.header().at_kernel.load(Ordering::Acquire) == BUSY
    }

    /// Says whether this end reads no more; to be called before its last descriptor is closed or its kernel connection is
    /// reset, so that nobody rings on it for a loop that sleeps. False: it did not come to that.
    pub fn mark_ended(&self, ended: bool) {
        self.own.header().ended.store(if ended { ENDED } else { 0 }, Ordering::Relaxed);
        // CLOSE-PAIR: one who rings sees it, or is seen behind this.
        full_fence();
    }
}

/// Whether `owes` says how much was, or is, to be sent again.
fn is_answer(owes: u32) -> bool {
    !matches!(owes, 0 | REFUSED | WANTS_BACK)
}
