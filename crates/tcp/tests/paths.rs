//! Paths with a round trip: time and cost, not only bytes. Under virtual time, from seeds.
mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::trace::ms;
use common::watch::Watch;
use common::{Net, OFFLOADS, PLAIN, PORT, address, config};
use packet::{Capabilities, Direction, Faults};
use tcp::{Config, Flow, Profile};

const CLIENT: u16 = 40_000;
/// 100 Mbit/s.
const RATE: u64 = 12_500_000;
/// Bytes of payload that a frame of 1,500 has.
const MSS: f64 = 1448.0;

#[derive(Clone, Copy)]
struct Path {
    rtt: Duration,
    rate: u64,
    /// Bytes that wait for the rate.
    queue: u64,
    loss: f64,
    /// Chance of being late, and by how much.
    reorder: (f64, Duration),
    capabilities: Capabilities,
}

impl Path {
    fn new(rtt: Duration) -> Path {
        let queue = (rtt.as_secs_f64() * RATE as f64) as u64;
        let queue = queue.max(100_000);
        Path { rtt, rate: RATE, queue, loss: 0.0, reorder: (0.0, ms(0)), capabilities: PLAIN }
    }

    /// Seconds that a transfer takes at least: slow start from ten segments on, then the rate; where
    /// something is lost, what Reno gets (M. Mathis et al., The Macroscopic Behavior of the TCP
    /// Congestion Avoidance Algorithm, 1997).
    fn model(&self, bytes: f64) -> f64 {
        let rtt = self.rtt.as_secs_f64();
        let link = self.rate as f64 * MSS / 1500.0;
        let rate = if self.loss > 0.0 { link.min(1.22 * MSS / rtt / self.loss.sqrt()) } else { link };
        let rounds = (rate * rtt / (10.0 * MSS)).max(1.0).log2().ceil() + 1.0;
        rounds * rtt + bytes / rate
    }
}

struct Transfer {
    seconds: f64,
    /// The host's smoothed round-trip time and the one of the segments themselves, in microseconds,
    /// at the middle of the transfer.
    srtt: (f64, f64),
    sent: u64,
    again: u64,
    may_repeat: u64,
    lost: u64,
}

fn transfer(path: Path, seed: u64, bytes: usize, change: impl Fn(&mut Config)) -> Transfer {
    let configs = [0, 1].map(|side| {
        let mut config = config(side, path.capabilities);
        change(&mut config);
        config
    });
    let mut net = Net::new(configs, seed);
    let faults = Faults {
        delay: path.rtt / 2,
        rate: path.rate,
        queue: path.queue,
        reorder: path.reorder.0,
        reorder_by: path.reorder.1,
        ..Faults::default()
    };
    net.set_faults(0, Faults { loss: path.loss, ..faults });
    net.set_faults(1, Faults { reorder: 0.0, ..faults });
    let listener = net.listen();
    let (now, remote) = (net.now, SocketAddr::new(address(1, false), PORT));
    let client = net.host(0).connect(now, None, Some(CLIENT), remote).expect("a flow");
    net.run(path.rtt * 3);
    let server = net.host(1).accept(listener).expect("a connection");
    let start = net.now;
    let piece = vec![0; 1 << 20];
    let (mut written, mut read) = (0, 0);
    let mut srtt = None;
    while read < bytes {
        let now = net.now;
        let rest = &piece[..piece.len().min(bytes - written)];
        written += net.host(0).write(now, client, rest).expect("open");
        net.exchange();
        net.now = net.next().expect("something will happen").max(net.now);
        net.exchange();
        read += net.read_all(1, server).0.len();
        assert!(net.now.since(start) < Duration::from_secs(600), "{read} of {bytes} bytes");
        if read > bytes / 2 && srtt.is_none() {
            let info = net.host(0).info(client).expect("open");
            srtt = Some((f64::from(info.round_trip_micros), watched(&net).srtt));
        }
    }
    let seconds = net.now.since(start).as_secs_f64();
    net.run(path.rtt * 2);
    let lost = net.sides[0].device.lost(Direction::Sent);
    let watch = watched(&net);
    let Watch { sent, again, .. } = *watch;
    Transfer { seconds, srtt: srtt.expect("half"), sent, again, may_repeat: watch.may_repeat(lost), lost }
}

fn watched(net: &Net) -> &Watch {
    net.wire.watch(CLIENT, PORT).expect("data")
}

/// Checks the time and the cost of a transfer, and prints them.
#[track_caller]
fn check(name: &str, path: Path, bytes: usize, change: impl Fn(&mut Config)) {
    let Transfer { seconds, srtt: (theirs, ours), sent, again, may_repeat, lost } =
        transfer(path, 1, bytes, change);
    let goodput = path.model(bytes as f64) / seconds;
    let line = format!(
        "{name}: {:.2} MB/s, {goodput:.2} of the model; srtt {:.1} ms of {:.1}; {again} of {sent} bytes again, {lost} lost",
        bytes as f64 / seconds / 1e6,
        theirs / 1e3,
        ours / 1e3,
    );
    println!("{line}");
    assert!((theirs / ours - 1.0).abs() <= 0.2, "round trip: {line}");
    assert!(again <= may_repeat, "more than {may_repeat} bytes again: {line}");
    assert!(goodput >= 0.8, "time: {line}");
}

#[test]
fn long_paths() {
    for rtt in [20, 50, 100, 300] {
        check(&format!("{rtt} ms"), Path::new(ms(rtt)), 10_000_000, |_| {});
    }
}

/// A device that takes frames of many segments, and a peer that joins what it receives.
#[test]
fn long_paths_with_offloads() {
    for rtt in [20, 100] {
        let path = Path { capabilities: OFFLOADS, ..Path::new(ms(rtt)) };
        check(&format!("{rtt} ms, offloads"), path, 10_000_000, |_| {});
    }
}

#[test]
fn losses() {
    for (rtt, loss) in [(20, 0.001), (20, 0.01), (100, 0.001)] {
        let path = Path { loss, ..Path::new(ms(rtt)) };
        check(&format!("{rtt} ms, {} % lost", loss * 100.0), path, 10_000_000, |_| {});
    }
}

#[test]
fn reordering() {
    let path = Path { reorder: (0.02, ms(3)), ..Path::new(ms(20)) };
    check("20 ms, 2 % late by 3 ms", path, 10_000_000, |_| {});
}

#[test]
fn short_paths() {
    // A gigabit, and so much that nothing but the window counts.
    for (rate, queue) in [(125_000_000, 500_000), (1_250_000_000, 5_000_000)] {
        for loss in [0.0, 0.001, 0.01] {
            let path = Path { rate, queue, loss, ..Path::new(Duration::from_micros(100)) };
            let lan = |config: &mut Config| config.profile = Profile::lan();
            let name = format!("100 us, {} Mbit/s, {} % lost", rate / 125_000, loss * 100.0);
            check(&name, path, 20_000_000, lan);
        }
    }
}

/// A message now and then: the round trip is that of each of them.
#[test]
fn round_trip_of_messages() {
    let mut net = Net::new([config(0, PLAIN), config(1, PLAIN)], 1);
    for side in 0..2 {
        net.set_faults(side, Faults { delay: ms(20), ..Faults::default() });
    }
    let listener = net.listen();
    let (now, remote) = (net.now, SocketAddr::new(address(1, false), PORT));
    let client = net.host(0).connect(now, None, Some(CLIENT), remote).expect("a flow");
    net.run(ms(200));
    let server: Flow = net.host(1).accept(listener).expect("a connection");
    net.host(0).set_no_delay(now, client, true);
    for _ in 0..500 {
        let now = net.now;
        net.host(0).write(now, client, &[0; 100]).expect("open");
        net.run(ms(2));
        net.read_all(1, server);
        let info = net.host(0).info(client).expect("open");
        let (theirs, ours) = (f64::from(info.round_trip_micros), watched(&net).srtt);
        if watched(&net).samples > 20 {
            assert!((theirs / ours - 1.0).abs() <= 0.2, "{theirs} us, but {ours}");
        }
    }
}

/// Slow start ends when the queue begins to fill, not when it overflows, wherever sequence numbers begin.
#[test]
fn slow_start_ends_in_time() {
    for (rtt, megabytes) in [(20, 25), (50, 25), (100, 25), (100, 12)] {
        for (seed, capabilities) in [(1, PLAIN), (2, PLAIN), (3, OFFLOADS), (4, OFFLOADS)] {
            let rate = megabytes * 1_000_000;
            let path = Path { rate, queue: rate * rtt / 1000, capabilities, ..Path::new(ms(rtt)) };
            let Transfer { seconds, lost, .. } = transfer(path, seed, 10_000_000, |_| {});
            let goodput = path.model(1e7) / seconds;
            let line =
                format!("{rtt} ms, {megabytes} MB/s, seed {seed}: {goodput:.2} of the model, {lost} lost");
            println!("{line}");
            assert!(lost < 200_000 && goodput > 1.0, "{line}");
        }
    }
}

/// A queue of four milliseconds, as switches have it, holds many windows of a short path.
#[test]
fn slow_start_of_short_paths() {
    for (micros, capabilities) in
        [(100, PLAIN), (100, OFFLOADS), (500, PLAIN), (1_000, OFFLOADS), (2_000, PLAIN)]
    {
        let rtt = Duration::from_micros(micros);
        let path = Path { rate: 125_000_000, queue: 500_000, capabilities, ..Path::new(rtt) };
        let Transfer { seconds, lost, .. } =
            transfer(path, 1, 20_000_000, |config| config.profile = Profile::lan());
        let goodput = path.model(2e7) / seconds;
        let line = format!("{micros} us: {goodput:.2} of the model, {lost} lost");
        println!("{line}");
        assert!(lost < 50_000 && goodput > 0.9, "{line}");
    }
}
