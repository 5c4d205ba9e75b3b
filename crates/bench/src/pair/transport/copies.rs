//! The most that a stream through shared memory can be: one core copies into a buffer, another one
//! copies out of it, both at once, and nothing else is done than to tell how far they are.
//!
//! Every byte is copied twice. How far they are is told once in a piece of the buffer, or before a
//! wait: a large message goes over in pieces, so that both cores copy at the same time, and small
//! ones go over together, so that it does not cost them a cache line each.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use super::{End, Side, exactly, shared, spin_until};
use crate::region::Region;

/// One end of the buffer; bytes go from the first end to the second alone.
pub(super) struct Copies {
    region: Region,
    /// Offsets of this end's count and of the other's.
    words: [usize; 2],
    /// How far this end's count may be ahead of the other's.
    lead: u64,
    /// Bytes that this end has copied, and of these the other one knows.
    copied: u64,
    told: u64,
    /// Bytes that the peer has copied, by the count that was read last.
    others: u64,
}

impl End for Copies {
    fn pair() -> io::Result<[Vec<OwnedFd>; 2]> {
        shared(DATA + RING)
    }

    fn attach(side: Side, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let [memory] = exactly(descriptors)?;
        let region = Region::map(memory, DATA + RING)?;
        let (words, lead) = match side {
            Side::First => ([FILLED, EMPTIED], RING as u64),
            Side::Second => ([EMPTIED, FILLED], 0),
        };
        Ok(Self { region, words, lead, copied: 0, told: 0, others: 0 })
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        for piece in message.chunks(PIECE) {
            self.copy(piece.len(), |region, offset, whole| {
                // SAFETY: the receiver has emptied these bytes, by its count, and takes them again
                // only once this end has published its count, which is later.
                unsafe {
                    region.put(DATA + offset, &piece[..whole]);
                    region.put(DATA, &piece[whole..]);
                }
            })?;
        }
        Ok(())
    }

    #[inline]
    fn receive(&mut self, message: &mut [u8]) -> io::Result<()> {
        for piece in message.chunks_mut(PIECE) {
            self.copy(piece.len(), |region, offset, whole| {
                // SAFETY: the sender has filled these bytes, by its count, and fills them again only
                // once this end has published its count, which is later.
                unsafe {
                    region.take(DATA + offset, &mut piece[..whole]);
                    region.take(DATA, &mut piece[whole..]);
                }
            })?;
        }
        Ok(())
    }
}

impl Copies {
    /// Has so many bytes copied once they may be: from an offset in the ring on, and how many of them lie
    /// there before its end.
    #[inline]
    fn copy(&mut self, bytes: usize, copy: impl FnOnce(&Region, usize, usize)) -> io::Result<()> {
        let copied = self.copied + bytes as u64;
        if copied > self.others + self.lead {
            self.tell();
            let others = self.region.word(self.words[1]);
            self.others = spin_until(|| {
                std::hint::spin_loop();
                Some(others.load(Ordering::Acquire)).filter(|others| copied <= others + self.lead)
            })?;
        }
        let offset = self.copied as usize % RING;
        copy(&self.region, offset, bytes.min(RING - offset));
        self.copied = copied;
        if self.copied - self.told >= PIECE as u64 {
            self.tell();
        }
        Ok(())
    }

    /// Lets the other end know this end's count.
    fn tell(&mut self) {
        self.region.word(self.words[0]).store(self.copied, Ordering::Release);
        self.told = self.copied;
    }
}

/// Offset of the count of bytes copied in.
const FILLED: usize = 0;

/// Offset of the count of bytes copied out; further than processors fetch lines in pairs.
const EMPTIED: usize = 256;

/// Offset of the ring, and its bytes.
const DATA: usize = 4096;
const RING: usize = 256 << 10;

/// Stays in a core's first cache with the caller's own bytes, and is a small share of the ring, so that one
/// may be filled while others are emptied.
const PIECE: usize = 16 << 10;
