//! Where a client looks for its monitor.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode};

/// The monitor of the whole system.
pub(crate) const SYSTEM_SOCKET: &str = "/run/megapipe/monitor.sock";
/// Bytes that fit into the address of a UNIX socket (unix(7)).
const LONGEST_PATH: usize = 107;

/// Why a socket's place cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UnsafePlace {
    /// Somebody else could put a socket of his own there.
    #[error(
        "{path} must be a directory of user {uid} that nobody else can write to; remove it, or set MEGAPIPE_MONITOR"
    )]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Who should own it.
        uid: u32,
    },
    /// Longer than a socket's address can be.
    #[error(
        "{path} is longer than {LONGEST_PATH} bytes, the most that a socket's address holds; choose a shorter path"
    )]
    TooLong {
        /// The path.
        path: PathBuf,
    },
    /// The directory cannot be looked at, or made.
    #[error("the directory {path} cannot be used: {cause}")]
    Directories {
        /// The directory.
        path: PathBuf,
        /// stat(2) or mkdir(2).
        #[source]
        cause: io::Error,
    },
}

/// XDG_RUNTIME_DIR.
pub(crate) fn runtime_directory() -> Option<PathBuf> {
    std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)
}

/// A socket of the user's own: where, and whether its directory must be private.
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    /// Everybody can make entries beside the directory, so it must prove to be ours.
    checked: bool,
}

impl Place {
    /// A place somebody chose; its directory is his business.
    pub(crate) fn chosen(path: PathBuf) -> Place {
        Place { path, checked: false }
    }

    /// The user's own place: below XDG_RUNTIME_DIR, else below /tmp.
    pub(crate) fn of_user(runtime: Option<PathBuf>) -> Place {
        match runtime.filter(|path| path.is_absolute()) {
            Some(runtime) => Place { path: runtime.join("megapipe/monitor.sock"), checked: true },
            None => {
                let uid = rustix::process::geteuid().as_raw();
                Place { path: format!("/tmp/megapipe-{uid}/monitor.sock").into(), checked: true }
            }
        }
    }

    /// Whether a socket found there can be trusted: `Ok(false)` if there is no directory.
    pub(crate) fn check(&self) -> Result<bool, UnsafePlace> {
        if self.path.as_os_str().as_bytes().len() > LONGEST_PATH {
            return Err(UnsafePlace::TooLong { path: self.path.clone() });
        }
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        if !self.checked {
            return Ok(directory.exists());
        }
        match private(directory) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(cause) => Err(UnsafePlace::Directories { path: directory.into(), cause }),
            Ok(true) => Ok(true),
            Ok(false) => Err(UnsafePlace::Directory {
                path: directory.into(),
                uid: rustix::process::geteuid().as_raw(),
            }),
        }
    }

    /// Whether a monitor may be started there on demand: in a directory of the user's own
    /// that is made if need be.
    pub(crate) fn prepare(&self) -> Result<bool, UnsafePlace> {
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        if !self.check()? {
            if !self.checked {
                return Ok(false);
            }
            match rustix::fs::mkdir(directory, Mode::RWXU) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(errno) => {
                    let cause = errno.into();
                    return Err(UnsafePlace::Directories { path: directory.into(), cause });
                }
            }
            self.check()?;
        }
        private(directory).map_err(|cause| UnsafePlace::Directories { path: directory.into(), cause })
    }
}

/// Where a monitor of this user listens if nobody says otherwise: at MEGAPIPE_MONITOR, root's
/// at the system's place, another's in a private directory, which is made if need be.
///
/// # Errors
///
/// The directory cannot be made, or is somebody else's.
pub fn default_socket() -> Result<PathBuf, UnsafePlace> {
    if let Some(chosen) = std::env::var_os("MEGAPIPE_MONITOR").filter(|value| !value.is_empty()) {
        return Ok(chosen.into());
    }
    if rustix::process::geteuid().is_root() {
        return Ok(SYSTEM_SOCKET.into());
    }
    let place = Place::of_user(runtime_directory());
    if place.prepare()? {
        return Ok(place.path);
    }
    let path = place.path.parent().unwrap_or(Path::new("/")).into();
    Err(UnsafePlace::Directory { path, uid: rustix::process::geteuid().as_raw() })
}

/// Whether it is a directory of this user, no link, that only he can write to.
fn private(directory: &Path) -> io::Result<bool> {
    let stat = rustix::fs::statat(CWD, directory, AtFlags::SYMLINK_NOFOLLOW)?;
    let ours = stat.st_uid == rustix::process::geteuid().as_raw();
    Ok(FileType::from_raw_mode(stat.st_mode).is_dir() && ours && stat.st_mode & 0o022 == 0)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_a_directory_of_ones_own_is_used() {
        let base = std::env::temp_dir().join(format!("megapipe-place-{}", std::process::id()));
        fs::create_dir(&base).unwrap();
        let place = Place { path: base.join("of-user/monitor.sock"), checked: true };
        assert!(!place.check().unwrap());
        assert!(place.prepare().unwrap() && place.check().unwrap());
        let directory = base.join("of-user");
        assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(place.check(), Err(UnsafePlace::Directory { .. })));
        fs::remove_dir(&directory).unwrap();
        std::os::unix::fs::symlink("/tmp", &directory).unwrap();
        assert!(matches!(place.check(), Err(UnsafePlace::Directory { .. })));
        let long = Place::chosen(base.join("x".repeat(200)));
        assert!(matches!(long.check(), Err(UnsafePlace::TooLong { .. })));
        fs::remove_dir_all(&base).unwrap();
    }
}
