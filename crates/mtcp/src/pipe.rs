//! Pipes of a context: bytes from one number to another.

use std::collections::VecDeque;

use tcp::sockets::{Readiness, Trigger};

use crate::errno::{AGAIN, Errno};

/// Bytes that a pipe holds, as pipe(7).
const ROOM: usize = 64 << 10;

/// A pipe.
#[derive(Default)]
pub(crate) struct Pipe {
    bytes: VecDeque<u8>,
    /// Ends that are closed: for reading, for writing.
    pub(crate) closed: [bool; 2],
}

/// Which end of a pipe.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Read = 0,
    Write = 1,
}

impl Pipe {
    pub(crate) fn read(&mut self, out: &mut [u8]) -> Result<usize, Errno> {
        if self.bytes.is_empty() && !self.closed[End::Write as usize] {
            return Err(AGAIN);
        }
        let len = out.len().min(self.bytes.len());
        for (to, byte) in out.iter_mut().zip(self.bytes.drain(..len)) {
            *to = byte;
        }
        Ok(len)
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        if self.closed[End::Read as usize] {
            return Err(Errno(libc::EPIPE));
        }
        let len = bytes.len().min(ROOM - self.bytes.len());
        if len == 0 && !bytes.is_empty() {
            return Err(AGAIN);
        }
        self.bytes.extend(&bytes[..len]);
        Ok(len)
    }

    pub(crate) fn unread(&self) -> usize {
        self.bytes.len()
    }

    /// As poll(2) reports the ends of a pipe.
    pub(crate) fn readiness(&self, end: End) -> Readiness {
        let mut ready = Readiness::NONE;
        match end {
            End::Read => {
                if !self.bytes.is_empty() {
                    ready = ready.with(Readiness::READABLE);
                }
                if self.closed[End::Write as usize] {
                    ready = ready.with(Readiness::HANGUP);
                }
            }
            End::Write if self.closed[End::Read as usize] => {
                ready = Readiness::WRITABLE.with(Readiness::ERROR);
            }
            End::Write if self.bytes.len() < ROOM => ready = Readiness::WRITABLE,
            End::Write => {}
        }
        ready
    }
}

/// What an epoll set wants of a pipe's end.
pub(crate) struct Interest {
    pub(crate) pipe: usize,
    pub(crate) end: End,
    pub(crate) wanted: Readiness,
    pub(crate) trigger: Trigger,
    pub(crate) data: u64,
    /// Something happened since it was last reported.
    pub(crate) pending: bool,
}

impl Interest {
    pub(crate) fn end_of(&self, pipe: usize, end: End) -> bool {
        self.pipe == pipe && self.end == end
    }

    /// What is to be reported now, if anything.
    pub(crate) fn report(&mut self, ready: Readiness) -> Option<Readiness> {
        if self.trigger != Trigger::Level && !self.pending {
            return None;
        }
        let always = [Readiness::ERROR, Readiness::HANGUP];
        let mut found = Readiness::NONE;
        for bit in [Readiness::READABLE, Readiness::WRITABLE].into_iter().chain(always) {
            if ready.has(bit) && (self.wanted.has(bit) || always.contains(&bit)) {
                found = found.with(bit);
            }
        }
        if found.is_none() {
            return None;
        }
        self.pending = false;
        Some(found)
    }

    /// Something happened to the pipe. One that is reported once waits for its modification.
    pub(crate) fn note(&mut self) {
        self.pending |= self.trigger != Trigger::Once;
    }
}
