//! What RFC 9293 requires and no other test is about. Traces.
mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::trace::{PEER_PORT, Trace, ms};
use common::{PORT, address};
use packet::{Frame, Offload};
use tcp::{Failure, ListenError, Pattern, Prefix, ReadError, State};

/// The peer takes back what it has offered: nothing new is sent, what is within the window is sent
/// again, and the connection stays open for as long as the peer answers.
#[test]
fn shrinking_window() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6
    //# However, a sending TCP peer MUST be robust against window shrinking, which may cause the "usable
    //# window" (see Section 3.8.6.2.1) to become negative (MUST-34).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6
    //# If this happens, the sender SHOULD NOT send new data (SHLD-15), but SHOULD retransmit normally the old
    //# unacknowledged data between SND.UNA and SND.UNA+SND.WND (SHLD-16).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6
    //# The sender MAY also retransmit old data beyond SND.UNA+SND.WND (MAY-7), but SHOULD NOT time out the
    //# connection if data beyond the right window edge is not acknowledged (SHLD-17).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6
    //# If the window shrinks to zero, the TCP implementation MUST probe it in the standard way (described
    //# below) (MUST-35).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.1
    //# As long as the receiving TCP peer continues to send acknowledgments in response to the probe segments,
    //# the sending TCP peer MUST allow the connection to stay open (MUST-37).
    let (mut trace, flow) = Trace::accepted(|config| config.profile.give_up = Duration::from_secs(100), "");
    let now = trace.now;
    assert_eq!(trace.host.write(now, flow, &[0; 5_000]), Ok(5_000));
    assert_eq!(trace.take().len(), 5);
    trace.send(". 1:1(0) ack 1001 win 1000");
    let now = trace.now;
    assert_eq!(trace.host.write(now, flow, &[0; 1_000]), Ok(1_000));
    trace.expect(&[]);
    trace.expect_after(ms(209), &[". 1001:2001(1000) ack 1"]);
    // It shrinks to nothing, and stays so.
    let mut probes = 0;
    while trace.now.since(now) < Duration::from_secs(600) {
        trace.send(". 1:1(0) ack 1001 win 0");
        trace.now = trace.host.deadline().expect("a probe").max(trace.now);
        probes += trace.take().len();
    }
    assert!((10..100).contains(&probes), "{probes} probes in ten minutes");
    assert_eq!(trace.host.info(flow).expect("a flow").state, State::Established);
    trace.send(". 1:1(0) ack 1001 win 9000");
    trace.send(". 1:1(0) ack 5001 win 9000");
    trace.expect(&["P. 5001:6001(1000) ack 1"]);
}

/// An RST counts while our window is closed, and with data in it.
#[test]
fn reset_at_a_closed_window() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.4
    //# A TCP receiver MUST process the RST and URG fields of all incoming segments, even when the receive
    //# window is zero (MUST-66).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.5.3
    //# TCP implementations SHOULD allow a received RST segment to include data (SHLD-2).
    let (mut trace, flow) = Trace::accepted(|config| config.limits.receive_buffer = 2_000, "");
    trace.send(". 1:1001(1000) ack 1");
    trace.send(". 1001:2001(1000) ack 1");
    trace.expect(&[". 1:1(0) ack 2001 win 0"]);
    trace.send("R 2001:2011(10)");
    let now = trace.now;
    let mut all = [0; 2_000];
    assert!(trace.host.read(now, flow, &mut all).is_ok());
    assert_eq!(trace.host.read(now, flow, &mut all), Err(ReadError::Failed(Failure::Reset)));
}

/// A peer that says nothing of its largest segment gets 536 bytes; one that takes more than our
/// path gets what the path takes.
#[test]
fn largest_segments() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.7.1
    //# TCP endpoints MUST implement both sending and receiving the MSS Option (MUST-14).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.7.1
    //# TCP implementations SHOULD send an MSS Option in every SYN segment when its receive MSS differs from
    //# the default 536 for IPv4 or 1220 for IPv6 (SHLD-5), and MAY send it always (MAY-3).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.7.1
    //# If an MSS Option is not received at connection setup, TCP implementations MUST assume a default send
    //# MSS of 536 (576 - 40) for IPv4 or 1220 (1280 - 60) for IPv6 (MUST-15).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.7.1
    //# The maximum size of a segment that a TCP endpoint really sends, the "effective send MSS", MUST be the
    //# smaller (MUST-16) of the send MSS (that reflects the available reassembly buffer size at the remote
    //# host, the EMTU_R [19]) and the largest transmission size permitted by the IP layer (EMTU_S [19]):
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.7.1
    //# where MMS_R is the maximum size for a transport-layer message that can be received (and reassembled at
    //# the IP layer) (MUST-67).
    for (options, size) in [("", 536), ("<mss 700>", 700), ("<mss 9000>", 1_000)] {
        let mut trace = Trace::new(|_| {});
        let listener = trace.listen();
        trace.send(format!("S 0:0(0) win 65535 {options}").trim_end());
        trace.expect(&["S. 0:0(0) ack 1 <mss 1000>"]);
        trace.send(". 1:1(0) ack 1");
        let flow = trace.host.accept(listener).expect("a connection");
        let now = trace.now;
        assert_eq!(trace.host.write(now, flow, &[0; 1_000]), Ok(1_000));
        let first = trace.take().remove(0);
        assert!(first.contains(&format!(" 1:{}({size}) ", size + 1)), "{options}: {first}");
    }
}

/// Listening on the port of connections that are being opened, in either direction, changes none of
/// them; a second time at the same place is an error.
#[test]
fn listening_beside_connections() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.1
    //# Every passive OPEN call either creates a new connection record in LISTEN state, or it returns an
    //# error; it MUST NOT affect any previously created connection record (MUST-41).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.1
    //# A TCP implementation that supports multiple concurrent connections MUST provide an OPEN call that will
    //# functionally allow an application to LISTEN on a port while a connection block with the same local
    //# port is in SYN-SENT or SYN-RECEIVED state (MUST-42).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.1
    //# The optional "local IP address" parameter MUST be supported to allow the specification of the local IP
    //# address (MUST-43).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.1
    //# If an application on a multihomed host does not specify the local IP address when actively opening a
    //# TCP connection, then the TCP implementation MUST ask the IP layer to select a local IP address before
    //# sending the (first) SYN (MUST-44).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.1
    //# At all other times, a previous segment has either been sent or received on this connection, and TCP
    //# implementations MUST use the same local address that was used in those previous segments (MUST- 45).
    let other = std::net::IpAddr::from([10, 0, 0, 9]);
    let mut trace = Trace::new(|config| config.addresses.push(Prefix::one(other)));
    let (now, remote) = (trace.now, SocketAddr::new(address(1, false), PEER_PORT));
    let sent = trace.host.connect(now, None, Some(PORT), remote).expect("a flow");
    // The address that the program names is the one that is used, then and later.
    let named = trace.host.connect(now, Some(other), Some(PORT), remote).expect("another");
    trace.take();
    let pattern = Pattern { address: None, port: Some(PORT) };
    let precise = Pattern { address: Some(other), port: Some(PORT) };
    trace.host.listen(pattern, 4).expect("a listener");
    trace.host.listen(precise, 4).expect("a listener at one address");
    assert_eq!(trace.host.listen(pattern, 4), Err(ListenError::InUse));
    assert_eq!(trace.host.listen(precise, 4), Err(ListenError::InUse));
    assert_eq!(trace.host.info(sent).expect("a flow").state, State::SynSent);
    trace.send("S. 0:0(0) ack 1 win 65535 <mss 1000>");
    assert_eq!(trace.host.info(sent).expect("a flow").state, State::Established);
    assert_eq!(trace.host.info(named).expect("a flow").state, State::SynSent);
    assert_eq!(trace.host.addresses(sent), Some((SocketAddr::new(address(0, false), PORT), remote)));
    assert_eq!(trace.host.addresses(named), Some((SocketAddr::new(other, PORT), remote)));
}

/// All segments of a burst are taken before the first acknowledgement goes, which is the only one.
#[test]
fn a_burst_is_acknowledged_once() {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
    //# o In general, the processing of received segments MUST be implemented to aggregate ACK segments
    //# whenever possible (MUST-58).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
    //# For example, if the TCP endpoint is processing a series of queued segments, it MUST process them all
    //# before sending any ACK segments (MUST-59).
    let (mut trace, _) = Trace::accepted(|_| {}, "");
    let segments: Vec<Vec<u8>> = (0..10)
        .map(|at| trace.packet_of_peer(&format!(". {}:{}(1000) ack 1", at * 1000 + 1, at * 1000 + 1001)))
        .collect();
    let frames = segments.iter().map(|bytes| Frame { bytes, offload: Offload::default() });
    trace.host.input(trace.now, frames);
    trace.expect(&[". 1:1(0) ack 10001"]);
}
