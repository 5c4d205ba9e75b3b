//! Answers on their way out: small parts copied one after the other, large values shared.

use std::io::Write as _;

use bytes::Bytes;

/// Values from this size, in bytes, are passed on by reference; copying a smaller one costs less
/// than a write of its own.
const SHARED_MIN: usize = 4096;

/// The answers that one round of input brings. Reused from round to round, so that it allocates
/// only while it grows.
#[derive(Debug, Default)]
pub struct Output {
    text: Vec<u8>,
    /// Large values, each with the offset in `text` before which it goes.
    shared: Vec<(usize, Bytes)>,
    shared_len: usize,
}

/// A part of the output.
#[derive(Debug)]
pub enum Segment<'a> {
    /// Small parts, copied one after the other.
    Copied(&'a [u8]),
    /// A large value, by reference.
    Shared(&'a Bytes),
}

impl Output {
    /// Bytes at which a session stops until they are written: bounds what one client makes the
    /// server hold.
    pub const FULL: usize = 256 * 1024;

    /// Adds bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.text.extend_from_slice(bytes);
    }

    /// Adds a number in decimal digits.
    pub fn push_number(&mut self, number: u64) {
        self.text.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }

    /// Adds a value, by reference if it is large.
    pub fn push_value(&mut self, value: Bytes) {
        if value.len() < SHARED_MIN {
            self.text.extend_from_slice(&value);
        } else {
            self.shared_len += value.len();
            self.shared.push((self.text.len(), value));
        }
    }

    /// Adds a line, with its line end.
    pub fn push_line(&mut self, line: std::fmt::Arguments<'_>) {
        // A vector takes all that is written to it.
        let _ = self.text.write_fmt(line);
        self.text.extend_from_slice(b"\r\n");
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes in all segments.
    pub fn len(&self) -> usize {
        self.text.len() + self.shared_len
    }

    /// Whether it holds as much as one round may bring.
    pub fn is_full(&self) -> bool {
        self.len() >= Self::FULL
    }

    /// The parts in order, none empty.
    pub fn segments(&self) -> impl Iterator<Item = Segment<'_>> {
        let mut copied = 0;
        let before = self.shared.iter().flat_map(move |(offset, value)| {
            let text = &self.text[copied..*offset];
            copied = *offset;
            [Segment::Copied(text), Segment::Shared(value)]
        });
        let last = self.shared.last().map_or(0, |(offset, _)| *offset);
        before
            .chain([Segment::Copied(&self.text[last..])])
            .filter(|segment| !matches!(segment, Segment::Copied([])))
    }

    /// Takes everything out; the memory is kept.
    pub fn clear(&mut self) {
        self.text.clear();
        self.shared.clear();
        self.shared_len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_keep_the_order() {
        let large = Bytes::from(vec![b'L'; SHARED_MIN]);
        let mut output = Output::default();
        output.push_value(large.clone());
        output.push_value(large.clone());
        output.push(b"a ");
        output.push_number(17);
        output.push_value(Bytes::from_static(b" small "));
        output.push_value(large.clone());
        output.push_line(format_args!("end {}", 1));
        let kinds: Vec<_> = output
            .segments()
            .map(|segment| match segment {
                Segment::Copied(text) => text.to_vec(),
                Segment::Shared(value) => {
                    assert_eq!(value.as_ptr(), large.as_ptr());
                    b"<large>".to_vec()
                }
            })
            .collect();
        let expected: [&[u8]; 5] = [b"<large>", b"<large>", b"a 17 small ", b"<large>", b"end 1\r\n"];
        assert_eq!(kinds, expected);
        assert_eq!(output.len(), 3 * SHARED_MIN + 11 + 7);
        output.clear();
        assert_eq!(output.len(), 0);
        assert_eq!(output.segments().count(), 0);
    }
}
