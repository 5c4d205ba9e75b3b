//! Which CPUs a thread may use, and pinning it to one.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::Duration;

use rustix::thread;
use serde::{Deserialize, Serialize};

/// A non-empty set of CPU numbers, written as in `taskset -c`: `0,2-3`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuSet(Vec<usize>);

impl CpuSet {
    /// The CPUs in ascending order.
    pub fn as_slice(&self) -> &[usize] {
        &self.0
    }

    /// How many CPUs the set holds; at least one.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The CPUs this process may run on (`sched_getaffinity(2)`).
    pub fn allowed() -> io::Result<Self> {
        let mask = thread::sched_getaffinity(None)?;
        Ok(Self((0..MAXIMUM).filter(|&cpu| mask.is_set(cpu)).collect()))
    }

    /// The members of `self` that `other` lacks, in ascending order.
    pub fn missing_from(&self, other: &CpuSet) -> Vec<usize> {
        let lacks = |cpu: &&usize| !other.0.contains(cpu);
        self.0.iter().filter(lacks).copied().collect()
    }

    /// The set of one CPU.
    pub fn of(cpu: usize) -> Self {
        Self(vec![cpu])
    }

    /// The set that holds the lowest CPU of this one.
    pub fn first(&self) -> Self {
        Self(vec![self.0[0]])
    }

    /// The set of the lowest and the highest CPU of this one.
    pub fn ends(&self) -> Self {
        let mut ends = vec![self.0[0], self.0[self.0.len() - 1]];
        ends.dedup();
        Self(ends)
    }

    /// The set that holds the highest CPU of this one.
    pub fn last(&self) -> Self {
        Self(vec![self.0[self.0.len() - 1]])
    }
}

impl FromStr for CpuSet {
    /// What it is not, and how it is written.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let malformed =
            || format!("{text:?} is no CPU list: write numbers below {MAXIMUM} and ranges, such as 0,2-3");
        let number = |part: &str| part.trim().parse::<usize>().map_err(|_| malformed());
        let mut cpus = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            if first > last || last >= MAXIMUM {
                return Err(malformed());
            }
            cpus.extend(first..=last);
        }
        Ok(Self(cpus.into_iter().collect()))
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(usize::to_string).collect::<Vec<_>>().join(","))
    }
}

/// Lets the calling thread run on these CPUs alone (`sched_setaffinity(2)`).
pub fn pin(cpus: &[usize]) -> io::Result<()> {
    let mut mask = thread::CpuSet::new();
    for &cpu in cpus {
        if cpu >= MAXIMUM {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        mask.set(cpu);
    }
    Ok(thread::sched_setaffinity(None, &mask)?)
}

/// How long each CPU has been idle since the machine started, by number (proc_stat(5)), in steps of 10 ms; an idle
/// CPU that waits for a disk is idle, too.
pub(crate) fn idle_times() -> io::Result<Vec<Duration>> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let mut times = Vec::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("cpu")) {
        let mut fields = line.split_whitespace();
        let numbered = line.starts_with(|first: char| first.is_ascii_digit());
        let Some(cpu) = fields.next().filter(|_| numbered).and_then(|cpu| cpu.parse::<usize>().ok()) else {
            continue;
        };
        let ticks: u64 = fields.skip(3).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
        times.resize(times.len().max(cpu + 1), Duration::ZERO);
        times[cpu] = Duration::from_millis(ticks * 10);
    }
    Ok(times)
}

/// Bits of a mask.
const MAXIMUM: usize = thread::CpuSet::MAX_CPU;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_are_sorted_and_unique() {
        let set: CpuSet = "3, 0-1,1".parse().unwrap();
        assert_eq!(set.as_slice(), [0, 1, 3]);
        assert_eq!(set.to_string(), "0,1,3");
        assert_eq!(set.first().as_slice(), [0]);
        assert_eq!(set.last().as_slice(), [3]);
        assert_eq!(set.ends().as_slice(), [0, 3]);
        assert_eq!(set.first().ends(), CpuSet::of(0));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "a", "3-1", "1-", "-1", "0,,1", "1024"] {
            assert!(text.parse::<CpuSet>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_pinned_thread_is_allowed_one_cpu() {
        let cpu = CpuSet::allowed().unwrap().last();
        std::thread::spawn(move || {
            pin(cpu.as_slice()).unwrap();
            assert_eq!(CpuSet::allowed().unwrap(), cpu);
        })
        .join()
        .unwrap();
    }
}
