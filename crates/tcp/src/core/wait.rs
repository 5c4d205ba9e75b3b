//! TIME_WAIT: what is left of a connection that is over.

use super::flow::{Hot, flag};
use super::handshake::is_older;
use super::index::Kind;
use super::listen::timestamp;
use super::seq::Seq;
use super::tuple::Tuple;
use super::wire::{Flags, Head, Timestamps};
use super::{Stack, Verdict};
use crate::control::Control;
use crate::event::Reason;
use crate::time::Time;

/// A connection in TIME_WAIT.
pub(crate) struct Wait {
    tuple: Tuple,
    snd_nxt: Seq,
    rcv_nxt: Seq,
    ts_recent: u32,
    ts_offset: u32,
    window: u16,
    timestamps: bool,
}

impl<C: Control> Stack<C> {
    /// Replaces a flow, which is no longer in the index, by its TIME_WAIT.
    pub(crate) fn begin_wait(&mut self, now: Time, hot: &Hot) {
        if self.waits.is_full() {
            let slot = self.wait_hand % (self.waits.bound() as u32).max(1);
            self.wait_hand = slot + 1;
            if self.waits.is_taken(slot) {
                self.end_wait(slot);
            }
        }
        let wait = Wait {
            tuple: hot.tuple,
            snd_nxt: hot.snd_nxt,
            rcv_nxt: hot.rcv_nxt,
            ts_recent: hot.ts_recent,
            ts_offset: hot.ts_offset,
            window: (hot.rcv_edge.past(hot.rcv_nxt) >> hot.rcv_scale()).min(65_535) as u16,
            timestamps: hot.has(flag::TIMESTAMPS),
        };
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

    /// A segment for a connection in TIME_WAIT (RFC 9293, 3.10.7.4).
    pub(crate) fn on_wait(&mut self, now: Time, slot: u32, head: &Head, len: u32) -> Verdict {
        // RFC 1337, 3 (F1): an RST must not end it, or old segments meet a new connection.
        if head.flags.has(Flags::RST) {
            return self.refuse(Reason::Over);
        }
        let wait = &self.waits[slot];
        let (tuple, last) = (wait.tuple, wait.snd_nxt);
        if head.flags.has(Flags::SYN) && !head.flags.has(Flags::ACK) {
            // RFC 6191, 2: a newer timestamp, else a sequence number above the last (RFC 9293,
            // 3.6.1), begin a new connection.
            let newer = match head.timestamps {
                Some(stamps) if wait.timestamps && stamps.value != wait.ts_recent => {
                    !is_older(stamps, wait.ts_recent)
                }
                _ => head.seq.after(wait.rcv_nxt),
            };
            if newer && let Some(listener) = self.listener_for(&tuple) {
                self.end_wait(slot);
                return self.on_syn(now, tuple, head, listener, Some(last));
            }
        }
        // A pure ACK of exactly what is expected needs no answer: two of these would go on.
        let expected = len == 0
            && !head.flags.has(Flags::FIN)
            && !head.flags.has(Flags::SYN)
            && head.seq == wait.rcv_nxt;
        if !expected {
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
            self.reply(tuple, answer);
            if head.flags.has(Flags::FIN) {
                self.restart_wait(now, slot);
            }
        }
        self.refuse(Reason::Over)
    }
}
