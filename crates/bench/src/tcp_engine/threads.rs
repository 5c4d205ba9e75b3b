//! Threads that have nothing in common: each has two hosts, joined by a link in memory, that exchange
//! small messages on some connections.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use packet::{Batch, Capabilities, Device, link};
use tcp::{Config, Event, Flow, Host, Limits, Listener, Pattern, Prefix, Read, Time};

use super::clients::PORT;
use crate::{clock, cpu};

/// Connections of a thread.
const CONNECTIONS: usize = 64;
/// Bytes of a message and of its answer.
const MESSAGE: usize = 64;
/// Between two rounds of sending and receiving under the hosts' clock.
const STEP_MICROS: u64 = 10;
/// Rounds between two readings of the real clock.
const ROUNDS: usize = 64;

/// What the threads of a measurement did.
pub(super) struct Rate {
    /// Transactions a second of all threads.
    pub(super) per_s: f64,
    /// Transactions for a second of CPU time, summed over the threads.
    pub(super) per_cpu_s: f64,
}

/// Runs a thread on each of the CPUs, all at the same time.
pub(super) fn measure(cpus: &[usize], window: Duration) -> Result<Rate, String> {
    let barrier = &Barrier::new(cpus.len());
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            cpus.iter().map(|&cpu| scope.spawn(move || run(cpu, window, barrier))).collect();
        let mut all = Rate { per_s: 0.0, per_cpu_s: 0.0 };
        for thread in threads {
            let one = thread.join().map_err(|_| "a thread panicked")??;
            all.per_s += one.per_s;
            all.per_cpu_s += one.per_cpu_s;
        }
        Ok(all)
    })
}

fn run(cpu: usize, window: Duration, barrier: &Barrier) -> Result<Rate, String> {
    let ready = cpu::pin(&[cpu]).map_err(|error| error.to_string()).and_then(|()| Pair::open());
    // The others wait for this thread, also where it fails.
    barrier.wait();
    let mut pair = ready?;
    let clock = || clock::of_this_thread().map_err(|error| error.to_string());
    let (begin, begin_cpu) = (Instant::now(), clock()?);
    let mut transactions = 0;
    while begin.elapsed() < window {
        for _ in 0..ROUNDS {
            transactions += pair.round()?;
        }
    }
    let (elapsed, used) = (begin.elapsed(), clock()? - begin_cpu);
    let over = |time: Duration| transactions as f64 / time.as_secs_f64();
    Ok(Rate { per_s: over(elapsed), per_cpu_s: over(used) })
}

/// A client's host and a server's.
struct Pair {
    client: End,
    server: End,
    listener: Listener,
    now: Time,
}

struct End {
    host: Host,
    device: link::Link,
    batch: Batch,
    room: [u8; MESSAGE],
}

impl Pair {
    /// Opens all connections, and has a message sent on each.
    fn open() -> Result<Self, String> {
        let capabilities = Capabilities { mtu: 1500, checksum: true, segment: 65_535 };
        let (left, right) = link::pair(capabilities, 2 * CONNECTIONS);
        let (mut client, mut server) = (End::new(1, left, capabilities), End::new(2, right, capabilities));
        let pattern = Pattern { address: None, port: Some(PORT) };
        let listener = server.host.listen(pattern, CONNECTIONS).map_err(|error| error.to_string())?;
        let now = Time::from_micros(0);
        let remote = SocketAddr::new(address(2), PORT);
        for _ in 0..CONNECTIONS {
            let flow = client.host.connect(now, None, None, remote).map_err(|error| error.to_string())?;
            // Sent once the connection is open.
            client.host.write(now, flow, &[7; MESSAGE]).map_err(|error| error.to_string())?;
        }
        let mut pair = Pair { client, server, listener, now };
        // Packets of the handshakes go back and forth; then each round answers all.
        for _ in 0..8 {
            pair.round()?;
        }
        Ok(pair)
    }

    /// A round of sending and receiving at both ends; returns the answers that the client has.
    fn round(&mut self) -> Result<u64, String> {
        self.now = Time::from_micros(self.now.micros() + STEP_MICROS);
        self.client.pump(self.now)?;
        self.server.pump(self.now)?;
        while self.server.host.accept(self.listener).is_some() {}
        self.server.answer(self.now)?;
        self.server.pump(self.now)?;
        self.client.pump(self.now)?;
        self.client.answer(self.now)
    }
}

impl End {
    fn new(last: u8, device: link::Link, capabilities: Capabilities) -> Self {
        let mut config = Config::new(vec![Prefix::one(address(last))], capabilities);
        config.limits = Limits { flows: CONNECTIONS, active: CONNECTIONS, ..Limits::default() };
        End { host: Host::new(config, [last; 32]), device, batch: Batch::new(64 << 10), room: [0; MESSAGE] }
    }

    fn pump(&mut self, now: Time) -> Result<(), String> {
        let words = |error: std::io::Error| error.to_string();
        self.host.advance(now);
        loop {
            self.batch.clear();
            if self.device.receive(&mut self.batch).map_err(words)? == 0 {
                break;
            }
            self.host.input(now, self.batch.frames());
        }
        loop {
            let more = self.host.output(now, &mut self.batch);
            self.device.send(&mut self.batch).map_err(words)?;
            if !more {
                return Ok(());
            }
        }
    }

    /// Writes as much as it reads, on every connection; returns the messages.
    fn answer(&mut self, now: Time) -> Result<u64, String> {
        let mut messages = 0;
        while let Some(event) = self.host.event() {
            if let Event::Flow { flow, .. } = event {
                messages += self.answer_one(now, flow)?;
            }
        }
        Ok(messages)
    }

    fn answer_one(&mut self, now: Time, flow: Flow) -> Result<u64, String> {
        match self.host.read(now, flow, &mut self.room) {
            Ok(Read::Bytes(MESSAGE)) => {
                self.host.write(now, flow, &self.room).map_err(|error| error.to_string())?;
                Ok(1)
            }
            Ok(Read::Empty) => Ok(0),
            other => Err(format!("a message came as {other:?}")),
        }
    }
}

fn address(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
}
