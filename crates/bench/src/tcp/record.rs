//! What a run leaves behind: one JSON object per line.

use serde::{Deserialize, Serialize};

use super::{Row, Side};
use crate::record::Origin;

/// One line of a result file; `record` says which kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub enum Record {
    /// The first line: where and how the run was made.
    Header(Header),
    /// One server under one load, in one round.
    Measurement(Measurement),
    /// How two stacks share the connections of one device, in one round.
    Share(Share),
    /// A server that is not measured under this load from here on.
    Absent(Absent),
}

/// Where and how a run was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The program, the machine and the kernel.
    #[serde(flatten)]
    pub origin: Origin,
    /// Always `tcp`.
    pub scenario: String,
    /// CPUs of the server and of the client, where each has one.
    pub cpus: Vec<usize>,
    /// What the kernel's TCP controls congestion by.
    pub congestion_control: String,
    /// Length of each measurement, seconds.
    pub seconds: f64,
    /// Measurements of everything that is compared.
    pub rounds: u32,
}

/// One server under one load, in one round. A unit is a connection, a transaction, or in bulk a MiB.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The load.
    pub row: Row,
    /// The server.
    pub side: Side,
    /// Counted from 1.
    pub round: u32,
    /// Units a second.
    pub rate: f64,
    /// CPU time of the server process for a unit, nanoseconds. The kernel's work on packets that the
    /// process sends is part of it, that of its peer's TCP, too.
    pub server_cpu_ns: f64,
    /// The same of the client's threads.
    pub client_cpu_ns: f64,
    /// Time for a unit in which the server's CPUs were not idle, other programs included, nanoseconds.
    pub server_busy_ns: f64,
    /// The same of the CPUs of server and client.
    pub both_busy_ns: f64,
    /// Packets that the stack took for each time that its engine waited; null of other servers.
    pub packets_per_wait: Option<f64>,
    /// System calls of the channel for a unit; null of other servers.
    pub calls: Option<f64>,
    /// Connections that failed.
    pub failures: u64,
}

/// How two stacks share the connections of one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// Counted from 1.
    pub round: u32,
    /// Connections that each accepted.
    pub accepted: Vec<u64>,
    /// Segments that came to the stack that does not have their connection, also after the silence.
    pub unowned: u64,
    /// Seconds for which no connection sent anything.
    pub silence: f64,
}

/// A server that cannot be measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Absent {
    /// The load.
    pub row: Row,
    /// The server.
    pub side: Side,
    /// Why, in its own words.
    pub reason: String,
}
