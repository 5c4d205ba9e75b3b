//! Answers to segments that no honest peer sends.

use crate::time::Time;

/// Answers of a second, of one connection: the base, and the range of a random part, so that their
/// number gives an attacker nothing (RFC 5961, 7; CVE-2016-5696).
pub(crate) const BASE: u64 = 4;
pub(crate) const SPREAD: u64 = 8;

/// The answers of the current second.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Challenges {
    second: u32,
    count: u8,
}

impl Challenges {
    /// Counts an answer, if there may be another one.
    pub(crate) fn may_answer(&mut self, now: Time, most: u64) -> bool {
        let second = (now.micros() / 1_000_000) as u32;
        if self.second != second {
            *self = Challenges { second, count: 0 };
        }
        let may = u64::from(self.count) < most;
        self.count += u8::from(may);
        may
    }
}
