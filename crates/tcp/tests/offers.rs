//! Options that a host does not offer are neither sent nor used; connection attempts are bounded by
//! time.
mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::trace::{PEER_PORT, Trace};
use common::{PORT, address};
use tcp::sockets::{Errno, Options, Sockets};
use tcp::{Failure, Flow, Offers, ReadError, State};

const ALL: &str = "mss 1000,wscale 7,sackOK,TS 1000 0";

/// Each option alone missing, with what is left of the SYN.
fn missing() -> [(Offers, &'static str); 4] {
    let all = Offers::default();
    [
        (Offers { mss: false, ..all }, " <wscale 0,sackOK,TS>"),
        (Offers { scale: false, ..all }, " <mss 1000,sackOK,TS>"),
        (Offers { sack: false, ..all }, " <mss 1000,wscale 0,TS>"),
        (Offers { timestamps: false, ..all }, " <mss 1000,wscale 0,sackOK>"),
    ]
}

fn connect(trace: &mut Trace) -> Flow {
    let remote = SocketAddr::new(address(1, false), PEER_PORT);
    let now = trace.now;
    trace.host.connect(now, None, Some(PORT), remote).expect("a flow")
}

fn check(trace: &Trace, flow: Flow, offers: Offers) {
    let info = trace.host.info(flow).expect("a flow");
    assert_eq!(info.state, State::Established);
    let used = (info.scale, info.sack, info.timestamps);
    assert_eq!(used, (offers.scale, offers.sack, offers.timestamps));
}

#[test]
fn a_syn_lacks_what_is_not_offered() {
    for (offers, options) in missing() {
        let mut trace = Trace::new(|config| config.offers = offers);
        let flow = connect(&mut trace);
        trace.expect(&[&format!("S 0:0(0){options}")]);
        trace.send(&format!("S. 0:0(0) ack 1 win 65535 <{ALL}>"));
        trace.take();
        check(&trace, flow, offers);
    }
}

#[test]
fn an_answer_lacks_what_is_not_offered() {
    for (offers, options) in missing() {
        let mut trace = Trace::new(|config| config.offers = offers);
        let listener = trace.listen();
        trace.send(&format!("S 0:0(0) win 65535 <{ALL}>"));
        trace.expect(&[&format!("S. 0:0(0) ack 1{options}")]);
        trace.send(". 1:1(0) ack 1 win 65535 <TS 1000 0>");
        let flow = trace.host.accept(listener).expect("a connection");
        check(&trace, flow, offers);
    }
}

/// The third SYN again leaves options out, and so does the connection.
#[test]
fn repeated_syns_may_leave_options_out() {
    let mut trace = Trace::new(|config| config.offers = Offers { plain_repeat: 2, ..Offers::default() });
    let flow = connect(&mut trace);
    let full = "S 0:0(0) <mss 1000,wscale 0,sackOK,TS>";
    trace.expect(&[full]);
    trace.expect_after(Duration::from_secs(1), &[full]);
    trace.expect_after(Duration::from_secs(2), &["S 0:0(0) <mss 1000>"]);
    trace.send("S. 0:0(0) ack 1 win 65535 <mss 1000>");
    trace.take();
    check(&trace, flow, Offers { scale: false, sack: false, timestamps: false, ..Offers::default() });
}

/// An attempt ends at its time, whatever the timeouts of SYNs are.
#[test]
fn attempts_last_as_long_as_they_are_told() {
    let mut trace = Trace::new(|config| config.profile.attempt = Duration::from_secs(10));
    let flows = [connect(&mut trace), {
        trace.peer_port += 1;
        let remote = SocketAddr::new(address(1, false), trace.peer_port);
        let now = trace.now;
        trace.host.connect(now, None, Some(PORT), remote).expect("a flow")
    }];
    let begun = trace.now;
    trace.host.set_connect_timeout(begun, flows[1], Duration::from_secs(4));
    let mut ended = [None; 2];
    while let Some(next) = trace.host.deadline() {
        trace.now = trace.now.max(next);
        trace.packets();
        for (ended, flow) in ended.iter_mut().zip(flows) {
            let over = trace.host.info(flow).is_some_and(|info| info.state == State::Closed);
            if over && ended.is_none() {
                *ended = Some(trace.now.since(begun).as_secs());
                let read = trace.host.read(trace.now, flow, &mut [0]);
                assert_eq!(read, Err(ReadError::Failed(Failure::TimedOut)));
            }
        }
    }
    assert_eq!(ended, [Some(10), Some(4)]);
}

#[test]
fn a_socket_has_its_own_time_to_connect() {
    let trace = Trace::new(|_| {});
    let mut now = trace.now;
    let mut sockets = Sockets::new(trace.host, 4);
    let socket = sockets.socket().expect("a socket");
    let options = Options { connect_within: Some(Duration::from_secs(5)), ..Options::default() };
    sockets.set_options(now, socket, options).expect("options");
    let remote = SocketAddr::new(address(1, false), PEER_PORT);
    assert_eq!(sockets.connect(now, socket, remote), Err(Errno::InProgress));
    let begun = now;
    while let Some(next) = sockets.deadline() {
        now = now.max(next);
        sockets.advance(now);
        while sockets.output(now, &mut packet::Batch::new(1 << 16)) {}
    }
    assert_eq!(now.since(begun).as_secs(), 5);
    assert_eq!(sockets.take_error(socket), Ok(Some(Errno::TimedOut)));
}
