//! A host between a program that does anything and peers that send anything, driven by a string of
//! bytes: by the fuzzer, and by tests. Peers answer with numbers near those that the host expects,
//! so that they get beyond the handshake, whatever numbers it chooses.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use packet::{Batch, Capabilities, Checksum, Frame, Offload, Sum, View, pseudo_header};
use tcp::{Answer, Ask, Config, Event, Flow, Host, Listener, Pattern, Prefix, Read, Time};

/// Pages of each pool.
const PAGES: usize = 12;
/// Packets that one step may cause, at most: what four connections can have in their buffers.
const PACKETS: usize = 400;
/// Timers until everything is over.
const TIMERS: usize = 5_000;
const TCP: u8 = 6;
const SYN: u8 = 2;
const FIN: u8 = 1;

/// How far a script got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reached {
    /// Connections that the program had.
    pub(crate) flows: usize,
    /// Bytes that it read.
    pub(crate) read: usize,
    /// SYNs about which it was asked.
    pub(crate) asks: usize,
}

struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> Option<u8> {
        self.0.split_off_first().copied()
    }

    fn number(&mut self) -> Option<u32> {
        let bytes = [self.byte()?, self.byte()?, self.byte()?, self.byte()?];
        Some(u32::from_le_bytes(bytes))
    }

    /// A number near `base`, or any.
    fn near(&mut self, base: u32) -> Option<u32> {
        Some(match self.byte()? {
            0..160 => base,
            160..192 => base.wrapping_add(u32::from(self.byte()?)),
            192..224 => base.wrapping_sub(u32::from(self.byte()?)),
            224..240 => base.wrapping_add(u32::from(self.byte()?) << 8),
            _ => self.number()?,
        })
    }
}

/// Numbers of a connection, as the host sent them last.
#[derive(Clone, Copy, Default)]
struct Known {
    /// The number that the host expects next.
    expected: u32,
    /// The end of what the host has sent.
    sent: u32,
    /// The host's last timestamp.
    stamp: u32,
}

struct Player {
    host: Host,
    now: Time,
    batch: Batch,
    known: HashMap<(SocketAddr, SocketAddr), Known>,
    /// The packet that the host sent last.
    last: Vec<u8>,
    flows: Vec<Flow>,
    listeners: Vec<Listener>,
    asks: Vec<Ask>,
    reached: Reached,
}

fn address(last: u8, v6: bool) -> IpAddr {
    match v6 {
        false => Ipv4Addr::new(10, 0, 0, last).into(),
        true => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into()).into(),
    }
}

/// Plays a script, and checks after each step, and at the end, that everything that is owed has a
/// deadline, that nothing storms, and that everything is given back.
pub(crate) fn run(script: &[u8]) -> Reached {
    let mut script = Script(script);
    let offloads = script.byte().is_some_and(|byte| byte & 1 == 0);
    let capabilities =
        Capabilities { mtu: 1500, checksum: offloads, segment: if offloads { 65_535 } else { 0 } };
    let addresses = vec![Prefix::one(address(1, false)), Prefix::one(address(1, true))];
    let mut config = Config::new(addresses, capabilities);
    config.limits.receive_pages = PAGES;
    config.limits.send_pages = PAGES;
    config.limits.flows = 4;
    config.limits.active = 2;
    config.limits.half_open = 3;
    config.limits.time_wait = 2;
    config.limits.listeners = 2;
    // A flow that finds no block for what is outstanding tries again every 10 ms, until another
    // one gives up.
    config.profile.give_up = Duration::from_secs(8);
    config.profile.rto_max = Duration::from_secs(4);
    let mut host = Host::new(config, [5; 32]);
    let pattern = |port| Pattern { address: None, port: Some(port) };
    let plain = host.listen(pattern(7), 2).expect("a listener");
    let asking = host.listen_asking(pattern(8), 2).expect("a listener");
    let mut player = Player {
        host,
        now: Time::from_micros(1_000_000),
        batch: Batch::new(1 << 20),
        known: HashMap::new(),
        last: Vec::new(),
        flows: Vec::new(),
        listeners: vec![plain, asking],
        asks: Vec::new(),
        reached: Reached::default(),
    };
    while player.step(&mut script).is_some() {
        player.settle();
    }
    player.finish();
    player.reached
}

impl Player {
    /// One step. `None` at the end of the script.
    fn step(&mut self, script: &mut Script<'_>) -> Option<()> {
        let now = self.now;
        let choice = script.byte()?;
        let which = script.byte()?;
        let flow = self.flows.get(usize::from(which) % self.flows.len().max(1)).copied();
        match (choice % 32, flow) {
            (0..12, _) => {
                let packet = self.segment(script, which)?;
                self.input(&[packet], script.byte()?);
            }
            (12..15, _) => {
                let burst = (0..2 + which % 6).map(|_| script.byte().and_then(|at| self.segment(script, at)));
                let burst: Vec<Vec<u8>> = burst.collect::<Option<_>>()?;
                self.input(&burst, script.byte()?);
            }
            (15, _) => {
                let mut packet = self.icmp(script, which)?;
                packet.truncate(28 + usize::from(script.byte()?));
                self.input(&[packet], 0);
            }
            (16, _) => {
                let mut packet = self.last.clone();
                let at = usize::from(script.byte()?);
                if let Some(byte) = packet.get_mut(at) {
                    *byte ^= which;
                }
                self.input(&[packet], script.byte()?);
            }
            (17..20, Some(flow)) => {
                let bytes = vec![which; usize::from(script.byte()?) * 64];
                let _ = self.host.write(now, flow, &bytes);
            }
            (20..23, Some(flow)) => {
                let mut bytes = vec![0; usize::from(script.byte()?) * 64 + 1];
                if let Ok(Read::Bytes(len)) = self.host.read(now, flow, &mut bytes) {
                    self.reached.read += len;
                }
            }
            (23, Some(flow)) => self.host.shutdown(now, flow),
            (24, Some(flow)) => self.end(flow, script.byte()?),
            (25, Some(flow)) => match script.byte()? {
                on @ 0..4 => self.host.set_no_delay(now, flow, on & 1 == 1),
                on => self.host.set_keep_alive(now, flow, on & 1 == 1),
            },
            (26, _) => {
                let remote =
                    SocketAddr::new(address(2 + which % 2, which & 16 != 0), 20 + u16::from(which % 3));
                let port = Some(30 + u16::from(which % 5));
                if let Ok(flow) = self.host.connect(now, None, port, remote) {
                    self.flows.push(flow);
                    self.reached.flows += 1;
                }
            }
            (27, _) => {
                let answer = [Answer::Accept, Answer::Accept, Answer::Refuse, Answer::Ignore];
                if let Some(ask) = self.asks.pop() {
                    self.host.answer(now, ask, answer[usize::from(which % 4)]);
                }
            }
            _ => self.now = now.after(Duration::from_micros(1 << (which % 27))),
        }
        Some(())
    }

    fn end(&mut self, flow: Flow, how: u8) {
        self.flows.retain(|&other| other != flow);
        match how % 3 {
            0 => self.host.close(self.now, flow),
            1 => self.host.close_within(self.now, flow, Duration::from_millis(how.into())),
            _ => self.host.abort(self.now, flow),
        }
    }

    fn input(&mut self, packets: &[Vec<u8>], segment: u8) {
        let offload = match segment {
            0..128 => Offload::default(),
            // As a device joins them.
            _ => Offload { checksum: Checksum::Verified, segment: u16::from(segment & 127) * 12 },
        };
        self.host.input(self.now, packets.iter().map(|bytes| Frame { bytes, offload }));
    }

    /// A segment of one of the peers, for a listener or for a port that the host connects from.
    fn segment(&self, script: &mut Script<'_>, which: u8) -> Option<Vec<u8>> {
        let v6 = which & 16 != 0;
        let remote = SocketAddr::new(address(2 + which % 2, v6), 20 + u16::from(which % 3));
        let port = match script.byte()? {
            0..144 => 7,
            144..192 => 8,
            port => 30 + u16::from(port % 5),
        };
        let local = SocketAddr::new(address(1, v6), port);
        let known = self.known.get(&(local, remote)).copied().unwrap_or_default();
        let flags = match script.byte()? {
            0..96 => 0x10,
            96..128 => 0x18,
            128..160 => SYN,
            160..176 => 0x12,
            176..200 => 0x10 | FIN,
            200..208 => 4,
            flags => flags,
        };
        let seq = script.near(known.expected)?;
        let ack = script.near(known.sent)?;
        let window = u16::from(script.byte()?) << (script.byte()? % 9);
        let len = match script.byte()? {
            len @ 0..128 => usize::from(len % 4) * 100,
            len => usize::from(len) * 11,
        };
        let options = options(script, known, ack)?;
        let mut tcp = Vec::new();
        tcp.extend(remote.port().to_be_bytes());
        tcp.extend(local.port().to_be_bytes());
        tcp.extend(seq.to_be_bytes());
        tcp.extend(ack.to_be_bytes());
        tcp.extend([(((20 + options.len()) / 4) << 4) as u8, flags]);
        tcp.extend(window.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(options);
        tcp.resize(tcp.len() + len, 9);
        Some(packet(remote.ip(), local.ip(), TCP, tcp, 16))
    }

    /// An ICMP message that quotes the host's last packet.
    fn icmp(&self, script: &mut Script<'_>, which: u8) -> Option<Vec<u8>> {
        let v6 = self.last.first().is_some_and(|first| first >> 4 == 6);
        let mut message = vec![script.byte()? % 16, script.byte()? % 16, 0, 0, 0, 0, script.byte()?, which];
        message.extend(&self.last);
        let protocol = if v6 { 58 } else { 1 };
        Some(packet(address(2, v6), address(1, v6), protocol, message, 2))
    }

    /// Takes what the host has to say, and checks it.
    fn settle(&mut self) {
        self.host.advance(self.now);
        let mut packets = 0;
        let mut more = true;
        while more {
            self.batch.clear();
            more = self.host.output(self.now, &mut self.batch);
            packets += self.batch.len();
            assert!(packets < PACKETS, "a storm");
            let frames: Vec<Vec<u8>> = self.batch.frames().map(|frame| frame.bytes.to_vec()).collect();
            frames.into_iter().for_each(|frame| self.learn(frame));
        }
        while let Some(event) = self.host.event() {
            match event {
                Event::Incoming(listener) => {
                    while let Some(flow) = self.host.accept(listener) {
                        self.flows.push(flow);
                        self.reached.flows += 1;
                    }
                }
                Event::Ask { ask, .. } => {
                    self.asks.push(ask);
                    self.reached.asks += 1;
                }
                Event::Flow { .. } => {}
            }
        }
        for flow in self.host.live_flows() {
            let Some(info) = self.host.info(flow) else { continue };
            let scheduled = info.is_scheduled && self.host.deadline().is_some() || self.host.has_output();
            assert!(!info.owes || scheduled, "something is owed, and nothing will happen: {info:?}");
        }
        assert!(self.host.pages_match(), "store and engine are apart");
    }

    fn learn(&mut self, packet: Vec<u8>) {
        let view = View::of(&packet).expect("a packet");
        if let Some(payload) = view.tcp_payload(&packet) {
            let tcp = &packet[view.transport..];
            let word = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
            let (source, destination) = view.addresses(&packet);
            let socket = |address: &[u8], at: usize| {
                let ip = match view.v6 {
                    false => IpAddr::from(<[u8; 4]>::try_from(address).expect("four bytes")),
                    true => IpAddr::from(<[u8; 16]>::try_from(address).expect("sixteen bytes")),
                };
                SocketAddr::new(ip, u16::from_be_bytes([tcp[at], tcp[at + 1]]))
            };
            let numbers = u32::from(tcp[13] & SYN != 0) + u32::from(tcp[13] & FIN != 0);
            let sent = word(4).wrapping_add((view.end - payload) as u32 + numbers);
            // Behind two NOPs in every segment but a SYN; what else is there does no harm.
            let stamp = if payload - view.transport >= 28 { word(24) } else { 0 };
            let known = Known { expected: word(8), sent, stamp };
            self.known.insert((socket(source, 0), socket(destination, 2)), known);
        }
        self.last = packet;
    }

    /// The program ends everything, the peers are silent: everything ends by itself.
    fn finish(&mut self) {
        for flow in std::mem::take(&mut self.flows) {
            self.host.close(self.now, flow);
        }
        for listener in std::mem::take(&mut self.listeners) {
            self.host.unlisten(self.now, listener);
        }
        self.settle();
        for _ in 0..TIMERS {
            let Some(next) = self.host.deadline() else { break };
            self.now = self.now.max(next);
            self.settle();
        }
        assert_eq!(self.host.deadline(), None, "no end");
        assert_eq!(self.host.live_flows().count(), 0);
        assert_eq!(self.host.free_pages(), (PAGES, PAGES), "pages of nobody");
    }
}

/// Options, padded to whole words.
fn options(script: &mut Script<'_>, known: Known, ack: u32) -> Option<Vec<u8>> {
    let mut options = Vec::new();
    let kinds = script.byte()?;
    if kinds & 1 != 0 {
        options.extend([2, 4, script.byte()?, script.byte()?]);
    }
    if kinds & 2 != 0 {
        options.extend([1, 3, 3, script.byte()? % 16]);
    }
    if kinds & 4 != 0 {
        options.extend([1, 1, 4, 2]);
    }
    if kinds & 8 != 0 {
        options.extend([1, 1, 8, 10]);
        options.extend((1_000 + u32::from(script.byte()?)).to_be_bytes());
        options.extend(known.stamp.to_be_bytes());
    }
    if kinds & 16 != 0 {
        let start = ack.wrapping_add(u32::from(script.byte()?) * 100);
        let end = script.near(start.wrapping_add(1_000))?;
        options.extend([1, 1, 5, 10]);
        options.extend(start.to_be_bytes());
        options.extend(end.to_be_bytes());
    }
    if kinds >= 240 {
        options.extend([script.byte()?, script.byte()?, script.byte()?, script.byte()?]);
    }
    options.truncate(40);
    Some(options)
}

/// An IP packet, with its checksums.
fn packet(from: IpAddr, to: IpAddr, protocol: u8, mut payload: Vec<u8>, sum_at: usize) -> Vec<u8> {
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let (from, to) = (octets(from), octets(to));
    let v6 = from.len() == 16;
    let pseudo = match protocol {
        1 => Sum::default(),
        _ => pseudo_header(&from, &to, protocol, payload.len()),
    };
    let sum = pseudo.with(&payload).finish();
    payload[sum_at..sum_at + 2].copy_from_slice(&sum.to_be_bytes());
    let mut bytes = match v6 {
        true => vec![0x60, 0, 0, 0, 0, 0, protocol, 64],
        false => vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0],
    };
    bytes.extend(from);
    bytes.extend(to);
    let len = payload.len() + if v6 { 0 } else { bytes.len() };
    let at = if v6 { 4 } else { 2 };
    bytes[at..at + 2].copy_from_slice(&(len as u16).to_be_bytes());
    if !v6 {
        let sum = Sum::default().with(&bytes).finish();
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    bytes.extend(payload);
    bytes
}
