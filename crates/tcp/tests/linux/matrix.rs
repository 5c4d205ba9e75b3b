//! Linux with each congestion control and without each option, over packets of each size, with
//! and without loss, as client and as server, over IPv4 and IPv6.

use std::fs;
use std::time::Instant;

use packet::Faults;
use tcp::Initial;
use testkit::netns;

use crate::exchange::Load;
use crate::ours::{Ours, Seen};

/// How Linux is set up.
struct Peer {
    name: &'static str,
    congestion: &'static str,
    /// Switches of `/proc/sys/net/ipv4` that are off.
    without: &'static [&'static str],
}

const PEERS: [Peer; 7] = [
    Peer { name: "cubic", congestion: "cubic", without: &[] },
    Peer { name: "reno", congestion: "reno", without: &[] },
    Peer { name: "bbr", congestion: "bbr", without: &[] },
    Peer { name: "no SACK", congestion: "cubic", without: &["tcp_sack"] },
    Peer { name: "no timestamps", congestion: "cubic", without: &["tcp_timestamps"] },
    Peer { name: "no scaling", congestion: "cubic", without: &["tcp_window_scaling"] },
    Peer {
        name: "no options",
        congestion: "reno",
        without: &["tcp_sack", "tcp_timestamps", "tcp_window_scaling"],
    },
];

/// The least, odd ones, the usual one, jumbo frames.
const MTUS: [u16; 5] = [576, 1281, 1499, 1500, 9000];
const LOSSES: [f64; 3] = [0.0, 0.001, 0.01];
/// Odd, so that the last segments of frames are.
const WRITE: usize = 40_001;
const BYTES: u64 = 300_001;

/// Each case both ways at once. A quarter of them, in which each pair of peer, MTU and loss is;
/// all of them with `MEGAPIPE_TCP_MATRIX=all`.
#[test]
fn every_kind_of_linux() {
    const TEST: &str = "matrix::every_kind_of_linux";
    if !netns::enter(TEST, crate::BOUND * 5) {
        return;
    }
    let all = std::env::var("MEGAPIPE_TCP_MATRIX").is_ok_and(|what| what == "all");
    let load = Load { from_linux: BYTES, to_linux: BYTES, write: WRITE };
    let (mut received, mut sent) = (Seen::default(), Seen::default());
    let (mut number, mut ran) = (0, 0);
    for peer in PEERS {
        if !is_available(peer.congestion) {
            println!("\nSKIPPED {TEST} with {}: this kernel has no such congestion control", peer.name);
            continue;
        }
        let started = Instant::now();
        peer.without.iter().for_each(|switch| set(switch, false));
        for mtu in MTUS {
            for loss in LOSSES {
                number += 1;
                for (kind, (v6, linux_opens)) in
                    [(false, false), (true, true), (false, true), (true, false)].into_iter().enumerate()
                {
                    if v6 && mtu < 1280 || !all && (number + kind) % 4 != 0 {
                        continue;
                    }
                    let faults = Faults { loss, ..Faults::default() };
                    let mut ours = Ours::new(mtu, faults, Initial::Keyed, load);
                    let connect = if linux_opens { crate::linux_connects } else { crate::we_connect };
                    connect(&mut ours, v6, load, peer.congestion);
                    received.add(ours.received);
                    sent.add(ours.sent);
                    ran += 1;
                }
            }
        }
        peer.without.iter().for_each(|switch| set(switch, true));
        println!("{}: {:?}", peer.name, started.elapsed());
    }
    println!("{ran} cases; received {received:?}, sent {sent:?}");
    for seen in [received, sent] {
        assert!(seen.partial > 0 && seen.odd_tails > 0, "frames that take care: {seen:?}");
    }
}

fn is_available(congestion: &str) -> bool {
    let path = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let names = fs::read_to_string(path).expect("a list of the kernel");
    names.split_whitespace().any(|name| name == congestion)
}

/// Of this network namespace.
fn set(switch: &str, on: bool) {
    fs::write(format!("/proc/sys/net/ipv4/{switch}"), u8::from(on).to_string()).expect("a switch");
}
