//! What a run leaves behind: one JSON object per line.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::app::{App, Case, Operation, Pacing, Transport};
use crate::pair::Placement;
use crate::record::Origin;

/// One line of a result file; `record` says which kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub enum Record {
    /// The first line: where and how the run was made.
    Header(Header),
    /// One server over one transport in one round.
    App(Measurement),
    /// What the library costs a program that it does nothing for, in one round.
    Overhead(Overhead),
    /// A server that was asked for and is not measured, or no longer.
    Absent(Absent),
}

/// Where and how a run was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The program, the machine and the kernel.
    #[serde(flatten)]
    pub origin: Origin,
    /// CPUs of the servers and of the clients.
    pub cpus: Vec<usize>,
    /// Length of each measurement, seconds.
    pub seconds: f64,
    /// Measurements of each transport in each case.
    pub rounds: u32,
    /// The programs that are measured, by the words with which each tells its version.
    pub versions: BTreeMap<String, String>,
}

/// One server over one transport in one round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The server.
    pub app: App,
    /// The program that asks it; `megapipe` is this one.
    pub client: String,
    /// What carried the bytes.
    pub transport: Transport,
    /// Concurrent connections.
    pub connections: u32,
    /// Where the programs ran.
    pub placement: Placement,
    /// What the client did.
    pub operation: Operation,
    /// When it sent.
    #[serde(default)]
    pub pacing: Pacing,
    /// Requests per second that were due; null in a closed loop.
    pub rate: Option<f64>,
    /// Counted from 1.
    pub round: u32,
    /// Requests or transactions per second, by the client.
    pub requests_per_s: f64,
    /// Median time of a request, by the client, microseconds; null where the client has none. In an open
    /// loop it counts from when the request was due. Of a pipeline it is the time of all its requests.
    /// Its resolution is the client's: eight microseconds of redis-benchmark, one of wrk and pgbench.
    pub p50_us: Option<f64>,
    /// 99th percentile of the same.
    pub p99_us: Option<f64>,
    /// 99.9th percentile of the same; null where there are fewer than a thousand times.
    pub p999_us: Option<f64>,
    /// CPU time of the server's processes while the client ran, its connections' beginning and end
    /// included, over the requests, nanoseconds.
    pub server_cpu_ns_per_request: f64,
    /// CPU time of the client from its start to its end over the requests, nanoseconds; of a client in
    /// Python without its start, which imports modules.
    pub client_cpu_ns_per_request: f64,
    /// Connections that the client's library says were promoted; null without the library.
    pub promoted: Option<u64>,
    /// Connections that the server's library says were promoted: a proxy has some on its other side, too.
    pub server_promoted: Option<u64>,
}

/// What is measured of the library alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cost {
    /// read(2) of a byte of /dev/zero.
    Read,
    /// write(2) of a byte to /dev/null.
    Write,
    /// A run of true(1), from its start to its end.
    StartUp,
}

impl Cost {
    /// All, in the order of tables.
    pub const ALL: &[Cost] = &[Cost::Read, Cost::Write, Cost::StartUp];

    /// For readers.
    pub fn name(self) -> &'static str {
        match self {
            Cost::Read => "read of another descriptor",
            Cost::Write => "write to another descriptor",
            Cost::StartUp => "start and end of true",
        }
    }

    /// The most that the library may add, nanoseconds.
    pub fn asked_ns(self) -> f64 {
        match self {
            Cost::Read | Cost::Write => 5.0,
            Cost::StartUp => 5e6,
        }
    }
}

/// What the library costs a program that it does nothing for, in one round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Overhead {
    /// What was done.
    pub cost: Cost,
    /// Whether the library was there.
    pub preloaded: bool,
    /// Counted from 1.
    pub round: u32,
    /// Median time of one, nanoseconds.
    pub ns: f64,
}

/// What cannot be measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Absent {
    /// The server.
    pub app: App,
    /// The operation, the connections, the placement and the transport that failed; null if it is
    /// the server altogether.
    pub case: Option<String>,
    /// Why.
    pub reason: String,
}

impl Measurement {
    /// Where it stands.
    pub fn case(&self) -> Case {
        Case {
            app: self.app,
            operation: self.operation,
            connections: self.connections,
            placement: self.placement,
            pacing: self.pacing,
        }
    }
}
