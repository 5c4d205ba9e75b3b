//! Peers that want to use up what others need, or more than they send. Each bound that docs/tcp.md
//! names has to leave something to those that are honest.
mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::trace::{PEER_PORT, Trace, ms};
use common::{Net, PLAIN, PORT, address, config};
use packet::{Checksum, Frame, Offload};
use tcp::{Config, Flow, Listener, Read, Reason};

/// A connection that a peer has opened from this port.
fn open(trace: &mut Trace, listener: Listener, port: u16) -> Flow {
    trace.peer_port = port;
    trace.send("S 0:0(0) win 65535 <mss 1000>");
    trace.take();
    trace.send(". 1:1(0) ack 1 win 65535");
    trace.host.accept(listener).expect("a connection")
}

fn many(change: impl FnOnce(&mut Config)) -> (Trace, Listener) {
    let mut trace = Trace::new(change);
    let listener = trace.listen();
    (trace, listener)
}

/// Bytes behind a gap that is never filled stay for as long as their connection: they must not take
/// the last page, or no other connection receives anything.
#[test]
fn bytes_behind_gaps_leave_pages() {
    let (mut trace, listener) = many(|config| config.limits.receive_pages = 64);
    let honest = open(&mut trace, listener, 1);
    for port in 2..42 {
        open(&mut trace, listener, port);
        // One byte of each page.
        for at in (5_000..55_000).step_by(4096) {
            trace.send(&format!(". {at}:{}(1) ack 1", at + 1));
        }
        trace.take();
    }
    assert!(trace.host.free_pages().0 >= 16, "{:?}", trace.host.free_pages());
    trace.peer_port = 1;
    trace.send("P. 1:5001(5000) ack 1");
    trace.take();
    let now = trace.now;
    assert_eq!(trace.host.read(now, honest, &mut [0; 6000]), Ok(Read::Bytes(5000)));
}

/// A connection that has sent nothing yet has a block to send with.
fn can_send(trace: &mut Trace, flow: Flow, attack: &str) {
    let now = trace.now;
    assert_eq!(trace.host.write(now, flow, &[7; 100]), Ok(100));
    let sent = trace.take();
    assert_eq!(sent.len(), 1, "{attack}: {sent:?}");
    assert!(sent[0].starts_with("P. 1:101(100)"), "{attack}: {sent:?}");
}

/// Nor the last block for what is outstanding, or no other connection sends anything. A FIN behind a
/// gap takes one, too.
#[test]
fn bytes_behind_gaps_leave_blocks() {
    for attack in [". 5:6(1) ack 1", "F. 5:5(0) ack 1"] {
        let (mut trace, listener) = many(|config| config.limits.active = 8);
        let honest = open(&mut trace, listener, 1);
        for port in 2..42 {
            open(&mut trace, listener, port);
            trace.send(attack);
            trace.take();
        }
        can_send(&mut trace, honest, attack);
    }
}

/// Nor do they take those that connections had to send with, one after the other.
#[test]
fn bytes_behind_gaps_leave_blocks_of_senders() {
    for attack in [". 5:6(1) ack 1", "F. 5:5(0) ack 1"] {
        let (mut trace, listener) = many(|config| config.limits.active = 8);
        let honest = open(&mut trace, listener, 1);
        for port in 2..42 {
            let flow = open(&mut trace, listener, port);
            let now = trace.now;
            trace.host.write(now, flow, &[7; 100]).expect("room");
            trace.take();
            trace.send(attack);
            trace.send(". 1:1(0) ack 101 win 65535");
            trace.take();
        }
        can_send(&mut trace, honest, attack);
    }
}

/// Peers that acknowledge nothing keep connections that the program has closed. Where these take all
/// places, the oldest gives way to one that is wanted.
#[test]
fn closed_connections_give_way() {
    let (mut trace, listener) = many(|config| config.limits.flows = 8);
    for port in 1..=8 {
        let flow = open(&mut trace, listener, port);
        let now = trace.now;
        trace.host.write(now, flow, &[7; 100]).expect("room");
        // The last one is still the program's.
        if port < 8 {
            trace.host.close(now, flow);
        }
        trace.take();
    }
    // Long enough for retransmissions.
    trace.now = trace.now.after(Duration::from_secs(1));
    trace.take();
    trace.now = trace.now.after(Duration::from_secs(1));
    trace.take();
    trace.peer_port = 9;
    trace.send("S 0:0(0) win 65535 <mss 1000>");
    trace.expect(&["S. 0:0(0) ack 1 <mss 1000>"]);
    // The place is free when this is done; the peer acknowledges again with its first bytes.
    trace.send(". 1:1(0) ack 1 win 65535");
    trace.expect(&["R. 102:102(0) ack 1"]);
    trace.send("P. 1:6(5) ack 1 win 65535");
    let flow = trace.host.accept(listener).expect("a connection");
    let now = trace.now;
    assert_eq!(trace.host.read(now, flow, &mut [0; 10]), Ok(Read::Bytes(5)));
    trace.take();
    // A program that connects gets a place at once.
    let remote = SocketAddr::new(address(1, false), 80);
    for _ in 0..6 {
        trace.host.connect(now, None, None, remote).expect("the place of a closed one");
    }
    assert!(trace.host.connect(now, None, None, remote).is_err(), "none is left but the program's");
    assert_eq!(trace.host.live_flows().count(), 8);
}

/// One whose peer still reads does not give way to what somebody may send, and loses no byte by it; a
/// program that connects comes first.
#[test]
fn closed_connections_that_drain_stay() {
    let (mut trace, listener) = many(|config| config.limits.flows = 1);
    let flow = open(&mut trace, listener, 1);
    let now = trace.now;
    assert_eq!(trace.host.write(now, flow, &[7; 100_000]), Ok(100_000));
    trace.host.close(now, flow);
    for acked in (0..50).map(|at| at * 1000 + 1) {
        trace.peer_port = 2;
        trace.send("S 0:0(0) win 65535 <mss 1000>");
        trace.send(". 1:1(0) ack 1 win 65535");
        trace.peer_port = 1;
        trace.send(&format!(". 1:1(0) ack {acked} win 65535"));
        let sent = trace.take();
        assert!(!sent.iter().any(|segment| segment.starts_with('R')), "after {acked} bytes: {sent:?}");
    }
    assert_eq!(trace.host.live_flows().count(), 1);
    let now = trace.now;
    let remote = SocketAddr::new(address(1, false), 80);
    trace.host.connect(now, None, None, remote).expect("the place of the closed one");
    let sent = trace.take();
    assert!(sent[0].starts_with("R. ") && sent[1].starts_with("S "), "{sent:?}");
}

/// Acknowledgements that repeat are counted (RFC 5681, 3.2), and their number has no end.
#[test]
fn endless_duplicate_acknowledgements() {
    let (mut trace, listener) = many(|config| config.capabilities.mtu = 65_535);
    trace.peer_port = PEER_PORT;
    trace.send("S 0:0(0) win 65535 <mss 65495>");
    trace.take();
    trace.send(". 1:1(0) ack 1 win 65535");
    let flow = trace.host.accept(listener).expect("a connection");
    let now = trace.now;
    trace.host.write(now, flow, &[7; 200_000]).expect("room");
    assert!(!trace.take().is_empty());
    let packet = trace.packet_of_peer(". 1:1(0) ack 1 win 65535");
    let mut packets = 0;
    // So many segments of this size are more than 2^32 bytes.
    for _ in 0..70_000 {
        trace.host.input(now, [Frame { bytes: &packet, offload: Offload::default() }]);
        packets += trace.packets().len();
    }
    assert!(packets <= 2, "{packets} packets for nothing");
}

/// Challenge ACKs are limited before a connection is open, too (RFC 5961, 7).
#[test]
fn challenges_of_half_open_connections_are_limited() {
    for attack in ["S 9:9(0)", "R 9:9(0)", ". 90000:90000(0) ack 1"] {
        let (mut trace, _) = many(|_| {});
        trace.send("S 0:0(0) win 65535 <mss 1000>");
        trace.take();
        let mut challenges = 0;
        for _ in 0..1_000 {
            trace.send(attack);
            let sent = trace.take();
            assert!(sent.iter().all(|sent| sent.starts_with(". 1:1(0) ack 1")), "{attack}: {sent:?}");
            challenges += sent.len();
        }
        assert!((4..=11).contains(&challenges), "{attack}: {challenges}");
    }
}

/// A SYN that comes again and again is answered, and does not keep the half-open connection. Which of
/// the answers an ACK is for is not known (RFC 6298, 3): it says nothing of the round trip.
#[test]
fn a_repeated_syn_prolongs_nothing() {
    let (mut trace, listener) = many(|_| {});
    let syn = "S 0:0(0) win 65535 <mss 1000>";
    for port in [PEER_PORT, PEER_PORT + 1] {
        trace.peer_port = port;
        trace.send(syn);
        trace.take();
    }
    trace.now = trace.now.after(ms(600));
    trace.send(syn);
    trace.expect(&["S. 0:0(0) ack 1 <mss 1000>"]);
    trace.now = trace.now.after(ms(100));
    trace.send(". 1:1(0) ack 1");
    let flow = trace.host.accept(listener).expect("a connection");
    assert_eq!(trace.host.info(flow).expect("a flow").round_trip_micros, 0);
    trace.peer_port = PEER_PORT;
    for _ in 0..200 {
        trace.send(syn);
        trace.take();
        trace.now = trace.now.after(ms(500));
    }
    trace.take();
    // It has expired meanwhile: this ACK is of nothing, or of a new attempt that lasts as long.
    let sent = (0..200).map(|_| {
        trace.now = trace.now.after(ms(500));
        trace.take().len()
    });
    assert!(sent.sum::<usize>() <= 6);
    trace.send(". 1:1(0) ack 1");
    trace.expect(&["R 1:1(0)"]);
}

/// Somebody who has guessed the numbers of a connection gives one side a byte that the other has never
/// sent. The two sides disagree from then on, and must not answer each other without end.
#[test]
fn sides_that_disagree_do_not_storm() {
    let configs = [0, 1].map(|side| {
        let mut config = config(side, PLAIN);
        // One thing less to be guessed.
        config.offers.timestamps = false;
        config
    });
    let mut net = Net::new(configs, 1);
    let (client, server) = net.connect(false);
    net.run(ms(100));
    let client_at = net.host(0).info(client).expect("a flow");
    let (from, to) = net.host(0).addresses(client).expect("a flow");
    assert_eq!(to.port(), PORT);
    let forged = forged_byte(from, to, client_at.sent_to.0, client_at.received_to.0);
    let now = net.now;
    let offload = Offload { checksum: Checksum::Verified, ..Offload::default() };
    net.host(1).input(now, [Frame { bytes: &forged, offload }]);
    let server_at = net.host(1).info(server).expect("a flow");
    assert_eq!(server_at.received_to, client_at.sent_to + 1, "it is taken");
    let before = net.wire.packets;
    for _ in 0..60 {
        // Both go on talking: one packet each, and its repetitions.
        let now = net.now;
        let _ = net.host(0).write(now, client, b"question");
        let _ = net.host(1).write(now, server, b"answer");
        net.run(Duration::from_secs(1));
    }
    let packets = net.wire.packets - before;
    // Each side at most 11 challenges a second, and its own data with what answers it.
    assert!(packets < 60 * 40, "{packets} packets in a minute");
}

/// A packet that carries bytes.
fn forged_byte(from: SocketAddr, to: SocketAddr, seq: u32, ack: u32) -> Vec<u8> {
    let (SocketAddr::V4(from), SocketAddr::V4(to)) = (from, to) else { panic!("not IPv4") };
    let builder = etherparse::PacketBuilder::ipv4(from.ip().octets(), to.ip().octets(), 64)
        .tcp(from.port(), to.port(), seq, 65_535)
        .ack(ack);
    let mut bytes = Vec::new();
    builder.write(&mut bytes, b"!").expect("a packet");
    bytes
}

/// Bytes that the program has read, or can read, are not changed by others for the same place; of
/// those behind a gap each byte is one that was sent for its place.
#[test]
fn contradicting_bytes() {
    let (mut trace, flow) = Trace::accepted(|_| {}, "");
    let send = |trace: &mut Trace, start: usize, end: usize, byte: u8| {
        let mut packet = trace.packet_of_peer(&format!(". {start}:{end}({}) ack 1", end - start));
        packet[40..].fill(byte);
        let offload = Offload { checksum: Checksum::Verified, ..Offload::default() };
        let now = trace.now;
        trace.host.input(now, [Frame { bytes: &packet, offload }]);
    };
    send(&mut trace, 1, 101, b'a');
    // Over what can be read, and 50 bytes more.
    send(&mut trace, 1, 151, b'b');
    // Behind a gap, twice, and then the gap, with a rest that is there already.
    send(&mut trace, 201, 301, b'c');
    send(&mut trace, 251, 351, b'd');
    send(&mut trace, 101, 251, b'e');
    let now = trace.now;
    let mut bytes = [0; 1000];
    assert_eq!(trace.host.read(now, flow, &mut bytes), Ok(Read::Bytes(350)));
    assert!(bytes[..100].iter().all(|&byte| byte == b'a'), "readable bytes changed");
    assert!(bytes[100..150].iter().all(|&byte| byte == b'b'), "readable bytes changed");
    assert!(bytes[150..200].iter().all(|&byte| byte == b'e'));
    assert!(bytes[200..350].iter().all(|byte| b"cde".contains(byte)));
    // What was read is over.
    send(&mut trace, 1, 351, b'f');
    assert_eq!(trace.host.read(now, flow, &mut bytes), Ok(Read::Empty));
    assert!(trace.host.refused(Reason::Window) > 0);
}

/// A peer that opens its window by one byte at a time, or never, gets a segment or a probe for each
/// retransmission timeout at most (RFC 9293, 3.8.6.2.1).
#[test]
fn windows_of_a_byte() {
    for (window, most) in [(1, 18_100), (0, 90)] {
        let (mut trace, flow) = Trace::accepted(|_| {}, "");
        let now = trace.now;
        trace.send(". 1:1(0) ack 1 win 0");
        trace.host.write(now, flow, &[7; 100_000]).expect("room");
        let until = now.after(Duration::from_secs(3600));
        let (mut sent, mut end) = (0, 1);
        while let Some(next) = trace.host.deadline().filter(|&next| next < until) {
            trace.now = trace.now.max(next);
            for segment in trace.take() {
                sent += 1;
                let words: Vec<&str> = segment.split([' ', ':', '(']).collect();
                end = end.max(words[2].parse::<u32>().expect("a number"));
                trace.send(&format!(". 1:1(0) ack {end} win {window}"));
            }
            assert!(sent < 20_000, "{window}: without end");
        }
        assert!(trace.now.since(now) > Duration::from_secs(3500), "{window}: it was given up");
        assert!(sent <= most, "{window}: {sent} segments in an hour");
    }
}
