//! Calls on a handle or lightweight socket that are answered at once: addresses, options,
//! and the way between lightweight sockets and descriptors. Not for hot paths.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use socket2::SockAddr;

use crate::channel::Channel;
use crate::engine;
use crate::error::ControlError;
use crate::id::Handle;
use crate::lwsocket::{LwFile, LwSocket};
use crate::source::Shape;

impl Channel {
    /// The socket's own address (getsockname(2)).
    ///
    /// # Errors
    ///
    /// [`ControlError`].
    pub fn local_address(&mut self, handle: Handle) -> Result<SockAddr, ControlError> {
        self.control(handle, |fd| socket2::SockRef::from(&fd).local_addr())
    }

    /// The peer's address (getpeername(2)).
    ///
    /// # Errors
    ///
    /// [`ControlError`].
    pub fn peer_address(&mut self, handle: Handle) -> Result<SockAddr, ControlError> {
        self.control(handle, |fd| socket2::SockRef::from(&fd).peer_addr())
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
        Ok(engine::with_descriptor(&mut *self.engine, &mut self.core, index, f)?)
    }

    /// Turns a lightweight socket into a descriptor.
    ///
    /// # Errors
    ///
    /// [`ControlError`]; the lightweight socket is closed then.
    pub fn to_fd(&mut self, socket: LwSocket) -> Result<OwnedFd, ControlError> {
        if !std::rc::Rc::ptr_eq(&socket.owner, &self.core.lwsockets) {
            return Err(ControlError::ForeignLwSocket);
        }
        self.check_process().map_err(io::Error::other)?;
        let file = socket.into_file();
        self.core.lwsockets.closed_one();
        if let LwFile::Private(fd) = file {
            return Ok(fd);
        }
        let fd = self.engine.export(&mut self.core, &file);
        if let LwFile::Direct(slot) = file {
            self.engine.close_dropped(&mut self.core, &[slot]);
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
        if self.core.lwsockets.live.get() >= self.core.config.lwsockets_max {
            return Err(ControlError::TableFull);
        }
        self.check_process().map_err(io::Error::other)?;
        let file = self.engine.adopt(&mut self.core, fd)?;
        Ok(LwSocket::new(file, shape, &self.core.lwsockets))
    }
}
