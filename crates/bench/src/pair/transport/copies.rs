//! The most that a stream through shared memory can be: one core copies into a buffer, another one
//! copies out of it, both at once, and nothing else is done than to tell how far they are.
//!
//! Every byte is copied twice. How far they are is told once in a piece of the buffer, or before a
//! wait: a large message goes over in pieces, so that both cores copy at the same time, and small
//! ones go over together, so that it does not cost them a cache line each.
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
    /// Bytes copied in, and out: this end's own count is exact, the other's is as last told.
    filled: u64,
    emptied: u64,
    /// This end's own count as last told.
    told: u64,
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
        Ok(Self { segment, ring: ring as u64, piece, filled: 0, emptied: 0, told: 0 })
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        for piece in message.chunks(self.piece) {
            let bytes = piece.len() as u64;
            if self.filled + bytes - self.emptied > self.ring {
                self.tell(FILLED, self.filled);
                let mut spin = Spin::default();
                while self.filled + bytes - self.emptied > self.ring {
                    std::hint::spin_loop();
                    self.emptied = self.segment.word(EMPTIED).load(Ordering::Acquire);
                    spin.turn()?;
                }
            }
            let (offset, whole) = self.place(self.filled, piece.len());
            // SAFETY: the receiver has emptied these bytes, by its count, and takes them again only
            // when it is told of them, which is below or later.
            unsafe {
                self.segment.put(DATA + offset, &piece[..whole]);
                if whole < piece.len() {
                    self.segment.put(DATA, &piece[whole..]);
                }
            }
            self.filled += bytes;
            if self.filled - self.told >= self.piece as u64 {
                self.tell(FILLED, self.filled);
            }
        }
        Ok(())
    }

    #[inline]
    fn receive(&mut self, message: &mut [u8]) -> io::Result<()> {
        for piece in message.chunks_mut(self.piece) {
            let bytes = piece.len() as u64;
            if self.filled - self.emptied < bytes {
                self.tell(EMPTIED, self.emptied);
                let mut spin = Spin::default();
                while self.filled - self.emptied < bytes {
                    std::hint::spin_loop();
                    self.filled = self.segment.word(FILLED).load(Ordering::Acquire);
                    spin.turn()?;
                }
            }
            let (offset, whole) = self.place(self.emptied, piece.len());
            // SAFETY: the sender has filled these bytes, by its count, and fills them again only when
            // it is told that they are empty, which is below or later.
            unsafe {
                self.segment.take(DATA + offset, &mut piece[..whole]);
                if whole < piece.len() {
                    self.segment.take(DATA, &mut piece[whole..]);
                }
            }
            self.emptied += bytes;
            if self.emptied - self.told >= self.piece as u64 {
                self.tell(EMPTIED, self.emptied);
            }
        }
        Ok(())
    }
}

impl Copies {
    /// Lets the other end know this end's count.
    fn tell(&mut self, word: usize, count: u64) {
        self.segment.word(word).store(count, Ordering::Release);
        self.told = count;
    }

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
