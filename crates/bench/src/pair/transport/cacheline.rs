//! The least that a round trip between two cores can be: one cache line goes over, another one
//! comes back.
//!
//! A line holds the number of its message and the message itself. There is no flow control: a
//! message may be sent once the answer to the one before has come, as a ping-pong does.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use super::{End, Side, exactly, shared, spin_until};
use crate::region::Region;

/// Bytes of a message that fit into a line beside its number.
pub const PAYLOAD: usize = LINE - 8;

/// Both lines, as one end sees them.
pub(super) struct Cacheline {
    region: Region,
    incoming: usize,
    outgoing: usize,
    received: u64,
    sent: u64,
}

impl End for Cacheline {
    fn pair() -> io::Result<[Vec<OwnedFd>; 2]> {
        shared(REGION)
    }

    fn attach(side: Side, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let [memory] = exactly(descriptors)?;
        let [incoming, outgoing] = match side {
            Side::First => [0, APART],
            Side::Second => [APART, 0],
        };
        Ok(Self { region: Region::map(memory, REGION)?, incoming, outgoing, received: 0, sent: 0 })
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        if message.len() > PAYLOAD {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.sent += 1;
        // SAFETY: the other end has taken the line's last message, since it has answered it, and
        // does not look at the line before the number stored next.
        unsafe { self.region.put(self.outgoing + 8, message) };
        self.region.word(self.outgoing).store(self.sent, Ordering::Release);
        Ok(())
    }

    #[inline]
    fn receive(&mut self, message: &mut [u8]) -> io::Result<()> {
        if message.len() > PAYLOAD {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let number = self.region.word(self.incoming);
        spin_until(|| {
            std::hint::spin_loop(); // leaves the line to its writer: a little faster
            (number.load(Ordering::Acquire) != self.received).then_some(())
        })?;
        self.received += 1;
        // SAFETY: the number just loaded was stored after the message, and the other end writes the
        // line again only when it has this end's answer, sent after this.
        unsafe { self.region.take(self.incoming + 8, message) };
        Ok(())
    }
}

const LINE: usize = 64;

/// Further than processors fetch lines in pairs.
const APART: usize = 256;

const REGION: usize = 4096;
