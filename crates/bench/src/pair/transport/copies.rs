//! The most that a stream through shared memory can be: one core copies into a buffer, another one
//! copies out of it, both at once, and nothing else is done than to tell how far they are.
//!
//! Every byte is copied twice. A message larger than a piece is published piece by piece, so that
//! both cores copy at the same time; one that is smaller is published by itself.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use super::segment::{self, Segment};
use super::spin::Spin;
use super::{End, Settings, Side, exactly};

/// One end of the buffer; bytes go from the first end to the second alone.
pub(super) struct Copies {
    segment: Segment,
    ring: u64,
    piece: usize,
    /// Bytes copied in, and out: this end's own count is exact, the other's is as last seen.
    filled: u64,
    emptied: u64,
}

impl End for Copies {
    fn pair(settings: &Settings) -> io::Result<[Vec<OwnedFd>; 2]> {
        segment::create(DATA + settings.ring_bytes)
    }

    fn attach(_: Side, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let [memory] = exactly(descriptors)?;
        let segment = Segment::map(memory)?;
        let ring = segment.size() - DATA;
        if !ring.is_power_of_two() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let piece = (ring / PIECES).clamp(1, LARGEST_PIECE);
        Ok(Self { segment, ring: ring as u64, piece, filled: 0, emptied: 0 })
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        for piece in message.chunks(self.piece) {
            let bytes = piece.len() as u64;
            let mut spin = Spin::default();
            while self.filled + bytes - self.emptied > self.ring {
                self.emptied = self.segment.word(EMPTIED).load(Ordering::Acquire);
                spin.turn()?;
            }
            let (offset, whole) = self.place(self.filled, piece.len());
            // SAFETY: the receiver has emptied these bytes, by the count just seen, and takes them
            // again only after the store below.
            unsafe {
                self.segment.put(DATA + offset, &piece[..whole]);
                if whole < piece.len() {
                    self.segment.put(DATA, &piece[whole..]);
                }
            }
            self.filled += bytes;
            self.segment.word(FILLED).store(self.filled, Ordering::Release);
        }
        Ok(())
    }

    #[inline]
    fn receive(&mut self, message: &mut [u8]) -> io::Result<()> {
        for piece in message.chunks_mut(self.piece) {
            let bytes = piece.len() as u64;
            let mut spin = Spin::default();
            while self.filled - self.emptied < bytes {
                self.filled = self.segment.word(FILLED).load(Ordering::Acquire);
                spin.turn()?;
            }
            let (offset, whole) = self.place(self.emptied, piece.len());
            // SAFETY: the sender has filled these bytes, by the count just seen, and fills them
            // again only after the store below.
            unsafe {
                self.segment.take(DATA + offset, &mut piece[..whole]);
                if whole < piece.len() {
                    self.segment.take(DATA, &mut piece[whole..]);
                }
            }
            self.emptied += bytes;
            self.segment.word(EMPTIED).store(self.emptied, Ordering::Release);
        }
        Ok(())
    }
}

impl Copies {
    /// Where a count lies in the ring, and how many of so many bytes lie there before its end.
    #[inline]
    fn place(&self, count: u64, bytes: usize) -> (usize, usize) {
        let offset = count & (self.ring - 1);
        (offset as usize, bytes.min((self.ring - offset) as usize))
    }
}

/// Offset of the count of bytes copied in.
const FILLED: usize = 0;

/// Offset of the count of bytes copied out; further than processors fetch lines in pairs.
const EMPTIED: usize = 256;

/// Offset of the ring.
const DATA: usize = 4096;

/// A piece is at most this share of the ring, so that one may be filled while others are emptied.
const PIECES: usize = 4;

/// A piece that stays in a core's first cache with the caller's own bytes.
const LARGEST_PIECE: usize = 16 << 10;
