//! Memory of idle connections: a process with a channel, a stack and nothing else. The peers are a device
//! that answers by arithmetic and remembers only the packets that it has not answered yet.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use megapipe::{AcceptAs, AcceptCount, Channel, Config, EngineKind, Event, ReadData, Stack};
use packet::{BATCH_FRAMES, Batch, Capabilities, Checksum, Device};
use serde::{Deserialize, Serialize};
use tcp::{Limits, Prefix};

use super::clients::{Answer, Clients, PORT, SERVER};
use crate::child::Child;

/// The hidden verb under which the program is the process with the connections.
pub const IDLE_VERB: &str = "tcp-idle";

/// Bytes that each client sends, and gets back, before it is idle.
const MESSAGE: usize = 64;

/// Connections that may be half-open or not yet accepted.
const OPENING: usize = 64;

/// Resident bytes of the process.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Resident {
    /// Before it has a channel.
    pub bare: u64,
    /// With a channel and a stack, whose tables are reserved, before it listens.
    pub before: u64,
    /// With all connections idle.
    pub idle: u64,
}

/// Starts the process, and has it report.
pub(super) fn measure(program: &Path, connections: u32) -> Result<Resident, String> {
    let mut command = Command::new(program);
    command.args([IDLE_VERB, "--connections", &connections.to_string()]);
    let mut child = Child::start(&mut command).map_err(|error| error.to_string())?;
    let mut report = String::new();
    let mut output = child.stdout.take().ok_or("the process has no output")?;
    output.read_to_string(&mut report).map_err(|error| error.to_string())?;
    serde_json::from_str(&report).map_err(|_| child.complaint().unwrap_or("the process has gone".to_owned()))
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum IdleError {
    /// The channel cannot be made, attached or turned.
    #[error("the channel: {0}")]
    Channel(Box<dyn std::error::Error + Send + Sync>),
    /// Something else than a connection and its message came.
    #[error("unexpected: {0}")]
    Unexpected(String),
    /// The kernel does not report what is resident.
    #[error("cannot read what is resident in /proc/self/smaps_rollup")]
    Resident(#[source] io::Error),
}

/// Opens so many connections, answers a message on each, and prints what is resident.
pub fn hold(connections: u32) -> Result<(), IdleError> {
    let bare = resident()?;
    // On io_uring RLIMIT_NOFILE bounds lightweight sockets, those of a stack included.
    let config =
        Config { engine: Some(EngineKind::Epoll), lwsockets_max: 2 * connections + 128, ..Config::default() };
    let mut channel = Channel::new(config).map_err(channel_error)?;
    let mut stack = Stack::polled(Peers::new(connections), vec![Prefix { address: SERVER.into(), bits: 0 }]);
    stack.config().limits =
        Limits { flows: connections as usize, half_open: 2 * OPENING, time_wait: 128, ..Limits::default() };
    channel.attach(stack).map_err(channel_error)?;
    let before = resident()?;
    let listener =
        channel.listen_on(SocketAddr::new(SERVER.into(), PORT), OPENING as u32, 0).map_err(channel_error)?;
    channel.accept(listener, AcceptCount::Unlimited, AcceptAs::LwSocket).map_err(channel_error)?;
    let mut answered = 0;
    let mut quiet = 0;
    // The acknowledgements of the last answers come within a few turns.
    while answered < connections || quiet < 8 {
        let Some(completion) = channel.dispatch(Some(Duration::ZERO)).map_err(channel_error)? else {
            quiet += 1;
            continue;
        };
        quiet = 0;
        match completion.event {
            Event::Accept { result: Ok(accepted), .. } => {
                let handle = channel.register(accepted.socket, 0).map_err(channel_error)?;
                channel.read_stream(handle).map_err(channel_error)?;
            }
            Event::Read { result: Ok(MESSAGE), data: ReadData::Buffer(buffer), more: true } => {
                channel.write_quiet(completion.handle, buffer).map_err(channel_error)?;
                answered += 1;
            }
            other => return Err(IdleError::Unexpected(format!("{other:?}"))),
        }
    }
    let resident = Resident { bare, before, idle: resident()? };
    println!("{}", serde_json::to_string(&resident).expect("numbers are JSON"));
    // Closing a hundred thousand connections one after the other is not what is measured.
    std::process::exit(0);
}

fn channel_error(error: impl std::error::Error + Send + Sync + 'static) -> IdleError {
    IdleError::Channel(Box::new(error))
}

/// Resident bytes of this process, counted exactly.
fn resident() -> Result<u64, IdleError> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").map_err(IdleError::Resident)?;
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or(IdleError::Resident(io::ErrorKind::InvalidData.into()))
}

/// A device at whose other end clients connect one after the other, send a message each, and are idle.
struct Peers {
    clients: Clients,
    connections: u32,
    /// Clients that have begun.
    begun: u32,
    /// Packets of the stack that are not answered yet.
    unanswered: VecDeque<Answer>,
}

impl Peers {
    fn new(connections: u32) -> Self {
        let clients = Clients::new(1, MESSAGE, Checksum::Verified);
        Self { clients, connections, begun: 0, unanswered: VecDeque::with_capacity(2 * BATCH_FRAMES) }
    }
}

impl Device for Peers {
    fn capabilities(&self) -> Capabilities {
        Capabilities { mtu: 1500, checksum: true, segment: 0 }
    }

    fn receive(&mut self, batch: &mut Batch) -> io::Result<usize> {
        let before = batch.len();
        // An answer is two packets at most.
        while batch.len() + 2 <= BATCH_FRAMES
            && let Some(answer) = self.unanswered.pop_front()
        {
            self.clients.react(&answer, batch);
        }
        while batch.len() < OPENING.min(BATCH_FRAMES) / 2 && self.begun < self.connections {
            self.clients.open(self.begun, batch);
            self.begun += 1;
        }
        Ok(batch.len() - before)
    }

    fn send(&mut self, batch: &mut Batch) -> io::Result<usize> {
        let sent = batch.len();
        self.unanswered.extend(batch.frames().filter_map(|frame| Answer::of(frame.bytes)));
        batch.clear();
        Ok(sent)
    }
}
