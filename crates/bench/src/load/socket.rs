//! The client's sockets.

use std::io::{self, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};

use super::Target;

pub(super) struct ClientSocket {
    pub(super) socket: Socket,
    target: SockAddr,
}

impl ClientSocket {
    fn of(target: &Target, kind: Type) -> io::Result<Self> {
        let (domain, target) = match target {
            Target::Tcp(address) => (Domain::for_address(*address), SockAddr::from(*address)),
            Target::Unix(path) => (Domain::UNIX, SockAddr::unix(path)?),
        };
        let socket = Socket::new(domain, kind, None)?;
        if domain != Domain::UNIX {
            socket.set_tcp_nodelay(true)?;
        }
        Ok(Self { socket, target })
    }

    /// A connection that is there, whose calls wait so long at most.
    pub(super) fn blocking(target: &Target, patience: Duration) -> io::Result<Self> {
        let socket = Self::of(target, Type::STREAM)?;
        socket.connect()?;
        socket.socket.set_read_timeout(Some(patience))?;
        socket.socket.set_write_timeout(Some(patience))?;
        Ok(socket)
    }

    /// One that is to connect, and whose calls do not wait.
    pub(super) fn new(target: &Target) -> io::Result<Self> {
        Self::of(target, Type::STREAM.nonblocking())
    }

    /// A socket that connects again and again.
    ///
    /// Its connection is ended by `connect(AF_UNSPEC)`, which sends the same RST as a close with
    /// SO_LINGER 0 does and leaves the socket ready to connect anew (connect(2); `tcp_disconnect` in
    /// the kernel). So a connection costs the client no new socket.
    pub(super) fn for_resets(target: &Target) -> io::Result<Self> {
        let socket = Self::new(target)?;
        socket.socket.set_linger(Some(Duration::ZERO))?; // RST also when the load stops
        Ok(socket)
    }

    /// Connects, or begins to. Over loopback the connection is there on return.
    pub(super) fn connect(&self) -> io::Result<()> {
        match self.socket.connect(&self.target) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => Ok(()),
        }
    }

    /// Sends what the socket takes of `bytes`; how many that were.
    #[inline]
    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.socket.send_with_flags(bytes, libc::MSG_NOSIGNAL);
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            sent => sent,
        }
    }

    #[inline]
    pub(super) fn receive(&self, room: &mut [u8]) -> io::Result<usize> {
        (&self.socket).read(room)
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

/// How long the first answer may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
