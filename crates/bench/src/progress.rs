//! What the run of a benchmark tells its caller, and how it ends.

use std::io;

use crate::record::Record;

/// What a run tells its caller as it goes.
#[derive(Debug)]
pub enum Progress<'run> {
    /// The next measurement begins: this one.
    Measuring(String),
    /// Something to keep.
    Record(&'run Record),
    /// A measurement is done, or cannot be made.
    Done,
}

/// Hears of a run; that it cannot take a record ends the run.
pub type Listener<'run> = dyn FnMut(Progress<'_>) -> io::Result<()> + 'run;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Everything was measured.
    Complete,
    /// The caller asked it to stop; what was measured before has been handed out.
    Stopped,
}
