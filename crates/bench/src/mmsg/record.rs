//! What a run leaves behind: one JSON object per line.

use serde::{Deserialize, Serialize};

use super::{Call, Traffic};
use crate::record::Origin;

/// One line of a result file; `record` says which kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub enum Record {
    /// The first line: where and how the run was made.
    Header(Header),
    /// One call at one number of ready sockets, in one round.
    Measurement(Measurement),
    /// A call that is not measured from here on.
    Absent(Absent),
}

/// Where and how a run was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The program, the machine and the kernel.
    #[serde(flatten)]
    pub origin: Origin,
    /// Always `mmsg`.
    pub scenario: String,
    /// CPUs of the server and of the load.
    pub cpus: Vec<usize>,
    /// Bytes of a message.
    pub size: usize,
    /// Microseconds between two messages of a socket, at least.
    pub gap_us: f64,
    /// Measurements of everything that is compared.
    pub rounds: u32,
}

/// One call at one number of ready sockets, in one round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// What the server calls.
    pub call: Call,
    /// What goes over which sockets.
    pub traffic: Traffic,
    /// Sockets of the server.
    pub sockets: usize,
    /// How many have a message when the server looks.
    pub ready: usize,
    /// Counted from 1.
    pub round: u32,
    /// Messages that came, or were sent.
    pub packets: u64,
    /// Messages that were sent to the server and never came.
    pub lost: u64,
    /// System calls to receive (or to send); those to wait count apart where there are such.
    pub receive_calls: u64,
    /// System calls to wait.
    pub wait_calls: u64,
    /// Time of the server from looking for messages until it has the last one.
    pub cpu_ns_per_packet: f64,
    /// Median time from the end of a burst's sending until the server has the message.
    pub p50_us: f64,
    /// The 99th percentile of the same.
    pub p99_us: f64,
}

/// A call that is not measured from here on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Absent {
    /// The call.
    pub call: Call,
    /// The traffic.
    pub traffic: Traffic,
    /// Why.
    pub reason: String,
}
