//! What becomes of a benchmark's run: a bar while it goes on, records in a file, a table and a plot.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bench::plot::{self, PlotError};
use bench::{Outcome, Progress};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::INTERRUPTED;

/// A run, as its user hears of it.
pub(super) struct Report<R> {
    measurements: usize,
    bar: ProgressBar,
    json: Option<JsonLines>,
    plot: Option<PathBuf>,
    records: Vec<R>,
    stop: Arc<AtomicBool>,
}

/// What a benchmark makes of its records.
pub(super) struct View<R> {
    pub(super) table: fn(&[R]) -> String,
    pub(super) plot: Option<Draw<R>>,
    pub(super) is_measurement: fn(&R) -> bool,
}

type Draw<R> = fn(&[R], &Path) -> Result<(), PlotError>;

/// Ctrl-C came before everything was measured.
#[derive(Debug, thiserror::Error)]
#[error("stopped: {measured} of {measurements} measurements kept")]
pub(super) struct Stopped {
    measured: usize,
    measurements: usize,
}

impl<R: Clone + Serialize> Report<R> {
    /// Begins, if the files that were asked for can be written.
    pub(super) fn begin(
        measurements: usize,
        json: Option<PathBuf>,
        plot: Option<PathBuf>,
    ) -> Result<Self, Box<dyn Error>> {
        if let Some(file) = &plot {
            plot::check(file)?;
        }
        let json = json.map(JsonLines::create).transpose()?;
        let stop = stop_on_signal()?;
        Ok(Self { measurements, bar: progress_bar(measurements), json, plot, records: Vec::new(), stop })
    }

    /// Set when the run is to stop.
    pub(super) fn stop(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }

    pub(super) fn hear(&mut self, progress: Progress<'_, R>) -> io::Result<()> {
        match progress {
            Progress::Measuring(what) => self.bar.set_message(what),
            Progress::Done => self.bar.inc(1),
            Progress::Record(record) => {
                self.records.push(record.clone());
                if let Some(json) = &mut self.json {
                    json.write(record)?;
                }
            }
        }
        Ok(())
    }

    /// Shows what was measured, however the run ended, and gives it back if the run is complete.
    pub(super) fn end<E: Error + 'static>(
        self,
        ended: Result<Outcome, E>,
        view: &View<R>,
    ) -> Result<Vec<R>, Box<dyn Error>> {
        self.bar.finish_and_clear();
        let printed = print(&(view.table)(&self.records));
        let outcome = ended?;
        printed?;
        let measured = self.records.iter().filter(|record| (view.is_measurement)(record)).count();
        if let (Some(file), Some(draw)) = (&self.plot, view.plot)
            && measured > 0
        {
            draw(&self.records, file)?;
        }
        match outcome {
            Outcome::Complete => Ok(self.records),
            Outcome::Stopped => Err(Stopped { measured, measurements: self.measurements }.into()),
        }
    }
}

/// Shows the records of an earlier run as if they came now.
pub(super) fn show<R: DeserializeOwned>(
    file: &Path,
    plot: Option<&Path>,
    view: &View<R>,
    wanted: impl Fn(&R) -> bool,
) -> Result<(), Box<dyn Error>> {
    let unreadable = |source| RecordsError { path: file.to_owned(), source };
    let text = std::fs::read_to_string(file).map_err(unreadable)?;
    let records = text.lines().map(serde_json::from_str).collect::<Result<Vec<R>, _>>();
    let mut records = records.map_err(|error| unreadable(error.into()))?;
    records.retain(wanted);
    if let (Some(file), Some(draw)) = (plot, view.plot) {
        draw(&records, file)?;
    }
    Ok(print(&(view.table)(&records))?)
}

#[derive(Debug, thiserror::Error)]
#[error("--from: cannot read {}; name a file that --json wrote", path.display())]
struct RecordsError {
    path: PathBuf,
    source: io::Error,
}

/// Prints to standard output, whose reader may have gone (`| head`): that is no error.
fn print(text: &str) -> Result<(), PrintError> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(PrintError(error)),
        _ => Ok(()),
    }
}

#[derive(Debug, thiserror::Error)]
#[error("cannot print the table to standard output; records are safe with --json FILE")]
struct PrintError(#[source] io::Error);

/// Records in a file, each written through at once so that none is lost.
struct JsonLines {
    path: PathBuf,
    file: BufWriter<File>,
}

impl JsonLines {
    fn create(path: PathBuf) -> Result<Self, JsonError> {
        match File::create(&path) {
            Ok(file) => Ok(Self { path, file: BufWriter::new(file) }),
            Err(source) => Err(JsonError { path, source }),
        }
    }

    fn write(&mut self, record: &impl Serialize) -> io::Result<()> {
        let written = serde_json::to_writer(&mut self.file, record)
            .map_err(io::Error::from)
            .and_then(|()| self.file.write_all(b"\n"))
            .and_then(|()| self.file.flush());
        written.map_err(|source| io::Error::other(JsonError { path: self.path.clone(), source }))
    }
}

#[derive(Debug, thiserror::Error)]
#[error("--json: cannot write {}; name a file on a disk with room, in a folder that exists", path.display())]
struct JsonError {
    path: PathBuf,
    source: io::Error,
}

/// Set by the first SIGINT or SIGTERM; a second one ends the process at once.
fn stop_on_signal() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        let second = stop.clone();
        signal_hook::flag::register_conditional_shutdown(signal, INTERRUPTED.into(), second)?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    Ok(stop)
}

fn progress_bar(count: usize) -> ProgressBar {
    let bar = ProgressBar::new(count as u64);
    let style = "{bar:30} {pos}/{len} {elapsed}/{duration} {msg}";
    bar.set_style(ProgressStyle::with_template(style).expect("the template is well-formed"));
    bar
}
