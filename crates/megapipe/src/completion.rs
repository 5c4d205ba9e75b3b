//! What became of an operation.

use std::io;

use crate::accept::Accepted;
use crate::buffer::{ReadData, WriteData};
use crate::error::AcceptError;
use crate::id::{Handle, OpId};
use crate::readiness::Readiness;

/// One result, as [`crate::Channel::dispatch`] hands it out.
#[derive(Debug)]
pub struct Completion {
    /// The handle of the operation; [`Handle::NONE`] for a timer, a poll or a wake-up.
    pub handle: Handle,
    /// The handle's cookie (paper, section 3.2), or the timer's or poll's; 0 for a
    /// wake-up.
    pub cookie: u64,
    /// The operation; [`OpId::NONE`] for a wake-up, and for room in a write queue.
    pub op: OpId,
    /// What happened.
    pub event: Event,
}

/// The outcome of one operation. Data that the caller lent to the operation comes back
/// in the event, so that memory the kernel may still use can never be freed.
#[derive(Debug)]
pub enum Event {
    /// A connection was accepted, or accepting failed.
    Accept {
        /// The connection.
        result: Result<Accepted, AcceptError>,
        /// Whether the accept goes on: further completions of it will come.
        more: bool,
    },
    /// A connect ended.
    Connect(io::Result<()>),
    /// Bytes were read; 0 bytes mean end of file (on a datagram socket: an empty datagram).
    Read {
        /// Bytes read. ECANCELED after a cancel.
        result: io::Result<usize>,
        /// Where they are: the caller's memory, or a buffer of the pool.
        data: ReadData,
        /// Whether the read goes on: further completions of it will come.
        more: bool,
    },
    /// The kernel has accepted a write as a whole, or it failed.
    Write {
        /// Bytes written: all of them. ECANCELED after a cancel; on any error the peer
        /// may have received the beginning.
        result: io::Result<usize>,
        /// The data of the write.
        data: WriteData,
    },
    /// Half of the handle's write queue is free, after a write was refused with
    /// [`crate::SubmitError::QueueFull`].
    Writable,
    /// A disconnect or shutdown ended.
    Disconnect(io::Result<()>),
    /// A timer fired (`Ok`) or was cancelled (ECANCELED).
    Timer(io::Result<()>),
    /// A poll found the descriptor ready for this, or failed. ECANCELED after a cancel.
    Poll(io::Result<Readiness>),
    /// [`crate::Waker::wake`] was called since the last wake-up.
    Wake,
}
