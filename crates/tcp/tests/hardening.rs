//! Forged segments, TIME_WAIT, keep-alive, ways to close, half-open connections. Traces.
mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::trace::{PEER_PORT, Trace, ms};
use common::{PORT, address};
use tcp::{Answer, Config, Event, Failure, Flow, Pattern, Read, ReadError, Ready, State, WriteError};

fn state(trace: &Trace, flow: Flow) -> State {
    trace.host.info(flow).expect("a flow").state
}

/// RFC 5961, 3.2: an RST resets at exactly the next number; inside the window it is challenged,
/// outside it is dropped.
#[test]
fn forged_resets() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
    //# 2) If the RST bit is set and the sequence number exactly matches the next expected sequence number
    //# (RCV.NXT), then TCP endpoints MUST reset the connection in the manner prescribed below according to
    //# the connection state.
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
    //# 3) If the RST bit is set and the sequence number does not exactly match the next expected sequence
    //# value, yet is within the current receive window, TCP endpoints MUST send an acknowledgment (challenge
    //# ACK):
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
    //# After sending the challenge ACK, TCP endpoints MUST drop the unacceptable segment and stop processing
    //# the incoming packet further.
    let (mut trace, flow) = Trace::accepted(|_| {}, "");
    trace.send("R 2:2(0)");
    trace.expect(&[". 1:1(0) ack 1"]);
    trace.send("R 100000:100000(0)");
    trace.expect(&[]);
    assert_eq!(state(&trace, flow), State::Established);
    trace.send("R 1:1(0)");
    let now = trace.now;
    assert_eq!(trace.host.read(now, flow, &mut [0]), Err(ReadError::Failed(Failure::Reset)));
    assert_eq!(trace.host.write(now, flow, &[0]), Err(WriteError::Failed(Failure::Reset)));
    trace.host.close(now, flow);
    trace.expect_nothing();
}

/// We connect; the SYN is sent.
fn connecting(change: impl FnOnce(&mut Config)) -> (Trace, Flow) {
    let mut trace = Trace::new(change);
    let (now, remote) = (trace.now, SocketAddr::new(address(1, false), PEER_PORT));
    let flow = trace.host.connect(now, None, Some(PORT), remote).expect("a flow");
    trace.take();
    (trace, flow)
}

/// The same in every state that has received a SYN, a half-open connection's included. A challenge
/// has the window that every segment has: one of 0 would stop the peer.
#[test]
fn forged_resets_in_every_state() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.5
    //# A TCP implementation MUST support simultaneous open attempts (MUST- 10).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.5
    //# Note that a TCP implementation MUST keep track of whether a connection has reached SYN-RECEIVED state
    //# as the result of a passive OPEN or an active OPEN (MUST-11).
    let close = |trace: &mut Trace, flow: Flow| {
        let now = trace.now;
        trace.host.shutdown(now, flow);
        trace.take();
    };
    let established = || Trace::accepted(|_| {}, "");
    let mut half = Trace::new(|_| {});
    half.listen();
    half.send("S 0:0(0) win 65535 <mss 1000>");
    // State, the trace in it, the number that we and the peer send next.
    let mut traces = vec![("half-open", half, 1, 1)];
    let (mut trace, _) = connecting(|_| {});
    trace.send("S 0:0(0) win 65535 <mss 1000>");
    trace.expect(&["S. 0:0(0) ack 1 <mss 1000>"]);
    traces.push(("SYN-RECEIVED", trace, 1, 1));
    let (trace, _) = established();
    traces.push(("ESTABLISHED", trace, 1, 1));
    let (mut trace, flow) = established();
    close(&mut trace, flow);
    traces.push(("FIN-WAIT-1", trace, 2, 1));
    let (mut trace, flow) = established();
    close(&mut trace, flow);
    trace.send(". 1:1(0) ack 2");
    traces.push(("FIN-WAIT-2", trace, 2, 1));
    let (mut trace, flow) = established();
    close(&mut trace, flow);
    trace.send("F. 1:1(0) ack 1");
    traces.push(("CLOSING", trace, 2, 2));
    let (mut trace, _) = established();
    trace.send("F. 1:1(0) ack 1");
    traces.push(("CLOSE-WAIT", trace, 1, 2));
    let (mut trace, flow) = established();
    trace.send("F. 1:1(0) ack 1");
    trace.take();
    close(&mut trace, flow);
    traces.push(("LAST-ACK", trace, 2, 2));
    for (state, mut trace, ours, theirs) in traces {
        trace.take();
        // The peer's FIN has used up one byte of it.
        let challenge = format!(". {ours}:{ours}(0) ack {theirs} win {}", 60_001 - theirs);
        for flags in ["R", "R."] {
            let mut forge = |offset: i32| {
                let seq = theirs + offset;
                let ack = if flags == "R." { " ack 77" } else { "" };
                trace.send(&format!("{flags} {seq}:{seq}(0){ack}"));
                trace.take()
            };
            let window = 60_001 - theirs;
            for offset in [-1, window, 100_000] {
                assert_eq!(forge(offset), Vec::<String>::new(), "{state} {flags} {offset}");
            }
            for offset in [1, window - 1] {
                assert_eq!(forge(offset), [challenge.as_str()], "{state} {flags} {offset}");
            }
        }
        trace.send(&format!("R {theirs}:{theirs}(0)"));
        trace.expect(&[]);
        assert_eq!(trace.host.live_flows().count(), 0, "{state}");
        // Nothing is left of a half-open connection either.
        trace.send(&format!(". {theirs}:{theirs}(0) ack {ours}"));
        trace.expect(&[&format!("R {ours}:{ours}(0)")]);
    }
}

/// What a half-open connection answers has the options and the scaled window that the connection
/// will have.
#[test]
fn half_open_connections_answer_like_open_ones() {
    let mut trace = Trace::new(|config| config.limits.receive_buffer = 200_000);
    trace.listen();
    trace.send("S 0:0(0) win 65535 <mss 1000,wscale 3,TS 1000 0>");
    trace.expect(&["S. 0:0(0) ack 1 win 65535 <mss 1000,wscale 2,TS>"]);
    for forged in ["S 5:5(0) win 65535 <mss 1000,TS 1001 0>", "R 5:5(0)", ". 5:5(0) ack 1 <TS 9 0>"] {
        trace.send(forged);
        trace.expect(&[". 1:1(0) ack 1 win 16384 <TS>"]);
    }
}

/// RFC 9293, 3.10.7.1 and 3.10.7.2: a listener resets what acknowledges, and drops what neither
/// acknowledges nor opens; without a listener all is reset but an RST.
#[test]
fn what_opens_nothing() {
    let mut trace = Trace::new(|_| {});
    let none: &[&str] = &[];
    let segments = [
        (". 5:5(0) ack 3", &["R 3:3(0)"][..], &["R 3:3(0)"][..]),
        ("S. 5:5(0) ack 3", &["R 3:3(0)"], &["R 3:3(0)"]),
        ("F 5:8(3)", none, &["R. 7296:7296(0) ack 9"]),
        ("P 5:8(3)", none, &["R. 7296:7296(0) ack 8"]),
        ("R 5:5(0)", none, none),
        ("R. 5:5(0) ack 3", none, none),
    ];
    for (segment, _, closed) in segments {
        trace.send(segment);
        trace.expect(closed);
    }
    trace.listen();
    for (segment, listening, _) in segments {
        trace.send(segment);
        trace.expect(listening);
    }
}

/// RFC 9293, 3.10.7.3: bytes and a FIN that come with a SYN-ACK count.
#[test]
fn what_comes_with_a_syn_ack() {
    let (mut trace, flow) = connecting(|_| {});
    trace.send("S. 0:5(5) ack 1 win 65535 <mss 1000>");
    trace.expect(&[". 1:1(0) ack 6"]);
    let now = trace.now;
    assert_eq!(trace.host.read(now, flow, &mut [0; 9]), Ok(Read::Bytes(5)));
    let (mut trace, flow) = connecting(|_| {});
    trace.send("SF. 0:5(5) ack 1 win 65535 <mss 1000>");
    trace.expect(&[". 1:1(0) ack 7"]);
    assert_eq!(state(&trace, flow), State::CloseWait);
    let now = trace.now;
    assert_eq!(trace.host.read(now, flow, &mut [0; 9]), Ok(Read::Bytes(5)));
    assert_eq!(trace.host.read(now, flow, &mut [0; 9]), Ok(Read::End));
}

/// RFC 5961, 4.2 and 5.2: a SYN, and an acknowledgement of what was not sent or long ago, are
/// challenged; section 7: not without limit.
#[test]
fn forged_syns_and_acknowledgements() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
    //# RFC 5961 recommends that in these synchronized states, if the SYN bit is set, irrespective of the
    //# sequence number, TCP endpoints MUST send a "challenge ACK" to the remote peer:
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
    //# o After sending the acknowledgment, TCP implementations MUST drop the unacceptable segment and stop
    //# processing further.
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
    //# TCP stacks that implement RFC 5961 MUST add an input check that the ACK value is acceptable only if it
    //# is in the range of ((SND.UNA - MAX.SND.WND) =< SEG.ACK =< SND.NXT).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
    //# All incoming segments whose ACK value doesn't satisfy the above condition MUST be discarded and an ACK
    //# sent back.
    let (mut trace, flow) = Trace::accepted(|_| {}, "");
    for forged in ["S 1:1(0)", "S 5000:5000(0)", ". 1:1(0) ack 2", ". 1:1(0) ack 4294000000"] {
        trace.send(forged);
        trace.expect(&[". 1:1(0) ack 1"]);
    }
    let mut answers = 0;
    for _ in 0..100 {
        trace.send("R 2:2(0)");
        answers += trace.take().len();
    }
    assert!(answers < 16, "{answers} challenges in one second");
    trace.pass(Duration::from_secs(1));
    trace.send("R 2:2(0)");
    trace.expect(&[". 1:1(0) ack 1"]);
    assert_eq!(state(&trace, flow), State::Established);
}

/// RFC 7323, 5.2 and 3.2: PAWS drops what is older than the newest, and answers; a segment
/// without timestamps is dropped.
#[test]
fn old_timestamps() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
    //# A TCP implementation MUST be able to receive a TCP Option in any segment (MUST-5).
    // Aligned as most peers have it, for which there is a short way, and as few do.
    for aligned in ["nop,nop,", ""] {
        let mut trace = Trace::new(|_| {});
        let listener = trace.listen();
        trace.send("S 0:0(0) win 65535 <mss 1000,TS 1000 0>");
        trace.take();
        trace.send(". 1:1(0) ack 1 <TS 1001 0>");
        trace.host.accept(listener).expect("a connection");
        trace.send(&format!(". 1:11(10) ack 1 <{aligned}TS 1005 0>"));
        trace.expect(&[". 1:1(0) ack 11 <TS>"]);
        trace.send(&format!(". 11:21(10) ack 1 <{aligned}TS 1004 0>"));
        trace.expect(&[". 1:1(0) ack 11 <TS>"]);
        trace.send(". 11:21(10) ack 1");
        trace.expect(&[]);
        trace.send(&format!(". 11:21(10) ack 1 <{aligned}TS 1005 0>"));
        trace.expect(&[". 1:1(0) ack 21 <TS>"]);
    }
}

/// We close first, and reach TIME_WAIT: once with the handle given back, once with it.
fn time_wait() -> [(Trace, Flow); 2] {
    [true, false].map(|closed| {
        let (mut trace, flow) = Trace::accepted(|_| {}, "");
        let now = trace.now;
        if closed {
            trace.host.close(now, flow);
        } else {
            trace.host.shutdown(now, flow);
        }
        trace.expect(&["FP. 1:1(0) ack 1"]);
        trace.send("F. 1:1(0) ack 2");
        trace.expect(&[". 2:2(0) ack 2"]);
        assert_eq!(trace.host.live_flows().count(), usize::from(!closed));
        (trace, flow)
    })
}

/// RFC 9293, 3.6 and 3.10.7.4: TIME_WAIT answers a repeated FIN, for twice the segment lifetime
/// after the last one, and whatever else is not exactly the next ACK; RFC 1337: an RST does not end
/// it.
#[test]
fn time_wait_lasts() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.6.1
    //# When a connection is closed actively, it MUST linger in the TIME-WAIT state for a time 2xMSL (Maximum
    //# Segment Lifetime) (MUST-13).
    for (mut trace, _) in time_wait() {
        trace.pass(Duration::from_secs(50));
        for silent in ["R 2:2(0)", "R 3:3(0)", "R 90000:90000(0)", ". 2:2(0) ack 2", "F 2:2(0)"] {
            trace.send(silent);
            trace.expect(&[]);
        }
        for answered in [". 3:3(0) ack 2", ". 1:1(0) ack 2", "S 1:1(0)", "S. 2:2(0) ack 2", ". 2:9(7) ack 2"]
        {
            trace.send(answered);
            trace.expect(&[". 2:2(0) ack 2"]);
            // As few as challenges.
            trace.pass(Duration::from_secs(1));
        }
        trace.send("F. 1:1(0) ack 2");
        trace.expect(&[". 2:2(0) ack 2"]);
        trace.pass(Duration::from_secs(50));
        trace.send("F. 1:1(0) ack 2");
        trace.expect(&[". 2:2(0) ack 2"]);
        trace.pass(Duration::from_secs(61));
        trace.send("F. 1:1(0) ack 2");
        trace.expect(&["R 2:2(0)"]);
        trace.expect_nothing();
    }
}

/// RFC 6191, 2, RFC 9293, 3.6.1 (MAY-2): a SYN above the last sequence number begins a new
/// connection, with numbers above the old ones; an old one does not.
#[test]
fn time_wait_is_reused() {
    for (mut trace, flow) in time_wait() {
        trace.send("S -10:-10(0) win 65535 <mss 1000>");
        trace.expect(&[". 2:2(0) ack 2"]);
        trace.send("S 10:10(0) win 65535 <mss 1000>");
        trace.expect(&["S. 128002:128002(0) ack 11 <mss 1000>"]);
        assert!(trace.host.info(flow).is_none_or(|info| info.state == State::Closed));
        trace.send(". 11:16(5) ack 128003");
        trace.expect(&[". 128003:128003(0) ack 16"]);
    }
}

/// RFC 6191, 2: a newer timestamp begins a new connection whatever the sequence number, and so does the
/// first one between these ports; an older one does not.
#[test]
fn timestamps_reuse_time_wait() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.6.1
    //# This algorithm for reducing TIME-WAIT is a Best Current Practice that SHOULD be implemented since
    //# Timestamp Options are commonly used, and using them to reduce TIME-WAIT provides benefits for busy
    //# Internet servers (SHLD-4).
    let mut trace = Trace::new(|_| {});
    let listener = trace.listen();
    trace.send("S 0:0(0) win 65535 <mss 1000,TS 1000 0>");
    trace.take();
    trace.send(". 1:1(0) ack 1 <TS 1001 0>");
    let flow = trace.host.accept(listener).expect("a connection");
    let now = trace.now;
    trace.host.close(now, flow);
    trace.take();
    trace.send("F. 1:1(0) ack 2 <TS 1002 0>");
    trace.expect(&[". 2:2(0) ack 2 <TS>"]);
    trace.send("S 10:10(0) win 65535 <mss 1000,TS 1001 0>");
    trace.expect(&[". 2:2(0) ack 2 <TS>"]);
    trace.send("S -10:-10(0) win 65535 <mss 1000,TS 1003 0>");
    trace.expect(&["S. 128002:128002(0) ack 4294967287 <mss 1000,TS>"]);
    for (mut trace, _) in time_wait() {
        trace.send("S -10:-10(0) win 65535 <mss 1000,TS 7 0>");
        trace.expect(&["S. 128002:128002(0) ack 4294967287 <mss 1000,TS>"]);
    }
}

/// RFC 9293, 3.8.4 (MUST-24 to MUST-28): probes after two hours, only if asked for; the peer's
/// answer keeps the connection, silence ends it.
#[test]
fn keep_alive() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.4
    //# If keep-alives are included, the application MUST be able to turn them on or off for each TCP
    //# connection (MUST-24), and they MUST default to off (MUST-25).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.4
    //# Keep-alive packets MUST only be sent when no sent data is outstanding, and no data or acknowledgment
    //# packets have been received for the connection within an interval (MUST-26).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.4
    //# This interval MUST be configurable (MUST-27) and MUST default to no less than two hours (MUST-28).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.4
    //# Consequently, if a keep-alive mechanism is implemented it MUST NOT interpret failure to respond to any
    //# specific probe as a dead connection (MUST-29).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.4
    //# An implementation SHOULD send a keep-alive segment with no data (SHLD-12); however, it MAY be
    //# configurable to send a keep-alive segment containing one garbage octet (MAY-6), for compatibility with
    //# erroneous TCP implementations.
    let (mut trace, flow) = Trace::accepted(|_| {}, "");
    trace.pass(Duration::from_secs(10_000));
    let now = trace.now;
    trace.host.set_keep_alive(now, flow, true);
    trace.expect_after(Duration::from_secs(7_200), &[". 0:0(0) ack 1"]);
    trace.send(". 1:1(0) ack 1");
    trace.expect_after(Duration::from_secs(7_200), &[". 0:0(0) ack 1"]);
    for _ in 0..8 {
        trace.expect_after(Duration::from_secs(75), &[". 0:0(0) ack 1"]);
    }
    trace.expect_after(Duration::from_secs(75), &["R. 1:1(0) ack 1"]);
    let now = trace.now;
    assert_eq!(trace.host.read(now, flow, &mut [0]), Err(ReadError::Failed(Failure::TimedOut)));
}

/// RFC 9293, 3.6.1 (SHLD-3): a close over unread bytes, and bytes after a close, reset.
#[test]
fn bytes_that_nobody_reads() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.6.1
    //# If such a host issues a CLOSE call while received data is still pending in the TCP connection, or if
    //# new data is received after CLOSE is called, its TCP implementation SHOULD send a RST to show that data
    //# was lost (SHLD-3).
    let (mut trace, flow) = Trace::accepted(|_| {}, "");
    trace.send("P. 1:11(10) ack 1");
    trace.expect(&[". 1:1(0) ack 11"]);
    let now = trace.now;
    trace.host.close(now, flow);
    trace.expect(&["R. 1:1(0) ack 11"]);
    assert_eq!(trace.host.live_flows().count(), 0);

    let (mut trace, flow) = Trace::accepted(|_| {}, "");
    let now = trace.now;
    trace.host.close(now, flow);
    trace.expect(&["FP. 1:1(0) ack 1"]);
    trace.send("P. 1:11(10) ack 1");
    trace.expect(&["R. 2:2(0) ack 1"]);
    assert_eq!(trace.host.live_flows().count(), 0);
}

/// A peer that never closes, or never acknowledges, does not keep a closed connection for ever.
#[test]
fn closed_connections_end() {
    let (mut trace, flow) = Trace::accepted(|_| {}, "");
    let now = trace.now;
    trace.host.close(now, flow);
    trace.take();
    trace.send(". 1:1(0) ack 2");
    trace.pass(Duration::from_secs(59));
    assert_eq!(trace.host.live_flows().count(), 1, "FIN-WAIT-2");
    trace.pass(Duration::from_secs(2));
    assert_eq!(trace.host.live_flows().count(), 0);

    let (mut trace, flow) = Trace::accepted(|_| {}, "");
    let now = trace.now;
    trace.host.write(now, flow, &[0; 100]).expect("open");
    trace.take();
    trace.host.close_within(now, flow, ms(500));
    trace.expect(&["FP. 101:101(0) ack 1"]);
    trace.expect_after(ms(210), &["FP. 1:101(100) ack 1"]);
    trace.expect_after(ms(290), &["R. 102:102(0) ack 1"]);
    assert_eq!(trace.host.live_flows().count(), 0);
}

/// A closed connection drains for as long as the peer reads, however slowly.
#[test]
fn closed_connections_drain() {
    let (mut trace, flow) = Trace::accepted(|config| config.profile.give_up = Duration::from_secs(100), "");
    let now = trace.now;
    assert_eq!(trace.host.write(now, flow, &[0; 10_000]), Ok(10_000));
    trace.host.close(now, flow);
    assert_eq!(trace.take().len(), 10);
    trace.send(". 1:1(0) ack 1 win 0");
    for acked in 1..10 {
        for _ in 0..6 {
            trace.now = trace.now.after(Duration::from_secs(10));
            trace.take();
            trace.send(&format!(". 1:1(0) ack {} win 0", acked * 1000 + 1));
        }
    }
    assert_eq!(trace.host.live_flows().count(), 1);
    // It stops reading, but not answering.
    for _ in 0..11 {
        trace.now = trace.now.after(Duration::from_secs(10));
        trace.take();
        trace.send(". 1:1(0) ack 9001 win 0");
    }
    assert_eq!(trace.host.live_flows().count(), 0);
}

/// RFC 4987, 3.4, and a full accept queue: the last ACK is dropped, and the SYN-ACK repeated until
/// there is room.
#[test]
fn full_accept_queue() {
    let mut trace = Trace::new(|_| {});
    let listener = trace.host.listen(Pattern { address: None, port: Some(PORT) }, 1).expect("a listener");
    for port in [6001, 6002] {
        trace.peer_port = port;
        trace.send("S 0:0(0) win 65535 <mss 1000>");
        trace.expect(&["S. 0:0(0) ack 1 win 60000 <mss 1000>"]);
    }
    for port in [6001, 6002] {
        trace.peer_port = port;
        trace.send(". 1:1(0) ack 1");
        trace.expect(&[]);
    }
    // A third is not even begun.
    trace.peer_port = 6003;
    trace.send("S 0:0(0) win 65535 <mss 1000>");
    trace.expect(&[]);
    let first = trace.host.accept(listener).expect("the first");
    assert_eq!(trace.host.addresses(first).expect("a flow").1.port(), 6001);
    assert_eq!(trace.host.accept(listener), None);
    trace.peer_port = 6002;
    trace.expect_after(ms(1000), &["S. 0:0(0) ack 1 win 60000 <mss 1000>"]);
    trace.send("P. 1:6(5) ack 1");
    trace.expect(&[". 1:1(0) ack 6"]);
    let second = trace.host.accept(listener).expect("the second");
    let now = trace.now;
    assert_eq!(trace.host.read(now, second, &mut [0; 10]), Ok(Read::Bytes(5)));
}

/// A flood of SYNs costs the table, not more, and SYN-ACKs end by themselves.
#[test]
fn syn_flood() {
    let mut trace = Trace::new(|config| config.limits.half_open = 8);
    let listener = trace.listen();
    for port in 1..=1_000 {
        trace.peer_port = port;
        trace.send("S 0:0(0) win 65535 <mss 1000>");
    }
    let sent = trace.take();
    assert!(sent.iter().all(|sent| sent.starts_with("S. ")), "{sent:?}");
    // One that was there before, though it answers late.
    trace.peer_port = 5;
    trace.send(". 1:1(0) ack 1");
    assert!(trace.host.accept(listener).is_some());
    for _ in 0..100 {
        trace.now = trace.host.deadline().unwrap_or(trace.now);
        trace.take();
    }
    trace.expect_nothing();
}

/// A forwarder decides on the SYN: accept, refuse, ignore; an unanswered question expires.
#[test]
fn ask_before_the_handshake() {
    let mut trace = Trace::new(|_| {});
    let listener = trace.host.listen_asking(Pattern::default(), 4).expect("a listener");
    let ask = |trace: &mut Trace, port: u16| {
        trace.peer_port = port;
        trace.send("S 0:0(0) win 65535 <mss 1000>");
        trace.send("S 0:0(0) win 65535 <mss 1000>");
        trace.expect(&[]);
        match trace.host.event() {
            Some(Event::Ask { ask, local, remote }) => {
                assert_eq!((local.port(), remote.port()), (PORT, port));
                assert_eq!(trace.host.event(), None, "a repeated SYN asks once");
                // No answer to what refers to a SYN-ACK that was not sent.
                for forged in ["S 5:5(0)", "R 5:5(0)", ". 1:1(0) ack 1"] {
                    trace.send(forged);
                    trace.expect(&[]);
                }
                ask
            }
            other => panic!("{other:?}"),
        }
    };
    let accepted = ask(&mut trace, 1);
    let now = trace.now;
    assert!(trace.host.answer(now, accepted, Answer::Accept));
    assert!(!trace.host.answer(now, accepted, Answer::Accept), "once");
    trace.expect(&["S. 0:0(0) ack 1 <mss 1000>"]);
    trace.send(". 1:1(0) ack 1");
    assert!(trace.host.accept(listener).is_some());
    let refused = ask(&mut trace, 2);
    assert!(trace.host.answer(now, refused, Answer::Refuse));
    trace.expect(&["R. 7296:7296(0) ack 1"]);
    let ignored = ask(&mut trace, 3);
    assert!(trace.host.answer(now, ignored, Answer::Ignore));
    trace.expect(&[]);
    let late = ask(&mut trace, 4);
    trace.pass(Duration::from_secs(11));
    let now = trace.now;
    assert!(!trace.host.answer(now, late, Answer::Accept));
}

/// Events say what happened, once.
#[test]
fn events() {
    let (mut trace, flow) = Trace::accepted(|_| {}, "");
    trace.host.set_owner(flow, 42);
    trace.send("P. 1:11(10) ack 1");
    trace.send("F. 11:11(0) ack 1");
    let Some(Event::Flow { flow: of, owner: 42, ready }) = trace.host.event() else { panic!("an event") };
    assert!(of == flow && ready.has(Ready::READABLE) && ready.has(Ready::END), "{ready:?}");
    assert_eq!(trace.host.event(), None);
}
