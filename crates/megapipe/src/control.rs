//! Calls on a handle or lightweight socket that are answered at once: addresses, options,
//! and the way between lightweight sockets and descriptors. Not for hot paths.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use socket2::SockAddr;

use crate::channel::Channel;
use crate::engine::sockets::{KeepAlive, Opening, SocketCalls, SocketInfo};
use crate::engine::view::View;
use crate::engine::{self, Engine};
use crate::error::{ControlError, OpenError};
use crate::id::Handle;
use crate::lwsocket::{LwFile, LwSocket};
use crate::source::Shape;

impl Channel {
    /// Makes a socket that listens on `address`, with SO_REUSEADDR set, and registers it.
    /// At most `backlog` connections wait to be accepted (listen(2)).
    ///
    /// # Errors
    ///
    /// [`OpenError`]; EADDRINUSE and EADDRNOTAVAIL of bind(2) above all.
    pub fn listen_on(&mut self, address: SocketAddr, backlog: u32, cookie: u64) -> Result<Handle, OpenError> {
        self.open_socket(Opening::Listener { address, backlog }, cookie)
    }

    /// Makes a socket, registers it, and connects it to `address`. The outcome is an
    /// [`crate::Event::Connect`]; writes may be queued before.
    ///
    /// # Errors
    ///
    /// [`OpenError`]; nothing is left behind then.
    pub fn connect_to(&mut self, address: SocketAddr, cookie: u64) -> Result<Handle, OpenError> {
        if self.core.ops.is_full() {
            return Err(OpenError::OperationsFull);
        }
        let handle = self.open_socket(Opening::Connection { to: address }, cookie)?;
        // A new socket lacks nothing but a free operation, of which there is one.
        self.connect(handle, &address.into()).map_err(|_| OpenError::OperationsFull)?;
        Ok(handle)
    }

    fn open_socket(&mut self, opening: Opening, cookie: u64) -> Result<Handle, OpenError> {
        self.check_process().map_err(io::Error::other)?;
        let (file, shape) = self.engine.open(&mut View::of(&mut self.core), opening)?;
        self.add(file, shape, cookie).ok_or(OpenError::HandlesFull)
    }

    /// The socket's own address (getsockname(2)).
    ///
    /// # Errors
    ///
    /// [`ControlError`].
    pub fn local_address(&mut self, handle: Handle) -> Result<SockAddr, ControlError> {
        let index = self.open_here(handle)?;
        Ok(self.engine.local_address(&mut View::of(&mut self.core), index)?)
    }

    /// The peer's address (getpeername(2)).
    ///
    /// # Errors
    ///
    /// [`ControlError`].
    pub fn peer_address(&mut self, handle: Handle) -> Result<SockAddr, ControlError> {
        let index = self.open_here(handle)?;
        Ok(self.engine.peer_address(&mut View::of(&mut self.core), index)?)
    }

    /// Sends small segments at once (`on`), or one only after all earlier bytes are
    /// acknowledged (TCP_NODELAY of tcp(7); RFC 896).
    ///
    /// # Errors
    ///
    /// [`ControlError`].
    pub fn set_nodelay(&mut self, handle: Handle, on: bool) -> Result<(), ControlError> {
        let index = self.open_here(handle)?;
        Ok(self.engine.set_nodelay(&mut View::of(&mut self.core), index, on)?)
    }

    /// Probes an idle connection, or stops doing so (`None`). Before the connection begins it is kept for
    /// it; on a listener it is for the connections that are accepted from then on.
    ///
    /// # Errors
    ///
    /// [`ControlError`]; EINVAL for a time below one second or no probes.
    pub fn set_keepalive(&mut self, handle: Handle, probes: Option<KeepAlive>) -> Result<(), ControlError> {
        let index = self.open_here(handle)?;
        Ok(self.engine.set_keepalive(&mut View::of(&mut self.core), index, probes)?)
    }

    /// Ends the connection with ETIMEDOUT when the peer has acknowledged nothing of what was sent, or
    /// has kept its window closed, for this time (TCP_USER_TIMEOUT of tcp(7); RFC 5482): a peer that does
    /// not read otherwise keeps what is written to it for ever. `None` is what the system has. As with
    /// [`set_keepalive`](Channel::set_keepalive), it can be set before the connection begins, and on a
    /// listener. On a stack it is a day at most. It does not bound what is sent through shared memory.
    ///
    /// # Errors
    ///
    /// [`ControlError`]; EINVAL for less than a millisecond, or for 2^31 or more of them.
    pub fn set_user_timeout(
        &mut self,
        handle: Handle,
        timeout: Option<Duration>,
    ) -> Result<(), ControlError> {
        let index = self.open_here(handle)?;
        let millis = timeout.map(|timeout| {
            let millis = i32::try_from(timeout.as_millis()).unwrap_or(0).cast_unsigned();
            NonZeroU32::new(millis).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
        });
        Ok(self.engine.set_user_timeout(&mut View::of(&mut self.core), index, millis.transpose()?)?)
    }

    /// What TCP measures on the connection.
    ///
    /// # Errors
    ///
    /// [`ControlError`]; EOPNOTSUPP for a socket that is not TCP.
    pub fn socket_info(&mut self, handle: Handle) -> Result<SocketInfo, ControlError> {
        let index = self.open_here(handle)?;
        Ok(self.engine.socket_info(&mut View::of(&mut self.core), index)?)
    }

    /// Runs `f` on a descriptor of the file, for socket options and whatever else takes
    /// one. For a lightweight socket the descriptor is made for this call: not for hot
    /// paths.
    ///
    /// # Errors
    ///
    /// [`ControlError`].
    pub fn control<T>(
        &mut self,
        handle: Handle,
        f: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
    ) -> Result<T, ControlError> {
        let index = self.open_here(handle)?;
        Ok(engine::with_descriptor(&mut self.engine, &mut View::of(&mut self.core), index, f)?)
    }

    /// Turns a lightweight socket into a descriptor.
    ///
    /// # Errors
    ///
    /// [`ControlError`], of a stack's socket EOPNOTSUPP; the lightweight socket is closed then.
    pub fn to_fd(&mut self, socket: LwSocket) -> Result<OwnedFd, ControlError> {
        if !std::rc::Rc::ptr_eq(&socket.owner, &self.core.lwsockets) {
            return Err(ControlError::ForeignLwSocket);
        }
        self.check_process().map_err(io::Error::other)?;
        let file = socket.into_file();
        self.core.lwsockets.closed_one(file.is_of_stack());
        if let LwFile::Private(fd) = file {
            return Ok(fd);
        }
        let fd = self.engine.export(&mut View::of(&mut self.core), &file);
        match file {
            LwFile::Direct(slot) => self.engine.close_dropped(&mut View::of(&mut self.core), &[slot]),
            LwFile::Stack(socket) => self.engine.close_dropped_of_stacks(&[socket]),
            LwFile::Private(_) | LwFile::Taken => {}
        }
        Ok(fd?)
    }

    /// Turns a descriptor into a lightweight socket of this channel.
    ///
    /// # Errors
    ///
    /// [`ControlError`]; the descriptor is closed then.
    pub fn to_lwsocket(&mut self, fd: OwnedFd) -> Result<LwSocket, ControlError> {
        let shape = Shape::of(std::os::fd::AsFd::as_fd(&fd))?;
        if !shape.is_socket() {
            return Err(io::Error::from_raw_os_error(libc::ENOTSOCK).into());
        }
        if self.core.lwsockets_left(false) == 0 {
            return Err(ControlError::TableFull);
        }
        self.check_process().map_err(io::Error::other)?;
        let file = self.engine.adopt(&mut View::of(&mut self.core), fd)?;
        Ok(LwSocket::new(file, shape, &self.core.lwsockets))
    }
}
