//! `tcp_timeout`: connections on which nothing moves for so long end with ETIMEDOUT.
//!
//! Nothing is kept up to date when bytes move. From time to time each connection's numbers are
//! compared with those of the time before.

use std::time::Duration;

use tcp::sockets::Sockets;
use tcp::{Info, Seq, State, Time};

use crate::config::Conf;

/// What changes when anything moves: SND.NXT, RCV.NXT, what is unacknowledged.
type Numbers = (Seq, Seq, u32);

pub(crate) struct Idle {
    timeout: Duration,
    next: Time,
    /// By socket: its numbers, and since when it has had them.
    seen: Vec<Option<(Numbers, Time)>>,
}

impl Idle {
    /// None: connections may be idle for ever.
    pub(crate) fn new(conf: &Conf) -> Option<Idle> {
        let seconds = u64::try_from(conf.tcp_timeout).ok().filter(|&seconds| seconds > 0)?;
        Some(Idle { timeout: Duration::from_secs(seconds), next: Time::default(), seen: Vec::new() })
    }

    /// When connections are compared next.
    pub(crate) fn next(&self) -> Time {
        self.next
    }

    /// Compares connections if it is time to, and ends those that were idle for too long. Returns whether there
    /// were any.
    pub(crate) fn check(&mut self, now: Time, sockets: &mut Sockets) -> bool {
        if now < self.next {
            return false;
        }
        let mut any = false;
        // A connection ends this much late at most.
        self.next = now.after((self.timeout / 8).max(Duration::from_secs(1)));
        let open: Vec<_> = sockets.sockets().collect();
        for socket in open {
            let place = socket.0 as usize;
            if self.seen.len() <= place {
                self.seen.resize(place + 1, None);
            }
            let numbers = sockets.info(socket).ok().and_then(numbers);
            self.seen[place] = match (numbers, self.seen[place]) {
                (Some(numbers), Some((before, since))) if numbers == before => {
                    if now.since(since) >= self.timeout {
                        // The error is of no connection, which cannot be here.
                        any |= sockets.time_out(socket).is_ok();
                    }
                    Some((before, since))
                }
                (numbers, _) => numbers.map(|numbers| (numbers, now)),
            };
        }
        any
    }
}

/// None where the stack itself has a limit: for the answer to a SYN, an acknowledgement, the peer's
/// window.
fn numbers(info: Info) -> Option<Numbers> {
    let waits = info.unacknowledged > 0 || info.unsent > 0;
    let open = !matches!(info.state, State::SynSent | State::SynReceived | State::Closed);
    (open && !waits).then_some((info.sent_to, info.received_to, info.unacknowledged))
}
