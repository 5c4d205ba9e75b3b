//! Traces: a host on one side, packets written by hand on the other.
//!
//! A segment is written as packetdrill writes it: `P. 1:1001(1000) ack 1 win 500 <sack 2001:3001>`.
//! Sequence numbers count from each side's SYN. An expected segment without `win` matches every
//! window.

use std::time::Duration;

use etherparse::{PacketBuilder, SlicedPacket, TcpOptionElement, TransportSlice};
use packet::{Batch, Capabilities, Frame, Offload};
use tcp::{Config, Flow, Host, Initial, Listener, Pattern, Prefix, Time};

use super::{PORT, address};

const OURS: u32 = 4_294_960_000;
const THEIRS: u32 = 50_000;
pub(crate) const PEER_PORT: u16 = 5_000;

pub(crate) struct Trace {
    pub(crate) host: Host,
    pub(crate) now: Time,
    pub(crate) peer_port: u16,
    pub(crate) listeners: Vec<Listener>,
    batch: Batch,
}

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

impl Trace {
    /// A host whose segments carry 1,000 bytes, and that starts its numbers shortly before 2^32.
    pub(crate) fn new(change: impl FnOnce(&mut Config)) -> Trace {
        let capabilities = Capabilities { mtu: 1040, checksum: false, segment: 0 };
        let mut config = Config::new(vec![Prefix::one(address(0, false))], capabilities);
        config.initial = Initial::Fixed { sequence: OURS, timestamp: 0 };
        config.limits.receive_buffer = 60_000;
        change(&mut config);
        let now = Time::from_micros(1_000_000);
        Trace {
            host: Host::new(config, [3; 32]),
            now,
            peer_port: PEER_PORT,
            listeners: Vec::new(),
            batch: Batch::new(1 << 20),
        }
    }

    pub(crate) fn listen(&mut self) -> Listener {
        let listener = self.host.listen(Pattern { address: None, port: Some(PORT) }, 4);
        self.listeners.push(listener.expect("a listener"));
        self.listeners[self.listeners.len() - 1]
    }

    /// A connection that the peer has opened, with a round trip of 10 ms.
    pub(crate) fn accepted(change: impl FnOnce(&mut Config), options: &str) -> (Trace, Flow) {
        let mut trace = Trace::new(change);
        let listener = trace.listen();
        trace.send(&format!("S 0:0(0) win 65535 <mss 1000{options}>"));
        let answer = trace.take();
        assert!(answer.len() == 1 && answer[0].starts_with("S. 0:0(0) ack 1"), "{answer:?}");
        trace.pass(ms(10));
        trace.send(". 1:1(0) ack 1 win 65535");
        let flow = trace.host.accept(listener).expect("a connection");
        while trace.host.event().is_some() {}
        (trace, flow)
    }

    /// The peer sends a segment.
    pub(crate) fn send(&mut self, segment: &str) {
        let bytes = self.packet_of_peer(segment);
        let frame = Frame { bytes: &bytes, offload: Offload::default() };
        self.host.input(self.now, [frame]);
    }

    /// The same, marked by a router (RFC 3168).
    pub(crate) fn send_marked(&mut self, segment: &str) {
        let mut bytes = self.packet_of_peer(segment);
        bytes[1] |= 3;
        bytes[10..12].fill(0);
        let sum = packet::Sum::default().with(&bytes[..20]).finish();
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        self.host.input(self.now, [Frame { bytes: &bytes, offload: Offload::default() }]);
    }

    /// The packet that the peer sends it in.
    pub(crate) fn packet_of_peer(&self, segment: &str) -> Vec<u8> {
        build(segment, self.peer_port)
    }

    /// What the host sends now, whole packets.
    pub(crate) fn packets(&mut self) -> Vec<Vec<u8>> {
        self.host.advance(self.now);
        let mut packets = Vec::new();
        let mut more = true;
        while more {
            self.batch.clear();
            more = self.host.output(self.now, &mut self.batch);
            packets.extend(self.batch.frames().map(|frame| frame.bytes.to_vec()));
        }
        packets
    }

    /// The segments that the host sends now.
    pub(crate) fn take(&mut self) -> Vec<String> {
        self.packets().iter().map(|packet| print(packet)).collect()
    }

    /// The host sends exactly this now.
    #[track_caller]
    pub(crate) fn expect(&mut self, expected: &[&str]) {
        let sent = self.take();
        compare(&sent, expected);
    }

    /// Time passes, and the host sends nothing.
    #[track_caller]
    pub(crate) fn pass(&mut self, time: Duration) {
        let until = self.now.after(time);
        loop {
            let sent = self.take();
            assert!(sent.is_empty(), "at {:?}: {sent:?}", self.now);
            match self.host.deadline() {
                Some(next) if next <= until => self.now = self.now.max(next),
                _ => break,
            }
        }
        self.now = until;
    }

    /// Nothing is sent until so much time has passed, give or take a millisecond, and then this.
    #[track_caller]
    pub(crate) fn expect_after(&mut self, time: Duration, expected: &[&str]) {
        let start = self.now;
        for _ in 0..1_000 {
            let sent = self.take();
            if !sent.is_empty() {
                let waited = self.now.since(start);
                assert!(waited.abs_diff(time) <= ms(1), "after {waited:?}, not {time:?}: {sent:?}");
                return compare(&sent, expected);
            }
            let next = self.host.deadline().expect("something will happen");
            self.now = self.now.max(next);
        }
        panic!("nothing was sent");
    }

    /// Nothing is owed and nothing will happen.
    #[track_caller]
    pub(crate) fn expect_nothing(&mut self) {
        self.expect(&[]);
        assert_eq!(self.host.deadline(), None);
    }
}

#[track_caller]
fn compare(sent: &[String], expected: &[&str]) {
    let matches = |sent: &String, expected: &&str| {
        if expected.contains(" win ") { sent == expected } else { without_window(sent) == **expected }
    };
    let same = sent.len() == expected.len() && sent.iter().zip(expected).all(|(s, e)| matches(s, e));
    assert!(same, "sent     {sent:#?}\nexpected {expected:#?}");
}

fn without_window(segment: &str) -> String {
    let words: Vec<&str> = segment.split(' ').collect();
    let at = words.iter().position(|&word| word == "win");
    let kept = words.iter().enumerate().filter(|(i, _)| at.is_none_or(|at| *i != at && *i != at + 1));
    kept.map(|(_, word)| *word).collect::<Vec<_>>().join(" ")
}

/// A packet of the peer.
fn build(segment: &str, port: u16) -> Vec<u8> {
    let (main, options) =
        segment.split_once(" <").map_or((segment, ""), |(main, rest)| (main, rest.trim_end_matches('>')));
    let words: Vec<&str> = main.split(' ').collect();
    let value = |name: &str| {
        let at = words.iter().position(|&word| word == name)?;
        words[at + 1].parse::<u32>().ok()
    };
    let (seq, rest) = words[1].split_once(':').expect("seq:end(len)");
    let len: usize = rest.split_once('(').expect("(len)").1.trim_end_matches(')').parse().expect("a length");
    let seq = THEIRS.wrapping_add(seq.parse::<i32>().expect("a number") as u32);
    let source = match address(1, false) {
        std::net::IpAddr::V4(v4) => v4.octets(),
        std::net::IpAddr::V6(_) => unreachable!("asked for IPv4"),
    };
    let window = value("win").unwrap_or(65_535) as u16;
    let mut builder =
        PacketBuilder::ipv4(source, [source[0], source[1], source[2], 1], 64).tcp(port, PORT, seq, window);
    for flag in words[0].chars() {
        builder = match flag {
            'S' => builder.syn(),
            'F' => builder.fin(),
            'R' => builder.rst(),
            'P' => builder.psh(),
            'E' => builder.ece(),
            'W' => builder.cwr(),
            '.' => builder.ack(OURS.wrapping_add(value("ack").expect("ack"))),
            other => panic!("flag {other}"),
        };
    }
    let mut elements = Vec::new();
    for option in options.split(',').filter(|option| !option.is_empty()) {
        let mut words = option.split(' ');
        let name = words.next().expect("a name");
        let numbers: Vec<u32> =
            words.flat_map(|word| word.split(':')).map(|number| number.parse().expect("a number")).collect();
        elements.push(match name {
            "mss" => TcpOptionElement::MaximumSegmentSize(numbers[0] as u16),
            "wscale" => TcpOptionElement::WindowScale(numbers[0] as u8),
            "nop" => TcpOptionElement::Noop,
            "sackOK" => TcpOptionElement::SelectiveAcknowledgementPermitted,
            "TS" => TcpOptionElement::Timestamp(numbers[0], numbers[1]),
            "sack" => {
                let absolute: Vec<u32> = numbers.iter().map(|n| OURS.wrapping_add(*n)).collect();
                let mut pairs = absolute.chunks(2).map(|pair| (pair[0], pair[1]));
                let first = pairs.next().expect("a block");
                TcpOptionElement::SelectiveAcknowledgement(first, [pairs.next(), pairs.next(), pairs.next()])
            }
            other => panic!("option {other}"),
        });
    }
    let builder = builder.options(&elements).expect("options");
    let payload: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
    let mut bytes = Vec::new();
    builder.write(&mut bytes, &payload).expect("a packet");
    bytes
}

/// A packet of the host, read by another project's parser, checksums verified.
fn print(packet: &[u8]) -> String {
    let sliced = SlicedPacket::from_ip(packet).expect("an IP packet");
    let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else { return format!("{:?}", sliced.transport) };
    let Some(etherparse::NetSlice::Ipv4(ip)) = &sliced.net else { panic!("not IPv4") };
    let sum = tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination());
    assert_eq!(sum.expect("a sum"), tcp.checksum());
    let mut flags = String::new();
    for (set, flag) in [
        (tcp.syn(), 'S'),
        (tcp.fin(), 'F'),
        (tcp.rst(), 'R'),
        (tcp.psh(), 'P'),
        (tcp.ece(), 'E'),
        (tcp.cwr(), 'W'),
        (tcp.ack(), '.'),
    ] {
        if set {
            flags.push(flag);
        }
    }
    let seq = tcp.sequence_number().wrapping_sub(OURS) as i32;
    let len = tcp.payload().len() as i32;
    let mut text = format!("{flags} {seq}:{}({len})", seq + len);
    if tcp.ack() {
        text += &format!(" ack {}", tcp.acknowledgment_number().wrapping_sub(THEIRS));
    }
    text += &format!(" win {}", tcp.window_size());
    let mut options = Vec::new();
    for option in tcp.options_iterator() {
        match option.expect("an option") {
            TcpOptionElement::MaximumSegmentSize(mss) => options.push(format!("mss {mss}")),
            TcpOptionElement::WindowScale(scale) => options.push(format!("wscale {scale}")),
            TcpOptionElement::SelectiveAcknowledgementPermitted => options.push("sackOK".into()),
            TcpOptionElement::Timestamp(..) => options.push("TS".into()),
            TcpOptionElement::SelectiveAcknowledgement(first, rest) => {
                let blocks = [Some(first)].into_iter().chain(rest).flatten();
                let text: Vec<String> = blocks
                    .map(|(a, b)| format!("{}:{}", a.wrapping_sub(THEIRS), b.wrapping_sub(THEIRS)))
                    .collect();
                options.push(format!("sack {}", text.join(" ")));
            }
            TcpOptionElement::Noop => {}
        }
    }
    if !options.is_empty() {
        text += &format!(" <{}>", options.join(","));
    }
    text
}
