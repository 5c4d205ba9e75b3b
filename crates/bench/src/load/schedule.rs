//! When requests begin.
//!
//! Open loop, request number k of the whole load is due k/rate after its start. Requests are evenly spaced, not
//! random: every server meets the same load in every round.

use std::ops::Range;

/// One thread's part of the schedule; all times are nanoseconds since the start of the load.
pub(super) struct Schedule {
    /// From one request of this thread to the next in an open loop.
    interval: Option<f64>,
    /// When the first one is due.
    first: f64,
    /// Requests begun.
    begun: u64,
    /// How many may be under way in a closed loop.
    active: usize,
    /// Nothing begins from then on.
    end: u64,
}

impl Schedule {
    /// Of the thread with these of all connections, of which so many are active; nothing begins after `end`.
    pub(super) fn new(
        (all, active): (usize, usize),
        rate: Option<f64>,
        numbers: &Range<usize>,
        end: u64,
    ) -> Self {
        let interval = |rate: f64| 1e9 / rate * all as f64 / numbers.len().max(1) as f64;
        Self {
            interval: rate.map(interval),
            first: rate.map_or(0.0, |rate| numbers.start as f64 * 1e9 / rate),
            begun: 0,
            active: (active * numbers.len()).div_ceil(all),
            end: if numbers.is_empty() { 0 } else { end },
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.interval.is_some()
    }

    /// When the next request of an open loop is due; `u64::MAX` if there is none.
    pub(super) fn due(&self) -> u64 {
        let due = |interval| (self.first + self.begun as f64 * interval) as u64;
        self.interval.map(due).filter(|&due| due < self.end).unwrap_or(u64::MAX)
    }

    /// Takes the next request if it is to begin now, beside those under way: from when its latency counts.
    #[inline]
    pub(super) fn next(&mut self, now: u64, under_way: usize) -> Option<u64> {
        let since = match self.is_open() {
            true => Some(self.due()).filter(|&due| due <= now),
            false => (under_way < self.active && now < self.end).then_some(now),
        }?;
        self.begun += 1;
        Some(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn requests_are_evenly_spaced_over_threads_and_none_is_due_after_the_end() {
        // 1000 per second, 3 connections: the first thread has one, the second two.
        let schedule = |numbers, end| Schedule::new((3, 3), Some(1000.0), &numbers, end);
        let mut first = schedule(0..1, 100 * MS);
        assert_eq!((first.next(0, 0), first.next(2 * MS, 1), first.due()), (Some(0), None, 3 * MS));
        let mut second = schedule(1..3, 4 * MS);
        assert_eq!(second.next(MS - 1, 0), None);
        assert_eq!((second.next(3 * MS, 0), second.next(3 * MS, 1)), (Some(MS), Some(5 * MS / 2)));
        assert_eq!((second.next(60 * MS, 2), second.due()), (None, u64::MAX));
        assert_eq!(schedule(3..3, u64::MAX).next(60 * MS, 0), None);
    }

    #[test]
    fn a_closed_loop_has_so_many_requests_under_way() {
        let mut schedule = Schedule::new((8, 4), None, &(0..4), 5 * MS);
        assert_eq!([0, 1, 2].map(|under_way| schedule.next(MS, under_way)), [Some(MS), Some(MS), None]);
        assert_eq!(schedule.next(5 * MS, 0), None);
    }
}
