//! Maps: memory that programs share with processes.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::AtomicU64;

use rustix::mm::{MapFlags, ProtFlags};

use super::Error;
use super::command::{self, Element, MapCreate};
use super::info;

/// An array of entries of so many 64-bit words, which programs and all processes that inherit it
/// read and write in place.
#[derive(Debug)]
pub struct WordArray {
    map: OwnedFd,
    memory: Memory,
    entries: u32,
    words: usize,
}

/// The mapping of an array, unmapped on drop.
#[derive(Debug)]
struct Memory {
    first: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is reached through atomics only.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl WordArray {
    /// `entries` entries of `words` words, all zero.
    ///
    /// # Errors
    ///
    /// [`Error`]; `Refused` with EINVAL if either is zero.
    pub fn new(name: &str, entries: u32, words: usize) -> Result<WordArray, Error> {
        let too_large = || io::Error::from_raw_os_error(libc::E2BIG);
        let value_size =
            words.checked_mul(8).and_then(|size| u32::try_from(size).ok()).ok_or_else(too_large)?;
        let len = (value_size as usize).checked_mul(entries as usize).ok_or_else(too_large)?;
        let map = create(name, BPF_MAP_TYPE_ARRAY, value_size, entries, BPF_F_MMAPABLE)?;
        Ok(WordArray { memory: Memory::of(&map, len)?, map, entries, words })
    }

    /// The array of `fd`, if that is of the same name and make as this one.
    ///
    /// # Errors
    ///
    /// EINVAL if it is not; EACCES if it may only be read.
    pub fn inherit(&self, fd: BorrowedFd<'_>) -> io::Result<WordArray> {
        let map = info::same_make(self.as_fd(), fd)?;
        Ok(WordArray { memory: Memory::of(&map, self.memory.len)?, map, ..*self })
    }

    /// The words of an entry; `None` past the end.
    #[inline]
    pub fn entry(&self, index: u32) -> Option<&[AtomicU64]> {
        if index >= self.entries {
            return None;
        }
        // SAFETY: the mapping has `entries * words` words, page-aligned, as long as `self` lives; what
        // others write meanwhile is what atomics are for.
        Some(unsafe {
            let first = self.memory.first.as_ptr().add(index as usize * self.words);
            slice::from_raw_parts(first, self.words)
        })
    }

    /// Has its descriptor a number from `lowest` on, out of the way of a program's own.
    ///
    /// # Errors
    ///
    /// EMFILE and EINVAL, as of fcntl(2).
    pub fn raise(&mut self, lowest: RawFd) -> io::Result<()> {
        super::raise(&mut self.map, lowest)
    }

    /// Closes the descriptor alone: the memory stays mapped for good.
    pub fn keep_mapped(self) {
        std::mem::forget(self.memory);
    }
}

impl Memory {
    fn of(map: &OwnedFd, len: usize) -> io::Result<Memory> {
        // SAFETY: a fresh mapping at an address the kernel chooses touches no existing memory.
        let address = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                map,
                0,
            )
        }?;
        let first = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Memory { first, len })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone, and every slice of it borrows the array.
        let _ = unsafe { rustix::mm::munmap(self.first.as_ptr().cast(), self.len) };
    }
}

impl AsFd for WordArray {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

/// An array of listening sockets of one SO_REUSEPORT group, from which a program selects. A socket
/// leaves it when it is closed.
#[derive(Debug)]
pub struct SocketArray {
    map: OwnedFd,
}

impl SocketArray {
    /// With room for so many sockets.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn new(name: &str, entries: u32) -> Result<SocketArray, Error> {
        let map = create(name, BPF_MAP_TYPE_REUSEPORT_SOCKARRAY, 8, entries, 0)?;
        Ok(SocketArray { map })
    }

    /// As [`WordArray::inherit`].
    ///
    /// # Errors
    ///
    /// EINVAL if it is of another make.
    pub fn inherit(&self, fd: BorrowedFd<'_>) -> io::Result<SocketArray> {
        Ok(SocketArray { map: info::same_make(self.as_fd(), fd)? })
    }

    /// As [`WordArray::raise`].
    ///
    /// # Errors
    ///
    /// The same.
    pub fn raise(&mut self, lowest: RawFd) -> io::Result<()> {
        super::raise(&mut self.map, lowest)
    }

    /// Puts a socket that listens into an entry that has none.
    ///
    /// # Errors
    ///
    /// EEXIST if the entry has a socket, EBUSY if the socket is in an array already, EINVAL if it does
    /// not listen or lacks SO_REUSEPORT, E2BIG past the end.
    pub fn insert(&self, index: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let number = socket.as_raw_fd() as u64;
        self.element(command::MAP_UPDATE_ELEM, index, &raw const number as u64, BPF_NOEXIST)
    }

    /// Whether an entry has a socket.
    pub fn contains(&self, index: u32) -> bool {
        self.look_up(index).is_ok()
    }

    /// Whether an entry has the socket of this cookie (SO_COOKIE, socket(7)).
    pub fn holds(&self, index: u32, cookie: u64) -> bool {
        self.look_up(index).is_ok_and(|found| found == cookie)
    }

    /// Whether this process may use the array.
    ///
    /// # Errors
    ///
    /// EPERM before Linux 5.19, if it has no CAP_BPF and unprivileged BPF is off.
    pub fn probe(&self) -> io::Result<()> {
        match self.look_up(0) {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
            _ => Ok(()),
        }
    }

    /// The cookie of an entry's socket.
    fn look_up(&self, index: u32) -> io::Result<u64> {
        let mut cookie = 0_u64;
        self.element(command::MAP_LOOKUP_ELEM, index, &raw mut cookie as u64, 0).map(|()| cookie)
    }

    /// Takes the socket out of an entry.
    ///
    /// # Errors
    ///
    /// ENOENT if it has none.
    pub fn remove(&self, index: u32) -> io::Result<()> {
        self.element(command::MAP_DELETE_ELEM, index, 0, 0)
    }

    fn element(&self, command: libc::c_int, index: u32, value: u64, flags: u64) -> io::Result<()> {
        let key = &raw const index as u64;
        let mut element = Element { map: self.map.as_raw_fd() as u32, pad: 0, key, value, flags };
        // SAFETY: key and value are of the sizes that the map was made with and live for the call; a
        // command that does not use the value gets 0.
        unsafe { command::call(command, &mut element) }.map(drop)
    }
}

impl AsFd for SocketArray {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

fn create(name: &str, kind: u32, value_size: u32, entries: u32, flags: u32) -> io::Result<OwnedFd> {
    let name = command::name(name);
    let mut attributes =
        MapCreate { kind, key_size: 4, value_size, entries, flags, inner_map: 0, numa_node: 0, name };
    // SAFETY: the attributes hold no addresses.
    unsafe { command::open(command::MAP_CREATE, &mut attributes) }
}

// linux/bpf.h
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_MAP_TYPE_REUSEPORT_SOCKARRAY: u32 = 20;
const BPF_F_MMAPABLE: u32 = 1 << 10;
const BPF_NOEXIST: u64 = 1;
