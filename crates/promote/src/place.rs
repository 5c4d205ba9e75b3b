//! Where monitors listen, and which of them a client trusts. docs/monitor.md has the same
//! as a table.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode};
use sys::packet;

/// The system's monitor: a service, or a root shell's `megapipe monitor`.
pub const SYSTEM_SOCKET: &str = "/run/megapipe/monitor.sock";
/// Root's own monitor, which `megapipe run` starts.
const ROOT_SOCKET: &str = "/run/megapipe/root.sock";
/// Bytes that fit into the address of a UNIX socket (unix(7)).
const LONGEST_PATH: usize = 107;

/// Why a location of a monitor's socket cannot be used. Retrying does not help.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The monitor there could grant memory that a third user reads, too.
    #[error(
        "the monitor at {path} runs as user {user}, neither root nor this user, and is not trusted; \
         stop it, or set MEGAPIPE_MONITOR={path} to use it all the same",
        user = describe_user(*.uid)
    )]
    Stranger {
        /// The socket.
        path: PathBuf,
        /// The monitor's user (SO_PEERCRED).
        uid: u32,
    },
    /// [`Options::keep`](crate::client::Options::keep) had no number for the connection.
    #[error("no descriptor is left for the connection to the monitor; raise RLIMIT_NOFILE (ulimit -n)")]
    Descriptors,
    /// Another user could put a socket there.
    #[error(
        "{path} is not a directory that belongs to user {user} and is writable to nobody else, so no monitor is \
         started there; remove it (rm -r {path}, as its owner or root)",
        user = describe_user(*.uid)
    )]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The expected owner.
        uid: u32,
    },
    /// Longer than a socket address can be.
    #[error(
        "{path} is longer than {LONGEST_PATH} bytes, the most that a socket's address holds; choose a shorter path"
    )]
    TooLong {
        /// The path.
        path: PathBuf,
    },
    /// The directory cannot be created or read.
    #[error(
        "the directory {path} cannot be used: {cause}; make it writable, or start a monitor elsewhere \
         (megapipe monitor --socket PATH) and set MEGAPIPE_MONITOR=PATH"
    )]
    Directories {
        /// The directory.
        path: PathBuf,
        /// stat(2), mkdir(2) or access(2).
        #[source]
        cause: io::Error,
    },
    /// The system denies this process a socket.
    #[error("no connection to the monitor at {path} can be made: {cause}")]
    Socket {
        /// The monitor's socket.
        path: PathBuf,
        /// socket(2) or connect(2).
        #[source]
        cause: io::Error,
    },
}

/// `alice (1000)`, or the number alone.
fn describe_user(uid: u32) -> String {
    match sys::user::name(uid) {
        Ok(Some(name)) => format!("{name} ({uid})"),
        _ => uid.to_string(),
    }
}

/// A path from the environment.
pub(crate) fn variable(name: &str) -> Option<PathBuf> {
    sys::process::variable(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// XDG_RUNTIME_DIR.
pub(crate) fn runtime_directory() -> Option<PathBuf> {
    variable("XDG_RUNTIME_DIR")
}

/// A socket at which a monitor may listen.
#[derive(Clone, Debug)]
pub struct Place {
    path: PathBuf,
    /// The caller chose it: the monitor may be any user's.
    chosen: bool,
}

impl Place {
    /// A location that the caller chose.
    pub fn chosen(path: PathBuf) -> Place {
        Place { path, chosen: true }
    }

    /// The location of the system's monitor.
    pub fn system() -> Place {
        Place { path: SYSTEM_SOCKET.into(), chosen: false }
    }

    /// The location of root's own monitor.
    pub fn own_of_root() -> Place {
        Place { path: ROOT_SOCKET.into(), chosen: false }
    }

    /// The location of this user's own monitor. For root it never depends on the
    /// environment: sudo and su may have left another user's there.
    pub fn own() -> Place {
        Place::for_user(runtime_directory().as_deref())
    }

    pub(crate) fn for_user(runtime: Option<&Path>) -> Place {
        let user = rustix::process::geteuid();
        let is_ours = |path: &&Path| path.is_absolute() && is_private(path, user.as_raw()).unwrap_or(false);
        let path = match runtime.filter(is_ours) {
            _ if user.is_root() => ROOT_SOCKET.into(),
            Some(runtime) => runtime.join("megapipe/monitor.sock"),
            None => format!("/tmp/megapipe-{}/monitor.sock", user.as_raw()).into(),
        };
        Place { path, chosen: false }
    }

    /// All locations to search, in this order: the one in `chosen` alone, else the
    /// system's and the user's own.
    pub(crate) fn all(chosen: Option<&Path>, runtime: Option<&Path>) -> Vec<Place> {
        match chosen {
            Some(path) => vec![Place::chosen(path.into())],
            None => vec![Place::system(), Place::for_user(runtime)],
        }
    }

    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Connects to the monitor there, if it is to be trusted.
    ///
    /// # Errors
    ///
    /// `Ok(Err(_))` with the cause if no monitor listens, or none can be reached at
    /// present.
    pub(crate) fn connect(&self) -> Result<io::Result<OwnedFd>, ConnectError> {
        let path = &self.path;
        if path.as_os_str().as_bytes().len() > LONGEST_PATH {
            return Err(ConnectError::TooLong { path: path.clone() });
        }
        let failed = |cause| ConnectError::Socket { path: path.clone(), cause };
        let socket = match packet::connect(path) {
            Ok(socket) => socket,
            Err(error) if is_absence(&error) => return Ok(Err(error)),
            Err(error) => return Err(failed(error)),
        };
        let uid = packet::credentials(socket.as_fd()).map_err(failed)?.uid;
        // A server that assumes a user's identity for one request would keep offering to
        // that user's monitor afterwards. It trusts only root's monitor then.
        if !self.chosen && uid != 0 && sys::process::sole_user() != Some(uid) {
            return Err(ConnectError::Stranger { path: path.clone(), uid });
        }
        Ok(Ok(socket))
    }

    /// Creates the directory for this user's own monitor, if needed.
    ///
    /// # Errors
    ///
    /// No monitor of this user is possible there.
    pub fn prepare(&self) -> Result<(), ConnectError> {
        let directory = self.directory();
        let failed = |cause| ConnectError::Directories { path: directory.into(), cause };
        let user = rustix::process::geteuid();
        match rustix::fs::mkdir(directory, Mode::RWXU) {
            // Users reach the system's monitor through root's directory.
            Ok(()) if user.is_root() => {
                rustix::fs::chmod(directory, Mode::from_raw_mode(0o755))
                    .map_err(|errno| failed(errno.into()))?;
            }
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(errno) => return Err(failed(errno.into())),
        }
        self.check(user.as_raw())
    }

    /// Whether [`Place::prepare`] would succeed for `user`. Creates nothing.
    ///
    /// # Errors
    ///
    /// No monitor of this user is possible there.
    pub fn check(&self, user: u32) -> Result<(), ConnectError> {
        let directory = self.directory();
        let failed = |cause| ConnectError::Directories { path: directory.into(), cause };
        let written = match is_private(directory, user) {
            Ok(true) => directory,
            Ok(false) => return Err(ConnectError::Directory { path: directory.into(), uid: user }),
            // It does not exist yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                directory.parent().unwrap_or(Path::new("/"))
            }
            Err(error) => return Err(failed(error)),
        };
        // Another user's rights cannot be tested; root's attempt detects EROFS at least.
        let asker = rustix::process::geteuid();
        if asker.as_raw() != user && !asker.is_root() {
            return Ok(());
        }
        // EROFS and the like: detected here, to report the cause.
        rustix::fs::access(written, rustix::fs::Access::WRITE_OK).map_err(|errno| failed(errno.into()))
    }

    fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }
}

/// No monitor listens, access is denied, or too many clients are connecting. If the
/// directory is a file, [`Place::check`] reports it with the remedy.
pub(crate) fn is_absence(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotADirectory, NotFound, PermissionDenied, WouldBlock};
    matches!(error.kind(), ConnectionRefused | NotADirectory | NotFound | PermissionDenied | WouldBlock)
}

/// Whether it is a directory of this user, not a symbolic link, and writable by that user
/// alone.
fn is_private(directory: &Path, user: u32) -> io::Result<bool> {
    let stat = rustix::fs::statat(CWD, directory, AtFlags::SYMLINK_NOFOLLOW)?;
    let ours = stat.st_uid == user;
    Ok(FileType::from_raw_mode(stat.st_mode).is_dir() && ours && stat.st_mode & 0o022 == 0)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_an_own_directory_is_used() {
        let base = std::env::temp_dir().join(format!("megapipe-place-{}", std::process::id()));
        fs::create_dir(&base).unwrap();
        let place = Place { path: base.join("of-user/monitor.sock"), chosen: false };
        let user = rustix::process::geteuid().as_raw();
        let directory = base.join("of-user");
        place.check(user).unwrap();
        assert!(!directory.exists(), "a check makes nothing");
        place.prepare().unwrap();
        place.prepare().unwrap();
        place.check(user).unwrap();
        assert!(matches!(place.check(user + 1), Err(ConnectError::Directory { .. })));
        let mode = if rustix::process::geteuid().is_root() { 0o755 } else { 0o700 };
        assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, mode);
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(place.prepare(), Err(ConnectError::Directory { .. })));
        fs::remove_dir(&directory).unwrap();
        std::os::unix::fs::symlink("/tmp", &directory).unwrap();
        assert!(matches!(place.prepare(), Err(ConnectError::Directory { .. })));
        fs::remove_file(&directory).unwrap();
        fs::write(&directory, "").unwrap();
        assert!(matches!(place.connect(), Ok(Err(_))), "a file is no directory with a monitor");
        for refused in [place.prepare(), place.check(user)] {
            assert!(matches!(refused, Err(ConnectError::Directory { .. })));
        }
        let long = Place::chosen(base.join("x".repeat(200)));
        assert!(matches!(long.connect(), Err(ConnectError::TooLong { .. })));
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn another_users_runtime_directory_is_ignored() {
        let own = Place::own();
        assert_eq!(Place::for_user(Some("relative".as_ref())).path(), Place::for_user(None).path());
        // Root's directory, or for root the same as without it.
        assert_eq!(Place::for_user(Some("/proc".as_ref())).path(), Place::for_user(None).path());
        if rustix::process::geteuid().is_root() {
            assert_eq!(own.path(), Path::new(ROOT_SOCKET));
        }
    }
}
