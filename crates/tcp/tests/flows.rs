//! Connections that share a path: round trips of each, cost and time of all. Under virtual time, from seeds.
//!
//! `MEGAPIPE_TCP_PATHS` is the number of paths (40), `MEGAPIPE_TCP_FIRST_SEED` where to begin.
mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::{Net, OFFLOADS, PLAIN, PORT, address, config};
use packet::{Direction, Faults, Random};
use tcp::{Flow, Time};

/// Bytes of payload in a frame of 1,500.
const MSS: f64 = 1448.0;

const FIRST_PORT: u16 = 40_000;

#[derive(Debug)]
struct Path {
    rtt: Duration,
    rate: u64,
    loss: f64,
    offloads: bool,
    /// Of each connection: when it begins, and what it sends.
    flows: Vec<(Duration, usize)>,
}

impl Path {
    fn new(seed: u64) -> Path {
        let mut random = Random::new(seed);
        let rtt = Duration::from_millis([2, 10, 40, 100][random.below(4) as usize]);
        let rate = [2_500_000, 12_500_000][random.below(2) as usize];
        let loss = [0.0, 0.0, 0.001][random.below(3) as usize];
        let offloads = random.chance(0.5);
        let count = 1 + random.below(4);
        let flow = |_| (Duration::from_millis(random.below(500)), (rate / 4 + random.below(rate)) as usize);
        Path { rtt, rate, loss, offloads, flows: (0..count).map(flow).collect() }
    }

    /// Seconds from the first begin to the last end: slow start from ten segments on, then the rate, or where
    /// something is lost what one connection gets (M. Mathis et al., The Macroscopic Behavior of the TCP
    /// Congestion Avoidance Algorithm, 1997).
    fn model(&self) -> f64 {
        let rtt = self.rtt.as_secs_f64();
        let link = self.rate as f64 * MSS / 1500.0;
        let alone = if self.loss > 0.0 { link.min(1.22 * MSS / rtt / self.loss.sqrt()) } else { link };
        let rounds = (alone * rtt / (10.0 * MSS)).max(1.0).log2().ceil() + 1.0;
        let all: usize = self.flows.iter().map(|flow| flow.1).sum();
        let last = self.flows.iter().map(|(start, bytes)| start.as_secs_f64() + *bytes as f64 / alone);
        rounds * rtt + last.fold(all as f64 / link, f64::max)
    }
}

/// A connection at work.
struct Work {
    port: u16,
    client: Flow,
    server: Option<Flow>,
    bytes: usize,
    written: usize,
    read: usize,
    /// The host's smoothed round trip and that of the segments, where half is over.
    srtt: Option<(f64, f64)>,
}

fn run(seed: u64) -> f64 {
    let path = Path::new(seed);
    let capabilities = if path.offloads { OFFLOADS } else { PLAIN };
    let mut net = Net::new([0, 1].map(|side| config(side, capabilities)), seed);
    let queue = (path.rtt.as_secs_f64() * path.rate as f64).max(64_000.0) as u64;
    let faults = Faults { delay: path.rtt / 2, rate: path.rate, queue, ..Faults::default() };
    net.set_faults(0, Faults { loss: path.loss, ..faults });
    net.set_faults(1, faults);
    let listener = net.listen();
    let start = net.now;
    let piece = vec![0; 256 << 10];
    let mut works: Vec<Work> = Vec::new();
    let mut begins: Vec<(Duration, usize)> = path.flows.clone();
    begins.sort_unstable();
    begins.reverse();
    while works.iter().any(|work| work.read < work.bytes) || !begins.is_empty() {
        while let Some(&(at, bytes)) = begins.last().filter(|(at, _)| start.after(*at) <= net.now) {
            let _ = at;
            begins.pop();
            let port = FIRST_PORT + works.len() as u16;
            let (now, remote) = (net.now, SocketAddr::new(address(1, false), PORT));
            let client = net.host(0).connect(now, None, Some(port), remote).expect("a flow");
            works.push(Work { port, client, server: None, bytes, written: 0, read: 0, srtt: None });
        }
        net.exchange();
        while let Some(server) = net.host(1).accept(listener) {
            let (_, remote) = net.host(1).addresses(server).expect("a flow");
            works[usize::from(remote.port() - FIRST_PORT)].server = Some(server);
        }
        for work in &mut works {
            step(&mut net, work, &piece);
        }
        net.exchange();
        let next = begins.last().map(|(at, _)| start.after(*at));
        let next: Option<Time> = net.next().into_iter().chain(next).min();
        net.now = next.expect("something will happen").max(net.now);
        assert!(net.now.since(start) < Duration::from_secs(600), "seed {seed}: {path:?}");
    }
    let seconds = net.now.since(start).as_secs_f64();
    net.run(path.rtt * 3);
    check(seed, &path, &net, &works, seconds)
}

fn step(net: &mut Net, work: &mut Work, piece: &[u8]) {
    let now = net.now;
    let rest = &piece[..piece.len().min(work.bytes - work.written)];
    work.written += net.host(0).write(now, work.client, rest).expect("open");
    if let Some(server) = work.server {
        work.read += net.read_all(1, server).0.len();
    }
    if work.srtt.is_none() && work.read > work.bytes / 2 {
        let info = net.host(0).info(work.client).expect("open");
        let watch = net.wire.watch(work.port, PORT).expect("data");
        // While something is sent again only the host, which sees SACKs, learns how the queue drains.
        let seen = if watch.again == 0 { watch.srtt } else { info.round_trip_micros.into() };
        work.srtt = Some((info.round_trip_micros.into(), seen));
    }
}

/// The goodput, over that of the model.
fn check(seed: u64, path: &Path, net: &Net, works: &[Work], seconds: f64) -> f64 {
    let lost = net.sides[0].device.lost(Direction::Sent);
    let watches = works.iter().map(|work| net.wire.watch(work.port, PORT).expect("data"));
    let (mut again, mut allowed) = (0, lost + lost / 5);
    for watch in watches {
        again += watch.again;
        allowed += watch.may_repeat(0);
    }
    let goodput = path.model() / seconds;
    let line =
        format!("seed {seed}: {goodput:.2} of the model, {again} bytes again of {lost} lost; {path:?}");
    println!("{line}");
    for work in works {
        let (theirs, ours) = work.srtt.expect("half");
        assert!((theirs / ours - 1.0).abs() <= 0.2, "round trip: {theirs:.0} us of {ours:.0}; {line}");
    }
    assert!(again <= allowed, "more than {allowed} bytes again: {line}");
    goodput
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

/// A connection that loses all of its first flight in the queue that others fill waits for a timeout, and is slow
/// for long: so of the time the mean alone counts.
#[test]
fn connections_that_share_a_path() {
    let first = number("MEGAPIPE_TCP_FIRST_SEED", 1);
    let paths = number("MEGAPIPE_TCP_PATHS", 40);
    let goodput: f64 = (first..first + paths).map(|seed| run(seed).min(1.0)).sum();
    let mean = goodput / paths as f64;
    println!("{mean:.2} of the model");
    assert!(mean >= 0.8, "{mean:.2} of the model");
}
