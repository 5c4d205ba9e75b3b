//! A channel's engine, and the one that stands beside it for the sockets of stacks.
//!
//! Requests are routed when they are queued (`Core::request`), by the kind of the handle's
//! file; calls on a socket are routed here in the same way. The engine beside has its turn
//! around the kernel engine's, which alone waits.

use std::io;
use std::num::NonZeroU32;
use std::os::fd::{BorrowedFd, OwnedFd};

use socket2::SockAddr;

use super::sockets::{KeepAlive, Opening, SocketCalls, SocketInfo};
use super::view::View;
use super::watch::Watch;
use super::{Engine, Wait};
use crate::config::EngineKind;
use crate::core::File;
use crate::id::Handle;
use crate::lwsocket::LwFile;
use crate::source::Shape;
use crate::waker::Waker;

/// An engine whose sockets are its own, and that leaves waiting to a kernel engine.
pub(crate) trait Beside: SocketCalls {
    /// One batch of both, with the contract of [`Engine::turn`].
    fn turn(&mut self, kernel: &mut dyn Engine, view: &mut View<'_>, wait: Wait) -> io::Result<()>;

    /// Whether a socket for this is one of its own.
    fn owns(&self, opening: Opening) -> bool;

    /// Closes sockets that were dropped without being registered.
    fn close_dropped(&mut self, sockets: &[u32]);

    /// Sends what was written, for a bounded time.
    fn drain(&mut self);

    #[cfg(feature = "tcp")]
    fn attach(
        &mut self,
        kernel: &mut dyn Engine,
        stack: crate::engine::stack::Stack,
    ) -> Result<(), crate::error::AttachError>;
}

/// The engines of a channel.
pub(crate) struct Engines {
    pub(super) kernel: Box<dyn Engine>,
    pub(super) beside: Option<Box<dyn Beside>>,
}

impl Engines {
    pub(crate) fn new(kernel: Box<dyn Engine>) -> Engines {
        Engines { kernel, beside: None }
    }

    pub(crate) fn close_dropped_of_stacks(&mut self, sockets: &[u32]) {
        if let Some(beside) = &mut self.beside {
            beside.close_dropped(sockets);
        }
    }

    /// The engine that answers calls on this handle's socket.
    fn of(&mut self, view: &View<'_>, index: u32) -> &mut dyn SocketCalls {
        match &mut self.beside {
            Some(beside) if view.file(index).is_some_and(|file| file.stack_socket().is_some()) => {
                &mut **beside
            }
            _ => &mut *self.kernel,
        }
    }
}

impl Engine for Engines {
    fn kind(&self) -> EngineKind {
        self.kernel.kind()
    }

    #[inline]
    fn turn(&mut self, view: &mut View<'_>, wait: Wait) -> io::Result<()> {
        match &mut self.beside {
            None => self.kernel.turn(view, wait),
            Some(beside) => beside.turn(&mut *self.kernel, view, wait),
        }
    }

    fn waker(&self) -> Waker {
        self.kernel.waker()
    }

    fn watch(&mut self, fd: BorrowedFd<'_>, watch: Watch) -> io::Result<()> {
        self.kernel.watch(fd, watch)
    }

    fn watch_again(&mut self, fd: BorrowedFd<'_>, watch: Watch) -> io::Result<()> {
        self.kernel.watch_again(fd, watch)
    }

    fn watch_doorbell(&mut self, view: &mut View<'_>, fd: BorrowedFd<'_>, handle: Handle) -> io::Result<()> {
        self.kernel.watch_doorbell(view, fd, handle)
    }

    fn adopt(&mut self, view: &mut View<'_>, fd: OwnedFd) -> io::Result<LwFile> {
        self.kernel.adopt(view, fd)
    }

    fn export(&mut self, view: &mut View<'_>, file: &LwFile) -> io::Result<OwnedFd> {
        match file {
            LwFile::Stack(_) => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
            _ => self.kernel.export(view, file),
        }
    }

    fn close_dropped(&mut self, view: &mut View<'_>, slots: &[u32]) {
        self.kernel.close_dropped(view, slots);
    }

    fn shut(&mut self, view: &mut View<'_>) -> bool {
        if let Some(beside) = &mut self.beside {
            beside.drain();
        }
        self.kernel.shut(view)
    }
}

impl SocketCalls for Engines {
    fn open(&mut self, view: &mut View<'_>, opening: Opening) -> io::Result<(File, Shape)> {
        match &mut self.beside {
            Some(beside) if beside.owns(opening) => beside.open(view, opening),
            _ => self.kernel.open(view, opening),
        }
    }

    fn local_address(&mut self, view: &mut View<'_>, index: u32) -> io::Result<SockAddr> {
        self.of(view, index).local_address(view, index)
    }

    fn peer_address(&mut self, view: &mut View<'_>, index: u32) -> io::Result<SockAddr> {
        self.of(view, index).peer_address(view, index)
    }

    fn set_nodelay(&mut self, view: &mut View<'_>, index: u32, on: bool) -> io::Result<()> {
        self.of(view, index).set_nodelay(view, index, on)
    }

    fn set_keepalive(
        &mut self,
        view: &mut View<'_>,
        index: u32,
        probes: Option<KeepAlive>,
    ) -> io::Result<()> {
        self.of(view, index).set_keepalive(view, index, probes)
    }

    fn set_user_timeout(
        &mut self,
        view: &mut View<'_>,
        index: u32,
        millis: Option<NonZeroU32>,
    ) -> io::Result<()> {
        self.of(view, index).set_user_timeout(view, index, millis)
    }

    fn reset_on_close(&mut self, view: &mut View<'_>, index: u32) -> io::Result<()> {
        self.of(view, index).reset_on_close(view, index)
    }

    fn socket_info(&mut self, view: &mut View<'_>, index: u32) -> io::Result<SocketInfo> {
        self.of(view, index).socket_info(view, index)
    }
}
