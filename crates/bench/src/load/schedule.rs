//! When requests begin.
//!
//! Open loop, request number k of the whole load is due k/rate after its start. Requests are evenly spaced, not
//! random: every server meets the same load in every round.

use std::ops::Range;

use super::Options;

/// One thread's part of the schedule; all times are nanoseconds since the start of the load.
pub(super) struct Schedule {
    /// From one request of this thread to the next in an open loop.
    interval: Option<f64>,
    /// When the first one is due.
    first: f64,
    /// Requests begun.
    begun: u64,
    /// How many more may be under way in a closed loop.
    free: usize,
    /// Nothing begins from then on.
    end: u64,
}

impl Schedule {
    /// Of the thread with these connections; nothing begins after `end`.
    pub(super) fn new(options: &Options, numbers: &Range<usize>, end: u64) -> Self {
        let all = options.connections as f64;
        let interval = |rate: f64| 1e9 / rate * all / numbers.len().max(1) as f64;
        Self {
            interval: options.rate.map(interval),
            first: options.rate.map_or(0.0, |rate| numbers.start as f64 * 1e9 / rate),
            begun: 0,
            free: (options.active * numbers.len()).div_ceil(options.connections),
            end: if numbers.is_empty() { 0 } else { end },
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.interval.is_some()
    }

    /// Requests begun.
    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    /// When the next request of an open loop is due; `u64::MAX` if there is none.
    pub(super) fn due(&self) -> u64 {
        let due = |interval| (self.first + self.begun as f64 * interval) as u64;
        self.interval.map(due).filter(|&due| due < self.end).unwrap_or(u64::MAX)
    }

    /// Takes the next request if it is to begin now: from when its latency counts.
    #[inline]
    pub(super) fn next(&mut self, now: u64) -> Option<u64> {
        let since = match self.is_open() {
            true => Some(self.due()).filter(|&due| due <= now)?,
            false if self.free == 0 || now >= self.end => return None,
            false => now,
        };
        self.begun += 1;
        self.free = self.free.saturating_sub(1);
        Some(since)
    }

    /// A request has ended.
    #[inline]
    pub(super) fn ended(&mut self) {
        self.free += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::load::{Connections, Engine, Request, Target};

    const MS: u64 = 1_000_000;

    fn options(connections: usize, rate: Option<f64>) -> Options {
        Options {
            engine: Engine::Epoll,
            target: Target::Unix("/nowhere".into()),
            request: Request::Echo(1),
            instead: None,
            lifetime: Connections::Kept,
            connections,
            active: 4,
            rate,
            spin: false,
            warm_up: Duration::ZERO,
            window: Duration::ZERO,
        }
    }

    #[test]
    fn requests_are_evenly_spaced_over_threads() {
        // 1000 per second, 3 connections: the first thread has one, the second two.
        let options = options(3, Some(1000.0));
        let mut first = Schedule::new(&options, &(0..1), 100 * MS);
        let mut second = Schedule::new(&options, &(1..3), 100 * MS);
        assert_eq!((first.next(0), first.next(2 * MS), first.due()), (Some(0), None, 3 * MS));
        assert_eq!(second.next(MS - 1), None);
        assert_eq!((second.next(3 * MS), second.next(3 * MS)), (Some(MS), Some(5 * MS / 2)));
        assert_eq!((second.next(3 * MS), second.due()), (None, 4 * MS));
    }

    #[test]
    fn what_was_missed_counts_from_when_it_was_due_and_nothing_is_due_after_the_end() {
        let mut schedule = Schedule::new(&options(1, Some(1000.0)), &(0..1), 5 * MS);
        let due = std::iter::from_fn(|| schedule.next(60 * MS)).collect::<Vec<_>>();
        assert_eq!(due, [0, MS, 2 * MS, 3 * MS, 4 * MS]);
        assert_eq!(schedule.due(), u64::MAX);
    }

    #[test]
    fn a_closed_loop_has_so_many_requests_under_way() {
        let mut schedule = Schedule::new(&options(8, None), &(0..4), 5 * MS);
        assert_eq!([(); 3].map(|()| schedule.next(MS)), [Some(MS), Some(MS), None]);
        schedule.ended();
        assert_eq!([schedule.next(2 * MS), schedule.next(2 * MS)], [Some(2 * MS), None]);
        schedule.ended();
        assert_eq!(schedule.next(5 * MS), None);
    }

    #[test]
    fn a_thread_without_connections_has_nothing_to_do() {
        for rate in [None, Some(1000.0)] {
            let mut schedule = Schedule::new(&options(1, rate), &(0..0), u64::MAX);
            assert_eq!((schedule.next(u64::MAX - 1), schedule.due()), (None, u64::MAX));
        }
    }
}
