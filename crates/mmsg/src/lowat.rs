//! A low-water mark with a timeout: `SO_RCVLOWAT_TIMEO` of the netdev 0x13 proposal.
//!
//! The kernel keeps the mark (SO_RCVLOWAT). Below it nothing tells of bytes, so the sockets are
//! looked at now and then: what was received by which look tells how long the first unread byte
//! can have waited. When that is the timeout, the mark goes down to 1, which makes the kernel
//! report the socket to whoever polls it, in whatever way (a blocking receive waits for the mark as
//! it was when it began); when what was late has been read, the mark goes up again.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::io;
use std::mem::{self, ManuallyDrop};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sys::mapping::ForkMark;
use sys::message;

#[cfg(test)]
mod tests;

/// How many looks a timeout is divided into: a socket is reported at most this part of its
/// timeout early.
const LOOKS: u32 = 8;

/// The shortest time between two looks at a socket.
const PERIOD_LEAST: Duration = Duration::from_micros(500);

/// A timeout below this one counts as this one: there would be more looks than a thread can make.
const TIMEOUT_LEAST: Duration = Duration::from_millis(1);

/// A timeout above this one counts as this one, which no clock overflows with.
const TIMEOUT_MOST: Duration = Duration::from_secs(1 << 32);

/// Looks that come within this time are made together.
const TOGETHER: Duration = Duration::from_micros(250);

/// Sockets that are taken from the list while nobody else can set a mark.
const AT_ONCE: usize = 32;

/// The thread's turns on a CPU are short, so that they come soon.
const SLICE: Duration = Duration::from_micros(100);

/// TCP sockets that are readable when a number of bytes waits, or when the first of them has
/// waited for a time. It may be used by all threads.
///
/// After a fork it is the parent's alone: in the child marks cannot be set or taken away, [`RcvLowat::expire`] fails,
/// and nothing waits or does anything when it is dropped. The sockets keep their marks, which the parent moves.
pub struct RcvLowat {
    /// Leaked in a forked child, where nobody frees a lock that another thread had.
    shared: ManuallyDrop<Arc<Shared>>,
    thread: Option<JoinHandle<()>>,
    fork_mark: ForkMark,
}

/// Why a mark was not set.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// The kernel heeds the mark for TCP alone, and not while a socket listens; those that are accepted of it
    /// would inherit the mark without the timeout.
    #[error("only TCP sockets that do not listen have a low-water mark that epoll and poll heed")]
    NotTcp,
    /// The mark is 0 or more than 2^31 - 1, or the timeout is 0.
    #[error("a mark is between 1 and 2147483647 bytes, and a timeout is more than 0")]
    Argument,
    /// It belongs to the process that forked this one.
    #[error("the marks belong to the parent process")]
    Forked,
    /// The kernel refuses.
    #[error("the mark cannot be set: {0}")]
    Io(#[from] io::Error),
}

struct Shared {
    /// Held for moments only, and before a socket where both are: looks are made without it.
    state: Mutex<State>,
    alarm: Alarm,
}

/// What tells that something is due.
enum Alarm {
    /// To the program's loop: a timerfd.
    Loop(OwnedFd),
    /// To the thread, which has no descriptor that the program could close under it.
    Thread(Condvar),
}

#[derive(Default)]
struct State {
    sockets: HashMap<RawFd, Arc<Mutex<Socket>>>,
    due: BinaryHeap<Reverse<(Instant, RawFd, u64)>>,
    /// When the alarm goes off, if it is set.
    alarm_at: Option<Instant>,
    /// The thread is to end.
    stop: bool,
    delays: Delays,
    /// Names registrations, so that what is due of an old one means nothing.
    registrations: u64,
}

struct Socket {
    /// 0: it has ended, and nobody moves the mark any more.
    registration: u64,
    /// What the socket is, should its number become another's (SO_COOKIE).
    cookie: u64,
    mark: i32,
    timeout: Duration,
    /// When it is looked at next.
    next: Instant,
    lowered: bool,
    /// To the next look while the mark is down: soon at first, for most programs read at once.
    patience: Duration,
    looks: VecDeque<Look>,
}

/// A socket that is to be looked at.
struct Due {
    fd: RawFd,
    registration: u64,
    socket: Arc<Mutex<Socket>>,
}

/// By this time so many bytes had been received in all; all of them had been read, for 0.
struct Look {
    at: Instant,
    received: u64,
}

impl RcvLowat {
    /// One that the program's own loop runs: when its descriptor ([`Self::timer`]) is readable, call
    /// [`Self::expire`].
    ///
    /// # Errors
    ///
    /// timerfd_create(2), and a page of memory.
    pub fn new() -> io::Result<RcvLowat> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: the call takes no memory of ours.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just gave us this descriptor; nobody else owns it.
        let timer = unsafe { OwnedFd::from_raw_fd(fd) };
        RcvLowat::with(Alarm::Loop(timer))
    }

    /// One that a thread of its own runs.
    ///
    /// # Errors
    ///
    /// A page of memory, and when no thread can be made.
    pub fn in_background() -> io::Result<RcvLowat> {
        let mut lowat = RcvLowat::with(Alarm::Thread(Condvar::new()))?;
        let shared = Arc::clone(&*lowat.shared);
        let thread = std::thread::Builder::new().name("mmsg-rcvlowat".to_owned());
        lowat.thread = Some(thread.spawn(move || shared.run())?);
        Ok(lowat)
    }

    fn with(alarm: Alarm) -> io::Result<RcvLowat> {
        let shared = ManuallyDrop::new(Arc::new(Shared { state: Mutex::default(), alarm }));
        Ok(RcvLowat { shared, thread: None, fork_mark: ForkMark::new()? })
    }

    /// The descriptor that is readable when [`Self::expire`] has something to do. None where a thread does it.
    pub fn timer(&self) -> Option<BorrowedFd<'_>> {
        match &self.shared.alarm {
            Alarm::Loop(timer) => Some(timer.as_fd()),
            Alarm::Thread(_) => None,
        }
    }

    /// From now on the socket is readable when `mark` bytes wait, or when the first unread byte
    /// has waited for `timeout`: then, or up to an eighth of it (or half a millisecond) earlier. While
    /// looks are late, for want of a CPU, they are made rarer, and reports come earlier (docs/mmsg.md says how much).
    /// An end or an error is reported at once, as ever. Setting it again changes both, and the first unread byte has
    /// waited for as long as it has. A timeout of less than a
    /// millisecond counts as one.
    ///
    /// Each look costs some CPU time, for an idle socket, too: with 20 ms 14 % of a CPU for 1000 of them.
    ///
    /// The socket stays the caller's, who may close it at any time; a close while another thread moves the mark takes
    /// effect some microseconds later. Where a duplicate or a child has it, too,
    /// [`Self::clear`] comes first, or the mark stays. It is in one set, and once: of two sets, or by two
    /// descriptors, it has two marks that undo each other.
    ///
    /// # Errors
    ///
    /// See [`SetError`].
    pub fn set(&self, socket: impl AsFd, mark: u32, timeout: Duration) -> Result<(), SetError> {
        self.set_raw(socket.as_fd().as_raw_fd(), mark, timeout)
    }

    /// [`Self::set`] for a number that may be anything.
    ///
    /// # Errors
    ///
    /// See [`SetError`].
    pub fn set_raw(&self, fd: RawFd, mark: u32, timeout: Duration) -> Result<(), SetError> {
        if !self.fork_mark.is_here() {
            return Err(SetError::Forked);
        }
        let mark = i32::try_from(mark).ok().filter(|&mark| mark > 0).ok_or(SetError::Argument)?;
        if timeout.is_zero() {
            return Err(SetError::Argument);
        }
        let timeout = timeout.clamp(TIMEOUT_LEAST, TIMEOUT_MOST);
        if message::protocol(fd)? != libc::IPPROTO_TCP || message::is_listening(fd)? {
            return Err(SetError::NotTcp);
        }
        let cookie = message::cookie(fd)?;
        let mut state = self.shared.lock();
        let now = Instant::now();
        if let Some(before) = state.sockets.get(&fd).map(Arc::clone) {
            let mut socket = lock(&before);
            if socket.cookie == cookie && socket.registration != 0 {
                message::set_low_water_mark(fd, mark)?;
                if let Some(due) = socket.change(mark, timeout, now) {
                    socket.registration = state.register(fd, due);
                }
                return Ok(self.shared.set_alarm(&mut state)?);
            }
            socket.registration = 0;
            state.sockets.remove(&fd);
        }
        message::set_low_water_mark(fd, mark)?;
        let next = now + period_of(timeout);
        let registration = state.register(fd, next);
        let looks = VecDeque::from([Look { at: now, received: 0 }]);
        let patience = PERIOD_LEAST;
        let socket = Socket { registration, cookie, mark, timeout, next, lowered: false, patience, looks };
        state.sockets.insert(fd, Arc::new(Mutex::new(socket)));
        Ok(self.shared.set_alarm(&mut state)?)
    }

    /// The program has read what was reported: when this returns the mark holds again, and not only
    /// from the next look on, half a millisecond later or, for a program that reads late, up to
    /// an eighth of the timeout. A look that saw the bytes before they were read does not lower it
    /// any more. False if the socket has no mark of ours.
    pub fn rearm(&self, socket: impl AsFd) -> bool {
        self.rearm_raw(socket.as_fd().as_raw_fd())
    }

    /// [`Self::rearm`] for a number that may be anything.
    pub fn rearm_raw(&self, fd: RawFd) -> bool {
        let Some(socket) = self.state().and_then(|state| state.sockets.get(&fd).cloned()) else {
            return false;
        };
        let mut socket = lock(&socket);
        // What was due stays due: a look too many does no harm.
        socket.registration != 0 && socket.look(fd, Instant::now(), Duration::ZERO).is_ok()
    }

    /// Ends it for a socket, which is readable from its first byte on again. False if it had no
    /// mark of ours.
    pub fn clear(&self, socket: impl AsFd) -> bool {
        self.clear_raw(socket.as_fd().as_raw_fd())
    }

    /// [`Self::clear`] for a number that may be anything.
    pub fn clear_raw(&self, fd: RawFd) -> bool {
        let Some(socket) = self.state().and_then(|mut state| state.sockets.remove(&fd)) else { return false };
        let mut socket = lock(&socket);
        socket.registration = 0;
        // A number that is another socket's by now had no mark of ours.
        message::set_low_water_mark_of(fd, socket.cookie, 1).is_ok()
    }

    /// Does what is due when it is called. For the program's own loop; it never waits, and looks at no socket twice.
    ///
    /// # Errors
    ///
    /// timerfd_settime(2). In a forked child ECHILD.
    pub fn expire(&self) -> io::Result<()> {
        if !self.fork_mark.is_here() {
            return Err(io::Error::from_raw_os_error(libc::ECHILD));
        }
        self.shared.expire()
    }

    /// How many sockets have a mark.
    pub fn len(&self) -> usize {
        self.state().map_or(0, |state| state.sockets.len())
    }

    /// Whether no socket has a mark.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// None in a forked child: another thread may have had the lock at the fork.
    fn state(&self) -> Option<MutexGuard<'_, State>> {
        self.fork_mark.is_here().then(|| self.shared.lock())
    }
}

impl Drop for RcvLowat {
    fn drop(&mut self) {
        if !self.fork_mark.is_here() {
            // The thread is not there to be joined or detached.
            mem::forget(self.thread.take());
            return;
        }
        if let Some(thread) = self.thread.take() {
            self.shared.lock().stop = true;
            if let Alarm::Thread(alarm) = &self.shared.alarm {
                alarm.notify_one();
            }
            // It does not panic; if it did, its panic was printed.
            let _ = thread.join();
        }
        let fds: Vec<RawFd> = self.shared.lock().sockets.keys().copied().collect();
        fds.into_iter().for_each(|fd| {
            self.clear_raw(fd);
        });
        // SAFETY: nothing uses it afterwards.
        unsafe { ManuallyDrop::drop(&mut self.shared) };
    }
}

impl Shared {
    /// The life of the thread.
    fn run(&self) {
        // Another program that computes then lets this thread run sooner. Linux 6.12; before that it
        // changes nothing, and where it is forbidden the thread waits as others do.
        let _ = sys::scheduling::set_slice(SLICE);
        sys::scheduling::set_timer_slack(Duration::from_nanos(1));
        // Without a descriptor nothing fails.
        while self.wait() && self.expire().is_ok() {}
    }

    /// Until something is due. False: the thread is to end.
    fn wait(&self) -> bool {
        let Alarm::Thread(alarm) = &self.alarm else { return false };
        let mut state = self.lock();
        while !state.stop {
            let next = state.due.peek().map(|Reverse((at, ..))| at.saturating_duration_since(Instant::now()));
            state = match next {
                Some(Duration::ZERO) => return true,
                Some(left) => alarm.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
                None => alarm.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        false
    }

    fn expire(&self) -> io::Result<()> {
        if let Alarm::Loop(timer) = &self.alarm {
            let mut expirations = 0u64;
            // SAFETY: the kernel writes one live integer; nothing to read is no error here.
            unsafe { libc::read(timer.as_raw_fd(), (&raw mut expirations).cast(), 8) };
        }
        self.lock().alarm_at = None;
        // A socket's next look is after this, however long the others take, so this ends.
        let until = Instant::now() + TOGETHER;
        let mut taken = Vec::with_capacity(AT_ONCE);
        let mut looked: Vec<(Due, io::Result<Instant>)> = Vec::with_capacity(AT_ONCE);
        loop {
            let mut state = self.lock();
            for (due, next) in looked.drain(..) {
                match next {
                    Ok(next) => state.due.push(Reverse((next, due.fd, due.registration))),
                    // Closed, or another socket: nothing is left to do for this one.
                    Err(_) => state.remove(&due),
                }
            }
            let now = Instant::now();
            state.take_due(now, until, &mut taken);
            if taken.is_empty() {
                return self.set_alarm(&mut state);
            }
            let delay = state.delays.most();
            drop(state);
            for due in taken.drain(..) {
                let next = match due.socket.try_lock() {
                    Ok(mut socket) if socket.registration == due.registration => {
                        let next = socket.look(due.fd, now, delay);
                        match next {
                            Ok(next) => socket.next = next,
                            Err(_) => socket.registration = 0,
                        }
                        next
                    }
                    Ok(_) => continue,
                    // Whoever has it looks at it, and may have to wait for a CPU with it.
                    Err(_) => Ok(now + PERIOD_LEAST),
                };
                looked.push((due, next));
            }
        }
    }

    /// Sets the alarm to what is due first, unless it is set so.
    fn set_alarm(&self, state: &mut State) -> io::Result<()> {
        let Some(&Reverse((at, ..))) = state.due.peek() else { return Ok(()) };
        if state.alarm_at.is_some_and(|set| set <= at) {
            return Ok(());
        }
        match &self.alarm {
            Alarm::Loop(timer) => set_timer(timer, at)?,
            // It looks again at what is due first.
            Alarm::Thread(alarm) => alarm.notify_one(),
        }
        state.alarm_at = Some(at);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn set_timer(timer: &OwnedFd, at: Instant) -> io::Result<()> {
    // Zero would disarm it.
    let delay = at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
    let value =
        libc::timespec { tv_sec: delay.as_secs() as libc::time_t, tv_nsec: delay.subsec_nanos().into() };
    let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let setting = libc::itimerspec { it_interval: never, it_value: value };
    // SAFETY: the kernel reads one live setting.
    let set =
        unsafe { libc::timerfd_settime(timer.as_raw_fd(), 0, &raw const setting, std::ptr::null_mut()) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl State {
    /// A new name for what is due of a socket; what was due before means nothing any more.
    fn register(&mut self, fd: RawFd, due: Instant) -> u64 {
        self.registrations += 1;
        self.due.push(Reverse((due, fd, self.registrations)));
        self.registrations
    }

    /// Takes some of what is due by a time, the oldest first.
    fn take_due(&mut self, now: Instant, until: Instant, taken: &mut Vec<Due>) {
        if let Some(Reverse((at, ..))) = self.due.peek() {
            self.delays.note(now, now.saturating_duration_since(*at));
        }
        while taken.len() < AT_ONCE
            && let Some(&Reverse((at, fd, registration))) = self.due.peek()
            && at <= until
        {
            self.due.pop();
            if let Some(socket) = self.sockets.get(&fd) {
                taken.push(Due { fd, registration, socket: Arc::clone(socket) });
            }
        }
    }

    /// Forgets a socket, unless its number has another mark by now.
    fn remove(&mut self, due: &Due) {
        if self.sockets.get(&due.fd).is_some_and(|socket| Arc::ptr_eq(socket, &due.socket)) {
            self.sockets.remove(&due.fd);
        }
    }
}

/// How many times rarer looks are made when they are late: a thread that wants less of a CPU gets it sooner.
fn rarer(delay: Duration) -> u32 {
    match delay.as_millis() {
        0 => 1,
        1..4 => 2,
        _ => 4,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The longest delay of looks in the last second or two: what is reported so much earlier is not late
/// when it happens again.
#[derive(Default)]
struct Delays {
    since: Option<Instant>,
    most: Duration,
    before: Duration,
}

impl Delays {
    fn note(&mut self, now: Instant, delay: Duration) {
        if self.since.is_none_or(|since| now > since + Duration::from_secs(1)) {
            (self.since, self.before) = (Some(now), std::mem::take(&mut self.most));
        }
        self.most = self.most.max(delay);
    }

    fn most(&self) -> Duration {
        self.most.max(self.before)
    }
}

/// Between two looks at a socket.
fn period_of(timeout: Duration) -> Duration {
    (timeout / LOOKS).max(PERIOD_LEAST)
}

impl Socket {
    /// Another mark or timeout, from now on; the first unread byte has waited for as long as it has. Tells when to
    /// look, if that is before the next look.
    fn change(&mut self, mark: i32, timeout: Duration, now: Instant) -> Option<Instant> {
        (self.mark, self.timeout) = (mark, timeout);
        (self.lowered, self.patience) = (false, PERIOD_LEAST);
        let came = self.looks.front().map_or(now, |look| look.at);
        let due = (now + period_of(timeout)).min(came + timeout).max(now);
        if due >= self.next {
            return None;
        }
        self.next = due;
        Some(due)
    }

    /// Looks at the socket, lowers or raises its mark, and tells when to look again. The next look may
    /// be late by `delay`, so a report comes that much earlier, up to the time between two looks.
    fn look(&mut self, fd: RawFd, now: Instant, delay: Duration) -> io::Result<Instant> {
        let period = period_of(self.timeout);
        let next = now + (period * rarer(delay)).min(self.timeout / 2).max(period);
        // Asked for first where it is needed: bytes that come between make the first unread one seem
        // older, not younger.
        let had_bytes = self.looks.len() > 1;
        let mut received = if had_bytes { message::received(fd)? } else { 0 };
        let mut unread = message::unread(fd)?;
        if unread == 0 {
            self.looks.clear();
            self.looks.push_back(Look { at: now, received: 0 });
            self.lower(fd, false)?;
            return Ok(next);
        }
        if !had_bytes {
            received = message::received(fd)?;
            unread = message::unread(fd)?;
        }
        let read = received.saturating_sub(unread as u64);
        // The first unread byte came after the last look by which everything received is read now.
        while self.looks.get(1).is_some_and(|look| look.received <= read) {
            self.looks.pop_front();
        }
        let came = self.looks.front().map_or(now, |look| look.at);
        let deadline = came + self.timeout - delay.min(period);
        self.looks.push_back(Look { at: now, received });
        self.lower(fd, now + TOGETHER >= deadline)?;
        if !self.lowered {
            return Ok(next.min(deadline));
        }
        let next = now + self.patience;
        self.patience = (2 * self.patience).min(period);
        Ok(next)
    }

    fn lower(&mut self, fd: RawFd, lowered: bool) -> io::Result<()> {
        if self.lowered == lowered {
            return Ok(());
        }
        message::set_low_water_mark_of(fd, self.cookie, if lowered { 1 } else { self.mark })?;
        self.lowered = lowered;
        self.patience = PERIOD_LEAST;
        Ok(())
    }
}
