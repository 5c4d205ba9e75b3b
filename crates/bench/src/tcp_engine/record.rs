//! What a run leaves behind: one JSON object per line.

use serde::{Deserialize, Serialize};

use super::idle::Resident;
use super::{Checksums, Figure};
use crate::record::Origin;

/// One line of a result file; `record` says which kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub enum Record {
    /// The first line: where and how the run was made.
    Header(Header),
    /// One connection of ours and one of smoltcp's.
    Segment(Segment),
    /// Many connections, and a few.
    Flows(Flows),
    /// One thread and two.
    Threads(Threads),
    /// Idle connections of a channel.
    Idle(Idle),
    /// A figure that could not be measured.
    Absent(Absent),
}

/// Where and how a run was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The program, the machine and the kernel.
    #[serde(flatten)]
    pub origin: Origin,
    /// Always `tcp-engine`.
    pub scenario: String,
    /// CPUs that were used.
    pub cpus: Vec<usize>,
    /// CPU time of each measurement at least, seconds.
    pub seconds: f64,
    /// Measurements of everything.
    pub rounds: u32,
}

/// A segment that arrives, is read and is acknowledged: nanoseconds of CPU on one connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Segment {
    /// Counted from 1.
    pub round: u32,
    /// Bytes of a segment.
    pub payload: usize,
    /// Who sums TCP segments.
    pub checksums: Checksums,
    /// Ours.
    pub tcp_ns: f64,
    /// smoltcp's.
    pub smoltcp_ns: f64,
    /// Ours over smoltcp's.
    pub ratio: f64,
}

/// The same in bursts: nanoseconds of CPU a segment with many connections, each of which has its turn
/// once in a pass without pattern, and with as many as a burst has segments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Flows {
    /// Counted from 1.
    pub round: u32,
    /// Bytes of a segment.
    pub payload: usize,
    /// Connections.
    pub flows: u32,
    /// Segments that come at once.
    pub burst: usize,
    /// With one connection and one segment at a time.
    pub single_ns: f64,
    /// With as many connections as a burst has segments.
    pub hot_ns: f64,
    /// With all connections.
    pub random_ns: f64,
    /// All over the few.
    pub ratio: f64,
}

/// Transactions of 64 B between two hosts over a link in memory: by one thread, and by two on two CPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Threads {
    /// Counted from 1.
    pub round: u32,
    /// Transactions a second of one thread.
    pub one_per_s: f64,
    /// Of two.
    pub two_per_s: f64,
    /// Two over one.
    pub ratio: f64,
    /// The same for transactions in a second of CPU time, summed over the threads: without what other
    /// processes took from either.
    pub cpu_ratio: f64,
}

/// Resident memory of a process with idle connections, each of which was used once and has its read pending.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Idle {
    /// Counted from 1.
    pub round: u32,
    /// Connections.
    pub connections: u32,
    /// Bytes of the process.
    #[serde(flatten)]
    pub resident: Resident,
    /// All that the process has more than before it listened, for each connection.
    pub grown_each: f64,
    /// All that the process has, for each connection.
    pub whole_each: f64,
}

/// A figure that could not be measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Absent {
    /// Which.
    pub figure: Figure,
    /// Why.
    pub reason: String,
}
