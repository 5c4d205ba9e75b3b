//! Time, packets out, and their comparison.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tcp::Time;

use crate::blocking::Blocked;
use crate::parse::{Dialect, Event, Script, What};
use crate::segment::{Marks, Origins, Segment, TcpOption, read_packet};
use crate::simulated::Simulated;
use crate::system::{Sent, System};
use crate::{Cause, Error, freebsd};

/// Where the peer's sequence numbers begin.
const THEIRS: u32 = u32::MAX - 300;
/// The script's time 0.
const START: u64 = 1_000_000;
/// Port of the side that listens.
const SERVER: u16 = 8080;
const CLIENT: u16 = 40_000;

/// A running script.
pub(crate) struct Run<S> {
    pub(crate) system: S,
    /// Sockets by the numbers that the script has for them.
    pub(crate) sockets: BTreeMap<i64, u32>,
    /// epoll sets, likewise.
    pub(crate) sets: BTreeMap<i64, u32>,
    /// The connection or listener that was used last.
    pub(crate) last: Option<u32>,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// The call that has not returned yet.
    pub(crate) blocked: Option<Blocked>,
    origins: Origins,
    stamp_is_known: bool,
    tolerance: Duration,
    mtu: u32,
    pub(crate) dialect: Dialect,
    any_scale: bool,
    /// The scale of our windows that the script has, and the one that we chose.
    scales: (u8, u8),
    /// The peer offered a scale: ours is used.
    peer_scales: bool,
    /// The number of our FIN.
    fin: Option<u32>,
    /// Our last segment.
    latest: Option<Segment>,
    sent: Sent,
}

/// Runs a script on a host of its own.
pub fn run(script: &Script) -> Result<(), Error> {
    let address = |last: u8| match script.v6 {
        false => IpAddr::V4(Ipv4Addr::new(192, 0, 2, last)),
        true => IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into())),
    };
    let local = SocketAddr::new(address(1), SERVER);
    let system = Simulated::new(script, local, at(0));
    Run::new(script, system, local.ip(), address(2)).all(script)
}

pub(crate) fn differs(expected: impl ToString, seen: impl ToString) -> Cause {
    Cause::Differs { expected: expected.to_string(), seen: seen.to_string() }
}

/// A time of the script, in microseconds from its start.
pub(crate) fn at(micros: u64) -> Time {
    Time::from_micros(START + micros)
}

impl<S: System> Run<S> {
    pub(crate) fn new(script: &Script, system: S, local: IpAddr, remote: IpAddr) -> Run<S> {
        Run {
            system,
            sockets: BTreeMap::new(),
            sets: BTreeMap::new(),
            last: None,
            local: SocketAddr::new(local, SERVER),
            remote: SocketAddr::new(remote, CLIENT),
            blocked: None,
            origins: Origins { ours: 0, theirs: THEIRS, stamp: 0 },
            stamp_is_known: false,
            tolerance: Duration::from_micros(script.tolerance),
            mtu: script.mtu,
            dialect: script.dialect,
            any_scale: script.is_freebsds() && !script.settings.scales,
            scales: (0, 0),
            peer_scales: false,
            fin: None,
            latest: None,
            sent: Sent::new(),
        }
    }

    pub(crate) fn all(mut self, script: &Script) -> Result<(), Error> {
        let mut clock = 0;
        let mut line = 0;
        let at_line = |line, cause| Error { file: script.file.clone(), line, cause };
        let (compared, rest) = script.events.split_at(script.compared);
        for event in compared {
            line = event.line;
            clock = self.event(event, clock).map_err(|cause| at_line(line, cause))?;
        }
        let end = rest.first().map_or(self.system.now(), |next| at(next.time(clock)));
        self.pass(end.after(self.system.lateness(Duration::ZERO)), false);
        if let Some((_, bytes)) = self.sent.pop_front() {
            return Err(at_line(line, differs("the end", self.print(&bytes))));
        }
        for event in rest {
            clock = self.event(event, clock).map_err(|cause| at_line(event.line, cause))?;
            self.sent.clear();
        }
        self.returned().map_err(|cause| at_line(line, cause))
    }

    /// The port of the peer when it listens.
    pub(crate) fn server(&self) -> SocketAddr {
        SocketAddr::new(self.remote.ip(), SERVER)
    }

    fn foreign(&self) -> bool {
        self.dialect.is_freebsds()
    }

    /// How late something may be seen that is due after this time.
    pub(crate) fn late(&self, wait: Duration) -> Duration {
        self.tolerance + self.system.lateness(wait)
    }

    /// How early.
    pub(crate) fn early(&self) -> Duration {
        self.tolerance
    }

    /// One event. Returns its time, from which the next one counts.
    fn event(&mut self, event: &Event, clock: u64) -> Result<u64, Cause> {
        let time = event.time(clock);
        if let What::Expect(expected) = &event.what {
            return self.expect(expected, time, event.latest(clock), time.saturating_sub(clock));
        }
        self.pass(at(time), false);
        if let Some((sent, bytes)) = self.sent.front()
            && sent.after(self.late(Duration::ZERO)) < at(time)
        {
            return Err(differs("no packet before this", self.print(bytes)));
        }
        // What this causes is as late as this is.
        let begun = if self.system.runs_by_itself() { self.system.now().micros() - START } else { time };
        match &event.what {
            What::Inject(segment) => {
                self.peer_scales |= scale(segment).is_some();
                let v6 = self.local.is_ipv6();
                let latest = self.latest.as_ref().filter(|_| self.foreign());
                let moved = latest.map(|latest| freebsd::at_our_edge(segment, latest, self.mtu, v6));
                let segment = moved.as_ref().unwrap_or(segment);
                let bytes = segment.build(self.remote, self.local, self.origins);
                self.system.input(&bytes.ok_or_else(|| Cause::Syntax(segment.to_string()))?);
            }
            What::Error(icmp) => {
                let bytes = icmp.build(self.remote.ip(), self.local, self.remote, self.origins);
                self.system.input(&bytes.ok_or_else(|| Cause::Syntax(format!("{icmp:?}")))?);
            }
            What::Call(call, returns) => {
                self.returned()?;
                match returns {
                    None => self.call(call)?,
                    Some(end) => self.block(call, at(end.from(clock)))?,
                }
            }
            What::Code(assertions) => assertions.iter().try_for_each(|condition| self.check(condition))?,
            What::Settings(settings) => self.system.configure(settings),
            What::Expect(_) => {}
        }
        self.pass(self.system.now(), false);
        Ok(begun.max(time))
    }

    /// Lets time pass, and the call that blocks return.
    pub(crate) fn pass(&mut self, until: Time, stop: bool) {
        while self.blocked.is_some() && self.system.now() < until {
            let step = self.system.now().after(crate::blocking::STEP).min(until);
            self.system.pass(step, stop, &mut self.sent);
            self.retry();
            if stop && !self.sent.is_empty() {
                return;
            }
        }
        self.system.pass(until, stop, &mut self.sent);
    }

    /// Compares the next packet, which is due `wait` after the event before. Returns the time from
    /// which the next event counts.
    fn expect(
        &mut self,
        expected: &Segment,
        time: u64,
        latest: Option<u64>,
        wait: u64,
    ) -> Result<u64, Cause> {
        let late = self.late(Duration::from_micros(wait));
        let repeats = self.foreign() && expected.flags.contains('S');
        let early = if repeats { self.early() + freebsd::SLOP } else { self.early() };
        let limit = match latest {
            Some(latest) => at(latest).after(late),
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
        if let (Some(wanted), Some(chosen)) = (scale(expected), scale(&raw)) {
            self.scales = (wanted, chosen);
        }
        let seen = self.relative(&raw);
        let same = match self.foreign() {
            true => {
                self.matches(&freebsd::without_repeated_fin(expected, self.fin, &seen), &seen, early, late)
            }
            false => self.matches(expected, &seen, early, late),
        };
        if !same {
            let named = |mark: Option<u8>, seen| mark.and(seen);
            let marks = Marks {
                hops: named(expected.marks.hops, seen.marks.hops),
                class: named(expected.marks.class, seen.marks.class),
                ecn: named(expected.marks.ecn, seen.marks.ecn),
            };
            return Err(differs(expected, Segment { marks, ..seen }));
        }
        if seen.flags.contains('F') {
            self.fin = Some(seen.seq.wrapping_add(seen.len));
        }
        self.latest = Some(seen);
        if latest.is_some() && (when > limit || when.after(early) < at(time)) {
            let seen = when.since(at(0)).as_micros();
            return Err(differs(format!("{expected} at {time} us"), format!("the same at {seen} us")));
        }
        let seen = when.micros() - START;
        Ok(match latest {
            Some(latest) if latest == time && self.system.runs_by_itself() => seen.max(time),
            Some(latest) if latest == time => time,
            _ => seen,
        })
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

    fn matches(&self, expected: &Segment, seen: &Segment, early: Duration, late: Duration) -> bool {
        // PSH means nothing without payload.
        let flags = |segment: &Segment| match segment.len {
            0 => segment.flags.replace('P', ""),
            _ => segment.flags.clone(),
        };
        // FreeBSD's marks of a port that is bound and nothing more are those of its socket.
        let marked = expected.marks.are(seen.marks) || self.foreign() && expected.flags.starts_with('R');
        let same = marked
            && flags(expected) == flags(seen)
            && (expected.seq, expected.len, expected.ack) == (seen.seq, seen.len, seen.ack)
            && expected.window.is_none_or(|wanted| {
                let scaled = self.any_scale && self.peer_scales && !seen.flags.contains('S');
                let scales = if scaled { self.scales } else { (0, 0) };
                let wanted = u32::from(wanted) << scales.0;
                let seen = u32::from(seen.window.unwrap_or_default()) << scales.1;
                wanted == seen || self.foreign() && wanted.abs_diff(seen) < freebsd::WINDOW_STEP
            });
        let (Some(wanted), Some(options)) = (&expected.options, &seen.options) else { return same };
        let (wanted, options) = (essential(wanted), essential(options));
        let millis = |micros: u128| (micros / 1000).max(1) as u32;
        let (late, early) = (millis(late.as_micros()), millis(early.as_micros()));
        let alike = |(wanted, seen): (&TcpOption, &TcpOption)| match (wanted, seen) {
            (TcpOption::Stamps { value: a, echo: b }, TcpOption::Stamps { value, echo }) => {
                let ahead = value.wrapping_sub(*a);
                let later = self.foreign() && ahead as i32 >= 0;
                (later || ahead <= late || ahead.wrapping_neg() <= early) && b == echo
            }
            (TcpOption::Scale(_), TcpOption::Scale(_)) if self.any_scale => true,
            _ => wanted == seen,
        };
        same && wanted.len() == options.len() && wanted.iter().zip(&options).all(|(a, b)| alike((a, b)))
    }

    fn print(&self, bytes: &[u8]) -> String {
        read_packet(bytes).map_or_else(
            |error| error,
            |(_, _, raw)| Segment { marks: Marks::default(), ..self.relative(&raw) }.to_string(),
        )
    }
}

fn stamp(segment: &Segment) -> Option<u32> {
    segment.options.iter().flatten().find_map(|option| match option {
        TcpOption::Stamps { value, .. } => Some(*value),
        _ => None,
    })
}

fn scale(segment: &Segment) -> Option<u8> {
    segment.options.iter().flatten().find_map(|option| match option {
        TcpOption::Scale(scale) => Some(*scale),
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
