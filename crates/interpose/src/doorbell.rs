//! The doorbells of a promoted connection (docs/promotion.md, section 4): pipes or message queues beside it, by which each
//! endpoint wakes the other where that says so. What they hold means nothing. A sender may always wake over TCP
//! instead, so whatever waits in reach of a doorbell watches the kernel connection, too.
#![allow(unsafe_code)] // libc's calls, with memory of this module

use std::ffi::{c_int, c_long};

use libc::epoll_event;
use promote::Doorbells;
use sys::doorbell::{AT_ONCE, Kind};

use crate::hidden::{self, Hidden};
use crate::real;

/// Both of one connection.
#[derive(Debug)]
pub(crate) struct Doorbell {
    own: Hidden,
    peer: Hidden,
    kind: Kind,
    /// The epoll set that watches the own one, by edges: its number, and 1; 0: none.
    pub(crate) set: u32,
    /// The socket is a member of that set: one that was taken out may be put in again.
    pub(crate) is_member: bool,
    /// Edges since it was emptied, modulo 256.
    edges: u8,
}

/// Reads of one emptying: a page. A peer that writes more has its own connection woken in vain.
const READS: usize = 64;

/// With a socket's number in its low half, what the kernel reports of a doorbell in an epoll set, by which no program can mean
/// anything: 32 random bits, and exactly EPOLLIN.
const DATUM: u64 = 0xc3a9_71f2 << 32;

/// The socket of an event, if it is of a doorbell.
#[inline]
pub(crate) fn rung(data: u64, events: u32) -> Option<u32> {
    (data & !u64::from(u32::MAX) == DATUM && events == libc::EPOLLIN as u32).then_some(data as u32)
}

impl Doorbell {
    /// `None`: the process may have no more descriptors.
    pub(crate) fn new(granted: Doorbells) -> Option<Doorbell> {
        let Doorbells { own, peer, kind } = granted;
        Some(Doorbell {
            own: hidden::hide(own)?,
            peer: hidden::hide(peer)?,
            kind,
            set: 0,
            is_member: false,
            edges: 0,
        })
    }

    /// The own one, if no file of the program's is at its number.
    pub(crate) fn own(&self) -> Option<c_int> {
        Some(self.own.fd()).filter(|fd| *fd >= 0)
    }

    /// Whether one of both has this number.
    pub(crate) fn has(&self, fd: c_int) -> bool {
        fd >= 0 && [self.own.fd(), self.peer.fd()].contains(&fd)
    }

    /// Wakes the peer. False: it has no room, which one that is read would have.
    pub(crate) fn wake_peer(&self) -> bool {
        let (fd, byte) = (self.peer.fd(), 0u8);
        let (byte, until) = (&raw const byte, (&raw const AT_ONCE) as c_long);
        // SAFETY: one byte and a time to read; a pipe does not block.
        real::kept_errno(|| unsafe {
            match self.kind {
                Kind::Pipe => real::write(fd, byte.cast(), 1) == 1,
                // No function of libc's, which would be a place where a thread can be cancelled.
                Kind::Queue => {
                    real::syscall(libc::SYS_mq_timedsend, fd.into(), byte as c_long, 1, 0, until, 0) == 0
                }
            }
        })
    }

    /// An edge of the own one woke its set. A pipe may keep its bytes, where the kernel allows it: it has room for a page, and
    /// a write that finds none is an edge, too.
    pub(crate) fn has_woken_set(&mut self) {
        self.edges = self.edges.wrapping_add(1);
        if self.edges == 0 || self.kind == Kind::Queue || !sys::doorbell::may_stay_unread() {
            real::kept_errno(|| self.empty());
        }
    }

    /// Empties the own one, before the look at the ring that counts: the next wake-up is an edge then, on each Linux (from 5.5
    /// to 5.13 one that does not find the pipe empty is none).
    pub(crate) fn empty(&self) {
        match self.kind {
            Kind::Pipe => self.empty_pipe(),
            Kind::Queue => {
                let (fd, mut byte) = (self.own.fd(), 0u8);
                let (byte, until) = (&raw mut byte, (&raw const AT_ONCE) as c_long);
                // SAFETY: room for the one byte that its messages have, and a time to read.
                real::kept_errno(|| unsafe {
                    real::syscall(libc::SYS_mq_timedreceive, fd.into(), byte as c_long, 1, 0, until, 0)
                });
            }
        }
    }

    fn empty_pipe(&self) {
        let mut bytes = [0u8; 64];
        for _ in 0..READS {
            // SAFETY: room of that length; the descriptor does not block.
            let count = unsafe { real::read(self.own.fd(), bytes.as_mut_ptr().cast(), bytes.len()) };
            if count != bytes.len() as isize {
                break;
            }
        }
    }

    /// In the child of a fork: the set, and what watches the bell there, are its parent's.
    pub(crate) fn is_inherited(&mut self) {
        self.set = 0;
    }

    /// epoll_ctl(2) about the own one, and the socket of this number.
    pub(crate) fn control(&self, epfd: c_int, operation: c_int, number: u32) -> bool {
        let mut event =
            epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: DATUM | u64::from(number) };
        // SAFETY: an event to read.
        real::kept_errno(|| unsafe { real::epoll_ctl(epfd, operation, self.own.fd(), &raw mut event) == 0 })
    }
}
