//! Sealed memory that processes share: files of memory whose size can never change again
//! (memfd_create(2), fcntl(2) F_ADD_SEALS).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};

/// The seals of every shared file: it cannot be shrunk (a mapping of it would fault),
/// grown, or sealed further.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// One file of shared memory, as its maker holds it.
pub struct MemoryFile {
    /// Reads and writes.
    pub writable: OwnedFd,
    /// The same file, opened for reading: cannot be mapped for writing.
    pub read_only: OwnedFd,
}

impl MemoryFile {
    /// `len` zeroed bytes that begin with `head`, sealed. No page but those of `head` is
    /// taken yet. The file's permissions are cleared in the end, so that whoever has the
    /// read-only descriptor cannot open it anew for writing through /proc, unless the
    /// process is privileged or runs as the maker's user.
    ///
    /// # Errors
    ///
    /// memfd_create(2), ftruncate(2), pwrite(2), open(2): mostly EMFILE, ENFILE, ENOMEM,
    /// ENOSPC, EFBIG.
    pub fn create(name: &str, len: u64, head: &[u8]) -> io::Result<MemoryFile> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // The kernel may be told to refuse files that could be executed; before 6.3 it
        // does not know the flag.
        let writable = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
            Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
            outcome => outcome?,
        };
        rustix::fs::ftruncate(&writable, len)?;
        if rustix::io::pwrite(&writable, head, 0)? != head.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        rustix::fs::fcntl_add_seals(&writable, SEALS)?;
        let path = format!("/proc/self/fd/{}", writable.as_raw_fd());
        let read_only = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::fs::fchmod(&writable, Mode::empty())?;
        Ok(MemoryFile { writable, read_only })
    }
}

/// Why a descriptor is no shared memory that can be relied on.
#[derive(Debug, thiserror::Error)]
pub enum UnsoundFile {
    /// Its owner could still change its size, and a mapping of it would fault.
    #[error("the shared memory is not sealed against changes of its size")]
    Unsealed,
    /// It is not of the size that was announced.
    #[error("the shared memory has {found} bytes where {expected} were announced")]
    Size {
        /// Bytes it has.
        found: u64,
        /// Bytes it should have.
        expected: u64,
    },
    /// Its pages may be missing (huge ones, which the kernel has no more of), and a
    /// mapping of it would fault.
    #[error("the shared memory is of huge pages")]
    HugePages,
    /// It is no memory file, or the kernel refuses to describe it.
    #[error("the descriptor is no sealed memory: {0}")]
    Foreign(#[source] io::Error),
}

/// The file's number, unique among the live ones of its file system; on that of sealed
/// memory once [`check`] has found it to be such.
pub fn number(fd: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(rustix::fs::fstat(fd)?.st_ino)
}

/// Checks that a descriptor from another process is sealed memory of exactly `len` bytes,
/// and returns the file's number, which tells it from every other live one.
pub fn check(fd: BorrowedFd<'_>, len: u64) -> Result<u64, UnsoundFile> {
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|errno| UnsoundFile::Foreign(errno.into()))?;
    if !seals.contains(SEALS) {
        return Err(UnsoundFile::Unsealed);
    }
    let stat = rustix::fs::fstat(fd).map_err(|errno| UnsoundFile::Foreign(errno.into()))?;
    // The file system is asked only where the size of a page leaves it open.
    let is_ordinary = u64::try_from(stat.st_blksize) == Ok(4096) || {
        let system = rustix::fs::fstatfs(fd).map_err(|errno| UnsoundFile::Foreign(errno.into()))?;
        system.f_type == libc::TMPFS_MAGIC
    };
    if !is_ordinary {
        return Err(UnsoundFile::HugePages);
    }
    let found = u64::try_from(stat.st_size).unwrap_or(0);
    if found != len {
        return Err(UnsoundFile::Size { found, expected: len });
    }
    Ok(stat.st_ino)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::mapping::SharedMapping;

    #[test]
    fn sizes_are_final_and_readers_only_read() {
        let file = MemoryFile::create("test", 8192, b"head").unwrap();
        assert!(rustix::fs::ftruncate(&file.writable, 4096).is_err());
        assert!(rustix::fs::ftruncate(&file.writable, 16384).is_err());
        assert!(check(file.read_only.as_fd(), 4096).is_err());
        assert_eq!(check(file.read_only.as_fd(), 8192).unwrap(), check(file.writable.as_fd(), 8192).unwrap());
        let own = SharedMapping::writable(file.writable.as_fd(), 8192).unwrap();
        let peer = SharedMapping::read_only(file.read_only.as_fd(), 8192).unwrap();
        assert!(SharedMapping::writable(file.read_only.as_fd(), 8192).is_err());
        // SAFETY: both mappings have 8192 bytes, and no other thread uses them.
        unsafe {
            own.address().add(8191).write_volatile(7);
            assert_eq!(peer.address().add(8191).read_volatile(), 7);
            assert_eq!(peer.address().read_volatile(), b'h');
        }
    }

    #[test]
    fn files_that_can_change_are_refused() {
        let plain = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&plain, 4096).unwrap();
        assert!(matches!(check(plain.as_fd(), 4096), Err(UnsoundFile::Unsealed)));
        // Whether there are huge pages or not: none is touched.
        if let Ok(huge) = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB)
            && rustix::fs::ftruncate(&huge, 32 << 20).is_ok()
        {
            rustix::fs::fcntl_add_seals(&huge, SEALS).unwrap();
            assert!(matches!(check(huge.as_fd(), 32 << 20), Err(UnsoundFile::HugePages)));
        }
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(matches!(check(null.as_fd(), 4096), Err(UnsoundFile::Foreign(_))));
    }
}
