//! The monitor's socket: made in a place of its own, or taken over from a service manager.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::net::SocketType;
use sys::packet;

use crate::place::{Place, Taken};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;
/// Attempts to lock: a monitor that ends at that moment removes its lock.
const LOCK_ATTEMPTS: u32 = 16;

/// Why the monitor cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another one does.
    #[error(
        "a monitor listens at {path} already{process}; stop it first, or choose another place with --socket"
    )]
    Running {
        /// The socket.
        path: PathBuf,
        /// Its process, where the kernel reports it.
        process: String,
    },
    /// The directory cannot be made.
    #[error("the directory {path} cannot be made: {cause}; choose another place with --socket")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// mkdir(2).
        #[source]
        cause: io::Error,
    },
    /// The socket cannot be made.
    #[error("the monitor cannot listen at {path}: {cause}; choose another place with --socket")]
    Socket {
        /// The socket.
        path: PathBuf,
        /// open(2), bind(2), listen(2) or chmod(2); or what lies there and stays.
        #[source]
        cause: io::Error,
    },
    /// The service manager passed something else.
    #[error(
        "the service manager's socket is not of the kind SOCK_SEQPACKET; use ListenSequentialPacket= in the .socket unit"
    )]
    Inherited,
}

/// Who may connect (connect(2) needs write permission on the socket).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The monitor's own user.
    User,
    /// Everybody; the policy decides what they get.
    Everybody,
}

/// A listening socket.
pub struct Listener {
    socket: OwnedFd,
    /// Of a socket that was made here. It goes before the lock does.
    _made: Option<(Place, Lock)>,
}

impl Listener {
    /// Listens at `path`. A socket of this user's, or under root anybody's, that nobody
    /// listens at any more is replaced; whatever else is there stays.
    ///
    /// # Errors
    ///
    /// `Running` if another monitor listens there.
    pub fn bind(path: &Path, access: Access) -> Result<Listener, ListenError> {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new("."));
        let directory_mode = match access {
            Access::User => 0o700,
            Access::Everybody => 0o755,
        };
        DirBuilder::new()
            .recursive(true)
            .mode(directory_mode)
            .create(directory)
            .map_err(|cause| ListenError::Directory { path: directory.into(), cause })?;

        let failed = |cause| ListenError::Socket { path: path.into(), cause };
        let running = || running(path);
        let lock = Lock::take(path).map_err(failed)?.ok_or_else(running)?;
        // The holder of the lock may replace a dead monitor's socket, but not a live one
        // without a lock, such as a service manager's.
        let bound = Place::bind(path, SocketType::SEQPACKET, || packet::listen(path, BACKLOG));
        let (place, socket) = bound.map_err(|taken| match taken {
            Taken::Living => running(),
            Taken::System(cause) => failed(cause),
            taken => failed(io::Error::new(io::ErrorKind::AddrInUse, taken)),
        })?;
        // No client waits for it yet: until here only this user could connect.
        if access == Access::Everybody {
            fs::set_permissions(place.path(), fs::Permissions::from_mode(0o666)).map_err(failed)?;
        }
        Ok(Listener { socket, _made: Some((place, lock)) })
    }

    /// Takes over a socket that listens already.
    ///
    /// # Errors
    ///
    /// `Inherited` if it is of another kind.
    pub fn inherited(socket: OwnedFd) -> Result<Listener, ListenError> {
        use rustix::net::{AddressFamily, sockopt};
        let right = sockopt::socket_domain(&socket) == Ok(AddressFamily::UNIX)
            && sockopt::socket_type(&socket) == Ok(SocketType::SEQPACKET)
            && sockopt::socket_acceptconn(&socket) == Ok(true)
            && sys::file::set_nonblocking(socket.as_fd(), true).is_ok()
            && packet::pass_credentials(socket.as_fd()).is_ok();
        if right { Ok(Listener { socket, _made: None }) } else { Err(ListenError::Inherited) }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Whether a service manager may bind a socket at `path`: it would remove the one that is there.
///
/// # Errors
///
/// `Running` if somebody listens there.
pub fn ensure_deserted(path: &Path) -> Result<(), ListenError> {
    match packet::connect(path).map_err(|error| error.raw_os_error()) {
        // A full backlog, and a socket of another kind, have an owner.
        Ok(_) | Err(Some(libc::EAGAIN | libc::EPROTOTYPE)) => Err(running(path)),
        Err(_) => Ok(()),
    }
}

fn running(path: &Path) -> ListenError {
    let listener = packet::connect(path).and_then(|socket| packet::credentials(socket.as_fd()));
    let process = listener.map_or_else(|_| String::new(), |of| format!(" (process {})", of.pid));
    ListenError::Running { path: path.into(), process }
}

/// Keeps a second monitor away for as long as this one lives: an empty file beside the
/// socket, locked (flock(2)).
struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// `None` if another monitor has it.
    fn take(socket: &Path) -> io::Result<Option<Lock>> {
        let mut path = socket.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        for _ in 0..LOCK_ATTEMPTS {
            let file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
                .open(&path)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
            // Its last holder may have removed it after it was opened here; then it
            // excludes no other monitor.
            let lock = Lock { file, path: path.clone() };
            if lock.is_in_place()? {
                return Ok(Some(lock));
            }
        }
        Ok(None)
    }

    fn is_in_place(&self) -> io::Result<bool> {
        let own = self.file.metadata()?;
        let same = |found: fs::Metadata| (found.dev(), found.ino()) == (own.dev(), own.ino());
        match fs::symlink_metadata(&self.path) {
            Ok(found) => Ok(same(found)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Only a file of ours: it is empty. Another may have this name by chance.
        let is_ours = self.file.metadata().is_ok_and(|own| own.is_file() && own.len() == 0);
        if is_ours && self.is_in_place().unwrap_or(false) {
            let _ = fs::remove_file(&self.path);
        }
    }
}
