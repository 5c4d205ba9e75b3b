//! The path of a socket of ours: made where nothing is, taken over from a dead program,
//! and removed with us.

use std::fs::{self, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Why the path is not ours to have. The messages leave it to the caller to name another
/// place.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Taken {
    /// A socket of our kind, at which a program listens.
    #[error("another program listens there (stop it first)")]
    Living,
    /// connect(2) returns EPROTOTYPE: another program has a socket of another kind there.
    #[error("another program has a socket of another kind there (stop it first)")]
    OtherKind,
    /// Not a socket.
    #[error("a {0} is there already, which is not replaced (remove it if nobody needs it)")]
    NotSocket(&'static str),
    /// No program listens, but it is another user's.
    #[error("a socket of the user {0} is there already (let that user or root remove it)")]
    Strangers(u32),
    /// lstat(2), connect(2), unlink(2) or bind(2).
    #[error(transparent)]
    System(#[from] io::Error),
}

/// The path of a socket that was bound here.
pub(crate) struct Place {
    path: PathBuf,
    /// Device and inode: another file may come to lie at the path.
    file: (u64, u64),
}

impl Place {
    /// Binds a socket by `bind`, which fails with EADDRINUSE where something is. That is
    /// replaced if it is a socket of ours, or we are root, and a `kind` of socket finds
    /// no listener at it (ECONNREFUSED).
    pub(crate) fn bind<S>(
        path: &Path,
        kind: SocketType,
        mut bind: impl FnMut() -> io::Result<S>,
    ) -> Result<(Place, S), Taken> {
        let mut bound = bind();
        if matches!(&bound, Err(error) if error.kind() == io::ErrorKind::AddrInUse) {
            remove_dead(path, kind)?;
            bound = bind();
        }
        let socket = bound?;
        Ok((Place { path: path.into(), file: identity(&fs::symlink_metadata(path)?) }, socket))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A directory that was removed under us took the socket with it.
        if fs::symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

fn remove_dead(path: &Path, kind: SocketType) -> Result<(), Taken> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        // It went away meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let file_type = found.file_type();
    if !file_type.is_socket() {
        return Err(Taken::NotSocket(if file_type.is_symlink() {
            "symbolic link"
        } else if file_type.is_dir() {
            "directory"
        } else if file_type.is_file() {
            "regular file"
        } else {
            "device or pipe"
        }));
    }
    match connect(path, kind).map_err(|error| error.raw_os_error()) {
        Err(Some(libc::ECONNREFUSED)) => {}
        // A full backlog has an owner.
        Ok(_) | Err(Some(libc::EAGAIN)) => return Err(Taken::Living),
        Err(Some(libc::EPROTOTYPE)) => return Err(Taken::OtherKind),
        Err(Some(libc::ENOENT)) => return Ok(()),
        Err(code) => return Err(io::Error::from_raw_os_error(code.unwrap_or(libc::EIO)).into()),
    }
    let user = rustix::process::geteuid();
    if !user.is_root() && user.as_raw() != found.uid() {
        return Err(Taken::Strangers(found.uid()));
    }
    // Another program may have made a new one in this moment.
    if fs::symlink_metadata(path).is_ok_and(|again| identity(&again) != identity(&found)) {
        return Err(Taken::Living);
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Never waits, not for room in a backlog either.
fn connect(path: &Path, kind: SocketType) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}
