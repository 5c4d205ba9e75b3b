//! `megapipe-bench pingpong` and `megapipe-bench stream`: what carries bytes between two processes.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use bench::cpu::CpuSet;
use bench::pair::{self, CACHELINE_PAYLOAD, Placement, Plan, Scenario, Transport};
use bench::record::Record;
use clap::Args;

use super::flags::{PROGRAM, Unusable, command_line, placements, seconds, svg_file, up_to_two_cpus, whole};
use super::report::Report;

#[derive(Args)]
pub(super) struct Pair {
    /// What to compare: promoted (shared memory), tcp, tcp-spin (calls that do not block), unix, and the limits
    /// cacheline (pingpong) and memcpy (stream) [default: all that the scenario has]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    transports: Vec<Transport>,
    /// Bytes of a message, up to 1 MiB
    #[arg(long, value_delimiter = ',', value_name = "BYTES", default_value = "8,64,512,4096,65536,1048576")]
    #[arg(value_parser = whole(1..=1 << 20))]
    sizes: Vec<u32>,
    /// Where the processes run: two-cores, one-core, oversubscribed (four busy processes per CPU
    /// beside them), asleep (one message a millisecond) [default: all, or one-core with one CPU]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    placements: Vec<Placement>,
    /// The two CPUs, such as 0,1; one-core takes the first of them [default: the first and the last
    /// CPU]
    #[arg(long, value_name = "CPUS")]
    cpus: Option<CpuSet>,
    /// Length of each measurement; a warm-up of a quarter goes before it
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    seconds: Duration,
    /// Give each message bytes of its own and check every one; the figures are then of the checking,
    /// too. Fails if any transport is absent; without it, if one is absent at some points only
    #[arg(long)]
    verify: bool,
    #[command(flatten)]
    report: Report,
    /// Draw the medians
    #[arg(long, value_name = "FILE.svg", value_parser = svg_file)]
    plot: Option<PathBuf>,
}

impl Pair {
    pub(super) fn run(self, scenario: Scenario) -> Result<bool, Box<dyn Error>> {
        let plan = plan(&self, scenario)?;
        let records = self.report.of(plan.measurements(), self.plot.as_deref(), |stop, listener| {
            pair::run(&plan, stop, listener)
        })?;
        let absent = records.iter().any(|record| record.kind() == "absent");
        Ok(records.iter().any(Record::is_measurement) && !(plan.verify && absent) && !failed_midway(&records))
    }
}

/// Whether a transport could be measured, but not always: it did not just lack what it needs.
fn failed_midway(records: &[Record]) -> bool {
    let works = |absent: &Record| {
        let same = |record: &&Record| record.text("transport") == absent.text("transport");
        records.iter().filter(same).any(Record::is_measurement)
    };
    records.iter().any(|record| record.kind() == "absent" && works(record))
}

fn plan(arguments: &Pair, scenario: Scenario) -> Result<Plan, Box<dyn Error>> {
    let cpus = up_to_two_cpus(arguments.cpus.as_ref(), "--placements one-core")?;
    let placements = placements(&arguments.placements, Placement::ALL, &cpus)?;
    let transports = match arguments.transports.as_slice() {
        [] => Transport::ALL.iter().copied().filter(|one| one.takes_part_in(scenario)).collect(),
        named => named.to_vec(),
    };
    if let Some(&transport) = transports.iter().find(|transport| !transport.takes_part_in(scenario)) {
        let words = format!(
            "--transports: {transport} is no part of {}: cacheline is for pingpong, memcpy for stream",
            scenario.name()
        );
        return Err(Unusable(words).into());
    }
    let plan = Plan {
        program: PROGRAM.into(),
        command: command_line(),
        scenario,
        transports,
        sizes: arguments.sizes.iter().map(|&size| size as usize).collect(),
        placements,
        cpus,
        window: arguments.seconds,
        rounds: arguments.report.rounds,
        verify: arguments.verify,
    };
    match plan.measurements() {
        0 => Err(Unusable(format!(
            "nothing to measure: cacheline takes messages up to {CACHELINE_PAYLOAD} B, cacheline and memcpy are limits of \
             two-cores, and tcp-spin is never asleep; add to --transports, --sizes or --placements"
        ))
        .into()),
        _ => Ok(plan),
    }
}
