//! What one process did: counted for the summary at its exit.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        #[derive(Default)]
        pub(crate) struct Counters { $($(#[$doc])* pub(crate) $name: AtomicU64),* }

        pub(crate) static COUNTERS: Counters = Counters { $($name: AtomicU64::new(0)),* };
    };
}

counters! {
    /// TCP sockets that were connected or accepted.
    connections,
    /// Of them, those that were promoted.
    promoted,
    /// Calls that moved bytes through rings, each way.
    ring_sends,
    ring_receives,
    ring_bytes_sent,
    ring_bytes_received,
    /// Calls into the kernel to wake the other end.
    bells,
    /// Waits that ended without a sleep.
    spun,
    /// Looks that ended in vain, and those that others needed the core for.
    vain,
    crowded,
    /// Connections whose ledger did not agree with the kernel.
    unseen_io,
    /// Connections that the monitor refused; reasons by number.
    refused,
    /// A word of the other end was nonsense.
    corrupt,
}

#[inline]
pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// The summary, in lines.
pub(crate) fn summary(name: &str, pid: u32) -> String {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let c = &COUNTERS;
    format!(
        "megapipe: {name} ({pid}): {} connections, {} promoted, {} refused, {} with I/O that was not seen, {} broken by their peer\n\
         megapipe: {name} ({pid}): over shared memory {} messages and {} bytes sent, {} messages and {} bytes received; \
         {} bells, {} waits without a sleep, {} looked in vain, {} gave way to others; {} system calls avoided\n",
        get(&c.connections),
        get(&c.promoted),
        get(&c.refused),
        get(&c.unseen_io),
        get(&c.corrupt),
        get(&c.ring_sends),
        get(&c.ring_bytes_sent),
        get(&c.ring_receives),
        get(&c.ring_bytes_received),
        get(&c.bells),
        get(&c.spun),
        get(&c.vain),
        get(&c.crowded),
        (get(&c.ring_sends) + get(&c.ring_receives) + get(&c.spun)).saturating_sub(get(&c.bells)),
    )
}
