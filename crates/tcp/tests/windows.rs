//! Windows, acknowledgements, Nagle; reassembly and SACK as a receiver. Traces.
mod common;

use std::ops::Range;
use std::time::Duration;

use common::trace::{Trace, ms};
use packet::Random;
use tcp::{Flow, Read};

fn write(trace: &mut Trace, flow: Flow, len: usize) {
    let now = trace.now;
    assert_eq!(trace.host.write(now, flow, &vec![0; len]), Ok(len));
}

fn read(trace: &mut Trace, flow: Flow, len: usize) -> usize {
    let now = trace.now;
    match trace.host.read(now, flow, &mut vec![0; len]) {
        Ok(Read::Bytes(len)) => len,
        other => panic!("{other:?}"),
    }
}

/// Receives so much that acknowledgements are no longer sent at once.
fn past_quick_acks(trace: &mut Trace, flow: Flow) -> u32 {
    let mut next = 1;
    for _ in 0..20 {
        trace.send(&format!(". {next}:{}(1000) ack 1", next + 1000));
        next += 1000;
        read(trace, flow, 1000);
        trace.take();
    }
    trace.pass(ms(39));
    trace.now = trace.now.after(ms(10));
    trace.take();
    next
}

/// RFC 9293, 3.7.4 (SHLD-7) and MUST-17: a small segment waits for the acknowledgement of what
/// is outstanding, unless the program wants no delay.
#[test]
fn nagle() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.7.4
    //# A TCP implementation SHOULD implement the Nagle algorithm to coalesce short segments (SHLD-7).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.7.4
    //# However, there MUST be a way for an application to disable the Nagle algorithm on an individual
    //# connection (MUST-17).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.2
    //# If PUSH flags are not implemented, then the sending TCP peer: (1) MUST NOT buffer data indefinitely
    //# (MUST-60), and (2) MUST set the PSH bit in the last buffered segment (i.e., when there is no more
    //# queued data to be sent) (MUST-61).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.2
    //# The transmitter SHOULD collapse successive bits when it packetizes data, to send the largest possible
    //# segment (SHLD-27).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.2
    //# However, a TCP implementation SHOULD send a maximum-sized segment whenever possible (SHLD-28) to
    //# improve performance (see Section 3.8.6.2.1).
    let (mut trace, flow) = Trace::accepted(|_| {}, "");
    write(&mut trace, flow, 10);
    trace.expect(&["P. 1:11(10) ack 1"]);
    write(&mut trace, flow, 10);
    write(&mut trace, flow, 10);
    trace.expect(&[]);
    trace.send(". 1:1(0) ack 11");
    trace.expect(&["P. 11:31(20) ack 1"]);
    write(&mut trace, flow, 1_500);
    trace.expect(&[". 31:1031(1000) ack 1"]);
    let now = trace.now;
    trace.host.set_no_delay(now, flow, true);
    trace.expect(&["P. 1031:1531(500) ack 1"]);
}

/// A window that has grown by a quarter of the buffer is offered once the program has read, although the peer
/// has used less than half of what it was offered.
#[test]
fn window_update_after_a_quarter() {
    let (mut trace, flow) = Trace::accepted(
        |config| {
            config.limits.receive_buffer = 65_535;
            config.limits.first_receive_buffer = 65_535;
        },
        "",
    );
    for next in (1..20_000).step_by(1_000) {
        trace.send(&format!(". {next}:{}(1000) ack 1", next + 1_000));
        trace.take();
    }
    // The last acknowledgement was delayed.
    trace.now = trace.now.after(ms(50));
    trace.take();
    read(&mut trace, flow, 16_000);
    trace.expect(&[]);
    read(&mut trace, flow, 4_000);
    trace.expect(&[". 1:1(0) ack 20001 win 65535"]);
}

/// RFC 9293, 3.8.6.2.1 (MUST-38): less than a segment and less than half of the largest window
/// is not sent, until the override timer expires.
#[test]
fn silly_window_of_the_peer() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.2.1
    //# A TCP implementation MUST include a SWS avoidance algorithm in the sender (MUST-38).
    let (mut trace, flow) = Trace::accepted(|_| {}, "");
    write(&mut trace, flow, 3_000);
    trace.expect(&[". 1:1001(1000) ack 1", ". 1001:2001(1000) ack 1", "P. 2001:3001(1000) ack 1"]);
    trace.send(". 1:1(0) ack 3001 win 500");
    write(&mut trace, flow, 3_000);
    trace.expect_after(ms(209), &[". 3001:3501(500) ack 1"]);
    trace.send(". 1:1(0) ack 3501 win 2500");
    trace.expect(&[". 3501:4501(1000) ack 1", ". 4501:5501(1000) ack 1"]);
}

/// RFC 9293, 3.8.6.1 (MUST-36, SHLD-29, SHLD-30): a closed window is probed at rising intervals,
/// for as long as the peer answers.
#[test]
fn zero_window() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.1
    //# Probing of zero (offered) windows MUST be supported (MUST-36).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.1
    //# As long as the receiving TCP peer continues to send acknowledgments in response to the probe segments,
    //# the sending TCP peer MUST allow the connection to stay open (MUST-37).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.1
    //# The transmitting host SHOULD send the first zero-window probe when a zero window has existed for the
    //# retransmission timeout period (SHLD- 29) (Section 3.8.1), and SHOULD increase exponentially the
    //# interval between successive probes (SHLD-30).
    let (mut trace, flow) = Trace::accepted(|_| {}, "");
    write(&mut trace, flow, 1_000);
    trace.expect(&["P. 1:1001(1000) ack 1"]);
    trace.send(". 1:1(0) ack 1001 win 0");
    write(&mut trace, flow, 1_000);
    // Round trips of 10 ms and of nothing make 8.75 ms; 200 ms are for their variation.
    let timeout = Duration::from_micros(208_750);
    trace.expect_after(timeout, &[". 1000:1000(0) ack 1"]);
    trace.send(". 1:1(0) ack 1001 win 0");
    for doubled in 1..15 {
        let wait = (timeout * (1 << doubled)).min(Duration::from_secs(60));
        trace.expect_after(wait, &[". 1000:1000(0) ack 1"]);
        trace.send(". 1:1(0) ack 1001 win 0");
    }
    trace.send(". 1:1(0) ack 1001 win 1000");
    trace.expect(&["P. 1001:2001(1000) ack 1"]);
}

/// A FIN takes a number, and waits for the window like a byte.
#[test]
fn fin_waits_for_the_window() {
    let (mut trace, flow) = Trace::accepted(|_| {}, "");
    trace.send(". 1:1(0) ack 1 win 0");
    let now = trace.now;
    trace.host.close(now, flow);
    trace.expect_after(ms(210), &[". 0:0(0) ack 1"]);
    trace.send(". 1:1(0) ack 1 win 1");
    trace.expect(&["FP. 1:1(0) ack 1"]);
}

/// RFC 9293, 3.8.6.2.2 (MUST-39): the window grows in steps worth a segment; a reader of single
/// bytes causes no updates.
#[test]
fn silly_window_of_ours() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.2.2
    //# A TCP implementation MUST include a SWS avoidance algorithm in the receiver (MUST-39).
    let (mut trace, flow) = Trace::accepted(|config| config.limits.receive_buffer = 4_000, "");
    for start in [1, 1001, 2001, 3001] {
        trace.send(&format!(". {start}:{}(1000) ack 1", start + 1000));
    }
    trace.expect(&[". 1:1(0) ack 4001 win 0"]);
    // More is refused, and answered (MUST-66: acknowledgement and RST are still processed).
    trace.send(". 4001:4002(1) ack 1");
    trace.expect(&[". 1:1(0) ack 4001 win 0"]);
    for _ in 0..1_999 {
        read(&mut trace, flow, 1);
    }
    trace.expect(&[]);
    read(&mut trace, flow, 1);
    trace.expect(&[". 1:1(0) ack 4001 win 2000"]);
}

/// RFC 9293, 3.8.6.3 (MUST-40, SHLD-19): every second full segment at once, a single one
/// after 40 ms; at the start of a connection each at once.
#[test]
fn delayed_acknowledgement() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.3
    //# A TCP endpoint SHOULD implement a delayed ACK (SHLD-18), but an ACK should not be excessively delayed;
    //# in particular, the delay MUST be less than 0.5 seconds (MUST-40).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.3
    //# An ACK SHOULD be generated for at least every second full-sized segment or 2*RMSS bytes of new data
    //# (where RMSS is the MSS specified by the TCP endpoint receiving the segments to be acknowledged, or the
    //# default value if not specified) (SHLD-19).
    let (mut trace, flow) = Trace::accepted(|_| {}, "");
    trace.send(". 1:1001(1000) ack 1");
    trace.expect(&[". 1:1(0) ack 1001"]);
    read(&mut trace, flow, 1000);
    trace.send(". 1001:1011(10) ack 1");
    trace.expect(&[". 1:1(0) ack 1011"]);

    // As many as the profile says, from the first one on.
    for quick in [0, 2] {
        let (mut trace, _) = Trace::accepted(|config| config.profile.quick_acks = quick, "");
        for n in 0..u32::from(quick) {
            trace.send(&format!(". {}:{}(10) ack 1", 1 + 10 * n, 11 + 10 * n));
            trace.expect(&[&format!(". 1:1(0) ack {}", 11 + 10 * n)]);
        }
        let next = 1 + 10 * u32::from(quick);
        trace.send(&format!(". {next}:{}(1000) ack 1", next + 1000));
        trace.expect_after(ms(40), &[&format!(". 1:1(0) ack {}", next + 1000)]);
    }

    // With no delay every segment, for good.
    let (mut trace, flow) = Trace::accepted(|config| config.profile.delayed_ack = ms(0), "");
    let next = past_quick_acks(&mut trace, flow);
    trace.send(&format!(". {next}:{}(10) ack 1", next + 10));
    trace.expect(&[&format!(". 1:1(0) ack {}", next + 10)]);

    let (mut trace, flow) = Trace::accepted(|_| {}, "");
    let next = past_quick_acks(&mut trace, flow);
    trace.send(&format!(". {next}:{}(1000) ack 1", next + 1000));
    trace.expect_after(ms(40), &[&format!(". 1:1(0) ack {}", next + 1000)]);
    trace.send(&format!(". {}:{}(1000) ack 1", next + 1000, next + 2000));
    trace.expect(&[]);
    trace.send(&format!(". {}:{}(1000) ack 1", next + 2000, next + 3000));
    trace.expect(&[&format!(". 1:1(0) ack {}", next + 3000)]);
    // Data carries the acknowledgement.
    trace.send(&format!(". {}:{}(1000) ack 1", next + 3000, next + 4000));
    write(&mut trace, flow, 5);
    trace.expect(&[&format!("P. 1:6(5) ack {}", next + 4000)]);
}

/// RFC 2018, 4: the block that was reported last comes first; a filled gap is acknowledged at once.
#[test]
fn selective_acknowledgement() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
    //# Segments with higher beginning sequence numbers SHOULD be held for later processing (SHLD-31).
    let (mut trace, flow) = Trace::accepted(|_| {}, ",sackOK");
    past_quick_acks(&mut trace, flow);
    let at = |n: u32| 20_001 + n * 1000;
    let segment = |n: u32| format!(". {}:{}(1000) ack 1", at(n), at(n + 1));
    trace.send(&segment(1));
    trace.expect(&[". 1:1(0) ack 20001 <sack 21001:22001>"]);
    trace.send(&segment(3));
    trace.expect(&[". 1:1(0) ack 20001 <sack 23001:24001 21001:22001>"]);
    trace.send(&segment(5));
    trace.expect(&[". 1:1(0) ack 20001 <sack 25001:26001 23001:24001 21001:22001>"]);
    trace.send(&segment(2));
    trace.expect(&[". 1:1(0) ack 20001 <sack 21001:24001 25001:26001>"]);
    trace.send(&segment(0));
    trace.expect(&[". 1:1(0) ack 24001 <sack 25001:26001>"]);
    assert_eq!(read(&mut trace, flow, 10_000), 4_000);
    trace.send(&segment(4));
    trace.expect(&[". 1:1(0) ack 26001"]);
}

/// RFC 2883, 4: what arrives twice is reported once, below the cumulative acknowledgement or
/// inside a block.
#[test]
fn duplicates_are_reported() {
    let (mut trace, flow) = Trace::accepted(|_| {}, ",sackOK");
    past_quick_acks(&mut trace, flow);
    trace.send(". 19001:20001(1000) ack 1");
    trace.expect(&[". 1:1(0) ack 20001 <sack 19001:20001>"]);
    trace.send(". 22001:24001(2000) ack 1");
    trace.expect(&[". 1:1(0) ack 20001 <sack 22001:24001>"]);
    trace.send(". 23001:23501(500) ack 1");
    trace.expect(&[". 1:1(0) ack 20001 <sack 23001:23501 22001:24001>"]);
    trace.send(". 19001:21001(2000) ack 1");
    trace.expect(&[". 1:1(0) ack 21001 <sack 19001:20001 22001:24001>"]);
}

/// Reassembly against a set of bytes, with segments that overlap at random: RFC 5681, 4.2, has an
/// acknowledgement at once for what is out of order and for what fills a gap; RFC 2883, 4, has the
/// first part that is there already reported first.
#[test]
fn overlapping_segments() {
    for seed in 1..=100 {
        let mut random = Random::new(seed);
        let (mut trace, _) = Trace::accepted(|config| config.profile.quick_acks = 0, ",sackOK");
        let mut there = [false; 4_000];
        let mut next = 1;
        for _ in 0..60 {
            let start = (next + random.below(120) as usize).saturating_sub(40).max(1);
            let end = start + 1 + random.below(60) as usize;
            let holds = there[next..].contains(&true);
            let duplicate = runs(&there, start..end).next();
            there[start..end].fill(true);
            let before = next;
            next += there[next..].iter().take_while(|&&there| there).count();
            trace.send(&format!(". {start}:{end}({}) ack 1", end - start));
            let at_once = duplicate.is_some() || start > before || holds;
            let sent = trace.take();
            assert!(!at_once || sent.len() == 1, "{seed}: {start}:{end} {sent:?}");
            trace.now = trace.now.after(ms(50));
            let Some(answer) = sent.into_iter().chain(trace.take()).next() else { panic!("{seed}") };
            assert!(answer.contains(&format!(" ack {next} ")), "{seed}: {start}:{end} {answer}");
            let blocks = answer.split_once("sack ").map_or("", |(_, blocks)| blocks.trim_end_matches('>'));
            let mut blocks = blocks.split_whitespace();
            if let Some(duplicate) = duplicate {
                assert_eq!(blocks.next(), Some(&duplicate[..]), "{seed}: {start}:{end} {answer}");
            }
            let held: Vec<String> = runs(&there, next..4_000).collect();
            assert!(blocks.all(|block| held.iter().any(|held| held == block)), "{answer} {held:?}");
        }
    }
}

/// Consecutive bytes that are there, within a range.
fn runs(there: &[bool], range: Range<usize>) -> impl Iterator<Item = String> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        at += there[at..range.end].iter().position(|&there| there)?;
        let start = at;
        at += there[at..range.end].iter().take_while(|&&there| there).count();
        Some(format!("{start}:{at}"))
    })
}

/// When pages run out, out-of-order bytes give way to bytes in order, highest first (RFC 2018, 8).
#[test]
fn eviction() {
    let (mut trace, flow) = Trace::accepted(|config| config.limits.receive_pages = 3, ",sackOK");
    // Positions are the peer's sequence numbers; a page is 4,096 bytes of them.
    trace.send(". 4001:5001(1000) ack 1");
    trace.expect(&[". 1:1(0) ack 1 <sack 4001:5001>"]);
    trace.send(". 12001:12101(100) ack 1");
    trace.send(". 20001:20101(100) ack 1");
    trace.expect(&[". 1:1(0) ack 1 <sack 20001:20101 12001:12101 4001:5001>"]);
    trace.send(". 1:4001(4000) ack 1");
    let sent = trace.take();
    assert!(sent.len() == 1 && sent[0].starts_with(". 1:1(0) ack 5001"), "{sent:?}");
    assert!(!sent[0].contains("20001:20101"), "{sent:?}");
    assert_eq!(read(&mut trace, flow, 10_000), 5_000);
}

/// What is evicted gives its pages back, also if a range did not begin where its page does: else
/// the bytes in order would be refused for ever.
#[test]
fn eviction_frees_whole_pages() {
    for start in [3_248, 4_001, 7_300] {
        let (mut trace, flow) = Trace::accepted(|config| config.limits.receive_pages = 1, ",sackOK");
        // The peer's number 3,248 begins a page.
        trace.send(&format!(". {start}:{}(40) ack 1", start + 40));
        trace.expect(&[&format!(". 1:1(0) ack 1 <sack {start}:{}>", start + 40)]);
        trace.send(". 1:1001(1000) ack 1");
        trace.expect(&[". 1:1(0) ack 1001"]);
        assert_eq!(read(&mut trace, flow, 10_000), 1_000);
        assert!(trace.host.pages_match());
    }
}

/// Of the next bytes those are taken that fit into the window that the peer was offered.
#[test]
fn bytes_beyond_the_edge() {
    let (mut trace, flow) = Trace::accepted(|config| config.limits.receive_buffer = 4_000, "");
    trace.send(". 1:5001(5000) ack 1");
    trace.expect(&[". 1:1(0) ack 4001 win 0"]);
    assert_eq!(read(&mut trace, flow, 9_000), 4_000);
}

/// A FIN out of order counts when all before it is there (RFC 9293, 3.10.7.4, eighth).
#[test]
fn early_fin() {
    let (mut trace, flow) = Trace::accepted(|_| {}, "");
    trace.send("F. 11:21(10) ack 1");
    trace.expect(&[". 1:1(0) ack 1"]);
    trace.send(". 1:11(10) ack 1");
    trace.expect(&[". 1:1(0) ack 22"]);
    assert_eq!(read(&mut trace, flow, 100), 20);
    let now = trace.now;
    assert_eq!(trace.host.read(now, flow, &mut [0; 8]), Ok(Read::End));
}

/// A receive buffer doubles when the program reads a quarter of it within a round trip, up to its bound, while
/// half of all pages are free; a program that reads slowly keeps what it has.
#[test]
fn receive_buffers_grow() {
    let first = |config: &mut tcp::Config| config.limits.first_receive_buffer = 16_000;
    let receive = |change: &dyn Fn(&mut tcp::Config), wait: Duration| {
        let (mut trace, flow) = Trace::accepted(|config| change(config), "");
        for at in 0..20 {
            trace.send(&format!(". {}:{}(1000) ack 1", 1 + at * 1000, 1001 + at * 1000));
            read(&mut trace, flow, 1000);
            trace.take();
            trace.now = trace.now.after(wait);
        }
        trace.host.info(flow).expect("open").receive_buffer
    };
    // The round trip is 10 ms.
    assert_eq!(receive(&first, ms(0)), 60_000);
    assert_eq!(receive(&first, ms(20)), 16_000);
    // Unread bytes of another connection take more than half.
    let few = |config: &mut tcp::Config| {
        first(config);
        config.limits.receive_pages = 16;
    };
    assert_eq!(receive(&few, ms(0)), 60_000);
    let (mut trace, flow) = Trace::accepted(few, "");
    trace.peer_port += 1;
    trace.send("S 0:0(0) win 65535 <mss 1000>");
    trace.take();
    trace.send(". 1:1(0) ack 1 win 65535");
    let other = trace.host.accept(trace.listeners[0]).expect("a connection");
    trace.host.set_buffers(other, Some(60_000), None);
    for at in 0..9 {
        trace.send(&format!(". {}:{}(4096) ack 1", 1 + at * 4096, 4097 + at * 4096));
        trace.take();
    }
    trace.peer_port -= 1;
    for at in 0..6 {
        trace.send(&format!(". {}:{}(1000) ack 1", 1 + at * 1000, 1001 + at * 1000));
        read(&mut trace, flow, 1000);
    }
    assert_eq!(trace.host.info(flow).expect("open").receive_buffer, 16_000);
}

/// What counts the doublings of a flow has room for fifteen.
#[test]
fn receive_buffers_begin_large_enough_to_reach_their_bound() {
    let tiny = |config: &mut tcp::Config| {
        (config.limits.receive_buffer, config.limits.first_receive_buffer) = (1 << 30, 1);
    };
    let (trace, flow) = Trace::accepted(tiny, "");
    assert_eq!(trace.host.info(flow).expect("open").receive_buffer, 1 << 15);
}

/// A send buffer is twice the congestion window, at least its first size.
#[test]
fn send_buffers_grow() {
    let (mut trace, flow) = Trace::accepted(|config| config.limits.first_send_buffer = 20_000, ",sackOK");
    let now = trace.now;
    assert_eq!(trace.host.write(now, flow, &[0; 100_000]), Ok(20_000));
    assert_eq!(trace.take().len(), 10);
    trace.pass(ms(10));
    trace.send(". 1:1(0) ack 10001");
    assert_eq!(trace.host.info(flow).expect("open").congestion_window, 20_000);
    let now = trace.now;
    // 10,000 of 40,000 bytes are there already.
    assert_eq!(trace.host.write(now, flow, &[0; 100_000]), Ok(30_000));
}

/// A connection can have buffers of its own, which do not grow.
#[test]
fn buffers_of_a_connection() {
    let (mut trace, flow) = Trace::accepted(|config| config.limits.first_receive_buffer = 16_000, "");
    trace.host.set_buffers(flow, Some(8_000), Some(3_000));
    let now = trace.now;
    assert_eq!(trace.host.write(now, flow, &[0; 10_000]), Ok(3_000));
    for at in 0..20 {
        trace.send(&format!(". {}:{}(1000) ack 1", 1 + at * 1000, 1001 + at * 1000));
        read(&mut trace, flow, 1000);
        trace.take();
    }
    assert_eq!(trace.host.info(flow).expect("open").receive_buffer, 8_000);
    trace.send(". 20001:21001(1000) ack 1");
    let sent = trace.take();
    assert!(sent[0].starts_with(". 3001:3001(0) ack 21001 win 7000"), "{sent:?}");
    trace.host.set_buffers(flow, Some(1 << 30), Some(1 << 30));
    assert_eq!(trace.host.info(flow).expect("open").receive_buffer, 60_000);
}
