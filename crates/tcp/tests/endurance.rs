//! What time, attackers and bad luck do to a connection: traces, each of a defect that was there.
mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::trace::{Trace, ms};
use common::{PLAIN, PORT, address, config};
use packet::{Frame, Offload};
use tcp::{ConnectError, Flow, Host, Reason, State};

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn write(trace: &mut Trace, flow: Flow, len: usize) {
    let now = trace.now;
    assert_eq!(trace.host.write(now, flow, &vec![0; len]), Ok(len));
}

fn with_timestamps() -> (Trace, Flow) {
    let mut trace = Trace::new(|_| {});
    let listener = trace.listen();
    trace.send("S 0:0(0) win 65535 <mss 1000,sackOK,TS 100 0>");
    trace.take();
    trace.pass(ms(10));
    trace.send(". 1:1(0) ack 1 win 65535 <TS 110 1000>");
    let flow = trace.host.accept(listener).expect("a connection");
    (trace, flow)
}

/// Time passes; what is sent meanwhile.
fn during(trace: &mut Trace, time: Duration) -> Vec<String> {
    let until = trace.now.after(time);
    let mut sent = Vec::new();
    loop {
        sent.extend(trace.take());
        match trace.host.deadline().filter(|&next| next <= until) {
            Some(next) => trace.now = trace.now.max(next),
            None => break,
        }
    }
    trace.now = until;
    sent.extend(trace.take());
    sent
}

/// RFC 7323, 4.3: the timestamp of a segment that is refused says nothing, or one forged segment makes
/// all of the true peer's old.
#[test]
fn timestamp_of_a_refused_segment() {
    let (mut trace, flow) = with_timestamps();
    trace.send("P. 1:501(500) ack 1 win 65535 <TS 120 1000>");
    trace.take();
    trace.send(". 1:1001(1000) ack 2000000000 win 65535 <TS 1000000000 0>");
    trace.take();
    trace.send("P. 501:601(100) ack 1 win 65535 <TS 220 1000>");
    trace.take();
    assert_eq!(trace.host.info(flow).expect("open").unread, 600);
    assert_eq!(trace.host.refused(Reason::Timestamp), 0);
}

/// Segments that are sent in each round trip, to a peer that acknowledges `each` segments at once, all
/// in one batch or one after the other.
fn rounds(each: u32, together: bool) -> Vec<u32> {
    let change = |config: &mut tcp::Config| config.limits.first_send_buffer = 1 << 20;
    let (mut trace, flow) = Trace::accepted(change, ",sackOK,wscale 7");
    write(&mut trace, flow, 1 << 20);
    let (mut acked, mut flight) = (1, during(&mut trace, ms(10)).len() as u32);
    let mut rounds = vec![flight];
    for _ in 0..4 {
        let mut sent = 0;
        for at in (0..flight).step_by(each as usize) {
            acked += 1_000 * each.min(flight - at);
            trace.send(&format!(". 1:1(0) ack {acked} win 60000"));
            if !together {
                sent += trace.take().len();
            }
        }
        // The rest of the round is paced.
        sent += during(&mut trace, ms(10)).len();
        flight = sent as u32;
        rounds.push(flight);
    }
    rounds
}

/// RFC 5681, 3.1: slow start doubles with each round trip, whether acknowledgements come one by one, in
/// one batch, or for whole flights, as from behind GRO.
#[test]
fn slow_start_doubles() {
    for (each, together) in [(1, false), (2, false), (2, true), (45, true)] {
        assert_eq!(rounds(each, together)[..4], [10, 20, 40, 80], "{each} {together}");
    }
}

/// RFC 6298, 5, and Linux: the timeout leaves 200 ms beside the round trip, and begins anew with a fast
/// retransmission, which a needless timeout would follow otherwise.
#[test]
fn no_timeout_after_a_fast_retransmission() {
    for rtt in [100, 300, 600] {
        let mut trace = Trace::new(|_| {});
        let listener = trace.listen();
        trace.send("S 0:0(0) win 65535 <mss 1000,sackOK>");
        trace.take();
        trace.pass(ms(rtt));
        trace.send(". 1:1(0) ack 1 win 65535");
        let flow = trace.host.accept(listener).expect("a connection");
        let mut base = 1;
        // The variation of the round trip goes to zero.
        for _ in 0..30 {
            write(&mut trace, flow, 1_000);
            assert_eq!(during(&mut trace, ms(rtt)).len(), 1);
            base += 1_000;
            trace.send(&format!(". 1:1(0) ack {base} win 65535"));
            assert!(during(&mut trace, ms(100)).is_empty());
        }
        write(&mut trace, flow, 10_000);
        assert_eq!(trace.take().len(), 10);
        assert!(during(&mut trace, ms(rtt)).is_empty());
        // The first was lost; the others arrive a millisecond apart.
        let mut sent = Vec::new();
        for upto in 2..=10 {
            let sack = format!("<nop,nop,sack {}:{}>", base + 1_000, base + upto * 1_000);
            trace.send(&format!(". 1:1(0) ack {base} win 65535 {sack}"));
            sent.extend(during(&mut trace, ms(1)));
        }
        sent.extend(during(&mut trace, ms(rtt - 9)));
        assert_eq!(sent.len(), 1, "{rtt} ms: {sent:?}");
        assert!(sent[0].contains(&format!(" {base}:{}(1000)", base + 1_000)), "{sent:?}");
    }
}

/// RFC 3522 and RFC 4015: an acknowledgement that echoes a timestamp from before the timeout says that
/// nothing was lost: the window is what it was, and nothing more is sent again.
#[test]
fn late_acknowledgements_undo_a_timeout() {
    let (mut trace, flow) = with_timestamps();
    write(&mut trace, flow, 5 * 988);
    assert_eq!(trace.take().len(), 5);
    let before = trace.host.info(flow).expect("open");
    // A tail loss probe, and a timeout.
    let sent = during(&mut trace, ms(300));
    assert_eq!(sent.len(), 2, "{sent:?}");
    assert_eq!(trace.host.info(flow).expect("open").congestion_window, 1_000);
    trace.send(". 1:1(0) ack 989 win 65535 <TS 400 1010>");
    assert_eq!(trace.take(), Vec::<String>::new());
    let after = trace.host.info(flow).expect("open");
    assert!(after.congestion_window >= before.congestion_window, "{after:?}");
    assert_eq!(after.slow_start_threshold, u32::MAX);
    assert_eq!(after.segments_again, 2);
    // One that echoes the repetition does not.
    let _ = during(&mut trace, ms(600));
    let window = trace.host.info(flow).expect("open").congestion_window;
    trace.send(". 1:1(0) ack 1977 win 65535 <TS 900 2000>");
    assert!(trace.host.info(flow).expect("open").congestion_window <= 2 * window);
}

/// RFC 3708, 2: so does a report that all that was sent again arrived twice.
#[test]
fn needless_repetition_is_undone() {
    let (mut trace, flow) = Trace::accepted(|_| {}, ",sackOK");
    write(&mut trace, flow, 20_000);
    assert_eq!(trace.take().len(), 10);
    trace.pass(ms(10));
    for end in [2_001, 3_001] {
        trace.send(&format!(". 1:1(0) ack 1 <sack 1001:{end}>"));
        assert_eq!(trace.take().len(), 1, "RFC 3042");
    }
    trace.send(". 1:1(0) ack 1 <sack 1001:4001>");
    let sent = trace.take();
    assert!(sent[0].starts_with(". 1:1001(1000)"), "{sent:?}");
    let reduced = trace.host.info(flow).expect("open");
    assert_eq!(reduced.slow_start_threshold, 7_000);
    trace.pass(ms(1));
    trace.send(". 1:1(0) ack 10001");
    trace.take();
    trace.send(". 1:1(0) ack 10001 <sack 1:1001>");
    let after = trace.host.info(flow).expect("open");
    assert!(after.congestion_window >= 10_000 && after.slow_start_threshold == u32::MAX, "{after:?}");
}

/// RFC 2018, 8: what was reported stays, though there are many gaps.
#[test]
fn what_was_reported_is_kept() {
    let change = |config: &mut tcp::Config| {
        (config.limits.receive_buffer, config.limits.first_receive_buffer) = (1 << 20, 1 << 20);
    };
    let (mut trace, _) = Trace::accepted(change, ",sackOK,wscale 7");
    // The window of a SYN is not scaled.
    trace.send(". 1:2(1) ack 1 win 65535");
    trace.take();
    for i in (0..400).rev() {
        let from = 502 + i * 1_000;
        trace.send(&format!(". {from}:{}(500) ack 1 win 65535", from + 500));
        let sent = trace.take();
        assert!(sent[0].contains(&format!("sack {from}:{}", from + 500)), "{sent:?}");
    }
    for i in 0..400 {
        let from = 2 + i * 1_000;
        trace.send(&format!(". {from}:{}(500) ack 1 win 65535", from + 500));
        let sent = trace.take();
        assert!(sent[0].contains(&format!(" ack {} ", from + 1_000)), "{sent:?}");
    }
}

/// RFC 9293, 3.8.4: probes of a peer are answered, whatever their period.
#[test]
fn probes_of_any_period() {
    for period in [15, 16, 32, 240, 3_600] {
        let (mut trace, _) = Trace::accepted(|_| {}, "");
        for _ in 0..20 {
            trace.pass(secs(period));
            trace.send(". 0:0(0) ack 1 win 65535");
            trace.expect(&[". 1:1(0) ack 1"]);
        }
    }
}

/// RFC 6298, 5.5: probes of a closed window back off; what is sent once it is open does not.
#[test]
fn window_opens_after_long_probing() {
    let (mut trace, flow) = Trace::accepted(|_| {}, "");
    write(&mut trace, flow, 1_000);
    trace.take();
    trace.pass(ms(10));
    trace.send(". 1:1(0) ack 1001 win 0");
    write(&mut trace, flow, 5_000);
    for _ in 0..8 {
        while trace.take().is_empty() {
            trace.now = trace.host.deadline().expect("a probe").max(trace.now);
        }
        trace.send(". 1:1(0) ack 1001 win 0");
    }
    trace.send(". 1:1(0) ack 1001 win 60000");
    assert_eq!(trace.take().len(), 5);
    // All of it is lost.
    let sent = during(&mut trace, ms(250));
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert!(sent[0].starts_with(". 1001:2001(1000)"), "{sent:?}");
}

/// RFC 8985, 6.2: a path that reorders goes on doing so after an idle moment.
#[test]
fn reordering_is_remembered() {
    let (mut trace, flow) = Trace::accepted(|_| {}, ",sackOK");
    write(&mut trace, flow, 4_000);
    trace.take();
    trace.pass(ms(10));
    trace.send(". 1:1(0) ack 1 win 65535 <nop,nop,sack 1001:3001>");
    trace.expect(&[]);
    trace.now = trace.now.after(ms(1));
    trace.send(". 1:1(0) ack 4001 win 65535");
    trace.expect(&[]);
    write(&mut trace, flow, 5_000);
    assert_eq!(trace.take().len(), 5);
    trace.pass(ms(10));
    // Three overtake by less than a quarter of the round trip.
    trace.send(". 1:1(0) ack 4001 win 65535 <nop,nop,sack 5001:8001>");
    trace.expect(&[]);
}

/// RFC 4987, 3.6: while forged SYNs fill the table, an honest client gets a cookie, and its connection
/// has what it offered. Those that were there before stay.
#[test]
fn syn_cookies() {
    let mut trace = Trace::new(|config| {
        config.initial = tcp::Initial::Keyed;
        config.limits.half_open = 8;
    });
    let listener = trace.listen();
    for port in 1..=1_000 {
        trace.peer_port = port;
        trace.send("S 0:0(0) win 65535 <mss 1000,sackOK,TS 100 0,wscale 7>");
    }
    // The numbers are not known beforehand: the packets themselves are read.
    let number = |packet: &[u8], at: usize| {
        u32::from_be_bytes([packet[at], packet[at + 1], packet[at + 2], packet[at + 3]])
    };
    for packet in trace.packets() {
        let port = u16::from_be_bytes([packet[22], packet[23]]);
        if ![1, 999].contains(&port) {
            continue;
        }
        let (iss, irs) = (number(&packet, 24), number(&packet, 28));
        // SACK permitted, then the timestamp.
        let options = &packet[40..];
        let stamps = options.windows(2).position(|pair| pair == [8, 10]).expect("a timestamp");
        let stamp = number(options, stamps + 2);
        trace.now = trace.now.after(ms(50));
        let builder = etherparse::PacketBuilder::ipv4([10, 0, 0, 2], [10, 0, 0, 1], 64);
        let builder = builder.tcp(port, PORT, irs, 1_000).ack(iss.wrapping_add(1));
        let timestamp = etherparse::TcpOptionElement::Timestamp(150, stamp);
        let mut bytes = Vec::new();
        builder.options(&[timestamp]).expect("options").write(&mut bytes, b"hello").expect("a packet");
        let now = trace.now;
        trace.host.input(now, [Frame { bytes: &bytes, offload: Offload::default() }]);
        let flow = trace.host.accept(listener).expect("a connection");
        let info = trace.host.info(flow).expect("open");
        assert_eq!((info.timestamps, info.sack, info.scale, info.unread), (true, true, true, 5));
        assert!(info.mss <= 1_000 && info.peer_edge - info.sent_to == 1_000 << 7, "{info:?}");
    }
    // A cookie that was made up, or for another port, opens nothing.
    trace.take();
    trace.peer_port = 2_000;
    trace.send(". 1:1(0) ack 1");
    assert!(trace.take()[0].starts_with("R "));
    assert_eq!(trace.host.accept(listener), None);
}

/// RFC 9293, 3.8.3: the time in which the program did not run is not the peer's silence, however long it
/// was.
#[test]
fn a_pause_of_the_program() {
    for hours in [1, 37, 40, 60, 100] {
        let (mut trace, flow) = Trace::accepted(|_| {}, "");
        write(&mut trace, flow, 1_000);
        trace.take();
        trace.now = trace.now.after(secs(hours * 3_600));
        let sent = trace.take();
        assert_eq!(sent.len(), 1, "{hours} h: {sent:?}");
        assert_eq!(trace.host.info(flow).expect("open").state, State::Established);
        let next = trace.host.deadline().expect("a timeout").since(trace.now);
        assert!(next < secs(1), "{hours} h: {next:?}");
    }
}

/// RFC 2018, 4: bytes beyond the window were not received, and are not reported.
#[test]
fn bytes_beyond_the_window_are_not_reported() {
    let (mut trace, _) = Trace::accepted(|_| {}, ",sackOK");
    trace.send(". 100001:101001(1000) ack 1 win 65535");
    trace.expect(&[". 1:1(0) ack 1"]);
}

/// RFC 6864, 4.1: nothing in an IP header says how much is sent to others.
#[test]
fn identifications_tell_nothing() {
    let (mut trace, _) = Trace::accepted(|_| {}, "");
    for _ in 0..3 {
        trace.send("R 5:5(0)");
        for packet in trace.packets() {
            assert_eq!(packet[4..8], [0, 0, 0x40, 0], "identification, and do not fragment");
        }
    }
}

/// RFC 6056, 3.3: every port of the range is found before there is none.
#[test]
fn every_port_is_found() {
    let mut config = config(0, PLAIN);
    config.limits.flows = 20_000;
    let mut host = Host::new(config, [9; 32]);
    let to = SocketAddr::new(address(1, false), 80);
    let now = tcp::Time::from_micros(1_000_000);
    for made in 0..16_384 {
        assert!(host.connect(now, None, None, to).is_ok(), "after {made}");
    }
    assert_eq!(host.connect(now, None, None, to), Err(ConnectError::InUse));
}

/// A connection to the own address would wait for itself.
#[test]
fn the_own_address() {
    let mut host = Host::new(config(0, PLAIN), [9; 32]);
    let to = SocketAddr::new(address(0, false), 80);
    let now = tcp::Time::from_micros(1_000_000);
    assert_eq!(host.connect(now, None, None, to), Err(ConnectError::Remote));
}

/// RFC 9293, 3.10.7.4: of two acknowledgements with the same numbers, one that was overtaken takes
/// nothing back.
#[test]
fn an_overtaken_window() {
    let (mut trace, flow) = Trace::accepted(|_| {}, "");
    write(&mut trace, flow, 1_000);
    trace.take();
    trace.pass(ms(10));
    trace.send(". 1:1(0) ack 1001 win 60000");
    trace.send(". 1:1(0) ack 1001 win 100");
    write(&mut trace, flow, 1_000);
    trace.expect(&["P. 1001:2001(1000) ack 1"]);
}

/// Answers of TIME_WAIT, and to SYNs that come again, are as few as challenges (RFC 5961, 7).
#[test]
fn answers_are_limited() {
    let (mut trace, flow) = Trace::accepted(|_| {}, "");
    let now = trace.now;
    trace.host.close(now, flow);
    trace.take();
    trace.send("F. 1:1(0) ack 2 win 65535");
    trace.take();
    let count = |trace: &mut Trace, segment: &str| {
        let answers = (0..1_000).map(|_| {
            trace.send(segment);
            trace.take().len()
        });
        answers.sum::<usize>()
    };
    let answers = count(&mut trace, ". 500000:500000(0) ack 1 win 65535");
    assert!((1..=11).contains(&answers), "{answers} in TIME_WAIT");
    let mut trace = Trace::new(|_| {});
    trace.listen();
    let answers = count(&mut trace, "S 0:0(0) win 65535 <mss 1000>");
    assert!((2..=12).contains(&answers), "{answers} SYN-ACKs");
}

fn too_big(quoted: &[u8], mtu: u16) -> Vec<u8> {
    let mut icmp = vec![3, 4, 0, 0, 0, 0, (mtu >> 8) as u8, mtu as u8];
    icmp.extend_from_slice(&quoted[..28]);
    let sum = packet::Sum::default().with(&icmp).finish();
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut bytes = Vec::new();
    let builder = etherparse::PacketBuilder::ipv4([192, 0, 2, 77], [10, 0, 0, 1], 64);
    let builder = builder.icmpv4_raw(icmp[0], icmp[1], [icmp[4], icmp[5], icmp[6], icmp[7]]);
    builder.write(&mut bytes, &icmp[8..]).expect("a packet");
    bytes
}

/// RFC 1191, 5 and 6.3: an old router names no size, a forged error names a useless one, and what a path
/// takes is tried anew after ten minutes.
#[test]
fn path_mtu_expires() {
    for (mtu, mss) in [(0, 966), (68, 512), (300, 512), (800, 760)] {
        let (mut trace, flow) = Trace::accepted(|_| {}, "");
        write(&mut trace, flow, 1_000);
        let sent = trace.packets();
        let error = too_big(&sent[0], mtu);
        let now = trace.now;
        trace.host.input(now, [Frame { bytes: &error, offload: Offload::default() }]);
        trace.take();
        assert_eq!(trace.host.info(flow).expect("open").mss, mss, "{mtu}");
        trace.send(". 1:1(0) ack 1001 win 65535");
        trace.pass(secs(601));
        write(&mut trace, flow, 10);
        trace.take();
        assert_eq!(trace.host.info(flow).expect("open").mss, 1_000, "{mtu}");
    }
}

/// Peers that acknowledge nothing keep no block from others, however many they are: an honest answer is
/// there after as many round trips as without them.
#[test]
fn silent_peers_delay_nobody() {
    let mut trace = Trace::new(|config| {
        config.limits.active = 4;
        config.limits.flows = 256;
    });
    let listener =
        trace.host.listen(tcp::Pattern { address: None, port: Some(PORT) }, 256).expect("a listener");
    let open = |trace: &mut Trace, port: u16| {
        trace.peer_port = port;
        trace.send("S 0:0(0) win 65535 <mss 1000,sackOK>");
        trace.take();
        trace.now = trace.now.after(ms(10));
        trace.send(". 1:1(0) ack 1 win 65535");
        trace.host.accept(listener).expect("a connection")
    };
    for port in 1..=100 {
        let silent = open(&mut trace, port);
        write(&mut trace, silent, 20_000);
        trace.take();
    }
    // Some have been through timeouts, some not.
    let _ = during(&mut trace, ms(300));
    let honest = open(&mut trace, 1_000);
    write(&mut trace, honest, 40_000);
    let start = trace.now;
    let mut acked = 1;
    while acked < 40_001 {
        let sent = during(&mut trace, ms(10));
        // Those of the honest one: the others repeat their first segment.
        let ends = sent.iter().filter_map(|sent| sent.split([':', '(']).nth(1)?.parse::<u32>().ok());
        let reached = ends.filter(|end| (acked + 1..=acked + 20_000).contains(end)).max();
        acked = reached.unwrap_or(acked).max(acked);
        trace.peer_port = 1_000;
        trace.send(&format!(". 1:1(0) ack {acked} win 65535"));
        assert!(trace.now.since(start) < secs(1), "{acked} bytes after {:?}", trace.now.since(start));
    }
}
