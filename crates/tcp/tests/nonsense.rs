//! Segments that no honest peer sends, calls in any order, bytes that are no packets.
mod common;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use common::trace::{PEER_PORT, Trace};
use common::{PORT, address};
use packet::{Frame, Offload};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Segment { flags: u8, seq: i32, len: u16, ack: i32, window: u16, options: u8, port: u16 },
    Bytes(Vec<u8>),
    Write(u16),
    Read(u16),
    Shutdown,
    Close,
    Abort,
    Accept,
    Wait(u32),
}

/// Numbers near what a connection expects, and far away.
fn number() -> impl Strategy<Value = i32> {
    prop_oneof![4 => -3..5_000i32, 2 => 0..70_000i32, 1 => any::<i32>()]
}

fn step() -> impl Strategy<Value = Step> {
    let flags = prop_oneof![4 => Just(0x10u8), 2 => Just(0x18), 1 => Just(0x11), 1 => Just(0x02), 1 => Just(0x04), 1 => any::<u8>()];
    let segment = (flags, number(), 0u16..3_000, number(), any::<u16>(), any::<u8>(), 0u16..4);
    prop_oneof![
        12 => segment.prop_map(|(flags, seq, len, ack, window, options, port)| {
            Step::Segment { flags, seq, len, ack, window, options, port }
        }),
        1 => prop::collection::vec(any::<u8>(), 0..80).prop_map(Step::Bytes),
        3 => any::<u16>().prop_map(Step::Write),
        3 => any::<u16>().prop_map(Step::Read),
        1 => Just(Step::Shutdown),
        1 => Just(Step::Close),
        1 => Just(Step::Abort),
        2 => Just(Step::Accept),
        3 => (0u32..27).prop_map(|bits| Step::Wait(1 << bits)),
    ]
}

/// A segment in the notation of traces.
fn segment(flags: u8, seq: i32, len: u16, ack: i32, window: u16, options: u8) -> String {
    let mut letters = String::new();
    for (bit, letter) in [(2, 'S'), (1, 'F'), (4, 'R'), (8, 'P'), (16, '.')] {
        if flags & bit != 0 {
            letters.push(letter);
        }
    }
    if letters.is_empty() {
        letters.push('P');
    }
    let options = match options % 6 {
        0 => " <mss 1000,sackOK>".to_string(),
        1 => " <mss 1,wscale 14,sackOK>".to_string(),
        2 => format!(" <sack {}:{}>", ack as u32, (ack as u32).wrapping_add(u32::from(window))),
        3 => format!(" <sack {}:{} {seq}:{ack}>", ack as u32 / 2, ack as u32).replace('-', ""),
        4 => format!(" <TS {} {}>", u32::from(window), ack as u32),
        _ => String::new(),
    };
    format!("{letters} {seq}:0({len}) ack {} win {window}{options}", ack as u32)
}

proptest! {

    #[test]
    fn nothing_panics_and_everything_ends(
        steps in prop::collection::vec(step(), 1..120),
        options in prop_oneof![Just(""), Just(",sackOK"), Just(",sackOK,wscale 7")],
        pages in 2usize..40,
    ) {
        let (mut trace, first) = Trace::accepted(
            |config| {
                config.limits.receive_pages = pages;
                config.limits.send_pages = pages;
                config.limits.flows = 4;
                config.limits.active = 2;
                config.limits.half_open = 3;
                config.limits.time_wait = 2;
            },
            options,
        );
        let pattern = tcp::Pattern { address: None, port: None };
        let second = trace.host.listen(pattern, 2).expect("a second listener");
        trace.listeners.push(second);
        let mut flows = vec![first];
        for step in steps {
            let now = trace.now;
            let flow = flows[flows.len() - 1];
            match step {
                Step::Segment { flags, seq, len, ack, window, options, port } => {
                    trace.peer_port = PEER_PORT + port;
                    trace.send(&segment(flags, seq, len, ack, window, options));
                }
                Step::Bytes(mut bytes) => {
                    if let Some(first) = bytes.first_mut() {
                        *first = if *first & 1 == 0 { 0x45 } else { 0x60 };
                    }
                    trace.host.input(now, [Frame { bytes: &bytes, offload: Offload::default() }]);
                }
                Step::Write(len) => {
                    let _ = trace.host.write(now, flow, &vec![1; usize::from(len)]);
                }
                Step::Read(len) => {
                    let _ = trace.host.read(now, flow, &mut vec![0; usize::from(len)]);
                }
                Step::Shutdown => trace.host.shutdown(now, flow),
                Step::Close => trace.host.close(now, flow),
                Step::Abort => trace.host.abort(now, flow),
                Step::Accept => {
                    flows.extend(trace.listeners.iter().filter_map(|&listener| trace.host.accept(listener)));
                }
                Step::Wait(micros) => trace.now = now.after(Duration::from_micros(micros.into())),
            }
            let sent = trace.packets();
            prop_assert!(sent.len() < 100, "{} packets for one step", sent.len());
            while trace.host.event().is_some() {}
            let live: Vec<_> = trace.host.live_flows().collect();
            for flow in live {
                if let Some(info) = trace.host.info(flow) {
                    prop_assert!(!info.owes || info.is_scheduled, "{info:?}");
                }
            }
        }
        let now = trace.now;
        for flow in flows {
            trace.host.abort(now, flow);
        }
        for listener in std::mem::take(&mut trace.listeners) {
            trace.host.unlisten(now, listener);
        }
        for _ in 0..2_000 {
            let Some(next) = trace.host.deadline() else { break };
            trace.now = trace.now.max(next);
            trace.packets();
        }
        trace.packets();
        prop_assert_eq!(trace.host.live_flows().count(), 0);
        prop_assert_eq!(trace.host.free_pages(), (pages, pages));
        prop_assert_eq!(trace.host.deadline(), None);
    }
}

/// RFC 6056, 3.3.1: the ports of our connections do not follow from each other.
#[test]
fn ports_are_scattered() {
    let mut trace = Trace::new(|_| {});
    let now = trace.now;
    let mut ports = Vec::new();
    for _ in 0..200 {
        let remote = SocketAddr::new(address(1, false), PORT);
        let flow = trace.host.connect(now, None, None, remote).expect("a flow");
        ports.push(trace.host.addresses(flow).expect("a flow").0.port());
    }
    assert_eq!(ports.iter().collect::<HashSet<_>>().len(), 200);
    assert!(ports.iter().all(|&port| port >= 49_152));
    let neighbours = ports.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) < 16).count();
    assert!(neighbours < 10, "{neighbours}");
}
