//! The requests of a channel to the kernel, and the contract of the engines that carry
//! them out.
//!
//! The rules that hold on every engine (order of writes, what a close waits for, which
//! completion may surface, when a starved read goes on) live in `Core`. An engine only
//! starts, cancels and finishes single steps, a batch at a time.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use sys::capabilities::{Capabilities, DISABLE_VARIABLE};

use crate::config::{Config, EngineKind};
use crate::core::Core;
use crate::error::CreateError;
use crate::id::{Handle, OpId};
use crate::waker::Waker;

use self::view::View;
use self::watch::Watch;

pub(crate) mod beside;
pub(crate) mod epoll;
pub(crate) mod polls;
pub(crate) mod sockets;
#[cfg(feature = "tcp")]
pub(crate) mod stack;
pub(crate) mod uring;
pub(crate) mod view;
pub(crate) mod watch;

pub(crate) use sockets::with_descriptor;

/// One step for the engine, in the order in which the channel's user asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Start this operation (accept, connect, read, shutdown, disconnect, poll). It ends with a
    /// [`Done`] that has no [`Done::MORE`].
    Start(OpId),
    /// Send from the write queue of the handle at this index ([`View::next_writes`]);
    /// report the outcome through [`View::report_write`] before the turn ends, or later
    /// if the handle was marked blocked.
    Writes(u32),
    /// Make this started operation end soon, with ECANCELED if nothing else came first.
    Cancel(OpId),
    /// Make the held send of the handle at this index end soon (see [`View::hold_writes`]).
    CancelWrites(u32),
    /// Make every started operation of the handle at this index end soon, then close its
    /// file ([`View::take_file`]) so that the peer gets its FIN now.
    Close(u32),
    /// Make every started operation of the handle at this index end soon, so that none
    /// takes bytes any more once the turn is over; its file goes back to the user.
    Detach(u32),
}

/// The result of one step, or one result of a step that goes on.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) op: OpId,
    /// Bytes, a new descriptor or slot, 0; or a negative errno.
    pub(crate) result: i32,
    pub(crate) flags: u8,
    /// The pool buffer that was filled, with [`Done::BUFFER`].
    pub(crate) buffer: u16,
}

impl Done {
    /// The operation goes on; more results of it will come.
    pub(crate) const MORE: u8 = 1;
    /// More connections wait in the accept queue.
    pub(crate) const PENDING: u8 = 2;
    /// `buffer` names a filled buffer of the read pool.
    pub(crate) const BUFFER: u8 = 4;
    /// Of a stack: `buffer` is of the pool for stacks, an accepted connection is a socket of it.
    pub(crate) const STACK: u8 = 8;

    pub(crate) fn plain(op: OpId, result: i32) -> Done {
        Done { op, result, flags: 0, buffer: 0 }
    }

    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// How long a turn may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Not at all, and look for completions only if that is nearly free.
    Glance,
    /// Not at all.
    No,
    /// Not at all, nor look for completions where that is a call of its own: only submit
    /// what is queued.
    Flush,
    /// Until something is done, or this long; `None` is for ever.
    For(Option<Duration>),
}

/// One way to the kernel. Called once per batch.
pub(crate) trait Engine: sockets::SocketCalls {
    fn kind(&self) -> EngineKind;

    /// One batch: takes every quiet write, then every request, waits as `wait` says if there
    /// is no result yet, and reports results. [`View`] has the calls for each.
    ///
    /// It never sleeps while there is something to hand out: a non-quiet write that was
    /// settled, a close that can now go on. A signal ends a sleep with EINTR.
    fn turn(&mut self, view: &mut View<'_>, wait: Wait) -> io::Result<()>;

    /// Wakes a sleeping turn from any thread; the turn then calls [`View::wake`].
    fn waker(&self) -> Waker;

    /// Ends a sleep, and calls [`View::raise`], when this descriptor has something
    /// to read. It counts once: call it again when all was read (EAGAIN).
    fn watch(&mut self, fd: BorrowedFd<'_>, watch: Watch) -> io::Result<()>;

    /// As [`Self::watch`], for a descriptor that is watched already and was read to its end.
    #[cfg_attr(not(feature = "tcp"), allow(dead_code))]
    fn watch_again(&mut self, fd: BorrowedFd<'_>, watch: Watch) -> io::Result<()>;

    /// From here on bytes in the handle's own doorbell end a sleep, and lead to
    /// [`View::woken_by_doorbell`], until its file is taken.
    fn watch_doorbell(&mut self, view: &mut View<'_>, fd: BorrowedFd<'_>, handle: Handle) -> io::Result<()>;

    /// Moves a socket into the engine's private table.
    fn adopt(&mut self, view: &mut View<'_>, fd: OwnedFd) -> io::Result<crate::lwsocket::LwFile>;

    /// A descriptor for the same open file as the lightweight socket's.
    fn export(&mut self, view: &mut View<'_>, file: &crate::lwsocket::LwFile) -> io::Result<OwnedFd>;

    /// Closes lightweight sockets that were dropped without being registered.
    fn close_dropped(&mut self, view: &mut View<'_>, slots: &[u32]);

    /// Ends everything that is pending, so that the kernel has no memory of ours any
    /// more. Returns false if something would not end; its memory is then leaked.
    fn shut(&mut self, view: &mut View<'_>) -> bool;
}

/// The engine that `MEGAPIPE_ENGINE`, the configuration and the kernel agree on.
pub(crate) fn choose(config: &Config, core: &mut Core) -> Result<Box<dyn Engine>, CreateError> {
    warn_unknown_features();
    // Where they are descriptors; a refusal shows as one of an accept.
    let _ = sys::file::raise_open_files(config.lwsockets_max.into());
    let forced = match std::env::var("MEGAPIPE_ENGINE") {
        Ok(name) if name == "uring" => Some(EngineKind::Uring),
        Ok(name) if name == "epoll" => Some(EngineKind::Epoll),
        Ok(name) if name.is_empty() => config.engine,
        Ok(name) => return Err(CreateError::UnknownEngine(name)),
        Err(std::env::VarError::NotPresent) => config.engine,
        Err(std::env::VarError::NotUnicode(name)) => {
            return Err(CreateError::UnknownEngine(name.to_string_lossy().into_owned()));
        }
    };
    match forced {
        Some(EngineKind::Epoll) => Ok(Box::new(epoll::Epoll::new(config)?)),
        Some(EngineKind::Uring) => Ok(Box::new(uring::Uring::new(config, &mut View::of(core))?)),
        None => match uring::Uring::new(config, &mut View::of(core)) {
            Ok(engine) => Ok(Box::new(engine)),
            // Only the absence of io_uring leads to epoll; a lack of memory or
            // descriptors would otherwise be hidden by a slower server.
            Err(CreateError::RingUnavailable(cause)) => {
                warn_fallback(&cause);
                Ok(Box::new(epoll::Epoll::new(config)?))
            }
            Err(other) => Err(other),
        },
    }
}

/// One line for the process, however many channels it makes.
fn warn_fallback(cause: &io::Error) {
    static LOGGED: std::sync::Once = std::sync::Once::new();
    LOGGED.call_once(|| {
        tracing::warn!(
            "io_uring is not available ({cause}); using epoll. `megapipe doctor` shows how to mend it"
        );
    });
}

/// One line for the process, if `MEGAPIPE_DISABLE` names an unknown feature.
fn warn_unknown_features() {
    static LOGGED: std::sync::Once = std::sync::Once::new();
    LOGGED.call_once(|| {
        let unknown = sys::capabilities::unknown_disabled();
        if !unknown.is_empty() {
            tracing::warn!(
                "{DISABLE_VARIABLE} names no feature: {}; the names are {}",
                unknown.join(", "),
                Capabilities::names().collect::<Vec<_>>().join(", ")
            );
        }
    });
}
