//! The load: short connections with one request each, at a rate or as fast as answers come.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use socket2::{Domain, Socket, Type};

use crate::epoll::Epoll;

/// What to ask of a server.
#[derive(Debug, Clone)]
pub struct Task {
    /// Where it listens.
    pub server: SocketAddr,
    /// Connections a second, begun whether or not earlier ones were answered; else so many at a time.
    pub pace: Pace,
    /// For how long connections are begun.
    pub length: Duration,
    /// Every so many requests asks for `BLOCKING` instead of `/`; 0: none.
    pub blocking_every: u64,
}

/// How connections are begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// An open loop: so many a second.
    Rate(u64),
    /// A closed loop: so many at a time.
    AtATime(usize),
}

/// What came of it. Latencies are of requests for `/`, from when their connection was due to the end of the answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Connections that were answered whole, per second.
    pub connections_per_s: f64,
    /// How many.
    pub answered: u64,
    /// Connections refused, reset, or closed without an answer.
    pub errors: u64,
    /// Those without an answer `PATIENCE` after the last was begun.
    pub unfinished: u64,
    /// Latencies of more than `SLOW`.
    pub slow: u64,
    /// Latencies of more than `STUCK`; records before it was counted have none.
    #[serde(default)]
    pub stuck: u64,
    /// The median latency, microseconds.
    pub p50_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The 99.9th percentile.
    pub p999_us: f64,
}

/// The path that blocks the worker of [`super::server`].
pub(super) const BLOCKING: &str = "/block";
/// How long the last answers are waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// A latency that a user would notice beside the others.
const SLOW: Duration = Duration::from_millis(10);
/// A latency that only a worker that does not go on causes, not one that waits for a CPU.
const STUCK: Duration = Duration::from_millis(400);
/// Connections at a time.
const MOST: usize = 20_000;

struct Connection {
    due: Instant,
    blocking: bool,
    sent: bool,
    answered: bool,
    socket: Socket,
}

/// Makes the connections.
///
/// # Errors
///
/// This process cannot have its sockets.
pub fn run(task: &Task) -> io::Result<Outcome> {
    crate::child::raise_descriptor_limit()?;
    let epoll = Epoll::new()?;
    let mut load = Load {
        task,
        latencies: Histogram::new_with_bounds(1, 60_000_000, 3).map_err(io::Error::other)?,
        open: Vec::new(),
        live: 0,
        begun: 0,
        outcome: Outcome::default(),
        epoll,
    };
    let elapsed = load.run()?;
    let Load { latencies, mut outcome, live, .. } = load;
    outcome.unfinished = live as u64;
    outcome.connections_per_s = outcome.answered as f64 / elapsed.as_secs_f64();
    let quantile = |share| latencies.value_at_quantile(share) as f64;
    (outcome.p50_us, outcome.p99_us, outcome.p999_us) = (quantile(0.5), quantile(0.99), quantile(0.999));
    Ok(outcome)
}

struct Load<'a> {
    task: &'a Task,
    epoll: Epoll,
    /// By descriptor.
    open: Vec<Option<Connection>>,
    live: usize,
    begun: u64,
    latencies: Histogram<u64>,
    outcome: Outcome,
}

impl Load<'_> {
    fn run(&mut self) -> io::Result<Duration> {
        let start = Instant::now();
        let end = start + self.task.length;
        let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; 256];
        loop {
            let now = Instant::now();
            if now >= end && (self.live == 0 || now >= end + PATIENCE) {
                return Ok(self.task.length);
            }
            while now < end
                && self.live < MOST
                && let Some(due) = self.next_due(start, now)
            {
                self.begin(due)?;
            }
            // A millisecond late at most: latencies count from when connections were due.
            let ready = self.wait(&mut events)?;
            for event in &events[..ready] {
                self.advance(event.u64 as usize, event.events);
            }
        }
    }

    fn wait(&self, events: &mut [libc::epoll_event]) -> io::Result<usize> {
        let milliseconds = if matches!(self.task.pace, Pace::Rate(_)) { 1 } else { 100 };
        Ok(self.epoll.wait(events, milliseconds)?.len())
    }

    /// When the next connection was due, if that is past.
    fn next_due(&self, start: Instant, now: Instant) -> Option<Instant> {
        match self.task.pace {
            Pace::AtATime(most) => (self.live < most).then_some(now),
            Pace::Rate(rate) => {
                let due = start + Duration::from_nanos(self.begun * 1_000_000_000 / rate.max(1));
                (due <= now).then_some(due)
            }
        }
    }

    fn begin(&mut self, due: Instant) -> io::Result<()> {
        self.begun += 1;
        let socket = Socket::new(Domain::for_address(self.task.server), Type::STREAM.nonblocking(), None)?;
        match socket.connect(&self.task.server.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => {
                self.outcome.errors += 1;
                return Ok(());
            }
            _ => {}
        }
        let fd = socket.as_raw_fd();
        self.epoll.control(libc::EPOLL_CTL_ADD, fd, fd as u64, libc::EPOLLOUT | libc::EPOLLIN)?;
        let place = fd as usize;
        if self.open.len() <= place {
            self.open.resize_with(place + 1, || None);
        }
        let every = self.task.blocking_every;
        let blocking = every > 0 && self.begun.is_multiple_of(every);
        self.open[place] = Some(Connection { due, blocking, sent: false, answered: false, socket });
        self.live += 1;
        Ok(())
    }

    fn advance(&mut self, place: usize, events: u32) {
        let Some(connection) = self.open.get_mut(place).and_then(Option::as_mut) else { return };
        let failed = events & (libc::EPOLLERR | libc::EPOLLHUP) as u32 != 0;
        if !connection.sent {
            let path = if connection.blocking { BLOCKING } else { "/" };
            let request = format!("GET {path} HTTP/1.0\r\nHost: megapipe\r\n\r\n");
            if failed || connection.socket.send(request.as_bytes()).is_err() {
                return self.end(place, false);
            }
            connection.sent = true;
            let _ = self.epoll.control(libc::EPOLL_CTL_MOD, place as i32, place as u64, libc::EPOLLIN);
            return;
        }
        let mut room = [0; 4096];
        match io::Read::read(&mut &connection.socket, &mut room) {
            Ok(0) => {
                let whole = connection.answered;
                self.end(place, whole);
            }
            Ok(_) => connection.answered = true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.end(place, false),
        }
    }

    fn end(&mut self, place: usize, answered: bool) {
        let Some(connection) = self.open[place].take() else { return };
        self.live -= 1;
        if !answered {
            self.outcome.errors += 1;
            return;
        }
        self.outcome.answered += 1;
        if !connection.blocking {
            let latency = connection.due.elapsed();
            self.outcome.slow += u64::from(latency > SLOW);
            self.outcome.stuck += u64::from(latency > STUCK);
            self.latencies.saturating_record(latency.as_micros() as u64);
        }
    }
}
