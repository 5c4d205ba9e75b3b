//! Megapipe's own TCP: a channel on each queue of one TUN device.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};

use megapipe::packet::group::Queue;
use megapipe::tcp::Prefix;
use megapipe::{
    AcceptAs, AcceptCount, Channel, Completion, Config, DispatchError, Event, Handle, Stack, Stats,
};
use serde::{Deserialize, Serialize};

use super::{BULK, SIZE, Service};
use crate::Reason;
use crate::cpu;
use crate::part;
use crate::peer::megapipe::{Server, config};

/// What a server has counted since it began, one entry a thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counts {
    /// Packets that its stack took from the device.
    pub(super) received: u64,
    /// Times that its engine was asked to wait.
    pub(super) turns: u64,
    /// System calls on the data path.
    pub(super) calls: u64,
}

/// [`Counts`] as one thread writes them and another reads them: in a cache line pair of their own.
#[derive(Default)]
#[repr(align(128))]
struct Shared([AtomicU64; 3]);

impl Shared {
    fn publish(&self, stats: &Stats) {
        let now = [stats.packets_received, stats.turns, stats.system_calls];
        self.0.iter().zip(now).for_each(|(shared, value)| shared.store(value, Relaxed));
    }

    fn counts(&self) -> Counts {
        let [received, turns, calls] = [0, 1, 2].map(|at| self.0[at].load(Relaxed));
        Counts { received, turns, calls }
    }
}

/// Standard input, on which each byte asks for the counts.
const CONTROL: u64 = u64::MAX;

/// Serves on each queue, the first on this thread.
pub(super) fn run(
    queues: Vec<Queue>,
    networks: &[Prefix],
    address: SocketAddr,
    service: Service,
    connections: usize,
    cpus: &[usize],
) -> Result<Infallible, Reason> {
    let counts: Arc<[Shared]> = queues.iter().map(|_| Shared::default()).collect();
    let worker = |thread: usize| Worker { address, service, connections, thread, counts: counts.clone() };
    let mut queues = queues.into_iter();
    let first = queues.next().ok_or("the device has no queue")?;
    for ((queue, &cpu), thread) in queues.zip(&cpus[1..]).zip(1..) {
        let (worker, networks) = (worker(thread), networks.to_vec());
        let (tell, started) = mpsc::channel();
        part::start_thread("worker", move || {
            cpu::pin(&[cpu])?;
            match worker.run(queue, networks, move || drop(tell))? {}
        })?;
        // Ends when the thread drops its end: it listens.
        let _: Result<(), _> = started.recv();
    }
    worker(0).run(first, networks.to_vec(), || part::listening(""))
}

/// One thread.
struct Worker {
    address: SocketAddr,
    service: Service,
    connections: usize,
    thread: usize,
    counts: Arc<[Shared]>,
}

impl Worker {
    fn run(self, queue: Queue, networks: Vec<Prefix>, ready: impl FnOnce()) -> Result<Infallible, Reason> {
        let mut stack = Stack::on_queue(queue, networks);
        let limits = &mut stack.config().limits;
        limits.flows = limits.flows.max(self.connections + 64);
        limits.active = limits.active.max(self.connections.min(4096));
        if self.service != Service::Echo {
            // As the kernel gives a stream that can use it.
            (limits.receive_buffer, limits.send_buffer) = (BULK_WINDOW, BULK_WINDOW);
        }
        let config = match self.service {
            Service::Echo => config(SIZE, self.connections),
            _ => Config { read_buffers: 64, buffer_size: BULK_BUFFER, ..Config::default() },
        };
        let mut channel = Channel::new(config)?;
        channel.attach(stack)?;
        let listener = channel.listen_on(self.address, BACKLOG, 0)?;
        channel.set_nodelay(listener, true)?;
        channel.accept(listener, AcceptCount::Unlimited, AcceptAs::LwSocket)?;
        if self.thread == 0 {
            let control = io::stdin().as_fd().try_clone_to_owned()?;
            let control = channel.register(control, CONTROL)?;
            channel.read_stream(control)?;
        }
        ready();
        let mut server = Server::new(channel, vec![b'a'; SIZE].leak(), self.connections);
        let bulk: &'static [u8] = vec![b'a'; BULK].leak();
        loop {
            let completion = match server.channel.dispatch(None) {
                Ok(Some(completion)) => completion,
                Ok(None) | Err(DispatchError::Interrupted) => continue,
                Err(error) => return Err(error.into()),
            };
            self.counts[self.thread].publish(&server.channel.stats());
            let Completion { handle, cookie, event, .. } = completion;
            match (cookie, self.service) {
                (CONTROL, _) if matches!(event, Event::Read { result: Ok(1..), .. }) => {
                    part::print(&self.counts.iter().map(Shared::counts).collect::<Vec<_>>())?;
                }
                (CONTROL, _) => return Err("the controller has gone".into()),
                (_, Service::Echo) => server.handle(handle, cookie, event)?,
                (_, Service::Source) => stream(&mut server.channel, handle, event, Some(bulk))?,
                (_, Service::Sink) => stream(&mut server.channel, handle, event, None)?,
            }
        }
    }
}

/// Writes these as fast as the peer reads, two writes queued at a time; or reads and drops.
fn stream(
    channel: &mut Channel,
    handle: Handle,
    event: Event,
    bytes: Option<&'static [u8]>,
) -> Result<(), Reason> {
    match (event, bytes) {
        (Event::Accept { result, .. }, _) => {
            let connection = channel.register(result?.socket, 0)?;
            match bytes {
                Some(bytes) => (0..2).try_for_each(|_| channel.write(connection, bytes).map(drop))?,
                None => drop(channel.read_stream(connection)?),
            }
        }
        (Event::Write { result: Ok(_), .. }, Some(bytes)) => drop(channel.write(handle, bytes)?),
        (Event::Read { result: Ok(1..), .. }, _) => {}
        (Event::Read { .. } | Event::Write { .. }, _) => drop(channel.close(handle)),
        _ => {}
    }
    Ok(())
}

/// Bytes that a stream may have on its way, in bulk.
const BULK_WINDOW: u32 = 1 << 20;

/// Bytes of a buffer for bulk.
const BULK_BUFFER: u32 = 64 << 10;

const BACKLOG: u32 = 4096;
