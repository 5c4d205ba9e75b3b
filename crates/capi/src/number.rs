//! Handles, operations and lightweight sockets as numbers.
//!
//! Bit 31 of a handle or operation is always 0, and so is the sign: a C program that
//! keeps the result of a call in an `int` still sees errors, and only errors, as negative.

use megapipe::{Handle, OpId};

/// Bits of a handle's index. `Config::handles_max` of a C channel is bounded by them.
pub(crate) const HANDLE_BITS: u32 = 20;
/// Bits of an operation's index, for `Config::operations_max`.
pub(crate) const OP_BITS: u32 = 24;
/// Where a handle keeps its channel's number.
const CHANNEL_SHIFT: u32 = 53;
/// The highest number of a channel; 0 is none.
pub(crate) const CHANNEL_MAX: u16 = 1023;

/// Marks lightweight sockets; no descriptor is as high, since the kernel's limit
/// (`fs.nr_open`) stays below 2^30.
pub(crate) const LWSOCKET: i32 = 1 << 30;

/// A handle with the number of its channel.
#[inline]
pub(crate) fn from_handle(channel: u16, handle: Handle) -> i64 {
    if handle == Handle::NONE {
        return 0;
    }
    pack(handle.to_bits(), HANDLE_BITS) | i64::from(channel) << CHANNEL_SHIFT
}

/// The channel's number and the handle; `None` if no call ever returned `number`.
#[inline]
pub(crate) fn to_handle(number: i64) -> Option<(u16, Handle)> {
    if number <= 0 || number & 1 << 31 != 0 {
        return None;
    }
    let channel = (number >> CHANNEL_SHIFT) as u16;
    let name = number & ((1 << CHANNEL_SHIFT) - 1);
    Some((channel, Handle::from_bits(unpack(name, HANDLE_BITS))))
}

#[inline]
pub(crate) fn from_op(op: OpId) -> i64 {
    if op == OpId::NONE { 0 } else { pack(op.to_bits(), OP_BITS) }
}

#[inline]
pub(crate) fn to_op(number: i64) -> Option<OpId> {
    if number <= 0 || number & 1 << 31 != 0 {
        return None;
    }
    Some(OpId::from_bits(unpack(number, OP_BITS)))
}

/// `generation:32 index:32` with an index of `bits` bits, closed up around bit 31.
#[inline]
fn pack(name: u64, bits: u32) -> i64 {
    let index = name & ((1 << bits) - 1);
    let generation = name >> 32;
    let dense = generation << bits | index;
    ((dense >> 31) << 32 | dense & 0x7fff_ffff) as i64
}

#[inline]
fn unpack(number: i64, bits: u32) -> u64 {
    let number = number as u64;
    let dense = (number >> 32) << 31 | number & 0x7fff_ffff;
    let index = dense & ((1 << bits) - 1);
    (dense >> bits) << 32 | index
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_comes_back_and_is_never_negative() {
        for generation in [1, 2, 0x7ff, 0x800, 0x8000_0000, 0xffff_fffe_u64] {
            for index in [0, 1, (1 << HANDLE_BITS) - 1] {
                let handle = Handle::from_bits(generation << 32 | index);
                let number = from_handle(CHANNEL_MAX, handle);
                assert!(number > 0 && number as i32 >= 0, "{generation:x} {index:x}");
                assert_eq!(to_handle(number), Some((CHANNEL_MAX, handle)));
            }
        }
    }

    #[test]
    fn an_operation_comes_back_and_is_never_negative() {
        for generation in [1, 0x7f, 0x80, 0x8000_0000, 0xffff_fffe_u64] {
            let op = OpId::from_bits(generation << 32 | ((1 << OP_BITS) - 1));
            let number = from_op(op);
            assert!(number > 0 && number as i32 >= 0);
            assert_eq!(to_op(number), Some(op));
        }
    }

    #[test]
    fn no_number_is_made_of_nothing() {
        assert_eq!(from_handle(1, Handle::NONE), 0);
        assert_eq!(from_op(OpId::NONE), 0);
        for number in [0, -1, i64::MIN, 1 << 31] {
            assert_eq!(to_handle(number), None);
            assert_eq!(to_op(number), None);
        }
    }
}
