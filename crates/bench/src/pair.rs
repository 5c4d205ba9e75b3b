//! Two processes of one host and what carries bytes between them.
//!
//! [`Scenario::Pingpong`] is the time of a round trip, [`Scenario::Stream`] the rate of messages in
//! one direction. Both sides are children of the controller, which makes their connection, hands
//! each its end, and sleeps while they work. Every transport is measured at every point, once per
//! round; within a round the transports take turns, and each round starts with another one, so that
//! a slow minute of the machine falls on all of them alike.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::io::FdFlags;
use serde_json::json;

use crate::Reason;
use crate::child::Child;
use crate::cpu::CpuSet;
use crate::names::names;
use crate::options::{check_pair, cpu_ends, seconds, this_program, whole};
use crate::part::Part;
use crate::record::Record;
use crate::run::{self, Run, RunError, Unusable, in_turn};

mod side;
mod transport;

pub use side::{Busy, Exchange};
pub use transport::{CACHELINE_PAYLOAD, Side, Transport};

use side::Figures;

names! {
    /// What is measured.
    Scenario {
        /// A message there and one of the same size back, one at a time.
        Pingpong = "pingpong",
        /// Messages in one direction, one send and one receive each.
        Stream = "stream",
    }
}

names! {
    /// Where the two processes run, and beside what.
    Placement {
        /// One process on each of two CPUs.
        TwoCores = "two-cores",
        /// Both on one CPU.
        OneCore = "one-core",
        /// Both on either of two CPUs, as the kernel places them.
        Either = "either",
        /// Both on either of two CPUs, each of which four other processes want all the time.
        Oversubscribed = "oversubscribed",
        /// One process on each of two CPUs, and one message a millisecond, so that both sleep between.
        Asleep = "asleep",
    }
}

impl Placement {
    /// How many CPUs it takes.
    pub fn cpus(self) -> usize {
        if self == Placement::OneCore { 1 } else { 2 }
    }

    /// Those that were named, or else all for which there are CPUs.
    pub(crate) fn possible(named: &[Self], all: &[Self], cpus: &CpuSet) -> Result<Vec<Self>, Unusable> {
        let too_large = |placement: &&Placement| placement.cpus() > cpus.len();
        if let Some(other) = named.iter().find(|one| !all.contains(one)) {
            let names = all.iter().map(|one| one.name()).collect::<Vec<_>>().join(", ");
            return Err(Unusable(format!(
                "--placements: {other} is not measured here; give some of {names}"
            )));
        }
        match named.iter().find(too_large) {
            Some(placement) => Err(Unusable(format!(
                "--placements: {placement} takes two CPUs, and there is CPU {cpus} alone; give two --cpus, or one-core"
            ))),
            None if named.is_empty() => Ok(all.iter().filter(|one| !too_large(one)).copied().collect()),
            None => Ok(named.to_vec()),
        }
    }

    /// Those who want the CPUs, too, for so long, where there are any; dropping them ends them.
    pub(crate) fn crowd(self, cpus: &CpuSet, time: Duration) -> io::Result<Vec<Child>> {
        if self != Placement::Oversubscribed {
            return Ok(Vec::new());
        }
        let cpus = cpus.as_slice().iter().flat_map(|&cpu| std::iter::repeat_n(cpu, BUSY_PER_CPU));
        cpus.map(|cpu| Child::start(&mut Busy { cpu, time }.command(&this_program()))).collect()
    }

    /// Where the first, and where the second process may run, of the CPUs given.
    pub(crate) fn of(self, cpus: &CpuSet) -> [CpuSet; 2] {
        match self {
            Placement::TwoCores | Placement::Asleep => [cpus.first(), cpus.last()],
            Placement::OneCore => [cpus.first(), cpus.first()],
            Placement::Either | Placement::Oversubscribed => [cpus.clone(), cpus.clone()],
        }
    }
}

/// What to measure.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Round trips or a stream.
    #[arg(skip = Scenario::Pingpong)]
    pub scenario: Scenario,
    /// What to compare: promoted (shared memory), promoted-asleep (no spins), tcp, tcp-spin (calls that do not block), unix, and the limits
    /// cacheline (pingpong) and memcpy (stream) [default: all that the scenario has]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    transports: Vec<Transport>,
    /// Bytes of a message, up to 1 MiB
    #[arg(long, value_delimiter = ',', value_name = "BYTES", default_value = "8,64,512,4096,65536,1048576")]
    #[arg(value_parser = whole(1..=1_usize << 20))]
    sizes: Vec<usize>,
    /// Where the processes run: two-cores, one-core, either (of two CPUs, not pinned), oversubscribed (four busy processes per CPU
    /// beside them), asleep (one message a millisecond) [default: all, or one-core with one CPU]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    placements: Vec<Placement>,
    /// The two CPUs, such as 0,1; one-core takes the first of them
    #[arg(long, value_name = "CPUS", default_value_t = cpu_ends())]
    cpus: CpuSet,
    /// Length of each measurement; a warm-up of a quarter goes before it
    #[arg(long = "seconds", value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    window: Duration,
}

/// One place on the axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Point {
    placement: Placement,
    bytes: usize,
}

impl Plan {
    /// All points, in the order in which they are measured.
    fn points(&self) -> Vec<Point> {
        let of = |&placement: &Placement| self.sizes.iter().map(move |&bytes| Point { placement, bytes });
        self.placements.iter().flat_map(of).collect()
    }

    /// The transports that are measured at a point.
    fn at(&self, point: Point) -> Vec<Transport> {
        let takes_part = |transport: &Transport| {
            transport.can_be_placed(point.placement) && transport.carries(point.bytes)
        };
        self.transports.iter().copied().filter(takes_part).collect()
    }

    fn warm_up(&self) -> Duration {
        (self.window / 4).max(Duration::from_millis(20))
    }
}

impl run::Scenario for Plan {
    fn prepare(&mut self, rounds: u32) -> Result<usize, Reason> {
        check_pair(&self.cpus, true)?;
        self.placements = Placement::possible(&self.placements, Placement::ALL, &self.cpus)?;
        let scenario = self.scenario;
        if self.transports.is_empty() {
            self.transports.extend(Transport::ALL.iter().filter(|one| one.takes_part_in(scenario)));
        }
        if let Some(transport) = self.transports.iter().find(|one| !one.takes_part_in(scenario)) {
            let words = format!(
                "--transports: {transport} is no part of {scenario}: cacheline is for pingpong, memcpy for stream"
            );
            return Err(Unusable(words).into());
        }
        match self.points().into_iter().map(|point| self.at(point).len()).sum::<usize>() {
            0 => Err(Unusable(format!(
                "nothing to measure: cacheline takes messages up to {CACHELINE_PAYLOAD} B, cacheline and memcpy are \
                 limits of two-cores, and tcp-spin is never asleep; add to --transports, --sizes or --placements"
            ))
            .into()),
            each => Ok(each * rounds as usize),
        }
    }

    fn run(&self, run: &mut Run<'_>) -> Result<(), RunError> {
        run.header(json!({
            "scenario": self.scenario,
            "cpus": self.cpus.as_slice(),
            "seconds": self.window.as_secs_f64(),
            // Of each round trip one reading is taken off.
            "clock_ns": side::clock_reading().as_nanos() as f64,
        }))?;
        for round in 1..=run.rounds {
            for point in self.points() {
                let transports = self.at(point);
                let time = (self.warm_up() + self.window + PATIENCE) * (transports.len() as u32 + 1);
                let crowd = point.placement.crowd(&self.cpus, time);
                let _crowd =
                    crowd.map_err(RunError::lacks("cannot start processes beside those to measure"))?;
                for transport in in_turn(&transports, round) {
                    let Point { placement, bytes } = point;
                    let what = format!("{transport}, {placement}, {bytes} B");
                    let place = json!({ "transport": transport, "bytes": bytes, "placement": placement });
                    let stop = run.stop;
                    run.measure(round, what, place, || {
                        let figures = measure(self, transport, point, stop)?;
                        Ok(record(transport, point, &figures))
                    })?;
                }
            }
        }
        Ok(())
    }

    /// A transport that could be measured, but not always, did not just lack what it needs.
    fn is_success(&self, records: &[Record]) -> bool {
        let is_measured = |absent: &Record| {
            let same = |record: &&Record| record.text("transport") == absent.text("transport");
            records.iter().filter(same).any(Record::is_measurement)
        };
        let mut absent = records.iter().filter(|record| record.kind() == "absent");
        records.iter().any(Record::is_measurement) && !absent.any(is_measured)
    }
}

fn measure(plan: &Plan, transport: Transport, point: Point, stop: &AtomicBool) -> Result<Figures, Reason> {
    let ends = transport.calls().0().map_err(|error| format!("cannot be connected: {error}"))?;
    let mut task = Exchange {
        scenario: plan.scenario,
        transport,
        side: Side::First,
        bytes: point.bytes,
        cpus: plan.cpus.clone(),
        warm_up: plan.warm_up(),
        window: plan.window,
        paced: point.placement == Placement::Asleep,
        peer: None,
        descriptors: Vec::new(),
    };
    let mut start = |side, cpus, descriptors: Vec<OwnedFd>, peer| {
        (task.side, task.cpus, task.peer) = (side, cpus, peer);
        for descriptor in &descriptors {
            rustix::io::fcntl_setfd(descriptor, FdFlags::empty()).map_err(io::Error::from)?; // to inherit
        }
        task.descriptors = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        Child::start(&mut task.command(&this_program()))
    };
    let ([first_cpus, second_cpus], [first, second]) = (point.placement.of(&plan.cpus), ends);
    let mut first = start(Side::First, first_cpus, first, None)?;
    let mut second = start(Side::Second, second_cpus, second, Some(first.pid()))?;
    wait(plan, &mut first, &mut second, stop)?;
    // What still runs has nothing to say, and is ended.
    let mut words = Vec::new();
    if second.has_ended()? {
        match second.line() {
            Ok(figures) => return Ok(serde_json::from_str(&figures)?),
            Err(error) => words.push(error.to_string()),
        }
    }
    if first.has_ended()? {
        words.push(first.complaint("the other process ended without a word"));
    }
    Err(words.join("; ").into())
}

/// Waits until the side that measures has ended, and the other one, too, if it did not see to that.
fn wait(plan: &Plan, first: &mut Child, second: &mut Child, stop: &AtomicBool) -> Result<(), Reason> {
    let expected = Instant::now() + plan.warm_up() + plan.window;
    let mut patience = expected + PATIENCE;
    let mut alone = false;
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(RunError::Stopped.into());
        }
        if second.has_ended()? {
            return Ok(());
        }
        let now = Instant::now();
        if !alone && first.has_ended()? {
            alone = true;
            patience = patience.min(now + GRACE); // it notices by itself, or never
        }
        if now >= patience {
            return match alone {
                true => Ok(()),
                false => Err(format!(
                    "not done {} s after its time; others may use the CPUs, or choose more --seconds",
                    PATIENCE.as_secs()
                )
                .into()),
            };
        }
        let left = expected.saturating_duration_since(now);
        thread::sleep(left.clamp(Duration::from_millis(2), Duration::from_millis(50)));
    }
}

fn record(transport: Transport, point: Point, figures: &Figures) -> Record {
    let messages = figures.messages as f64;
    let common = json!({
        "transport": transport,
        "bytes": point.bytes,
        "placement": point.placement,
        "cpu_ns_per_message": figures.cpu_ns / messages,
        "waited": figures.waited_s.map(|waited| waited / figures.seconds / 2.0),
    });
    match figures.rtt_ns {
        Some([p50, p99, p999]) => Record::new("pingpong", common).with(json!({
            "rtt_ns_p50": p50,
            "rtt_ns_p99": p99,
            "rtt_ns_p999": p999,
            "round_trips": figures.messages / 2,
        })),
        None => Record::new("stream", common).with(json!({
            "messages_per_s": messages / figures.seconds,
            "bytes_per_s": messages * point.bytes as f64 / figures.seconds,
        })),
    }
}

/// With the two measured ones on two CPUs: five processes on each.
const BUSY_PER_CPU: usize = 4;

/// How much longer than its time a measurement may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long one side may go on without the other.
const GRACE: Duration = Duration::from_secs(2);
