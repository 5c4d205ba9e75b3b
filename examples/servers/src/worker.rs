//! One thread of a server: its channel, its listener, and the loop that serves its connections.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use megapipe::{
    AcceptAs, AcceptCount, AcceptError, Accepted, AttachError, Channel, Config, ControlError, CpuSet,
    CreateError, DispatchError, Event, Handle, OpenError, RegisterError, Stack, Stats, SubmitError, Waker,
};
use slab::Slab;
use thiserror::Error;

use crate::connection::{Connection, Context, Fate, copied};
use crate::output::Output;
use crate::server::{Phase, Shared};
use crate::service::{Service, Traffic};

/// The cookie of the listener; those of connections are their places in the table.
const LISTENER: u64 = u64::MAX;

/// The cookie of the timer that looks for idle connections.
const IDLE: u64 = u64::MAX - 1;

/// The cookie of the timer that ends a drain.
const DRAINED: u64 = u64::MAX - 2;

/// Completions for each connection that are served after the signal: what arrived before it is
/// answered, and clients that never stop sending cannot delay the end. As many buffers as a
/// connection holds input.
const LAST_COMPLETIONS: usize = 16;

/// Time between two checks for the end of closes, when nothing else is left to drain.
const CLOSING_CHECK: Duration = Duration::from_millis(10);

/// Connections of a stack that wait to be accepted.
const BACKLOG: u32 = 1024;

/// Looks for idle connections in their timeout.
const IDLE_TICKS: u32 = 8;

/// Why a thread cannot serve.
#[derive(Debug, Error)]
pub(crate) enum WorkerError {
    #[error("it has no channel")]
    Channel(#[from] CreateError),
    #[error("it has no listener")]
    Listener(#[from] RegisterError),
    #[error("it has no stack")]
    Attach(#[from] AttachError),
    #[error("its stack has no listener")]
    Open(#[from] OpenError),
    #[error("its listener takes no options")]
    Control(#[from] ControlError),
    #[error("it cannot accept connections")]
    Submit(#[from] SubmitError),
    #[error("it can accept connections no more")]
    Accept(#[from] AcceptError),
    #[error("its channel is broken")]
    Dispatch(#[from] DispatchError),
}

/// Where a thread listens.
pub(crate) enum Place<'a> {
    /// At the address of this socket of the kernel's, for the connections that arrive on these CPUs.
    Kernel(BorrowedFd<'a>, &'a CpuSet),
    /// At this address of a stack.
    Stack(Box<Stack>, SocketAddr),
}

/// One thread of a server.
pub(crate) struct Worker<'a, S: Service> {
    channel: Channel,
    listener: Handle,
    connections: Slab<Connection<S::Session>>,
    output: Output,
    service: &'a S,
    thread: usize,
    shared: &'a Shared,
    /// Counts the looks for idle connections: their clock, which costs nothing to read.
    tick: u64,
    /// The time for draining is over.
    overdue: bool,
}

impl<'a, S: Service> Worker<'a, S> {
    /// Makes the calling thread, whose number is `thread`, a server.
    pub(crate) fn new(
        config: Config,
        place: Place<'_>,
        thread: usize,
        service: &'a S,
        shared: &'a Shared,
    ) -> Result<Self, WorkerError> {
        let mut channel = Channel::new(config)?;
        let listener = match place {
            Place::Kernel(socket, mask) => channel.register_partitioned(socket, LISTENER, mask)?,
            Place::Stack(stack, address) => {
                channel.attach(*stack)?;
                let listener = channel.listen_on(address, BACKLOG, LISTENER)?;
                channel.set_nodelay(listener, true)?;
                listener
            }
        };
        channel.accept(listener, AcceptCount::Unlimited, AcceptAs::LwSocket)?;
        let (connections, output) = (Slab::new(), Output::default());
        let mut worker =
            Self { channel, listener, connections, output, service, thread, shared, tick: 0, overdue: false };
        worker.set_idle_timer()?;
        Ok(worker)
    }

    fn set_idle_timer(&mut self) -> Result<(), SubmitError> {
        if !self.shared.idle_timeout.is_zero() {
            self.channel.timer(self.shared.idle_timeout / IDLE_TICKS, IDLE)?;
        }
        Ok(())
    }

    /// Closes the connections on which nothing was done for the whole timeout.
    fn close_idle(&mut self) -> Result<(), SubmitError> {
        // A drain has a deadline of its own.
        if self.shared.phase() != Phase::Serve {
            return Ok(());
        }
        self.tick += 1;
        let idle = self.connections.iter().filter(|(_, one)| self.tick - one.used > u64::from(IDLE_TICKS));
        let idle: Vec<usize> = idle.map(|(key, _)| key).collect();
        for key in idle {
            self.close(key);
        }
        self.set_idle_timer()
    }

    /// Wakes the thread, so that it reads [`Shared::phase`].
    pub(crate) fn waker(&self) -> Waker {
        self.channel.waker()
    }

    /// What its channel has counted.
    pub(crate) fn stats(&self) -> Stats {
        self.channel.stats()
    }

    /// Serves until [`Phase::Drain`], then lets clients take their answers. Connections that are
    /// left when that is over are ended.
    pub(crate) fn run(&mut self) -> Result<(), WorkerError> {
        let result = self.serve_all().and_then(|()| self.drain());
        let open: Vec<usize> = self.connections.iter().map(|(key, _)| key).collect();
        for key in open {
            self.cut_off(key);
        }
        result
    }

    fn serve_all(&mut self) -> Result<(), WorkerError> {
        while self.shared.phase() == Phase::Serve {
            self.step(None)?;
        }
        Ok(())
    }

    /// Accepts no more, answers what has arrived, and waits for the clients to close.
    fn drain(&mut self) -> Result<(), WorkerError> {
        self.channel.timer(self.shared.drain_timeout, DRAINED)?;
        let mut left = LAST_COMPLETIONS * (1 + self.connections.len());
        while left > 0 && self.drains() && self.step(Some(Duration::ZERO))? {
            left -= 1;
        }
        // Never stale: only this closes it.
        let _ = self.channel.close(self.listener);
        let open: Vec<usize> = self.connections.iter().map(|(key, _)| key).collect();
        for key in open {
            if self.connections[key].drain(&mut self.channel) == Fate::Close {
                self.close(key);
            }
        }
        while self.drains() && !self.connections.is_empty() {
            self.step(None)?;
        }
        // Of clients that were closed before; the end of such a close is no completion.
        while self.drains() && self.channel.is_closing() {
            self.step(Some(CLOSING_CHECK))?;
        }
        Ok(())
    }

    fn drains(&self) -> bool {
        !self.overdue && self.shared.phase() == Phase::Drain
    }

    /// Serves one completion; false if none came in time.
    fn step(&mut self, timeout: Option<Duration>) -> Result<bool, WorkerError> {
        let completion = match self.channel.dispatch(timeout) {
            Ok(Some(completion)) => completion,
            Ok(None) => return Ok(false),
            Err(DispatchError::Interrupted) => return Ok(true),
            Err(error) => return Err(error.into()),
        };
        match (completion.cookie, completion.event) {
            (LISTENER, Event::Accept { result, more }) => self.accepted(result, more)?,
            (IDLE, _) => self.close_idle()?,
            (DRAINED, _) => self.overdue = true,
            (key, event) => self.serve(key as usize, event),
        }
        Ok(true)
    }

    fn accepted(&mut self, result: Result<Accepted, AcceptError>, more: bool) -> Result<(), WorkerError> {
        match result {
            Ok(accepted) => self.welcome(accepted),
            Err(error) if more => tracing::debug!(%error, "accepting pauses"),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn welcome(&mut self, accepted: Accepted) {
        let slot = self.connections.vacant_entry();
        let handle = match self.channel.register(accepted.socket, slot.key() as u64) {
            Ok(handle) => handle,
            Err(error) => {
                tracing::debug!(%error, "a connection is dropped");
                return;
            }
        };
        if self.shared.open.fetch_add(1, Ordering::Relaxed) >= self.shared.max_connections {
            self.shared.open.fetch_sub(1, Ordering::Relaxed);
            refuse(&mut self.channel, handle, self.service.refusal());
            self.service.count(self.thread, Traffic::Refused);
            return;
        }
        self.service.count(self.thread, Traffic::Opened);
        let key = slot.key();
        let connection = slot.insert(Connection::new(handle, self.tick));
        if connection.start_reading(&mut self.channel) == Fate::Close {
            self.close(key);
        }
    }

    /// Carries out what a completion means for a connection.
    fn serve(&mut self, key: usize, event: Event) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        connection.used = self.tick;
        let mut context = Context {
            channel: &mut self.channel,
            service: self.service,
            thread: self.thread,
            output: &mut self.output,
        };
        let fate = match event {
            Event::Read { result: Ok(0), .. } => connection.input_ended(context.channel),
            Event::Read { result: Ok(_), data, more } => {
                let fate = connection.received(data.bytes(), &mut context);
                if more || fate == Fate::Close { fate } else { connection.reading_stopped(context.channel) }
            }
            Event::Read { result: Err(error), .. } if is_cancelled(&error) => {
                connection.reading_stopped(context.channel)
            }
            Event::Write { result: Ok(_), .. } => connection.confirmed(&mut context),
            Event::Disconnect(Ok(())) => connection.shut_down(),
            Event::Read { result: Err(error), .. }
            | Event::Write { result: Err(error), .. }
            | Event::Disconnect(Err(error)) => {
                tracing::debug!(%error, "a client is gone");
                Fate::Close
            }
            _ => Fate::Open,
        };
        if fate == Fate::Close {
            self.close(key);
        }
    }

    fn close(&mut self, key: usize) {
        let connection = self.connections.remove(key);
        // Stale only if the channel has closed it already.
        let _ = self.channel.close(connection.handle());
        self.closed();
    }

    /// Ends a connection now: by a reset if the client has not been sent everything, since the
    /// end of the stream would say that it has.
    fn cut_off(&mut self, key: usize) {
        if self.connections[key].is_shut_down() {
            return self.close(key);
        }
        let connection = self.connections.remove(key);
        if let Err(error) = self.channel.reset(connection.handle()) {
            tracing::debug!(%error, "cannot reset a connection");
        }
        self.closed();
    }

    fn closed(&self) {
        self.shared.open.fetch_sub(1, Ordering::Relaxed);
        self.service.count(self.thread, Traffic::Closed);
    }
}

/// Tells a client that it is one too many.
fn refuse(channel: &mut Channel, handle: Handle, refusal: &[u8]) {
    if !refusal.is_empty() {
        let refusal = copied(channel, refusal);
        // The connection is closed in any case.
        let _ = channel.write_quiet(handle, refusal);
    }
    let _ = channel.close(handle);
}

fn is_cancelled(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::CANCELED.raw_os_error())
}
