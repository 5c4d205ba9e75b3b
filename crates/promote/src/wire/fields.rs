//! Fields of messages: tokens and names.

use std::fmt;

/// Bytes of a client's name.
pub const NAME_BYTES: usize = 32;

/// Identifies an offer, and later the promoted connection, between one client and the
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

/// A client's name: at most 32 bytes, for logs and views only.
pub type Name = Text<NAME_BYTES>;

/// A human-readable text of at most `N` bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text<const N: usize>(pub(super) [u8; N]);

impl<const N: usize> Text<N> {
    /// The first `N` bytes of `text`.
    pub fn new(text: &str) -> Self {
        let mut bytes = [0; N];
        for (place, byte) in bytes.iter_mut().zip(text.bytes()) {
            *place = byte;
        }
        Text(bytes)
    }

    /// A text of received bytes.
    pub const fn from_bytes(bytes: [u8; N]) -> Self {
        Text(bytes)
    }

    /// The bytes to send, padded with zeros.
    pub const fn as_bytes(&self) -> &[u8; N] {
        &self.0
    }
}

impl<const N: usize> fmt::Display for Text<N> {
    /// Up to the first zero; any byte that is not printable ASCII becomes `?`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        for &byte in self.0.iter().take_while(|byte| **byte != 0) {
            let plain = byte.is_ascii_graphic() || byte == b' ';
            formatter.write_char(if plain { byte.into() } else { '?' })?;
        }
        Ok(())
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "\"{self}\"")
    }
}
