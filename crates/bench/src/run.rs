//! The run of a benchmark: rounds in which what is compared takes turns, and their progress.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::record::Record;
use crate::{Reason, with_causes};

/// A benchmark, as its options describe it.
pub trait Scenario {
    /// How many measurements so many rounds make, once it is sure that they can be made here.
    ///
    /// # Errors
    ///
    /// Options that cannot be used: [`Unusable`]. Nothing was measured.
    fn prepare(&mut self, rounds: u32) -> Result<usize, Reason>;

    /// Measures everything, in rounds.
    ///
    /// # Errors
    ///
    /// The run was stopped, or cannot go on.
    fn run(&self, run: &mut Run<'_>) -> Result<(), RunError>;

    /// Whether the records of a complete run are what was asked for.
    fn is_success(&self, records: &[Record]) -> bool {
        records.iter().any(Record::is_measurement)
    }
}

/// Options that are well-formed, yet cannot be used on this machine or together: why, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unusable(pub String);

/// What a run reports to its caller.
#[derive(Debug)]
pub enum Progress<'run> {
    /// The next measurement begins: this one.
    Measuring(String),
    /// Something to keep.
    Record(&'run Record),
    /// A measurement is done, or cannot be made.
    Done,
}

/// Takes the progress of a run; an error ends the run.
pub type Listener<'run> = dyn FnMut(Progress<'_>) -> io::Result<()> + 'run;

/// Why a run ended before everything was measured. What was measured before has been handed out.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The caller asked for it.
    #[error("stopped")]
    Stopped,
    /// The caller cannot take a record.
    #[error(transparent)]
    Report(io::Error),
    /// Nothing can be measured, whatever the subject.
    #[error("{0}")]
    Lacks(&'static str, #[source] Reason),
}

impl RunError {
    /// What is lacking, before its cause; an end of the run stays what it is.
    pub(crate) fn lacks<E: Into<Reason>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |cause| match Into::<Reason>::into(cause).downcast::<Self>() {
            Ok(end) => *end,
            Err(cause) => Self::Lacks(what, cause),
        }
    }
}

/// A run at work.
pub struct Run<'run> {
    pub(crate) rounds: u32,
    pub(crate) stop: &'run AtomicBool,
    listener: &'run mut Listener<'run>,
    /// Places at which nothing can be measured.
    absent: Vec<Value>,
}

impl<'run> Run<'run> {
    /// A run of so many rounds, which ends early once `stop` is set.
    pub fn new(rounds: u32, stop: &'run AtomicBool, listener: &'run mut Listener<'run>) -> Self {
        Self { rounds, stop, listener, absent: Vec::new() }
    }

    pub(crate) fn record(&mut self, record: &Record) -> Result<(), RunError> {
        self.tell(Progress::Record(record))
    }

    /// The first record, with these fields.
    pub(crate) fn header(&mut self, fields: Value) -> Result<(), RunError> {
        self.record(&Record::header(fields).with(json!({ "rounds": self.rounds })))
    }

    /// Measures, and reports it, unless nothing could be measured at this place before. A [`RunError`] ends the
    /// run; any other error is why the place is absent.
    pub(crate) fn measure(
        &mut self,
        round: u32,
        what: String,
        place: Value,
        measure: impl FnOnce() -> Result<Record, Reason>,
    ) -> Result<Option<Record>, RunError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(RunError::Stopped);
        }
        let mut measured = None;
        if !self.absent.contains(&place) {
            self.tell(Progress::Measuring(what))?;
            match measure() {
                Ok(record) => {
                    let record = record.with(json!({ "round": round }));
                    self.record(&record)?;
                    measured = Some(record);
                }
                Err(error) => {
                    let reason = with_causes(&*error);
                    if let Ok(end) = error.downcast::<RunError>() {
                        return Err(*end);
                    }
                    self.record(&Record::absent(&place, &reason))?;
                    self.absent.push(place);
                }
            }
        }
        self.tell(Progress::Done)?;
        Ok(measured)
    }

    pub(crate) fn tell(&mut self, progress: Progress<'_>) -> Result<(), RunError> {
        (self.listener)(progress).map_err(RunError::Report)
    }
}

/// Sleeps until then, unless the run is to stop.
pub(crate) fn pause(end: Instant, stop: &AtomicBool) -> Result<(), RunError> {
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(RunError::Stopped);
        }
        match end.saturating_duration_since(Instant::now()) {
            Duration::ZERO => return Ok(()),
            left => thread::sleep(left.min(STEP)),
        }
    }
}

/// How soon a run that is to stop does.
const STEP: Duration = Duration::from_millis(50);

/// What is compared, in the order of a round, which is counted from 1. Each round begins with another one, and has
/// another one come after each, so that a slow minute of the machine falls on all of them alike: one that lends its
/// CPUs out is slower for seconds after a measurement that kept all busy.
pub(crate) fn in_turn<T: Copy>(all: &[T], round: u32) -> impl Iterator<Item = T> {
    let (count, round) = (all.len(), round as usize - 1);
    let steps: Vec<usize> = (1..=count).filter(|step| is_coprime(*step, count)).collect();
    (0..count).map(move |turn| all[(round + turn * steps[round % steps.len()]) % count])
}

fn is_coprime(a: usize, b: usize) -> bool {
    if b == 0 { a == 1 } else { is_coprime(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_comes_after_each_other_one() {
        let order = |count: usize, round| in_turn(&(0..count).collect::<Vec<_>>(), round).collect::<Vec<_>>();
        let rounds: Vec<Vec<usize>> = (1..=4).map(|round| order(5, round)).collect();
        let mut followers: Vec<_> = rounds.iter().flat_map(|round| round.windows(2)).collect();
        followers.sort();
        followers.dedup();
        assert_eq!(followers.len(), 16, "{rounds:?}");
        assert!((0..4).all(|round| rounds[round][0] == round), "{rounds:?}");
        for count in 0..=6 {
            let mut all = order(count, 7);
            all.sort_unstable();
            assert_eq!(all, (0..count).collect::<Vec<_>>());
        }
    }
}
