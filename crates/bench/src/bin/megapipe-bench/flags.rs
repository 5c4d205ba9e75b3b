//! What the command lines of the benchmarks have in common.

use std::error::Error;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use bench::cpu::CpuSet;
use bench::pair::Placement;
use clap::builder::{PossibleValuesParser, TypedValueParser};

/// A flag that is well-formed, yet cannot be used on this machine or beside the others: why, and what
/// to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Unusable(pub(super) String);

pub(super) fn check_cpus(flag: &str, set: &CpuSet, allowed: &CpuSet) -> Result<(), Unusable> {
    match set.missing_from(allowed).first() {
        None => Ok(()),
        Some(cpu) => {
            Err(Unusable(format!("{flag}: CPU {cpu} is not among those this process may use ({allowed})")))
        }
    }
}

/// The two CPUs of --cpus, or the one that is for `one_for`; the ends of those allowed if none are given.
pub(super) fn up_to_two_cpus(given: Option<&CpuSet>, one_for: &str) -> Result<CpuSet, Box<dyn Error>> {
    let allowed = CpuSet::allowed()?;
    let cpus = given.cloned().unwrap_or_else(|| allowed.ends());
    if cpus.len() > 2 {
        let words = format!("--cpus: {cpus} are {} CPUs; give two, or one for {one_for}", cpus.len());
        return Err(Unusable(words).into());
    }
    check_cpus("--cpus", &cpus, &allowed)?;
    Ok(cpus)
}

/// The two CPUs of --cpus, or the ends of those allowed.
pub(super) fn two_cpus(given: Option<&CpuSet>) -> Result<CpuSet, Box<dyn Error>> {
    let cpus = up_to_two_cpus(given, "nothing: server and load take turns on two different ones")?;
    match cpus.len() {
        2 => Ok(cpus),
        _ => Err(Unusable(format!("--cpus: {cpus} is one CPU; server and load take one each")).into()),
    }
}

/// The placements that were named, or else all for which there are CPUs.
pub(super) fn placements(
    named: &[Placement],
    all: &[Placement],
    cpus: &CpuSet,
) -> Result<Vec<Placement>, Unusable> {
    let too_large = |placement: &&Placement| placement.cpus() > cpus.len();
    match named.iter().find(too_large) {
        Some(placement) => Err(Unusable(format!(
            "--placements: {} takes two CPUs, and there is CPU {cpus} alone; give two --cpus, or one-core",
            placement.name()
        ))),
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

pub(super) fn svg_file(name: &str) -> Result<PathBuf, &'static str> {
    match PathBuf::from(name) {
        file if file.extension().is_some_and(|suffix| suffix.eq_ignore_ascii_case("svg")) => Ok(file),
        _ => Err("the plot is written as SVG; name a file that ends in .svg"),
    }
}

/// This program, which each benchmark starts again for its processes.
pub(super) const PROGRAM: &str = "/proc/self/exe";
