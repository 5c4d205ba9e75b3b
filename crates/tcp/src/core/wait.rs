//! TIME_WAIT: what is left of a connection that is over.

use super::challenges::Challenges;
use super::flow::{Hot, flag};
use super::handshake::is_older;
use super::index::Kind;
use super::listen::timestamp;
use super::seq::Seq;
use super::tuple::Tuple;
use super::wire::{Flags, Head, Timestamps};
use super::{Stack, Verdict};
use crate::config::Marking;
use crate::control::Control;
use crate::event::Reason;
use crate::time::{Deadline, Time};

/// A connection in TIME_WAIT.
#[derive(Clone, Copy)]
pub(crate) struct Wait {
    tuple: Tuple,
    snd_nxt: Seq,
    rcv_nxt: Seq,
    ts_recent: u32,
    ts_offset: u32,
    window: u16,
    timestamps: bool,
    marking: Marking,
    challenges: Challenges,
}

/// What a segment does to a connection in TIME_WAIT.
enum Outcome {
    Nothing,
    /// It is answered, as often as a challenge.
    Answer(Head),
    /// A FIN came again: it is answered, and the time begins anew.
    Restart(Head),
    /// A SYN begins another connection, which this listener gets.
    Reopen(u32),
}

impl Wait {
    fn of(hot: &Hot, marking: Marking) -> Wait {
        Wait {
            tuple: hot.tuple,
            snd_nxt: hot.snd_nxt,
            rcv_nxt: hot.rcv_nxt,
            ts_recent: hot.ts_recent,
            ts_offset: hot.ts_offset,
            // Rounded up, as in every other segment: the right edge must not move left.
            window: hot.rcv_edge.past(hot.rcv_nxt).div_ceil(1 << hot.rcv_scale()).min(65_535) as u16,
            timestamps: hot.has(flag::TIMESTAMPS),
            marking,
            challenges: Challenges::default(),
        }
    }
}

impl<C: Control> Stack<C> {
    /// Replaces a flow, which is no longer in the index, by its TIME_WAIT.
    pub(crate) fn begin_wait(&mut self, now: Time, slot: u32, hot: &Hot) {
        let wait = Wait::of(hot, self.choices.of(slot).marking);
        if self.waits.is_full() {
            let slot = self.wait_hand % (self.waits.bound() as u32).max(1);
            self.wait_hand = slot + 1;
            if self.waits.is_taken(slot) {
                self.end_wait(slot);
            }
        }
        if let Some(slot) = self.waits.insert(wait) {
            self.index.insert(self.secret.hash(&hot.tuple), Kind::Wait, slot);
            self.restart_wait(now, slot);
        }
    }

    pub(crate) fn wait_tuple(&self, slot: u32) -> Tuple {
        self.waits[slot].tuple
    }

    fn restart_wait(&mut self, now: Time, slot: u32) {
        let owner = self.wait_owner(slot);
        self.wheel.cancel(owner);
        self.wheel.schedule(owner, now.after(self.profile.time_wait).tick_after());
    }

    pub(crate) fn end_wait(&mut self, slot: u32) {
        let hash = self.secret.hash(&self.waits[slot].tuple);
        self.index.remove(hash, Kind::Wait, slot);
        self.wheel.cancel(self.wait_owner(slot));
        self.waits.remove(slot);
    }

    /// A segment for a connection in TIME_WAIT.
    pub(crate) fn on_wait(&mut self, now: Time, slot: u32, head: &Head, len: u32) -> Verdict {
        let wait = self.waits[slot];
        match self.in_wait(now, &wait, head, len) {
            Outcome::Nothing => {}
            Outcome::Answer(answer) => self.answer_wait(now, slot, answer),
            Outcome::Restart(answer) => {
                self.answer_wait(now, slot, answer);
                self.restart_wait(now, slot);
            }
            Outcome::Reopen(listener) => {
                self.end_wait(slot);
                return self.on_syn(now, wait.tuple, head, listener, Some(wait.snd_nxt));
            }
        }
        self.refuse(Reason::Over)
    }

    /// The same, where the program still has the handle.
    pub(crate) fn on_flow_wait(&mut self, now: Time, slot: u32, head: &Head, len: u32) -> Verdict {
        let wait = Wait::of(&self.flows[slot], self.choices.of(slot).marking);
        match self.in_wait(now, &wait, head, len) {
            Outcome::Nothing => {}
            Outcome::Answer(answer) => self.answer_flow_wait(now, slot, answer),
            Outcome::Restart(answer) => {
                self.answer_flow_wait(now, slot, answer);
                self.flows[slot].life_at = Deadline::at(now.after(self.profile.time_wait));
            }
            Outcome::Reopen(listener) => {
                self.end(slot, None);
                return self.on_syn(now, wait.tuple, head, listener, Some(wait.snd_nxt));
            }
        }
        self.refuse(Reason::Over)
    }

    /// Two hosts in TIME_WAIT, or a forged segment at both, must not make them answer each other for ever.
    fn answer_wait(&mut self, now: Time, slot: u32, answer: Head) {
        let most = self.challenges_now();
        let wait = &mut self.waits[slot];
        if wait.challenges.may_answer(now, most) {
            let (tuple, marking) = (wait.tuple, wait.marking);
            self.reply_marked(tuple, answer, marking);
        }
    }

    fn answer_flow_wait(&mut self, now: Time, slot: u32, answer: Head) {
        let most = self.challenges_now();
        if self.lasting[slot as usize].challenges.may_answer(now, most) {
            self.reply_marked(self.flows[slot].tuple, answer, self.choices.of(slot).marking);
        }
    }

    /// RFC 9293, 3.10.7.4, for TIME-WAIT.
    fn in_wait(&self, now: Time, wait: &Wait, head: &Head, len: u32) -> Outcome {
        // RFC 1337, 3 (F1): an RST must not end it, or old segments meet a new connection. And no
        // honest peer sends a segment with neither SYN nor ACK.
        let known = head.flags.has(Flags::SYN) || head.flags.has(Flags::ACK);
        if head.flags.has(Flags::RST) || !known {
            return Outcome::Nothing;
        }
        if head.flags.has(Flags::SYN) && !head.flags.has(Flags::ACK) {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.6.1
            //# This algorithm for reducing TIME-WAIT is a Best Current Practice that SHOULD be implemented
            //# since Timestamp Options are commonly used, and using them to reduce TIME-WAIT provides
            //# benefits for busy Internet servers (SHLD-4).
            // RFC 6191, 2: a newer or the first timestamp, else a sequence number above the last
            // (RFC 9293, 3.6.1), begin a new connection.
            let newer = match head.timestamps {
                // No segment of the old connection has timestamps, so none passes for one of the new.
                Some(_) if !wait.timestamps => true,
                Some(stamps) if stamps.value != wait.ts_recent => !is_older(stamps, wait.ts_recent),
                _ => head.seq.after(wait.rcv_nxt),
            };
            if newer && let Some(listener) = self.listener_for(&wait.tuple) {
                return Outcome::Reopen(listener);
            }
        }
        let fin = head.flags.has(Flags::FIN);
        // A pure ACK of exactly what is expected needs no answer: two of these would go on.
        if len == 0 && !fin && !head.flags.has(Flags::SYN) && head.seq == wait.rcv_nxt {
            return Outcome::Nothing;
        }
        let timestamps = wait
            .timestamps
            .then(|| Timestamps { value: timestamp(now, wait.ts_offset), echo: wait.ts_recent });
        let answer = Head {
            seq: wait.snd_nxt,
            ack: wait.rcv_nxt,
            flags: Flags::ACK,
            window: wait.window,
            timestamps,
            ..Head::default()
        };
        if fin { Outcome::Restart(answer) } else { Outcome::Answer(answer) }
    }
}
