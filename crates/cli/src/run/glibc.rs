//! The version of the glibc that a program runs on.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use memchr::memmem;

/// The oldest glibc that the library works with. In earlier ones libpthread has `fcntl` and
/// others too; it reaches the library's own in their place, and that ends perl and python3.
pub(super) const NEEDED: Version = Version { major: 2, minor: 34 };

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version {
    major: u32,
    minor: u32,
}

/// Bytes of libc.so.6 that are read: it has 2 MB.
const LARGEST: u64 = 64 << 20;
/// Every libc.so.6 holds the line that it prints when it is executed: "GNU C Library (Debian
/// GLIBC 2.36-9) stable release version 2.36."
const BANNER: &[u8] = b"GNU C Library (";
const RELEASE: &[u8] = b" release version ";

impl Version {
    /// `None`: the file cannot be read, or is no glibc.
    pub(super) fn of(libc: &Path) -> Option<Version> {
        let mut bytes = Vec::new();
        File::open(libc).ok()?.take(LARGEST).read_to_end(&mut bytes).ok()?;
        let banner = bytes.get(memmem::find(&bytes, BANNER)?..)?.split(|byte| *byte == b'\n').next()?;
        let number = banner.get(memmem::find(banner, RELEASE)? + RELEASE.len()..)?;
        let mut parts = std::str::from_utf8(number).ok()?.split('.');
        Some(Version { major: parts.next()?.parse().ok()?, minor: parts.next()?.parse().ok()? })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)
    }
}
