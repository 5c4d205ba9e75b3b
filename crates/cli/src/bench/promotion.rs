//! `megapipe bench promotion`: what it costs to move connections to shared memory.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use ::bench::cpu::CpuSet;
use ::bench::promotion::record::Record;
use ::bench::promotion::{self, Figure, Plan, Progress, Task};
use ::bench::rpc::Outcome;
use ::bench::with_causes;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::{
    Extent, INTERRUPTED, JsonLines, Unusable, check_cpus, print, progress_bar, stop_on_signal, whole,
};

#[derive(Args)]
pub(super) struct Promotion {
    /// What to measure: cost (CPU time of a promotion), load (throughput of other traffic meanwhile),
    /// idle (round trips beside idle promoted connections), memory [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = figure_parser())]
    figures: Vec<Figure>,
    /// Promotions whose cost is measured, one at a time and again many at once
    #[arg(long, value_name = "COUNT", default_value = "1000", value_parser = whole(1..=5_000))]
    promotions: u32,
    /// Promotions per second beside other traffic; together with --seconds at most 10000
    #[arg(long, value_name = "NUMBER", default_value = "1000", value_parser = whole(1..=10_000))]
    rate: u32,
    /// Idle promoted connections, up to 10000
    #[arg(long, value_name = "COUNT", default_value = "1000", value_parser = whole(1..=10_000))]
    connections: u32,
    /// The CPUs of the two processes, such as 0,1, or one for both; the monitor runs on any
    /// [default: the first and the last CPU]
    #[arg(long, value_name = "CPUS")]
    cpus: Option<CpuSet>,
    #[command(flatten)]
    extent: Extent,
    /// Write one JSON object per line: a header, then a record per figure and round
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// One of the two processes, as its controller starts it.
#[derive(Args)]
pub(super) struct Side {
    #[arg(long)]
    cpus: CpuSet,
    #[arg(long)]
    port: Option<u16>,
    #[arg(long)]
    monitor: Option<PathBuf>,
    #[arg(long)]
    no_spin: bool,
}

impl Side {
    pub(super) fn run(self) -> ExitCode {
        let Side { cpus, port, monitor, no_spin } = self;
        match promotion::run_side(&Task { cpus, port, monitor, no_spin }) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{}", with_causes(&error)); // the controller says whose words these are
                ExitCode::FAILURE
            }
        }
    }
}

impl Promotion {
    pub(super) fn run(self) -> Result<ExitCode, Box<dyn Error>> {
        let plan = match self.plan(&CpuSet::allowed()?) {
            Ok(plan) => plan,
            Err(unusable) => {
                eprintln!("megapipe bench: {unusable}");
                return Ok(ExitCode::from(2));
            }
        };
        let mut json = self.json.map(JsonLines::create).transpose()?;
        let stop = stop_on_signal()?;
        let bar = progress_bar(plan.measurements());
        let mut records = Vec::new();
        let ended = promotion::run(&plan, &stop, &mut |progress| {
            match progress {
                Progress::Measuring(figure) => bar.set_message(figure.name()),
                Progress::Done => bar.inc(1),
                Progress::Record(record) => {
                    records.push(record.clone());
                    if let Some(json) = &mut json {
                        json.write(record)?;
                    }
                }
            }
            Ok(())
        });
        bar.finish_and_clear();
        let printed = print(&promotion::table::render(&records));
        let outcome = ended?;
        printed?;
        let absent = records.iter().any(|record| matches!(record, Record::Absent(_)));
        if outcome == Outcome::Stopped {
            let other = |record: &&Record| !matches!(record, Record::Header(_) | Record::Absent(_));
            let measured = records.iter().filter(other).count();
            eprintln!("stopped: {measured} of {} measurements kept", plan.measurements());
            return Ok(ExitCode::from(INTERRUPTED));
        }
        // The table has said why a figure is absent.
        Ok(if absent { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    fn plan(&self, allowed: &CpuSet) -> Result<Plan, Unusable> {
        let cpus = self.cpus.clone().unwrap_or_else(|| allowed.ends());
        if cpus.len() > 2 {
            return Err(Unusable::TooManyCpus { given: cpus });
        }
        check_cpus("--cpus", &cpus, allowed)?;
        let figures = if self.figures.is_empty() { Figure::ALL.to_vec() } else { self.figures.clone() };
        if figures.contains(&Figure::Load)
            && f64::from(self.rate) * self.extent.seconds.as_secs_f64() > MOST_CONNECTIONS
        {
            return Err(Unusable::TooManyPromotions { rate: self.rate, seconds: self.extent.seconds });
        }
        Ok(Plan {
            program: PathBuf::from("/proc/self/exe"),
            command: std::env::args().collect::<Vec<_>>().join(" "),
            figures,
            cpus,
            promotions: self.promotions as usize,
            rate: self.rate,
            connections: self.connections as usize,
            window: self.extent.seconds,
            rounds: self.extent.rounds,
        })
    }
}

fn figure_parser() -> impl TypedValueParser<Value = Figure> {
    PossibleValuesParser::new(Figure::ALL.iter().map(|figure| figure.name()))
        .map(|name| Figure::from_name(&name).expect("the parser admits figure names only"))
}

/// Of each side at once.
const MOST_CONNECTIONS: f64 = 10_000.0;
