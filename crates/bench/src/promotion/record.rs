//! What a run leaves behind: one JSON object per line.

use serde::{Deserialize, Serialize};

use super::Figure;
use crate::record::Origin;

/// One line of a result file; `record` says which kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub enum Record {
    /// The first line: where and how the run was made.
    Header(Header),
    /// What promotions cost, in one round.
    Cost(Cost),
    /// What other traffic has beside promotions, in one round.
    Load(Load),
    /// A round trip beside idle connections, in one round.
    Idle(Idle),
    /// Memory of connections, in one round.
    Memory(Memory),
    /// A figure that was asked for and is not measured from here on.
    Absent(Absent),
}

/// Where and how a run was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The program, the machine and the kernel.
    #[serde(flatten)]
    pub origin: Origin,
    /// Always `promotion`.
    pub scenario: String,
    /// CPUs of the two processes; the monitor may run on any.
    pub cpus: Vec<usize>,
    /// Length of each measurement of traffic, seconds.
    pub seconds: f64,
    /// Measurements of each figure.
    pub rounds: u32,
}

/// CPU time of promotions, from the offer to the switch, microseconds, kernel and user.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Counted from 1.
    pub round: u32,
    /// How many were measured, of each kind.
    pub promotions: usize,
    /// One after the other, median of the first side: from before the connection is given to the
    /// channel until it is promoted, with the sleeps between.
    pub first_cpu_us: f64,
    /// The same of the second side.
    pub second_cpu_us: f64,
    /// The same of the monitor, for both sides together; the mean.
    pub monitor_cpu_us: f64,
    /// Many under way at once, mean of the first side.
    pub batch_first_cpu_us: f64,
    /// The same of the second side.
    pub batch_second_cpu_us: f64,
    /// The same of the monitor, for both sides together.
    pub batch_monitor_cpu_us: f64,
    /// What giving the connection to a channel costs that promotes none, median of the first side;
    /// part of the above.
    pub unpromoted_first_cpu_us: f64,
    /// The same of the second side.
    pub unpromoted_second_cpu_us: f64,
    /// Promotions in a second, many under way at once.
    pub promotions_per_s: f64,
}

/// Traffic of one promoted connection, alone and while others are promoted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Counted from 1.
    pub round: u32,
    /// Connections offered in a second by each side.
    pub promotions_per_s: u32,
    /// Round trips in a second while nothing else happens; several are under way at once.
    pub alone_messages_per_s: f64,
    /// The same while connections are promoted.
    pub beside_messages_per_s: f64,
    /// The latter over the former.
    pub ratio: f64,
}

/// Round trips of one promoted connection, one at a time, nanoseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Idle {
    /// Counted from 1.
    pub round: u32,
    /// Promoted connections beside it on which nothing happens.
    pub connections: usize,
    /// Median without them.
    pub alone_rtt_ns_p50: f64,
    /// 99th percentile without them.
    pub alone_rtt_ns_p99: f64,
    /// Median right after they were promoted.
    pub fresh_rtt_ns_p50: f64,
    /// 99th percentile right after they were promoted.
    pub fresh_rtt_ns_p99: f64,
    /// Median when both processes have had a pause since.
    pub beside_rtt_ns_p50: f64,
    /// 99th percentile when both processes have had a pause since.
    pub beside_rtt_ns_p99: f64,
    /// `beside_rtt_ns_p50` over `alone_rtt_ns_p50`.
    pub ratio: f64,
}

/// Bytes for each connection, of proportional set sizes (Pss_Anon and Pss_Shmem in
/// `/proc/PID/smaps_rollup`), in which memory shared by several processes is divided among them.
/// Kernel memory is not in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Counted from 1.
    pub round: u32,
    /// Over how many connections.
    pub connections: usize,
    /// Promoted, before the first message.
    pub idle: Bytes,
    /// Promoted, after some small messages on each.
    pub used: Bytes,
    /// Not promoted, before the first message.
    pub unpromoted_idle: Bytes,
    /// Not promoted, after some small messages on each.
    pub unpromoted_used: Bytes,
    /// Of all three processes, promoted less not promoted, before the first message.
    pub idle_bytes: f64,
    /// The same after the messages. With fewer than some hundred connections their share of a channel's pools, whose
    /// pages fill as messages come, is more than they are themselves; it may be below 0 then.
    pub used_bytes: f64,
}

/// Bytes of each process for each connection.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Bytes {
    /// The side that answers.
    pub first: f64,
    /// The side that asks.
    pub second: f64,
    /// The monitor.
    pub monitor: f64,
}

impl Bytes {
    /// Of all three.
    pub fn sum(&self) -> f64 {
        self.first + self.second + self.monitor
    }
}

/// A figure that cannot be measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Absent {
    /// Which.
    pub figure: Figure,
    /// Why, in the words of the process that failed.
    pub reason: String,
}
