//! What the options of scenarios have in common.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::cpu::CpuSet;
use crate::run::Unusable;

/// This program, which is run again for processes of a measurement.
pub fn this_program() -> PathBuf {
    std::env::current_exe().unwrap_or("/proc/self/exe".into())
}

/// The first and the last CPU that this process may use.
pub fn cpu_ends() -> CpuSet {
    CpuSet::allowed().unwrap_or(CpuSet::of(0)).ends()
}

pub(crate) fn check_cpus(flag: &str, set: &CpuSet) -> Result<(), Unusable> {
    let allowed = CpuSet::allowed().unwrap_or(CpuSet::of(0));
    match set.missing_from(&allowed).first() {
        None => Ok(()),
        Some(cpu) => {
            Err(Unusable(format!("{flag}: CPU {cpu} is not among those this process may use ({allowed})")))
        }
    }
}

/// Makes sure that --cpus are two, or one where both processes may share it.
pub fn check_pair(cpus: &CpuSet, may_share: bool) -> Result<(), Unusable> {
    match cpus.len() {
        2 => check_cpus("--cpus", cpus),
        1 if may_share => check_cpus("--cpus", cpus),
        _ => Err(Unusable(format!("--cpus: {cpus}: give two, a CPU for each of both processes"))),
    }
}

/// A whole number within bounds.
pub fn whole<T>(bounds: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: FromStr + PartialOrd + Display + Clone,
{
    move |text| match text.parse() {
        Ok(number) if bounds.contains(&number) => Ok(number),
        _ => Err(format!("give a whole number from {} to {}", bounds.start(), bounds.end())),
    }
}

/// The length of a measurement.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds @ 0.05..=3600.0) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("give a number of seconds from 0.05 to 3600".to_owned()),
    }
}
