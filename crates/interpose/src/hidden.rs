//! The library's own descriptors, at numbers that no program uses: above its soft limit
//! (RLIMIT_NOFILE), or from 1,024 on if the limit is higher. A program that closes one gets EBADF.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::event::EventfdFlags;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getrlimit, prlimit};

use crate::mode;
use crate::real;

/// The first number, where limits allow it: outside every fd_set (select(2)), and above the numbers
/// that programs depend on.
const FIRST: u64 = 1024;
/// Hidden descriptors at most: 1,024 connections have doorbells.
const MOST: u64 = 2048;

/// A lower limit that leaves no room above is left to the program.
const LEAST: u64 = 256;

/// All numbers are below this.
const NUMBERS: usize = 1 << 16;

static COUNT: AtomicU64 = AtomicU64::new(0);
/// One bit for each hidden number. A program may have closed one by a raw system call and put
/// another file there.
static BITS: [AtomicU64; NUMBERS / 64] = [const { AtomicU64::new(0) }; NUMBERS / 64];

/// A hidden descriptor. Dropping it closes it, unless the number is the program's.
#[derive(Debug)]
pub(crate) struct Hidden {
    fd: c_int,
    file: File,
}

/// Identifies the file: device and inode.
type File = (u64, u64);

/// The possible numbers under the current limit.
struct Place {
    lowest: u64,
    most: u64,
    /// The soft limit has to be raised for this.
    raises: bool,
}

impl Place {
    fn of(limit: &Rlimit) -> Place {
        let (soft, hard) = (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX));
        match soft {
            FIRST.. if soft > FIRST => Place { lowest: FIRST, most: MOST.min(soft / 4), raises: false },
            _ if hard > soft => Place { lowest: soft, most: MOST.min(hard - soft), raises: true },
            // A share of the program's numbers, unless those are few.
            LEAST.. => Place { lowest: soft - soft / 4, most: soft / 4, raises: false },
            _ => Place { lowest: soft, most: 0, raises: false },
        }
    }
}

/// Grows the kernel's descriptor table before the program has threads: later this costs an RCU
/// grace period (`expand_fdtable`), 6 to 16 ms on Linux 6.18 at HZ=250.
pub(crate) fn make_room() {
    if let Ok(low) = rustix::event::eventfd(0, EventfdFlags::CLOEXEC) {
        drop(hide(low));
    }
}

/// Moves a descriptor to a hidden number. `None`: no room; it was closed.
pub(crate) fn hide(low: OwnedFd) -> Option<Hidden> {
    if mode::is_confined() {
        return None;
    }
    let limit = getrlimit(Resource::Nofile);
    let Place { lowest, most, raises } = Place::of(&limit);
    if COUNT.fetch_add(1, Relaxed) >= most {
        COUNT.fetch_sub(1, Relaxed);
        return None;
    }
    let duplicate = || {
        let fd = fcntl_dupfd_cloexec(&low, c_int::try_from(lowest).ok()?).ok()?;
        // One beyond is closed.
        ((fd.as_raw_fd() as usize) < NUMBERS).then_some(fd)
    };
    let fd = if raises { with_raised(&limit, most, duplicate) } else { duplicate() };
    let hidden = fd.and_then(|fd| Some(Hidden { file: file(fd.as_raw_fd())?, fd: fd.into_raw_fd() }));
    match &hidden {
        Some(hidden) => mark(hidden.fd, true),
        None => drop(COUNT.fetch_sub(1, Relaxed)),
    }
    hidden
}

/// Runs with a higher soft limit. A limit that the program sets meanwhile is kept.
fn with_raised<T>(limit: &Rlimit, most: u64, run: impl FnOnce() -> Option<T>) -> Option<T> {
    let raised = Rlimit { current: limit.current.map(|soft| soft + most), maximum: limit.maximum };
    let before = prlimit(None, Resource::Nofile, raised).ok()?;
    if before != *limit {
        // Set since it was read.
        let _ = prlimit(None, Resource::Nofile, before);
        return None;
    }
    let result = run();
    match prlimit(None, Resource::Nofile, *limit) {
        Ok(meanwhile) if meanwhile != raised => drop(prlimit(None, Resource::Nofile, meanwhile)),
        _ => {}
    }
    result
}

fn word(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let place = usize::try_from(fd).ok()?;
    Some((BITS.get(place / 64)?, 1 << (place % 64)))
}

fn mark(fd: c_int, hidden: bool) {
    if let Some((word, bit)) = word(fd) {
        let _ = if hidden { word.fetch_or(bit, Relaxed) } else { word.fetch_and(!bit, Relaxed) };
    }
}

fn file(fd: c_int) -> Option<File> {
    let about = rustix::fs::fstat(real::borrow(fd)?).ok()?;
    Some((about.st_dev, about.st_ino))
}

#[inline]
fn is_marked(fd: c_int) -> bool {
    word(fd).is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0)
}

/// Whether the number is hidden from the program. Each is a doorbell; another file there is the
/// program's, which closed the doorbell by a raw system call.
#[inline]
pub(crate) fn contains(fd: c_int) -> bool {
    is_marked(fd) && real::borrow(fd).is_some_and(|fd| sys::doorbell::kind(fd).is_some())
}

/// The program puts a file of its own at this number.
pub(crate) fn given_to_program(fd: c_int) {
    mark(fd, false);
}

/// Hidden numbers from `low` to `high`, in order.
pub(crate) fn between(low: c_int, high: c_int) -> impl Iterator<Item = c_int> {
    let end = if COUNT.load(Relaxed) == 0 { 0 } else { NUMBERS as c_int };
    (low.max(0)..=high.min(end - 1)).filter(|fd| contains(*fd))
}

impl Hidden {
    /// Its number; -1: the program has a file there.
    pub(crate) fn fd(&self) -> c_int {
        if is_marked(self.fd) { self.fd } else { -1 }
    }
}

impl Drop for Hidden {
    #[allow(unsafe_code)] // close(2)
    fn drop(&mut self) {
        COUNT.fetch_sub(1, Relaxed);
        // A program that closes numbers by raw system calls may have another file there.
        if is_marked(self.fd) && file(self.fd) == Some(self.file) {
            mark(self.fd, false);
            // SAFETY: it is our own file, which is in use nowhere else.
            real::kept_errno(|| unsafe { real::close(self.fd) });
        }
    }
}
