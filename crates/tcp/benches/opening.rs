//! What accepting and closing a connection costs beside so many others: `cargo bench -p megapipe-tcp --bench opening`.
//!
//! A host of clients in the same process connects before the clock is read, and resets after it. A sample is 64
//! connections: divide by 64 for the time of one. bench-results/sockets has the kernel's.

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use divan::Bencher;
use packet::{Batch, Capabilities};
use tcp::{Config, Flow, Host, Limits, Listener, Pattern, Prefix, Time};

fn main() {
    divan::main();
}

#[divan::bench(args = [0, 1_000, 100_000], sample_size = 1, sample_count = 400)]
fn accept_and_close(bencher: Bencher<'_, '_>, others: usize) {
    let network = RefCell::new(Network::new(others + BURST));
    for at in (0..others).step_by(BURST) {
        let mut network = network.borrow_mut();
        network.connect(BURST.min(others - at));
        network.accept();
        network.accepted.clear();
        network.clients.clear();
    }
    let between = || {
        let mut network = network.borrow_mut();
        network.reset();
        network.connect(BURST);
    };
    bencher.with_inputs(between).bench_local_values(|()| network.borrow_mut().serve());
}

/// Clients, a server, and what goes from one to the other.
struct Network {
    hosts: [Host; 2],
    listener: Listener,
    clients: Vec<Flow>,
    accepted: Vec<Flow>,
    batch: Batch,
    now: Time,
    connected: usize,
}

impl Network {
    fn new(flows: usize) -> Self {
        let mut hosts = [CLIENT, SERVER].map(|side| {
            let capabilities = Capabilities { mtu: 1500, checksum: true, segment: 65_535 };
            let mut config = Config::new(vec![Prefix::one(ADDRESSES[side].into())], capabilities);
            config.limits = Limits { flows, ..Limits::default() };
            Host::new(config, [side as u8; 32])
        });
        let pattern = Pattern { address: None, port: None };
        let listener = hosts[SERVER].listen(pattern, BURST).expect("there is no other listener");
        Self {
            hosts,
            listener,
            clients: Vec::new(),
            accepted: Vec::new(),
            batch: Batch::new(256 << 10),
            now: Time::from_micros(0),
            connected: 0,
        }
    }

    /// Connects so many clients, whom the server has not accepted.
    fn connect(&mut self, count: usize) {
        for _ in 0..count {
            // More connections than a client has ports go to several of the server.
            let port = 7 + (self.connected / 10_000 % 100) as u16;
            self.connected += 1;
            let remote = SocketAddr::new(ADDRESSES[SERVER].into(), port);
            self.clients.push(self.hosts[CLIENT].connect(self.now, None, None, remote).expect("a free port"));
        }
        self.exchange();
        assert_eq!(self.hosts[SERVER].waiting(self.listener), count);
    }

    fn accept(&mut self) {
        let listener = self.listener;
        self.accepted.extend(std::iter::from_fn(|| self.hosts[SERVER].accept(listener)));
    }

    /// What is measured: the server's calls, and the packets that come of them.
    fn serve(&mut self) {
        self.accept();
        assert_eq!(self.accepted.len(), BURST);
        let server = &mut self.hosts[SERVER];
        for flow in self.accepted.drain(..) {
            server.close(self.now, flow);
        }
        self.batch.clear();
        while server.output(self.now, &mut self.batch) {}
    }

    fn reset(&mut self) {
        for flow in self.clients.drain(..) {
            self.hosts[CLIENT].abort(self.now, flow);
        }
        self.exchange();
    }

    /// Moves packets until both are quiet.
    fn exchange(&mut self) {
        self.now = self.now.after(Duration::from_micros(10));
        let mut quiet = 0;
        while quiet < 4 {
            for side in [CLIENT, SERVER] {
                self.batch.clear();
                self.hosts[side].advance(self.now);
                self.hosts[side].output(self.now, &mut self.batch);
                quiet = if self.batch.is_empty() { quiet + 1 } else { 0 };
                self.hosts[1 - side].input(self.now, self.batch.frames());
            }
        }
        for host in &mut self.hosts {
            while host.event().is_some() {}
        }
    }
}

/// Connections of a sample.
const BURST: usize = 64;

const CLIENT: usize = 0;
const SERVER: usize = 1;
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(192, 168, 0, 1)];
