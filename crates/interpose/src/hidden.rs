//! The library's own descriptors, at numbers that no program uses: above its soft limit
//! (RLIMIT_NOFILE), or from 1,024 on if the limit is higher. A program that closes one gets EBADF.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU16, AtomicU64, Ordering::Relaxed};

use rustix::event::EventfdFlags;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getrlimit, prlimit};

use crate::lock::Lock;
use crate::mode;
use crate::real;

/// The first number, where limits allow it: outside every fd_set (select(2)), and above the numbers
/// that programs depend on.
const FIRST: u64 = 1024;
/// Hidden descriptors at most: 1,023 connections have doorbells.
const MOST: u64 = 2048;

/// A lower limit that leaves no room above is left to the program, but for [`BASE`].
const LEAST: u64 = 256;
/// What a process needs to have connections in memory: one descriptor leads to the monitor, one
/// wakes epoll sets.
const BASE: u64 = 2;

/// All numbers are below this.
const NUMBERS: usize = 1 << 16;

/// One hidden descriptor.
struct Slot {
    /// Its number plus 1.
    number: AtomicI32,
    file: [AtomicU64; 2],
}

/// The slot is not in use.
const FREE: c_int = 0;
/// The program has put another file at its number.
const LOST: c_int = -1;

static SLOTS: [Slot; MOST as usize] =
    [const { Slot { number: AtomicI32::new(FREE), file: [const { AtomicU64::new(0) }; 2] } }; MOST as usize];
/// The slot of each hidden number, plus 1. The program may have closed one by a raw system call and
/// put another file there.
static OWNERS: [AtomicU16; NUMBERS] = [const { AtomicU16::new(0) }; NUMBERS];
/// All numbers that were ever hidden are below this.
static END: AtomicI32 = AtomicI32::new(0);
/// Held while one is closed or moved: until then its number is not the program's. The last of the
/// locks that a thread takes.
static MOVING: Lock = Lock::new();

/// A hidden descriptor. Dropping it closes it, unless the number is the program's.
#[derive(Debug)]
pub(crate) struct Hidden(u16);

/// Identifies the file: device and inode.
type File = [u64; 2];

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
            _ => Place { lowest: soft.saturating_sub(BASE).max(3), most: BASE, raises: false },
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
    let place = Place::of(&limit);
    let hidden = Hidden(free_slot(place.most)?);
    let is_placed = hidden.slot().place(low.as_fd(), hidden.0, &limit, &place);
    is_placed.then_some(hidden)
}

/// Hides a number whose file another module has put there. False: too many.
pub(crate) fn keep(fd: c_int) -> bool {
    let file = real::borrow(fd).filter(|_| (fd as usize) < NUMBERS).and_then(file);
    let Some((file, own)) = file.and_then(|file| Some((file, free_slot(MOST)?))) else { return false };
    SLOTS[usize::from(own)].is_now(fd, file, own);
    true
}

/// That module is about to close it.
pub(crate) fn no_longer_keep(fd: c_int) {
    if let Some((_, slot)) = owner(fd) {
        given_to_program(fd);
        slot.number.store(FREE, Relaxed);
    }
}

fn free_slot(most: u64) -> Option<u16> {
    let is_free = |slot: &Slot| slot.number.compare_exchange(FREE, LOST, Relaxed, Relaxed).is_ok();
    Some(SLOTS[..most as usize].iter().position(is_free)? as u16)
}

impl Slot {
    /// Has a duplicate of this file, at a hidden number. False: no room.
    fn place(&self, of: BorrowedFd<'_>, own: u16, limit: &Rlimit, place: &Place) -> bool {
        let duplicate = || {
            let fd = fcntl_dupfd_cloexec(of, c_int::try_from(place.lowest).ok()?).ok()?;
            // One beyond is closed.
            ((fd.as_raw_fd() as usize) < NUMBERS).then_some(fd)
        };
        let fd = if place.raises { with_raised(limit, place.most, duplicate) } else { duplicate() };
        let Some((fd, file)) = fd.and_then(|fd| file(fd.as_fd()).map(|file| (fd.into_raw_fd(), file))) else {
            return false;
        };
        self.is_now(fd, file, own);
        true
    }

    fn is_now(&self, fd: c_int, file: File, own: u16) {
        self.file.iter().zip(file).for_each(|(word, of)| word.store(of, Relaxed));
        self.number.store(fd + 1, Relaxed);
        OWNERS[fd as usize].store(own + 1, Relaxed);
        END.fetch_max(fd + 1, Relaxed);
    }

    /// Whether it is this file that has the number.
    fn is_at(&self, fd: c_int) -> bool {
        let own = [&self.file[0], &self.file[1]].map(|word| word.load(Relaxed));
        real::borrow(fd).and_then(file) == Some(own)
    }
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

fn file(fd: BorrowedFd<'_>) -> Option<File> {
    let about = rustix::fs::fstat(fd).ok()?;
    Some([about.st_dev, about.st_ino])
}

/// The slot of a number, and its own number.
#[inline]
fn owner(fd: c_int) -> Option<(u16, &'static Slot)> {
    let own = OWNERS.get(usize::try_from(fd).ok()?)?.load(Relaxed).checked_sub(1)?;
    Some((own, SLOTS.get(usize::from(own))?))
}

/// Whether the number is hidden from the program. Another file there is the program's, which closed
/// ours by a raw system call.
#[inline]
pub(crate) fn contains(fd: c_int) -> bool {
    owner(fd).is_some_and(|(_, slot)| slot.is_at(fd))
}

/// The program puts a file of its own at this number.
pub(crate) fn given_to_program(fd: c_int) {
    if let Some((_, slot)) = owner(fd) {
        OWNERS[fd as usize].store(0, Relaxed);
        slot.number.store(LOST, Relaxed);
    }
}

/// The program is about to put a file of its own at this number, which closes ours: from here on
/// that has another number, or none if there is no room. False: it has just been closed.
pub(crate) fn moves(fd: c_int) -> bool {
    let _held = MOVING.hold();
    let Some((own, slot)) = owner(fd) else { return false };
    let limit = getrlimit(Resource::Nofile);
    match real::borrow(fd) {
        // Other threads may use it meanwhile.
        Some(of) if slot.place(of, own, &limit, &Place::of(&limit)) => OWNERS[fd as usize].store(0, Relaxed),
        _ => given_to_program(fd),
    }
    true
}

/// In the child of a fork.
pub(crate) fn forked() {
    MOVING.reset();
}

/// Hidden numbers from `low` to `high`, in order.
pub(crate) fn between(low: c_int, high: c_int) -> impl Iterator<Item = c_int> {
    (low.max(0)..=high.min(END.load(Relaxed) - 1)).filter(|fd| contains(*fd))
}

impl Hidden {
    fn slot(&self) -> &'static Slot {
        &SLOTS[usize::from(self.0)]
    }

    /// Its number; less than 0: the program has a file there.
    pub(crate) fn fd(&self) -> c_int {
        self.slot().number.load(Relaxed) - 1
    }
}

impl AsFd for Hidden {
    #[allow(unsafe_code)] // a number
    fn as_fd(&self) -> BorrowedFd<'_> {
        // No file has the highest number (fs.nr_open).
        let fd = if self.fd() < 0 { c_int::MAX } else { self.fd() };
        // SAFETY: not -1; it is open while this lives, unless the program closes it by a raw system
        // call: then calls fail, or are the program's own.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl Drop for Hidden {
    #[allow(unsafe_code)] // close(2)
    fn drop(&mut self) {
        let _held = MOVING.hold();
        let (fd, slot) = (self.fd(), self.slot());
        // A program that closes numbers by raw system calls may have another file there.
        if owner(fd).is_some_and(|(own, _)| own == self.0) {
            OWNERS[fd as usize].store(0, Relaxed);
            if slot.is_at(fd) {
                // SAFETY: it is our own file, which is in use nowhere else.
                real::kept_errno(|| unsafe { real::close(fd) });
            }
        }
        slot.number.store(FREE, Relaxed);
    }
}
