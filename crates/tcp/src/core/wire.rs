//! TCP headers and options, read and written.

use super::few::Few;
use super::seq::{Seq, Span};

/// The control bits of a header (RFC 9293, 3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(pub(crate) u8);

impl Flags {
    pub(crate) const FIN: Flags = Flags(0x01);
    pub(crate) const SYN: Flags = Flags(0x02);
    pub(crate) const RST: Flags = Flags(0x04);
    pub(crate) const PSH: Flags = Flags(0x08);
    pub(crate) const ACK: Flags = Flags(0x10);
    /// Congestion was met on the way here (RFC 3168, 6.1).
    pub(crate) const ECE: Flags = Flags(0x40);
    /// The window was reduced for that.
    pub(crate) const CWR: Flags = Flags(0x80);

    pub(crate) const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    pub(crate) const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// SACK blocks that one header holds (RFC 2018, 3).
pub(crate) const SACK_BLOCKS: usize = 4;

/// A timestamps option (RFC 7323, 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Timestamps {
    pub(crate) value: u32,
    pub(crate) echo: u32,
}

/// A TCP header with its options, in either direction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Head {
    pub(crate) seq: Seq,
    pub(crate) ack: Seq,
    pub(crate) flags: Flags,
    pub(crate) window: u16,
    pub(crate) mss: Option<u16>,
    pub(crate) scale: Option<u8>,
    pub(crate) sack_permitted: bool,
    pub(crate) timestamps: Option<Timestamps>,
    pub(crate) sacks: Few<Span, SACK_BLOCKS>,
}

const END: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
const SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

/// The largest shift count (RFC 7323, 2.3).
const SCALE_MAX: u8 = 14;

impl Head {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
    //# A TCP implementation MUST be able to receive a TCP Option in any segment (MUST-5).
    /// Reads a header, options included. `None` if it is cut short.
    #[inline]
    pub(crate) fn parse(bytes: &[u8]) -> Option<Head> {
        let fixed = bytes.first_chunk::<20>()?;
        let len = usize::from(fixed[12] >> 4) * 4;
        let options = bytes.get(20..len)?;
        let head = Head {
            seq: Seq(word(&fixed[4..])),
            ack: Seq(word(&fixed[8..])),
            flags: Flags(fixed[13]),
            window: u16::from_be_bytes([fixed[14], fixed[15]]),
            ..Head::default()
        };
        match plain_options(options) {
            Some(timestamps) => Some(Head { timestamps, ..head }),
            None => Some(head.with_options(options)),
        }
    }

    /// Reads options up to the first of an impossible length (RFC 9293, MUST-7). Unknown ones
    /// are skipped (MUST-6).
    fn with_options(mut self, mut options: &[u8]) -> Head {
        loop {
            let (kind, len) = match *options {
                [] | [END, ..] => return self,
                [NOP, ..] => {
                    options = &options[1..];
                    continue;
                }
                [_] => return self,
                //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
                //# All TCP Options except End of Option List Option (EOL) and No-Operation (NOP) MUST have
                //# length fields, including all future options (MUST-68).
                [kind, len, ..] => (kind, usize::from(len)),
            };
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
            //# TCP implementations MUST be prepared to handle an illegal option length (e.g., zero); a
            //# suggested procedure is to reset the connection and log the error cause (MUST-7).
            if len < 2 || len > options.len() {
                return self;
            }
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.2
            //# There is no guarantee that senders will use this option, so receivers MUST be prepared to
            //# process options even if they do not begin on a word boundary (MUST-64).
            let (option, rest) = options.split_at(len);
            self.option(kind, &option[2..]);
            options = rest;
        }
    }

    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
    //# A given TCP implementation can support any currently defined options, but the following options MUST
    //# be supported (MUST-4 -- note Maximum Segment Size Option support is also part of MUST-14 in Section
    //# 3.7.1):
    fn option(&mut self, kind: u8, value: &[u8]) {
        match (kind, value.len()) {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.7.1
            //# TCP endpoints MUST implement both sending and receiving the MSS Option (MUST-14).
            (MSS, 2) => self.mss = Some(u16::from_be_bytes([value[0], value[1]])),
            (SCALE, 1) => self.scale = Some(value[0].min(SCALE_MAX)),
            (SACK_PERMITTED, 0) => self.sack_permitted = true,
            (TIMESTAMPS, 8) => {
                self.timestamps = Some(Timestamps { value: word(value), echo: word(&value[4..]) });
            }
            (SACK, 8 | 16 | 24 | 32) => {
                self.sacks.clear();
                for block in value.chunks_exact(8) {
                    self.sacks.push(Span::new(Seq(word(block)), Seq(word(&block[4..]))));
                }
            }
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
            //# A TCP implementation MUST (MUST-6) ignore without error any TCP Option it does not implement,
            //# assuming that the option has a length field.
            _ => {}
        }
    }

    /// Bytes of the options, padded to words.
    pub(crate) fn options_len(&self) -> u32 {
        let mut len = 0;
        if self.mss.is_some() {
            len += 4;
        }
        if self.scale.is_some() {
            len += 4;
        }
        if self.timestamps.is_some() {
            len += 12;
        } else if self.sack_permitted {
            len += 4;
        }
        if !self.sacks.is_empty() {
            len += 4 + 8 * self.sacks.len() as u32;
        }
        len
    }

    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
    //# The content of the header beyond the End of Option List Option MUST be header padding of zeros
    //# (MUST-69).
    /// Writes the header, with a checksum of 0. Returns its length.
    pub(crate) fn write(&self, ports: (u16, u16), out: &mut [u8]) -> Option<usize> {
        let len = 20 + self.options_len() as usize;
        let (fixed, out) = out.get_mut(..len)?.split_at_mut(20);
        write_fixed(fixed, ports, self.seq, self.ack, len, self.flags, self.window);
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        if let Some(mss) = self.mss {
            put(&[MSS, 4]);
            put(&mss.to_be_bytes());
        }
        if let Some(scale) = self.scale {
            put(&[NOP, SCALE, 3, scale]);
        }
        if let Some(Timestamps { value, echo }) = self.timestamps {
            // SACK-permitted takes the place of the padding.
            put(if self.sack_permitted { &[SACK_PERMITTED, 2] } else { &[NOP, NOP] });
            put(&[TIMESTAMPS, 10]);
            put(&value.to_be_bytes());
            put(&echo.to_be_bytes());
        } else if self.sack_permitted {
            put(&[NOP, NOP, SACK_PERMITTED, 2]);
        }
        if !self.sacks.is_empty() {
            put(&[NOP, NOP, SACK, 2 + 8 * self.sacks.len() as u8]);
            for block in self.sacks.iter() {
                put(&block.start.0.to_be_bytes());
                put(&block.end.0.to_be_bytes());
            }
        }
        Some(len)
    }
}

/// Written in front of timestamps, to align them.
const TIMESTAMPS_ALIGNED: u32 = u32::from_be_bytes([NOP, NOP, TIMESTAMPS, 10]);

/// What is read of a header as nearly all segments have it: an ACK, pushed or not, without unusual options.
pub(crate) struct Plain {
    pub(crate) seq: Seq,
    pub(crate) ack: Seq,
    pub(crate) window: u16,
    pub(crate) timestamps: Option<Timestamps>,
}

impl Plain {
    /// `None` if it is anything else.
    #[inline]
    pub(crate) fn parse(bytes: &[u8]) -> Option<Plain> {
        let (fixed, options) = bytes.split_first_chunk::<20>()?;
        if Flags(fixed[13] | Flags::PSH.0) != Flags::ACK.with(Flags::PSH) {
            return None;
        }
        Some(Plain {
            seq: Seq(word(&fixed[4..])),
            ack: Seq(word(&fixed[8..])),
            window: u16::from_be_bytes([fixed[14], fixed[15]]),
            timestamps: plain_options(options)?,
        })
    }

    /// Bytes of the header.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        if self.timestamps.is_some() { 32 } else { 20 }
    }

    /// Writes the header of an ACK, with a checksum of 0.
    #[inline]
    pub(crate) fn write(&self, ports: (u16, u16), out: &mut [u8]) {
        write_fixed(out, ports, self.seq, self.ack, self.len(), Flags::ACK, self.window);
        if let Some(Timestamps { value, echo }) = self.timestamps {
            write_words(&mut out[20..], [TIMESTAMPS_ALIGNED, value, echo]);
        }
    }
}

/// Writes the part of a header that each has.
#[inline]
fn write_fixed(
    out: &mut [u8],
    (source, destination): (u16, u16),
    seq: Seq,
    ack: Seq,
    len: usize,
    flags: Flags,
    window: u16,
) {
    let ports = u32::from(source) << 16 | u32::from(destination);
    let control = (len as u32 / 4) << 28 | u32::from(flags.0) << 16 | u32::from(window);
    write_words(out, [ports, seq.0, ack.0, control, 0]);
}

/// Writes words in the byte order of networks.
#[inline]
pub(crate) fn write_words<const WORDS: usize>(out: &mut [u8], words: [u32; WORDS]) {
    for (place, word) in out[..WORDS * 4].as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *place = word.to_be_bytes();
    }
}

/// The options that nearly all segments have: none, or timestamps in the form of RFC 7323, appendix A.
#[inline]
fn plain_options(options: &[u8]) -> Option<Option<Timestamps>> {
    match options {
        [] => Some(None),
        &[NOP, NOP, TIMESTAMPS, 10, ref rest @ ..] if rest.len() == 8 => {
            Some(Some(Timestamps { value: word(rest), echo: word(&rest[4..]) }))
        }
        _ => None,
    }
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// What is written is read again, and another project's parser reads the same.
        #[test]
        fn written_headers_are_read(
            seq: u32, ack: u32, window: u16, mss: Option<u16>, scale in prop::option::of(0u8..15),
            sack_permitted: bool, stamps: Option<(u32, u32)>,
            blocks in prop::collection::vec((any::<u32>(), any::<u32>()), 0..4),
        ) {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
            //= type=test
            //# The content of the header beyond the End of Option List Option MUST be header padding of zeros
            //# (MUST-69).
            let mut head = Head {
                seq: Seq(seq), ack: Seq(ack), flags: Flags::ACK.with(Flags::PSH), window,
                ..Head::default()
            };
            head.timestamps = stamps.map(|(value, echo)| Timestamps { value, echo });
            if blocks.is_empty() {
                (head.mss, head.scale, head.sack_permitted) = (mss, scale, sack_permitted);
            }
            for &(start, end) in blocks.iter().take(3) {
                head.sacks.push(Span::new(Seq(start), Seq(end)));
            }
            let mut bytes = [0xaa; 60];
            let len = head.write((1, 2), &mut bytes).expect("room");
            prop_assert_eq!(len as u32, 20 + head.options_len());
            let read = Head::parse(&bytes[..len]).expect("a header");
            prop_assert_eq!((read.seq, read.ack, read.window), (head.seq, head.ack, window));
            prop_assert_eq!((read.mss, read.scale), (head.mss, head.scale));
            prop_assert_eq!(read.sack_permitted, head.sack_permitted);
            prop_assert_eq!(read.timestamps, head.timestamps);
            prop_assert_eq!(&read.sacks[..], &head.sacks[..]);
            let theirs = etherparse::TcpSlice::from_slice(&bytes[..len]).expect("a header");
            prop_assert_eq!((theirs.sequence_number(), theirs.options().len()), (seq, len - 20));
            prop_assert!(theirs.options_iterator().all(|option| option.is_ok()));
        }

        /// Options of every kind at every place: unknown ones are skipped by their length, what follows the end of
        /// the list is not read, and an impossible length ends the reading.
        #[test]
        fn options_are_found_anywhere(
            unknown in prop::collection::vec((9u8..=255, 0usize..4), 0..4), nops in 0usize..4, mss: u16,
        ) {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
            //= type=test
            //# A given TCP implementation can support any currently defined options, but the following
            //# options MUST be supported (MUST-4 -- note Maximum Segment Size Option support is also part of
            //# MUST-14 in Section 3.7.1):
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
            //= type=test
            //# A TCP implementation MUST (MUST-6) ignore without error any TCP Option it does not implement,
            //# assuming that the option has a length field.
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
            //= type=test
            //# All TCP Options except End of Option List Option (EOL) and No-Operation (NOP) MUST have length
            //# fields, including all future options (MUST-68).
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.2
            //= type=test
            //# There is no guarantee that senders will use this option, so receivers MUST be prepared to
            //# process options even if they do not begin on a word boundary (MUST-64).
            let mut options = vec![NOP; nops];
            for (kind, len) in unknown {
                options.extend([kind, len as u8 + 2]);
                options.resize(options.len() + len, 0xaa);
            }
            let known = [&options[..], &[MSS, 4], &mss.to_be_bytes()].concat();
            let read = |options: &[u8]| Head::default().with_options(options).mss;
            prop_assert_eq!(read(&known), Some(mss));
            prop_assert_eq!(read(&[&options[..], &[END], &known].concat()), None);
            prop_assert_eq!(read(&[&options[..], &[200, 0], &known].concat()), None);
            prop_assert_eq!(read(&[&options[..], &[200, 99], &known].concat()), None);
        }

        /// No options, however broken, do more than end the reading (RFC 9293, MUST-7).
        #[test]
        fn broken_options_are_survived(mut bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
            //= type=test
            //# TCP implementations MUST be prepared to handle an illegal option length (e.g., zero); a
            //# suggested procedure is to reset the connection and log the error cause (MUST-7).
            if bytes.len() > 12 {
                bytes[12] |= 0x50;
            }
            let _ = Head::parse(&bytes);
        }
    }
}
