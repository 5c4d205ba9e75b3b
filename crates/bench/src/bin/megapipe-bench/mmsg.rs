//! `megapipe-bench mmsg`: many sockets with a small message each.

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bench::cpu::CpuSet;
use bench::mmsg::record::Record;
use bench::mmsg::{self, Call, Plan, Task, Traffic, plot, table};
use clap::Args;

use super::flags::{
    PROGRAM, Unusable, check_cpus, command_line, distinct, json_file, one_of, or_all, svg_file, whole,
};
use super::part_ended;
use super::report::{Report, View};

#[derive(Args)]
pub(super) struct Mmsg {
    /// Calls to compare [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = one_of(Call::ALL, Call::name))]
    calls: Vec<Call>,
    /// What goes over the sockets: udp, tcp, udp-send (the server sends) [default: udp]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = one_of(Traffic::ALL, Traffic::name))]
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
    /// Write one JSON object per line: a header, then a record per call, traffic, number of ready sockets and round. A call is
    /// named as in --calls there, with udp-send, too, where recvmsg stands for sendmsg, and so on
    #[arg(long, value_name = "FILE", value_parser = json_file)]
    json: Option<PathBuf>,
    /// Draw the medians
    #[arg(long, value_name = "FILE.svg", value_parser = svg_file)]
    plot: Option<PathBuf>,
}

/// The server, as its controller starts it.
#[derive(Args)]
pub(super) struct Server {
    #[arg(long, value_parser = one_of(Call::ALL, Call::name))]
    call: Call,
    #[arg(long, value_parser = one_of(Traffic::ALL, Traffic::name))]
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
        part_ended(mmsg::serve(&Task { call, traffic, sockets, ready, turns, size, cpus, gate, sink }))
    }
}

impl Mmsg {
    pub(super) fn run(self) -> Result<bool, Box<dyn Error>> {
        let plan = self.plan(&CpuSet::allowed()?)?;
        let mut report = Report::begin(plan.measurements(), self.json, self.plot)?;
        let ended = mmsg::run(&plan, &report.stop(), &mut |progress| report.hear(progress));
        let records = report.end(ended, &VIEW)?;
        Ok(records.iter().any(VIEW.is_measurement))
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
            rounds: self.rounds,
        })
    }
}

const VIEW: View<Record> = View {
    table: table::render,
    plot: Some(plot::draw),
    is_measurement: |record| matches!(record, Record::Measurement(_)),
};
