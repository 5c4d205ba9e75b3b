//! epoll, for where io_uring is forbidden: one system call per operation, and none that
//! is known to be in vain.
//!
//! Everything is edge-triggered. A handle joins the epoll set with its first operation
//! that has to wait and stays in it until it is closed; what an edge told, and what the
//! calls since then told, stands in `HandleEntry::engine_word` (see `interest`).

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
use crate::core::{Core, File, OpKind, WriteState};
use crate::engine::sockets::KernelFiles;
use crate::engine::watch::Watch;
use crate::engine::{Done, Engine, Request, Wait};
use crate::error::CreateError;
use crate::id::{Handle, OpId};
use crate::lwsocket::LwFile;
use crate::op_list::NO_OP;
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

/// How long stalled writes wait until they are tried again.
const STALL: Duration = Duration::from_millis(1);

pub(crate) struct Epoll {
    set: Set,
    waker: Waker,
    events: Vec<Event>,
    /// Those of the events that were fetched and not followed yet.
    unseen: Range<usize>,
    /// Handles that had their share of a turn and were not finished.
    ready: VecDeque<Handle>,
    /// Handles whose held writes wait for something that no edge tells of.
    stalled: Vec<Handle>,
    /// Pieces of the read that is being made; empty in between.
    pieces: Vec<libc::iovec>,
    /// Turns since edges were last asked for.
    unasked: u32,
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
        })
    }

    /// Carries out what was requested, and what that leads to.
    fn run_requests(&mut self, core: &mut Core) {
        self.write_fresh(core);
        while let Some(request) = core.requests.pop_front() {
            match request {
                Request::Start(op) => self.start(core, op),
                Request::Writes(index) => self.write_queued(core, index),
                Request::Cancel(op) => self.cancel(core, op),
                Request::CancelWrites(index) => {
                    if is_held(core, index) {
                        core.settle_writes(index, -libc::ECANCELED, true);
                    }
                }
                Request::Close(index) => self.close(core, index),
                Request::Detach(index) => self.detach(core, index),
            }
        }
    }

    fn start(&mut self, core: &mut Core, op: OpId) {
        let Some(entry) = core.op(op) else { return };
        let index = entry.handle.index;
        let how = match entry.kind {
            OpKind::Accept(_) => return self.start_accept(core, op, index),
            OpKind::Connect(_) => return self.start_connect(core, op, index),
            OpKind::Read { .. } | OpKind::ReadStream { .. } => return self.start_read(core, op, index),
            OpKind::Shutdown(how) => how,
            OpKind::Write { .. } | OpKind::Disconnect(_) | OpKind::Timer { .. } => return,
        };
        let result = self.shut_down(core, index, how);
        core.push_done(Done::plain(op, result));
    }

    fn shut_down(&mut self, core: &mut Core, index: u32, how: std::net::Shutdown) -> i32 {
        core.stats.system_calls += 1;
        match interest::descriptor(core, index) {
            Some(fd) => status(SockRef::from(&fd).shutdown(how)),
            None => -libc::ECANCELED,
        }
    }

    fn cancel(&mut self, core: &mut Core, op: OpId) {
        let Some(entry) = core.op(op) else { return };
        if !entry.started {
            return;
        }
        let index = entry.handle.index;
        if matches!(entry.kind, OpKind::Accept(_) | OpKind::Connect(_)) {
            interest::unlink_waiter(core, index, op.index);
        }
        core.push_done(Done::plain(op, -libc::ECANCELED));
    }

    /// Ends every started operation of the handle.
    fn end_all(&mut self, core: &mut Core, index: u32) {
        while let Some(waiter) = interest::first_waiter(core, index) {
            interest::unlink_waiter(core, index, waiter);
            let op = core.op_id(waiter);
            core.push_done(Done::plain(op, -libc::ECANCELED));
        }
        let read = core.handles.at(index).map_or(NO_OP, |entry| entry.reads.head);
        if core.ops.at(read).is_some_and(|op| op.started) {
            let op = core.op_id(read);
            core.push_done(Done::plain(op, -libc::ECANCELED));
        }
        if is_held(core, index) {
            core.settle_writes(index, -libc::ECANCELED, false);
        }
    }

    fn close(&mut self, core: &mut Core, index: u32) {
        self.end_all(core, index);
        interest::restore_mode(core, index);
        // Closing takes the file out of the epoll set; if another descriptor keeps it
        // alive, its edges carry a stale name and are ignored.
        match core.take_file(index) {
            File::Lw(_) => core.lwsockets.closed_one(),
            File::Fd(_) | File::None => {}
        }
        core.stats.system_calls += 1;
        core.release_if_ended(index);
    }

    fn detach(&mut self, core: &mut Core, index: u32) {
        self.end_all(core, index);
        interest::restore_mode(core, index);
        self.unwatch(core, index);
    }

    /// Goes on with the handles that had their share of an earlier turn.
    fn run_ready(&mut self, core: &mut Core) {
        for _ in 0..self.ready.len() {
            let Some(handle) = self.ready.pop_front() else { return };
            if interest::leave_ready(core, handle) {
                self.run_accepts(core, handle.index);
                self.read_if_ready(core, handle.index);
            }
        }
    }

    /// Follows the edges that are left, or fetches new ones; as many as make a batch.
    fn fetch(&mut self, core: &mut Core, limit: Option<Duration>) -> io::Result<()> {
        if self.unseen.is_empty() {
            core.stats.system_calls += 1;
            self.unasked = 0;
            self.unseen = 0..self.set.wait(&mut self.events, limit)?;
        }
        let enough = core.done.len() + BATCH;
        while core.done.len() < enough
            && let Some(at) = self.unseen.next()
        {
            let event = self.events[at];
            self.follow(core, event);
        }
        self.run_requests(core);
        Ok(())
    }

    fn follow(&mut self, core: &mut Core, event: Event) {
        if event.data() == Handle::NONE.to_bits() {
            core.stats.system_calls += 1;
            self.waker.lower();
            core.woken = true;
            return;
        }
        if let Some(watch) = Watch::from_number(event.data() ^ WATCHES) {
            core.readable.raise(watch);
            return;
        }
        let handle = Handle::from_bits(event.data());
        let Some(edge) = interest::note_edge(core, handle, event.readiness()) else {
            return;
        };
        let index = handle.index;
        if edge.has_waiters {
            if edge.writable {
                self.run_connects(core, index);
            }
            self.run_accepts(core, index);
        }
        self.read_if_ready(core, index);
        if edge.writable {
            self.write_held(core, index);
        }
    }

    /// Whether the channel has something to do or to hand out before it may sleep.
    fn is_busy(&self, core: &Core) -> bool {
        has_results(core) || !self.ready.is_empty() || !self.unseen.is_empty() || !core.requests.is_empty()
    }

    /// Waits on, for the sake of a larger batch, as the latency bound allows.
    fn gather(&mut self, core: &mut Core, bound: LatencyBound, until: Option<Instant>) -> io::Result<()> {
        let mut now = Instant::now();
        let end = until.into_iter().fold(now + bound.delay.min(FAR), Instant::min);
        while !core.done.is_empty()
            && core.done.len() < bound.completions as usize
            && !core.woken
            && now < end
        {
            let more = !self.ready.is_empty() || !self.unseen.is_empty();
            let left = if !more { end - now } else { Duration::ZERO };
            match self.fetch(core, Some(left)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
                outcome => outcome?,
            }
            self.run_ready(core);
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

    fn turn(&mut self, core: &mut Core, wait: Wait) -> io::Result<()> {
        self.run_requests(core);
        if wait == Wait::Flush && (!has_results(core) || self.unasked < UNASKED_MAX) {
            self.unasked += u32::from(has_results(core));
            return Ok(());
        }
        self.run_ready(core);
        if !self.stalled.is_empty() {
            self.retry_stalled(core);
        }
        self.run_requests(core);
        // What was written and closed may have made room for those who wait for it.
        core.fed = 0;
        while core.resume_paused() {
            self.run_requests(core);
            core.fed = 0;
        }
        if has_results(core) && self.ready.is_empty() && self.unasked < UNASKED_MAX {
            self.unasked += 1;
            return Ok(());
        }
        let bound = core.config.latency_bound;
        match wait {
            Wait::For(limit) if !self.is_busy(core) => {
                let limit = match self.stalled.is_empty() {
                    true => limit,
                    false => Some(limit.map_or(STALL, |limit| limit.min(STALL))),
                };
                let until = match (bound, limit) {
                    (Some(_), Some(limit)) => Instant::now().checked_add(limit),
                    _ => None,
                };
                self.fetch(core, limit)?;
                match bound {
                    Some(bound) => self.gather(core, bound, until),
                    None => Ok(()),
                }
            }
            Wait::For(_) | Wait::No | Wait::Flush | Wait::Glance => self.fetch(core, Some(Duration::ZERO)),
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

    fn adopt(&mut self, _core: &mut Core, fd: OwnedFd) -> io::Result<LwFile> {
        Ok(LwFile::Private(fd))
    }

    fn export(&mut self, _core: &mut Core, file: &LwFile) -> io::Result<OwnedFd> {
        match file {
            LwFile::Private(fd) => fd.try_clone(),
            LwFile::Direct(_) | LwFile::Taken => Err(io::Error::from_raw_os_error(libc::EBADF)),
        }
    }

    fn close_dropped(&mut self, _core: &mut Core, _slots: &[u32]) {}

    fn shut(&mut self, core: &mut Core) -> bool {
        // Between calls the kernel holds no memory of ours; only descriptors that nobody
        // was told of are left.
        while let Some(done) = core.done.pop_front() {
            core.discard_accepted(&done);
        }
        true
    }
}

fn has_results(core: &Core) -> bool {
    !core.done.is_empty() || core.woken
}

fn is_held(core: &Core, index: u32) -> bool {
    core.handles.at(index).is_some_and(|entry| entry.write_state == WriteState::Held)
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
