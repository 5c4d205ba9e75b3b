//! The system calls of io_uring, and what submissions mean for sockets and sets of this process.

use super::*;
use crate::uring::rings::{self, Params};

// linux/io_uring.h: operations.
const OP_ACCEPT: u8 = 13;
const OP_CLOSE: u8 = 19;
const OP_FILES_UPDATE: u8 = 20;
const OP_EPOLL_CTL: u8 = 29;
const OP_SPLICE: u8 = 30;
const OP_TEE: u8 = 33;
/// Those whose first word is no descriptor: NOP, POLL_REMOVE, timeouts, ASYNC_CANCEL, buffers, SOCKET, WAITID, futexes.
const OF_NO_FILE: [u8; 13] = [0, 7, 11, 12, 14, 15, 31, 32, 45, 50, 51, 52, 53];
/// Flags of a submission: its descriptor is the number of a registered file; it waits for those before it, or those
/// behind it wait.
const FIXED_FILE: u8 = 1;
const ORDERED: u8 = 0b1110;
const DRAINED: u8 = 0b10;
/// It does not run at once; it posts no completion where it succeeds.
const NEUTRAL: u8 = 0b101_0000;
/// Of io_uring_enter(2): the ring's descriptor is the number of a registered one.
const ENTER_REGISTERED_RING: c_uint = 1 << 4;
/// Of io_uring_register(2): those that name no file, and the one that names files in an array.
const REGISTER_FILES: c_uint = 2;
const HARMLESS: [c_uint; 24] =
    [0, 1, 3, 4, 5, 7, 8, 9, 10, 12, 15, 16, 17, 18, 19, 22, 23, 24, 25, 26, 27, 28, 29, 35];

/// This process has a ring whose submissions nobody sees: all is the kernel's, unless the user says what the ring is for.
fn loses_sight() {
    if uring::becomes_unseen() {
        kept_errno(|| leaving::leave_all(Reason::IoUring));
    }
}

/// A ring that was followed does what the library cannot follow: that is seen, whatever the user says.
fn give_up() {
    uring::trusts(false);
    loses_sight();
}

/// io_uring_setup(2).
pub(super) unsafe fn setup(entries: c_long, params: *mut Params) -> c_long {
    let status = real::syscall(libc::SYS_io_uring_setup, entries, params as c_long, 0, 0, 0, 0);
    if status < 0 || vfork::borrows_memory() {
        return status;
    }
    // The kernel has written them.
    let params = params.read_unaligned();
    if params.has_no_descriptor() {
        loses_sight();
        return status;
    }
    let ring = made(status as c_int);
    // A mapping is a system call of our own.
    match kept_errno(|| if mode::is_confined() { None } else { rings::follow(ring, &params) }) {
        Some(number) => descriptors::made(ring, Entry::Ring(number)),
        None => loses_sight(),
    }
    status
}

/// Before an io_uring_register(2).
pub(super) unsafe fn registers(ring: c_int, operation: c_uint, argument: *const c_int, count: c_uint) {
    if vfork::borrows_memory() || !matches!(table::entry(ring), Entry::Ring(_)) {
        return;
    }
    if operation == REGISTER_FILES {
        let files = (0..count as usize).map(|place| argument.wrapping_add(place));
        for fd in files.take_while(|fd| is_readable(*fd)) {
            belongs_to_kernel(fd.read_unaligned());
        }
    } else if !HARMLESS.contains(&operation) {
        // Its submissions may lie elsewhere from here on.
        descriptors::made(ring, Entry::Foreign);
        give_up();
    }
}

/// Before an io_uring_enter(2) that submits so many: all that are in the queue are read, since another thread may
/// submit those of this one.
pub(super) unsafe fn submits(ring: c_int, count: c_uint, flags: c_uint) {
    if count == 0 || vfork::borrows_memory() {
        return;
    }
    let number = match table::entry(ring) {
        Entry::Ring(number) if flags & ENTER_REGISTERED_RING == 0 => number,
        _ => return loses_sight(),
    };
    kept_errno(|| {
        let (mut is_drained, mut is_linked) = (false, false);
        for place in 0.. {
            let Some(entry) = rings::submission(number, place) else { break };
            is_drained |= entry.flags & DRAINED != 0;
            if submit(entry, is_drained || is_linked || entry.flags & ORDERED != 0) {
                rings::empty(number, entry);
            }
            is_linked = entry.flags & ORDERED != 0;
        }
    });
}

/// A submission is about to be the kernel's. True: it is done.
unsafe fn submit(entry: rings::Entry, is_ordered: bool) -> bool {
    match entry.operation {
        OP_EPOLL_CTL => {
            let (set, fd, operation) = (entry.fd, entry.offset as c_int, entry.length as c_int);
            if !is_ours(set) && !is_ours(fd) {
                return false;
            }
            if is_ordered || entry.flags & !NEUTRAL != 0 || entry.other_fd != 0 {
                // It is to be done later than now, by another set, or to be refused.
                give_up();
                return false;
            }
            let is_done = epoll_ctl(set, operation, fd, entry.address as *mut epoll_event) == 0;
            if !is_done && let Entry::Set(set) = table::entry(set) {
                // The kernel, which refuses it, has to know what this set has.
                sets::at(set).lock().tell_kernel();
            }
            return is_done;
        }
        // What it accepts is made known by its first use.
        OP_ACCEPT => {}
        OP_CLOSE => close(entry, is_ordered),
        OP_FILES_UPDATE => give_up(),
        operation if OF_NO_FILE.contains(&operation) => {}
        operation => {
            if entry.flags & FIXED_FILE == 0 {
                belongs_to_kernel(entry.fd);
            }
            if matches!(operation, OP_SPLICE | OP_TEE) {
                belongs_to_kernel(entry.other_fd);
            }
        }
    }
    false
}

/// The kernel is about to close a descriptor, or a registered file, which is none; it closes no ring.
fn close(entry: rings::Entry, is_ordered: bool) {
    let is_registered = entry.flags & FIXED_FILE != 0 || entry.other_fd != 0;
    if is_registered || matches!(table::entry(entry.fd), Entry::Ring(_)) {
        return;
    }
    if is_ordered {
        // It may not come to that.
        leaving::leave_for(entry.fd, Reason::IoUring);
    }
    local_listen::closing(entry.fd);
    descriptors::closing(entry.fd);
}

fn is_ours(fd: c_int) -> bool {
    matches!(table::entry(fd), Entry::Socket(_) | Entry::Set(_))
}

/// The kernel reads, writes or waits for what this descriptor stands for.
fn belongs_to_kernel(fd: c_int) {
    let entry = match table::entry(fd) {
        // A ring may have accepted it.
        Entry::Unknown => descriptors::classify(fd),
        entry => entry,
    };
    match entry {
        Entry::Socket(_) => leaving::leave_for(fd, Reason::IoUring),
        // The kernel's set does not report what is in memory.
        Entry::Set(_) => give_up(),
        _ => {}
    }
}
