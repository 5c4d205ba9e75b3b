//! The run of a benchmark: rounds in which what is compared takes turns, and their progress.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
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

/// Why a run ended before everything was measured. What was measured before has been handed out.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The caller asked for it.
    #[error("stopped")]
    Stopped,
    /// A record cannot be written.
    #[error("--json: cannot write {0}; name a file on a disk with room, in a folder that exists")]
    Write(String, #[source] io::Error),
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
    /// What was measured so far.
    pub records: Vec<Record>,
    /// Where the records go, too, a line each.
    json: Option<(String, File)>,
    /// Places at which nothing can be measured.
    absent: Vec<Value>,
    measurements: usize,
    done: usize,
    began: Instant,
}

impl<'run> Run<'run> {
    /// A run of so many rounds and measurements, which ends early once `stop` is set. Its records go to a file, too.
    ///
    /// # Errors
    ///
    /// There can be no such file.
    pub fn new(
        rounds: u32,
        measurements: usize,
        json: Option<&Path>,
        stop: &'run AtomicBool,
    ) -> Result<Self, RunError> {
        let create = |path: &Path| {
            let name = path.display().to_string();
            File::create(path).map(|file| (name.clone(), file)).map_err(|error| RunError::Write(name, error))
        };
        let json = json.map(create).transpose()?;
        let (records, absent) = (Vec::new(), Vec::new());
        Ok(Self { rounds, stop, records, json, absent, measurements, done: 0, began: Instant::now() })
    }

    pub(crate) fn record(&mut self, record: Record) -> Result<(), RunError> {
        if let Some((name, file)) = &mut self.json {
            let line = serde_json::to_string(&record).map_err(io::Error::from);
            let written = line.and_then(|line| file.write_all((line + "\n").as_bytes()));
            written.map_err(|error| RunError::Write(name.clone(), error))?;
        }
        self.records.push(record);
        Ok(())
    }

    /// Shows at a terminal which measurement begins, in place of the last one.
    pub(crate) fn begin(&self, what: &str) {
        let Self { done, measurements, .. } = self;
        let seconds = self.began.elapsed().as_secs();
        let all = seconds * *measurements as u64 / (*done).max(1) as u64;
        show(&format!("{done} of {measurements}, {seconds} of {all} s: {what}"));
    }

    /// A measurement is done, or cannot be made.
    pub(crate) fn done(&mut self) {
        self.done += 1;
        show("");
    }

    /// The first record, with these fields.
    pub(crate) fn header(&mut self, fields: Value) -> Result<(), RunError> {
        self.record(Record::header(fields).with(json!({ "rounds": self.rounds })))
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
            self.begin(&what);
            match measure() {
                Ok(record) => {
                    let record = record.with(json!({ "round": round }));
                    self.record(record.clone())?;
                    measured = Some(record);
                }
                Err(error) => {
                    let reason = with_causes(&*error);
                    if let Ok(end) = error.downcast::<RunError>() {
                        return Err(*end);
                    }
                    self.record(Record::absent(&place, &reason))?;
                    self.absent.push(place);
                }
            }
        }
        self.done();
        Ok(measured)
    }
}

fn show(line: &str) {
    if io::stderr().is_terminal() {
        eprint!("\r\x1b[K{line}");
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
