//! What a run leaves behind: one JSON object per line.

use serde::{Deserialize, Serialize};

use super::transport::Transport;
use super::{Placement, Scenario};
use crate::record::Origin;

/// One line of a result file; `record` says which kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub enum Record {
    /// The first line: where and how the run was made.
    Header(Header),
    /// Round trips of one transport at one point in one round.
    Pingpong(Pingpong),
    /// A stream over one transport at one point in one round.
    Stream(Stream),
    /// A transport that was asked for and has no measurements at a point from here on.
    Absent(Absent),
}

/// Where and how a run was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The program, the machine and the kernel.
    #[serde(flatten)]
    pub origin: Origin,
    /// What was measured.
    pub scenario: Scenario,
    /// CPUs of the two processes.
    pub cpus: Vec<usize>,
    /// Length of each measurement, seconds.
    pub seconds: f64,
    /// Measurements of each transport at each point.
    pub rounds: u32,
    /// Bytes of the shared buffer of `memcpy`; null for round trips.
    pub ring_bytes: Option<usize>,
    /// What one reading of the clock takes, nanoseconds. Each round trip contains one, which is
    /// taken off: add it to have the times as they were read.
    pub clock_ns: f64,
    /// Whether each byte was made and checked, which all figures then contain.
    pub verify: bool,
}

/// Round trips of one transport at one point in one round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pingpong {
    /// What carried the bytes.
    pub transport: Transport,
    /// Bytes of a message: as many there as back.
    pub bytes: usize,
    /// Where the two processes ran.
    pub placement: Placement,
    /// Counted from 1.
    pub round: u32,
    /// Median time from the call that sends to the return of the call that receives, nanoseconds.
    pub rtt_ns_p50: f64,
    /// 99th percentile of the same.
    pub rtt_ns_p99: f64,
    /// 99.9th percentile of the same.
    pub rtt_ns_p999: f64,
    /// CPU time of both processes together, kernel and user, over the messages in both directions
    /// (two in a round trip), nanoseconds.
    pub cpu_ns_per_message: f64,
    /// How many were measured.
    pub round_trips: u64,
    /// Share of the time in which a process was ready to run while something else had its CPU, 0 to
    /// 1, the mean of both; null where the kernel does not tell. With a CPU for each process, figures
    /// above a few percent are disturbed.
    pub waited: Option<f64>,
}

/// A stream over one transport at one point in one round. Each side has one buffer for its messages,
/// which stays in its caches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stream {
    /// What carried the bytes.
    pub transport: Transport,
    /// Bytes of a message. Sender and receiver call once for each.
    pub bytes: usize,
    /// Where the two processes ran.
    pub placement: Placement,
    /// Counted from 1.
    pub round: u32,
    /// Messages received per second.
    pub messages_per_s: f64,
    /// Bytes received per second.
    pub bytes_per_s: f64,
    /// CPU time of both processes together, kernel and user, over the messages received,
    /// nanoseconds.
    pub cpu_ns_per_message: f64,
    /// As of [`Pingpong::waited`].
    pub waited: Option<f64>,
}

/// A transport that cannot be measured at a point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Absent {
    /// The transport.
    pub transport: Transport,
    /// Bytes of a message.
    pub bytes: usize,
    /// Where the processes ran.
    pub placement: Placement,
    /// Why, in the words of the process that failed.
    pub reason: String,
}
