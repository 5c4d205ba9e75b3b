//! Megapipe itself: one channel per thread, on either engine.

use std::convert::Infallible;
use std::io;

use megapipe::{AcceptAs, AcceptCount, Channel, Config, DispatchError, EngineKind, Event, Handle, ReadData};

use super::{Arrived, Worker};
use crate::buffer_ring::BufferSize;

pub(super) fn run(worker: &Worker, engine: EngineKind) -> io::Result<Infallible> {
    let buffers = BufferSize::of(worker.size, worker.connections);
    let config = Config {
        engine: Some(engine),
        read_buffers: buffers.count,
        buffer_size: buffers.length as u32,
        // Answers are static data: a queue of them holds up no reader.
        write_queue_max: 4096,
        ..Config::default()
    };
    let mut channel = Channel::new(config).map_err(io::Error::other)?;
    let listener = channel.register(worker.listener.try_clone()?, 0).map_err(io::Error::other)?;
    channel.accept(listener, AcceptCount::Unlimited, AcceptAs::LwSocket).map_err(io::Error::other)?;
    let mut server = Server {
        response: worker.response(),
        size: worker.size,
        connections: Vec::with_capacity(worker.connections + 64),
        free: Vec::new(),
        channel,
    };
    worker.ready();
    loop {
        match server.channel.dispatch(None) {
            Ok(Some(completion)) => server.handle(completion.handle, completion.cookie, completion.event)?,
            Ok(None) | Err(DispatchError::Interrupted) => {}
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}

struct Server {
    channel: Channel,
    response: &'static [u8],
    size: usize,
    /// By cookie.
    connections: Vec<Arrived>,
    free: Vec<u64>,
}

impl Server {
    #[inline]
    fn handle(&mut self, handle: Handle, cookie: u64, event: Event) -> io::Result<()> {
        match event {
            Event::Read { result: Ok(count @ 1..), data, .. } => {
                drop::<ReadData>(data);
                let arrived = &mut self.connections[cookie as usize];
                for _ in 0..arrived.whole_messages(count, self.size) {
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
                let socket = result.map_err(io::Error::other)?.socket;
                let cookie = self.free.pop().unwrap_or_else(|| {
                    self.connections.push(Arrived::default());
                    self.connections.len() as u64 - 1
                });
                self.connections[cookie as usize] = Arrived::default();
                let connection = self.channel.register(socket, cookie).map_err(io::Error::other)?;
                self.channel.read_stream(connection).map_err(io::Error::other)?;
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
