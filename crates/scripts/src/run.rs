//! Time, packets out, and their comparison.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use packet::{Batch, Capabilities, Frame, Offload};
use tcp::sockets::{Socket, Sockets};
use tcp::{Config, Host, Initial, Prefix, Time};

use crate::parse::{Event, Script, What};
use crate::segment::{Origins, Segment, TcpOption, read_packet};
use crate::{Cause, Error, freebsd};

/// Where our numbers begin: data passes 2^32.
const OURS: u32 = u32::MAX - 700;
/// Where the peer's begin.
const THEIRS: u32 = u32::MAX - 300;
/// The script's time 0.
const START: u64 = 1_000_000;
/// Port of the side that listens.
const SERVER: u16 = 8080;
const CLIENT: u16 = 40_000;
/// Timers that are followed between two events, at most.
const STEPS: usize = 100_000;

/// A running script.
pub(crate) struct Run {
    pub(crate) sockets: Sockets,
    pub(crate) now: Time,
    /// Sockets by the numbers that the script has for them.
    pub(crate) numbers: BTreeMap<i64, Socket>,
    /// The connection or listener that was used last.
    pub(crate) last: Option<Socket>,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    origins: Origins,
    stamp_is_known: bool,
    tolerance: u64,
    mtu: u32,
    pub(crate) foreign: bool,
    any_scale: bool,
    /// The number of our FIN.
    fin: Option<u32>,
    /// Our last segment.
    latest: Option<Segment>,
    batch: Batch,
    /// What was sent, and when.
    sent: VecDeque<(Time, Vec<u8>)>,
}

/// Runs a script on a host of its own.
pub fn run(script: &Script) -> Result<(), Error> {
    let mut run = Run::new(script);
    let mut clock = 0;
    let mut line = 0;
    let at_line = |line, cause| Error { file: script.file.clone(), line, cause };
    let (compared, rest) = script.events.split_at(script.compared);
    for event in compared {
        line = event.line;
        clock = run.event(event, clock).map_err(|cause| at_line(line, cause))?;
    }
    if let Some(next) = rest.first() {
        run.pass(at(next.time(clock)), false);
    }
    run.collect();
    if let Some((_, bytes)) = run.sent.pop_front() {
        return Err(at_line(line, differs("the end", run.print(&bytes))));
    }
    for event in rest {
        clock = run.event(event, clock).map_err(|cause| at_line(event.line, cause))?;
        run.sent.clear();
    }
    Ok(())
}

pub(crate) fn differs(expected: impl ToString, seen: impl ToString) -> Cause {
    Cause::Differs { expected: expected.to_string(), seen: seen.to_string() }
}

fn at(micros: u64) -> Time {
    Time::from_micros(START + micros)
}

impl Run {
    fn new(script: &Script) -> Run {
        let address = |last: u8| match script.v6 {
            false => IpAddr::V4(Ipv4Addr::new(192, 0, 2, last)),
            true => IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into())),
        };
        let capabilities = Capabilities { mtu: script.mtu as _, checksum: false, segment: 0 };
        let mut config = Config::new(vec![Prefix::one(address(1))], capabilities);
        config.initial = Initial::Fixed { sequence: OURS, timestamp: u32::MAX - 5_000 };
        script.settings.apply(&mut config, script.foreign);
        Run {
            sockets: Sockets::new(Host::new(config, [7; 32]), 64),
            now: at(0),
            numbers: BTreeMap::new(),
            last: None,
            local: SocketAddr::new(address(1), SERVER),
            remote: SocketAddr::new(address(2), CLIENT),
            origins: Origins { ours: OURS, theirs: THEIRS, stamp: 0 },
            stamp_is_known: false,
            tolerance: script.tolerance,
            mtu: script.mtu,
            foreign: script.foreign,
            any_scale: script.foreign && !script.settings.scales,
            fin: None,
            latest: None,
            batch: Batch::new(1 << 20),
            sent: VecDeque::new(),
        }
    }

    /// The port of the peer when it listens.
    pub(crate) fn server(&self) -> SocketAddr {
        SocketAddr::new(self.remote.ip(), SERVER)
    }

    /// One event. Returns its time, from which the next one counts.
    fn event(&mut self, event: &Event, clock: u64) -> Result<u64, Cause> {
        let time = event.time(clock);
        if let What::Expect(expected) = &event.what {
            return self.expect(expected, time, event.latest(clock));
        }
        self.pass(at(time), false);
        self.now = self.now.max(at(time));
        if let Some((sent, bytes)) = self.sent.front()
            && sent.after(Duration::from_micros(self.tolerance)) < at(time)
        {
            return Err(differs("no packet before this", self.print(bytes)));
        }
        match &event.what {
            What::Inject(segment) => {
                let v6 = self.local.is_ipv6();
                let latest = self.latest.as_ref().filter(|_| self.foreign);
                let moved = latest.map(|latest| freebsd::at_our_edge(segment, latest, self.mtu, v6));
                let segment = moved.as_ref().unwrap_or(segment);
                let bytes = segment.build(self.remote, self.local, self.origins);
                self.input(&bytes.ok_or_else(|| Cause::Syntax(segment.to_string()))?);
            }
            What::Error(icmp) => {
                let bytes = icmp.build(self.remote.ip(), self.local, self.remote, self.origins);
                self.input(&bytes.ok_or_else(|| Cause::Syntax(format!("{icmp:?}")))?);
            }
            What::Call(call) => self.call(call)?,
            What::State(state) => self.state(state)?,
            What::Expect(_) => {}
        }
        self.collect();
        Ok(time)
    }

    fn input(&mut self, bytes: &[u8]) {
        self.sockets.input(self.now, [Frame { bytes, offload: Offload::default() }]);
    }

    /// Follows the timers until this time, or until something has been sent.
    fn pass(&mut self, until: Time, stop: bool) {
        for _ in 0..STEPS {
            self.collect();
            if stop && !self.sent.is_empty() {
                return;
            }
            match self.sockets.deadline() {
                Some(due) if due <= until => self.now = self.now.max(due),
                _ => return,
            }
            self.sockets.advance(self.now);
        }
    }

    fn collect(&mut self) {
        let mut more = true;
        while more {
            self.batch.clear();
            more = self.sockets.output(self.now, &mut self.batch);
            let now = self.now;
            self.sent.extend(self.batch.frames().map(|frame| (now, frame.bytes.to_vec())));
        }
    }

    /// Compares the next packet. Returns the time from which the next event counts.
    fn expect(&mut self, expected: &Segment, time: u64, latest: Option<u64>) -> Result<u64, Cause> {
        let tolerance = Duration::from_micros(self.tolerance);
        let repeats = self.foreign && expected.flags.contains('S');
        let early = if repeats { tolerance + freebsd::SLOP } else { tolerance };
        let limit = match latest {
            Some(latest) => at(latest).after(tolerance),
            None => at(time).after(Duration::from_secs(3600)),
        };
        self.pass(limit, true);
        let (when, bytes) = self.sent.pop_front().ok_or_else(|| differs(expected, "nothing"))?;
        let (from, to, raw) = read_packet(&bytes).map_err(|seen| differs(expected, seen))?;
        if (from, to) != (self.local, self.remote) {
            return Err(differs(format!("{} to {}", self.local, self.remote), format!("{from} to {to}")));
        }
        if expected.flags.contains('S') && raw.flags.contains('S') {
            self.origins.ours = raw.seq.wrapping_sub(expected.seq);
        }
        self.learn_stamp(expected, &raw);
        let seen = self.relative(&raw);
        let same = match self.foreign {
            true => self.matches(&freebsd::without_repeated_fin(expected, self.fin, &seen), &seen, early),
            false => self.matches(expected, &seen, early),
        };
        if !same {
            return Err(differs(expected, seen));
        }
        if seen.flags.contains('F') {
            self.fin = Some(seen.seq.wrapping_add(seen.len));
        }
        self.latest = Some(seen);
        if latest.is_some() && (when > limit || when.after(early) < at(time)) {
            let seen = when.since(at(0)).as_micros();
            return Err(differs(format!("{expected} at {time} us"), format!("the same at {seen} us")));
        }
        let clock = if latest == Some(time) { time } else { when.micros() - START };
        self.now = self.now.max(at(clock));
        Ok(clock)
    }

    /// A segment of ours with the script's numbers.
    fn relative(&self, raw: &Segment) -> Segment {
        let Origins { ours, theirs, stamp } = self.origins;
        let mut segment = raw.clone();
        segment.seq = raw.seq.wrapping_sub(ours);
        if raw.flags.contains('R') && raw.seq == 0 {
            // Answers a segment without ACK: 0, whatever our numbers are (RFC 9293, 3.10.7.1).
            segment.seq = 0;
        }
        segment.ack = raw.ack.map(|ack| ack.wrapping_sub(theirs));
        for option in segment.options.iter_mut().flatten() {
            match option {
                TcpOption::Stamps { value, .. } => *value = value.wrapping_sub(stamp),
                TcpOption::Sack(blocks) => {
                    for (start, end) in blocks {
                        (*start, *end) = (start.wrapping_sub(theirs), end.wrapping_sub(theirs));
                    }
                }
                _ => {}
            }
        }
        segment
    }

    fn learn_stamp(&mut self, expected: &Segment, raw: &Segment) {
        if let (false, Some(expected), Some(seen)) = (self.stamp_is_known, stamp(expected), stamp(raw)) {
            self.origins.stamp = seen.wrapping_sub(expected);
            self.stamp_is_known = true;
        }
    }

    fn matches(&self, expected: &Segment, seen: &Segment, early: Duration) -> bool {
        // PSH means nothing without payload.
        let flags = |segment: &Segment| match segment.len {
            0 => segment.flags.replace('P', ""),
            _ => segment.flags.clone(),
        };
        let same = flags(expected) == flags(seen)
            && (expected.seq, expected.len, expected.ack) == (seen.seq, seen.len, seen.ack)
            && expected.window.is_none_or(|wanted| {
                let seen = seen.window.unwrap_or_default();
                wanted == seen || self.foreign && wanted.abs_diff(seen) < freebsd::WINDOW_STEP
            });
        let (Some(wanted), Some(options)) = (&expected.options, &seen.options) else { return same };
        let (wanted, options) = (essential(wanted), essential(options));
        let millis = |micros: u128| (micros / 1000).max(1) as u32;
        let (late, early) = (millis(self.tolerance.into()), millis(early.as_micros()));
        let alike = |(wanted, seen): (&TcpOption, &TcpOption)| match (wanted, seen) {
            (TcpOption::Stamps { value: a, echo: b }, TcpOption::Stamps { value, echo }) => {
                let ahead = value.wrapping_sub(*a);
                (ahead <= late || ahead.wrapping_neg() <= early) && b == echo
            }
            (TcpOption::Scale(_), TcpOption::Scale(_)) if self.any_scale => true,
            _ => wanted == seen,
        };
        same && wanted.len() == options.len() && wanted.iter().zip(&options).all(|(a, b)| alike((a, b)))
    }

    fn print(&self, bytes: &[u8]) -> String {
        read_packet(bytes).map_or_else(|error| error, |(_, _, raw)| self.relative(&raw).to_string())
    }
}

fn stamp(segment: &Segment) -> Option<u32> {
    segment.options.iter().flatten().find_map(|option| match option {
        TcpOption::Stamps { value, .. } => Some(*value),
        _ => None,
    })
}

/// Options without padding, in one order.
fn essential(options: &[TcpOption]) -> Vec<TcpOption> {
    let padding = |option: &&TcpOption| matches!(option, TcpOption::Nop | TcpOption::End);
    let mut kept: Vec<TcpOption> = options.iter().filter(|option| !padding(option)).cloned().collect();
    kept.sort();
    kept
}
