//! `megapipe-bench mmsg`: many sockets with a small message each.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use bench::cpu::CpuSet;
use bench::mmsg::{self, Call, Plan, Traffic};
use bench::record::Record;
use clap::Args;

use super::flags::{PROGRAM, Unusable, command_line, distinct, or_all, svg_file, two_cpus, whole};
use super::report::Report;

#[derive(Args)]
pub(super) struct Mmsg {
    /// Calls to compare [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    calls: Vec<Call>,
    /// What goes over the sockets: udp, tcp, udp-send (the server sends) [default: udp]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
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
    #[command(flatten)]
    report: Report,
    /// Draw the medians
    #[arg(long, value_name = "FILE.svg", value_parser = svg_file)]
    plot: Option<PathBuf>,
}

impl Mmsg {
    pub(super) fn run(self) -> Result<bool, Box<dyn Error>> {
        let plan = self.plan()?;
        let records = self.report.of(plan.measurements(), self.plot.as_deref(), |stop, listener| {
            mmsg::run(&plan, stop, listener)
        })?;
        Ok(records.iter().any(Record::is_measurement))
    }

    fn plan(&self) -> Result<Plan, Box<dyn Error>> {
        // They take turns by spinning, which two on one CPU cannot.
        let cpus = two_cpus(self.cpus.as_ref())?;
        if let Some(&ready) = self.ready.iter().find(|&&ready| ready > self.sockets) {
            let sockets = self.sockets;
            let words =
                format!("--ready: {ready} sockets cannot be ready, there are {sockets}; give more --sockets");
            return Err(Unusable(words).into());
        }
        Ok(Plan {
            program: PROGRAM.into(),
            command: command_line(),
            calls: or_all(&self.calls, Call::ALL),
            traffic: or_all(&self.traffic, &[Traffic::Udp]),
            sockets: self.sockets as usize,
            messages: u64::from(self.messages),
            ready: distinct(&self.ready).into_iter().map(|ready| ready as usize).collect(),
            size: self.size as usize,
            gap: Duration::from_micros(u64::from(self.gap)),
            cpus,
            rounds: self.report.rounds,
        })
    }
}
