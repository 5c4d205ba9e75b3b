//! What a descriptor that is not a socket is.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{FileType, OFlags};

/// Whether this is a disk file or block device: reads and writes have offsets and do not
/// wait for a peer.
pub fn is_regular(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let kind = FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode);
    Ok(matches!(kind, FileType::RegularFile | FileType::BlockDevice))
}

/// Whether O_NONBLOCK is set on the open file.
pub fn is_nonblocking(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(rustix::fs::fcntl_getfl(fd)?.contains(OFlags::NONBLOCK))
}

/// Raises the soft limit of open files (RLIMIT_NOFILE) to the hard one if it is below `wanted`;
/// returns the soft limit that holds then.
pub fn raise_open_files(wanted: u64) -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills a live struct.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let before = limit.rlim_cur;
    if before >= wanted || before >= limit.rlim_max {
        return Ok(before);
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the kernel reads a live struct.
    let raised = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } == 0;
    // A seccomp filter may forbid it.
    Ok(if raised { limit.rlim_max } else { before })
}

/// Sets or clears O_NONBLOCK on the open file, which all its descriptors share.
pub fn set_nonblocking(fd: BorrowedFd<'_>, nonblocking: bool) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    if flags.contains(OFlags::NONBLOCK) != nonblocking {
        rustix::fs::fcntl_setfl(fd, flags ^ OFlags::NONBLOCK)?;
    }
    Ok(())
}

/// Where a read or write of a file takes place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At the file's own position, which moves on.
    Position,
    /// The same, but EAGAIN instead of waiting (RWF_NOWAIT); EOPNOTSUPP where the file
    /// cannot do that.
    PositionNoWait,
    /// At this offset in bytes.
    Offset(u64),
}

impl Place {
    fn arguments(self) -> (libc::off_t, libc::c_int) {
        match self {
            Place::Position => (-1, 0),
            Place::PositionNoWait => (-1, libc::RWF_NOWAIT),
            Place::Offset(offset) => (libc::off_t::try_from(offset).unwrap_or(libc::off_t::MAX), 0),
        }
    }
}

/// preadv2(2).
///
/// # Safety
///
/// Every piece is valid for writes and nobody else uses it meanwhile.
pub unsafe fn read(fd: BorrowedFd<'_>, pieces: &[libc::iovec], place: Place) -> io::Result<usize> {
    let (offset, flags) = place.arguments();
    // SAFETY: the caller promises the pieces.
    counted(|| unsafe {
        libc::preadv2(fd.as_raw_fd(), pieces.as_ptr(), pieces.len() as libc::c_int, offset, flags)
    })
}

/// pwritev2(2).
pub fn write(fd: BorrowedFd<'_>, parts: &[io::IoSlice<'_>], place: Place) -> io::Result<usize> {
    let (offset, flags) = place.arguments();
    // SAFETY: IoSlice has iovec's layout; the kernel reads live slices.
    counted(|| unsafe {
        libc::pwritev2(fd.as_raw_fd(), parts.as_ptr().cast(), parts.len() as libc::c_int, offset, flags)
    })
}

/// The result of a call that counts bytes; a signal's interruption is tried again.
pub(crate) fn counted(mut call: impl FnMut() -> libc::ssize_t) -> io::Result<usize> {
    loop {
        let count = call();
        if count >= 0 {
            return Ok(count as usize);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINTR) {
            return Err(error);
        }
    }
}
