//! Answers to segments that no honest peer sends.

use crate::time::Time;

/// Answers of a second, of one connection: the base, and the range of a random part, so that their
/// number gives an attacker nothing (RFC 5961, 7; CVE-2016-5696).
pub(crate) const BASE: u64 = 4;
pub(crate) const SPREAD: u64 = 8;

/// Enough for the largest number.
const COUNT_BITS: u32 = 4;

/// The answers of the current second: its number above, their count in the lower bits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Challenges(u32);

impl Challenges {
    /// Counts an answer, if there may be another one.
    pub(crate) fn may_answer(&mut self, now: Time, most: u64) -> bool {
        let second = ((now.micros() / 1_000_000) as u32) << COUNT_BITS;
        if self.0 >> COUNT_BITS != second >> COUNT_BITS {
            self.0 = second;
        }
        let may = u64::from(self.0 - second) < most;
        self.0 += u32::from(may);
        may
    }
}
