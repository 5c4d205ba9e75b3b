//! One small enum per call. A variant exists because its caller would act differently.

use std::fmt;
use std::io;

use thiserror::Error;

/// Why a channel could not be made. Its `Debug` is its text: where `main` returns it, the remedy is
/// on the screen.
#[derive(Error)]
pub enum CreateError {
    /// `MEGAPIPE_ENGINE` holds something else than `uring` or `epoll`.
    #[error("MEGAPIPE_ENGINE is `{0}`; set it to `uring` or `epoll`, or unset it")]
    UnknownEngine(String),
    /// A setting is out of its range.
    #[error("{setting} is {value}; it must be {range}")]
    Setting {
        /// The field of [`crate::Config`].
        setting: &'static str,
        /// What it was.
        value: u64,
        /// What it may be.
        range: &'static str,
    },
    /// io_uring was asked for and the kernel refused the ring.
    #[error("io_uring is not available ({0}); `megapipe doctor` shows why; or choose the epoll engine")]
    RingUnavailable(#[source] io::Error),
    /// RLIMIT_MEMLOCK has no room for a ring. A program that can do with a slower server makes its
    /// channel with [`Config::engine`](crate::Config::engine) set to epoll, which locks nothing.
    #[error(transparent)]
    LockedMemory(io::Error),
    /// The kernel refused memory or descriptors for the channel.
    #[error("the kernel refused {what}: {cause}; `megapipe doctor` shows the limits and how to raise them")]
    Resources {
        /// What was asked for.
        what: &'static str,
        /// The kernel's error.
        #[source]
        cause: io::Error,
    },
}

impl fmt::Debug for CreateError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// The handle was closed or unregistered, or never was of this channel.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the handle is closed, unregistered, or of another channel")]
pub struct StaleHandle;

/// Why a file was not given back.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum UnregisterError {
    /// See [`StaleHandle`].
    #[error("the handle is closed, unregistered, or of another channel")]
    StaleHandle,
    /// The connection's bytes go through shared memory, and the file alone would be half of
    /// it. The handle stays as it was.
    #[error("the connection was promoted to shared memory; close it, or register it with promotion off")]
    Promoted,
    /// The kernel has no room yet for queued writes, and accepted writes are not dropped.
    /// The handle stays as it was. The completion of a [`crate::Channel::write`] comes
    /// when the writes before it are out; [`crate::Channel::reset`] drops them.
    #[error("the handle has queued writes; wait until they are written, or reset it")]
    WritesQueued,
}

impl From<StaleHandle> for UnregisterError {
    fn from(_: StaleHandle) -> Self {
        UnregisterError::StaleHandle
    }
}

/// Why an operation was not queued.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum SubmitError {
    /// See [`StaleHandle`].
    #[error("the handle is closed, unregistered, or of another channel")]
    StaleHandle,
    /// `Config::operations_max` operations are pending.
    #[error("too many operations are pending; dispatch completions first or raise operations_max")]
    OperationsFull,
    /// `Config::write_queue_max` writes are queued on this handle: its peer does not read.
    /// [`crate::Event::Writable`] comes when half of them are gone.
    #[error("the handle's write queue is full; wait until the handle is writable or raise write_queue_max")]
    QueueFull,
    /// The file cannot do this: an accept on a connection, a write to a listener.
    #[error("this kind of file does not support the operation")]
    Unsupported,
    /// The call's arguments are out of range: an empty buffer, an empty vector, a count of 0.
    #[error("an argument is out of range")]
    InvalidArgument,
}

impl From<StaleHandle> for SubmitError {
    fn from(_: StaleHandle) -> Self {
        SubmitError::StaleHandle
    }
}

/// Why a file could not be registered. The file is closed if it was given by value.
#[derive(Debug, Error)]
pub enum RegisterError {
    /// `Config::handles_max` handles are registered.
    #[error("the handle table is full; close handles or raise handles_max")]
    HandlesFull,
    /// The lightweight socket belongs to another channel.
    #[error("the lightweight socket belongs to another channel; convert it to a descriptor there")]
    ForeignLwSocket,
    /// The kernel did not say what the file is, or refused to watch it.
    #[error("the file cannot be used: {0}")]
    Io(#[from] io::Error),
    /// The listener could not be partitioned.
    #[error(transparent)]
    Partition(#[from] crate::PartitionError),
}

/// Why a socket was not made, registered and started.
#[derive(Debug, Error)]
pub enum OpenError {
    /// `Config::handles_max` handles are registered.
    #[error("the handle table is full; close handles or raise handles_max")]
    HandlesFull,
    /// `Config::operations_max` operations are pending.
    #[error("too many operations are pending; dispatch completions first or raise operations_max")]
    OperationsFull,
    /// The socket could not be made, bound or started.
    #[error("the socket cannot be used: {0}")]
    Io(#[from] io::Error),
}

/// Why a stack was not attached.
#[cfg(feature = "tcp")]
#[derive(Debug, Error)]
pub enum AttachError {
    /// A channel has at most 15.
    #[error("the channel has as many stacks as it can watch")]
    TooMany,
    /// The kernel refused memory, or to watch the device.
    #[error("the stack cannot be used: {cause}")]
    Resources {
        /// The kernel's error.
        #[source]
        cause: io::Error,
    },
}

#[cfg(feature = "tcp")]
impl From<io::Error> for AttachError {
    fn from(cause: io::Error) -> AttachError {
        AttachError::Resources { cause }
    }
}

/// Why an accept did not give a connection. After `TableFull` and `Exhausted` an
/// unlimited accept pauses, and goes on by itself when there is room again.
#[derive(Debug, Error)]
pub enum AcceptError {
    /// `Config::lwsockets_max` lightweight sockets exist.
    #[error("the table of lightweight sockets is full; accepting pauses until one is closed")]
    TableFull,
    /// The process or the system is out of descriptors or socket memory.
    #[error("out of descriptors or memory ({0}); accepting pauses until some are free")]
    Exhausted(#[source] io::Error),
    /// The accept was cancelled.
    #[error("the accept was cancelled")]
    Cancelled,
    /// Any other error of accept(2).
    #[error("accept failed: {0}")]
    Io(#[source] io::Error),
}

/// Why a cancel, or a move of a timer, had nothing to do.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the operation has completed or never was of this channel")]
pub struct CancelError;

/// Why a control call on a handle or lightweight socket failed.
#[derive(Debug, Error)]
pub enum ControlError {
    /// See [`StaleHandle`].
    #[error("the handle is closed, unregistered, or of another channel")]
    StaleHandle,
    /// The lightweight socket belongs to another channel.
    #[error("the lightweight socket belongs to another channel")]
    ForeignLwSocket,
    /// `Config::lwsockets_max` lightweight sockets exist.
    #[error("the table of lightweight sockets is full; close some or raise lwsockets_max")]
    TableFull,
    /// The kernel refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<StaleHandle> for ControlError {
    fn from(_: StaleHandle) -> Self {
        ControlError::StaleHandle
    }
}

/// Why dispatch or flush gave up.
#[derive(Debug, Error)]
pub enum DispatchError {
    /// A signal was handled while waiting (EINTR). Nothing is lost; call again.
    #[error("interrupted by a signal")]
    Interrupted,
    /// The channel was made before a fork, and this is the child.
    #[error("the channel belongs to the parent process; make a new one after fork")]
    Forked,
    /// The kernel refused the batch.
    #[error("the kernel refused the batch: {0}")]
    Io(#[source] io::Error),
}

/// All pool buffers are in use.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("all pool buffers are in use; drop some or raise write_buffers")]
pub struct PoolDry;

#[cfg(test)]
mod tests {
    use super::*;

    /// `main() -> Result<(), CreateError>` and `unwrap` print that.
    #[test]
    fn how_a_channel_is_not_made_is_said_in_debug_too() {
        let errors = [
            CreateError::UnknownEngine("kqueue".into()),
            CreateError::Setting { setting: "handles_max", value: 0, range: "1 or more" },
            CreateError::RingUnavailable(io::Error::from_raw_os_error(libc::ENOSYS)),
            CreateError::LockedMemory(io::Error::other("raise it (ulimit -l)")),
            CreateError::Resources { what: "memory", cause: io::Error::from_raw_os_error(libc::ENOMEM) },
        ];
        for error in errors {
            assert_eq!(format!("{error:?}"), error.to_string());
        }
    }
}
