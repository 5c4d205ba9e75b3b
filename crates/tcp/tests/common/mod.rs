//! Two hosts over a memory link, under virtual time.
#![allow(dead_code, reason = "each test program uses a part")]

pub(crate) mod syn;
pub(crate) mod trace;
pub(crate) mod watch;
mod wire;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use packet::link::{self, Link};
use packet::{Batch, Capabilities, Device, Direction, Faults, Faulty};
pub(crate) use wire::Wire;

use tcp::{Config, Flow, Host, Listener, Pattern, Prefix, Read, Time};

pub(crate) const OFFLOADS: Capabilities = Capabilities { mtu: 1500, checksum: true, segment: 65_535 };
pub(crate) const PLAIN: Capabilities = Capabilities { mtu: 1500, checksum: false, segment: 0 };
pub(crate) const PORT: u16 = 7;

/// Packets that may move while no time passes.
const PACKETS_AT_ONCE: usize = 1_000_000;

/// The address of a side.
pub(crate) fn address(side: usize, v6: bool) -> IpAddr {
    let last = side as u16 + 1;
    if v6 {
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last))
    } else {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, last as u8))
    }
}

pub(crate) fn config(side: usize, capabilities: Capabilities) -> Config {
    Config::new(vec![Prefix::one(address(side, false)), Prefix::one(address(side, true))], capabilities)
}

pub(crate) struct Side {
    pub(crate) host: Host,
    pub(crate) device: Faulty<Link>,
    into: Batch,
    out: Batch,
}

/// Two hosts and the time.
pub(crate) struct Net {
    pub(crate) now: Time,
    pub(crate) sides: [Side; 2],
    pub(crate) wire: Wire,
}

impl Net {
    pub(crate) fn new(configs: [Config; 2], seed: u64) -> Net {
        let (left, right) = link::pair(configs[0].capabilities, 100_000);
        let mut devices = [left, right].into_iter();
        let mut number = 0;
        let sides = configs.map(|config| {
            number += 1;
            let mut bytes = [number as u8; 32];
            bytes[..8].copy_from_slice(&seed.to_le_bytes());
            Side {
                host: Host::new(config, bytes),
                device: Faulty::new(devices.next().expect("two devices"), seed ^ number),
                into: Batch::new(1 << 20),
                out: Batch::new(1 << 20),
            }
        });
        Net { now: Time::from_micros(1_000_000), sides, wire: Wire::default() }
    }

    pub(crate) fn plain(capabilities: Capabilities) -> Net {
        Net::new([config(0, capabilities), config(1, capabilities)], 1)
    }

    pub(crate) fn host(&mut self, side: usize) -> &mut Host {
        &mut self.sides[side].host
    }

    /// What happens to packets that this side sends.
    pub(crate) fn set_faults(&mut self, side: usize, faults: Faults) {
        self.sides[side].device.set(Direction::Sent, faults);
    }

    /// Moves packets until nothing moves at this time. Returns how many moved.
    pub(crate) fn exchange(&mut self) -> usize {
        let mut total = 0;
        loop {
            let mut moved = 0;
            // Both first, or what is due on its way from the second side would wait for the next event.
            for side in &mut self.sides {
                side.device.advance(Duration::from_micros(self.now.micros())).expect("a memory link");
            }
            for side in &mut self.sides {
                side.host.advance(self.now);
                side.into.clear();
                moved += side.device.receive(&mut side.into).expect("a memory link");
                for frame in side.into.frames() {
                    self.wire.arrived(self.now.micros(), frame.bytes);
                }
                side.host.input(self.now, side.into.frames());
                let mut more = true;
                while more {
                    more = side.host.output(self.now, &mut side.out);
                    for frame in side.out.frames() {
                        self.wire.sent(self.now.micros(), frame.bytes, frame.offload.segment);
                    }
                    moved += side.device.send(&mut side.out).expect("a memory link");
                    assert!(total + moved < PACKETS_AT_ONCE, "packets without end at {:?}", self.now);
                }
            }
            total += moved;
            if moved == 0 {
                return total;
            }
        }
    }

    /// When something happens next.
    pub(crate) fn next(&self) -> Option<Time> {
        let times = self.sides.iter().flat_map(|side| {
            let device =
                side.device.deadline().map(|at| Time::from_micros(at.as_nanos().div_ceil(1000) as u64));
            [side.host.deadline(), device]
        });
        times.flatten().min()
    }

    /// Moves packets and time, at most this far ahead.
    pub(crate) fn run(&mut self, time: Duration) {
        let until = self.now.after(time);
        self.exchange();
        while let Some(next) = self.next()
            && next <= until
        {
            self.now = self.now.max(next);
            self.exchange();
        }
        self.now = until;
        self.exchange();
    }

    /// A connection from side 0 to side 1.
    pub(crate) fn connect(&mut self, v6: bool) -> (Flow, Flow) {
        let listener = self.listen();
        let remote = SocketAddr::new(address(1, v6), PORT);
        let now = self.now;
        let client = self.host(0).connect(now, None, None, remote).expect("a flow");
        self.run(Duration::from_millis(1));
        let server = self.host(1).accept(listener).expect("a connection");
        (client, server)
    }

    pub(crate) fn listen(&mut self) -> Listener {
        let pattern = Pattern { address: None, port: Some(PORT) };
        self.host(1).listen(pattern, 16).expect("a listener")
    }

    /// Everything that can be read.
    pub(crate) fn read_all(&mut self, side: usize, flow: Flow) -> (Vec<u8>, Read) {
        let mut all = Vec::new();
        let mut buffer = vec![0; 16 << 10];
        let now = self.now;
        loop {
            match self.host(side).read(now, flow, &mut buffer).expect("readable") {
                Read::Bytes(len) => all.extend_from_slice(&buffer[..len]),
                other => return (all, other),
            }
        }
    }
}
