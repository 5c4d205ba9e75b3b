//! What a program chooses for a single connection, and how it learns of troubles. Traces.
mod common;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use common::address;
use common::trace::{Trace, ms};
use packet::{Frame, Offload};
use tcp::{Event, Failure, Flow, KeepAlive, Marking, Prefix, Read, ReadError, Ready, State};

const MICRO: Duration = Duration::from_micros(1);

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Lets time pass until the connection is over, and the peer answer each packet with this. Returns
/// how long it took.
fn until_over(trace: &mut Trace, flow: Flow, answer: Option<&str>) -> Duration {
    let start = trace.now;
    for _ in 0..10_000 {
        if trace.host.info(flow).is_some_and(|info| info.state == State::Closed) {
            let now = trace.now;
            assert_eq!(trace.host.read(now, flow, &mut [0]), Err(ReadError::Failed(Failure::TimedOut)));
            return trace.now.since(start);
        }
        trace.now = trace.host.deadline().expect("a deadline").max(trace.now);
        let sent = trace.take();
        if let Some(answer) = answer.filter(|_| !sent.is_empty()) {
            trace.send(answer);
        }
    }
    panic!("without end: {:?}", trace.now.since(start));
}

fn accepted(user_timeout: Option<Duration>) -> (Trace, Flow) {
    let (mut trace, flow) = Trace::accepted(|_| {}, "");
    trace.host.set_user_timeout(flow, user_timeout);
    (trace, flow)
}

/// R2 of a single connection (RFC 9293, 3.8.3; RFC 5482, 3): not later, whatever the backoff is, and
/// not earlier for a peer that acknowledges.
#[test]
fn user_timeout_of_unacknowledged_bytes() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.3
    //# (d) An application MUST (MUST-21) be able to set the value for R2 for a particular connection.
    for timeout in [secs(1), secs(7), secs(50), secs(700)] {
        let (mut trace, flow) = accepted(Some(timeout));
        let now = trace.now;
        trace.host.write(now, flow, &[0; 2_000]).expect("room");
        trace.take();
        trace.now = trace.now.after(ms(100));
        trace.send(". 1:1(0) ack 1001");
        let took = until_over(&mut trace, flow, None);
        assert!(took.abs_diff(timeout) <= ms(1), "{took:?}, not {timeout:?}");
    }
    // None is as the host has it, also after another one.
    let (mut trace, flow) = accepted(Some(secs(5)));
    trace.host.set_user_timeout(flow, None);
    let now = trace.now;
    trace.host.write(now, flow, &[0; 100]).expect("room");
    trace.take();
    assert!(until_over(&mut trace, flow, None) >= secs(600));
}

/// A peer that answers probes and never opens its window holds a connection for ever (RFC 9293,
/// MUST-37), unless the program has chosen how long.
#[test]
fn user_timeout_of_a_closed_window() {
    let (mut trace, flow) = accepted(Some(secs(30)));
    trace.send(". 1:1(0) ack 1 win 0");
    let now = trace.now;
    trace.host.write(now, flow, &[0; 100]).expect("room");
    let took = until_over(&mut trace, flow, Some(". 1:1(0) ack 1 win 0"));
    // It counts from the first probe.
    assert!((secs(30)..secs(31)).contains(&took), "{took:?}");
    // A window that opens now and then is not closed.
    let (mut trace, flow) = accepted(Some(secs(30)));
    trace.send(". 1:1(0) ack 1 win 0");
    let now = trace.now;
    trace.host.write(now, flow, &[0; 4_000]).expect("room");
    let mut end = 1;
    for _ in 0..4 {
        let until = trace.now.after(secs(20));
        while let Some(next) = trace.host.deadline().filter(|&next| next < until) {
            trace.now = trace.now.max(next);
            if !trace.take().is_empty() {
                trace.send(&format!(". 1:1(0) ack {end} win 0"));
            }
        }
        trace.now = until;
        trace.send(&format!(". 1:1(0) ack {end} win 1000"));
        assert_eq!(trace.take().len(), 1);
        end += 1000;
        trace.send(&format!(". 1:1(0) ack {end} win 0"));
    }
    assert_eq!(trace.host.info(flow).expect("a flow").state, State::Established);
}

/// The same where the window was taken back below what is outstanding.
#[test]
fn user_timeout_of_a_window_taken_back() {
    let (mut trace, flow) = accepted(Some(secs(30)));
    let now = trace.now;
    trace.host.write(now, flow, &[0; 1_000]).expect("room");
    assert_eq!(trace.take().len(), 1);
    let took = until_over(&mut trace, flow, Some(". 1:1(0) ack 1 win 0"));
    assert!(took.abs_diff(secs(30)) <= ms(1), "{took:?}");
}

/// Times of probes are those of the connection; a user timeout decides before their number does.
#[test]
fn keep_alive_of_a_connection() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.4
    //# This interval MUST be configurable (MUST-27) and MUST default to no less than two hours (MUST-28).
    let times = KeepAlive { idle: secs(10), interval: secs(3), probes: 2 };
    let (mut trace, flow) = Trace::accepted(|_| {}, "");
    let now = trace.now;
    trace.host.set_keep_alive_times(now, flow, Some(times));
    trace.pass(secs(100));
    let now = trace.now;
    trace.host.set_keep_alive(now, flow, true);
    trace.expect_after(secs(10), &[". 0:0(0) ack 1"]);
    trace.send(". 1:1(0) ack 1");
    trace.expect_after(secs(10), &[". 0:0(0) ack 1"]);
    trace.expect_after(secs(3), &[". 0:0(0) ack 1"]);
    trace.expect_after(secs(3), &["R. 1:1(0) ack 1"]);
    let (mut trace, flow) = accepted(Some(secs(30)));
    let now = trace.now;
    trace.host.set_keep_alive(now, flow, true);
    trace.host.set_keep_alive_times(now, flow, Some(times));
    // 10 s, and seven times 3 s.
    let took = until_over(&mut trace, flow, None);
    assert!(took.abs_diff(secs(31)) <= ms(1), "{took:?}");
}

/// Whatever times are asked for, of a connection or of the host, time passes between two looks at it.
#[test]
fn keep_alive_has_bounds() {
    let extremes = [
        KeepAlive { idle: Duration::ZERO, interval: Duration::ZERO, probes: 0 },
        KeepAlive { idle: Duration::ZERO, interval: Duration::MAX, probes: 0 },
    ];
    for times in extremes {
        for of_host in [false, true] {
            let change = |config: &mut tcp::Config| {
                if of_host {
                    config.profile.keep_alive = times.idle;
                    config.profile.keep_alive_interval = times.interval;
                    config.profile.probes = times.probes;
                }
            };
            let (mut trace, flow) = Trace::accepted(change, "");
            // With a user timeout the number of probes ends nothing.
            trace.host.set_user_timeout(flow, Some(secs(1000)));
            // Outstanding bytes are their own probe.
            let now = trace.now;
            trace.host.write(now, flow, &[0; 100]).expect("room");
            trace.take();
            if !of_host {
                trace.host.set_keep_alive_times(now, flow, Some(times));
            }
            trace.host.set_keep_alive(now, flow, true);
            let start = trace.now;
            for _ in 0..300 {
                if trace.now.since(start) > ms(150) {
                    break;
                }
                // Between two ticks, where no deadline is due at once.
                trace.now = trace.host.deadline().expect("a deadline").max(trace.now).after(MICRO);
                trace.take();
            }
            let passed = trace.now.since(start);
            assert!(passed > ms(150), "{times:?}, {of_host}: looked at 300 times in {passed:?}");
            assert_eq!(trace.host.info(flow).map(|info| info.state), Some(State::Established));
        }
    }
}

/// A connection is not ended without a probe that could have been answered (RFC 9293, MUST-29).
#[test]
fn keep_alive_probes_at_least_once() {
    let times = KeepAlive { idle: secs(10), interval: secs(3), probes: 0 };
    let (mut trace, flow) = Trace::accepted(|_| {}, "");
    let now = trace.now;
    trace.host.set_keep_alive_times(now, flow, Some(times));
    trace.host.set_keep_alive(now, flow, true);
    trace.expect_after(secs(10), &[". 0:0(0) ack 1"]);
    trace.expect_after(secs(3), &["R. 1:1(0) ack 1"]);
}

/// An interval without end is one of a day.
#[test]
fn keep_alive_ends() {
    let change = |config: &mut tcp::Config| {
        config.profile.keep_alive = secs(1);
        config.profile.keep_alive_interval = Duration::MAX;
    };
    let (mut trace, flow) = Trace::accepted(change, "");
    trace.host.set_user_timeout(flow, Some(secs(1000)));
    let now = trace.now;
    trace.host.set_keep_alive(now, flow, true);
    let took = until_over(&mut trace, flow, None);
    assert!(took.abs_diff(secs(86_401)) <= ms(1), "{took:?}");
}

/// Time to live and type of service of packets.
fn marks(packets: &[Vec<u8>]) -> Vec<(u8, u8)> {
    packets.iter().map(|packet| (packet[8], packet[1])).collect()
}

/// Everything that a connection sends is marked, from the SYN-ACK to what TIME_WAIT answers; ECN's
/// bits are left alone.
#[test]
fn marking() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.9
    //# The application layer MUST be able to specify the Differentiated Services field for segments that are
    //# sent on a connection (MUST-48).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.9
    //# It is not required, but the application SHOULD be able to change the Differentiated Services field
    //# during the connection lifetime (SHLD-21).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.9
    //# TCP implementations SHOULD pass the current Differentiated Services field value without change to the
    //# IP layer, when it sends segments on the connection (SHLD-22).
    let first = Marking { traffic_class: 0x2b, hop_limit: Some(4) };
    let second = Marking { traffic_class: 0xe0, hop_limit: None };
    let mut trace = Trace::new(|_| {});
    let listener = trace.listen();
    trace.host.set_listener_marking(listener, first);
    trace.send("S 0:0(0) win 65535 <mss 1000>");
    assert_eq!(marks(&trace.packets()), [(4, 0x28)]);
    trace.send("S 0:0(0) win 65535 <mss 1000>");
    assert_eq!(marks(&trace.packets()), [(4, 0x28)]);
    trace.send(". 1:1(0) ack 1");
    let flow = trace.host.accept(listener).expect("a connection");
    let now = trace.now;
    trace.host.write(now, flow, &[0; 100]).expect("room");
    assert_eq!(marks(&trace.packets()), [(4, 0x28)]);
    trace.send(". 1:1(0) ack 101");
    trace.send("P. 1:6(5) ack 101");
    assert_eq!(marks(&trace.packets()), [(4, 0x28)], "an acknowledgement and no more");
    assert_eq!(trace.host.read(now, flow, &mut [0; 10]), Ok(Read::Bytes(5)));
    trace.host.set_marking(flow, second);
    trace.host.write(now, flow, &[0; 100]).expect("room");
    assert_eq!(marks(&trace.packets()), [(64, 0xe0)]);
    trace.host.close(now, flow);
    assert_eq!(marks(&trace.packets()), [(64, 0xe0)]);
    for _ in 0..2 {
        trace.send("F. 6:6(0) ack 202");
        assert_eq!(marks(&trace.packets()), [(64, 0xe0)], "TIME_WAIT");
    }
    // The next connection in its place is not marked by it.
    trace.host.set_listener_marking(listener, Marking::default());
    trace.peer_port += 1;
    trace.send("S 0:0(0) win 65535 <mss 1000>");
    trace.send(". 1:1(0) ack 1");
    trace.packets();
    let flow = trace.host.accept(listener).expect("a connection");
    trace.host.abort(now, flow);
    assert_eq!(marks(&trace.packets()), [(64, 0)]);
}

#[test]
fn marking_over_ipv6() {
    let mut trace = Trace::new(|config| config.addresses.push(Prefix::one(address(0, true))));
    let now = trace.now;
    let flow = trace.host.connect(now, None, None, SocketAddr::new(address(1, true), 80)).expect("a flow");
    trace.host.set_marking(flow, Marking { traffic_class: 0xb8, hop_limit: Some(3) });
    let syn = &trace.packets()[0];
    assert_eq!(syn[..4], [0x6b, 0x80, 0, 0]);
    assert_eq!(syn[7], 3);
}

/// Bits of what happened to a flow.
fn happened(trace: &mut Trace) -> Vec<Ready> {
    let events = std::iter::from_fn(|| trace.host.event());
    events
        .filter_map(|event| if let Event::Flow { ready, .. } = event { Some(ready) } else { None })
        .collect()
}

/// The third retransmission, and an ICMP error about what is outstanding, are reported, and end
/// nothing.
#[test]
fn troubles_are_reported() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.3
    //# (e) TCP implementations SHOULD inform the application of the delivery problem (unless such
    //# information has been disabled by the application; see the "Asynchronous Reports" section (Section
    //# 3.9.1.8)), when R1 is reached and before R2 (SHLD-9).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.3
    //# The value of R1 SHOULD correspond to at least 3 retransmissions, at the current RTO (SHLD-10).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.8
    //# There MUST be a mechanism for reporting soft TCP error conditions to the application (MUST-47).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.8
    //# However, an application program that does not want to receive such ERROR_REPORT calls SHOULD be able
    //# to effectively disable these calls (SHLD-20).
    let (mut trace, flow) = accepted(None);
    let now = trace.now;
    trace.host.write(now, flow, &[0; 1_000]).expect("room");
    let packet = trace.packets().remove(0);
    let mut times = 0;
    while happened(&mut trace).is_empty() {
        assert_eq!(trace.host.info(flow).expect("a flow").trouble, None);
        trace.now = trace.host.deadline().expect("a deadline").max(trace.now);
        times += trace.take().len();
        assert!(times < 10);
    }
    assert!((3..=4).contains(&times), "{times}");
    assert_eq!(trace.host.info(flow).expect("a flow").trouble, Some(Failure::TimedOut));
    // Host unreachable.
    let error = unreachable(&packet);
    let now = trace.now;
    trace.host.input(now, [Frame { bytes: &error, offload: Offload::default() }]);
    assert_eq!(happened(&mut trace), [Ready::TROUBLE]);
    let info = trace.host.info(flow).expect("a flow");
    assert_eq!((info.trouble, info.state), (Some(Failure::Unreachable), State::Established));
    trace.send("P. 1:6(5) ack 1001");
    assert_eq!(trace.host.read(now, flow, &mut [0; 10]), Ok(Read::Bytes(5)));
}

/// The ICMP error of a router about a packet of ours: no way to the host.
fn unreachable(about: &[u8]) -> Vec<u8> {
    let IpAddr::V4(ours) = address(0, false) else { panic!("IPv4") };
    let builder = etherparse::PacketBuilder::ipv4([10, 9, 9, 9], ours.octets(), 64).icmpv4_raw(3, 1, [0; 4]);
    let mut bytes = Vec::new();
    builder.write(&mut bytes, &about[..28]).expect("a packet");
    bytes
}
