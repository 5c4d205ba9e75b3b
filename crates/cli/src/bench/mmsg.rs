//! `megapipe bench mmsg`: many sockets with a small message each.

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use ::bench::cpu::CpuSet;
use ::bench::mmsg::record::Record;
use ::bench::mmsg::{self, Call, Plan, Progress, Task, Traffic, plot, table};
use ::bench::rpc::Outcome;
use ::bench::with_causes;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::{
    INTERRUPTED, JsonLines, Unusable, check_cpus, json_file, print, progress_bar, stop_on_signal, svg_file,
    whole,
};

#[derive(Args)]
pub(super) struct Mmsg {
    /// Calls to compare [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = call_parser())]
    calls: Vec<Call>,
    /// What goes over the sockets: udp, tcp, udp-send (the server sends) [default: udp]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = traffic_parser())]
    traffic: Vec<Traffic>,
    /// Sockets of the server, up to 10000
    #[arg(long, value_name = "COUNT", default_value = "512", value_parser = whole(1..=10_000))]
    sockets: u32,
    /// Messages on each socket; the proposal has 10000
    #[arg(long, value_name = "COUNT", default_value = "1000", value_parser = whole(1..=1_000_000))]
    messages: u32,
    /// Sockets that have a message whenever the server looks, up to --sockets
    #[arg(long, value_delimiter = ',', value_name = "COUNTS", default_value = "1,8,30,64,256")]
    #[arg(value_parser = whole(1..=10_000))]
    ready: Vec<u32>,
    /// Bytes of a message, up to 2048
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = whole(1..=2048))]
    size: u32,
    /// Microseconds between two messages of a socket, at least
    #[arg(long, value_name = "MICROSECONDS", default_value = "1000", value_parser = whole(0..=1_000_000))]
    gap: u32,
    /// The CPUs of the server and of the load, such as 0,1 [default: the first and the last CPU]
    #[arg(long, value_name = "CPUS")]
    cpus: Option<CpuSet>,
    /// Measurements of everything that is compared, in turn
    #[arg(long, value_name = "COUNT", default_value = "5", value_parser = whole(1..=1_000_000))]
    rounds: u32,
    /// Write one JSON object per line: a header, then a record per call, traffic, number of ready sockets and round
    #[arg(long, value_name = "FILE", value_parser = json_file)]
    json: Option<PathBuf>,
    /// Draw the medians
    #[arg(long, value_name = "FILE.svg", value_parser = svg_file)]
    plot: Option<PathBuf>,
}

/// The server, as its controller starts it.
#[derive(Args)]
pub(super) struct Server {
    #[arg(long, value_parser = call_parser())]
    call: Call,
    #[arg(long, value_parser = traffic_parser())]
    traffic: Traffic,
    #[arg(long)]
    sockets: usize,
    #[arg(long)]
    ready: usize,
    #[arg(long)]
    turns: u64,
    #[arg(long)]
    size: usize,
    #[arg(long)]
    cpus: CpuSet,
    #[arg(long)]
    gate: i32,
    #[arg(long)]
    sink: Option<SocketAddr>,
}

impl Server {
    pub(super) fn run(self) -> ExitCode {
        let Server { call, traffic, sockets, ready, turns, size, cpus, gate, sink } = self;
        match mmsg::serve(&Task { call, traffic, sockets, ready, turns, size, cpus, gate, sink }) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{}", with_causes(&error)); // the controller says whose words these are
                ExitCode::FAILURE
            }
        }
    }
}

impl Mmsg {
    pub(super) fn run(self) -> Result<ExitCode, Box<dyn Error>> {
        let plan = match self.plan(&CpuSet::allowed()?) {
            Ok(plan) => plan,
            Err(unusable) => {
                eprintln!("megapipe bench: {unusable}");
                return Ok(ExitCode::from(2));
            }
        };
        if let Some(file) = &self.plot {
            ::bench::plot::check(file)?;
        }
        let mut json = self.json.map(JsonLines::create).transpose()?;
        let stop = stop_on_signal()?;
        let bar = progress_bar(plan.measurements());
        let mut records = Vec::new();
        let ended = mmsg::run(&plan, &stop, &mut |progress| {
            match progress {
                Progress::Measuring(call, traffic, ready) => {
                    bar.set_message(format!("{}, {}, {ready} ready", call.name(), traffic.name()));
                }
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
        let printed = print(&table::render(&records));
        let outcome = ended?;
        printed?;
        let measured = records.iter().filter(|record| matches!(record, Record::Measurement(_))).count();
        if let Some(file) = &self.plot
            && measured > 0
        {
            plot::draw(&records, file)?;
        }
        if outcome == Outcome::Stopped {
            eprintln!("stopped: {measured} of {} measurements kept", plan.measurements());
            return Ok(ExitCode::from(INTERRUPTED));
        }
        // The table has said why a call is absent.
        Ok(if measured > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn plan(&self, allowed: &CpuSet) -> Result<Plan, Unusable> {
        let cpus = self.cpus.clone().unwrap_or_else(|| allowed.ends());
        check_cpus("--cpus", &cpus, allowed)?;
        // They take turns by spinning, which two on one CPU cannot.
        if cpus.len() != 2 {
            return Err(Unusable::NotTwoCpus { given: cpus });
        }
        if let Some(&ready) = self.ready.iter().find(|&&ready| ready > self.sockets) {
            return Err(Unusable::MoreReadyThanSockets { ready, sockets: self.sockets });
        }
        let or_all = |calls: &[Call]| if calls.is_empty() { Call::ALL.to_vec() } else { calls.to_vec() };
        Ok(Plan {
            program: PathBuf::from("/proc/self/exe"),
            command: std::env::args().collect::<Vec<_>>().join(" "),
            calls: or_all(&self.calls),
            traffic: if self.traffic.is_empty() { vec![Traffic::Udp] } else { self.traffic.clone() },
            sockets: self.sockets as usize,
            messages: u64::from(self.messages),
            ready: self.ready.iter().map(|&ready| ready as usize).collect(),
            size: self.size as usize,
            gap: Duration::from_micros(u64::from(self.gap)),
            cpus,
            rounds: self.rounds,
        })
    }
}

fn call_parser() -> impl TypedValueParser<Value = Call> {
    PossibleValuesParser::new(Call::ALL.iter().map(|call| call.name()))
        .map(|name| Call::from_name(&name).expect("the parser admits names of calls only"))
}

fn traffic_parser() -> impl TypedValueParser<Value = Traffic> {
    PossibleValuesParser::new(Traffic::ALL.iter().map(|traffic| traffic.name()))
        .map(|name| Traffic::from_name(&name).expect("the parser admits names of traffic only"))
}
