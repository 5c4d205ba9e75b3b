//! One thread of a server: its channel, its listener, and the loop that serves its
//! connections.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use megapipe::packet::group::Queue;
use megapipe::{
    AcceptAs, AcceptCount, Accepted, Channel, Completion, Config, CpuSet, DispatchError, Event, Handle,
    Stack, TunNetwork,
};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;
use slab::Slab;
use socket2::Socket;

use crate::Service;
use crate::connection::{Connection, Context, Fate};
use crate::output::Output;
use crate::server::Shared;

/// How long clients have, after a signal, to take their answers and to close.
const DRAIN_WITHIN: Duration = Duration::from_secs(5);

/// Time between two checks for the end of closes, when nothing else is left.
const CLOSING_CHECK: Duration = Duration::from_millis(10);

/// Connections that a stack keeps until they are accepted, and that it has data
/// outstanding for.
const BACKLOG: u32 = 1024;
const ACTIVE_MAX: usize = 4096;

/// Cookies; those of connections are their places in the table.
const LISTENER: u64 = u64::MAX;
const SIGNALS: u64 = u64::MAX - 1;
const DRAINED: u64 = u64::MAX - 2;

/// Where a thread listens.
pub(crate) enum Place {
    /// At the address of this bound socket.
    Kernel(Socket),
    /// On a stack of its own.
    Stack { queue: Queue, network: TunNetwork, address: SocketAddr, connections: usize },
}

/// One thread of a server.
pub(crate) struct Worker<S: Service> {
    channel: Channel,
    listener: Handle,
    signals: Handle,
    connections: Slab<Connection<S::Session>>,
    output: Output,
    shared: Arc<Shared<S>>,
    /// A signal has come: no more is accepted, and clients take their answers.
    draining: bool,
    /// The time for that is over.
    overdue: bool,
}

impl<S: Service> Worker<S> {
    /// Makes the calling thread a server.
    pub(crate) fn new(place: Place, shared: Arc<Shared<S>>) -> anyhow::Result<Self> {
        let mut channel = Channel::new(Config {
            // Connection::write keeps below that; answers lie in memory of their own, so
            // they hold up no reader.
            write_queue_max: 1024,
            // One more than may be served: it gets the refusal.
            lwsockets_max: u32::try_from(shared.max_connections).unwrap_or(u32::MAX).saturating_add(1),
            ..Config::default()
        })?;
        let listener = match place {
            Place::Kernel(socket) => {
                channel.register_partitioned(socket.as_fd(), LISTENER, &CpuSet::empty())?
            }
            Place::Stack { queue, network, address, connections } => {
                let mut stack = Stack::on_queue(queue, network.networks().to_vec());
                let limits = &mut stack.config().limits;
                (limits.flows, limits.active) = (connections, connections.min(ACTIVE_MAX));
                channel.attach(stack)?;
                let listener = channel.listen_on(address, BACKLOG, LISTENER)?;
                channel.set_nodelay(listener, true)?;
                listener
            }
        };
        channel.accept(listener, AcceptCount::Unlimited, AcceptAs::LwSocket)?;
        // A signal writes a byte to the pipe of each thread.
        let (signals, sender) = UnixStream::pair()?;
        pipe::register(SIGINT, sender.try_clone()?)?;
        pipe::register(SIGTERM, sender)?;
        let signals = channel.register(signals, SIGNALS)?;
        channel.read(signals)?;
        let (connections, output) = (Slab::new(), Output::default());
        Ok(Self { channel, listener, signals, connections, output, shared, draining: false, overdue: false })
    }

    /// Serves until a signal, and until clients have taken their answers.
    pub(crate) fn run(&mut self) -> anyhow::Result<()> {
        while !self.is_done() {
            // The end of a close is no completion: what is queued for closed clients may still
            // have to go out.
            let timeout = (self.draining && self.connections.is_empty()).then_some(CLOSING_CHECK);
            match self.channel.dispatch(timeout) {
                Ok(Some(completion)) => self.serve(completion)?,
                Ok(None) | Err(DispatchError::Interrupted) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // An end of the stream would say that the client has been sent everything.
        for (_, connection) in &self.connections {
            let _ = self.channel.reset(connection.handle);
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.overdue || self.draining && self.connections.is_empty() && !self.channel.is_closing()
    }

    fn serve(&mut self, Completion { cookie, event, .. }: Completion) -> anyhow::Result<()> {
        match (cookie, event) {
            (LISTENER, Event::Accept { result: Ok(accepted), .. }) => self.accepted(accepted),
            // No room for more, for example: accepting goes on by itself.
            (LISTENER, Event::Accept { result: Err(error), more: true }) => {
                tracing::debug!(%error, "accepting pauses")
            }
            (LISTENER, Event::Accept { result: Err(error), .. }) => return Err(error.into()),
            (SIGNALS, _) if !self.draining => self.drain()?,
            // The second signal.
            (SIGNALS, _) | (DRAINED, _) => self.overdue = true,
            (key, event) => {
                self.with_connection(key as usize, |connection, context| connection.serve(event, context))
            }
        }
        Ok(())
    }

    fn accepted(&mut self, accepted: Accepted) {
        let slot = self.connections.vacant_entry();
        let handle = match self.channel.register(accepted.socket, slot.key() as u64) {
            Ok(handle) => handle,
            Err(error) => return tracing::debug!(%error, "a connection is dropped"),
        };
        let key = slot.key();
        slot.insert(Connection::new(handle));
        if self.shared.open.fetch_add(1, Relaxed) >= self.shared.max_connections {
            return self.refuse(key);
        }
        self.with_connection(key, |connection, context| connection.go_on(context.channel));
    }

    /// Accepts no more, and ends connections behind the answers to what was read.
    fn drain(&mut self) -> anyhow::Result<()> {
        self.draining = true;
        self.channel.read(self.signals)?;
        self.channel.close(self.listener)?;
        self.channel.timer(DRAIN_WITHIN, DRAINED)?;
        let open: Vec<usize> = self.connections.iter().map(|(key, _)| key).collect();
        for key in open {
            self.with_connection(key, |connection, context| connection.finish(context.channel));
        }
        Ok(())
    }

    /// Does something with a connection, and then what follows from it.
    fn with_connection(
        &mut self,
        key: usize,
        serve: impl FnOnce(&mut Connection<S::Session>, &mut Context<'_, S>) -> Fate,
    ) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let (channel, output) = (&mut self.channel, &mut self.output);
        match serve(connection, &mut Context { channel, output, service: &self.shared.service }) {
            Ok(true) if connection.is_within_bounds(&self.shared.held) => {}
            Ok(true) => self.refuse(key),
            Ok(false) => self.close(key),
            Err(error) => {
                tracing::debug!(%error, "a client is gone");
                self.close(key);
            }
        }
    }

    /// Writes the refusal to a client, and closes.
    fn refuse(&mut self, key: usize) {
        // It is closed in any case.
        let _ = self.channel.write_copy(self.connections[key].handle, self.shared.service.refusal());
        self.close(key);
    }

    /// Closes a connection; what is queued goes out first.
    fn close(&mut self, key: usize) {
        let connection = self.connections.remove(key);
        connection.give_back(&self.shared.held);
        self.shared.open.fetch_sub(1, Relaxed);
        // Stale only if the channel has closed it already.
        let _ = self.channel.close(connection.handle);
    }
}
