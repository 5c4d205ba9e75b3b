//! The channel itself: what may be called, and how completions are handed out.

use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use sys::mapping::ForkMark;

use crate::completion::{Completion, Event};
use crate::config::{Config, EngineKind, Promotion};
use crate::core::{Core, File, State, WriteState, take_first};
use crate::engine::beside::Engines;
use crate::engine::sockets::SocketCalls;
use crate::engine::view::View;
use crate::engine::{self, Engine, Request, Wait};
use crate::error::{ControlError, CreateError, DispatchError, RegisterError, StaleHandle, UnregisterError};
use crate::id::{Handle, OpId};
use crate::lwsocket::LwSocket;
use crate::now::Now;
use crate::partition::{CpuSet, Member};
use crate::promotion::Promoter;
use crate::source::{Shape, Source};
use crate::spin::Spinning;
use crate::stats::Stats;
use crate::steering::Partitioned;
use crate::waker::Waker;

/// A per-thread, bidirectional pipe to the kernel (paper, section 3.2): calls queue
/// operations, [`Channel::dispatch`] hands out completions. It stays on the thread that
/// made it; only its [`Waker`] may leave.
///
/// Dropping a channel closes the connections that it has accepted, those that were not handed out
/// too. Connections that wait at a listener stay there for others that accept from it.
///
/// Some milliseconds after a channel with io_uring has been dropped, the kernel, which then takes
/// the ring apart, interrupts the thread that had it: a blocking call it is in by then may fail
/// with EINTR, once, though there was no signal.
pub struct Channel {
    // Dropped in this order: the engine ends before the memory it was lent.
    pub(crate) engine: Engines,
    pub(crate) core: Core,
    pub(crate) fork_mark: ForkMark,
    /// The last handle of each descriptor that was registered by its number; most may be
    /// stale.
    pub(crate) registered_raw: Vec<Handle>,
    /// Cancelled timers, to be delivered by the next dispatch.
    pub(crate) ended_timers: VecDeque<OpId>,
    /// Promotes connections to shared memory.
    pub(crate) promoter: Option<Box<Promoter>>,
    /// Completions from shared memory since the engine's last turn.
    from_rings: u32,
    /// Timers and the like that were handed out since the engine's last turn.
    without_turn: u32,
    /// Completions delivered since timers, wake-ups and deadlines were last checked.
    unattended: u32,
    /// Timers and the like that were delivered in a row.
    own_in_a_row: u32,
    _not_send: PhantomData<*const ()>,
}

/// Timers and the like that may be handed out in a row: timers that are always due must not keep the
/// channel from its files.
const WITHOUT_TURN_MAX: u32 = 32;

/// Completions from shared memory that may be handed out in a row, for the same reason.
const FROM_RINGS_MAX: u32 = 64;

/// Completions that may be delivered before the channel checks its timers, wake-ups and
/// deadlines, however many more there are.
const UNATTENDED_MAX: u32 = 256;

/// Polls of the rings before anything that costs more, if a wait would spin: for a
/// microsecond or two.
const POLLS_AT_FIRST: u32 = 128;

/// Polls of the rings between two checks of the clock and the kernel, while spinning.
const POLLS_PER_GLANCE: u32 = 16;

impl Channel {
    /// Makes a channel for the calling thread.
    ///
    /// # Errors
    ///
    /// See [`CreateError`]. When io_uring is forbidden and nothing forces it, the channel
    /// uses epoll and says so once in the log. That something runs short is an error
    /// ([`CreateError::LockedMemory`], [`CreateError::Resources`]) and leads to no epoll, which would
    /// hide a slower server: raise what the error names (for locked memory `ulimit -l`, systemd's
    /// `LimitMEMLOCK=`), or choose epoll with [`Config::engine`] or `MEGAPIPE_ENGINE=epoll`.
    pub fn new(config: Config) -> Result<Channel, CreateError> {
        config.check()?;
        let fork_mark = ForkMark::new()
            .map_err(|cause| CreateError::Resources { what: "a page to recognise forks by", cause })?;
        let mut core = Core::new(&config)?;
        let engine = engine::choose(&config, &mut core)?;
        let promoter = Promoter::new(&config);
        if promoter.is_none() {
            // No offers would be made.
            core.config.promotion = Promotion::Off;
            core.offer_after = 0;
        }
        Ok(Channel {
            core,
            engine: Engines::new(engine),
            fork_mark,
            registered_raw: Vec::new(),
            ended_timers: VecDeque::new(),
            promoter,
            from_rings: 0,
            without_turn: 0,
            unattended: 0,
            own_in_a_row: 0,
            _not_send: PhantomData,
        })
    }

    /// The engine that was chosen.
    pub fn engine(&self) -> EngineKind {
        self.engine.kind()
    }

    /// Counters since the channel was made.
    pub fn stats(&self) -> Stats {
        self.core.stats
    }

    /// Whether queued writes of closed handles still go out, which ends with the channel. A program
    /// that ends dispatches until this is false, or for as long as it cares to.
    pub fn is_closing(&self) -> bool {
        self.core.is_closing()
    }

    /// Makes a file of this channel: from now on its operations and completions go
    /// through this channel only. `cookie` comes back with each completion.
    ///
    /// # Errors
    ///
    /// [`RegisterError::HandlesFull`] and others; the file is closed then.
    pub fn register(&mut self, source: impl Into<Source>, cookie: u64) -> Result<Handle, RegisterError> {
        let (file, shape) = match source.into() {
            Source::LwSocket(socket) => {
                if !std::rc::Rc::ptr_eq(&socket.owner, &self.core.lwsockets) {
                    return Err(RegisterError::ForeignLwSocket);
                }
                let shape = socket.shape;
                (File::Lw(socket.into_file()), shape)
            }
            Source::Fd(fd) => {
                let shape = Shape::of(std::os::fd::AsFd::as_fd(&fd))?;
                (File::Fd(fd), shape)
            }
        };
        let handle = self.add(file, shape, cookie).ok_or(RegisterError::HandlesFull)?;
        if shape.is_stream() {
            self.offer_if_eager(handle);
        }
        Ok(handle)
    }

    /// A handle for a file, which is closed if the table is full.
    pub(crate) fn add(&mut self, file: File, shape: Shape, cookie: u64) -> Option<Handle> {
        self.core.add_handle(file, shape, cookie).map_err(|file| self.give_up(file)).ok()
    }

    /// Makes this channel's own member of a partitioned listener: a listening socket of
    /// its own on `listener`'s address, which gets the connections whose SYN was handled
    /// on a CPU of `mask` (paper, section 3.3). Channels of one process that name the
    /// same address share the connections by their masks; a CPU in several masks is
    /// shared at random (by hash where the CPU alone decides), and a CPU in none goes to any.
    ///
    /// Where the process has CAP_BPF, a channel is passed over if it has been away from
    /// [`Channel::dispatch`]'s waits for more than half a millisecond, has not accepted 8 connections
    /// that were steered to it, or cannot accept: another channel of the listener gets the connection.
    /// If all others are to be passed over, too, the channel of the CPU gets it, or, where that is 8
    /// behind or cannot accept, the one that is least behind. Connections in the queue of a channel that
    /// leaves move to another. Without CAP_BPF the CPU alone decides and those connections are reset,
    /// which the log says once.
    ///
    /// A listener may have members in several processes, but each process steers among its
    /// own members as if there were no others, and the last to register prevails (to change a mask,
    /// where the CPU alone decides): which
    /// member gets a connection is then undefined, though one of them does. Have one process
    /// own all members of a listener whose masks matter. A process that dies takes the connections
    /// in its accept queues with it; with io_uring its listeners may live some milliseconds longer.
    ///
    /// `listener` is a bound TCP socket of this process' user. It gets SO_REUSEPORT, if it has none, and
    /// keeps it: another server of the user could then be bound there, too. If it listened without, a
    /// SYN that comes at that moment may be dropped, and is sent again after a second; if connections
    /// were accepted without, it has to have SO_REUSEADDR. It stays the caller's; it need not listen,
    /// and must stay open only until all channels joined. If it listens already, the first channel
    /// shares it. When that channel has left, the socket goes on listening for the caller, as one with
    /// an empty mask, until the caller closes it.
    ///
    /// # Errors
    ///
    /// [`crate::PartitionError`] names what is wrong with the socket.
    pub fn register_partitioned(
        &mut self,
        listener: BorrowedFd<'_>,
        cookie: u64,
        mask: &CpuSet,
    ) -> Result<Handle, RegisterError> {
        let (fd, member) = Member::join(listener, mask)?;
        let handle = self.register(fd, cookie)?;
        self.core.partitioned.push(Partitioned { listener: handle.index, member });
        Ok(handle)
    }

    /// Changes which CPUs' connections a partitioned listener gets, from now on.
    ///
    /// # Errors
    ///
    /// [`ControlError::StaleHandle`]; EINVAL if the handle is no partitioned listener.
    pub fn set_cpu_mask(&mut self, handle: Handle, mask: &CpuSet) -> Result<(), ControlError> {
        let index = self.open_here(handle)?;
        let member = self.core.member_mut(index).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        Ok(member.set_mask(mask).map_err(io::Error::from)?)
    }

    /// Takes the file out of the channel and gives it back. Queued writes go to the kernel
    /// first; what else is pending is cancelled, and no completion of the handle surfaces any
    /// more (paper, Table 1). Bytes that a pending read had fetched are lost: cancel reads and
    /// wait for their end first if they matter.
    ///
    /// # Errors
    ///
    /// [`UnregisterError`]; a promoted connection is not given back, as the file is but half of it,
    /// nor is one whose queued writes the kernel has no room for.
    pub fn unregister(&mut self, handle: Handle) -> Result<Source, UnregisterError> {
        let index = self.check_unregister(handle)?;
        let Some(entry) = self.core.handles.at_mut(index) else { return Err(UnregisterError::StaleHandle) };
        entry.state = State::Closing;
        let shape = entry.shape;
        self.core.leave_group(index);
        self.core.cancel_accepts_of(index);
        self.core.drop_unstarted(index);
        self.core.request(Request::Detach(index));
        // The pending reads must not consume bytes that now belong to the caller. The
        // next dispatch reports a refused batch.
        let _ = self.turn(Wait::Flush);
        let file = self.core.take_file(index);
        self.core.release_if_ended(index);
        match file {
            File::Fd(fd) => Ok(Source::Fd(fd)),
            File::Lw(file) => {
                self.core.lwsockets.closed_one(file.is_of_stack());
                Ok(Source::LwSocket(LwSocket::new(file, shape, &self.core.lwsockets)))
            }
            File::None => Err(UnregisterError::StaleHandle),
        }
    }

    /// The index of a handle that may be unregistered, once its writes are out.
    #[doc(hidden)]
    pub fn check_unregister(&mut self, handle: Handle) -> Result<u32, UnregisterError> {
        /// A turn sends at least one message or 64 pieces of bytes, or finds no room.
        const TURNS: u32 = 128;
        let index = self.open_here(handle)?;
        if self.core.promoted(index).is_some() {
            return Err(UnregisterError::Promoted);
        }
        for _ in 0..TURNS {
            if !self.core.has_queued_writes(index) {
                return Ok(index);
            }
            if self.core.handles.at(index).is_some_and(|entry| entry.write_state == WriteState::Held) {
                break;
            }
            // The next dispatch reports a refusal.
            let _ = self.turn(Wait::Flush);
        }
        Err(UnregisterError::WritesQueued)
    }

    /// The handle's cookie.
    ///
    /// # Errors
    ///
    /// [`StaleHandle`].
    pub fn cookie(&self, handle: Handle) -> Result<u64, StaleHandle> {
        self.core.open(handle)?;
        self.core.handles.at(handle.index).map(|entry| entry.cookie).ok_or(StaleHandle)
    }

    /// Replaces the cookie, also for completions that are not handed out yet.
    ///
    /// # Errors
    ///
    /// [`StaleHandle`].
    pub fn set_cookie(&mut self, handle: Handle, cookie: u64) -> Result<(), StaleHandle> {
        self.core.open_entry(handle)?.cookie = cookie;
        Ok(())
    }

    /// Wakes this channel from other threads.
    pub fn waker(&self) -> Waker {
        self.engine.waker()
    }

    /// Hands what is queued to the kernel now.
    ///
    /// # Errors
    ///
    /// [`DispatchError`].
    pub fn flush(&mut self) -> Result<(), DispatchError> {
        self.check_process()?;
        if self.core.queued() == 0 { Ok(()) } else { self.turn(Wait::Flush) }
    }

    /// Returns the next completion; waits for one for at most `timeout` (`None`: for
    /// ever). `Ok(None)` when the time is over.
    ///
    /// # Errors
    ///
    /// [`DispatchError`].
    #[inline]
    pub fn dispatch(&mut self, timeout: Option<Duration>) -> Result<Option<Completion>, DispatchError> {
        self.check_process()?;
        if self.unattended >= UNATTENDED_MAX
            && let Some(completion) = self.attend()
        {
            return Ok(Some(completion));
        }
        self.unattended += 1;
        if let Some(completion) = self.next_settled() {
            return Ok(Some(completion));
        }
        self.core.take_returned();
        if self.has_hot_rings() && self.from_rings < FROM_RINGS_MAX {
            let spins = self.core.spin.is_on();
            // Submit queued wake-ups before spinning. Without spinning the call that
            // sleeps submits them.
            if self.core.wake_ups > 0 && spins {
                self.turn(Wait::Flush)?;
            }
            for round in 0..if spins { POLLS_AT_FIRST } else { 1 } {
                if let Some(completion) = self.next_from_rings() {
                    self.submit_wake_ups();
                    self.from_rings += 1;
                    if round > 0 {
                        self.core.spin.found_at_once();
                    }
                    return Ok(Some(completion));
                }
            }
        }
        self.fetch(timeout)
    }

    /// Returns a completion that is here already, without a system call: for programs with work
    /// of their own between completions, such as an executor's tasks. Nothing is handed to the
    /// kernel. `Ok(None)` says to call [`Self::dispatch`], which alone brings timers, wake-ups and
    /// what the kernel has done since; it comes after 256 completions at the latest.
    ///
    /// # Errors
    ///
    /// [`DispatchError::Forked`].
    #[inline]
    pub fn next_ready(&mut self) -> Result<Option<Completion>, DispatchError> {
        self.check_process()?;
        if self.unattended >= UNATTENDED_MAX {
            return Ok(None);
        }
        let mut ready = self.next_settled();
        if ready.is_none() && self.has_hot_rings() && self.from_rings < FROM_RINGS_MAX {
            ready = self.next_from_rings();
            self.from_rings += u32::from(ready.is_some());
        }
        self.unattended += u32::from(ready.is_some());
        Ok(ready)
    }

    /// The next fetched result that leads to a completion.
    #[inline]
    fn next_settled(&mut self) -> Option<Completion> {
        while let Some(done) = take_first(&mut self.core.done) {
            if let Some(completion) = self.core.settle(done) {
                return Some(completion);
            }
        }
        None
    }

    /// Submits queued wake-ups now: the peer may be asleep. The next dispatch reports a
    /// refusal.
    #[inline]
    fn submit_wake_ups(&mut self) {
        if self.core.wake_ups > 0 {
            let _ = self.turn(Wait::Flush);
        }
    }

    /// Does what must not wait until there is nothing to deliver, and delivers timers and
    /// the like, a few in a row. `None`: the engine's completions go on.
    #[cold]
    fn attend(&mut self) -> Option<Completion> {
        let now = Now::default();
        if self.own_in_a_row == 0 {
            // Only a turn shows wake-ups. `fetch` reports a refusal.
            let _ = self.turn(Wait::No);
            self.drive_promotion(&now);
            self.keep_house(&now);
        }
        if self.own_in_a_row < WITHOUT_TURN_MAX
            && let Some(completion) = self.next_of_own(&now)
        {
            self.own_in_a_row += 1;
            return Some(completion);
        }
        self.own_in_a_row = 0;
        self.unattended = 0;
        None
    }

    /// Restarts starved reads and paused accepts, ends overdue closes, and closes dropped
    /// lightweight sockets.
    fn keep_house(&mut self, now: &Now) {
        self.core.keep_house();
        while let Some(index) = self.core.overdue_close(now) {
            // A file without linger (a pipe) has nothing to reset.
            let _ = self.engine.reset_on_close(&mut View::of(&mut self.core), index);
            self.core.finish_close(index);
        }
        self.close_dropped();
    }

    /// There is nothing to deliver: submits, waits and fetches until there is.
    fn fetch(&mut self, timeout: Option<Duration>) -> Result<Option<Completion>, DispatchError> {
        let mut now = Now::default();
        let deadline = timeout.and_then(|timeout| now.get().checked_add(timeout));
        let mut has_waited = false;
        if self.without_turn >= WITHOUT_TURN_MAX || self.from_rings >= FROM_RINGS_MAX {
            self.turn(Wait::No)?;
        }
        self.cool_quiet(&now);
        loop {
            if let Some(completion) = self.next_of_own(&now) {
                self.without_turn += 1;
                return Ok(Some(completion));
            }
            if let Some(completion) = self.next_settled() {
                return Ok(Some(completion));
            }
            self.drive_promotion(&now);
            if self.core.found_monitor
                && let Some(completion) = self.next_from_rings()
            {
                self.submit_wake_ups();
                return Ok(Some(completion));
            }
            if has_waited && deadline.is_some_and(|deadline| deadline <= now.get()) {
                return Ok(None);
            }
            self.keep_house(&now);
            self.core.mark_waiting();
            let waited = self.wait(deadline, &now);
            self.core.mark_away();
            waited?;
            now = Now::default();
            has_waited = true;
            self.unattended = 0;
        }
    }

    /// One wait, begun at `now`: spins if that is likely to pay, then sleeps.
    ///
    /// After a system call that slept each return to a caller is mispredicted: the kernel
    /// has used the processor's stack of return addresses. So everything that leads to
    /// such a call is inlined.
    #[inline(always)]
    fn wait(&mut self, deadline: Option<Instant>, now: &Now) -> Result<(), DispatchError> {
        let limit = self.core.wait_until(deadline, now);
        if limit == Some(Duration::ZERO) || self.core.can_feed_more() {
            return self.turn(Wait::No);
        }
        let rings = self.has_hot_rings();
        let spin = self.core.spin.begin(self.core.handles.len(), rings, limit);
        if let Some(spin) = spin
            && self.spin(spin, rings)?
        {
            return Ok(());
        }
        self.core.note_hoarded_pool();
        if !self.go_to_sleep() {
            return Ok(());
        }
        let began = self.has_rings().then(sys::clock::monotonic);
        let slept = self.turn_here(Wait::For(limit));
        self.woke_up();
        slept?;
        if let Some(began) = began {
            self.core.spin.slept(began);
        }
        Ok(())
    }

    /// Polls for completions for as long as `spin` allows. True if something came.
    #[inline(never)]
    fn spin(&mut self, mut spin: Spinning, rings: bool) -> Result<bool, DispatchError> {
        self.turn(Wait::No)?;
        while self.nothing_yet() && !(rings && (0..POLLS_PER_GLANCE).any(|_| self.rings_are_ready())) {
            if !self.core.spin.goes_on(&mut spin, rings) {
                return Ok(false);
            }
            self.turn(Wait::Glance)?;
            std::hint::spin_loop();
        }
        self.core.spin.found(&spin);
        Ok(true)
    }

    pub(crate) fn nothing_yet(&self) -> bool {
        !self.core.can_hand_out()
    }

    pub(crate) fn turn(&mut self, wait: Wait) -> Result<(), DispatchError> {
        self.turn_here(wait)
    }

    /// [`Self::turn`], inlined: see [`Self::wait`].
    #[inline(always)]
    fn turn_here(&mut self, wait: Wait) -> Result<(), DispatchError> {
        if self.core.wake_ups > 0 {
            self.core.write_doorbells();
        }
        self.core.stats.turns += u64::from(wait != Wait::Glance);
        self.without_turn = 0;
        self.from_rings = 0;
        let result = self.engine.turn(&mut View::of(&mut self.core), wait);
        self.core.take_returned(); // by completed writes
        match result {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(DispatchError::Interrupted),
            Err(error) => Err(DispatchError::Io(error)),
        }
    }

    /// Completions that no engine made: wake-ups, room in write queues, and timers.
    fn next_of_own(&mut self, now: &Now) -> Option<Completion> {
        if self.core.woken {
            self.core.woken = false;
            self.core.stats.completions += 1;
            return Some(Completion { handle: Handle::NONE, cookie: 0, op: OpId::NONE, event: Event::Wake });
        }
        if let Some(completion) = self.core.next_writable() {
            return Some(completion);
        }
        if self.core.timers_live == 0 {
            return None;
        }
        while let Some(op) = self.ended_timers.pop_front() {
            let cancelled = io::Error::from_raw_os_error(libc::ECANCELED);
            if let Some(completion) = self.core.end_timer(op, Err(cancelled)) {
                self.core.forget_stale_timers();
                return Some(completion);
            }
        }
        self.core.expire_timer(now.get())
    }

    #[inline]
    pub(crate) fn check_process(&self) -> Result<(), DispatchError> {
        if self.fork_mark.is_here() { Ok(()) } else { Err(DispatchError::Forked) }
    }

    /// The index of an open handle, for calls that reach the kernel at once: through a
    /// forked child they would reach the parent's files and ring.
    pub(crate) fn open_here(&self, handle: Handle) -> Result<u32, StaleHandle> {
        if self.fork_mark.is_here() { self.core.open(handle) } else { Err(StaleHandle) }
    }

    fn give_up(&mut self, file: File) {
        if let File::Lw(file) = file {
            self.core.lwsockets.closed_one(file.is_of_stack());
            drop(LwSocket::new(file, Shape::File, &self.core.lwsockets));
        }
    }

    #[inline]
    fn close_dropped(&mut self) {
        if self.core.lwsockets.has_dropped() {
            self.close_all_dropped();
        }
    }

    fn close_all_dropped(&mut self) {
        let slots = std::mem::take(&mut *self.core.lwsockets.dropped.borrow_mut());
        let sockets = std::mem::take(&mut *self.core.lwsockets.dropped_of_stacks.borrow_mut());
        slots.iter().for_each(|_| self.core.lwsockets.closed_one(false));
        sockets.iter().for_each(|_| self.core.lwsockets.closed_one(true));
        if !slots.is_empty() {
            self.engine.close_dropped(&mut View::of(&mut self.core), &slots);
        }
        self.engine.close_dropped_of_stacks(&sockets);
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if !self.fork_mark.is_here() {
            // In a forked child: leaving a partitioned listener would shut the parent's down.
            std::mem::forget(std::mem::take(&mut self.core.partitioned));
            return;
        }
        // Before the engine accepts more: what waits in their queues moves to other members.
        self.core.partitioned.clear();
        self.core.cancel_all_accepts();
        // Queued requests are submitted as by a flush; then everything ends.
        let _ = self.turn(Wait::Flush);
        if !self.engine.shut(&mut View::of(&mut self.core)) {
            self.core.leak_pending();
        }
    }
}
