//! When a peer that is not armed counts as waiting outside the library, and not as about to poll: a
//! peer on the same core is always about to.

use std::time::Duration;

use crate::clock::{self, Instant};
use crate::sockets::Promoted;

/// How long bytes lie unread before that, at first. Each wake-up doubles the time, up to
/// `DOUBLED_MOST` times.
const AT_FIRST: Duration = Duration::from_millis(1);
const DOUBLED_MOST: u8 = 4;
/// A peer that answers a wake-up within this time was waiting for it.
const SOON: Duration = Duration::from_micros(300);

/// What was measured of one peer.
#[derive(Debug, Default)]
pub(crate) struct Unseen {
    /// The bytes that it had consumed, and since when.
    consumed: u64,
    since: Instant,
    /// When it was woken since.
    woken: Option<Instant>,
    doubled: u8,
}

impl Unseen {
    /// When it is to be woken: at most once for the same bytes. `consumed`: what it has consumed
    /// now; `peer_woke_at`: its last wake-up for us.
    fn due(&mut self, consumed: u64, peer_woke_at: Instant, now: Instant) -> Option<Instant> {
        if self.consumed != consumed || self.since.is_zero() {
            if self.woken.take().is_some_and(|woken| (woken..woken + SOON).contains(&peer_woke_at)) {
                self.doubled = 0;
            }
            (self.consumed, self.since) = (consumed, now);
        }
        self.woken.is_none().then(|| self.since + AT_FIRST * (1 << self.doubled))
    }

    fn note_wake_up(&mut self, now: Instant) {
        self.woken = Some(now);
        self.doubled = (self.doubled + 1).min(DOUBLED_MOST);
    }
}

impl Promoted {
    /// Before a sleep: wakes a peer over TCP that may wait unseen, if that is due. Returns when it
    /// will be.
    pub(crate) fn wake_unseen_if_due(&mut self, fd: std::ffi::c_int) -> Option<Instant> {
        let consumed = self.connection.has_unseen_bytes()?;
        let (now, peer_woke_at) = (clock::now(), Duration::from_nanos(self.connection.peer_woke_at()));
        let due = self.unseen.due(consumed, peer_woke_at, now)?;
        if now < due {
            return Some(due);
        }
        self.unseen.note_wake_up(now);
        self.wake_unseen(fd);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Sends messages, each of which the peer consumes and answers after a time, or that time after
    /// its wake-up if it waits unseen. Returns how long each answer took.
    fn answers(
        unseen: &mut Unseen,
        now: &mut Instant,
        count: u64,
        after: Duration,
        waits_unseen: bool,
    ) -> Vec<Duration> {
        (0..count)
            .map(|_| {
                let sent = *now;
                let consumed = unseen.consumed + 1;
                let due = unseen.due(consumed, sent, sent).unwrap();
                let answered = if waits_unseen { due + after } else { sent + after };
                if due < answered {
                    unseen.note_wake_up(due);
                    assert_eq!(unseen.due(consumed, sent, answered), None, "once");
                }
                *now = answered;
                // The next message finds the time of the peer's wake-up.
                unseen.due(consumed + 1, answered, answered);
                answered - sent
            })
            .collect()
    }

    #[test]
    fn a_slow_peer_is_woken_a_few_times_and_an_unseen_one_after_a_millisecond() {
        let (mut unseen, mut now) = (Unseen::default(), MS);
        answers(&mut unseen, &mut now, 100, 5 * MS, false);
        assert_eq!(unseen.doubled, 3, "8 ms are longer than it takes");
        answers(&mut unseen, &mut now, 100, 500 * MS, false);
        assert_eq!(unseen.doubled, DOUBLED_MOST);
        let took = answers(&mut unseen, &mut now, 3, SOON / 2, true);
        assert_eq!(took, [16 * MS + SOON / 2, MS + SOON / 2, MS + SOON / 2]);
    }

    #[test]
    fn time_goes_on_from_call_to_call() {
        let mut unseen = Unseen { doubled: 3, ..Unseen::default() };
        for call in 1..8 {
            assert_eq!(unseen.due(64, MS, call * MS), Some(9 * MS));
        }
        assert_eq!(unseen.due(128, MS, 8 * MS), Some(16 * MS), "other bytes");
    }
}
