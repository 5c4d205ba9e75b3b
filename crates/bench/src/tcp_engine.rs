//! The user-level TCP without a device: what a segment costs, alone and among a million connections, and
//! what idle connections take.
//!
//! Clients exist by arithmetic (`clients.rs`): their packets are made before the clock is read, in memory,
//! and take no part in what is measured. smoltcp does the same work with the same packets.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use packet::Checksum;
use serde::{Deserialize, Serialize};

use crate::cpu::{self, CpuSet};
use crate::progress::{Listener, Outcome, Progress};
use crate::record::Origin;

mod clients;
mod idle;
pub mod record;
mod segments;
mod smol;
mod subject;
pub mod table;
mod threads;

pub use idle::{IDLE_VERB, IdleError, Resident, hold};

use record::{Absent, Flows, Header, Idle, Record, Segment, Threads};
use segments::Bench;
use smol::Smoltcp;
use subject::Tcp;

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    /// A segment and its acknowledgement on one connection, ours and smoltcp's.
    Segment,
    /// The same among many connections, in bursts.
    Flows,
    /// One thread and two, which share nothing.
    Threads,
    /// Memory of idle connections of a channel.
    Idle,
}

impl Figure {
    /// All.
    pub const ALL: &[Figure] = &[Figure::Segment, Figure::Flows, Figure::Threads, Figure::Idle];

    /// The name users write and records carry.
    pub fn name(self) -> &'static str {
        match self {
            Figure::Segment => "segment",
            Figure::Flows => "flows",
            Figure::Threads => "threads",
            Figure::Idle => "idle",
        }
    }
}

/// Who sums TCP segments. IP headers are summed by the TCP in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Checksums {
    /// The device, in both directions.
    Device,
    /// The TCP.
    Software,
}

impl Checksums {
    /// All.
    pub const ALL: &[Checksums] = &[Checksums::Device, Checksums::Software];

    /// The name users write and records carry.
    pub fn name(self) -> &'static str {
        match self {
            Checksums::Device => "device",
            Checksums::Software => "software",
        }
    }

    fn state(self) -> Checksum {
        match self {
            Checksums::Device => Checksum::Verified,
            Checksums::Software => Checksum::Complete,
        }
    }
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    /// This program, which is run again as the process with idle connections.
    pub program: PathBuf,
    /// The command line, for the record.
    pub command: String,
    /// Which figures.
    pub figures: Vec<Figure>,
    /// Bytes of a segment.
    pub payloads: Vec<usize>,
    /// Who sums TCP segments, for [`Figure::Segment`].
    pub checksums: Vec<Checksums>,
    /// Connections of [`Figure::Flows`].
    pub flows: u32,
    /// Segments that come at once there.
    pub burst: usize,
    /// Connections of [`Figure::Idle`].
    pub connections: u32,
    /// The CPUs that are used, one for each thread.
    pub cpus: CpuSet,
    /// CPU time of each measurement, at least.
    pub window: Duration,
    /// Measurements of everything.
    pub rounds: u32,
}

/// Why a run cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// This process cannot have its CPU.
    #[error("cannot run on the CPU that was asked for")]
    Prepare(#[source] std::io::Error),
    /// The caller cannot take a record.
    #[error(transparent)]
    Report(std::io::Error),
}

impl Plan {
    /// How many measurements a complete run makes.
    pub fn measurements(&self) -> usize {
        let of = |figure| match figure {
            Figure::Segment => self.payloads.len() * self.checksums.len(),
            Figure::Flows | Figure::Threads | Figure::Idle => 1,
        };
        self.rounds as usize * self.figures.iter().map(|&figure| of(figure)).sum::<usize>()
    }
}

/// Runs the plan until it is complete or `stop` is set.
pub fn run(plan: &Plan, stop: &AtomicBool, report: &mut Listener<'_, Record>) -> Result<Outcome, RunError> {
    let mut tell = |progress: Progress<'_, Record>| report(progress).map_err(RunError::Report);
    tell(Progress::Record(&Record::Header(header(plan))))?;
    cpu::pin(plan.cpus.first().as_slice()).map_err(RunError::Prepare)?;
    let mut absent = Vec::new();
    for round in 1..=plan.rounds {
        for &figure in &plan.figures {
            for case in cases(plan, figure) {
                if stop.load(Ordering::Relaxed) {
                    return Ok(Outcome::Stopped);
                }
                tell(Progress::Measuring(case.name()))?;
                if !absent.contains(&figure) {
                    let record = case.measure(plan, round).unwrap_or_else(|reason| {
                        absent.push(figure);
                        Record::Absent(Absent { figure, reason })
                    });
                    tell(Progress::Record(&record))?;
                }
                tell(Progress::Done)?;
            }
        }
    }
    Ok(Outcome::Complete)
}

/// One measurement of a round.
enum Case {
    Segment(usize, Checksums),
    Flows,
    Threads,
    Idle,
}

fn cases(plan: &Plan, figure: Figure) -> Vec<Case> {
    match figure {
        Figure::Segment => {
            let of = |&payload| plan.checksums.iter().map(move |&sums| Case::Segment(payload, sums));
            plan.payloads.iter().flat_map(of).collect()
        }
        Figure::Flows => vec![Case::Flows],
        Figure::Threads => vec![Case::Threads],
        Figure::Idle => vec![Case::Idle],
    }
}

impl Case {
    fn name(&self) -> String {
        match self {
            Case::Segment(payload, checksums) => {
                format!("segments of {payload} B, checksums: {}", checksums.name())
            }
            Case::Flows => "many connections".to_owned(),
            Case::Threads => "one thread and two".to_owned(),
            Case::Idle => "idle connections".to_owned(),
        }
    }

    fn measure(&self, plan: &Plan, round: u32) -> Result<Record, String> {
        match *self {
            Case::Segment(payload, checksums) => {
                segment(plan, round, payload, checksums).map(Record::Segment)
            }
            Case::Flows => flows(plan, round).map(Record::Flows),
            Case::Threads => threads(plan, round).map(Record::Threads),
            Case::Idle => idle(plan, round).map(Record::Idle),
        }
    }
}

/// Ours and smoltcp's, each first in every other round.
fn segment(plan: &Plan, round: u32, payload: usize, checksums: Checksums) -> Result<Segment, String> {
    let state = checksums.state();
    let mut ours = Bench::open(Tcp::new(1, state), 1, payload, state, 1)?;
    let mut theirs = Bench::open(Smoltcp::new(state), 1, payload, state, 1)?;
    let (tcp_ns, smoltcp_ns) =
        alternate(round, || ours.measure(plan.window), || theirs.measure(plan.window))?;
    Ok(Segment { round, payload, checksums, tcp_ns, smoltcp_ns, ratio: tcp_ns / smoltcp_ns })
}

/// All connections and a few, each first in every other round; and one.
fn flows(plan: &Plan, round: u32) -> Result<Flows, String> {
    let Plan { burst, window, .. } = *plan;
    let payload = plan.payloads[0];
    let state = Checksums::Device.state();
    let open = |flows: u32, burst| Bench::open(Tcp::new(flows, state), flows, payload, state, burst);
    let mut few = open((burst as u32).next_power_of_two(), burst)?;
    let mut all = open(plan.flows.next_power_of_two(), burst)?;
    let single_ns = open(1, 1)?.measure(window)?;
    let (hot_ns, random_ns) = alternate(round, || few.measure(window), || all.measure(window))?;
    let flows = plan.flows.next_power_of_two();
    Ok(Flows { round, payload, flows, burst, single_ns, hot_ns, random_ns, ratio: random_ns / hot_ns })
}

/// One thread and two, each first in every other round.
fn threads(plan: &Plan, round: u32) -> Result<Threads, String> {
    let cpus = plan.cpus.as_slice();
    if cpus.len() < 2 {
        return Err("it takes two CPUs".to_owned());
    }
    let measure = |count| threads::measure(&cpus[..count], plan.window);
    let (one, two) = alternate(round, || measure(1), || measure(2))?;
    Ok(Threads {
        round,
        one_per_s: one.per_s,
        two_per_s: two.per_s,
        ratio: two.per_s / one.per_s,
        cpu_ratio: two.per_cpu_s / one.per_cpu_s,
    })
}

fn idle(plan: &Plan, round: u32) -> Result<Idle, String> {
    let connections = plan.connections;
    let resident = idle::measure(&plan.program, connections)?;
    let each = |bytes: u64| bytes as f64 / f64::from(connections);
    let grown = resident.idle.saturating_sub(resident.before);
    let (grown_each, whole_each) = (each(grown), each(resident.idle));
    Ok(Idle { round, connections, resident, grown_each, whole_each })
}

/// Two measurements, the first one first in odd rounds.
fn alternate<T, E>(
    round: u32,
    first: impl FnOnce() -> Result<T, E>,
    second: impl FnOnce() -> Result<T, E>,
) -> Result<(T, T), E> {
    if round.is_multiple_of(2) {
        let second = second()?;
        Ok((first()?, second))
    } else {
        Ok((first()?, second()?))
    }
}

fn header(plan: &Plan) -> Header {
    Header {
        origin: Origin::of_this_machine(plan.command.clone()),
        scenario: "tcp-engine".to_owned(),
        cpus: plan.cpus.as_slice().to_vec(),
        seconds: plan.window.as_secs_f64(),
        rounds: plan.rounds,
    }
}
