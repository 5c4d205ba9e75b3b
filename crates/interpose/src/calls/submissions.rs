//! The system calls of io_uring, and what submissions mean for sockets and sets of this process.

use super::*;
use crate::uring::rings::{self, Params};

// linux/io_uring.h: operations.
const OP_CLOSE: u8 = 19;
const OP_ACCEPT: u8 = 13;
const OP_EPOLL_CTL: u8 = 29;
const OP_SPLICE: u8 = 30;
const OP_TEE: u8 = 33;
/// Flags of a submission: its descriptor is the number of a registered file; it waits for those before it, or those
/// behind it wait.
const FIXED_FILE: u8 = 1;
const ORDERED: u8 = 0b1110;
/// Of io_uring_enter(2): the ring's descriptor is the number of a registered one.
const ENTER_REGISTERED_RING: c_uint = 1 << 4;
/// Of io_uring_register(2): those that name no file, and the one that names files in an array.
const REGISTER_FILES: c_uint = 2;
const HARMLESS: [c_uint; 24] =
    [0, 1, 3, 4, 5, 7, 8, 9, 10, 11, 12, 15, 16, 17, 18, 19, 22, 23, 24, 25, 26, 27, 28, 29];

/// Submissions by which a ring is used from here on nobody sees: all is the kernel's.
fn give_up() {
    if uring::becomes_unseen() {
        kept_errno(|| leaving::leave_all(Reason::IoUring));
    }
}

/// io_uring_setup(2).
pub(super) unsafe fn setup(entries: c_long, params: *mut Params) -> c_long {
    let ring = made(real::syscall(libc::SYS_io_uring_setup, entries, params as c_long, 0, 0, 0, 0) as c_int);
    // A mapping is a system call of our own.
    let may_map = ring >= 0 && !mode::is_confined() && !vfork::borrows_memory();
    // The kernel has written them.
    let follow = || may_map.then(|| rings::follow(ring, &params.read_unaligned())).flatten();
    match kept_errno(follow) {
        Some(number) => descriptors::made(ring, Entry::Ring(number)),
        None if ring >= 0 => give_up(),
        None => {}
    }
    c_long::from(ring)
}

/// Before an io_uring_register(2).
pub(super) unsafe fn registers(operation: c_uint, argument: *const c_int, count: c_uint) {
    if operation == REGISTER_FILES {
        for place in 0..count as usize {
            let fd = argument.add(place);
            if is_readable(fd) {
                belongs_to_kernel(fd.read_unaligned());
            }
        }
    } else if !HARMLESS.contains(&operation) {
        give_up();
    }
}

/// Before an io_uring_enter(2) that submits so many.
pub(super) unsafe fn submits(ring: c_int, count: c_uint, flags: c_uint) {
    if flags & ENTER_REGISTERED_RING != 0 {
        return give_up();
    }
    let Entry::Ring(number) = table::entry(ring) else { return };
    if vfork::borrows_memory() {
        return;
    }
    kept_errno(|| {
        let mut follows_others = false;
        for place in 0..count {
            let Some(entry) = rings::submission(number, place) else { break };
            if submit(entry, follows_others || entry.flags & ORDERED != 0) {
                rings::empty(number, place);
            }
            follows_others = entry.flags & ORDERED != 0;
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
            if is_ordered {
                // It is to be done later than now.
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
        OP_CLOSE => descriptors::closing(entry.fd),
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

fn is_ours(fd: c_int) -> bool {
    matches!(table::entry(fd), Entry::Socket(_) | Entry::Set(_))
}

/// The kernel reads, writes or waits for what this descriptor stands for.
fn belongs_to_kernel(fd: c_int) {
    match table::entry(fd) {
        Entry::Socket(_) => leaving::leave_for(fd, Reason::IoUring),
        // It knows of no ring.
        Entry::Set(_) => give_up(),
        _ => {}
    }
}
