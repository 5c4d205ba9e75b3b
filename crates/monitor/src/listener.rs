//! The monitor's socket: made in a place of its own, or taken over from a service manager.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use sys::packet;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// Why the monitor cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another one does.
    #[error("a monitor listens at {path} already; stop it first, or choose another place with --socket")]
    Running {
        /// The socket.
        path: PathBuf,
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
        /// open(2), bind(2), listen(2) or chmod(2).
        #[source]
        cause: io::Error,
    },
    /// What the service manager handed over is something else.
    #[error(
        "the service manager's socket is not of the kind SOCK_SEQPACKET; use ListenSequentialPacket= in the .socket unit"
    )]
    Inherited,
}

/// A listening socket.
pub struct Listener {
    socket: OwnedFd,
    /// Of a socket that was made here: its path, and the lock beside it that keeps a second
    /// monitor away for as long as this one lives.
    made: Option<(PathBuf, File)>,
}

impl Listener {
    /// Listens at `path`. A socket that a dead monitor left there is replaced. Everybody
    /// may connect to root's monitor, whose policy decides; to others only their user.
    ///
    /// # Errors
    ///
    /// `Running` if another monitor listens there.
    pub fn bind(path: &Path) -> Result<Listener, ListenError> {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new("."));
        let root = rustix::process::geteuid().is_root();
        let mode = if root { 0o755 } else { 0o700 };
        DirBuilder::new()
            .recursive(true)
            .mode(mode)
            .create(directory)
            .map_err(|cause| ListenError::Directory { path: directory.into(), cause })?;

        let failed = |cause| ListenError::Socket { path: path.into(), cause };
        let mut lock_path = path.as_os_str().to_owned();
        lock_path.push(".lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&lock_path)
            .map_err(failed)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(ListenError::Running { path: path.into() }),
            Err(errno) => return Err(failed(errno.into())),
        }
        let mut bound = packet::listen(path, BACKLOG);
        if matches!(&bound, Err(error) if error.kind() == io::ErrorKind::AddrInUse) {
            // Whoever holds the lock may take a dead one's place, but not a living one's
            // that has no lock, such as a service manager's.
            if packet::connect(path).is_ok() {
                return Err(ListenError::Running { path: path.into() });
            }
            fs::remove_file(path).map_err(failed)?;
            bound = packet::listen(path, BACKLOG);
        }
        let socket = bound.map_err(failed)?;
        let mode = if root { 0o666 } else { 0o600 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed)?;
        Ok(Listener { socket, made: Some((path.into(), lock)) })
    }

    /// Takes over a socket that listens already.
    ///
    /// # Errors
    ///
    /// `Inherited` if it is of another kind.
    pub fn inherited(socket: OwnedFd) -> Result<Listener, ListenError> {
        use rustix::net::{AddressFamily, SocketType, sockopt};
        let right = sockopt::socket_domain(&socket) == Ok(AddressFamily::UNIX)
            && sockopt::socket_type(&socket) == Ok(SocketType::SEQPACKET)
            && sockopt::socket_acceptconn(&socket) == Ok(true)
            && sys::file::set_nonblocking(socket.as_fd(), true).is_ok();
        if right { Ok(Listener { socket, made: None }) } else { Err(ListenError::Inherited) }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some((path, _lock)) = &self.made {
            // While the lock is held the path is ours. A directory that was removed under
            // us took the socket with it.
            let _ = fs::remove_file(path);
        }
    }
}
