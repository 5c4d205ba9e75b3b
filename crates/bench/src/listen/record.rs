//! What a run leaves behind: one JSON object per line.

use serde::{Deserialize, Serialize};

use super::load::Outcome;
use super::server::Counts;
use super::{Case, Program, Variant};
use crate::record::Origin;

/// One line of a result file; `record` says which kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub enum Record {
    /// The first line: where and how the run was made.
    Header(Header),
    /// One variant of a server in one case and round.
    Measurement(Measurement),
    /// A variant that is not measured from here on.
    Absent(Absent),
}

/// Where and how a run was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The program, the machine and the kernel.
    #[serde(flatten)]
    pub origin: Origin,
    /// Always `listen`.
    pub scenario: String,
    /// Length of each load, seconds.
    pub seconds: f64,
    /// Measurements of everything.
    pub rounds: u32,
}

/// One variant of a server in one case and round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// What happened to the server.
    pub case: Case,
    /// The server.
    pub program: Program,
    /// How it shared its listener.
    pub variant: Variant,
    /// Counted from 1.
    pub round: u32,
    /// What the load came to.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// What each worker accepted; empty where the server does not report it.
    pub workers: Vec<Counts>,
}

/// A variant that is not measured from here on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Absent {
    /// What was to happen to the server.
    pub case: Case,
    /// The server.
    pub program: Program,
    /// The variant.
    pub variant: Variant,
    /// Why.
    pub reason: String,
}
