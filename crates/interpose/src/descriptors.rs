//! Descriptors as they are created and closed: keeps the table's entry for each number.
//!
//! A number that was closed unseen and used again must not keep its old entry: whatever creates a
//! descriptor sets the entry anew.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use promote::Reason;

use crate::demotion;
use crate::kernel;
use crate::mode;
use crate::promoter;
use crate::real;
use crate::sets;
use crate::sockets::{self, Interest, Promoted, Socket, State};
use crate::stats;
use crate::table::{self, Entry};
use crate::uring::rings;
use crate::vfork;

/// Whether this is the child of a vfork(2), which has descriptors of its own, and this process's
/// table.
fn borrowed(fd: c_int) -> bool {
    let borrows = vfork::borrows_memory();
    if borrows && matches!(table::entry(fd), Entry::Socket(_) | Entry::Set(_)) {
        vfork::diverges();
    }
    borrows
}

/// A descriptor was created that the library does not handle.
#[inline]
pub(crate) fn foreign(fd: c_int) {
    let entry = table::entry(fd);
    if fd >= 0 && entry != Entry::Foreign && !(is_of_concern(entry) && borrowed(fd)) {
        forget(table::set(fd, Entry::Foreign), -1);
    }
}

/// A descriptor was created that has no record.
pub(crate) fn made(fd: c_int, entry: Entry) {
    if !borrowed(fd) {
        forget(table::set(fd, entry), -1);
    }
}

/// Whether it matters which process an entry belongs to: without sockets and sets it does not.
fn is_of_concern(entry: Entry) -> bool {
    sockets::any() || matches!(entry, Entry::Set(_))
}

/// A descriptor came from another process, which may keep using the same file.
pub(crate) fn handed_over(fd: c_int) {
    if !(is_of_concern(table::entry(fd)) && borrowed(fd)) {
        forget(table::set(fd, Entry::Unknown), -1);
        learn(fd, true);
    }
}

/// At the start: inherited descriptors may be in use elsewhere.
pub(crate) fn inherited() {
    for fd in table::open().into_iter().filter(|fd| kernel::is_open(*fd)) {
        learn(fd, true);
    }
    INHERITED_KNOWN.store(true, Ordering::Relaxed);
}

static INHERITED_KNOWN: AtomicBool = AtomicBool::new(false);

/// A TCP socket was created.
pub(crate) fn tcp(fd: c_int, nonblocking: bool) -> Option<(u32, &'static Socket)> {
    if borrowed(fd) {
        return None;
    }
    let added = sockets::add(fd, nonblocking);
    let entry = added.as_ref().map_or(Entry::Foreign, |(number, _)| Entry::Socket(*number));
    forget(table::set(fd, entry), -1);
    added
}

/// An epoll set was created.
pub(crate) fn set(fd: c_int) {
    if sockets::any() && borrowed(fd) {
        return;
    }
    let entry = sets::add().map_or(Entry::Foreign, Entry::Set);
    forget(table::set(fd, entry), -1);
}

/// `new` refers to the same open file as `fd`.
pub(crate) fn same(fd: c_int, new: c_int) {
    let entry = match table::entry(fd) {
        Entry::ClosingRing => Entry::Unknown,
        entry => entry,
    };
    let concerns = is_of_concern(entry) || is_of_concern(table::entry(new));
    if fd == new || (concerns && borrowed(new)) {
        return;
    }
    match entry {
        Entry::Socket(number) => {
            sockets::at(number).names.fetch_add(1, Ordering::Relaxed);
        }
        Entry::Set(number) => sets::name(number),
        Entry::Ring(number) => rings::name(number),
        Entry::Unknown | Entry::Foreign | Entry::Multipath | Entry::ClosingRing => {}
    }
    forget(table::set(new, entry), -1);
}

/// `fd` is about to be closed. True: it is a ring, and `table::ring_is_closed` has to follow.
#[inline]
#[must_use]
pub(crate) fn closing(fd: c_int) -> bool {
    let entry = table::entry(fd);
    if matches!(entry, Entry::Socket(_) | Entry::Set(_) | Entry::Ring(_)) && !borrowed(fd) {
        if let Entry::Socket(number) = entry
            // Before a promotion nothing is deferred.
            && !matches!(sockets::at(number).state(), State::Plain | State::Offered)
        {
            // The kernel needs the last interest, before the number belongs to another file.
            sets::flush_interest(&mut sockets::at(number).lock().interest);
            if sets::outlives(sockets::at(number), fd) {
                // The kernel reports it under this number as long as the socket has another one.
                demotion::demote_if_possible(fd);
            }
        }
        let is_ring = matches!(entry, Entry::Ring(_));
        forget(table::set(fd, if is_ring { Entry::ClosingRing } else { Entry::Unknown }), fd);
        return is_ring;
    }
    if entry == Entry::Foreign && rings::any() && !borrowed(fd) {
        // A ring may accept a connection at this number.
        table::set(fd, Entry::Unknown);
    }
    false
}

/// All from `first` to `last` are about to be closed. Returns those that are rings.
pub(crate) fn closing_range(first: c_int, last: c_int) -> Vec<c_int> {
    (first..=last.min(table::end() - 1)).filter(|fd| closing(*fd)).collect()
}

/// Releases what an entry stood for. `fd`: the descriptor that is about to be closed; -1: it was
/// closed before, unseen.
fn forget(entry: Entry, fd: c_int) {
    match entry {
        Entry::Unknown | Entry::Foreign | Entry::Multipath | Entry::ClosingRing => {}
        Entry::Ring(number) => rings::remove(number),
        Entry::Set(number) => {
            if !sets::remove(number) && sets::at(number).uses_descriptor(fd) {
                // epoll_ctl(2) has to use a descriptor that is still open.
                if let Some(other) = table::names(entry).next() {
                    sets::at(number).use_descriptor(other);
                }
            }
        }
        Entry::Socket(number) => {
            let socket = sockets::at(number);
            if socket.names.fetch_sub(1, Ordering::AcqRel) == 1 {
                end(number, socket, fd);
            } else if fd >= 0 && socket.fd.load(Ordering::Relaxed) == fd {
                // Calls on the socket have to use a descriptor that is still open.
                if let Some(other) = table::names(entry).next() {
                    socket.fd.store(other, Ordering::Relaxed);
                }
            }
        }
    }
}

/// The last descriptor of this process is closed.
fn end(number: u32, socket: &'static Socket, fd: c_int) {
    if socket.state() == State::Plain {
        if mode::observes() {
            audit(socket, fd);
        }
        promoter::ended(socket, None);
        socket.closes();
    }
    // From then on it is not offered: most connections end so, and it shows in short ones.
    if socket.change_state(State::Plain, State::Kernel) && sets::let_go(socket) {
        return remove(number, socket);
    }
    if socket.state() == State::Offered {
        promoter::forget_offer(socket, number);
        promoter::ended(socket, Some(0));
        if fd >= 0 && !socket.holders.are_several() {
            // The monitor's copy in flight would keep the connection open, and in its epoll set.
            sets::remove_from_all(fd);
            kernel::end(fd);
        }
    }
    let Interest { set, earlier, .. } = socket.lock().interest;
    if set > 0 {
        sets::refresh(set - 1, number, true);
    }
    if let Some(earlier) = earlier {
        sets::forget(number, earlier);
    }
    let mut inner = socket.lock();
    socket.closes();
    inner.interest = Interest::default();
    let promoted = inner.promoted.as_deref_mut().map(|promoted| {
        close_promoted(promoted, fd);
        promoter::ended(socket, Some(promoted.connection.messages()));
        promoted.token
    });
    inner.becomes(State::Kernel);
    drop(inner);
    match promoted {
        Some(token) => promoter::withdraw(token, false),
        // Another thread may have tried to promote it meanwhile, and failed.
        None => promoter::forget_offer(socket, number),
    }
    remove(number, socket);
}

/// Frees the record.
fn remove(number: u32, socket: &Socket) {
    if socket.holders.are_several() {
        stats::count_as_shared(socket);
    }
    sockets::remove(number);
}

/// This process closes a promoted connection: the result of the kernel's close has to be that on
/// TCP.
fn close_promoted(promoted: &mut Promoted, fd: c_int) {
    let last = promoted.connection.give_up();
    if fd >= 0 {
        promoted.before_fin(fd, last);
        if last && promoted.connection.has_unread() {
            // As Linux does for unread bytes.
            kernel::reset_at_close(fd);
        }
        if last {
            promoted.connection.reads_no_more(true);
        }
        match last {
            true => promoted.discard_last_wake_ups(fd),
            // Wake-up bytes are no unread data. Later ones are for the other processes that have
            // it, and wake no set of this one.
            false => {
                promoted.connection.mask();
                // The kernel reports an error once, and that is for the other processes.
                if kernel::hangups(fd) & libc::POLLERR as u32 == 0 {
                    promoted.discard_wake_ups(fd);
                }
            }
        }
    }
    promoted.connection.publish_counts();
}

/// The process ends, and the kernel closes what is open. A socket in use is left as it is: a signal
/// handler may end the program.
pub(crate) fn exit() {
    for (_, socket) in sockets::all().filter(|(_, socket)| socket.state() == State::Promoted) {
        let Some(mut inner) = socket.try_lock_alone() else { continue };
        let Some(promoted) = inner.promoted.as_deref_mut() else { continue };
        if promoted.inherited && !promoted.connection.has_several_users() {
            // The connection is in use by the parent, and must not look as if this process used it.
            promoted.connection.give_up();
            continue;
        }
        drop(inner);
        if let Some(mut inner) = socket.try_lock()
            && let Some(promoted) = inner.promoted.as_deref_mut()
        {
            close_promoted(promoted, socket.fd.load(Ordering::Relaxed));
        }
    }
}

/// Compares our counts of a connection that is about to close with the kernel's.
fn audit(socket: &Socket, fd: c_int) {
    let seen = (socket.sent.load(Ordering::Relaxed), socket.received.load(Ordering::Relaxed));
    if let Some(Ok(Some(at))) = real::borrow(fd).map(sys::tcp::positions)
        && (at.written, at.consumed) != seen
    {
        stats::stays_on_tcp(socket, Reason::Bypass);
    }
}

/// Finds the kind of a descriptor at its first use, if it was created by a raw system call.
#[cold]
pub(crate) fn classify(fd: c_int) -> Entry {
    if vfork::borrows_memory() || mode::is_confined() {
        return Entry::Foreign;
    }
    learn(fd, !INHERITED_KNOWN.load(Ordering::Relaxed))
}

/// `others`: other processes may use it, too.
fn learn(fd: c_int, others: bool) -> Entry {
    crate::real::kept_errno(|| {
        let protocol = kernel::option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL);
        let add = || sockets::add(fd, kernel::control(fd, libc::F_GETFL, 0) & libc::O_NONBLOCK != 0);
        let Some((number, socket)) = (protocol == Some(libc::IPPROTO_TCP)).then(add).flatten() else {
            let is_multipath = protocol == Some(libc::IPPROTO_MPTCP);
            let entry = if is_multipath { Entry::Multipath } else { Entry::Foreign };
            let _ = table::claim(fd, entry);
            return entry;
        };
        socket.may_have_options.store(true, Ordering::Relaxed);
        let connected = kernel::peer(fd).is_some();
        // Bytes that other processes moved before are not tracked, and those that this program
        // moved were not seen.
        let at = real::borrow(fd).and_then(|fd| sys::tcp::positions(fd).ok().flatten());
        let unused = at.is_some_and(|at| (at.written, at.consumed) == (0, 0));
        if at.is_none() || (connected && (others || !unused)) {
            socket.set_state(State::Kernel);
        }
        let (written, consumed) = at.map_or((0, 0), |at| (at.written, at.consumed));
        socket.sent.store(written, Ordering::Relaxed);
        socket.received.store(consumed, Ordering::Relaxed);
        match table::claim(fd, Entry::Socket(number)) {
            Ok(()) => {
                if connected && socket.state() == State::Plain {
                    promoter::connected(socket, number);
                }
                Entry::Socket(number)
            }
            // Another thread was first.
            Err(entry) => {
                sockets::remove(number);
                entry
            }
        }
    })
}
