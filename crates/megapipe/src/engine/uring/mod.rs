//! The io_uring engine: one ring per channel, one `io_uring_enter` per turn.
//!
//! Sends are made not to wait (MSG_DONTWAIT) and to stay silent on success
//! (IOSQE_CQE_SKIP_SUCCESS). Such a request is over when the enter that submitted it
//! returns: no completion means all bytes were accepted, and one that failed or fell short
//! says so. So a turn may submit answers and sleep for the next requests in one call.
//! A full completion queue makes the kernel keep completions back: then the outcome is
//! known once it has none left.
//! Only a send that met a full socket buffer is submitted again as one that waits.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use sys::capabilities::Capabilities;
use sys::uring::squeue::Flags;
use sys::uring::{Ring, Sleep, cqueue};

use crate::config::EngineKind;
use crate::core::{File, Op, OpKind};
use crate::engine::polls::Polls;
use crate::engine::sockets::KernelFiles;
use crate::engine::view::View;
use crate::engine::watch::Watch;
use crate::engine::{self, Done, Engine, Request, Wait};
use crate::id::Handle;
use crate::lwsocket::LwFile;
use crate::waker::Waker;
use crate::write::Fresh;

use self::requests::Requests;
use self::stock::Stock;
use self::token::Token;

mod requests;
mod setup;
mod shutdowns;
mod stock;
mod token;

pub(crate) struct Uring {
    // Dropped in this order: the ring ends before what it points to.
    ring: Ring,
    stock: Stock,
    requests: Requests,
    waker: Waker,
    capabilities: &'static Capabilities,
    /// Operations and held sends whose last completion is still to come.
    pending: u64,
    /// Polls of watched descriptors and doorbells that the kernel has: they keep the files open.
    watched: u64,
    /// Handles whose doorbells' polls have ended, as those may whose completion found no room.
    unwatched: Vec<Handle>,
    /// Shutdowns under way; see `shutdowns`.
    shutdowns: u32,
    /// Handles of accepts that were cancelled; see [`Self::wake_others`].
    cancelled_accepts: Vec<Handle>,
    /// Polls that the ring reports unasked; see [`crate::readiness::Poll::through_set`].
    polls: Polls,
    /// The set of those has reports.
    polls_ready: bool,
    direct: bool,
    /// The answer of a control request that is being waited for.
    control: Option<i32>,
    waker_armed: bool,
    /// Completions consumed so far.
    reaped: u64,
}

/// A send of this batch.
struct BatchSend {
    of: SendOf,
    bytes: usize,
    /// The result of its completion, if there was one.
    result: Option<i32>,
}

enum SendOf {
    Fresh(Fresh),
    /// Of the queue of the handle at this index.
    Queue(u32),
}

impl Uring {
    /// Turns requests into submissions until there are none left. Submits in between when
    /// the ring or the batch's memory is full. Returns whether the outcome of the batch
    /// must be handed out before sleeping.
    fn take_requests(&mut self, view: &mut View<'_>) -> io::Result<bool> {
        let mut urgent = self.take_fresh(view)?;
        let mut room = self.ring.room();
        // Taken only when there is room: an enter that fails drops none.
        while view.has_requests() {
            room = self.make_room(view, room)?;
            if let Some(request) = view.next_request() {
                urgent |= self.take_request(view, request);
            }
        }
        Ok(urgent)
    }

    fn take_fresh(&mut self, view: &mut View<'_>) -> io::Result<bool> {
        let mut urgent = false;
        let mut room = self.ring.room();
        while view.has_fresh() {
            room = self.make_room(view, room)?;
            if let Some((send, waited_for)) = view.next_fresh() {
                urgent |= waited_for;
                self.send_fresh(view, send);
            }
        }
        Ok(urgent)
    }

    /// Makes room for one request, in the ring and in the batch's memory; `room` is what
    /// the ring had at least. Returns what it has at least after that request.
    #[inline]
    fn make_room(&mut self, view: &mut View<'_>, mut room: usize) -> io::Result<usize> {
        if room < requests::PER_REQUEST || self.requests.is_full() {
            self.submit(view)?;
            room = self.ring.room();
        }
        Ok(room - requests::PER_REQUEST)
    }

    fn take_request(&mut self, view: &mut View<'_>, request: Request) -> bool {
        let mut urgent = false;
        match request {
            Request::Start(op) => {
                self.pending += 1;
                self.start(view, op);
            }
            Request::Writes(handle) => urgent = self.start_writes(view, handle),
            Request::Cancel(op) => self.cancel_op(view, op),
            Request::CancelWrites(handle) => {
                self.cancel_writes(view, handle);
            }
            Request::Close(handle) if shutdowns::postpone_close(view, handle) => {}
            Request::Close(handle) => {
                self.finish_accept(view, handle);
                // What is pending holds the file open, so that goes first, in one chain that
                // a failure does not break (a broken one would leak the slot in silence).
                self.cancel_pending(view, handle, Flags::IO_HARDLINK);
                match view.take_file(handle) {
                    File::Lw(LwFile::Direct(slot)) => self.close_slot(slot),
                    File::Fd(fd) | File::Lw(LwFile::Private(fd)) => self.close_fd(fd),
                    File::None | File::Lw(LwFile::Stack(_) | LwFile::Taken) => {}
                }
            }
            Request::Detach(handle) => {
                self.finish_shutdowns(view, handle);
                self.cancel_pending(view, handle, Flags::empty());
            }
        }
        urgent
    }

    /// Submits what is queued and takes the completions of that. It does not ask for events, which
    /// would run the task work of accepts whose cancel is still to be submitted.
    fn submit(&mut self, view: &mut View<'_>) -> io::Result<()> {
        view.count_calls(1);
        let submitted = self.ring.submit();
        self.reap(view);
        if submitted.is_err() || !self.outcome_is_known() {
            self.enter(view, Sleep::No)?;
        }
        self.settle_batch(view);
        Ok(())
    }

    /// One enter; repeated while the kernel, short of memory or completion space, has not
    /// taken everything or keeps completions back.
    fn enter(&mut self, view: &mut View<'_>, sleep: Sleep) -> io::Result<()> {
        self.enter_here(view, sleep)
    }

    /// [`Self::enter`], inlined: see `Channel::wait`.
    #[inline(always)]
    fn enter_here(&mut self, view: &mut View<'_>, sleep: Sleep) -> io::Result<()> {
        match self.enter_once(view, sleep) {
            Ok(()) if self.outcome_is_known() => Ok(()),
            entered => self.enter_again(view, entered),
        }
    }

    #[inline(always)]
    fn enter_once(&mut self, view: &mut View<'_>, sleep: Sleep) -> io::Result<()> {
        view.count_calls(1);
        let entered = self.ring.enter(sleep);
        self.reap(view);
        entered
    }

    /// The repetition ends: it starts no operation and provides no buffer, so each pending
    /// operation has at most one completion more for a full queue, its last. For the same
    /// reason the results grow by no more than what is pending, stocked or to be accepted.
    #[cold]
    fn enter_again(&mut self, view: &mut View<'_>, entered: io::Result<()>) -> io::Result<()> {
        const TRIES: u32 = 1000;
        let mut entered = entered;
        for _ in 0..TRIES {
            if let Err(error) = entered {
                match error.raw_os_error() {
                    // Completions had to be consumed first; now there is room.
                    Some(libc::EBUSY | libc::EAGAIN) => {}
                    Some(libc::EINTR) if !self.outcome_is_known() => {}
                    _ => return Err(error),
                }
            }
            if self.outcome_is_known() {
                return Ok(());
            }
            entered = self.enter_once(view, Sleep::No);
        }
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// Whether every send of the batch was submitted, and every completion of one was seen.
    #[inline]
    fn outcome_is_known(&mut self) -> bool {
        self.ring.queued() == 0 && (self.requests.batch.is_empty() || !self.ring.has_overflow())
    }

    /// An enter that may sleep. One that submitted something does not report a signal
    /// that ended its sleep: an early return without completions shows it.
    #[inline(always)]
    fn sleep(&mut self, view: &mut View<'_>, sleep: Sleep, timeout: Option<Duration>) -> io::Result<()> {
        let before = self.reaped;
        let submits = self.ring.queued() > 0;
        let end = timeout.filter(|_| submits).and_then(|limit| Instant::now().checked_add(limit));
        self.enter_here(view, sleep)?;
        if submits && self.reaped == before && end.is_none_or(|end| Instant::now() < end) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        Ok(())
    }

    fn reap(&mut self, view: &mut View<'_>) {
        let Uring {
            ring,
            stock,
            requests,
            waker,
            capabilities,
            pending,
            watched,
            unwatched,
            shutdowns,
            cancelled_accepts,
            polls_ready,
            control,
            waker_armed,
            reaped,
            ..
        } = self;
        ring.reap(|user_data, result, flags| {
            *reaped += 1;
            // Signals interrupt no request. A cancel interrupts one that a thread of the kernel works on: Linux 6.1 gives
            // it a send that had to wait for room twice.
            let result = if result == -libc::EINTR { -libc::ECANCELED } else { result };
            match Token::from_bits(user_data) {
                Token::Op { index, generation } => {
                    let more = cqueue::more(flags);
                    let op = view.op_id(index);
                    debug_assert_eq!(op.generation & token::GENERATION_MASK, generation);
                    let mut done = Done::plain(op, result);
                    if more {
                        done.flags |= Done::MORE;
                    } else {
                        *pending -= 1;
                    }
                    if let Some(buffer) = cqueue::buffer_select(flags) {
                        done.buffer = buffer;
                        done.flags |= Done::BUFFER;
                        view.unstock();
                    } else if result == -libc::ENOBUFS {
                        stock.ran_out(view);
                    }
                    if capabilities.accept_reports_more && cqueue::sock_nonempty(flags) {
                        done.flags |= Done::PENDING;
                    }
                    requests.finish_read(view, &mut done);
                    if result == -libc::ECANCELED
                        && let Some(Op { kind: OpKind::Accept(_), handle, .. }) = view.op(op)
                    {
                        cancelled_accepts.push(*handle);
                    }
                    if *shutdowns > 0 && !more {
                        shutdowns::note_end(view, index, shutdowns);
                    }
                    view.push_done(done);
                }
                Token::Batch { place, number } => match requests.batch.get_mut(place as usize) {
                    Some(send) if number == requests.number => send.result = Some(result),
                    _ => debug_assert!(false, "a send completed after its batch was settled"),
                },
                Token::Held { index, .. } => {
                    *pending -= 1;
                    match result {
                        EAGAIN => view.report_write(index, 0, true),
                        result => view.report_write(index, result, false),
                    }
                }
                Token::Control => *control = Some(result),
                Token::Wake => {
                    *waker_armed = cqueue::more(flags);
                    if waker.lower() {
                        view.wake();
                    }
                }
                Token::Watch(watch) => {
                    *watched -= 1;
                    match watch {
                        Watch::POLLS => *polls_ready = true,
                        watch => view.raise(watch),
                    }
                }
                Token::Doorbell { index, generation } => {
                    let handle = view.name_of(index);
                    let is_its = handle.generation & token::GENERATION_MASK == generation;
                    if !cqueue::more(flags) {
                        *watched -= 1;
                        unwatched.extend(Some(handle).filter(|_| is_its));
                    }
                    if is_its {
                        view.woken_by_doorbell(handle);
                    }
                }
                Token::Silent => {}
            }
        });
    }

    /// Reports the batch's sends, now that its enter has returned. After one that failed,
    /// some may not have been submitted, or their completions may still be in the kernel:
    /// they and their data stay for the next.
    fn settle_batch(&mut self, view: &mut View<'_>) {
        if self.outcome_is_known() {
            self.settle_known_batch(view);
        }
    }

    fn settle_known_batch(&mut self, view: &mut View<'_>) {
        for send in self.requests.batch.drain(..) {
            let (result, blocked) = match send.result {
                None => (send.bytes as i32, false),
                Some(EAGAIN) => (0, true),
                Some(accepted) => (accepted, accepted >= 0),
            };
            match send.of {
                SendOf::Fresh(fresh) => view.report_fresh(fresh, result, blocked),
                SendOf::Queue(handle) => view.report_write(handle, result, blocked),
            }
        }
        self.requests.batch_is_over();
    }

    /// Ends the accept of a handle that is closed, whose cancel went ahead, before its file is closed,
    /// which [`Self::wake_others`] needs.
    fn finish_accept(&mut self, view: &mut View<'_>, handle: u32) {
        if view.has_accepts(handle) {
            // A refusal shows with the next enter; the accept is cancelled again with its file.
            let _ = self.enter(view, Sleep::No);
            self.settle_batch(view);
            self.wake_others(view);
        }
    }

    /// Wakes the others that accept from the listeners whose accepts were cancelled: a connection wakes
    /// one waiter alone (EPOLLEXCLUSIVE), and that may have been the cancelled accept. After an enter that
    /// failed they are woken in a later turn: the queue may have no room for the request of a descriptor.
    #[inline]
    fn wake_others(&mut self, view: &mut View<'_>) {
        if !self.cancelled_accepts.is_empty() && self.ring.queued() == 0 {
            self.wake_all_others(view);
        }
    }

    #[cold]
    fn wake_all_others(&mut self, view: &mut View<'_>) {
        for handle in mem::take(&mut self.cancelled_accepts) {
            if view.is_live(handle) {
                // Without a descriptor for it they wait until the next connection.
                let _ = engine::with_descriptor(self, view, handle.index, sys::socket::wake_accepts);
            }
        }
    }

    /// Polls doorbells again that the channel still waits for.
    #[inline]
    fn watch_doorbells_again(&mut self, view: &mut View<'_>) -> io::Result<()> {
        while let Some(handle) = self.unwatched.pop() {
            let Some(fd) = view.own_doorbell(handle).map(|fd| fd.as_raw_fd()) else { continue };
            let room = self.ring.room();
            self.make_room(view, room)?;
            self.push_doorbell(fd, handle);
        }
        Ok(())
    }

    /// Delivers what the set of polls reports, and waits for more.
    fn run_polls(&mut self, view: &mut View<'_>) -> io::Result<()> {
        if mem::take(&mut self.polls_ready)
            && let Some(set) = self.polls.set().map(|set| set.as_raw_fd())
        {
            self.polls.run(view);
            let room = self.ring.room();
            self.make_room(view, room)?;
            self.push_watch(set, Watch::POLLS);
        }
        Ok(())
    }

    fn arm_waker(&mut self) {
        if !self.waker_armed {
            self.waker_armed = true;
            self.push_poll_waker();
        }
    }

    /// Submits the control request that was just queued and waits for its answer.
    fn wait_for_control(&mut self, view: &mut View<'_>) -> io::Result<i32> {
        self.control = None;
        while self.control.is_none() {
            let entered = self.enter(view, Sleep::Until { completions: 1, timeout: None, gather: None });
            match entered {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => other?,
            }
        }
        self.settle_batch(view);
        match self.control.take() {
            Some(result) if result < 0 => Err(io::Error::from_raw_os_error(-result)),
            Some(result) => Ok(result),
            None => Err(io::Error::from_raw_os_error(libc::EIO)),
        }
    }
}

const EAGAIN: i32 = -libc::EAGAIN;

impl KernelFiles for Uring {}

impl Engine for Uring {
    fn kind(&self) -> EngineKind {
        EngineKind::Uring
    }

    fn turn(&mut self, view: &mut View<'_>, wait: Wait) -> io::Result<()> {
        if wait == Wait::Glance && view.requested() == 0 && !self.ring.has_completions() {
            return Ok(());
        }
        self.arm_waker();
        self.watch_doorbells_again(view)?;
        self.stock.refill(view);
        let mut urgent = self.take_requests(view)?;
        // Closes may have made room; and the sends of this batch may return the very
        // buffers that readers wait for.
        if view.resume() {
            urgent |= self.take_requests(view)?;
        }
        urgent |= view.has_waiting_reads() && !self.requests.batch.is_empty();
        self.run_polls(view)?;
        let sleep = match wait {
            Wait::For(timeout) if !urgent && !view.has_results() && view.requested() == 0 => {
                let bound = view.latency_bound().filter(|_| self.capabilities.min_wait);
                Sleep::Until {
                    completions: bound.map_or(1, |bound| bound.completions),
                    timeout,
                    // The kernel begins the timeout when this is over.
                    gather: bound.map(|bound| timeout.map_or(bound.delay, |limit| limit.min(bound.delay))),
                }
            }
            _ => Sleep::No,
        };
        let result = match sleep {
            Sleep::No if self.ring.queued() == 0 && !self.ring.has_completions() => Ok(()),
            Sleep::No => self.enter(view, sleep),
            Sleep::Until { timeout, .. } => self.sleep(view, sleep, timeout),
        };
        match result {
            Ok(()) => self.settle_known_batch(view),
            Err(_) => self.settle_batch(view),
        }
        self.wake_others(view);
        self.run_polls(view)?;
        view.all_tried();
        result
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn watch(&mut self, fd: BorrowedFd<'_>, watch: Watch) -> io::Result<()> {
        if self.ring.room() < requests::PER_REQUEST {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        self.push_watch(fd.as_raw_fd(), watch);
        Ok(())
    }

    fn watch_again(&mut self, fd: BorrowedFd<'_>, watch: Watch) -> io::Result<()> {
        self.watch(fd, watch)
    }

    fn watch_doorbell(&mut self, view: &mut View<'_>, fd: BorrowedFd<'_>, handle: Handle) -> io::Result<()> {
        let room = self.ring.room();
        self.make_room(view, room)?;
        self.push_doorbell(fd.as_raw_fd(), handle);
        Ok(())
    }

    fn adopt(&mut self, view: &mut View<'_>, fd: OwnedFd) -> io::Result<LwFile> {
        if !self.direct {
            return Ok(LwFile::Private(fd));
        }
        let mut slot = fd.as_raw_fd();
        self.push_adopt(&mut slot);
        self.wait_for_control(view)?;
        Ok(LwFile::Direct(slot as u32))
    }

    fn export(&mut self, view: &mut View<'_>, file: &LwFile) -> io::Result<OwnedFd> {
        match file {
            LwFile::Private(fd) => fd.as_fd().try_clone_to_owned(),
            LwFile::Direct(slot) => {
                self.push_export(*slot);
                let fd = self.wait_for_control(view)?;
                Ok(requests::own(fd))
            }
            LwFile::Stack(_) | LwFile::Taken => Err(io::Error::from_raw_os_error(libc::EBADF)),
        }
    }

    fn close_dropped(&mut self, view: &mut View<'_>, slots: &[u32]) {
        for &slot in slots {
            if self.ring.room() < requests::PER_REQUEST {
                // What cannot be submitted now stays queued, and goes with the next turn.
                let _ = self.submit(view);
            }
            self.close_slot(slot);
        }
    }

    fn shut(&mut self, view: &mut View<'_>) -> bool {
        const TRIES: u32 = 200;
        const PATIENCE: Duration = Duration::from_millis(10);
        const FEW: u64 = 64;
        // One by one by their names: "all" would cost the square of their number.
        for index in view.indices() {
            if self.ring.room() < requests::PER_REQUEST {
                let _ = self.submit(view);
            }
            self.cancel_pending(view, index, Flags::empty());
        }
        for poll in view.polls() {
            if self.ring.room() < requests::PER_REQUEST {
                let _ = self.submit(view);
            }
            self.cancel_op(view, poll);
        }
        for _ in 0..TRIES {
            if self.pending == 0 && self.watched == 0 {
                break;
            }
            if self.pending < FEW {
                self.push_cancel_all();
            }
            let sleep = Sleep::Until { completions: 1, timeout: Some(PATIENCE), gather: None };
            // Whatever this returns, both counts show whether it helped.
            let _ = self.enter(view, sleep);
            self.settle_batch(view);
        }
        self.wake_others(view);
        view.drop_results();
        if self.direct {
            // Frees ports and sends FINs now instead of when the kernel ends the ring.
            let _ = self.ring.unregister_files();
        }
        self.pending == 0
    }
}
