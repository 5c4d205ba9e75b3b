//! The client's sockets.

use std::io;
use std::time::Duration;

use rustix::net::connect_unspec;
use socket2::{Domain, SockAddr, Socket, Type};

use super::Target;

impl Target {
    pub(super) fn address(&self) -> io::Result<SockAddr> {
        match self {
            Target::Tcp(address) => Ok((*address).into()),
            Target::Unix(path) => SockAddr::unix(path),
        }
    }
}

/// A connection that is there, whose calls wait so long at most.
pub(super) fn connected(target: &Target, patience: Duration) -> io::Result<Socket> {
    let address = target.address()?;
    let socket = unconnected(&address)?;
    socket.set_nonblocking(false)?;
    socket.connect(&address)?;
    socket.set_read_timeout(Some(patience))?;
    socket.set_write_timeout(Some(patience))?;
    Ok(socket)
}

/// A socket that connects again and again.
///
/// Its connection is ended by `connect(AF_UNSPEC)`, which sends the same RST as a close with
/// SO_LINGER 0 does and leaves the socket ready to connect anew (connect(2); `tcp_disconnect` in
/// the kernel). So a connection costs the client no new socket.
pub(super) fn reconnecting(address: &SockAddr) -> io::Result<Socket> {
    let socket = unconnected(address)?;
    socket.set_linger(Some(Duration::ZERO))?; // RST also when the load stops
    Ok(socket)
}

/// A socket that is to connect, and whose calls do not wait.
pub(super) fn unconnected(address: &SockAddr) -> io::Result<Socket> {
    let socket = Socket::new(address.domain(), Type::STREAM.nonblocking(), None)?;
    if address.domain() != Domain::UNIX {
        socket.set_tcp_nodelay(true)?;
    }
    Ok(socket)
}

/// Connects, or begins to. Over loopback the connection is there on return.
pub(super) fn connect(socket: &Socket, address: &SockAddr) -> io::Result<()> {
    match socket.connect(address) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(()),
    }
}

/// Sends what the socket takes of `bytes`; how many that were.
#[inline]
pub(super) fn send(socket: &Socket, bytes: &[u8]) -> io::Result<usize> {
    match socket.send_with_flags(bytes, libc::MSG_NOSIGNAL) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        sent => sent,
    }
}

/// Ends the connection with RST.
pub(super) fn reset(socket: &Socket) -> io::Result<()> {
    Ok(connect_unspec(socket)?)
}

/// How long the first answer may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
