//! The least that a round trip between two cores can be: one cache line goes over, another one
//! comes back.
//!
//! A line holds the number of its message and the message itself. There is no flow control: a
//! message may be sent once the answer to the one before has come, as a ping-pong does.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use super::segment::{self, Segment};
use super::{End, Side, exactly, spin_until};

/// Bytes of a message that fit into a line beside its number.
pub const PAYLOAD: usize = LINE - 8;

/// Both lines, as one end sees them.
pub(super) struct Cacheline {
    segment: Segment,
    incoming: usize,
    outgoing: usize,
    received: u64,
    sent: u64,
}

impl End for Cacheline {
    fn pair() -> io::Result<[Vec<OwnedFd>; 2]> {
        segment::create(SEGMENT)
    }

    fn attach(side: Side, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let [memory] = exactly(descriptors)?;
        let [incoming, outgoing] = match side {
            Side::First => [0, APART],
            Side::Second => [APART, 0],
        };
        Ok(Self { segment: Segment::map(memory, SEGMENT)?, incoming, outgoing, received: 0, sent: 0 })
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        if message.len() > PAYLOAD {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.sent += 1;
        // SAFETY: the other end has taken the line's last message, since it has answered it, and
        // does not look at the line before the number stored next.
        unsafe { self.segment.put(self.outgoing + 8, message) };
        self.segment.word(self.outgoing).store(self.sent, Ordering::Release);
        Ok(())
    }

    #[inline]
    fn receive(&mut self, message: &mut [u8]) -> io::Result<()> {
        if message.len() > PAYLOAD {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let number = self.segment.word(self.incoming);
        spin_until(|| {
            std::hint::spin_loop(); // leaves the line to its writer: a little faster
            (number.load(Ordering::Acquire) != self.received).then_some(())
        })?;
        self.received += 1;
        // SAFETY: the number just loaded was stored after the message, and the other end writes the
        // line again only when it has this end's answer, sent after this.
        unsafe { self.segment.take(self.incoming + 8, message) };
        Ok(())
    }
}

const LINE: usize = 64;

/// Further than processors fetch lines in pairs.
const APART: usize = 256;

const SEGMENT: usize = 4096;
