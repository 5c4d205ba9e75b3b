//! What a call can fail with.

use crate::core::calls::{ConnectError, ListenError};
use crate::event::Failure;

/// Why a call failed: the errors of the calls of the same name in POSIX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{}", self.name())]
pub enum Errno {
    /// EBADF: no such socket or set.
    BadDescriptor,
    /// EAGAIN: nothing now; readiness follows.
    WouldBlock,
    /// EINPROGRESS: the handshake has begun.
    InProgress,
    /// EALREADY: the handshake is not over yet.
    Already,
    /// EISCONN: the socket is connected.
    IsConnected,
    /// ENOTCONN: the socket is not connected.
    NotConnected,
    /// EADDRINUSE: another listener or connection has this address and port.
    InUse,
    /// EADDRNOTAVAIL: not an address of this host, or no free port.
    NotAvailable,
    /// EINVAL: not in this state, or not with these arguments.
    Invalid,
    /// EOPNOTSUPP: not on a socket of this kind.
    NotSupported,
    /// EPIPE: this program has ended the stream, or the connection is over.
    Pipe,
    /// ECONNREFUSED: the peer refused the connection.
    Refused,
    /// ECONNRESET: the peer reset the connection.
    Reset,
    /// ETIMEDOUT: the peer did not answer for too long.
    TimedOut,
    /// EHOSTUNREACH: the network reported that the peer cannot be reached, or it is no host's
    /// address.
    Unreachable,
    /// EMFILE: no free descriptor.
    TooMany,
    /// ENOBUFS: the host has no room for another connection or listener.
    NoBuffers,
    /// EEXIST: the socket is in the set already.
    Exists,
    /// ENOENT: the socket is not in the set.
    NotFound,
}

impl Errno {
    /// The name that POSIX has for it, and Linux's number.
    const fn names(self) -> (&'static str, i32) {
        match self {
            Errno::BadDescriptor => ("EBADF", 9),
            Errno::WouldBlock => ("EAGAIN", 11),
            Errno::InProgress => ("EINPROGRESS", 115),
            Errno::Already => ("EALREADY", 114),
            Errno::IsConnected => ("EISCONN", 106),
            Errno::NotConnected => ("ENOTCONN", 107),
            Errno::InUse => ("EADDRINUSE", 98),
            Errno::NotAvailable => ("EADDRNOTAVAIL", 99),
            Errno::Invalid => ("EINVAL", 22),
            Errno::NotSupported => ("EOPNOTSUPP", 95),
            Errno::Pipe => ("EPIPE", 32),
            Errno::Refused => ("ECONNREFUSED", 111),
            Errno::Reset => ("ECONNRESET", 104),
            Errno::TimedOut => ("ETIMEDOUT", 110),
            Errno::Unreachable => ("EHOSTUNREACH", 113),
            Errno::TooMany => ("EMFILE", 24),
            Errno::NoBuffers => ("ENOBUFS", 105),
            Errno::Exists => ("EEXIST", 17),
            Errno::NotFound => ("ENOENT", 2),
        }
    }

    /// Its POSIX name.
    pub const fn name(self) -> &'static str {
        self.names().0
    }

    /// Its number on Linux.
    pub const fn number(self) -> i32 {
        self.names().1
    }
}

impl From<Failure> for Errno {
    fn from(failure: Failure) -> Errno {
        match failure {
            Failure::Refused => Errno::Refused,
            Failure::Reset => Errno::Reset,
            Failure::TimedOut => Errno::TimedOut,
            Failure::Unreachable => Errno::Unreachable,
        }
    }
}

impl From<ListenError> for Errno {
    fn from(error: ListenError) -> Errno {
        match error {
            ListenError::InUse => Errno::InUse,
            ListenError::TooMany => Errno::NoBuffers,
        }
    }
}

impl From<ConnectError> for Errno {
    fn from(error: ConnectError) -> Errno {
        match error {
            ConnectError::InUse | ConnectError::Address => Errno::NotAvailable,
            ConnectError::TooMany => Errno::NoBuffers,
            // As Linux answers a TCP connect to a group.
            ConnectError::Remote => Errno::Unreachable,
        }
    }
}
