//! Readiness of descriptors, as polls ask for and report it.

use std::fmt;
use std::ops::BitOr;
use std::os::fd::RawFd;

use sys::epoll::{ERROR, HANG_UP, IN, OUT, PEER_ENDED, URGENT};

/// What a descriptor is ready for, a set; the bits are those of poll(2).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Readiness(u16);

impl Readiness {
    /// A read, or an accept, does not wait (POLLIN).
    pub const READABLE: Readiness = Readiness(IN as u16);
    /// Urgent data of TCP, and what else poll(2) lists (POLLPRI).
    pub const PRIORITY: Readiness = Readiness(URGENT as u16);
    /// A write of some bytes does not wait (POLLOUT).
    pub const WRITABLE: Readiness = Readiness(OUT as u16);
    /// The peer of a stream socket will send no more (POLLRDHUP).
    pub const READ_HANG_UP: Readiness = Readiness(PEER_ENDED as u16);
    /// An error, or that a pipe has no reader (POLLERR); reported unasked.
    pub const ERROR: Readiness = Readiness(ERROR as u16);
    /// The stream has ended in both directions (POLLHUP); reported unasked.
    pub const HANG_UP: Readiness = Readiness(HANG_UP as u16);

    /// What a poll may ask for.
    const ASKABLE: u16 =
        Self::READABLE.0 | Self::PRIORITY.0 | Self::WRITABLE.0 | Self::READ_HANG_UP.0 | Self::UNASKED;
    const UNASKED: u16 = Self::ERROR.0 | Self::HANG_UP.0;

    /// The bits, as poll(2) has them.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// The set of these bits; those that are no constant's have no effect and are not reported.
    pub const fn from_bits(bits: u16) -> Readiness {
        Readiness(bits & Self::ASKABLE)
    }

    /// Whether it has all of `other`.
    pub const fn contains(self, other: Readiness) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether it has any of `other`.
    pub const fn intersects(self, other: Readiness) -> bool {
        self.0 & other.0 != 0
    }

    /// As a poll that asks for this reports it.
    pub(crate) fn reported(self) -> u32 {
        (self.0 | Self::UNASKED).into()
    }

    /// What a poll that asks for this reports of what the kernel found.
    pub(crate) fn found(self, bits: u32) -> Readiness {
        Readiness((bits & self.reported()) as u16)
    }
}

impl BitOr for Readiness {
    type Output = Readiness;

    fn bitor(self, other: Readiness) -> Readiness {
        Readiness(self.0 | other.0)
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [(Readiness, &str); 6] = [
            (Readiness::READABLE, "READABLE"),
            (Readiness::PRIORITY, "PRIORITY"),
            (Readiness::WRITABLE, "WRITABLE"),
            (Readiness::READ_HANG_UP, "READ_HANG_UP"),
            (Readiness::ERROR, "ERROR"),
            (Readiness::HANG_UP, "HANG_UP"),
        ];
        let names: Vec<_> =
            NAMES.iter().filter(|(bit, _)| self.contains(*bit)).map(|(_, name)| *name).collect();
        write!(f, "Readiness({})", names.join(" | "))
    }
}

/// A poll that is pending.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Poll {
    pub(crate) fd: RawFd,
    pub(crate) interest: Readiness,
    /// io_uring ends a poll of a stream whose peer has ended it, whatever is asked for
    /// (IO_POLL_UNMASK), and is not woken by urgent bytes. One that did not ask for the end goes on
    /// in an epoll set, one that asks for urgent bytes is there from the beginning.
    pub(crate) through_set: bool,
    pub(crate) cookie: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_are_those_of_poll() {
        let all = [
            (Readiness::READABLE, libc::POLLIN),
            (Readiness::PRIORITY, libc::POLLPRI),
            (Readiness::WRITABLE, libc::POLLOUT),
            (Readiness::READ_HANG_UP, libc::POLLRDHUP),
            (Readiness::ERROR, libc::POLLERR),
            (Readiness::HANG_UP, libc::POLLHUP),
        ];
        for (ours, theirs) in all {
            assert_eq!(ours.bits(), theirs as u16);
        }
        assert_eq!(
            Readiness::from_bits(u16::MAX).bits(),
            all.iter().fold(0, |bits, (_, bit)| bits | *bit as u16)
        );
        assert_eq!(
            format!("{:?}", Readiness::READABLE | Readiness::HANG_UP),
            "Readiness(READABLE | HANG_UP)"
        );
    }
}
