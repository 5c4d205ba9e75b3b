//! What the command lines of the benchmarks have in common.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use bench::cpu::CpuSet;
use bench::pair::{CACHELINE_PAYLOAD, Placement, Scenario, Transport};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::product::NotBuilt;

/// How much is measured, in every scenario.
#[derive(Args)]
pub(super) struct Extent {
    /// Length of each measurement; a warm-up of a quarter goes before it
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(super) seconds: Duration,
    /// Measurements of everything that is compared, in turn
    #[arg(long, value_name = "COUNT", default_value = "5", value_parser = whole(1..=1_000_000))]
    pub(super) rounds: u32,
}

/// A flag that is well-formed, yet cannot be used on this machine or beside the others.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    #[error("{flag}: CPU {cpu} is not among those this process may use ({allowed})")]
    Cpu { flag: &'static str, cpu: usize, allowed: CpuSet },
    #[error("--cpus: {given} are {} CPUs; give two, or one for {one_for}", given.len())]
    TooManyCpus { given: CpuSet, one_for: &'static str },
    #[error(
        "--placements: {} takes two CPUs, and there is CPU {given} alone; give two --cpus, or one-core",
        placement.name()
    )]
    TooFewCpus { placement: Placement, given: CpuSet },
    #[error("--cpus: {given} are {} CPUs; server and load take turns on two different ones", given.len())]
    NotTwoCpus { given: CpuSet },
    #[error("--ready: {ready} sockets cannot be ready, there are {sockets}; give more --sockets")]
    MoreReadyThanSockets { ready: u32, sockets: u32 },
    #[error(
        "--rate half is half of what an epoll server does: add epoll-reuseport to --engines, or give a number"
    )]
    NoBaseline,
    #[error(
        "--rate: {rate} requests per second are fewer than {FEWEST_REQUESTS} in {} s; give a higher --rate, or more \
         --seconds",
        seconds.as_secs_f64()
    )]
    FewRequests { rate: u64, seconds: Duration },
    #[error(
        "--transports: {transport} is no part of {}: cacheline is for pingpong, memcpy for stream",
        scenario.name()
    )]
    Scenario { transport: Transport, scenario: Scenario },
    #[error(
        "nothing to measure: cacheline takes messages up to {CACHELINE_PAYLOAD} B, cacheline and memcpy are limits of \
         two-cores, and tcp-spin is never asleep; add to --transports, --sizes or --placements"
    )]
    NoTransport,
    #[error("nothing to measure: none of the --apps does any of the --operations")]
    NoOperation,
    #[error(transparent)]
    NotBuilt(#[from] NotBuilt),
}

pub(super) fn check_cpus(flag: &'static str, set: &CpuSet, allowed: &CpuSet) -> Result<(), Unusable> {
    match set.missing_from(allowed).first() {
        None => Ok(()),
        Some(&cpu) => Err(Unusable::Cpu { flag, cpu, allowed: allowed.clone() }),
    }
}

/// The two CPUs of --cpus, or the one that is for `one_for`; the ends of those allowed if none are given.
pub(super) fn up_to_two_cpus(
    given: Option<&CpuSet>,
    allowed: &CpuSet,
    one_for: &'static str,
) -> Result<CpuSet, Unusable> {
    let cpus = given.cloned().unwrap_or_else(|| allowed.ends());
    if cpus.len() > 2 {
        return Err(Unusable::TooManyCpus { given: cpus, one_for });
    }
    check_cpus("--cpus", &cpus, allowed)?;
    Ok(cpus)
}

/// The placements that were named, or else all for which there are CPUs.
pub(super) fn placements(
    named: &[Placement],
    all: &[Placement],
    cpus: &CpuSet,
) -> Result<Vec<Placement>, Unusable> {
    let too_large = |placement: &&Placement| placement.cpus() > cpus.len();
    match named.iter().find(too_large) {
        Some(&placement) => Err(Unusable::TooFewCpus { placement, given: cpus.clone() }),
        None if named.is_empty() => Ok(all.iter().filter(|one| !too_large(one)).copied().collect()),
        None => Ok(named.to_vec()),
    }
}

/// Those that were named, or else all.
pub(super) fn or_all<T: Copy + PartialEq>(named: &[T], all: &[T]) -> Vec<T> {
    if named.is_empty() { all.to_vec() } else { distinct(named) }
}

/// Each once: what is measured twice under one name would be taken for rounds.
pub(super) fn distinct<T: Copy + PartialEq>(named: &[T]) -> Vec<T> {
    let first = |(at, one): &(usize, &T)| !named[..*at].contains(one);
    named.iter().enumerate().filter(first).map(|(_, one)| *one).collect()
}

/// The command line, for records.
pub(super) fn command_line() -> String {
    std::env::args().collect::<Vec<_>>().join(" ")
}

/// One of these, by its name.
pub(super) fn one_of<T: Copy + Send + Sync + 'static>(
    all: &[T],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> + use<T> {
    let named = all.iter().map(|&one| (name(one), one)).collect::<Vec<_>>();
    PossibleValuesParser::new(named.iter().map(|(name, _)| *name)).map(move |given| {
        let found = named.iter().find(|(name, _)| *name == given);
        found.expect("the parser admits these names only").1
    })
}

/// A whole number within bounds.
pub(super) fn whole(bounds: RangeInclusive<u32>) -> impl Fn(&str) -> Result<u32, String> + Clone {
    move |text| match text.parse() {
        Ok(number) if bounds.contains(&number) => Ok(number),
        _ => Err(format!("give a whole number from {} to {}", bounds.start(), bounds.end())),
    }
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds @ 0.05..=3600.0) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("give a number of seconds from 0.05 to 3600".to_owned()),
    }
}

pub(super) fn json_file(name: &str) -> Result<PathBuf, &'static str> {
    match name {
        "-" => Err("standard output has the table; name a file (./- is a file too)"),
        _ => Ok(PathBuf::from(name)),
    }
}

pub(super) fn svg_file(name: &str) -> Result<PathBuf, &'static str> {
    match PathBuf::from(name) {
        file if file.extension().is_some_and(|suffix| suffix.eq_ignore_ascii_case("svg")) => Ok(file),
        _ => Err("the plot is written as SVG; name a file that ends in .svg"),
    }
}

/// This program, which each benchmark starts again for its processes.
pub(super) const PROGRAM: &str = "/proc/self/exe";

/// Fewer requests in a measurement have no 99th percentile worth the name.
pub(super) const FEWEST_REQUESTS: f64 = 100.0;
