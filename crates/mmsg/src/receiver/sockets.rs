//! The sockets of a receiver, and which of them have something to read.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use sys::socket::Kind;

use super::ready::{Found, Ready};

/// The registered sockets, and which of them have something to read.
pub(super) struct Sockets {
    pub(super) entries: Vec<Option<Entry>>,
    pub(super) generations: Vec<u32>,
    pub(super) free: Vec<u32>,
    pub(super) most: usize,
    /// Reports are of changes: what is not read is not told of again.
    pub(super) tells_changes: bool,
    /// Each at most once, in the order in which they are served.
    pub(super) pending: VecDeque<u32>,
    /// Sockets that are believed to be empty because a report said so.
    pub(super) trusted: Vec<u32>,
}

pub(super) struct Entry {
    pub(super) fd: OwnedFd,
    pub(super) cookie: u64,
    pub(super) kind: Kind,
    pub(super) is_udp: bool,
    pub(super) is_tcp: bool,
    pub(super) generation: u32,
    /// Datagrams that are there for certain.
    pub(super) sure: u32,
    /// Something may be there until a receive says no.
    pub(super) drain: bool,
    pub(super) is_pending: bool,
    pub(super) is_trusted: bool,
    /// As [`Sockets::tells_changes`], for this one.
    pub(super) tells_changes: bool,
    /// Errors since the socket last had a message or was empty.
    pub(super) failures: u8,
    /// Its end was told, and nothing more is.
    pub(super) has_ended: bool,
}

impl Entry {
    /// Datagrams tell their real length; in a stream the flag would discard bytes.
    #[inline]
    pub(super) fn flags(&self) -> i32 {
        let real_length = if self.kind == Kind::Stream { 0 } else { libc::MSG_TRUNC };
        libc::MSG_DONTWAIT | real_length
    }

    /// From now on reports are of changes. The kernel tells once more of what is there already, so nothing is lost
    /// in between. Where it refuses, reports go on in vain.
    pub(super) fn tell_changes(&mut self, ready: &mut Ready, slot: u32) {
        if !self.tells_changes {
            self.tells_changes = ready.tell_changes(slot, self.generation, self.fd.as_fd()).is_ok();
        }
    }
}

impl Sockets {
    pub(super) fn new(most: usize, tells_changes: bool) -> Sockets {
        Sockets {
            entries: Vec::new(),
            generations: Vec::new(),
            free: Vec::new(),
            most,
            tells_changes,
            pending: VecDeque::new(),
            trusted: Vec::new(),
        }
    }

    pub(super) fn get(&self, slot: u32, generation: u32) -> Option<&Entry> {
        self.entries.get(slot as usize)?.as_ref().filter(|entry| entry.generation == generation)
    }

    pub(super) fn free_slot(&mut self) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        if self.entries.len() == self.most {
            return None;
        }
        self.entries.push(None);
        self.generations.push(1);
        Some(self.entries.len() as u32 - 1)
    }

    /// Takes a report, and says whether more are wanted; one of a socket that is gone or has ended means nothing.
    #[inline]
    pub(super) fn found(&mut self, slot: u32, generation: u32, found: Found) -> bool {
        let Some(entry) = self.entries.get_mut(slot as usize).and_then(Option::as_mut) else { return false };
        if entry.generation != generation || entry.has_ended {
            return false;
        }
        match found {
            // Told again as long as it is not read.
            Found::One if !entry.tells_changes => entry.sure = 1,
            Found::One if self.tells_changes && entry.is_udp => entry.sure += 1,
            _ => entry.drain = true,
        }
        self.queue(slot);
        true
    }

    #[inline]
    pub(super) fn queue(&mut self, slot: u32) {
        if let Some(entry) = self.entries[slot as usize].as_mut()
            && !entry.is_pending
        {
            entry.is_pending = true;
            self.pending.push_back(slot);
        }
    }

    #[inline]
    pub(super) fn next(&mut self) -> Option<u32> {
        let slot = self.pending.pop_front()?;
        if let Some(entry) = self.entries[slot as usize].as_mut() {
            entry.is_pending = false;
        }
        Some(slot)
    }
}
