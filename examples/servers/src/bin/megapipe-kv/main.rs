//! A cache that speaks the memcached text protocol.

mod clock;
mod command;
mod partial;
mod session;
mod stats;
mod store;

use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Parser;
use clock::Clock;
use servers::{Output, Progress, Server, ServerArguments, Traffic};
use session::Session;
use stats::{Counter, Counters, Totals};
use store::{Limits, Store};

/// The greatest `--max-item-size`, as in memcached.
const MAX_ITEM_SIZE: usize = 1 << 30;

/// What `version` answers: clients read the first three numbers as the memcached release whose
/// commands they may use.
const VERSION: &str = concat!("1.6.0-megapipe-", env!("CARGO_PKG_VERSION"));

/// A cache that speaks the memcached text protocol
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    server: ServerArguments<11211>,
    /// Memory for items and for requests that have come in part, in MiB; the least used items are evicted to stay
    /// within it
    #[arg(
        long,
        value_name = "MIB",
        default_value = "64",
        value_parser = parse_memory_limit,
        allow_hyphen_values = true
    )]
    memory_limit: u64,
    /// Largest value, in bytes, or with k or m in KiB or MiB
    #[arg(long, value_name = "SIZE", default_value = "1m", value_parser = parse_size, allow_hyphen_values = true)]
    max_item_size: usize,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    servers::serve("megapipe-kv", || run(&arguments))
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let memory = arguments.memory_limit.saturating_mul(1 << 20);
    let store = Store::new(Limits { memory, value: arguments.max_item_size })?;
    let server = Server::bind(&arguments.server)?;
    let settings = Settings { address: server.address(), max_connections: server.max_connections() };
    let totals = Totals::new(server.threads());
    Ok(server.run(Service { store, totals, clock: Clock::start(), settings })?)
}

/// What the threads of one server share.
struct Service {
    store: Store,
    totals: Totals,
    clock: Clock,
    settings: Settings,
}

/// What `stats` tells of how the server was started.
#[derive(Clone, Copy, Debug)]
struct Settings {
    address: SocketAddr,
    max_connections: usize,
}

/// The service as one of its threads sees it.
#[derive(Clone, Copy)]
struct Worker<'a> {
    service: &'a Service,
    counters: &'a Counters,
}

impl<'a> Worker<'a> {
    fn new(service: &'a Service, thread: usize) -> Self {
        Self { service, counters: service.totals.thread(thread) }
    }
}

impl servers::Service for Service {
    type Session = Session;

    fn receive(&self, thread: usize, session: &mut Session, input: &[u8], output: &mut Output) -> Progress {
        session.receive(input, Worker::new(self, thread), output)
    }

    fn refusal(&self) -> &'static [u8] {
        b"ERROR Too many open connections\r\n"
    }

    fn count(&self, thread: usize, traffic: Traffic) {
        let counters = self.totals.thread(thread);
        match traffic {
            Traffic::Opened => counters.count(Counter::TotalConnections),
            Traffic::Closed => counters.count(Counter::ClosedConnections),
            Traffic::Refused => counters.count(Counter::RejectedConnections),
            Traffic::Read(bytes) => counters.add(Counter::BytesRead, bytes as u64),
            Traffic::Written(bytes) => counters.add(Counter::BytesWritten, bytes as u64),
        }
    }
}

/// A number of MiB that this machine has.
fn parse_memory_limit(text: &str) -> Result<u64, String> {
    let available = servers::memory() >> 20;
    match text.parse::<u64>() {
        Ok(0) => Err("the cache could hold nothing; give it some MiB, such as 64".to_owned()),
        Ok(limit) if limit > available => {
            Err(format!("there are {available} MiB of memory here; give it some of them, such as 64"))
        }
        Ok(limit) => Ok(limit),
        Err(_) => Err("a whole number of MiB without a unit is needed, such as 64".to_owned()),
    }
}

/// A number of bytes, with or without a unit.
fn parse_size(text: &str) -> Result<usize, String> {
    let (digits, shift) = match text.char_indices().last() {
        Some((end, 'k' | 'K')) => (&text[..end], 10),
        Some((end, 'm' | 'M')) => (&text[..end], 20),
        _ => (text, 0),
    };
    let size = digits.parse::<usize>().ok().and_then(|size| size.checked_mul(1 << shift));
    match size {
        Some(size @ 1..=MAX_ITEM_SIZE) => Ok(size),
        _ => Err(format!("a size from 1 to {}m, such as 512k, is needed", MAX_ITEM_SIZE >> 20)),
    }
}
