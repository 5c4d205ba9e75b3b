//! SYN cookies (RFC 4987, 3.6): while the table of half-open connections is full, what a SYN offers goes
//! into the sequence number and the timestamp of the answer, and nothing is kept. As Linux has them.

use super::challenges::Challenges;
use super::flow::flag;
use super::listen::{MSS_MIN, Syn};
use super::tuple::Tuple;
use super::wire::Head;
use super::{Stack, Verdict};
use crate::control::Control;
use crate::time::Time;

/// A cookie is as old as the period in which it was made; those of the current and the last one hold.
const PERIOD_MICROS: u64 = 64_000_000;
/// Segment sizes that a cookie names: those that peers offer.
const SIZES: [u16; 8] = [MSS_MIN, 536, 1_024, 1_220, 1_360, 1_440, 1_460, 8_960];

/// Bits of the sequence number: keyed hash, size, period.
const HASH_BITS: u32 = 24;
const SIZE_BITS: u32 = 3;
/// Bits of the timestamp: window scale, and whether SACK is permitted.
const STAMP_BITS: u32 = 5;
const NO_SCALE: u32 = 15;
const SACK: u32 = 1 << 4;

fn period(now: Time) -> u64 {
    now.micros() / PERIOD_MICROS
}

impl<C: Control> Stack<C> {
    /// The cookie of a SYN with this number, in a period.
    fn cookie(&self, tuple: &Tuple, irs: u32, size: u32, period: u64) -> u32 {
        let hash = self.secret.cookie(tuple, irs, size, period) & ((1 << HASH_BITS) - 1);
        (period as u32) << (HASH_BITS + SIZE_BITS) | size << HASH_BITS | hash
    }

    /// Answers a SYN for which there is no place.
    pub(crate) fn answer_with_cookie(&mut self, now: Time, mut syn: Syn) -> Verdict {
        let size = SIZES.iter().rposition(|&size| size <= syn.mss).unwrap_or(0);
        syn.iss.0 = self.cookie(&syn.tuple, syn.irs.0, size as u32, period(now));
        syn.ecn = false;
        if syn.flags & flag::TIMESTAMPS == 0 {
            // There is no place for these.
            (syn.scale, syn.flags) = (None, 0);
        }
        let mut head = self.syn_ack(now, &syn);
        if let Some(stamps) = &mut head.timestamps {
            let sack = if syn.flags & flag::SACK != 0 { SACK } else { 0 };
            let chosen = syn.scale.map_or(NO_SCALE, u32::from) | sack;
            // Never ahead of the clock, which goes on from here.
            let back = stamps.value.wrapping_sub(chosen) & ((1 << STAMP_BITS) - 1);
            stamps.value = stamps.value.wrapping_sub(back);
        }
        self.cookies_until = now.plus(2 * PERIOD_MICROS);
        self.reply_marked(syn.tuple, head, self.listeners[syn.listener].marking);
        Verdict::Nothing
    }

    /// The half-open connection of which a segment without one says that it was answered with a cookie.
    pub(crate) fn of_cookie(&self, now: Time, tuple: &Tuple, head: &Head, listener: u32) -> Option<Syn> {
        if now > self.cookies_until || self.listeners[listener].ask {
            return None;
        }
        let (iss, irs) = (head.ack - 1, head.seq - 1);
        let size = iss.0 >> HASH_BITS & ((1 << SIZE_BITS) - 1);
        let current = period(now);
        let made = [current, current.saturating_sub(1)];
        if !made.into_iter().any(|period| self.cookie(tuple, irs.0, size, period) == iss.0) {
            return None;
        }
        let stamps = head.timestamps.filter(|_| self.offers.timestamps);
        let chosen = stamps.map_or(NO_SCALE, |stamps| stamps.echo & ((1 << STAMP_BITS) - 1));
        let sack = if chosen & SACK != 0 { flag::SACK } else { 0 };
        let scale = (chosen & NO_SCALE != NO_SCALE).then_some((chosen & NO_SCALE) as u8);
        Some(Syn {
            tuple: *tuple,
            listener,
            irs,
            iss,
            ts_recent: stamps.map_or(0, |stamps| stamps.value),
            ts_offset: self.secret.timestamp_offset(tuple),
            sent_at: now,
            mss: SIZES[size as usize].min(self.listener_mss(listener, tuple)),
            scale,
            flags: if stamps.is_some() { flag::TIMESTAMPS | sack } else { 0 },
            ecn: false,
            retries: 0,
            // When it was answered is not known.
            ambiguous: true,
            challenges: Challenges::default(),
            asked: false,
        })
    }
}
