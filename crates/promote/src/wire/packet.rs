//! The encoding of a message's fields in a packet, behind its header.

use super::fields::{NAME_BYTES, Token};
use crate::Reason;

/// Version of the messages.
pub const VERSION: u16 = 1;
/// Bytes of the longest packet that any version may send.
pub const MOST_BYTES: usize = 256;

/// Bytes of the longest message of this version.
const LONGEST: usize = HEADER + 8 + NAME_BYTES;
/// u16 type, u16 version, u32 length of the whole packet.
pub(super) const HEADER: usize = 8;

/// An encoded message.
#[derive(Clone, Copy)]
pub struct Packet<const ROOM: usize = LONGEST> {
    bytes: [u8; ROOM],
    len: usize,
}

impl<const ROOM: usize> Packet<ROOM> {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Why a packet is not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It is shorter than a header.
    #[error("a packet of {0} bytes is shorter than a header")]
    Short(usize),
    /// The length in the header is not the packet's.
    #[error("a packet of {found} bytes claims to have {claimed}")]
    Length {
        /// Bytes of the packet.
        found: usize,
        /// Bytes that the header states.
        claimed: u32,
    },
    /// Another version of the messages.
    #[error("version {0} of the messages is not spoken here")]
    Version(u16),
    /// No message of the sending side has that type.
    #[error("type {0} is unknown, or of the other side")]
    Type(u16),
    /// Messages of this type have another size.
    #[error("a message of type {kind} has {found} bytes, not {expected}")]
    Size {
        /// Its type.
        kind: u16,
        /// Bytes of the packet.
        found: usize,
        /// Bytes of all messages of its type.
        expected: usize,
    },
    /// A token is 0.
    #[error("a token is 0")]
    Token,
    /// No section has that number.
    #[error("section {0} is unknown")]
    Section(u32),
    /// A field has an invalid value.
    #[error("a field of a record has an impossible value")]
    Field,
    /// No reason has that number.
    #[error("reason {0} is unknown")]
    Reason(u32),
    /// The oldest version in a hello is newer than the newest.
    #[error("versions {0} to {1} are none")]
    Range(u32, u32),
}

/// Appends fields to a packet, which has room for its message.
pub(super) struct Writer<const ROOM: usize = LONGEST>(Packet<ROOM>);

impl<const ROOM: usize> Writer<ROOM> {
    pub(super) fn new(kind: u16) -> Writer<ROOM> {
        Writer(Packet { bytes: [0; ROOM], len: 0 })
            .bytes(&kind.to_le_bytes())
            .bytes(&VERSION.to_le_bytes())
            .u32(0)
    }

    pub(super) fn u32(self, value: u32) -> Writer<ROOM> {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn u64(self, value: u64) -> Writer<ROOM> {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn bytes(mut self, bytes: &[u8]) -> Writer<ROOM> {
        let packet = &mut self.0;
        packet.bytes[packet.len..packet.len + bytes.len()].copy_from_slice(bytes);
        packet.len += bytes.len();
        self
    }

    pub(super) fn end(mut self) -> Packet<ROOM> {
        let len = self.0.len as u32;
        self.0.bytes[4..HEADER].copy_from_slice(&len.to_le_bytes());
        self.0
    }
}

/// Reads the fields of a packet one after the other; `expect` has checked their total
/// size.
pub(super) struct Reader<'a> {
    kind: u16,
    pub(super) fields: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(packet: &'a [u8]) -> Result<(u16, Reader<'a>), DecodeError> {
        let Some((header, fields)) = packet.split_first_chunk::<HEADER>() else {
            return Err(DecodeError::Short(packet.len()));
        };
        let kind = u16::from_le_bytes([header[0], header[1]]);
        let version = u16::from_le_bytes([header[2], header[3]]);
        let claimed = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        if usize::try_from(claimed) != Ok(packet.len()) || packet.len() > MOST_BYTES {
            return Err(DecodeError::Length { found: packet.len(), claimed });
        }
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        Ok((kind, Reader { kind, fields }))
    }

    pub(super) fn expect(&self, len: usize) -> Result<(), DecodeError> {
        if self.fields.len() == len {
            return Ok(());
        }
        Err(DecodeError::Size { kind: self.kind, found: HEADER + self.fields.len(), expected: HEADER + len })
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        match self.fields.split_first_chunk::<N>() {
            Some((field, rest)) => {
                self.fields = rest;
                *field
            }
            None => [0; N],
        }
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    pub(super) fn token(&mut self) -> Result<Token, DecodeError> {
        Token::new(self.u64()).ok_or(DecodeError::Token)
    }

    pub(super) fn reason(&mut self) -> Result<Reason, DecodeError> {
        let number = self.u32();
        Reason::from_number(number).ok_or(DecodeError::Reason(number))
    }
}
