//! The operation that a completion belongs to, in the 64 bits that the kernel carries for
//! us.

use crate::engine::watch::Watch;
use crate::id::OpId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// An operation that the view started.
    Op { index: u32, generation: u32 },
    /// A send of a batch, by its place there.
    Batch { place: u32, number: u32 },
    /// A send that waits for room, by its handle.
    Held { index: u32, generation: u32 },
    /// A control request that the engine waits for.
    Control,
    /// The waker's poll.
    Wake,
    /// The poll of a watched descriptor.
    Watch(Watch),
    /// The poll of a handle's doorbell.
    Doorbell { index: u32, generation: u32 },
    /// A request whose failure does not matter: a cancel that came too late, a close.
    Silent,
}

/// Bits of a generation, or of a batch's number, that a token carries: enough to catch a mix-up, and an operation
/// in the kernel's hands keeps its entry anyway.
pub(super) const GENERATION_MASK: u32 = (1 << 24) - 1;

impl Token {
    pub(super) fn op(op: OpId) -> Token {
        Token::Op { index: op.index, generation: op.generation }
    }

    pub(super) fn held(index: u32, generation: u32) -> Token {
        Token::Held { index, generation }
    }

    #[inline]
    pub(super) fn to_bits(self) -> u64 {
        let pack = |tag: u64, index: u32, generation: u32| {
            tag << 56 | u64::from(generation & GENERATION_MASK) << 32 | u64::from(index)
        };
        match self {
            Token::Op { index, generation } => pack(0, index, generation),
            Token::Batch { place, number } => pack(1, place, number),
            Token::Held { index, generation } => pack(2, index, generation),
            Token::Control => pack(3, 0, 0),
            Token::Wake => pack(4, 0, 0),
            Token::Silent => pack(5, 0, 0),
            Token::Watch(watch) => pack(6, watch.number(), 0),
            Token::Doorbell { index, generation } => pack(7, index, generation),
        }
    }

    #[inline]
    pub(super) fn from_bits(bits: u64) -> Token {
        let index = bits as u32;
        let generation = (bits >> 32) as u32 & GENERATION_MASK;
        match bits >> 56 {
            0 => Token::Op { index, generation },
            1 => Token::Batch { place: index, number: generation },
            2 => Token::Held { index, generation },
            3 => Token::Control,
            4 => Token::Wake,
            6 => Watch::from_number(index.into()).map_or(Token::Silent, Token::Watch),
            7 => Token::Doorbell { index, generation },
            _ => Token::Silent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_kernel() {
        for token in [
            Token::Op { index: 7, generation: 3 },
            Token::Batch { place: 31, number: 5 },
            Token::Held { index: u32::MAX - 1, generation: GENERATION_MASK },
            Token::Control,
            Token::Wake,
            Token::Watch(Watch::MONITOR),
            Token::Doorbell { index: 7, generation: 3 },
            Token::Silent,
        ] {
            assert_eq!(Token::from_bits(token.to_bits()), token);
        }
    }
}
