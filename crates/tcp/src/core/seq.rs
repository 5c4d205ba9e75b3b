//! Sequence numbers.

use std::fmt;
use std::ops::{Add, Sub};

/// A sequence number; also the position of a byte in its stream. Both wrap at 2^32
/// (RFC 9293, 3.4), so there is an order only between numbers less than 2^31 apart.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Seq(pub u32);

impl Seq {
    /// Whether this number comes before the other.
    pub const fn before(self, other: Seq) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// Whether this number comes after the other.
    pub const fn after(self, other: Seq) -> bool {
        other.before(self)
    }

    /// Whether it comes before the other or is the same.
    pub const fn upto(self, other: Seq) -> bool {
        !other.before(self)
    }

    /// The later of two.
    pub const fn max(self, other: Seq) -> Seq {
        if self.before(other) { other } else { self }
    }

    /// The earlier of two.
    pub const fn min(self, other: Seq) -> Seq {
        if self.before(other) { self } else { other }
    }

    /// How far this number is past the other; 0 if it comes before.
    pub const fn past(self, other: Seq) -> u32 {
        if self.before(other) { 0 } else { self.0.wrapping_sub(other.0) }
    }
}

impl Add<u32> for Seq {
    type Output = Seq;

    fn add(self, bytes: u32) -> Seq {
        Seq(self.0.wrapping_add(bytes))
    }
}

impl Sub<u32> for Seq {
    type Output = Seq;

    fn sub(self, bytes: u32) -> Seq {
        Seq(self.0.wrapping_sub(bytes))
    }
}

impl Sub for Seq {
    type Output = u32;

    fn sub(self, other: Seq) -> u32 {
        self.0.wrapping_sub(other.0)
    }
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Consecutive positions, from `start` up to, but not including, `end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The first.
    pub start: Seq,
    /// The one after the last.
    pub end: Seq,
}

impl Span {
    /// From `start` up to `end`.
    pub const fn new(start: Seq, end: Seq) -> Span {
        Span { start, end }
    }

    /// Its bytes.
    pub fn len(self) -> u32 {
        self.end.past(self.start)
    }

    /// Whether it has none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Whether all of the other is in it.
    pub fn contains(self, other: Span) -> bool {
        self.start.upto(other.start) && other.end.upto(self.end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The order holds across the wrap, for all distances below 2^31.
        #[test]
        fn order_holds_across_the_wrap(at: u32, distance in 1u32..1 << 31) {
            let (a, b) = (Seq(at), Seq(at) + distance);
            prop_assert!(a.before(b) && b.after(a) && a.upto(b) && !b.upto(a));
            prop_assert_eq!((a.max(b), a.min(b)), (b, a));
            prop_assert_eq!((b.past(a), a.past(b), b - a), (distance, 0, distance));
        }
    }
}
