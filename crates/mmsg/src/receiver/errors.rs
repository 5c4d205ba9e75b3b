//! What a receiver refuses, and why.

use std::io;

/// Why there is no receiver.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// A setting that no receiver can have.
    #[error("{0} must be between 1 and {1}")]
    Setting(&'static str, usize),
    /// Memory or descriptors (`ulimit -n`) run short.
    #[error("a receiver with these settings finds no room: {0}")]
    Resources(#[from] io::Error),
}

/// Why a socket was not registered.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// As many sockets as [`Options::sockets`](super::Options::sockets) allows are registered.
    #[error("the receiver has as many sockets as its setting `sockets` allows")]
    Full,
    /// The receiver belongs to the process that forked this one.
    #[error("the receiver belongs to the parent process")]
    Forked,
    /// The descriptor is no socket, or the kernel refuses it.
    #[error("the socket cannot be registered: {0}")]
    Io(#[from] io::Error),
}

/// Why a wait came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    /// A signal came, or the process was stopped and resumed.
    #[error("a signal interrupted the wait")]
    Interrupted,
    /// All buffers are kept by the program, which has to drop some first. Messages wait in the
    /// kernel.
    #[error("every buffer is kept; drop some first")]
    NoBuffers,
    /// The receiver belongs to the process that forked this one.
    #[error("the receiver belongs to the parent process")]
    Forked,
    /// The kernel refuses to go on.
    #[error("waiting failed: {0}")]
    Io(#[source] io::Error),
}
