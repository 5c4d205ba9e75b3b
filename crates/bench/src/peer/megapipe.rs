//! Megapipe itself: one channel per thread, on either engine.

use std::convert::Infallible;
use std::os::fd::AsFd;

use megapipe::{
    AcceptAs, AcceptCount, Channel, Config, CpuSet, DispatchError, EngineKind, Event, Handle, ReadData,
};

use super::{Arrived, Worker};
use crate::Reason;

use crate::engine::Engine;
use crate::ring::BufferSize;

pub(super) fn run(worker: &Worker, engine: EngineKind) -> Result<Infallible, Reason> {
    let config = Config { engine: Some(engine), ..config(worker.options.size, worker.options.connections) };
    let partition = (worker.options.engine == Engine::MegapipePartitioned).then_some(worker.cpu);
    let channel = accepting(config, &worker.listener, partition)?;
    let mut server = Server::new(channel, worker.response(), worker.options.connections);
    worker.ready();
    loop {
        match server.channel.dispatch(None) {
            Ok(Some(completion)) => server.handle(completion.handle, completion.cookie, completion.event)?,
            Ok(None) | Err(DispatchError::Interrupted) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// A channel that accepts connections, those of one CPU alone if the listener is partitioned.
pub(crate) fn accepting(
    config: Config,
    listener: &impl AsFd,
    partition: Option<usize>,
) -> Result<Channel, Reason> {
    let mut channel = Channel::new(config)?;
    let listener = match partition {
        Some(cpu) => channel.register_partitioned(listener.as_fd(), 0, &CpuSet::of(cpu as u32))?,
        None => channel.register(listener.as_fd().try_clone_to_owned()?, 0)?,
    };
    channel.accept(listener, AcceptCount::Unlimited, AcceptAs::LwSocket)?;
    Ok(channel)
}

/// For messages of `size` bytes on so many connections.
pub(crate) fn config(size: usize, connections: usize) -> Config {
    let buffers = BufferSize::of(size, connections);
    Config {
        read_buffers: buffers.count,
        buffer_size: buffers.length as u32,
        // Answers are static data: a queue of them holds up no reader.
        write_queue_max: 4096,
        ..Config::default()
    }
}

/// Answers each message with another of the same length.
pub(crate) struct Server {
    pub(crate) channel: Channel,
    response: &'static [u8],
    /// By cookie.
    connections: Vec<Arrived>,
    free: Vec<u64>,
}

impl Server {
    pub(crate) fn new(channel: Channel, response: &'static [u8], connections: usize) -> Self {
        Self { channel, response, connections: Vec::with_capacity(connections + 64), free: Vec::new() }
    }

    #[inline]
    pub(crate) fn handle(&mut self, handle: Handle, cookie: u64, event: Event) -> Result<(), Reason> {
        match event {
            Event::Read { result: Ok(count @ 1..), data, .. } => {
                drop::<ReadData>(data);
                let arrived = &mut self.connections[cookie as usize];
                for _ in 0..arrived.whole_messages(count, self.response.len()) {
                    if self.channel.write_quiet(handle, self.response).is_err() {
                        self.close(handle, cookie); // it asks and asks, and reads no answer
                        break;
                    }
                }
            }
            // End of file, a reset, or a write that failed: at most one of them comes
            // through, since a closed handle has no completions.
            Event::Read { .. } | Event::Write { .. } => self.close(handle, cookie),
            Event::Accept { result, .. } => {
                let socket = result?.socket;
                let cookie = self.free.pop().unwrap_or_else(|| {
                    self.connections.push(Arrived::default());
                    self.connections.len() as u64 - 1
                });
                self.connections[cookie as usize] = Arrived::default();
                let connection = self.channel.register(socket, cookie)?;
                self.channel.read_stream(connection)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn close(&mut self, handle: Handle, cookie: u64) {
        if self.channel.close(handle).is_ok() {
            self.free.push(cookie);
        }
    }
}
