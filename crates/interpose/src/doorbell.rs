//! The doorbells of a promoted connection (docs/promotion.md, section 4): pipes or message queues
//! by which the endpoints wake each other on request. Their contents have no meaning. A sender may
//! always wake over TCP instead, so every wait that watches a doorbell watches the kernel
//! connection, too.
#![allow(unsafe_code)] // libc's calls, with memory of this module

use std::ffi::{c_int, c_long};

use libc::epoll_event;
use promote::Doorbells;
use sys::doorbell::{AT_ONCE, Kind};

use crate::hidden::{self, Hidden};
use crate::real;

/// The two doorbells of a connection.
#[derive(Debug)]
pub(crate) struct Doorbell {
    own: Hidden,
    peer: Hidden,
    kind: Kind,
    /// The epoll set that watches our doorbell, edge-triggered: number plus 1; 0: none.
    pub(crate) set: u32,
    /// The socket is a member of that set: a removed one may be added again.
    pub(crate) is_member: bool,
    /// Edges since our doorbell was emptied, modulo 256.
    edges: u8,
}

/// Reads of one emptying: a page. A peer that writes more only causes wake-ups of its own
/// connection.
const READS: usize = 64;

/// The upper half of `epoll_data` for doorbells in an epoll set, with a socket's number in the
/// lower half: 32 random bits, and exactly EPOLLIN, so that no program has the same.
const DATUM: u64 = 0xc3a9_71f2 << 32;

/// The socket of an event, if a doorbell caused it.
#[inline]
pub(crate) fn socket_of(data: u64, events: u32) -> Option<u32> {
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

    /// Our doorbell, unless the program has put a file at its number.
    pub(crate) fn own(&self) -> Option<c_int> {
        Some(self.own.fd()).filter(|fd| *fd >= 0)
    }

    /// Whether one of the two has this number.
    pub(crate) fn has(&self, fd: c_int) -> bool {
        fd >= 0 && [self.own.fd(), self.peer.fd()].contains(&fd)
    }

    /// Wakes the peer. False: it is full, which one that the peer reads is not.
    pub(crate) fn wake_peer(&self) -> bool {
        let (fd, byte) = (self.peer.fd(), 0u8);
        let (byte, until) = (&raw const byte, (&raw const AT_ONCE) as c_long);
        // SAFETY: one byte and a time to read; a pipe does not block.
        real::kept_errno(|| unsafe {
            match self.kind {
                Kind::Pipe => real::write(fd, byte.cast(), 1) == 1,
                // No function of libc, since that would be a cancellation point.
                Kind::Queue => {
                    real::syscall(libc::SYS_mq_timedsend, fd.into(), byte as c_long, 1, 0, until, 0) == 0
                }
            }
        })
    }

    /// An edge of our doorbell woke its set. A pipe may keep its bytes, if the kernel allows it: it
    /// has room for a page, and a write that finds it full is an edge, too.
    pub(crate) fn woke_set(&mut self) {
        self.edges = self.edges.wrapping_add(1);
        if self.edges == 0 || self.kind == Kind::Queue || !sys::doorbell::may_stay_unread() {
            real::kept_errno(|| self.empty());
        }
    }

    /// Empties our doorbell, before the check of the ring that counts: then the next wake-up is an
    /// edge on every Linux (from 5.5 to 5.13 a write to a nonempty pipe is none).
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

    /// In the child of a fork: the set, and the registration there, are the parent's.
    pub(crate) fn forget_set(&mut self) {
        self.set = 0;
    }

    /// epoll_ctl(2) for our doorbell, with the number of its socket.
    pub(crate) fn control(&self, epfd: c_int, operation: c_int, number: u32) -> bool {
        let mut event =
            epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: DATUM | u64::from(number) };
        // SAFETY: an event to read.
        real::kept_errno(|| unsafe { real::epoll_ctl(epfd, operation, self.own.fd(), &raw mut event) == 0 })
    }
}
