//! Files that can be registered, and how they behave.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use socket2::SockRef;
use sys::socket::Kind;

use crate::lwsocket::LwSocket;

/// A file on its way into or out of a channel.
#[derive(Debug)]
pub enum Source {
    /// A descriptor: socket, pipe, terminal or disk file. Blocking mode does not matter.
    Fd(OwnedFd),
    /// A lightweight socket of the same channel.
    LwSocket(LwSocket),
}

impl<T: Into<OwnedFd>> From<T> for Source {
    fn from(file: T) -> Self {
        Source::Fd(file.into())
    }
}

impl From<LwSocket> for Source {
    fn from(socket: LwSocket) -> Self {
        Source::LwSocket(socket)
    }
}

/// How a file behaves: decides which system calls an operation becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Connected byte stream, or a socket that will be one: TCP, UNIX.
    Stream { tcp: bool },
    /// A socket that listened when it was registered: gives connections, of packets or
    /// bytes, and has nothing to read.
    Listener { packets: bool, tcp: bool },
    /// UDP, UNIX datagram and seqpacket sockets: message boundaries are kept. On those
    /// with a connection (seqpacket) no bytes are its end.
    Datagram { connected: bool },
    /// Pipe, FIFO or character device: waits, but has no socket calls. With O_NONBLOCK
    /// set, io_uring would give EAGAIN instead of waiting.
    Pipe { nonblocking: bool },
    /// Disk file: never waits for a peer, has offsets.
    File,
}

impl Shape {
    pub(crate) fn is_socket(self) -> bool {
        matches!(self, Shape::Stream { .. } | Shape::Listener { .. } | Shape::Datagram { .. })
    }

    pub(crate) fn is_stream(self) -> bool {
        matches!(self, Shape::Stream { .. })
    }

    pub(crate) fn is_listener(self) -> bool {
        matches!(self, Shape::Listener { .. })
    }

    /// What is accepted from such a socket.
    pub(crate) fn of_accepted(self) -> Shape {
        match self {
            Shape::Listener { packets: true, .. } => Shape::Datagram { connected: true },
            Shape::Listener { packets: false, tcp } => Shape::Stream { tcp },
            other => other,
        }
    }

    pub(crate) fn is_datagram(self) -> bool {
        matches!(self, Shape::Datagram { .. })
    }

    /// Asks the kernel, with two system calls for a socket of TCP or UDP.
    pub(crate) fn of(fd: BorrowedFd<'_>) -> io::Result<Shape> {
        if let Some(protocol) = sys::socket::protocol(fd)? {
            let tcp = protocol == libc::IPPROTO_TCP;
            let kind = if tcp { Some(Kind::Stream) } else { sys::socket::kind(fd)? };
            let packets = kind == Some(Kind::Packets);
            return Ok(match kind {
                Some(Kind::Stream | Kind::Packets) if SockRef::from(&fd).is_listener()? => {
                    Shape::Listener { packets, tcp }
                }
                Some(Kind::Stream) => Shape::Stream { tcp },
                Some(Kind::Packets) => Shape::Datagram { connected: true },
                Some(Kind::Message) | None => Shape::Datagram { connected: false },
            });
        }
        sys::file::is_regular(fd.as_fd()).and_then(|regular| {
            if regular {
                Ok(Shape::File)
            } else {
                Ok(Shape::Pipe { nonblocking: sys::file::is_nonblocking(fd)? })
            }
        })
    }
}
