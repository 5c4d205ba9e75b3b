//! Errors of the channel as error numbers: each bound has its own.

use std::io;

use megapipe::packet::tun::OpenError as TunError;
use megapipe::{
    AcceptError, AttachError, CancelError, ControlError, CreateError, DispatchError, OpenError,
    PartitionError, RegisterError, Rejected, StaleHandle, SubmitError, UnregisterError,
};

/// A positive error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
pub(crate) const STALE: Errno = Errno(libc::EBADF);
/// `MP_EHANDLES`: the handle table is full.
pub(crate) const HANDLES: Errno = Errno(libc::ENOSPC);
/// `MP_EOPERATIONS`: too many operations are pending.
pub(crate) const OPERATIONS: Errno = Errno(libc::ENOBUFS);
/// `MP_EQUEUE`: the handle's write queue is full.
pub(crate) const QUEUE: Errno = Errno(libc::EAGAIN);
/// `MP_ELWSOCKETS`: the table of lightweight sockets is full.
pub(crate) const LWSOCKETS: Errno = Errno(libc::EXFULL);
/// `MP_ECHANNELS`: the process has as many channels as it can number.
pub(crate) const CHANNELS: Errno = Errno(libc::EUSERS);
/// `MP_EWRONGTHREAD`: the channel belongs to another thread.
pub(crate) const WRONG_THREAD: Errno = Errno(libc::EPERM);
/// `MP_EFORKED`: the channel belongs to the parent process.
pub(crate) const FORKED: Errno = Errno(libc::ECHILD);
/// `MP_EBUSY`: a call on the channel is under way, and a signal handler made another.
pub(crate) const BUSY: Errno = Errno(libc::EBUSY);
/// `MP_EBROKEN`: a defect of the library; the channel can only be destroyed.
pub(crate) const BROKEN: Errno = Errno(libc::ENOTRECOVERABLE);

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Errno {
        match error.raw_os_error() {
            Some(errno) => Errno(errno),
            // Errors that the library makes up keep no number.
            None if error.kind() == io::ErrorKind::OutOfMemory => Errno(libc::E2BIG),
            None if error.kind() == io::ErrorKind::InvalidInput => INVALID,
            None => Errno(libc::EIO),
        }
    }
}

impl From<CreateError> for Errno {
    fn from(error: CreateError) -> Errno {
        match error {
            CreateError::UnknownEngine(_) | CreateError::Setting { .. } => INVALID,
            CreateError::RingUnavailable(_) => Errno(libc::EOPNOTSUPP),
            CreateError::LockedMemory(_) => Errno(libc::ENOMEM),
            CreateError::Resources { cause, .. } => cause.into(),
        }
    }
}

impl From<StaleHandle> for Errno {
    fn from(_: StaleHandle) -> Errno {
        STALE
    }
}

impl From<UnregisterError> for Errno {
    fn from(error: UnregisterError) -> Errno {
        match error {
            UnregisterError::StaleHandle => STALE,
            UnregisterError::Promoted => Errno(libc::EBUSY),
            UnregisterError::WritesQueued => Errno(libc::EAGAIN),
        }
    }
}

impl From<SubmitError> for Errno {
    fn from(error: SubmitError) -> Errno {
        match error {
            SubmitError::StaleHandle => STALE,
            SubmitError::OperationsFull => OPERATIONS,
            SubmitError::QueueFull => QUEUE,
            SubmitError::Unsupported => Errno(libc::EOPNOTSUPP),
            SubmitError::InvalidArgument => INVALID,
        }
    }
}

impl<D: std::fmt::Debug> From<Rejected<D>> for Errno {
    fn from(rejected: Rejected<D>) -> Errno {
        rejected.reason.into()
    }
}

impl From<RegisterError> for Errno {
    fn from(error: RegisterError) -> Errno {
        match error {
            RegisterError::HandlesFull => HANDLES,
            RegisterError::ForeignLwSocket => STALE,
            RegisterError::Io(error) => error.into(),
            RegisterError::Partition(error) => error.into(),
        }
    }
}

impl From<OpenError> for Errno {
    fn from(error: OpenError) -> Errno {
        match error {
            OpenError::HandlesFull => HANDLES,
            OpenError::OperationsFull => OPERATIONS,
            OpenError::Io(error) => error.into(),
        }
    }
}

impl From<AttachError> for Errno {
    fn from(error: AttachError) -> Errno {
        match error {
            AttachError::TooMany => HANDLES,
            AttachError::Resources { cause } => cause.into(),
        }
    }
}

impl From<TunError> for Errno {
    fn from(error: TunError) -> Errno {
        match error {
            TunError::Missing(_) => Errno(libc::ENODEV),
            // EPERM is that of a wrong thread.
            TunError::Denied(_) | TunError::NotAdmin(_) => Errno(libc::EACCES),
            TunError::Exists { .. } => Errno(libc::EBUSY),
            TunError::Io(cause) => cause.into(),
        }
    }
}

impl From<PartitionError> for Errno {
    fn from(error: PartitionError) -> Errno {
        match error {
            PartitionError::NotTcp => Errno(libc::EOPNOTSUPP),
            PartitionError::NotBound => Errno(libc::EDESTADDRREQ),
            PartitionError::InUse => Errno(libc::EADDRINUSE),
            PartitionError::ProgramTooLong { .. } | PartitionError::TooManyMembers(_) => Errno(libc::E2BIG),
            PartitionError::Io(error) => error.into(),
        }
    }
}

impl From<AcceptError> for Errno {
    fn from(error: AcceptError) -> Errno {
        match error {
            AcceptError::TableFull => LWSOCKETS,
            AcceptError::Cancelled => Errno(libc::ECANCELED),
            AcceptError::Exhausted(error) | AcceptError::Io(error) => error.into(),
        }
    }
}

impl From<CancelError> for Errno {
    fn from(_: CancelError) -> Errno {
        Errno(libc::ENOENT)
    }
}

impl From<ControlError> for Errno {
    fn from(error: ControlError) -> Errno {
        match error {
            ControlError::StaleHandle | ControlError::ForeignLwSocket => STALE,
            ControlError::TableFull => LWSOCKETS,
            ControlError::Io(error) => error.into(),
        }
    }
}

impl From<DispatchError> for Errno {
    fn from(error: DispatchError) -> Errno {
        match error {
            DispatchError::Interrupted => Errno(libc::EINTR),
            DispatchError::Forked => FORKED,
            DispatchError::Io(error) => error.into(),
        }
    }
}

/// What a call that gives an `int` returns.
#[inline]
pub(crate) fn int(result: Result<i32, Errno>) -> i32 {
    result.unwrap_or_else(|Errno(errno)| -errno)
}

/// What a call that gives a handle or an operation returns.
#[inline]
pub(crate) fn long(result: Result<i64, Errno>) -> i64 {
    result.unwrap_or_else(|Errno(errno)| -i64::from(errno))
}
