//! Grants: regions and loop pages, as the specification lays them out, sealed; and
//! doorbells.

use std::io;
use std::os::fd::OwnedFd;

use promote::client::LOOP_PAGE;
use sys::doorbell;
use sys::memory_file::MemoryFile;

const REGION_MAGIC: u32 = u32::from_le_bytes(*b"MPR1");
const LOOP_MAGIC: u32 = u32::from_le_bytes(*b"MPL1");
const LAYOUT: u32 = 1;

/// A region of `size` bytes, of which only the first page is allocated yet.
pub(crate) fn region(size: u32) -> io::Result<MemoryFile> {
    let mut head = [0; 12];
    for (place, word) in head.chunks_exact_mut(4).zip([REGION_MAGIC, LAYOUT, size]) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    MemoryFile::create("megapipe-segment", size.into(), &head)
}

/// A loop page.
pub(crate) fn loop_page() -> io::Result<MemoryFile> {
    let mut head = [0; 8];
    for (place, word) in head.chunks_exact_mut(4).zip([LOOP_MAGIC, LAYOUT]) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    MemoryFile::create("megapipe-loop", LOOP_PAGE as u64, &head)
}

/// The doorbells of the two endpoints of a connection, each by the description of its own endpoint
/// and by that of the peer.
pub(crate) fn doorbells(kind: doorbell::Kind) -> io::Result<[[OwnedFd; 2]; 2]> {
    Ok([doorbell::create(kind)?, doorbell::create(kind)?])
}
