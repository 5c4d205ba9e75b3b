//! Two processes of one host and what carries bytes between them.
//!
//! [`Scenario::Pingpong`] is the time of a round trip, [`Scenario::Stream`] the rate of messages in
//! one direction. Both sides are children of the controller, which makes their connection, hands
//! each its end, and sleeps while they work. Every transport is measured at every point, once per
//! round; within a round the transports take turns, and each round starts with another one, so that
//! a slow minute of the machine falls on all of them alike.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::FdFlags;
use serde_json::json;

use crate::child::{self, Child, Failure};
use crate::cpu::CpuSet;
use crate::names::names;
use crate::part::Part;
use crate::progress::{Listener, Outcome, Progress};
use crate::record::Record;

mod side;
mod transport;

pub use side::{SideError, Task, keep_busy, run as run_side};
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

    /// Where the first, and where the second process may run, of the CPUs given.
    pub(crate) fn of(self, cpus: &CpuSet) -> [CpuSet; 2] {
        match self {
            Placement::TwoCores | Placement::Asleep => [cpus.first(), cpus.last()],
            Placement::OneCore => [cpus.first(), cpus.first()],
            Placement::Oversubscribed => [cpus.clone(), cpus.clone()],
        }
    }
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    /// This program, which is run again for each side.
    pub program: PathBuf,
    /// The command line, for the record.
    pub command: String,
    /// Round trips or a stream.
    pub scenario: Scenario,
    /// What to compare; those that do not take part at a point are left out there.
    pub transports: Vec<Transport>,
    /// Bytes of a message.
    pub sizes: Vec<usize>,
    /// Where the processes run.
    pub placements: Vec<Placement>,
    /// The CPUs of both: two, or one if both processes are to share it.
    pub cpus: CpuSet,
    /// Length of one measurement; a warm-up of a quarter goes before it.
    pub window: Duration,
    /// Measurements of each transport at each point.
    pub rounds: u32,
    /// Whether each byte is checked; the figures are then of the checking, too.
    pub verify: bool,
}

/// One place on the axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// Where the processes run.
    pub placement: Placement,
    /// Bytes of a message.
    pub bytes: usize,
}

/// Why a run cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A busy process cannot be started.
    #[error("cannot start processes beside those to measure")]
    Crowd(#[source] io::Error),
    /// The caller cannot take a record.
    #[error(transparent)]
    Report(io::Error),
}

impl Plan {
    /// All points, in the order in which they are measured.
    pub fn points(&self) -> Vec<Point> {
        let of = |&placement: &Placement| self.sizes.iter().map(move |&bytes| Point { placement, bytes });
        self.placements.iter().flat_map(of).collect()
    }

    /// The transports that are measured at a point.
    pub fn at(&self, point: Point) -> Vec<Transport> {
        let takes_part = |transport: &Transport| {
            transport.takes_part_in(self.scenario)
                && transport.can_be_placed(point.placement)
                && transport.carries(point.bytes)
        };
        self.transports.iter().copied().filter(takes_part).collect()
    }

    /// How many measurements a complete run makes.
    pub fn measurements(&self) -> usize {
        let each = self.points().into_iter().map(|point| self.at(point).len()).sum::<usize>();
        each * self.rounds as usize
    }

    fn warm_up(&self) -> Duration {
        (self.window / 4).max(Duration::from_millis(20))
    }
}

/// Runs the plan until it is complete or `stop` is set.
pub fn run(plan: &Plan, stop: &AtomicBool, report: &mut Listener<'_>) -> Result<Outcome, RunError> {
    let mut tell = |progress: Progress<'_>| report(progress).map_err(RunError::Report);
    tell(Progress::Record(&header(plan)))?;
    let mut absent = Vec::new();
    for round in 1..=plan.rounds {
        for point in plan.points() {
            let transports = plan.at(point);
            let _crowd = crowd(plan, point, transports.len()).map_err(RunError::Crowd)?;
            for turn in 0..transports.len() {
                if stop.load(Ordering::Relaxed) {
                    return Ok(Outcome::Stopped);
                }
                let transport = transports[(turn + round as usize - 1) % transports.len()];
                if !absent.contains(&(transport, point)) {
                    let what = format!("{transport}, {}, {} B", point.placement.name(), point.bytes);
                    tell(Progress::Measuring(what))?;
                    match measure(plan, transport, point, stop) {
                        Ok(figures) => {
                            tell(Progress::Record(&record(transport, point, round, &figures)))?;
                        }
                        Err(Failure::Stopped) => return Ok(Outcome::Stopped),
                        Err(Failure::Because(reason)) => {
                            absent.push((transport, point));
                            let Point { placement, bytes } = point;
                            let place =
                                json!({ "transport": transport, "bytes": bytes, "placement": placement });
                            tell(Progress::Record(&Record::absent(place, &reason)))?;
                        }
                    }
                }
                tell(Progress::Done)?;
            }
        }
    }
    Ok(Outcome::Complete)
}

/// Those who want the CPUs, too, for as long as this point is measured.
fn crowd(plan: &Plan, point: Point, measurements: usize) -> io::Result<Option<Crowd>> {
    if point.placement != Placement::Oversubscribed {
        return Ok(None);
    }
    let time = (plan.warm_up() + plan.window + PATIENCE) * (measurements as u32 + 1);
    Crowd::start(&plan.program, &plan.cpus, time).map(Some)
}

fn measure(plan: &Plan, transport: Transport, point: Point, stop: &AtomicBool) -> Result<Figures, Failure> {
    let ends = transport.pair().map_err(|error| format!("cannot be connected: {error}"))?;
    let mut task = Task {
        scenario: plan.scenario,
        transport,
        side: Side::First,
        bytes: point.bytes,
        cpus: plan.cpus.clone(),
        warm_up: plan.warm_up(),
        window: plan.window,
        paced: point.placement == Placement::Asleep,
        verify: plan.verify,
        peer: None,
    };
    let mut start = |side, cpus, descriptors: Vec<OwnedFd>, peer| {
        (task.side, task.cpus, task.peer) = (side, cpus, peer);
        for descriptor in &descriptors {
            rustix::io::fcntl_setfd(descriptor, FdFlags::empty()).map_err(io::Error::from)?; // to inherit
        }
        let descriptors = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        Child::start(&mut Part::Side { task: task.clone(), descriptors }.command(&plan.program))
    };
    let ([first_cpus, second_cpus], [first, second]) = (point.placement.of(&plan.cpus), ends);
    let mut first = start(Side::First, first_cpus, first, None)?;
    let mut second = start(Side::Second, second_cpus, second, Some(first.id()))?;
    wait(plan, &mut first, &mut second, stop)?;
    let printed = second.stdout.take().map(child::text).unwrap_or_default();
    // What still runs has nothing to say, and is ended.
    serde_json::from_str(&printed).map_err(|_| {
        let ended = [first, second]
            .into_iter()
            .filter_map(|mut side| side.try_wait().ok()?.and_then(|_| side.complaint()));
        match ended.collect::<Vec<_>>() {
            words if words.is_empty() => "a process ended without a word".to_owned().into(),
            words => words.join("; ").into(),
        }
    })
}

/// Waits until the side that measures has ended, and the other one, too, if it did not see to that.
fn wait(plan: &Plan, first: &mut Child, second: &mut Child, stop: &AtomicBool) -> Result<(), Failure> {
    let expected = Instant::now() + plan.warm_up() + plan.window;
    let mut patience = expected + PATIENCE;
    let mut alone = false;
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(Failure::Stopped);
        }
        if second.try_wait()?.is_some() {
            return Ok(());
        }
        let now = Instant::now();
        if !alone && first.try_wait()?.is_some() {
            alone = true;
            patience = patience.min(now + GRACE); // it notices by itself, or never
        }
        if now >= patience {
            return match alone {
                true => Ok(()),
                false => Err(Failure::Because(format!(
                    "not done {} s after its time; others may use the CPUs, or choose more --seconds",
                    PATIENCE.as_secs()
                ))),
            };
        }
        let left = expected.saturating_duration_since(now);
        thread::sleep(left.clamp(Duration::from_millis(2), Duration::from_millis(50)));
    }
}

/// Processes that want each of some CPUs all the time; dropping it ends them.
pub(crate) struct Crowd {
    _busy: Vec<Child>,
}

impl Crowd {
    /// Starts four for each CPU.
    pub(crate) fn start(program: &Path, cpus: &CpuSet, time: Duration) -> io::Result<Self> {
        let cpus = cpus.as_slice().iter().flat_map(|&cpu| std::iter::repeat_n(cpu, BUSY_PER_CPU));
        let start = |cpu| Child::start(&mut Part::Busy { cpu, time }.command(program));
        Ok(Self { _busy: cpus.map(start).collect::<io::Result<_>>()? })
    }
}

fn record(transport: Transport, point: Point, round: u32, figures: &Figures) -> Record {
    let messages = figures.messages as f64;
    let common = json!({
        "transport": transport,
        "bytes": point.bytes,
        "placement": point.placement,
        "round": round,
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

fn header(plan: &Plan) -> Record {
    let fields = json!({
        "scenario": plan.scenario,
        "cpus": plan.cpus.as_slice(),
        "seconds": plan.window.as_secs_f64(),
        "rounds": plan.rounds,
        // Of each round trip one reading is taken off.
        "clock_ns": side::clock_reading().as_nanos() as f64,
        "verify": plan.verify,
    });
    Record::header(&plan.command, fields)
}

/// With the two measured ones on two CPUs: five processes on each.
const BUSY_PER_CPU: usize = 4;

/// How much longer than its time a measurement may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long one side may go on without the other.
const GRACE: Duration = Duration::from_secs(2);
