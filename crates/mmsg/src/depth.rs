//! How many messages sockets have at once, and with which flags, as far as the last calls showed.

/// Calls in a row whose sockets had hardly more than one message each, until calls receive one of each socket: at one
/// message, recvmmsg(2) costs 1.2 to 1.3 times recvmsg(2), as it looks for a second one (`bench-results/mmsg`).
const SHALLOW_CALLS: u64 = 8;

/// From then on one call of so many checks what it left.
const CALLS_PER_CHECK: u64 = 32;

/// What the next call does about queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// It empties one socket after the other.
    Empty,
    /// It receives one message of each.
    OneEach,
    /// The same, and checks which sockets have more.
    OneEachAndCheck,
}

/// The calls of one thread. Until they have shown that queues are short, they are taken to be long.
#[derive(Debug, Default)]
pub(crate) struct Depth {
    shallow: u64,
    has_flags: bool,
}

impl Depth {
    pub(crate) fn plan(&self) -> Plan {
        match self.shallow {
            ..SHALLOW_CALLS => Plan::Empty,
            calls if calls.is_multiple_of(CALLS_PER_CHECK) => Plan::OneEachAndCheck,
            _ => Plan::OneEach,
        }
    }

    /// Whether messages have flags that a short receive does not report.
    pub(crate) fn has_flags(&self) -> bool {
        self.has_flags
    }

    /// A call that reports all flags was made: whether a message had others than MSG_TRUNC.
    pub(crate) fn saw_flags(&mut self, had: bool) {
        self.has_flags = had;
    }

    /// A call was made: so many sockets had messages, and so many of these are known to have had more than one.
    pub(crate) fn saw(&mut self, sockets: usize, deep: usize) {
        if sockets > 0 {
            self.shallow = if deep * 4 > sockets { 0 } else { self.shallow + 1 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_queues_are_believed_late_and_long_ones_at_the_next_check() {
        let mut depth = Depth::default();
        for _ in 0..SHALLOW_CALLS {
            assert_eq!(depth.plan(), Plan::Empty);
            depth.saw(0, 0);
            depth.saw(30, 7);
        }
        for _ in 0..2 {
            let mut calls = 0;
            while depth.plan() == Plan::OneEach {
                depth.saw(30, 0);
                calls += 1;
            }
            assert!(calls < CALLS_PER_CHECK && depth.plan() == Plan::OneEachAndCheck);
            depth.saw(30, 7);
        }
        depth.saw(30, 8);
        assert_eq!(depth.plan(), Plan::Empty);
    }
}
