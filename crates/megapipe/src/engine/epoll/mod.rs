//! epoll, for where io_uring is forbidden: one system call per operation, and none that
//! would surely find nothing.
//!
//! Everything is edge-triggered. A handle joins the epoll set with its first operation
//! that has to wait and stays in it until it is closed; `HandleEntry::engine_word` has
//! what edges, and the calls since then, have shown (see `interest`).

mod accepts;
mod calls;
mod interest;
mod reads;
mod writes;

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use socket2::SockRef;
use sys::epoll::{Event, Set};

use crate::config::{Config, EngineKind, LatencyBound};
use crate::core::OpKind;
use crate::engine::polls::Polls;
use crate::engine::sockets::KernelFiles;
use crate::engine::view::{FileView, View};
use crate::engine::watch::Watch;
use crate::engine::{Done, Engine, Request, Wait};
use crate::error::CreateError;
use crate::id::{Handle, OpId};
use crate::lwsocket::LwFile;
use crate::readiness::Poll;
use crate::timer::FAR;
use crate::waker::Waker;

/// Edges fetched at once.
const EVENTS: usize = 512;

/// Results that a turn hands out at once: few enough that a socket's state is still in
/// the caches when the answer is sent.
const BATCH: usize = 16;

/// Turns in a row that may hand out what is done without asking for edges: more would
/// let a few busy handles keep the others from being seen.
const UNASKED_MAX: u32 = 8;

/// What events of watched descriptors carry, beside their number: no handle's name.
const WATCHES: u64 = Handle::NONE.to_bits() ^ 1 << 63;

/// With a handle's name, what events of its doorbell carry: no index is so large (`Config::handles_max`).
const DOORBELL: u64 = 1 << 31;

/// How long stalled writes wait until they are tried again.
const STALL: Duration = Duration::from_millis(1);

pub(crate) struct Epoll {
    set: Set,
    waker: Waker,
    events: Vec<Event>,
    /// The fetched events that are still to be followed.
    unseen: Range<usize>,
    /// Handles that had their share of a turn and were not finished.
    ready: VecDeque<Handle>,
    /// Handles whose held writes wait for something that no edge reports.
    stalled: Vec<Handle>,
    /// Pieces of the read that is being made; empty in between.
    pieces: Vec<libc::iovec>,
    /// Turns since edges were last asked for.
    unasked: u32,
    polls: Polls,
}

impl Epoll {
    pub(crate) fn new(_config: &Config) -> Result<Epoll, CreateError> {
        let refused = |what| move |cause| CreateError::Resources { what, cause };
        let set = Set::new().map_err(refused("an epoll descriptor"))?;
        let waker = Waker::new().map_err(refused("an eventfd to wake the channel"))?;
        set.add(waker.descriptor(), sys::epoll::IN, Handle::NONE.to_bits())
            .map_err(refused("a place in the epoll set"))?;
        Ok(Epoll {
            set,
            waker,
            events: vec![Event::NONE; EVENTS],
            unseen: 0..0,
            ready: VecDeque::new(),
            stalled: Vec::new(),
            pieces: Vec::new(),
            unasked: 0,
            polls: Polls::default(),
        })
    }

    /// Carries out what was requested, and what that leads to.
    fn run_requests(&mut self, view: &mut View<'_>) {
        self.write_fresh(view);
        while let Some(request) = view.next_request() {
            match request {
                Request::Start(op) => self.start(view, op),
                Request::Writes(index) => self.write_queued(view, index),
                Request::Cancel(op) => self.cancel(view, op),
                Request::CancelWrites(index) => {
                    if is_held(view, index) {
                        view.report_write(index, -libc::ECANCELED, true);
                    }
                }
                Request::Close(index) => self.close(view, index),
                Request::Detach(index) => self.detach(view, index),
            }
        }
    }

    fn start(&mut self, view: &mut View<'_>, op: OpId) {
        // An operation whose cancel went ahead has ended.
        let Some(entry) = view.op(op).filter(|entry| entry.started) else { return };
        let index = entry.handle.index;
        let how = match entry.kind {
            OpKind::Accept(_) => return self.start_accept(view, op, index),
            OpKind::Connect(_) => return self.start_connect(view, op, index),
            OpKind::Read { .. } | OpKind::ReadStream { .. } => return self.start_read(view, op, index),
            OpKind::Shutdown(how) => how,
            OpKind::Poll(poll) => return self.start_poll(view, op, poll),
            OpKind::Write { .. } | OpKind::Disconnect(_) | OpKind::Timer { .. } => return,
        };
        let result = self.shut_down(view, index, how);
        view.push_done(Done::plain(op, result));
    }

    fn start_poll(&mut self, view: &mut View<'_>, op: OpId, poll: Poll) {
        // If it was cancelled, the caller may have closed the descriptor by now.
        if view.op(op).is_some_and(|op| op.cancelled) {
            return view.push_done(Done::plain(op, -libc::ECANCELED));
        }
        if self.polls.set().is_none() {
            let watch = WATCHES ^ u64::from(Watch::POLLS.number());
            if let Err(error) = self.polls.make_set().and_then(|set| self.set.add(set, sys::epoll::IN, watch))
            {
                return view.push_done(Done::plain(op, -errno(&error)));
            }
        }
        self.polls.start(view, op, poll);
    }

    fn shut_down(&mut self, view: &mut View<'_>, index: u32, how: std::net::Shutdown) -> i32 {
        view.count_calls(1);
        match interest::descriptor(view, index) {
            Some(fd) => status(SockRef::from(&fd).shutdown(how)),
            None => -libc::ECANCELED,
        }
    }

    fn cancel(&mut self, view: &mut View<'_>, op: OpId) {
        let Some(entry) = view.op(op) else { return };
        if !entry.started {
            return;
        }
        let index = entry.handle.index;
        match entry.kind {
            OpKind::Poll(poll) => return self.polls.cancel(view, op, poll),
            OpKind::Accept(_) | OpKind::Connect(_) => interest::unlink_waiter(view, index, op.index),
            _ => {}
        }
        view.push_done(Done::plain(op, -libc::ECANCELED));
    }

    /// Ends every started operation of the handle.
    fn end_all(&mut self, view: &mut View<'_>, index: u32) {
        while let Some(waiter) = interest::first_waiter(view, index) {
            interest::unlink_waiter(view, index, waiter);
            let op = view.op_id(waiter);
            view.push_done(Done::plain(op, -libc::ECANCELED));
        }
        if let Some(op) = view.started_read(index) {
            view.push_done(Done::plain(op, -libc::ECANCELED));
        }
        if is_held(view, index) {
            view.report_write(index, -libc::ECANCELED, false);
        }
    }

    fn close(&mut self, view: &mut View<'_>, index: u32) {
        self.end_all(view, index);
        interest::restore_mode(view, index);
        // Closing takes the file out of the epoll set; if another descriptor keeps it
        // alive, its edges carry a stale name and are ignored.
        drop(view.take_file(index));
        view.count_calls(1);
    }

    fn detach(&mut self, view: &mut View<'_>, index: u32) {
        self.end_all(view, index);
        interest::restore_mode(view, index);
        self.unwatch_file(view, index);
    }

    /// Goes on with the handles that had their share of an earlier turn.
    fn run_ready(&mut self, view: &mut View<'_>) {
        for _ in 0..self.ready.len() {
            let Some(handle) = self.ready.pop_front() else { return };
            if interest::leave_ready(view, handle) {
                self.run_accepts(view, handle.index);
                self.read_if_ready(view, handle.index);
            }
        }
    }

    /// Follows the edges that are left, or fetches new ones; as many as make a batch.
    fn fetch(&mut self, view: &mut View<'_>, limit: Option<Duration>) -> io::Result<()> {
        if self.unseen.is_empty() {
            view.count_calls(1);
            self.unasked = 0;
            self.unseen = 0..self.set.wait(&mut self.events, limit)?;
        }
        let enough = view.results() + BATCH;
        while view.results() < enough
            && let Some(at) = self.unseen.next()
        {
            let event = self.events[at];
            self.follow(view, event);
        }
        self.run_requests(view);
        Ok(())
    }

    fn follow(&mut self, view: &mut View<'_>, event: Event) {
        if event.data() == Handle::NONE.to_bits() {
            view.count_calls(1);
            self.waker.lower();
            view.wake();
            return;
        }
        if let Some(watch) = Watch::from_number(event.data() ^ WATCHES) {
            match watch {
                Watch::POLLS => self.polls.run(view),
                watch => view.raise(watch),
            }
            return;
        }
        if event.data() & DOORBELL != 0 {
            view.woken_by_doorbell(Handle::from_bits(event.data() ^ DOORBELL));
            return;
        }
        let handle = Handle::from_bits(event.data());
        let Some(edge) = interest::note_edge(view, handle, event.readiness()) else {
            return;
        };
        let index = handle.index;
        if edge.has_waiters {
            if edge.writable {
                self.run_connects(view, index);
            }
            self.run_accepts(view, index);
        }
        self.read_if_ready(view, index);
        if edge.writable {
            self.write_held(view, index);
        }
    }

    /// Whether the channel has something to do or to hand out before it may sleep.
    fn is_busy(&self, view: &View<'_>) -> bool {
        view.has_results() || !self.ready.is_empty() || !self.unseen.is_empty() || view.has_requests()
    }

    /// Waits on, for the sake of a larger batch, as the latency bound allows.
    fn gather(&mut self, view: &mut View<'_>, bound: LatencyBound, until: Option<Instant>) -> io::Result<()> {
        let mut now = Instant::now();
        let end = until.into_iter().fold(now + bound.delay.min(FAR), Instant::min);
        while view.results() > 0
            && view.results() < bound.completions as usize
            && !view.was_woken()
            && now < end
        {
            let more = !self.ready.is_empty() || !self.unseen.is_empty();
            let left = if !more { end - now } else { Duration::ZERO };
            match self.fetch(view, Some(left)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
                outcome => outcome?,
            }
            self.run_ready(view);
            now = Instant::now();
        }
        Ok(())
    }
}

impl KernelFiles for Epoll {}

impl Engine for Epoll {
    fn kind(&self) -> EngineKind {
        EngineKind::Epoll
    }

    fn turn(&mut self, view: &mut View<'_>, wait: Wait) -> io::Result<()> {
        self.run_requests(view);
        if wait == Wait::Flush && (!view.has_results() || self.unasked < UNASKED_MAX) {
            self.unasked += u32::from(view.has_results());
            return Ok(());
        }
        self.run_ready(view);
        if !self.stalled.is_empty() {
            self.retry_stalled(view);
        }
        self.run_requests(view);
        // Writes and closes may have made room that operations wait for.
        view.all_tried();
        while view.resume() {
            self.run_requests(view);
            view.all_tried();
        }
        if view.has_results() && self.ready.is_empty() && self.unasked < UNASKED_MAX {
            self.unasked += 1;
            return Ok(());
        }
        let bound = view.latency_bound();
        match wait {
            Wait::For(limit) if !self.is_busy(view) => {
                let limit = match self.stalled.is_empty() {
                    true => limit,
                    false => Some(limit.map_or(STALL, |limit| limit.min(STALL))),
                };
                let until = match (bound, limit) {
                    (Some(_), Some(limit)) => Instant::now().checked_add(limit),
                    _ => None,
                };
                self.fetch(view, limit)?;
                match bound {
                    Some(bound) => self.gather(view, bound, until),
                    None => Ok(()),
                }
            }
            Wait::For(_) | Wait::No | Wait::Flush | Wait::Glance => self.fetch(view, Some(Duration::ZERO)),
        }
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn watch(&mut self, fd: BorrowedFd<'_>, watch: Watch) -> io::Result<()> {
        // Edge-triggered: what has come is read to its end each time.
        match self.set.add(fd, sys::epoll::IN | sys::epoll::EDGES, WATCHES ^ u64::from(watch.number())) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
            outcome => outcome,
        }
    }

    fn watch_again(&mut self, _fd: BorrowedFd<'_>, _watch: Watch) -> io::Result<()> {
        Ok(())
    }

    fn watch_doorbell(&mut self, view: &mut View<'_>, fd: BorrowedFd<'_>, handle: Handle) -> io::Result<()> {
        view.count_calls(1);
        self.set.add(fd, sys::epoll::IN | sys::epoll::EDGES, DOORBELL | handle.to_bits())
    }

    fn adopt(&mut self, _view: &mut View<'_>, fd: OwnedFd) -> io::Result<LwFile> {
        Ok(LwFile::Private(fd))
    }

    fn export(&mut self, _view: &mut View<'_>, file: &LwFile) -> io::Result<OwnedFd> {
        match file {
            LwFile::Private(fd) => fd.try_clone(),
            LwFile::Direct(_) | LwFile::Stack(_) | LwFile::Taken => {
                Err(io::Error::from_raw_os_error(libc::EBADF))
            }
        }
    }

    fn close_dropped(&mut self, _view: &mut View<'_>, _slots: &[u32]) {}

    fn shut(&mut self, view: &mut View<'_>) -> bool {
        // Between calls the kernel has no memory of ours; only descriptors that were not
        // delivered are left.
        view.drop_results();
        true
    }
}

fn is_held(view: &View<'_>, index: u32) -> bool {
    view.file(index).is_some_and(FileView::is_write_held)
}

/// A result as [`Done`] has it.
fn status(result: io::Result<()>) -> i32 {
    match result {
        Ok(()) => 0,
        Err(error) => -errno(&error),
    }
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}
