//! Descriptors as they come and go: what the table knows of each number.
//!
//! A number that is closed on a way nobody saw, and used again, must not be taken for what it
//! was: whoever makes a descriptor says what it is now.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use promote::Reason;

use crate::kernel;
use crate::leaving;
use crate::mode;
use crate::promoter;
use crate::real;
use crate::sets;
use crate::sockets::{self, Interest, Promoted, Socket, State};
use crate::stats;
use crate::table::{self, Entry};
use crate::uring::rings;
use crate::vfork;

/// Whether the number is that of a child of vfork(2), which has its own descriptors, and this process's table.
fn borrowed(fd: c_int) -> bool {
    let borrows = vfork::borrows_memory();
    if borrows && matches!(table::entry(fd), Entry::Socket(_) | Entry::Set(_)) {
        vfork::diverges();
    }
    borrows
}

/// A descriptor was made that is not for us.
#[inline]
pub(crate) fn foreign(fd: c_int) {
    let entry = table::entry(fd);
    if fd >= 0 && entry != Entry::Foreign && !(is_of_concern(entry) && borrowed(fd)) {
        forget(table::set(fd, Entry::Foreign), -1);
    }
}

/// A descriptor was made that has no record.
pub(crate) fn made(fd: c_int, entry: Entry) {
    if !borrowed(fd) {
        forget(table::set(fd, entry), -1);
    }
}

/// Whether it matters whose an entry is: without sockets and sets nobody goes by it.
fn is_of_concern(entry: Entry) -> bool {
    sockets::any() || matches!(entry, Entry::Set(_))
}

/// A descriptor came from another process, which may go on to use what it stands for.
pub(crate) fn handed_over(fd: c_int) {
    if !(is_of_concern(table::entry(fd)) && borrowed(fd)) {
        forget(table::set(fd, Entry::Unknown), -1);
        learn(fd, true);
    }
}

/// At the start: what this program was given is not its own.
pub(crate) fn inherited() {
    for fd in table::open().into_iter().filter(|fd| kernel::is_open(*fd)) {
        learn(fd, true);
    }
    INHERITED_KNOWN.store(true, Ordering::Relaxed);
}

static INHERITED_KNOWN: AtomicBool = AtomicBool::new(false);

/// A TCP socket was made.
pub(crate) fn tcp(fd: c_int, nonblocking: bool) -> Option<(u32, &'static Socket)> {
    if borrowed(fd) {
        return None;
    }
    let added = sockets::add(fd, nonblocking);
    let entry = added.as_ref().map_or(Entry::Foreign, |(number, _)| Entry::Socket(*number));
    forget(table::set(fd, entry), -1);
    added
}

/// An epoll set was made.
pub(crate) fn set(fd: c_int) {
    if sockets::any() && borrowed(fd) {
        return;
    }
    let entry = sets::add().map_or(Entry::Foreign, Entry::Set);
    forget(table::set(fd, entry), -1);
}

/// `new` is the same open file as `fd`.
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

/// `fd` is about to be closed. True: it is a ring's, and `table::ring_is_closed` has to follow.
#[inline]
#[must_use]
pub(crate) fn closing(fd: c_int) -> bool {
    let entry = table::entry(fd);
    if matches!(entry, Entry::Socket(_) | Entry::Set(_) | Entry::Ring(_)) && !borrowed(fd) {
        if let Entry::Socket(number) = entry
            // Before a promotion the kernel knows everything.
            && !matches!(sockets::at(number).state(), State::Plain | State::Offered)
        {
            // It must know what was asked last, and must not be told once the number is another's.
            sets::tell(&mut sockets::at(number).lock().interest);
            if sets::outlives(sockets::at(number), fd) {
                // The kernel tells of it under this number as long as another names the socket.
                leaving::leave_if_possible(fd);
            }
        }
        let is_ring = matches!(entry, Entry::Ring(_));
        forget(table::set(fd, if is_ring { Entry::ClosingRing } else { Entry::Unknown }), fd);
        return is_ring;
    }
    if entry == Entry::Foreign && rings::any() && !borrowed(fd) {
        // A ring may accept a connection under this number.
        table::set(fd, Entry::Unknown);
    }
    false
}

/// All from `first` to `last` are about to be closed. Returns those that are rings.
pub(crate) fn closing_range(first: c_int, last: c_int) -> Vec<c_int> {
    (first..=last.min(table::end() - 1)).filter(|fd| closing(*fd)).collect()
}

/// What is to be done for what an entry was. `fd`: the descriptor that is about to be closed;
/// -1: it is closed already, on a way that was not seen.
fn forget(entry: Entry, fd: c_int) {
    match entry {
        Entry::Unknown | Entry::Foreign | Entry::Multipath | Entry::ClosingRing => {}
        Entry::Ring(number) => rings::remove(number),
        Entry::Set(number) => {
            if !sets::remove(number) && sets::at(number).is_named(fd) {
                // The kernel has to be told by a descriptor that lives.
                if let Some(other) = table::names(entry).next() {
                    sets::at(number).is_used_by(other);
                }
            }
        }
        Entry::Socket(number) => {
            let socket = sockets::at(number);
            if socket.names.fetch_sub(1, Ordering::AcqRel) == 1 {
                end(number, socket, fd);
            } else if fd >= 0 && socket.fd.load(Ordering::Relaxed) == fd {
                // Calls about the socket have to name a descriptor that lives.
                if let Some(other) = table::names(entry).next() {
                    socket.fd.store(other, Ordering::Relaxed);
                }
            }
        }
    }
}

/// The last descriptor of this process goes.
fn end(number: u32, socket: &'static Socket, fd: c_int) {
    if socket.state() == State::Plain {
        if mode::observes() {
            audit(socket, fd);
        }
        promoter::ended(socket, None);
        socket.closes();
    }
    // Nobody offers it any more then: most connections end so, and short ones feel it.
    if socket.change_state(State::Plain, State::Kernel) && sets::let_go(socket) {
        return remove(number, socket);
    }
    if socket.state() == State::Offered {
        promoter::forget_offer(socket, number);
        promoter::ended(socket, Some(0));
        if fd >= 0 && !socket.holders.are_several() {
            // Its copy on the way to the monitor keeps the connection open, and in its epoll set.
            sets::take_out(fd);
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
        part(promoted, fd);
        promoter::ended(socket, Some(promoted.connection.messages()));
        promoted.token
    });
    inner.becomes(State::Kernel);
    drop(inner);
    match promoted {
        Some(token) => promoter::withdraw(token, false),
        // Another thread may have tried to promote it meanwhile, in vain.
        None => promoter::forget_offer(socket, number),
    }
    remove(number, socket);
}

/// Gives the record back.
fn remove(number: u32, socket: &Socket) {
    if socket.holders.are_several() {
        stats::is_left_to_others(socket);
    }
    sockets::remove(number);
}

/// This process gives a promoted end up: what the kernel makes of its close has to be what it
/// would make of TCP's.
fn part(promoted: &mut Promoted, fd: c_int) {
    let last = promoted.connection.give_up();
    if fd >= 0 {
        promoted.before_end(fd, last);
        if last && promoted.connection.has_unread() {
            // As Linux does for bytes that nobody read.
            kernel::reset_at_close(fd);
        }
        if last {
            promoted.connection.reads_no_more(true);
        }
        match last {
            true => promoted.drop_last_bells(fd),
            // Bells are no unread data. Those that come are for the processes that go on with it, and
            // wake none of this one's sets.
            false => {
                promoted.connection.mute();
                // The kernel reports an error once, and the other processes are to get it.
                if kernel::ends(fd) & libc::POLLERR as u32 == 0 {
                    promoted.drop_bells(fd);
                }
            }
        }
    }
    promoted.connection.tell_counts();
}

/// The process ends, and the kernel closes for it what it did not. A socket that is in use is
/// left as it is: a signal handler may end the program.
pub(crate) fn exit() {
    for (_, socket) in sockets::all().filter(|(_, socket)| socket.state() == State::Promoted) {
        let Some(mut inner) = socket.try_lock_alone() else { continue };
        let Some(promoted) = inner.promoted.as_deref_mut() else { continue };
        if promoted.inherited && !promoted.connection.has_several_users() {
            // It was forked from the one that uses it, and must not look like one that does.
            promoted.connection.give_up();
            continue;
        }
        drop(inner);
        if let Some(mut inner) = socket.try_lock()
            && let Some(promoted) = inner.promoted.as_deref_mut()
        {
            part(promoted, socket.fd.load(Ordering::Relaxed));
        }
    }
}

/// Whether the kernel agrees with what was counted on a connection that is about to close.
fn audit(socket: &Socket, fd: c_int) {
    let seen = (socket.sent.load(Ordering::Relaxed), socket.received.load(Ordering::Relaxed));
    if let Some(Ok(Some(at))) = real::borrow(fd).map(sys::tcp::positions)
        && (at.written, at.consumed) != seen
    {
        stats::stays(socket, Reason::Bypass);
    }
}

/// Finds out at its first use what a descriptor is that was made by a system call of the program's own.
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
        // What others sent and received before is no business of ours, and what this program did, nobody saw.
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
            // Another thread was quicker.
            Err(entry) => {
                sockets::remove(number);
                entry
            }
        }
    })
}
