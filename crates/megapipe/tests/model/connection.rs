//! One connection: what was sent and written, and what of it arrived.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read};

use megapipe::{Handle, OpId};
use socket2::Socket;

/// A write as the peer must see it.
pub(crate) struct Segment {
    /// Known by its operation until that has ended.
    pub(crate) op: OpId,
    pub(crate) bytes: Vec<u8>,
    /// A cancel was asked for and has not been answered.
    pub(crate) doubtful: bool,
}

pub(crate) struct Connection {
    pub(crate) handle: Handle,
    pub(crate) cookie: u64,
    pub(crate) peer: Socket,
    /// What the peer sent, and how much of it a read brought.
    pub(crate) inbound: Vec<u8>,
    pub(crate) received: usize,
    /// What was written to the peer, cancelled writes left out, and what it got.
    pub(crate) outbound: Vec<Segment>,
    pub(crate) arrived: Vec<u8>,
    /// Operations that have not ended, in the order of their calls.
    pub(crate) reads: VecDeque<(OpId, bool)>,
    pub(crate) writes: VecDeque<OpId>,
    /// The last write found its queue full: that there is room again will be said, once.
    pub(crate) refused: bool,
    pub(crate) peer_ended: bool,
    pub(crate) disconnected: bool,
    /// The connection was reset or a call failed: bytes may be missing at the end.
    pub(crate) broken: bool,
}

impl Connection {
    /// Reads what has come; true once the end was seen.
    pub(crate) fn peer_reads(&mut self, most: usize) -> bool {
        let mut piece = [0; 4096];
        let mut left = most;
        while left > 0 {
            let room = piece.len().min(left);
            match (&self.peer).read(&mut piece[..room]) {
                Ok(0) => return true,
                Ok(count) => {
                    self.arrived.extend_from_slice(&piece[..count]);
                    left -= count;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                // Whether this is allowed shows in what arrived.
                Err(_) => return true,
            }
        }
        false
    }

    /// What arrived is what was written: all of it if nothing excuses a loss, else a
    /// beginning of it.
    pub(crate) fn check_arrived(&self, whole: bool) {
        let mut rest = &self.arrived[..];
        for segment in &self.outbound {
            if segment.doubtful {
                return;
            }
            let common = rest.len().min(segment.bytes.len());
            assert!(rest[..common] == segment.bytes[..common], "the peer got other bytes than were written");
            assert!(common == segment.bytes.len() || !whole, "bytes were lost on the way to the peer");
            rest = &rest[common..];
        }
        assert!(rest.is_empty(), "the peer got bytes that nobody wrote");
    }
}
