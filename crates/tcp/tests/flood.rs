//! A flood of SYNs from nobody beside a connection that is open and clients that are honest, 50 ms away. Under
//! virtual time: what the processor takes for it does not count here.
mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::syn::syn;
use common::trace::ms;
use common::{Net, OFFLOADS, PORT, address, config};
use packet::{Faults, Frame, Offload, Random};
use tcp::{Flow, Listener};

/// 100 Mbit/s.
const RATE: u64 = 12_500_000;
/// SYNs a millisecond, at once: 25,000 a second.
const SYNS: usize = 25;
const CLIENTS: usize = 100;
const ANSWER: usize = 10_000;

/// A client that waits for an answer.
struct Client {
    flow: Flow,
    received: usize,
}

struct Server {
    net: Net,
    listener: Listener,
    random: Random,
    /// The open connection, at either end.
    open: (Flow, Flow),
    received: usize,
    clients: Vec<Client>,
}

impl Server {
    fn new() -> Server {
        let mut net = Net::new([0, 1].map(|side| config(side, OFFLOADS)), 1);
        let faults = Faults { delay: ms(25), rate: RATE, queue: RATE / 20, ..Faults::default() };
        net.set_faults(0, faults);
        net.set_faults(1, faults);
        let listener = net.listen();
        let (now, remote) = (net.now, SocketAddr::new(address(1, false), PORT));
        let client = net.host(0).connect(now, None, None, remote).expect("a flow");
        net.run(ms(100));
        let open = (client, net.host(1).accept(listener).expect("a connection"));
        Server { net, listener, random: Random::new(1), open, received: 0, clients: Vec::new() }
    }

    /// Lets a millisecond pass, with a flood or without.
    fn pass(&mut self, floods: bool) {
        let now = self.net.now;
        if floods {
            let packets: Vec<_> = (0..SYNS).map(|_| syn(&mut self.random)).collect();
            let frames = packets.iter().map(|bytes| Frame { bytes, offload: Offload::default() });
            self.net.host(1).input(now, frames);
        }
        self.net.host(1).write(now, self.open.1, &vec![0; 1 << 20]).expect("open");
        self.net.run(ms(1));
        self.received += self.net.read_all(0, self.open.0).0.len();
        let now = self.net.now;
        while let Some(flow) = self.net.host(1).accept(self.listener) {
            assert_eq!(self.net.host(1).write(now, flow, &[0; ANSWER]), Ok(ANSWER));
        }
        for client in &mut self.clients {
            client.received += self.net.read_all(0, client.flow).0.len();
        }
    }

    /// Bytes that the open connection carries in this time.
    fn goodput(&mut self, time: Duration, floods: bool) -> usize {
        let before = self.received;
        (0..time.as_millis()).for_each(|_| self.pass(floods));
        self.received - before
    }
}

#[test]
fn open_connections_and_honest_clients_beside_a_flood() {
    let mut server = Server::new();
    server.goodput(ms(1_000), false);
    let quiet = server.goodput(ms(1_000), false);
    server.goodput(ms(500), true);
    let flooded = server.goodput(ms(1_000), true);
    for _ in 0..CLIENTS {
        let (now, remote) = (server.net.now, SocketAddr::new(address(1, false), PORT));
        let flow = server.net.host(0).connect(now, None, None, remote).expect("a flow");
        server.clients.push(Client { flow, received: 0 });
        (0..10).for_each(|_| server.pass(true));
    }
    (0..2_000).for_each(|_| server.pass(true));
    let served = server.clients.iter().filter(|client| client.received == ANSWER).count();
    let share = flooded as f64 / quiet as f64;
    println!("{share:.2} of the goodput; {served} of {CLIENTS} served");
    assert!(share >= 0.8, "{share:.2}");
    assert!(served * 100 >= CLIENTS * 99, "{served} of {CLIENTS}");
}
