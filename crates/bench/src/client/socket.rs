//! A socket that connects again and again.
//!
//! Its connection is ended by `connect(AF_UNSPEC)`, which sends the same RST as a close with
//! SO_LINGER 0 does and leaves the socket ready to connect anew (connect(2); `tcp_disconnect` in
//! the kernel). So a connection costs the client no new socket.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

pub(super) struct ClientSocket {
    socket: Socket,
    target: SockAddr,
}

impl ClientSocket {
    /// A non-blocking socket for connections to `target`.
    pub(super) fn new(target: SocketAddr) -> io::Result<Self> {
        let socket =
            Socket::new(Domain::for_address(target), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
        socket.set_tcp_nodelay(true)?;
        socket.set_linger(Some(Duration::ZERO))?; // RST also when the load stops
        Ok(Self { socket, target: target.into() })
    }

    /// Connects, or begins to. Over loopback the connection is there on return.
    pub(super) fn connect(&self) -> io::Result<()> {
        match self.socket.connect(&self.target) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => Ok(()),
        }
    }

    /// Sends what the socket takes of `bytes`; how many that were.
    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.socket.send_with_flags(bytes, libc::MSG_NOSIGNAL);
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            sent => sent,
        }
    }

    /// Ends the connection with RST.
    pub(super) fn reset(&self) -> io::Result<()> {
        let nowhere = libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
        let length = size_of_val(&nowhere) as libc::socklen_t;
        // SAFETY: the address is valid for its length.
        match unsafe { libc::connect(self.as_raw_fd(), &nowhere, length) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl AsRawFd for ClientSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}
