//! ICMP and what is not TCP: echoes, errors both ways, fragments, broken packets.
mod common;

use std::net::{IpAddr, SocketAddr};

use common::trace::{Trace, ms};
use common::{Net, PLAIN, PORT, address, config};
use etherparse::{
    Icmpv4Slice, Icmpv4Type, Icmpv6Slice, Icmpv6Type, IpNumber, PacketBuilder, SlicedPacket, TransportSlice,
};
use packet::{Batch, Frame, Offload};
use tcp::{Failure, ReadError, Reason};

fn v4(address: IpAddr) -> [u8; 4] {
    match address {
        IpAddr::V4(v4) => v4.octets(),
        IpAddr::V6(_) => panic!("not IPv4"),
    }
}

fn v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V6(v6) => v6.octets(),
        IpAddr::V4(_) => panic!("not IPv6"),
    }
}

fn input(net: &mut Net, bytes: &[u8]) -> Vec<Vec<u8>> {
    let now = net.now;
    let host = net.host(0);
    host.input(now, [Frame { bytes, offload: Offload::default() }]);
    let mut batch = Batch::new(1 << 18);
    while host.output(now, &mut batch) {}
    batch.frames().map(|frame| frame.bytes.to_vec()).collect()
}

/// RFC 1122, 3.2.2.6; RFC 4443, 4.2: ping works, both families.
#[test]
fn echo() {
    let mut net = Net::plain(PLAIN);
    let mut bytes = Vec::new();
    let builder = PacketBuilder::ipv4(v4(address(1, false)), v4(address(0, false)), 64);
    builder.icmpv4_echo_request(7, 9).write(&mut bytes, b"ping").expect("a packet");
    let sent = input(&mut net, &bytes);
    let sliced = SlicedPacket::from_ip(&sent[0]).expect("a packet");
    let Some(TransportSlice::Icmpv4(answer)) = sliced.transport else { panic!("no ICMP") };
    let Icmpv4Type::EchoReply(echo) = answer.icmp_type() else { panic!("{:?}", answer.icmp_type()) };
    assert_eq!((echo.id, echo.seq, answer.payload()), (7, 9, &b"ping"[..]));
    assert!(Icmpv4Slice::from_slice(answer.slice()).is_ok());

    let mut bytes = Vec::new();
    let builder = PacketBuilder::ipv6(v6(address(1, true)), v6(address(0, true)), 64);
    builder.icmpv6_echo_request(7, 9).write(&mut bytes, b"ping").expect("a packet");
    let sent = input(&mut net, &bytes);
    let sliced = SlicedPacket::from_ip(&sent[0]).expect("a packet");
    let Some(TransportSlice::Icmpv6(answer)) = sliced.transport else { panic!("no ICMPv6") };
    let Icmpv6Type::EchoReply(echo) = answer.icmp_type() else { panic!("{:?}", answer.icmp_type()) };
    assert_eq!((echo.id, echo.seq, answer.payload()), (7, 9, &b"ping"[..]));
    assert!(
        Icmpv6Slice::from_slice(answer.slice())
            .expect("ICMPv6")
            .is_checksum_valid(v6(address(0, true)), v6(address(1, true)))
    );
}

/// RFC 1122, 3.2.2.1: nobody takes datagrams, and their senders are told, at most 100 a second.
#[test]
fn datagrams_are_refused() {
    let mut net = Net::plain(PLAIN);
    let mut answers = 0;
    for _ in 0..300 {
        let mut bytes = Vec::new();
        let builder = PacketBuilder::ipv4(v4(address(1, false)), v4(address(0, false)), 64);
        builder.udp(1000, 53).write(&mut bytes, &[0; 900]).expect("a packet");
        for packet in input(&mut net, &bytes) {
            let sliced = SlicedPacket::from_ip(&packet).expect("a packet");
            let Some(TransportSlice::Icmpv4(error)) = sliced.transport else { panic!("no ICMP") };
            assert!(matches!(error.icmp_type(), Icmpv4Type::DestinationUnreachable(_)));
            assert!(packet.len() <= 576 && bytes.starts_with(error.payload()));
            answers += 1;
        }
    }
    assert_eq!(answers, 100);
}

/// What is not a whole packet for this host is dropped, and counted by its reason.
#[test]
fn refused_by_name() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
    //# The sender MUST generate it (MUST-2) and the receiver MUST check it (MUST-3).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.2.3
    //# An incoming SYN with an invalid source address MUST be ignored either by TCP or by the IP layer
    //# [(MUST-63)] (see Section 3.2.1.3).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.2.3
    //# A TCP implementation MUST silently discard an incoming SYN segment that is addressed to a broadcast or
    //# multicast address [(MUST-57)].
    let mut net = Net::plain(PLAIN);
    let mut good = Vec::new();
    let builder = PacketBuilder::ipv4(v4(address(1, false)), v4(address(0, false)), 64);
    builder.tcp(1, PORT, 5, 100).syn().write(&mut good, &[]).expect("a packet");
    let changed = |change: &dyn Fn(&mut Vec<u8>), header: bool| {
        let mut bytes = good.clone();
        change(&mut bytes);
        if header {
            bytes[10..12].fill(0);
            let sum = packet::Sum::default().with(&bytes[..20]).finish();
            bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        bytes
    };
    for (bytes, reason) in [
        (changed(&|bytes| bytes.truncate(30), false), Reason::Malformed),
        (changed(&|bytes| bytes[0] = 0x35, false), Reason::Malformed),
        (changed(&|bytes| bytes[10] ^= 1, false), Reason::Checksum),
        (changed(&|bytes| bytes[30] ^= 1, false), Reason::Checksum),
        (changed(&|bytes| bytes[6] = 0x20, true), Reason::Fragment),
        (changed(&|bytes| bytes[7] = 9, true), Reason::Fragment),
        (changed(&|bytes| bytes[19] = 77, true), Reason::Address),
        // RFC 9293, MUST-63 and MUST-57: a SYN from a multicast address, and to one.
        (changed(&|bytes| bytes[12] = 224, true), Reason::Address),
        (changed(&|bytes| bytes[16] = 224, true), Reason::Address),
        (changed(&|bytes| bytes[32] = 0x40, false), Reason::Malformed),
    ] {
        let before = net.host(0).refused(reason);
        assert_eq!(input(&mut net, &bytes).len(), 0, "{reason:?}");
        assert_eq!(net.host(0).refused(reason), before + 1, "{reason:?}");
    }
}

/// RFC 4291, 2.5.5.2, and RFC 9293, MUST-46 and MUST-57: a mapped address on the wire is nobody's,
/// and nobody can be reached at one, at a group or at port 0.
#[test]
fn addresses_of_nobody() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.1
    //# A TCP implementation MUST reject as an error a local OPEN call for an invalid remote IP address (e.g.,
    //# a broadcast or multicast address) (MUST-46).
    let mut net = Net::plain(PLAIN);
    let mapped = std::net::Ipv4Addr::new(10, 0, 0, 2).to_ipv6_mapped();
    let mut bytes = Vec::new();
    let builder = PacketBuilder::ipv6(mapped.octets(), v6(address(0, true)), 64);
    builder.tcp(1, PORT, 5, 100).syn().write(&mut bytes, &[]).expect("a packet");
    assert_eq!(input(&mut net, &bytes).len(), 0);
    assert_eq!(net.host(0).refused(Reason::Address), 1);
    let now = net.now;
    for remote in
        ["224.0.0.1:7", "255.255.255.255:7", "0.0.0.0:7", "[ff02::1]:7", "[::ffff:10.0.0.2]:7", "10.0.0.2:0"]
    {
        let remote = remote.parse().expect("an address");
        assert_eq!(net.host(0).connect(now, None, None, remote), Err(tcp::ConnectError::Remote), "{remote}");
    }
}

/// RFC 8200, 4: extension headers are passed over; a fragment header is refused.
#[test]
fn extension_headers() {
    let mut net = Net::plain(PLAIN);
    let mut bytes = Vec::new();
    let builder = PacketBuilder::ipv6(v6(address(1, true)), v6(address(0, true)), 64);
    builder.tcp(1, PORT, 5, 100).syn().write(&mut bytes, &[]).expect("a packet");
    let mut with = |next: u8| {
        let mut longer = bytes.clone();
        longer.splice(40..40, [6, 0, 1, 4, 0, 0, 0, 0]);
        longer[6] = next;
        longer[5] += 8;
        input(&mut net, &longer).len()
    };
    // Nobody listens: an RST, if it was understood.
    assert_eq!((with(60), with(0), with(44)), (1, 1, 0));
    assert_eq!(net.host(0).refused(Reason::Fragment), 1);
}

/// RFC 1122, 3.2.1.8: options of IPv4 are passed over.
#[test]
fn options_of_ip_are_skipped() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.2
    //# When received options are passed up to TCP from the IP layer, a TCP implementation MUST ignore options
    //# that it does not understand (MUST- 50).
    let mut net = Net::plain(PLAIN);
    let mut bytes = Vec::new();
    let builder = PacketBuilder::ipv4(v4(address(1, false)), v4(address(0, false)), 64);
    builder.tcp(1, PORT, 5, 100).syn().write(&mut bytes, &[]).expect("a packet");
    // A router alert (RFC 2113), and one that nobody knows.
    for option in [[148, 4, 0, 0], [99, 3, 7, 0]] {
        let mut longer = bytes.clone();
        longer.splice(20..20, option);
        (longer[0], longer[3]) = (0x46, longer[3] + 4);
        longer[10..12].fill(0);
        let sum = packet::Sum::default().with(&longer[..24]).finish();
        longer[10..12].copy_from_slice(&sum.to_be_bytes());
        // Nobody listens: an RST, if it was understood.
        assert_eq!(input(&mut net, &longer).len(), 1);
    }
}

/// Packets live as long as the program has said, answers to pings, too.
#[test]
fn hops_are_configured() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.2
    //# Time to Live (TTL): The TTL value used to send TCP segments MUST be configurable (MUST-49).
    let mut configuration = config(0, PLAIN);
    configuration.hop_limit = 3;
    let mut net = Net::new([configuration, config(1, PLAIN)], 1);
    let builder = |v6_: bool| match v6_ {
        false => PacketBuilder::ipv4(v4(address(1, false)), v4(address(0, false)), 64),
        true => PacketBuilder::ipv6(v6(address(1, true)), v6(address(0, true)), 64),
    };
    for v6 in [false, true] {
        let mut syn = Vec::new();
        builder(v6).tcp(1, PORT, 5, 100).syn().write(&mut syn, &[]).expect("a packet");
        let answers = input(&mut net, &syn);
        assert_eq!(answers[0][if v6 { 7 } else { 8 }], 3);
    }
    let mut ping = Vec::new();
    builder(false).icmpv4_echo_request(1, 1).write(&mut ping, &[]).expect("a packet");
    assert_eq!(input(&mut net, &ping)[0][8], 3);
}

/// The host's segment, quoted in an ICMP error.
fn error(kind: u8, code: u8, mtu: u16, about: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, code, 0, 0, 0, 0];
    message.extend(mtu.to_be_bytes());
    message.extend(&about[..28]);
    let sum = packet::Sum::default().with(&message).finish();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut bytes = Vec::new();
    let builder = PacketBuilder::ipv4([192, 0, 2, 1], v4(address(0, false)), 64);
    builder.write(&mut bytes, IpNumber::ICMP, &message).expect("a packet");
    bytes
}

/// RFC 1122, 4.2.3.9, RFC 5927, 4 and 5: a hard error ends a connection that is being opened, if it
/// quotes what is outstanding; a soft one, or any on an open connection, does not.
#[test]
fn unreachable() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.2.2
    //# TCP implementations MUST act on an ICMP error message passed up from the IP layer, directing it to the
    //# connection that created the error (MUST-54).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.2.2
    //# Source Quench TCP implementations MUST silently discard any received ICMP Source Quench messages
    //# (MUST-55).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.2.2
    //# Since these Unreachable messages indicate soft error conditions, a TCP implementation MUST NOT abort
    //# the connection (MUST-56), and it SHOULD make the information available to the application (SHLD-25).
    let connect_where = |ends: bool| {
        let mut trace = Trace::new(|config| config.icmp_ends_attempts = ends);
        let now = trace.now;
        let remote = SocketAddr::new(address(1, false), 5_000);
        let flow = trace.host.connect(now, None, Some(PORT), remote).expect("a flow");
        let syn = trace.packets().remove(0);
        (trace, flow, syn)
    };
    let send = |trace: &mut Trace, flow, bytes: &[u8]| {
        let now = trace.now;
        trace.host.input(now, [Frame { bytes, offload: Offload::default() }]);
        trace.host.read(now, flow, &mut [0])
    };
    let connect = || connect_where(true);
    let (mut trace, flow, syn) = connect();
    // Soft ones (MUST-56), and source quench, which is ignored (MUST-55).
    for (kind, code) in [(3, 0), (3, 1), (3, 5), (3, 11), (11, 0), (11, 1), (12, 0), (4, 0)] {
        assert!(send(&mut trace, flow, &error(kind, code, 0, &syn)).is_ok(), "{kind} {code}");
    }
    let mut other = syn.clone();
    other[24] ^= 0x40;
    assert!(send(&mut trace, flow, &error(3, 3, 0, &other)).is_ok(), "not what we sent");
    for (code, failure) in [
        (2, Failure::Refused),
        (3, Failure::Refused),
        (9, Failure::Unreachable),
        (10, Failure::Unreachable),
        (13, Failure::Unreachable),
    ] {
        let (mut trace, flow, syn) = connect();
        let failed = send(&mut trace, flow, &error(3, code, 0, &syn));
        assert_eq!(failed, Err(ReadError::Failed(failure)), "{code}");
    }

    let (mut trace, flow) = Trace::accepted(|_| {}, "");
    let now = trace.now;
    trace.host.write(now, flow, &[0; 100]).expect("open");
    let data = trace.packets().remove(0);
    let bytes = error(3, 3, 0, &data);
    trace.host.input(now, [Frame { bytes: &bytes, offload: Offload::default() }]);
    assert!(trace.host.read(now, flow, &mut [0]).is_ok());

    // Without icmp_ends_attempts none of them does.
    let (mut trace, flow, syn) = connect_where(false);
    for code in [2, 3, 9, 10, 13] {
        assert!(send(&mut trace, flow, &error(3, code, 0, &syn)).is_ok(), "{code}");
    }
}

/// RFC 1191, 6.3 to 6.5: a path takes less, and what is outstanding goes again in smaller pieces.
#[test]
fn packet_too_big() {
    let (mut trace, flow) = Trace::accepted(|_| {}, "");
    let now = trace.now;
    trace.host.write(now, flow, &[0; 2_000]).expect("open");
    let sent = trace.packets();
    assert_eq!(sent.len(), 2);
    let bytes = error(3, 4, 640, &sent[0]);
    trace.host.input(now, [Frame { bytes: &bytes, offload: Offload::default() }]);
    let sent = trace.take();
    let starts: Vec<&str> = sent.iter().filter_map(|sent| sent.split(' ').nth(1)).collect();
    assert_eq!(starts, ["1:601(600)", "601:1201(600)", "1201:1801(600)", "1801:2001(200)"]);
    trace.pass(ms(1));
}

/// RFC 8201, 4: a path of IPv6 may take less than the first hop, but not less than 1,280 bytes.
#[test]
fn ipv6_paths_that_take_too_little() {
    let mut net = Net::plain(PLAIN);
    let (flow, _) = net.connect(true);
    let now = net.now;
    assert_eq!(net.host(0).write(now, flow, &[0; 4_000]), Ok(4_000));
    let mut batch = Batch::new(1 << 18);
    while net.host(0).output(now, &mut batch) {}
    let about = batch.frames().next().expect("a segment").bytes[..60].to_vec();
    for (mtu, mss) in [(1_279, 1_440), (0, 1_440), (1_400, 1_340), (1_280, 1_220), (1_500, 1_220)] {
        let mut bytes = Vec::new();
        let builder = PacketBuilder::ipv6(v6(address(1, true)), v6(address(0, true)), 64);
        let error = Icmpv6Type::PacketTooBig { mtu };
        builder.icmpv6(error).write(&mut bytes, &about).expect("a packet");
        input(&mut net, &bytes);
        assert_eq!(net.host(0).info(flow).expect("a flow").mss, mss, "{mtu}");
    }
}

/// Segments that vanish without an error: after three timeouts they are smaller (RFC 4821, 7.7). If those are
/// not acknowledged either, the path is not what is wrong.
#[test]
fn black_holes() {
    let mut trace = Trace::new(|config| config.capabilities.mtu = 1500);
    let listener = trace.listen();
    trace.send("S 0:0(0) win 65535 <mss 1460,sackOK>");
    trace.take();
    trace.send(". 1:1(0) ack 1 win 65535");
    let flow = trace.host.accept(listener).expect("a connection");
    let now = trace.now;
    assert_eq!(trace.host.write(now, flow, &[0; 4_380]), Ok(4_380));
    assert_eq!(trace.take().len(), 3);
    // Each time that the first segment is sent again: the size of the next one.
    let mut sizes = Vec::new();
    while sizes.len() < 6 {
        trace.now = trace.host.deadline().expect("a timer").max(trace.now);
        let sent = trace.take();
        let again = sent.iter().find(|segment| segment.contains(" 1:"));
        let size = trace.host.info(flow).expect("open").mss;
        assert!(again.is_none_or(|again| size == 1460 || again.contains(" 1:1025(1024) ")), "{again:?}");
        sizes.extend(again.map(|_| size));
    }
    assert_eq!(sizes, [1460, 1460, 1024, 1024, 1460, 1460]);

    trace.send(". 1:1(0) ack 4381 win 65535");
    let now = trace.now;
    assert_eq!(trace.host.write(now, flow, &[0; 4_380]), Ok(4_380));
    while trace.host.info(flow).expect("open").mss == 1460 {
        trace.now = trace.host.deadline().expect("a timer").max(trace.now);
        trace.take();
    }
    trace.send(". 1:1(0) ack 5405 win 65535");
    let sent = trace.take();
    assert!(!sent.is_empty() && !sent.iter().any(|segment| segment.contains("(1460)")), "{sent:?}");
    trace.send(". 1:1(0) ack 8761 win 65535");
    trace.take();
    assert_eq!(trace.host.info(flow).expect("open").mss, 1024);
}
