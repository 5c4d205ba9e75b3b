//! Open-loop load: requests are due by a schedule, whatever the server does.
//!
//! Request number k of the whole load is due k/rate after its start, on connection k modulo their
//! number. One that finds its connection busy waits there, and its latency counts from when it was
//! due: a server that stalls cannot thereby postpone what would have shown the stall (coordinated
//! omission; see wrk2 and HdrHistogram).
//!
//! Requests are evenly spaced, not random: every server meets the very same load in every round.

/// The part of the schedule that falls on one thread's connections.
pub(super) struct Pace {
    /// Nanoseconds from one request of the load to the next.
    interval: f64,
    /// Connections of the load.
    all: u64,
    /// The number in the load of this thread's first connection.
    first: u64,
    connections: Vec<Connection>,
    /// Place and turn of the first request that the schedule has not come to.
    place: usize,
    turn: u64,
    /// When that is due, nanoseconds since the start of the load; so all times here.
    next: u64,
}

#[derive(Default, Clone)]
struct Connection {
    /// Requests begun on it.
    begun: u64,
    /// All of these are done, and no other was due when the last was.
    idle: bool,
}

/// A request whose time has come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Due {
    /// The connection, counted within the thread.
    pub(super) index: usize,
    /// When it was due.
    pub(super) at: u64,
}

impl Pace {
    /// A schedule of `rate` requests per second over `all` connections, of which the thread has
    /// `share` from number `first` on.
    pub(super) fn new(rate: u64, all: usize, first: usize, share: usize) -> Self {
        let mut pace = Self {
            interval: 1e9 / rate as f64,
            all: all as u64,
            first: first as u64,
            connections: vec![Connection { begun: 0, idle: true }; share],
            place: 0,
            turn: 0,
            next: u64::MAX,
        };
        if share > 0 {
            pace.next = pace.at(0, 0);
        }
        pace
    }

    /// When the next request of the schedule is due; `u64::MAX` if there is none.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Takes the first request that is due by `now` and whose connection is free. Those of busy
    /// connections are left to [`follow`](Self::follow).
    pub(super) fn due(&mut self, now: u64) -> Option<Due> {
        while self.next <= now {
            let (index, turn, at) = (self.place, self.turn, self.next);
            self.place += 1;
            if self.place == self.connections.len() {
                (self.place, self.turn) = (0, self.turn + 1);
            }
            self.next = self.at(self.place, self.turn);
            let connection = &mut self.connections[index];
            if connection.idle && connection.begun == turn {
                *connection = Connection { begun: turn + 1, idle: false };
                return Some(Due { index, at });
            }
        }
        None
    }

    /// Takes the connection's next request if it is due already; else the connection is free.
    pub(super) fn follow(&mut self, index: usize, now: u64) -> Option<u64> {
        let at = self.at(index, self.connections[index].begun);
        let connection = &mut self.connections[index];
        connection.idle = at > now;
        if connection.idle {
            return None;
        }
        connection.begun += 1;
        Some(at)
    }

    /// When each request due in `from..to` was due that has no answer yet, or was never sent.
    pub(super) fn unanswered(&self, from: u64, to: u64) -> impl Iterator<Item = u64> + '_ {
        self.connections.iter().enumerate().flat_map(move |(index, connection)| {
            let done = if connection.idle { connection.begun } else { connection.begun.saturating_sub(1) };
            // Nothing before this turn is due so late.
            let turns = from as f64 / (self.interval * self.all as f64);
            let earliest = (turns as u64).saturating_sub(1).max(done);
            let due = (earliest..).map(move |turn| self.at(index, turn));
            due.skip_while(move |&at| at < from).take_while(move |&at| at < to)
        })
    }

    fn at(&self, index: usize, turn: u64) -> u64 {
        let number = turn * self.all + self.first + index as u64;
        (number as f64 * self.interval) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn requests_are_evenly_spaced_over_threads_and_connections() {
        // 1000 per second, 3 connections: the first thread has one, the second two.
        let mut first = Pace::new(1000, 3, 0, 1);
        let mut second = Pace::new(1000, 3, 1, 2);
        assert_eq!(first.due(0), Some(Due { index: 0, at: 0 }));
        assert_eq!((first.due(2 * MS), first.next()), (None, 3 * MS));
        assert_eq!(second.due(MS - 1), None);
        assert_eq!(second.due(2 * MS), Some(Due { index: 0, at: MS }));
        assert_eq!(second.due(2 * MS), Some(Due { index: 1, at: 2 * MS }));
        assert_eq!((second.due(2 * MS), second.next()), (None, 4 * MS));
    }

    #[test]
    fn a_busy_connection_makes_up_for_what_it_missed() {
        let mut pace = Pace::new(1000, 1, 0, 1);
        assert_eq!(pace.due(0), Some(Due { index: 0, at: 0 }));
        // Requests 1 to 4 come due while it waits, and follow one upon the other.
        assert_eq!(pace.due(4 * MS), None);
        for missed in 1..=4 {
            assert_eq!(pace.follow(0, 4 * MS), Some(missed * MS));
        }
        assert_eq!(pace.follow(0, 4 * MS), None);
        assert_eq!(pace.due(5 * MS), Some(Due { index: 0, at: 5 * MS }));
    }

    #[test]
    fn what_a_connection_caught_up_with_is_not_due_again() {
        let mut pace = Pace::new(1000, 1, 0, 1);
        assert!(pace.due(0).is_some());
        // Done late, before the schedule itself came to the second request.
        assert_eq!(pace.follow(0, MS), Some(MS));
        assert_eq!(pace.follow(0, MS), None);
        assert_eq!(pace.due(MS), None);
        assert_eq!(pace.due(2 * MS), Some(Due { index: 0, at: 2 * MS }));
    }

    #[test]
    fn every_request_of_a_window_is_answered_or_unanswered() {
        for answered in 0..40 {
            let mut pace = Pace::new(1000, 4, 0, 4);
            let mut seen = 0;
            for _ in 0..answered {
                let due = pace.due(40 * MS).map(|due| (due.index, due.at));
                // Once all are busy, the first of them is answered and goes on.
                let (index, at) = due.unwrap_or_else(|| {
                    let index = seen as usize % 4;
                    (index, pace.follow(index, 40 * MS).unwrap())
                });
                assert_eq!(at, seen * MS);
                assert_eq!(index, seen as usize % 4);
                seen += 1;
            }
            let open = pace.unanswered(10 * MS, 30 * MS).count() as u64;
            // Each connection still waits for its last request.
            let done = seen.saturating_sub(4);
            assert_eq!(open, 30 - done.clamp(10, 30), "{answered}");
        }
    }

    #[test]
    fn a_thread_without_connections_has_nothing_due() {
        let mut pace = Pace::new(1000, 1, 0, 0);
        assert_eq!((pace.due(u64::MAX - 1), pace.next()), (None, u64::MAX));
        assert_eq!(pace.unanswered(0, 1000).count(), 0);
    }
}
