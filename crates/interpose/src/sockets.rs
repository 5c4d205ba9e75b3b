//! The TCP sockets of this process: their counters and states.
#![allow(unsafe_code)] // records in memory that is mapped once, for good

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::CStr;
use std::io::{self, Write};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use promote::{Connection, OtherLoop};
use rustix::fs::{Mode, OFlags};

use crate::doorbell::Doorbell;
use crate::free_list::FreeList;
use crate::holders::Holders;
use crate::lock::{Held, Lock};
use crate::mappings::reserve;
use crate::pages;
use crate::signals;
use crate::waiters::Waiters;
use crate::watch::Watch;

/// The state of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum State {
    /// The record is unused.
    Free = 0,
    /// On TCP, and counted.
    Plain = 1,
    /// On TCP for good.
    Kernel = 2,
    /// On TCP, and offered to the monitor.
    Offered = 3,
    /// Its bytes go over shared memory.
    Promoted = 4,
}

/// One open TCP socket, whatever the number of its descriptors.
///
/// A record is never unmapped, and zeroed memory is a free one. The fields that every call on TCP
/// uses come first, in one cache line.
#[repr(C, align(64))]
pub(crate) struct Socket {
    state: AtomicU32,
    /// Guards `inner`.
    lock: Lock,
    /// Calls in progress that return to this record: those on a socket on TCP, which must not be
    /// promoted meanwhile, and waits on a promoted one. With [`GONE`], the last of them frees the
    /// record.
    pub(crate) busy: AtomicU32,
    /// Counts the uses of this record; part of the monitor's token.
    pub(crate) generation: AtomicU32,
    /// What our calls sent and received.
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) messages_sent: AtomicU32,
    pub(crate) messages_received: AtomicU32,
    /// Messages at which it is next considered for promotion.
    pub(crate) check_at: AtomicU32,
    /// Descriptors of this process that refer to it.
    pub(crate) names: AtomicU32,
    /// One of them.
    pub(crate) fd: AtomicI32,
    /// O_NONBLOCK as the program last set it, as far as was seen.
    pub(crate) nonblocking: AtomicBool,
    /// It is promoted, its ring is not in use, and arrivals make the kernel's socket readable:
    /// waits need not poll its ring.
    pub(crate) kernel_reports_arrivals: AtomicBool,
    /// A call has waited for the answer to its offer: eager promotion does so once.
    pub(crate) awaited: AtomicBool,
    /// TCP_INQ, while it is promoted.
    pub(crate) reports_unread: AtomicBool,
    /// It, or its listener, may have options that the kernel acts on, or the kernel was not asked
    /// yet: `kernel_options`.
    pub(crate) may_have_options: AtomicBool,
    /// It was connected or accepted, or is about to be: some programs call connect(2) twice.
    connected: AtomicBool,
    inner: UnsafeCell<Inner>,
    /// The processes that have the socket.
    pub(crate) holders: Holders,
    /// The part of the ring that SO_SNDBUF allows; [`WHOLE_RING`]: all.
    pub(crate) send_limit: AtomicU32,
    /// Messages at the last check, and its time: milliseconds of `clock`.
    pub(crate) checked_at: AtomicU32,
    pub(crate) checked_when: AtomicU64,
    /// Messages each way that connections had to have when it was offered.
    pub(crate) patience: AtomicU32,
    /// Why its connection is on TCP, or that it is in memory: see `stats`.
    pub(crate) word: AtomicU8,
    /// How often connect(2) dissolved its connection while that was promoted.
    pub(crate) dissolved: AtomicU32,
    /// Its own number.
    number: AtomicU32,
    next_free: AtomicU32,
}

/// State guarded by a socket's lock.
#[derive(Default)]
pub(crate) struct Inner {
    pub(crate) promoted: Option<Box<Promoted>>,
    pub(crate) interest: Interest,
}

/// The epoll set that the socket was last added to, and the interest there.
#[derive(Clone, Copy, Default)]
pub(crate) struct Interest {
    /// Number of the set plus 1; 0: none.
    pub(crate) set: u32,
    pub(crate) fd: i32,
    pub(crate) events: u32,
    pub(crate) data: u64,
    /// EPOLLONESHOT has disabled it.
    pub(crate) disabled: bool,
    /// It may have been disabled before the socket was promoted.
    pub(crate) maybe_disabled: bool,
    /// Number of sets that have it, counting each of its descriptors there.
    pub(crate) sets: u32,
    /// The set before this one, while both have it: programs that move a socket to another thread's
    /// set add it there first.
    pub(crate) earlier: Option<Membership>,
    /// The kernel's registration.
    pub(crate) registered: Option<Membership>,
    /// It is in its set's list of deferred epoll_ctl(2) calls.
    pub(crate) deferred: bool,
}

/// The interest of one set in a socket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Membership {
    /// As [`Interest::set`], and the socket's descriptor in it.
    pub(crate) set: u32,
    pub(crate) fd: i32,
    pub(crate) events: u32,
    pub(crate) data: u64,
}

/// A promoted socket.
pub(crate) struct Promoted {
    pub(crate) connection: Connection,
    pub(crate) other: Arc<OtherLoop>,
    pub(crate) doorbell: Option<Doorbell>,
    /// SO_RCVTIMEO is not set, as the kernel said since the last change.
    pub(crate) has_no_timeout: bool,
    /// Changes of SO_RCVTIMEO.
    pub(crate) timeout_changes: u32,
    /// O_NONBLOCK was set when the kernel was asked, and no other process has had the socket since.
    pub(crate) stays_nonblocking: bool,
    /// Bytes of the ring that it may fill, if the program asked for a small buffer.
    pub(crate) send_limit: u32,
    /// It was promoted before this process was forked.
    pub(crate) inherited: bool,
    /// Waiters outside its set depend on the kernel's readiness: it is never hot.
    pub(crate) shown_in_kernel: bool,
    /// Stream bytes of the peer that were removed from ring and kernel during demotion: they go
    /// back to the peer, or to a successor connection.
    pub(crate) detached: VecDeque<u8>,
    /// Bytes of this endpoint that the demoted peer returned: they wait for room in the kernel.
    pub(crate) returned: VecDeque<u8>,
    pub(crate) waiters: Waiters,
    pub(crate) unseen: crate::unseen::Unseen,
    /// A set of the parent slept at this waiter and epoch when this process first used the
    /// inherited socket, and a wake-up for it may be about to arrive in this connection
    /// (`pages::asleep_before`).
    pub(crate) parent_sleep: Option<(u32, u32)>,
    /// The thread that sleeps on the socket itself, in poll(2) or a blocking read; 0: none.
    pub(crate) slept_by: usize,
    /// Several waiters used it at once: each publication has a wake-up, which stays in the kernel
    /// until its bytes are consumed, as TCP data would.
    pub(crate) several_waiters: bool,
    pub(crate) watch: Watch,
    /// The waiter of the loop page that polls it while it is not armed.
    pub(crate) waiter: u32,
    /// The set that has it in its list, and checks it before sleeping: number plus 1; 0: none.
    pub(crate) listed_in: u32,
    /// Ring bytes whose arrival was reported to an edge-triggered set.
    pub(crate) reported: u64,
    /// Bytes of the kernel whose arrival was, consumed or not.
    pub(crate) reported_of_kernel: u64,
    /// Stream position up to which MSG_PEEK or FIONREAD has reported bytes to the program: a read
    /// with room for them returns them all.
    pub(crate) shown: u64,
    /// Writability was reported to an edge-triggered set.
    pub(crate) reported_writable: bool,
    /// Its set's sleeps since bytes came, and polls.
    pub(crate) quiet: u8,
    pub(crate) empty_polls: u8,
    /// When the bytes that a set reported last were published (`Connection::published_at`).
    pub(crate) published: u64,
    /// A set reported an event of the kernel for it since the kernel was asked for the end of
    /// stream.
    pub(crate) kernel_reported: bool,
    /// TCP_CORK.
    pub(crate) corked: bool,
    /// The kernel may hold back the last bytes, for MSG_MORE or TCP_CORK.
    pub(crate) held: bool,
    /// An option was set that demotes it, once the ring's bytes were read.
    pub(crate) demote_once_read: bool,
    /// TCP_NODELAY as the program set it.
    pub(crate) no_delay: i32,
    /// It is off in the kernel: no wake-up byte was sent, which must not wait for acknowledgements.
    pub(crate) kernel_delays: bool,
    /// SO_COOKIE: identifies the socket across descriptor numbers.
    pub(crate) cookie: u64,
    pub(crate) token: promote::wire::Token,
}

// SAFETY: `inner` is reached through `Guard` only, which holds the lock; all else is atomics.
unsafe impl Sync for Socket {}

/// In `busy`: no descriptor of this process is left.
const GONE: u32 = 1 << 31;

/// The program set no limit.
pub(crate) const WHOLE_RING: u32 = u32::MAX;

/// Sockets that are tracked at most; more stay on TCP.
const MOST: u32 = 1 << 18;

/// Records of one mapping. All at once would be 64 MiB, which mlockall(2) locks, used or not.
const CHUNK: u32 = 256;
const CHUNKS: usize = (MOST / CHUNK) as usize;

/// Mapped one by one as records are used, and never unmapped.
static RECORDS: [AtomicPtr<Socket>; CHUNKS] = [const { AtomicPtr::new(null_mut()) }; CHUNKS];
static FREE: FreeList = FreeList::new();
/// Records that have been used. Their chunks are mapped.
static USED: AtomicU32 = AtomicU32::new(0);
/// Sockets that have been connected, and are not closed.
static CONNECTED: AtomicU32 = AtomicU32::new(0);

/// Maps the first records; before that there are none.
pub(crate) fn make() -> io::Result<()> {
    make_chunk(0)
}

/// Maps a chunk, unless another thread was faster.
fn make_chunk(chunk: usize) -> io::Result<()> {
    const LENGTH: usize = CHUNK as usize * size_of::<Socket>();
    if !RECORDS[chunk].load(Ordering::Acquire).is_null() {
        return Ok(());
    }
    let memory = reserve(LENGTH, libc::MAP_PRIVATE)?;
    // CHUNK-PAIR: release the zeroes to the threads that load the chunk.
    let first =
        RECORDS[chunk].compare_exchange(null_mut(), memory.cast(), Ordering::AcqRel, Ordering::Acquire);
    if first.is_err() {
        // SAFETY: our own mapping, which was not published.
        unsafe { libc::munmap(memory.cast(), LENGTH) };
    }
    Ok(())
}

/// The record of a number in the table.
#[inline(always)]
pub(crate) fn at(number: u32) -> &'static Socket {
    // CHUNK-PAIR: the chunk was mapped before its number was issued, and is ordered by how the
    // number got here.
    let chunk = RECORDS[(number / CHUNK) as usize % CHUNKS].load(Ordering::Relaxed);
    // SAFETY: entries hold numbers that `add` issued, whose chunks are mapped and never unmapped;
    // the rest lies within the chunk; zeroed memory is a record.
    unsafe { &*chunk.add((number % CHUNK) as usize) }
}

/// The record of a number from elsewhere. `None`: no record has it.
pub(crate) fn get(number: u32) -> Option<&'static Socket> {
    // CHUNK-PAIR: acquire the chunks of all used records.
    (number < USED.load(Ordering::Acquire)).then(|| at(number))
}

/// The number of a record that was never used.
fn unused() -> Option<u32> {
    let mut used = USED.load(Ordering::Acquire);
    loop {
        if used >= MOST || make_chunk((used / CHUNK) as usize).is_err() {
            return None;
        }
        // CHUNK-PAIR: release the chunk with the count.
        match USED.compare_exchange(used, used + 1, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => break,
            Err(other) => used = other,
        }
    }
    if used == 0 {
        signals::begin();
    }
    Some(used)
}

/// A record for a new socket, and its number. `None`: no room.
pub(crate) fn add(fd: i32, nonblocking: bool) -> Option<(u32, &'static Socket)> {
    if RECORDS[0].load(Ordering::Acquire).is_null() {
        return None;
    }
    let number = FREE.pop(|number| &at(number).next_free).or_else(unused)?;
    // The last user restored `inner` to its default.
    let socket = at(number);
    socket.number.store(number, Ordering::Relaxed);
    socket.generation.fetch_add(1, Ordering::Relaxed);
    socket.names.store(1, Ordering::Relaxed);
    socket.fd.store(fd, Ordering::Relaxed);
    socket.sent.store(0, Ordering::Relaxed);
    socket.received.store(0, Ordering::Relaxed);
    let words = [&socket.busy, &socket.messages_sent, &socket.messages_received, &socket.check_at];
    words
        .into_iter()
        .chain([&socket.patience, &socket.dissolved])
        .for_each(|word| word.store(0, Ordering::Relaxed));
    [&socket.kernel_reports_arrivals, &socket.reports_unread, &socket.awaited, &socket.may_have_options]
        .into_iter()
        .for_each(|flag| flag.store(false, Ordering::Relaxed));
    socket.nonblocking.store(nonblocking, Ordering::Relaxed);
    socket.holders.reset();
    socket.send_limit.store(WHOLE_RING, Ordering::Relaxed);
    socket.word.store(0, Ordering::Relaxed);
    socket.set_state(State::Plain);
    Some((number, socket))
}

/// Frees the record of a socket that has no descriptor in this process any more.
pub(crate) fn remove(number: u32) {
    let socket = at(number);
    socket.holders.give_up();
    if socket.connected.load(Ordering::Relaxed) {
        socket.connected.store(false, Ordering::Relaxed);
        CONNECTED.fetch_sub(1, Ordering::Relaxed);
    }
    socket.set_state(State::Free);
    // BUSY-PAIR: the last user frees it: a call in progress during another thread's close must not
    // return to a record that is another connection's.
    if socket.busy.fetch_or(GONE, Ordering::SeqCst) == 0 {
        free(number);
    }
}

fn free(number: u32) {
    FREE.push(number, &at(number).next_free);
}

/// All records that have been used.
pub(crate) fn all() -> impl Iterator<Item = (u32, &'static Socket)> {
    // CHUNK-PAIR, as in `get`.
    (0..USED.load(Ordering::Acquire)).map(|number| (number, at(number)))
}

/// In the child of a fork: locks held by other threads of the parent have no holder here, promoted
/// sockets are the parent's until used here, and connections are counted there.
pub(crate) fn forked() {
    FREE.reset();
    for (_, socket) in all() {
        socket.lock.reset();
        socket.word.store(0, Ordering::Relaxed);
        if let Some(promoted) = socket.lock_alone().promoted.as_deref_mut() {
            promoted.inherited = true;
            promoted.slept_by = 0;
            if let Some(doorbell) = &mut promoted.doorbell {
                doorbell.forget_set();
            }
        }
    }
}

impl Interest {
    /// Some of its interests are not in this record.
    pub(crate) fn is_one_of_several(&self) -> bool {
        self.sets > u32::from(self.set != 0)
    }

    /// As the program set it last.
    pub(crate) fn membership(&self) -> Option<Membership> {
        let Interest { set, fd, events, data, .. } = *self;
        (set != 0).then_some(Membership { set, fd, events, data })
    }
}

/// Whether this process has had a TCP socket.
#[inline(always)]
pub(crate) fn any() -> bool {
    USED.load(Ordering::Relaxed) > 0
}

/// Connected sockets of this process.
pub(crate) fn connected() -> u32 {
    CONNECTED.load(Ordering::Relaxed)
}

impl Socket {
    /// It is connected, or is about to be. True: for the first time.
    pub(crate) fn connects(&self) -> bool {
        let first = !self.connected.swap(true, Ordering::Relaxed);
        if first {
            CONNECTED.fetch_add(1, Ordering::Relaxed);
        }
        first
    }

    /// Whether it was ever connected, or was about to be.
    pub(crate) fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Whether a call without data, or without room, waits, as far as was seen.
    pub(crate) fn blocks(&self, flags: i32) -> bool {
        flags & libc::MSG_DONTWAIT == 0 && !self.nonblocking.load(Ordering::Relaxed)
    }

    /// Counts a message sent or received. Concurrent updates may lose one, which affects only the
    /// summary and the pace.
    #[inline(always)]
    pub(crate) fn one_more(messages: &AtomicU32) {
        messages.store(messages.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn state(&self) -> State {
        // STATE-PAIR: a thread that reads `Promoted` also sees the connection, which the lock
        // orders too.
        match self.state.load(Ordering::SeqCst) {
            1 => State::Plain,
            2 => State::Kernel,
            3 => State::Offered,
            4 => State::Promoted,
            _ => State::Free,
        }
    }

    pub(crate) fn set_state(&self, state: State) {
        // BUSY-PAIR: the state is stored before `busy` is read; calls count themselves before they
        // read the state.
        self.state.store(state as u32, Ordering::SeqCst);
    }

    /// Changes the state, unless it is no longer `from`.
    pub(crate) fn change_state(&self, from: State, to: State) -> bool {
        // BUSY-PAIR, as for `set_state`.
        let changed = self.state.compare_exchange(from as u32, to as u32, Ordering::SeqCst, Ordering::SeqCst);
        changed.is_ok()
    }

    /// Counts a call into the kernel for a plain socket's bytes, so that the socket is not promoted
    /// during it. `None`: it is promoted.
    #[inline]
    pub(crate) fn enter(&self) -> Option<Busy<'_>> {
        let busy = self.keep();
        if self.state() == State::Promoted { None } else { Some(busy) }
    }

    /// Keeps the record allocated to this socket, even if another thread closes it meanwhile.
    #[inline]
    pub(crate) fn keep(&self) -> Busy<'_> {
        // BUSY-PAIR
        self.busy.fetch_add(1, Ordering::SeqCst);
        Busy(self)
    }

    /// It is being closed: calls that return to it find another generation.
    pub(crate) fn closes(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_> {
        let mut guard = Guard { socket: self, kept_out: None, _held: self.lock.hold() };
        guard.keep_others_out();
        guard
    }

    /// The lock alone: other processes may use the connection at the same time, which limits the
    /// caller to what is safe beside them.
    pub(crate) fn lock_alone(&self) -> Guard<'_> {
        Guard { socket: self, kept_out: None, _held: self.lock.hold() }
    }

    /// As [`Self::lock_alone`], if it is free.
    #[inline(always)]
    pub(crate) fn try_lock_alone(&self) -> Option<Guard<'_>> {
        Some(Guard { socket: self, kept_out: None, _held: self.lock.try_hold()? })
    }

    #[inline(always)]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_>> {
        let mut guard = self.try_lock_alone()?;
        guard.keep_others_out();
        Some(guard)
    }
}

/// A call that returns to the socket's record.
pub(crate) struct Busy<'a>(&'a Socket);

impl Drop for Busy<'_> {
    #[inline]
    fn drop(&mut self) {
        // BUSY-PAIR: release the call's counts.
        if self.0.busy.fetch_sub(1, Ordering::SeqCst) == GONE | 1 {
            free(self.0.number());
        }
    }
}

/// Holds the lock of a socket.
pub(crate) struct Guard<'a> {
    socket: &'a Socket,
    /// The same socket, if other processes share its connection and are locked out. A whole word,
    /// which moves without waiting for its store.
    kept_out: Option<&'a Socket>,
    _held: Held<'a>,
}

impl Guard<'_> {
    #[inline(always)]
    fn keep_others_out(&mut self) {
        if self.promoted.as_ref().is_some_and(|promoted| promoted.connection.is_shared()) {
            self.begin_hold();
        }
    }

    #[cold]
    fn begin_hold(&mut self) {
        if let Some(promoted) = self.promoted.as_deref_mut() {
            let is_first = promoted.inherited && !promoted.connection.has_several_users();
            // The next use of the connection reports protocol violations by the peer.
            let _ = promoted.connection.hold(thread(), std::process::id(), &mut Patience::default());
            if is_first {
                promoted.parent_sleep = pages::asleep_before(promoted.connection.waiter());
            }
            let left = promoted.connection.is_over();
            self.kept_out = Some(self.socket);
            if left {
                // Another process has demoted the connection.
                self.becomes(State::Kernel);
            }
        }
    }

    /// The socket is not promoted any more; the kernel has it from here on. Other processes may
    /// keep the connection.
    #[cold]
    pub(crate) fn becomes(&mut self, state: State) {
        self.let_others_in();
        if let Some(promoted) = self.promoted.as_deref() {
            promoted.unwatch_doorbell();
        }
        self.promoted = None;
        self.socket.kernel_reports_arrivals.store(false, Ordering::Relaxed);
        self.socket.set_state(state);
    }

    #[inline(always)]
    fn let_others_in(&mut self) {
        if self.kept_out.take().is_some() {
            self.end_hold();
        }
    }

    #[cold]
    fn end_hold(&mut self) {
        if let Some(promoted) = self.promoted.as_deref_mut() {
            promoted.connection.let_go(thread());
        }
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        let socket = self.socket;
        if let Some(promoted) = self.promoted.as_deref_mut() {
            socket.kernel_reports_arrivals.store(promoted.kernel_reports_arrivals(), Ordering::Relaxed);
        }
        self.let_others_in();
    }
}

fn thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// Waits for a thread of another process, which holds a connection only briefly.
#[derive(Default)]
struct Patience {
    /// How often the holder was checked.
    checks: u32,
}

impl ring::Wait for Patience {
    fn is_alive(&mut self, thread: u32) -> bool {
        self.checks += 1;
        // SAFETY: signal 0 is not sent: tkill(2) only checks whether the thread exists.
        let status = unsafe { libc::syscall(libc::SYS_tkill, thread, 0) };
        let is_there = status == 0 || crate::real::errno() != libc::ESRCH;
        // The second check takes three calls, and most holders unlock before.
        is_there && (self.checks == 1 || !is_dead(thread))
    }

    fn pause(&mut self, _attempt: u32) -> bool {
        std::thread::yield_now();
        true
    }
}

/// Whether a thread is dead but not reaped: its parent may be the one that waits here. Without
/// proc(5) it counts as alive.
fn is_dead(thread: u32) -> bool {
    let (mut path, mut text) = ([0; 32], [0; 64]);
    let opened = {
        let _ = write!(&mut path[..], "/proc/{thread}/stat");
        rustix::fs::open(c_path(&path), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    };
    let Ok(count) = opened.and_then(|file| rustix::io::read(file, &mut text)) else { return false };
    // The name, in parentheses, may hold any byte; it has at most 15 of them.
    let state = text[..count].iter().rposition(|byte| *byte == b')').and_then(|end| text.get(end + 2));
    matches!(state, Some(b'Z' | b'X'))
}

/// The text up to the first zero.
pub(crate) fn c_path(path: &[u8]) -> &CStr {
    CStr::from_bytes_until_nul(path).unwrap_or_default()
}

impl std::ops::Deref for Guard<'_> {
    type Target = Inner;

    #[inline(always)]
    fn deref(&self) -> &Inner {
        // SAFETY: the lock is held while the guard lives, and `inner` is reached by guards only.
        unsafe { &*self.socket.inner.get() }
    }
}

impl std::ops::DerefMut for Guard<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Inner {
        // SAFETY: as for `deref`; there is one guard at a time.
        unsafe { &mut *self.socket.inner.get() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Every record of a process counts: MCL_FUTURE locks them.
    const _: () = assert!(size_of::<Socket>() <= 256);

    #[test]
    fn records_of_many_chunks_are_distinct() {
        const MANY: usize = 4 * CHUNK as usize + 3;
        make().unwrap();
        let take = || (0..MANY).map(|fd| add(fd as i32, false).unwrap()).collect::<Vec<_>>();
        let records: Vec<_> = std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(take));
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let numbers: BTreeSet<u32> = records.iter().map(|(number, _)| *number).collect();
        let places: BTreeSet<usize> =
            records.iter().map(|(_, socket)| std::ptr::from_ref(*socket).addr()).collect();
        assert_eq!((numbers.len(), places.len()), (4 * MANY, 4 * MANY));
        for (number, socket) in records {
            assert!(std::ptr::eq(at(number), socket) && socket.number() == number);
            remove(number);
        }
        // Freed records are used before another chunk is.
        let used = USED.load(Ordering::Relaxed);
        let again: Vec<u32> = take().into_iter().map(|(number, _)| number).collect();
        assert_eq!(USED.load(Ordering::Relaxed), used);
        assert!(again.iter().all(|number| numbers.contains(number)));
        assert!(get(used).is_none() && get(u32::MAX).is_none() && get(used - 1).is_some());
        again.into_iter().for_each(remove);
    }
}
