//! Losses: retransmission timeout, RACK, tail loss probes, peers without SACK. Traces.
mod common;

use std::time::Duration;

use common::trace::{Trace, ms};
use tcp::{Config, Flow, Profile, State};

fn write(trace: &mut Trace, flow: Flow, len: usize) {
    let now = trace.now;
    assert_eq!(trace.host.write(now, flow, &vec![0; len]), Ok(len));
}

/// Ten segments are on their way (RFC 6928: the initial window).
fn ten_segments(options: &str) -> (Trace, Flow) {
    let (mut trace, flow) = Trace::accepted(|_| {}, options);
    write(&mut trace, flow, 20_000);
    let sent = trace.take();
    assert_eq!(sent.len(), 10, "{sent:?}");
    (trace, flow)
}

/// RFC 6298, 5.4 to 5.6: the first segment again, and the timeout doubles; RFC 5681, 3.1: the
/// window is one segment, and an acknowledgement of new data lets it grow.
#[test]
fn timeout() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.1
    //# The RTO MUST be computed according to the algorithm in [10], including Karn's algorithm for taking RTT
    //# samples (MUST-18).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.2
    //# A TCP endpoint MUST implement the basic congestion control algorithms slow start, congestion
    //# avoidance, and exponential backoff of RTO to avoid creating congestion collapse conditions (MUST-19).
    let (mut trace, flow) = ten_segments("");
    // The round trip of 10 ms, and 200 ms.
    for wait in [210, 420, 840, 1680] {
        trace.expect_after(ms(wait), &[". 1:1001(1000) ack 1"]);
    }
    assert_eq!(trace.host.info(flow).expect("a flow").congestion_window, 1000);
    trace.send(". 1:1(0) ack 1001");
    trace.expect(&[". 1001:2001(1000) ack 1", ". 2001:3001(1000) ack 1"]);
    // Karn: that acknowledgement measured nothing, and the timeout stays backed off.
    trace.expect_after(ms(3360), &[". 1001:2001(1000) ack 1"]);
    trace.send(". 1:1(0) ack 10001");
    let sent = trace.take();
    assert!(sent[0].starts_with(". 10001:11001(1000)"), "{sent:?}");
    // New data measures, and ends the backing off.
    trace.pass(ms(10));
    trace.send(". 1:1(0) ack 11001");
    trace.take();
    let sent = loop {
        trace.now = trace.host.deadline().expect("a deadline").max(trace.now);
        let sent = trace.take();
        if !sent.is_empty() {
            break sent;
        }
    };
    assert!(sent[0].starts_with(". 11001:12001(1000)"), "{sent:?}");
    let start = trace.now;
    while trace.take().is_empty() {
        trace.now = trace.host.deadline().expect("a deadline").max(trace.now);
    }
    assert!(trace.now.since(start) < ms(500), "{:?}", trace.now.since(start));
}

/// RFC 6298, 3 (Karn): an acknowledgement of segments of which one was sent twice measures nothing.
#[test]
fn ambiguous_round_trips() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.1
    //# The RTO MUST be computed according to the algorithm in [10], including Karn's algorithm for taking RTT
    //# samples (MUST-18).
    let (mut trace, flow) = ten_segments("");
    let before = trace.host.info(flow).expect("a flow").round_trip_micros;
    trace.expect_after(ms(210), &[". 1:1001(1000) ack 1"]);
    trace.pass(ms(1));
    trace.send(". 1:1(0) ack 5001");
    assert_eq!(trace.host.info(flow).expect("a flow").round_trip_micros, before);
}

/// RFC 6298, 5.3: an acknowledgement of new data starts the timer again.
#[test]
fn timer_restarts() {
    let (mut trace, flow) = Trace::accepted(|_| {}, "");
    write(&mut trace, flow, 2_000);
    assert_eq!(trace.take().len(), 2);
    trace.pass(ms(20));
    trace.send(". 1:1(0) ack 1001");
    trace.pass(ms(190));
    let sent = loop {
        trace.now = trace.host.deadline().expect("a deadline").max(trace.now);
        let sent = trace.take();
        if !sent.is_empty() {
            break sent;
        }
    };
    assert!(sent[0].starts_with("P. 1001:2001(1000)"), "{sent:?}");
}

/// A selective acknowledgement of what was never sent, or is acknowledged, marks nothing
/// (CVE-2019-11477 and its kind).
#[test]
fn forged_sacks() {
    let (mut trace, _) = ten_segments(",sackOK");
    trace.pass(ms(10));
    for block in ["5001:900000", "9001:5001", "0:4001", "1:1", "2147483649:4294967295"] {
        trace.send(&format!(". 1:1(0) ack 1 <sack {block}>"));
        trace.expect(&[]);
    }
}

/// RFC 9293, 3.8.3 (MUST-20): given up after R2, with an RST.
#[test]
fn given_up() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.3
    //# The following procedure MUST be used to handle excessive retransmissions of data segments (MUST-20):
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.3
    //# The value of R2 SHOULD correspond to at least 100 seconds (SHLD-11).
    let change = |config: &mut tcp::Config| config.profile.give_up = Duration::from_secs(100);
    let (mut trace, flow) = Trace::accepted(change, "");
    write(&mut trace, flow, 100);
    let start = trace.now;
    let mut last = trace.take();
    while trace.host.info(flow).expect("a flow").state == State::Established {
        trace.now = trace.host.deadline().expect("a deadline").max(trace.now);
        last = trace.take().into_iter().chain(last).take(1).collect();
    }
    assert!(trace.now.since(start) >= Duration::from_secs(100));
    assert_eq!(last.first().map(|last| last.starts_with("R. 101:101(0) ack 1")), Some(true), "{last:?}");
    let now = trace.now;
    let failed = trace.host.read(now, flow, &mut [0]);
    assert_eq!(failed, Err(tcp::ReadError::Failed(tcp::Failure::TimedOut)));
}

/// RFC 8985, 6.2: three segments above a gap, and no sign of reordering: the gap is repaired at
/// once; the congestion window becomes 0.7 of what it was (RFC 9438, 4.6), as fast as segments are
/// delivered (RFC 9937), and once.
#[test]
fn fast_recovery() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.2
    //# A TCP endpoint MUST implement the basic congestion control algorithms slow start, congestion
    //# avoidance, and exponential backoff of RTO to avoid creating congestion collapse conditions (MUST-19).
    let (mut trace, flow) = ten_segments(",sackOK");
    trace.pass(ms(10));
    trace.send(". 1:1(0) ack 1 <sack 1001:2001>");
    trace.expect(&[". 10001:11001(1000) ack 1"]);
    trace.send(". 1:1(0) ack 1 <sack 1001:3001>");
    trace.expect(&[". 11001:12001(1000) ack 1"]);
    trace.send(". 1:1(0) ack 1 <sack 1001:4001>");
    trace.expect(&[". 1:1001(1000) ack 1"]);
    // Eight are in flight, of which the one that is lost has just left.
    let info = trace.host.info(flow).expect("a flow");
    assert_eq!((info.congestion_window, info.slow_start_threshold), (9_000, 7_000));
    // What was sent with the lost one arrives, one after the other: of ten that were in flight seven are
    // replaced.
    let mut sent = 0;
    for end in (5_001..=10_001).step_by(1_000) {
        trace.send(&format!(". 1:1(0) ack 1 <sack 1001:{end}>"));
        let now = trace.take();
        assert!(now.len() <= 1 && now.iter().all(|sent| sent.starts_with(". 1")), "{now:?}");
        sent += now.len();
    }
    assert_eq!(sent, 4);
    trace.pass(ms(10));
    // All that was sent when the loss was found is there: the recovery is over.
    trace.send(". 1:1(0) ack 12001");
    trace.take();
    assert_eq!(trace.host.info(flow).expect("a flow").congestion_window, 7_000);
}

/// RFC 8985, 6.2, step 4: after reordering was seen, a gap is given a quarter of a round trip.
#[test]
fn reordering_is_tolerated() {
    let (mut trace, _) = ten_segments(",sackOK");
    trace.pass(ms(10));
    trace.send(". 1:1(0) ack 1 <sack 2001:3001>");
    trace.take();
    // The one below arrives later: reordered, not lost.
    trace.send(". 1:1(0) ack 1 <sack 1001:3001>");
    trace.take();
    trace.send(". 1:1(0) ack 1 <sack 1001:5001>");
    let sent = trace.take();
    assert!(sent.iter().all(|sent| !sent.starts_with(". 1:1001")), "{sent:?}");
    let start = trace.now;
    trace.now = start.after(Duration::from_micros(2_400));
    trace.expect(&[]);
    trace.now = start.after(Duration::from_micros(2_600));
    trace.expect(&[". 1:1001(1000) ack 1"]);
}

/// RFC 8985, 7: the last segment is lost. A probe two round trips later brings a SACK, and RACK
/// repairs what is missing, without a timeout.
#[test]
fn tail_loss_probe() {
    let (mut trace, flow) = Trace::accepted(|_| {}, ",sackOK");
    write(&mut trace, flow, 4_000);
    assert_eq!(trace.take().len(), 4);
    trace.pass(ms(10));
    trace.send(". 1:1(0) ack 2001");
    trace.expect_after(ms(20), &["P. 3001:4001(1000) ack 1"]);
    trace.pass(ms(10));
    trace.send(". 1:1(0) ack 2001 <sack 3001:4001>");
    let sent = trace.take();
    let sent = if sent.is_empty() {
        // After the reordering window.
        trace.now = trace.now.after(ms(3));
        trace.take()
    } else {
        sent
    };
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert!(sent[0].starts_with(". 2001:3001(1000)"), "{sent:?}");
}

/// RFC 8985, 7.3: a probe prefers new data.
#[test]
fn tail_loss_probe_with_new_data() {
    let (mut trace, flow) = Trace::accepted(|_| {}, ",sackOK");
    write(&mut trace, flow, 2_000);
    assert_eq!(trace.take().len(), 2);
    write(&mut trace, flow, 500);
    trace.expect_after(ms(20), &["P. 2001:2501(500) ack 1"]);
}

/// RFC 5681, 3.2, and RFC 6582, 3.2: a peer without SACK says three times that something is
/// missing; a partial acknowledgement names the next.
#[test]
fn peer_without_sack() {
    let (mut trace, _) = ten_segments("");
    trace.pass(ms(10));
    trace.send(". 1:1(0) ack 1");
    trace.send(". 1:1(0) ack 1");
    // Each duplicate says that a segment has left the network (RFC 3042).
    assert_eq!(trace.take().len(), 2);
    trace.send(". 1:1(0) ack 1");
    let sent = trace.take();
    assert!(sent[0].starts_with(". 1:1001(1000)"), "{sent:?}");
    trace.send(". 1:1(0) ack 3001");
    let sent = trace.take();
    assert!(sent[0].starts_with(". 3001:4001(1000)"), "{sent:?}");
}

/// RFC 2018, 8: a peer that has dropped what it had reported gets it again after a timeout.
#[test]
fn peer_takes_sacks_back() {
    let (mut trace, _) = ten_segments(",sackOK");
    trace.pass(ms(10));
    trace.send(". 1:1(0) ack 1 <sack 1001:10001>");
    let sent = trace.take();
    assert!(sent[0].starts_with(". 1:1001(1000)"), "{sent:?}");
    trace.pass(ms(10));
    trace.send(". 1:1(0) ack 1001");
    trace.take();
    let mut repeated = false;
    for _ in 0..20 {
        trace.now = trace.host.deadline().expect("a deadline").max(trace.now);
        repeated |= trace.take().iter().any(|sent| sent.starts_with(". 1001:2001(1000)"));
    }
    assert!(repeated);
}

/// RFC 6298, 2.1; RFC 9293, MUST-23: a SYN after 1, 2, 4 ... s, for at least three minutes.
#[test]
fn syn_without_answer() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.3
    //# SYN retransmissions MUST be handled in the general way just described for data retransmissions,
    //# including notification of the application layer.
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.3
    //# In particular, R2 for a SYN segment MUST be set large enough to provide retransmission of the segment
    //# for at least 3 minutes (MUST-23).
    let mut trace = Trace::new(|_| {});
    let now = trace.now;
    let remote = std::net::SocketAddr::new(common::address(1, false), 5_000);
    let flow = trace.host.connect(now, None, Some(common::PORT), remote).expect("a flow");
    let syn = "S 0:0(0) win 60000 <mss 1000,wscale 0,sackOK,TS>";
    let sent = trace.take();
    assert_eq!(sent.len(), 1);
    assert!(sent[0].starts_with("S 0:0(0) win 60000 <mss 1000,"), "{sent:?}, like {syn}");
    let start = now;
    for wait in [1, 2, 4, 8, 16, 32, 60] {
        let first = trace.now;
        while trace.take().is_empty() {
            trace.now = trace.host.deadline().expect("a deadline").max(trace.now);
        }
        let waited = trace.now.since(first);
        assert!(
            waited >= Duration::from_secs(wait) && waited < Duration::from_secs(wait) + ms(2),
            "{waited:?}"
        );
    }
    trace.now = trace.now.after(Duration::from_secs(61));
    trace.expect_nothing();
    assert!(trace.now.since(start) > Duration::from_secs(180));
    let now = trace.now;
    let failed = trace.host.read(now, flow, &mut [0]);
    assert_eq!(failed, Err(tcp::ReadError::Failed(tcp::Failure::TimedOut)));
}

/// Another connection of the same client's host, whose segments the trace sends from here on.
fn second(trace: &mut Trace) -> tcp::Flow {
    trace.peer_port += 1;
    trace.send("S 0:0(0) win 65535 <mss 1000>");
    trace.take();
    trace.pass(ms(10));
    trace.send(". 1:1(0) ack 1 win 65535");
    trace.host.accept(trace.listeners[0]).expect("a connection")
}

/// A connection without a record of outstanding data sends a segment at a time, and repeats it by the
/// timer; with one it goes on as any other.
#[test]
fn a_segment_at_a_time_without_a_record() {
    let (mut trace, first) = Trace::accepted(|config| config.limits.active = 1, "");
    let second = second(&mut trace);
    write(&mut trace, first, 1000);
    trace.expect(&["P. 1:1001(1000) ack 1"]);
    trace.pass(ms(150));
    write(&mut trace, second, 4000);
    trace.expect(&[". 1:1001(1000) ack 1"]);
    trace.send(". 1:1(0) ack 1001 win 65535");
    trace.expect(&[". 1001:2001(1000) ack 1"]);
    trace.peer_port -= 1;
    trace.send(". 1:1(0) ack 1001 win 65535");
    trace.peer_port += 1;
    // The rest goes out with the record that the first connection had.
    trace.expect(&[". 2001:3001(1000) ack 1", "P. 3001:4001(1000) ack 1"]);
    trace.send(". 1:1(0) ack 4001 win 65535");
    trace.expect(&[]);
}

/// Its timeout doubles, and it gives up, as any other.
#[test]
fn timeouts_without_a_record() {
    let change = |config: &mut tcp::Config| {
        config.limits.active = 1;
        config.profile.give_up = Duration::from_secs(100);
    };
    let (mut trace, first) = Trace::accepted(change, "");
    let second = second(&mut trace);
    write(&mut trace, first, 1000);
    trace.take();
    write(&mut trace, second, 2000);
    trace.expect(&[". 1:1001(1000) ack 1"]);
    let (start, mut sent) = (trace.now, Vec::new());
    while trace.host.info(second).expect("a flow").state == State::Established {
        trace.now = trace.host.deadline().expect("a deadline").max(trace.now);
        sent.extend(trace.take().into_iter().filter(|sent| sent.starts_with(". 1:1001(1000)")));
    }
    let lasted = trace.now.since(start);
    assert!(lasted > Duration::from_secs(95) && lasted < Duration::from_secs(160), "{lasted:?}");
    // 210 ms, doubled.
    assert!((7..=10).contains(&sent.len()), "{sent:?}");
}

/// RFC 5681, 4.1: after an idle time as long as the retransmission timeout no more is
/// sent at once than at the start, and slow start goes on to three quarters of what there
/// was (RFC 2861, 3.2).
#[test]
fn restart_after_idle() {
    let (mut trace, flow) = Trace::accepted(|_| {}, "");
    let mut end = 1;
    let mut rounds = |trace: &mut Trace, count: usize| {
        let mut sent = Vec::new();
        for _ in 0..count {
            write(trace, flow, 60_000);
            let packets = trace.take();
            sent.push(packets.len());
            // The rest goes out as acknowledgements come.
            for _ in 0..60 {
                end += 1000;
                trace.send(&format!(". 1:1(0) ack {end}"));
                trace.take();
            }
        }
        sent
    };
    let before = rounds(&mut trace, 4);
    assert!(before[0] == 10 && before[3] > 40, "{before:?}");
    trace.pass(ms(150));
    assert!(rounds(&mut trace, 1)[0] > 40, "less than the timeout");
    let window = trace.host.info(flow).expect("a flow").congestion_window;
    trace.pass(ms(250));
    assert_eq!(trace.host.info(flow).expect("a flow").congestion_window, 10_000);
    let after = rounds(&mut trace, 4);
    assert!(after[0] == 10 && after[3] > 10, "of {window}: {after:?}");
    // Also if the program writes before the host learns what the time is.
    trace.now = trace.now.after(ms(250));
    assert_eq!(rounds(&mut trace, 1)[0], 10);
}

/// RFC 3168, 6.1: congestion marks are echoed until the sender says that it has reduced its window, which it
/// does once a round trip, as for a loss; what is sent again is not marked as capable.
#[test]
fn congestion_marks() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.2
    //# A TCP endpoint SHOULD implement ECN as described in RFC 3168 (SHLD- 8).
    let mut trace = Trace::new(|_| {});
    let listener = trace.listen();
    trace.send("SEW 0:0(0) win 65535 <mss 1000,sackOK>");
    let answer = trace.take();
    assert!(answer[0].starts_with("SE. 0:0(0) ack 1"), "{answer:?}");
    trace.pass(ms(10));
    trace.send(". 1:1(0) ack 1 win 65535");
    let flow = trace.host.accept(listener).expect("a connection");
    trace.send_marked(". 1:1001(1000) ack 1");
    trace.expect(&["E. 1:1(0) ack 1001"]);
    trace.send(". 1001:2001(1000) ack 1");
    trace.expect(&["E. 1:1(0) ack 2001"]);
    trace.send("W. 2001:3001(1000) ack 1");
    trace.expect(&[". 1:1(0) ack 3001"]);

    write(&mut trace, flow, 20_000);
    let sent = trace.packets();
    assert!(sent.len() == 10 && sent.iter().all(|packet| packet[1] & 3 == 2), "ECT(0)");
    trace.pass(ms(10));
    for ack in [1_001, 2_001] {
        trace.send(&format!("E. 3001:3001(0) ack {ack} win 65535"));
    }
    let info = trace.host.info(flow).expect("open");
    // Of 11 segments, as the acknowledgement counted, too, and only once.
    assert_eq!(info.slow_start_threshold, 7_700);
    assert!(info.congestion_window < 8_000, "{info:?}");
    trace.send("E. 3001:3001(0) ack 6001 win 65535");
    let sent = trace.take();
    assert!(sent[0].starts_with("W. 10001:11001(1000)"), "{sent:?}");
    assert!(sent[1..].iter().all(|sent| sent.starts_with(". ")), "once: {sent:?}");
    // Nothing more is acknowledged: new bytes as a probe, and then the first again, which is not marked.
    let start = trace.now;
    while !trace.packets().iter().any(|packet| packet[1] & 3 == 0) {
        trace.now = trace.host.deadline().expect("a deadline").max(trace.now);
        assert!(trace.now.since(start) < Duration::from_secs(1));
    }
}

/// It is asked for where the program wants it, and not with a SYN that comes again, since something on the
/// way may drop the first for it.
#[test]
fn asking_for_congestion_marks() {
    for (answer, agreed) in [("SE.", true), ("S.", false), ("SEW.", false)] {
        let mut trace = Trace::new(|config| config.offers.ecn = 1);
        let now = trace.now;
        let remote = std::net::SocketAddr::new(common::address(1, false), 5_000);
        let flow = trace.host.connect(now, None, Some(common::PORT), remote).expect("a flow");
        assert!(trace.take()[0].starts_with("SEW 0:0(0)"));
        trace.send(&format!("{answer} 0:0(0) ack 1 win 65535 <mss 1000>"));
        trace.take();
        write(&mut trace, flow, 100);
        assert_eq!(trace.packets()[0][1] & 3, if agreed { 2 } else { 0 }, "{answer}");
        trace.send_marked(". 1:1001(1000) ack 101");
        let flags = trace.take()[0].starts_with("E. ");
        assert_eq!(flags, agreed, "{answer}");
    }
    for (count, second) in [(1, "S 0:0(0)"), (2, "SEW 0:0(0)")] {
        let mut trace = Trace::new(|config| config.offers.ecn = count);
        connecting(&mut trace);
        trace.now = trace.now.after(Duration::from_millis(1_001));
        assert!(trace.take()[0].starts_with(second));
    }
    // A SYN that crosses ours is answered as any.
    for (syn, answer) in [("SEW", "SE. 0:0(0) ack 1"), ("S", "S. 0:0(0) ack 1")] {
        let mut trace = Trace::new(|_| {});
        connecting(&mut trace);
        trace.send(&format!("{syn} 0:0(0) win 65535 <mss 1000>"));
        assert!(trace.take()[0].starts_with(answer), "{syn}");
    }
}

/// Begins a connection to the peer, and takes its SYN.
fn connecting(trace: &mut Trace) {
    let (now, remote) = (trace.now, std::net::SocketAddr::new(common::address(1, false), 5_000));
    trace.host.connect(now, None, Some(common::PORT), remote).expect("a flow");
    assert_eq!(trace.take().len(), 1);
}

/// Inside one site a SYN, and the answer to one, that was lost costs a tenth of a second.
#[test]
fn syns_inside_a_site() {
    let lan = |config: &mut Config| config.profile = Profile::lan();
    let mut client = Trace::new(lan);
    connecting(&mut client);
    let mut server = Trace::new(lan);
    server.listen();
    server.send("S 0:0(0) win 65535 <mss 1000>");
    assert_eq!(server.take().len(), 1);
    for trace in [&mut client, &mut server] {
        trace.now = trace.now.after(ms(99));
        assert!(trace.take().is_empty());
        trace.now = trace.now.after(ms(3));
        assert_eq!(trace.take().len(), 1);
    }
}

/// RFC 7661, 4.4: a window of which less than half is used is kept for five minutes and then halved, and a
/// loss leaves of it what was used, reduced.
#[test]
fn unused_window() {
    let (mut trace, flow) = Trace::accepted(|_| {}, ",sackOK");
    let mut end = 1;
    let mut round = |trace: &mut Trace, segments: u32| {
        write(trace, flow, 1_000 * segments as usize);
        let sent = trace.take().len();
        for _ in 0..segments {
            end += 1000;
            trace.send(&format!(". 1:1(0) ack {end}"));
            trace.take();
        }
        sent
    };
    let window = |trace: &Trace| trace.host.info(flow).expect("a flow").congestion_window;
    for _ in 0..4 {
        round(&mut trace, 60);
    }
    let grown = window(&trace);
    assert!(grown > 40_000, "{grown}");
    for _ in 0..2_900 {
        assert_eq!(round(&mut trace, 5), 5);
        trace.pass(ms(100));
    }
    assert_eq!(window(&trace), grown);
    for _ in 0..200 {
        round(&mut trace, 5);
        trace.pass(ms(100));
    }
    assert_eq!(window(&trace), grown / 2);
    // Five are in flight, and the first is lost: 0.7 of five, not of ten or of all.
    write(&mut trace, flow, 5_000);
    trace.take();
    trace.now = trace.now.after(Duration::from_micros(500));
    trace.send(&format!(". 1:1(0) ack {end} <sack {}:{}>", end + 1000, end + 5000));
    trace.take();
    let threshold = trace.host.info(flow).expect("a flow").slow_start_threshold;
    assert!(threshold <= 3_500, "{threshold}");
}
