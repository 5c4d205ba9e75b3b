//! What fields of messages mean: tokens and names.

use std::fmt;

/// Bytes of a client's name.
pub const NAME_BYTES: usize = 32;

/// Names an offer, and later the promoted connection, in the talk of one client with the
/// monitor; chosen by the client, never 0, unique among its live ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub(super) u64);

impl Token {
    /// `None` for 0.
    pub const fn new(value: u64) -> Option<Token> {
        if value == 0 { None } else { Some(Token(value)) }
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// What a client calls itself: at most 32 bytes, for logs and views only.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name(pub(super) [u8; NAME_BYTES]);

impl Name {
    /// The first 32 bytes of `text`.
    pub fn new(text: &str) -> Name {
        let mut bytes = [0; NAME_BYTES];
        for (place, byte) in bytes.iter_mut().zip(text.bytes()) {
            *place = byte;
        }
        Name(bytes)
    }

    /// The bytes as they are sent, as they came.
    pub const fn of_bytes(bytes: [u8; NAME_BYTES]) -> Name {
        Name(bytes)
    }

    /// The bytes as they are sent, filled up with zeroes.
    pub const fn as_bytes(&self) -> &[u8; NAME_BYTES] {
        &self.0
    }
}

impl fmt::Display for Name {
    /// Up to the first zero; whatever is not printable ASCII becomes `?`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        for &byte in self.0.iter().take_while(|byte| **byte != 0) {
            let plain = byte.is_ascii_graphic() || byte == b' ';
            formatter.write_char(if plain { byte.into() } else { '?' })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "\"{self}\"")
    }
}
