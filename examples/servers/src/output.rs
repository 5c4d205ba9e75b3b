//! Answers on their way out: small parts copied one behind the other, large values
//! shared.

use std::io::Write as _;

use bytes::Bytes;

/// Values from this size, in bytes, are passed on by reference: to copy a smaller one
/// costs less than another write.
const SHARED_MIN: usize = 4096;

/// The answers to one piece of input. Its memory is reused.
#[derive(Debug, Default)]
pub struct Output {
    text: Vec<u8>,
    /// Large values, each with the offset in `text` before which it goes.
    shared: Vec<(usize, Bytes)>,
    shared_len: usize,
}

/// A part of the output.
#[derive(Debug, PartialEq)]
pub(crate) enum Piece<'a> {
    Text(&'a [u8]),
    Shared(&'a Bytes),
}

impl Output {
    /// Bytes at which a service stops until they are written: the bound on what one
    /// client makes the server hold.
    pub const FULL: usize = 256 << 10;

    /// Adds bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.text.extend_from_slice(bytes);
    }

    /// Adds a number in decimal digits.
    pub fn push_number(&mut self, number: u64) {
        self.push(itoa::Buffer::new().format(number).as_bytes());
    }

    /// Adds a value, by reference if it is large.
    pub fn push_value(&mut self, value: Bytes) {
        if value.len() < SHARED_MIN {
            return self.push(&value);
        }
        self.shared_len += value.len();
        self.shared.push((self.text.len(), value));
    }

    /// Adds a line, with its line end.
    pub fn push_line(&mut self, line: std::fmt::Arguments<'_>) {
        // A vector takes all that is written to it.
        let _ = self.text.write_fmt(line);
        self.push(b"\r\n");
    }

    /// Whether it holds as much as one call may bring.
    pub fn is_full(&self) -> bool {
        self.text.len() + self.shared_len >= Self::FULL
    }

    /// The parts in their order, none empty.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        let mut copied = 0;
        let before = self.shared.iter().flat_map(move |(offset, value)| {
            let text = &self.text[copied..*offset];
            copied = *offset;
            [Piece::Text(text), Piece::Shared(value)]
        });
        let last = self.shared.last().map_or(0, |(offset, _)| *offset);
        before.chain([Piece::Text(&self.text[last..])]).filter(|piece| *piece != Piece::Text(b""))
    }

    pub(crate) fn clear(&mut self) {
        self.text.clear();
        self.shared.clear();
        self.shared_len = 0;
    }
}
