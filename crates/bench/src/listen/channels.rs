//! A server on channels: threads with a channel each, on one listening socket or on partitioned ones.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use megapipe::{Channel, Completion, Config, DispatchError, EngineKind, Event};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use serde::{Deserialize, Serialize};
use signal_hook::iterator::Signals;
use socket2::{Domain, Socket, Type};

use super::{HANG, Variant, WORKERS};
use crate::Reason;
use crate::part::{self, Part};
use crate::peer::megapipe::accepting;

/// How the server is to be.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Task {
    /// Where it listens.
    pub address: SocketAddr,
    /// Whether they are on io_uring, or else on epoll.
    pub uring: bool,
    /// How the channels share the listener.
    pub variant: Variant,
}

const BACKLOG: i32 = 4096;
const ANSWER: &[u8] = b"HTTP/1.0 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";
/// Whether the first worker is to hang.
static HANGS: AtomicBool = AtomicBool::new(false);

/// The name of a worker's thread.
pub(super) fn thread_name(worker: usize) -> String {
    format!("worker-{worker}")
}

impl Part for Task {
    const NAME: &'static str = "listen-channels";

    /// Serves until it is ended. After SIGUSR1 the first worker hangs for a time, as soon as it has no connection, and
    /// then ends without having waited again.
    fn run(self) -> Result<(), Reason> {
        let mut signals = Signals::new([libc::SIGUSR1])?;
        if self.variant == Variant::Reuseport {
            without_bpf()?;
        }
        let socket = Arc::new(listener(&self)?);
        let (made, first) = mpsc::channel();
        for number in 0..WORKERS {
            let (task, socket, made) = (self.clone(), socket.clone(), made.clone());
            part::start_thread(thread_name(number), move || {
                let worker = Worker::new(&task, &socket, number)?;
                if number == 0 {
                    made.send(worker.channel.waker())?;
                }
                worker.serve()
            })?;
        }
        let waker = first.recv()?;
        for _ in &mut signals {
            HANGS.store(true, Ordering::Relaxed);
            waker.wake();
        }
        Ok(())
    }
}

/// Threads that start later have no right to bpf(2) either.
fn without_bpf() -> Result<(), Reason> {
    let mut sets = capabilities(None)?;
    sets.effective -= CapabilitySet::BPF | CapabilitySet::SYS_ADMIN;
    Ok(set_capabilities(None, sets)?)
}

fn listener(task: &Task) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(task.address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&task.address.into())?;
    if !is_partitioned(task.variant) {
        socket.listen(BACKLOG)?;
    }
    Ok(socket)
}

fn is_partitioned(variant: Variant) -> bool {
    match variant {
        Variant::Plain | Variant::PlainAgain => false,
        Variant::Reuseport | Variant::Local => true,
    }
}

struct Worker {
    number: usize,
    channel: Channel,
    /// Connections.
    open: usize,
}

impl Worker {
    fn new(task: &Task, socket: &Socket, number: usize) -> Result<Worker, Reason> {
        let engine = if task.uring { EngineKind::Uring } else { EngineKind::Epoll };
        let config = Config { engine: Some(engine), handles_max: 16_384, ..Config::default() };
        let partition = is_partitioned(task.variant).then_some(number);
        let channel = accepting(config, socket, partition)?;
        Ok(Worker { number, channel, open: 0 })
    }

    fn serve(mut self) -> Result<(), Reason> {
        crate::cpu::pin(&[self.number % thread::available_parallelism()?.get()])?;
        loop {
            let hangs = self.number == 0 && HANGS.load(Ordering::Relaxed);
            // Nothing that was accepted may be left when it hangs.
            let timeout = hangs.then_some(Duration::ZERO);
            match self.channel.dispatch(timeout) {
                Ok(Some(completion)) => self.handle(completion)?,
                Ok(None) if hangs && self.open == 0 => {
                    thread::sleep(HANG);
                    return Ok(());
                }
                Ok(None) | Err(DispatchError::Interrupted) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn handle(&mut self, completion: Completion) -> Result<(), Reason> {
        let channel = &mut self.channel;
        match completion.event {
            Event::Accept { result, .. } => {
                let socket = result?.socket;
                let connection = channel.register(socket, 0)?;
                channel.read_stream(connection)?;
                self.open += 1;
                return Ok(());
            }
            // A request is one segment, and a client that does not read is its own affair.
            Event::Read { result: Ok(1..), .. } => drop(channel.write_quiet(completion.handle, ANSWER)),
            Event::Read { .. } | Event::Write { .. } => {}
            _ => return Ok(()),
        }
        if channel.close(completion.handle).is_ok() {
            self.open -= 1;
        }
        Ok(())
    }
}
