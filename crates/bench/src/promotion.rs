//! What it costs to move connections of two processes to shared memory, and what it costs to have
//! them there.
//!
//! Three children of the controller take part: a monitor, and two sides with a channel each, which
//! make their connections over TCP and give them to their channels. For each figure in each round
//! they are started anew.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::child::{self, Failure};
use crate::cpu::CpuSet;
use crate::progress::{Listener, Outcome, Progress};
use crate::record::Origin;

mod process;
pub mod record;
mod side;
pub mod table;

pub use side::{SideError, Task, run as run_side};

use process::{Purpose, Trio};
use record::{Absent, Bytes, Cost, Header, Idle, Load, Memory, Record};
use side::{Course, Order, Report};

/// The hidden verb under which the program is one of the two processes.
pub const SIDE_VERB: &str = "promotion-side";

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    /// CPU time of a promotion, and how many go in a second.
    Cost,
    /// Throughput of other traffic while connections are promoted.
    Load,
    /// Round trips beside idle promoted connections.
    Idle,
    /// Memory of promoted connections.
    Memory,
}

impl Figure {
    /// All, in the order in which they are measured.
    pub const ALL: &[Figure] = &[Figure::Cost, Figure::Load, Figure::Idle, Figure::Memory];

    /// The name users write and records carry.
    pub fn name(self) -> &'static str {
        match self {
            Figure::Cost => "cost",
            Figure::Load => "load",
            Figure::Idle => "idle",
            Figure::Memory => "memory",
        }
    }
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    /// This program, which is run again for each side.
    pub program: PathBuf,
    /// `megapipe`, which is the monitor.
    pub megapipe: PathBuf,
    /// The command line, for the record.
    pub command: String,
    /// Which figures.
    pub figures: Vec<Figure>,
    /// The CPUs of the two sides: two, or one for both.
    pub cpus: CpuSet,
    /// Promotions whose cost is measured.
    pub promotions: usize,
    /// Connections promoted in a second beside other traffic.
    pub rate: u32,
    /// Idle connections.
    pub connections: usize,
    /// Length of one measurement of traffic; a warm-up of a quarter goes before the first.
    pub window: Duration,
    /// Measurements of each figure.
    pub rounds: u32,
}

/// Why a run cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The limit of open files cannot be raised to the hard one.
    #[error("cannot raise the limit of open files (RLIMIT_NOFILE)")]
    Descriptors(#[source] io::Error),
    /// The caller cannot take a record.
    #[error(transparent)]
    Report(io::Error),
}

impl Plan {
    /// How many measurements a complete run makes.
    pub fn measurements(&self) -> usize {
        self.figures.len() * self.rounds as usize
    }
}

/// Runs the plan until it is complete or `stop` is set.
pub fn run(plan: &Plan, stop: &AtomicBool, report: &mut Listener<'_, Record>) -> Result<Outcome, RunError> {
    let mut tell = |progress: Progress<'_, Record>| report(progress).map_err(RunError::Report);
    let descriptors = child::raise_descriptor_limit().map_err(RunError::Descriptors)?;
    tell(Progress::Record(&Record::Header(header(plan))))?;
    let mut absent = Vec::new();
    for round in 1..=plan.rounds {
        for &figure in &plan.figures {
            if stop.load(Ordering::Relaxed) {
                return Ok(Outcome::Stopped);
            }
            if !absent.contains(&figure) {
                tell(Progress::Measuring(figure.name().to_owned()))?;
                match (Stage { plan, round, stop, descriptors }).measure(figure) {
                    Ok(record) => tell(Progress::Record(&record))?,
                    Err(Failure::Stopped) => return Ok(Outcome::Stopped),
                    Err(Failure::Because(reason)) => {
                        absent.push(figure);
                        tell(Progress::Record(&Record::Absent(Absent { figure, reason })))?;
                    }
                }
            }
            tell(Progress::Done)?;
        }
    }
    Ok(Outcome::Complete)
}

/// One measurement.
struct Stage<'run> {
    plan: &'run Plan,
    round: u32,
    stop: &'run AtomicBool,
    descriptors: u64,
}

/// What giving connections to the channels cost: microseconds of CPU and seconds.
struct Given {
    p50: [f64; 2],
    mean: [f64; 2],
    monitor: f64,
    seconds: f64,
}

/// What a window of questions brought.
struct Asked {
    messages_per_s: f64,
    rtt_ns: [f64; 2],
}

impl<'run> Stage<'run> {
    fn measure(&self, figure: Figure) -> Result<Record, Failure> {
        let plan = self.plan;
        let connections = match figure {
            Figure::Cost => 2 * plan.promotions,
            Figure::Load => (f64::from(plan.rate) * plan.window.as_secs_f64()) as usize + 3 * SLICES as usize,
            Figure::Idle | Figure::Memory => plan.connections,
        };
        let (needed, descriptors) = (connections + OTHER_DESCRIPTORS, self.descriptors);
        if needed as u64 > descriptors {
            return Err(Failure::Because(format!(
                "it takes {needed} descriptors in each process, and the hard limit (RLIMIT_NOFILE) is {descriptors}; \
                 raise that, or measure fewer connections"
            )));
        }
        match figure {
            Figure::Cost => self.cost().map(Record::Cost),
            Figure::Load => self.load().map(Record::Load),
            Figure::Idle => self.idle().map(Record::Idle),
            Figure::Memory => self.memory().map(Record::Memory),
        }
    }

    fn start(&self, purpose: Purpose) -> Result<Trio<'run>, Failure> {
        Trio::start([&self.plan.megapipe, &self.plan.program], &self.plan.cpus, purpose, self.stop)
    }

    fn cost(&self) -> Result<Cost, Failure> {
        let promotions = self.plan.promotions;
        let one_by_one = Course { count: promotions, most_waiting: 1, per_second: None };
        let at_once = Course { most_waiting: MOST_WAITING, ..one_by_one };
        let mut trio = self.start(Purpose { promotes: true, no_spin: true })?;
        // What happens once, such as the pages of the other loop.
        give(&mut trio, Course { count: WARM_UP, ..at_once })?;
        let single = give(&mut trio, one_by_one)?;
        let batch = give(&mut trio, at_once)?;
        drop(trio);
        let mut trio = self.start(Purpose { promotes: false, no_spin: true })?;
        give(&mut trio, Course { count: WARM_UP, ..at_once })?;
        let unpromoted = give(&mut trio, one_by_one)?;
        Ok(Cost {
            round: self.round,
            promotions,
            first_cpu_us: single.p50[0],
            second_cpu_us: single.p50[1],
            monitor_cpu_us: single.monitor,
            batch_first_cpu_us: batch.mean[0],
            batch_second_cpu_us: batch.mean[1],
            batch_monitor_cpu_us: batch.monitor,
            unpromoted_first_cpu_us: unpromoted.p50[0],
            unpromoted_second_cpu_us: unpromoted.p50[1],
            promotions_per_s: promotions as f64 / batch.seconds,
        })
    }

    fn load(&self) -> Result<Load, Failure> {
        let window = self.plan.window / SLICES;
        let seconds = window.as_secs_f64();
        let rate = f64::from(self.plan.rate);
        let count = (rate * seconds).ceil() as usize;
        let promoting = Course { count, most_waiting: MOST_WAITING, per_second: Some(rate) };
        // One at the very end, so that both sides do the same in both windows but for promotions.
        let quiet = Course { count: 1, most_waiting: 1, per_second: Some(1.0 / seconds) };
        let mut trio = self.start(PROMOTES)?;
        give(&mut trio, ONE)?;
        connect(&mut trio, (count + 1) * SLICES as usize)?;
        self.ask(&mut trio, self.plan.window.as_secs_f64() / 4.0, UNDER_WAY)?;
        // In turns, so that a slow moment of the machine falls on both alike.
        let mut rates = [0.0; 2];
        for slice in 0..SLICES {
            let mut turns = [(0, quiet), (1, promoting)];
            if (slice + self.round).is_multiple_of(2) {
                turns.reverse();
            }
            for (which, course) in turns {
                let ask = Order::Ask { seconds, under_way: UNDER_WAY, meanwhile: Some(course) };
                let [_, asked] = trio.both([Order::Promote(course), ask], 2 * window)?;
                rates[which] += asked_of(&trio, asked)?.messages_per_s / f64::from(SLICES);
            }
        }
        let [alone_messages_per_s, beside_messages_per_s] = rates;
        Ok(Load {
            round: self.round,
            promotions_per_s: self.plan.rate,
            alone_messages_per_s,
            beside_messages_per_s,
            ratio: beside_messages_per_s / alone_messages_per_s,
        })
    }

    fn idle(&self) -> Result<Idle, Failure> {
        let seconds = self.plan.window.as_secs_f64();
        let connections = self.plan.connections;
        let mut trio = self.start(PROMOTES)?;
        give(&mut trio, ONE)?;
        self.ask(&mut trio, seconds / 4.0, 1)?;
        let [alone_rtt_ns_p50, alone_rtt_ns_p99] = self.ask(&mut trio, seconds, 1)?.rtt_ns;
        give(&mut trio, Course { count: connections, most_waiting: MOST_WAITING, per_second: None })?;
        let [fresh_rtt_ns_p50, fresh_rtt_ns_p99] = self.ask(&mut trio, seconds, 1)?.rtt_ns;
        trio.pause(PAUSE)?;
        let [beside_rtt_ns_p50, beside_rtt_ns_p99] = self.ask(&mut trio, seconds, 1)?.rtt_ns;
        Ok(Idle {
            round: self.round,
            connections,
            alone_rtt_ns_p50,
            alone_rtt_ns_p99,
            fresh_rtt_ns_p50,
            fresh_rtt_ns_p99,
            beside_rtt_ns_p50,
            beside_rtt_ns_p99,
            ratio: beside_rtt_ns_p50 / alone_rtt_ns_p50,
        })
    }

    fn memory(&self) -> Result<Memory, Failure> {
        let [idle, used] = self.memory_of(PROMOTES)?;
        let [unpromoted_idle, unpromoted_used] =
            self.memory_of(Purpose { promotes: false, no_spin: false })?;
        Ok(Memory {
            round: self.round,
            connections: self.plan.connections,
            idle,
            used,
            unpromoted_idle,
            unpromoted_used,
            idle_bytes: idle.sum() - unpromoted_idle.sum(),
            used_bytes: used.sum() - unpromoted_used.sum(),
        })
    }

    /// For each connection, before and after messages on it.
    fn memory_of(&self, purpose: Purpose) -> Result<[Bytes; 2], Failure> {
        let connections = self.plan.connections;
        let each = |before: Bytes, after: Bytes| Bytes {
            first: (after.first - before.first) / connections as f64,
            second: (after.second - before.second) / connections as f64,
            monitor: (after.monitor - before.monitor) / connections as f64,
        };
        let mut trio = self.start(purpose)?;
        give(&mut trio, ONE)?;
        self.ask(&mut trio, WARM_SECONDS, 1)?;
        let before = trio.memory()?;
        give(&mut trio, Course { count: connections, most_waiting: MOST_WAITING, per_second: None })?;
        trio.pause(PAUSE)?;
        let idle = trio.memory()?;
        let asked = trio.second(Order::AskAll(QUESTIONS), self.allowance())?;
        let Report::AskedAll = asked else { return Err(trio.sides[1].astray()) };
        trio.pause(PAUSE)?;
        Ok([each(before, idle), each(before, trio.memory()?)])
    }

    fn ask(&self, trio: &mut Trio<'_>, seconds: f64, under_way: usize) -> Result<Asked, Failure> {
        let order = Order::Ask { seconds, under_way, meanwhile: None };
        let asked = trio.second(order, Duration::from_secs_f64(seconds))?;
        asked_of(trio, asked)
    }

    /// For something that happens on each connection.
    fn allowance(&self) -> Duration {
        Duration::from_millis(10) * self.plan.connections as u32
    }
}

fn asked_of(trio: &Trio<'_>, report: Report) -> Result<Asked, Failure> {
    match report {
        Report::Asked { messages, seconds, rtt_ns_p50, rtt_ns_p99 } if messages > 0 => {
            Ok(Asked { messages_per_s: messages as f64 / seconds, rtt_ns: [rtt_ns_p50, rtt_ns_p99] })
        }
        _ => Err(trio.sides[1].astray()),
    }
}

fn connect(trio: &mut Trio<'_>, count: usize) -> Result<(), Failure> {
    match trio.both([Order::Connect(count); 2], Duration::from_millis(1) * count as u32)? {
        [Report::Connected, Report::Connected] => Ok(()),
        _ => Err(trio.sides[0].astray()),
    }
}

/// Makes connections, then gives them to the channels.
fn give(trio: &mut Trio<'_>, course: Course) -> Result<Given, Failure> {
    connect(trio, course.count)?;
    let monitor = trio.monitor_cpu()?;
    let reports = trio.both([Order::Promote(course); 2], Duration::ZERO)?;
    let monitor = trio.monitor_cpu()? - monitor;
    let mut given = Given {
        p50: [0.0; 2],
        mean: [0.0; 2],
        monitor: monitor.as_secs_f64() * 1e6 / course.count as f64,
        seconds: 0.0,
    };
    for (place, report) in reports.into_iter().enumerate() {
        let Report::Promoted { seconds, cpu_us_p50, cpu_us_mean } = report else {
            return Err(trio.sides[place].astray());
        };
        (given.p50[place], given.mean[place]) = (cpu_us_p50, cpu_us_mean);
        given.seconds = given.seconds.max(seconds);
    }
    Ok(given)
}

fn header(plan: &Plan) -> Header {
    Header {
        origin: Origin::of_this_machine(plan.command.clone()),
        scenario: "promotion".to_owned(),
        cpus: plan.cpus.as_slice().to_vec(),
        seconds: plan.window.as_secs_f64(),
        rounds: plan.rounds,
    }
}

const PROMOTES: Purpose = Purpose { promotes: true, no_spin: false };

/// The connection that traffic is on.
const ONE: Course = Course { count: 1, most_waiting: 1, per_second: None };

/// Offers under way at once: fewer than a socket to the monitor holds.
const MOST_WAITING: usize = 64;

/// Promotions before those that are measured.
const WARM_UP: usize = 64;

/// Of a side besides its connections: the channel's, the monitor's, and those on their way.
const OTHER_DESCRIPTORS: usize = 256;

/// Parts of a window, between which parts of the other one lie.
const SLICES: u32 = 10;

/// Questions under way where throughput is measured.
const UNDER_WAY: usize = 16;

/// Questions on each connection whose memory is measured.
const QUESTIONS: usize = 10;

/// More sleeps of each side than a connection needs to grow cold.
const PAUSE: Duration = side::REST.saturating_mul(10);

/// Of traffic before memory is measured.
const WARM_SECONDS: f64 = 0.1;
