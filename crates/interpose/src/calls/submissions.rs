//! The system calls of io_uring, and the effect of submissions on sockets and sets of this process.

use promote::summary::RingObstacle;

use super::*;
use crate::uring::rings::{self, Params};

// linux/io_uring.h: operations.
const OP_SENDMSG: u8 = 9;
const OP_ACCEPT: u8 = 13;
const OP_CONNECT: u8 = 16;
const OP_CLOSE: u8 = 19;
const OP_FILES_UPDATE: u8 = 20;
const OP_EPOLL_CTL: u8 = 29;
const OP_SPLICE: u8 = 30;
const OP_TEE: u8 = 33;
const OP_SHUTDOWN: u8 = 34;
const OP_FIXED_FD_INSTALL: u8 = 54;
/// Operations whose first word is no descriptor: NOP, POLL_REMOVE, timeouts, ASYNC_CANCEL, buffers,
/// SOCKET, WAITID, futexes, PIPE, NOP128.
const OF_NO_FILE: [u8; 15] = [0, 7, 11, 12, 14, 15, 31, 32, 45, 50, 51, 52, 53, 62, 63];
/// Flags of io_uring_enter(2): wait for completions; the descriptor is the index of a registered
/// ring.
const ENTER_GETEVENTS: c_long = 1;
const ENTER_REGISTERED_RING: c_long = 1 << 4;
/// Operations of io_uring_register(2): those that take no file, and the one that takes an array of
/// files.
const REGISTER_FILES: c_uint = 2;
const HARMLESS: [c_uint; 24] =
    [0, 1, 3, 4, 5, 7, 8, 9, 10, 12, 15, 16, 17, 18, 19, 22, 23, 24, 25, 26, 27, 28, 29, 35];

/// This process has an untracked ring: all connections are demoted, unless the user states that the
/// ring is for files.
fn lose_track(obstacle: RingObstacle) {
    if uring::note_untracked(obstacle) {
        kept_errno(|| demotion::demote_all(Reason::IoUring));
    }
}

/// A tracked ring does what the library cannot track: this was seen, so that the user's statement
/// does not apply.
fn give_up() {
    uring::trusts(false);
    lose_track(RingObstacle::Use);
}

/// io_uring_setup(2).
pub(super) unsafe fn setup(entries: c_long, params: *mut Params) -> c_long {
    let call = || real::syscall(libc::SYS_io_uring_setup, entries, params as c_long, 0, 0, 0, 0);
    if vfork::borrows_memory() {
        return call();
    }
    let being_made = rings::Making::begin();
    let status = call();
    if status < 0 {
        return status;
    }
    // The kernel has written them.
    let params = params.read_unaligned();
    if params.has_no_descriptor() {
        drop(being_made);
        lose_track(params.obstacle());
        return status;
    }
    let ring = made(status as c_int);
    // A mapping is a system call of our own.
    let number = kept_errno(|| if mode::is_confined() { None } else { rings::track(ring, &params) });
    if let Some(number) = number {
        descriptors::made(ring, Entry::Ring(number));
    }
    drop(being_made);
    if number.is_none() {
        lose_track(params.obstacle());
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

/// io_uring_enter(2).
pub(super) unsafe fn enter(
    ring: c_long,
    count: c_long,
    wanted: c_long,
    flags: c_long,
    argument: c_long,
    size: c_long,
) -> c_long {
    let call = |count, wanted, flags| {
        real::syscall(libc::SYS_io_uring_enter, ring, count, wanted, flags, argument, size)
    };
    let count = count as c_uint;
    if count == 0 || vfork::borrows_memory() {
        return call(0, wanted, flags);
    }
    let fd = ring as c_int;
    let is_registered = flags & ENTER_REGISTERED_RING != 0;
    let number = match table::entry(fd) {
        Entry::Ring(number) if !is_registered => number,
        // Its entries are no longer read, and the kernel's descriptor may still be open.
        Entry::ClosingRing if !is_registered => {
            real::set_errno(libc::EBADF);
            return -1;
        }
        _ => {
            if is_registered || mode::is_confined() || kept_errno(|| uring::is_untracked(fd)) {
                lose_track(RingObstacle::Unseen);
            }
            return call(count.into(), wanted, flags);
        }
    };
    let most = kept_errno(|| rings::submits(number, count, |entry| submit(entry)));
    let status = match most == count {
        true => call(count.into(), wanted, flags),
        // As the kernel does if the queue has fewer than the call submits: it waits for none.
        false => call(most.into(), 0, flags & !ENTER_GETEVENTS),
    };
    let submitted = c_uint::try_from(status).unwrap_or(0);
    if submitted < most {
        rings::left(number, most - submitted);
    }
    status
}

/// A submission is about to go to the kernel. True: it is done already.
unsafe fn submit(entry: rings::Entry) -> bool {
    match entry.operation {
        OP_EPOLL_CTL => {
            let (set, fd, operation) = (entry.fd, entry.offset as c_int, entry.length as c_int);
            if !is_ours(set) && !is_ours(fd) {
                return false;
            }
            if !entry.is_certain || entry.other_fd != 0 {
                // It runs later, or concerns another set, or will be refused.
                give_up();
                return false;
            }
            let is_done = epoll_ctl(set, operation, fd, entry.address as *mut epoll_event) == 0;
            if !is_done && let Entry::Set(set) = table::entry(set) {
                // The kernel will refuse it, by the members that this set has.
                sets::at(set).lock().register_deferred();
            }
            return is_done;
        }
        OP_SHUTDOWN if !entry.is_of_registered_file() => return shuts_down(entry),
        // An accepted descriptor is classified at its first use.
        OP_ACCEPT => {}
        OP_CONNECT if !entry.is_of_registered_file() => {
            let length = entry.offset as socklen_t;
            connects(entry.fd, entry.address as *const sockaddr, length);
        }
        OP_CLOSE => return closes(entry),
        // They concern a file that a ring has registered, too.
        OP_FILES_UPDATE | OP_FIXED_FD_INSTALL => give_up(),
        operation if OF_NO_FILE.contains(&operation) => {}
        operation => {
            if !entry.is_of_registered_file() {
                belongs_to_kernel(entry.fd);
            }
            match operation {
                OP_SPLICE | OP_TEE => belongs_to_kernel(entry.other_fd),
                OP_SENDMSG => hands_over(entry.address as *const msghdr),
                _ => {}
            }
        }
    }
    false
}

/// Otherwise the kernel refuses it.
fn has_no_more_than_length(entry: rings::Entry) -> bool {
    (entry.offset, entry.address, entry.other_fd) == (0, 0, 0)
}

/// The kernel is about to shut down a socket. True: it is done already.
unsafe fn shuts_down(entry: rings::Entry) -> bool {
    let socket = table::socket(entry.fd).filter(|_| entry.is_certain);
    if socket.is_some_and(|socket| socket.state() == State::Promoted) && has_no_more_than_length(entry) {
        // The kernel refuses the same arguments.
        return shutdown(entry.fd, entry.length as c_int) == 0;
    }
    // On TCP, and for a listener, earlier submissions come first.
    local_listen::shut_down(entry.fd);
    if socket.is_none_or(Socket::is_connected) {
        belongs_to_kernel(entry.fd);
    }
    false
}

/// The kernel is about to connect a socket, which may be promoted then, unless it was connected
/// before.
unsafe fn connects(fd: c_int, address: *const sockaddr, length: socklen_t) {
    local_listen::connecting(fd, address, length);
    match watched(fd) {
        Some((number, socket)) if socket.state() == State::Plain && !socket.is_connected() => {
            promoter::connected(socket, number);
        }
        _ => belongs_to_kernel(fd),
    }
}

/// The kernel is about to close a descriptor, or a registered file, which is none; it closes no
/// ring. True: it is closed already.
unsafe fn closes(entry: rings::Entry) -> bool {
    let is_registered = entry.is_of_registered_file() || entry.other_fd != 0;
    if is_registered || matches!(table::entry(entry.fd), Entry::Ring(_)) {
        return false;
    }
    if !entry.is_certain || entry.length != 0 || !has_no_more_than_length(entry) {
        // It may not be executed.
        demotion::demote_for(entry.fd, Reason::IoUring);
    } else if table::socket(entry.fd).is_some_and(|socket| socket.state() == State::Promoted) {
        // The next submission may be about the peer, which could not be demoted between this close
        // and FIN.
        return close(entry.fd) == 0;
    }
    local_listen::closing(entry.fd);
    let _is_no_ring = descriptors::closing(entry.fd);
    false
}

fn is_ours(fd: c_int) -> bool {
    matches!(table::entry(fd), Entry::Socket(_) | Entry::Set(_))
}

/// The kernel reads, writes or polls this descriptor.
fn belongs_to_kernel(fd: c_int) {
    let entry = match table::entry(fd) {
        // A ring may have accepted it.
        Entry::Unknown => descriptors::classify(fd),
        entry => entry,
    };
    match entry {
        Entry::Socket(_) => demotion::demote_for(fd, Reason::IoUring),
        // The kernel's set does not report what is in memory.
        Entry::Set(_) => give_up(),
        _ => {}
    }
}
