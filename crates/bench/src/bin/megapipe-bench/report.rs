//! What becomes of a run: records in a file, a table and a plot.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bench::Reason;
use bench::record;
use bench::run::{Run, RunError, Scenario};
use bench::{options, plot, table};
use clap::Args;

use super::INTERRUPTED;

/// What to measure, how often, and what to leave of it.
#[derive(Args)]
pub(super) struct Measure<S: Args> {
    #[command(flatten)]
    pub(super) scenario: S,
    /// Measurements of everything that is compared, in turn; Ctrl-C ends the run and keeps those that were made
    #[arg(long, value_name = "COUNT", default_value = "5", value_parser = options::whole(1..=1_000_000_u32))]
    rounds: u32,
    /// Write one JSON object per line: a header, then a record per measurement
    #[arg(long, value_name = "FILE", value_parser = json_file)]
    json: Option<PathBuf>,
}

/// Show the records of an earlier run, which --json wrote
#[derive(Args)]
pub(super) struct Show {
    /// One JSON object per line; any version's
    file: PathBuf,
    /// Draw the medians
    #[arg(long, value_name = "FILE.svg", value_parser = svg_file)]
    plot: Option<PathBuf>,
}

impl<S: Args + Scenario> Measure<S> {
    /// Runs the scenario, if its records can be written, and shows what was measured, however the run ended.
    pub(super) fn run(mut self) -> Result<bool, Reason> {
        let measurements = self.scenario.prepare(self.rounds)?;
        if measurements == 0 {
            return Err(
                "nothing to measure: no two of these options go together; --help has the defaults".into()
            );
        }
        let stop = stop_on_signal()?;
        let mut run = Run::new(self.rounds, measurements, self.json.as_deref(), &stop)?;
        let ended = self.scenario.run(&mut run);
        let records = run.records;
        let printed = print(&table::render(&records));
        match ended {
            Err(RunError::Stopped) => {
                let measured = records.iter().filter(|record| record.is_measurement()).count();
                eprintln!("stopped: {measured} of {measurements} measurements kept");
                Err(RunError::Stopped.into())
            }
            ended => {
                ended?;
                printed?;
                Ok(self.scenario.is_success(&records))
            }
        }
    }
}

impl Show {
    pub(super) fn run(self) -> Result<bool, Reason> {
        let records = record::read(&self.file)?;
        if let Some(file) = &self.plot {
            plot::draw(&records, file)?;
        }
        let table = table::render(&records);
        if table.trim().is_empty() {
            return Err(format!("{}: it has no measurement to show", self.file.display()).into());
        }
        print(&table)?;
        Ok(true)
    }
}

/// Prints to standard output, whose reader may have gone (`| head`): that is no error.
fn print(text: &str) -> Result<(), Reason> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(format!(
            "cannot print the table to standard output; records are safe with --json FILE: {error}"
        )
        .into()),
        _ => Ok(()),
    }
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

fn svg_file(name: &str) -> Result<PathBuf, &'static str> {
    match PathBuf::from(name) {
        file if file.extension().is_some_and(|suffix| suffix.eq_ignore_ascii_case("svg")) => Ok(file),
        _ => Err("the plot is written as SVG; name a file that ends in .svg"),
    }
}

fn json_file(name: &str) -> Result<PathBuf, &'static str> {
    match name {
        "-" => Err("standard output has the table; name a file (./- is a file too)"),
        _ => Ok(PathBuf::from(name)),
    }
}
