//! Closes the descriptors that clients sent. The close(2) of the last descriptor of a
//! socket takes as long as its SO_LINGER says, and that of a file as long as its file
//! system does. Threads that nothing waits for do it, some for each user: a user can
//! delay only the closes of its own descriptors.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sys::eventfd;

/// Unclosed descriptors of a user at which the monitor stops reading from its programs.
const MOST_UNCLOSED: usize = 256;
/// Threads for one user.
const MOST_THREADS: usize = 16;
/// A close that takes longer gets another thread for those that wait behind it.
const LATE: Duration = Duration::from_millis(10);
/// A thread with nothing to close ends after this.
const IDLE: Duration = Duration::from_secs(1);
const STACK: usize = 64 << 10;

/// The closing threads of all users.
pub(crate) struct Closers {
    users: HashMap<u32, Arc<Closer>>,
    room: Arc<OwnedFd>,
}

/// Those of one user.
#[derive(Debug)]
pub(crate) struct Closer {
    uid: u32,
    state: Mutex<State>,
    work: Condvar,
    /// An eventfd, raised when there is room again, and when a close that is waited for is done.
    room: Arc<OwnedFd>,
}

/// Whether a descriptor is closed by now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Closed(Arc<AtomicBool>);

impl Closed {
    pub(crate) fn is_done(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

#[derive(Debug)]
struct State {
    /// Each with the flag that its close sets.
    queue: VecDeque<(OwnedFd, Option<Closed>)>,
    threads: usize,
    idle: usize,
    /// Calls of close(2) under way.
    closing: usize,
    /// Descriptors closed so far, and as many as at the last progress seen, and its time.
    closed: u64,
    progress: (u64, Instant),
    /// The monitor waits for room.
    awaited: bool,
}

impl State {
    fn unclosed(&self) -> usize {
        self.queue.len() + self.closing
    }
}

impl Closers {
    pub(crate) fn new() -> io::Result<Closers> {
        Ok(Closers { users: HashMap::new(), room: Arc::new(eventfd::create()?) })
    }

    /// Readable once a user that was full has room again, or a descriptor is closed whose close is waited for.
    pub(crate) fn room(&self) -> BorrowedFd<'_> {
        self.room.as_fd()
    }

    pub(crate) fn of(&mut self, uid: u32) -> Arc<Closer> {
        let closer = self.users.entry(uid).or_insert_with(|| Closer::new(uid, self.room.clone()));
        closer.clone()
    }

    /// Starts a thread for each user whose closes make no progress. Returns when to call
    /// again; `None`: nothing waits.
    pub(crate) fn tend(&mut self, now: Instant) -> Option<Instant> {
        self.users.retain(|_, closer| Arc::strong_count(closer) > 1 || !closer.lock().queue.is_empty());
        self.users.values().filter_map(|closer| closer.tend(now)).min()
    }
}

impl Closer {
    fn new(uid: u32, room: Arc<OwnedFd>) -> Arc<Closer> {
        let state = State {
            queue: VecDeque::new(),
            threads: 0,
            idle: 0,
            closing: 0,
            closed: 0,
            progress: (0, Instant::now()),
            awaited: false,
        };
        Arc::new(Closer { uid, state: Mutex::new(state), work: Condvar::new(), room })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No panic leaves the counts untrue.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True while so many descriptors are unclosed that no more may be read from this user;
    /// [`Closers::room`] reports a change.
    pub(crate) fn is_full(&self) -> bool {
        let mut state = self.lock();
        let full = state.unclosed() >= MOST_UNCLOSED;
        state.awaited |= full;
        full
    }

    fn close(self: &Arc<Closer>, fd: OwnedFd, awaited: Option<Closed>) {
        let mut state = self.lock();
        if state.queue.is_empty() {
            state.progress = (state.closed, Instant::now());
        }
        state.queue.push_back((fd, awaited));
        if state.idle > 0 {
            self.work.notify_one();
        } else if state.threads == 0 {
            self.start_thread(&mut state);
        }
    }

    fn tend(self: &Arc<Closer>, now: Instant) -> Option<Instant> {
        let mut state = self.lock();
        if state.queue.is_empty() {
            return None;
        }
        if state.closed != state.progress.0 {
            state.progress = (state.closed, now);
        } else if now.saturating_duration_since(state.progress.1) >= LATE {
            state.progress.1 = now;
            if state.threads < MOST_THREADS {
                self.start_thread(&mut state);
                if state.threads == MOST_THREADS {
                    tracing::warn!(
                        uid = self.uid,
                        "closing the descriptors that this user's programs sent takes long; their other connections stay on TCP until that is done"
                    );
                }
            }
        }
        Some(state.progress.1 + LATE)
    }

    fn start_thread(self: &Arc<Closer>, state: &mut State) {
        let closer = self.clone();
        let builder = std::thread::Builder::new().name("megapipe-close".into()).stack_size(STACK);
        match builder.spawn(move || closer.run()) {
            Ok(_) => state.threads += 1,
            Err(error) => {
                tracing::warn!(%error, "no thread can be started to close descriptors; they stay open for now")
            }
        }
    }

    fn run(&self) {
        let mut state = self.lock();
        loop {
            if let Some((fd, awaited)) = state.queue.pop_front() {
                state.closing += 1;
                drop(state);
                drop(fd);
                if let Some(Closed(closed)) = awaited {
                    closed.store(true, Ordering::Release);
                    eventfd::raise(self.room.as_fd());
                }
                state = self.lock();
                state.closing -= 1;
                state.closed += 1;
                if state.awaited && state.unclosed() <= MOST_UNCLOSED / 2 {
                    state.awaited = false;
                    eventfd::raise(self.room.as_fd());
                }
                continue;
            }
            state.idle += 1;
            let (woken, limit) = self.work.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if limit.timed_out() && state.queue.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

/// A descriptor whose close may wait: a client sent it, or it is connected to a client, and what
/// the client sent last is closed with it. Dropping it hands it to its user's threads.
#[derive(Debug)]
pub(crate) struct Foreign {
    /// `None` only while it is closed or dropped.
    fd: Option<OwnedFd>,
    closer: Arc<Closer>,
}

impl Foreign {
    pub(crate) fn new(fd: OwnedFd, closer: &Arc<Closer>) -> Foreign {
        Foreign { fd: Some(fd), closer: closer.clone() }
    }

    pub(crate) fn closer(&self) -> &Arc<Closer> {
        &self.closer
    }

    /// Closes it; [`Closers::room`] reports when that is done.
    pub(crate) fn close(mut self) -> Closed {
        let closed = Closed::default();
        if let Some(fd) = self.fd.take() {
            self.closer.close(fd, Some(closed.clone()));
        }
        closed
    }
}

impl AsFd for Foreign {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("only its end takes it").as_fd()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            self.closer.close(fd, None);
        }
    }
}
