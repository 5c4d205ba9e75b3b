//! What one process did: counted for the summary at its exit.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use promote::Reason;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        #[derive(Default)]
        pub(crate) struct Counters { $($(#[$doc])* pub(crate) $name: AtomicU64),* }

        pub(crate) static COUNTERS: Counters = Counters { $($name: AtomicU64::new(0)),* };

        impl Counters {
            fn clear(&self) {
                $(self.$name.store(0, Ordering::Relaxed);)*
            }
        }
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
    /// Sleeps in an epoll set that another thread ended, since it may have taken what was to end them.
    rechecks,
    /// Connections that several threads wait for at a time.
    contended,
    /// Connections whose rings did not pay, and were given up.
    retired,
    /// Offers that no monitor was there for.
    without_monitor,
    /// A word of the other end was nonsense.
    corrupt,
}

#[inline]
pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// Why a connection stays on TCP, as this process found out by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stays {
    /// The other end is elsewhere.
    OtherHost,
    /// MEGAPIPE_ONLY or MEGAPIPE_NOT.
    Ports,
    /// Several processes or epoll sets had it when its memory came.
    Shared,
    /// A call was under way then, or it was about to end.
    Busy,
    /// An option that only the kernel can give, or urgent data.
    Kernel,
    /// The kernel counted other bytes than were seen.
    UnseenIo,
    /// The system gave no memory.
    NoMemory,
    /// The program has an io_uring, by which it may read and write unseen.
    IoUring,
}

const STAYS: [(Stays, &str); 8] = [
    (Stays::OtherHost, "other-host"),
    (Stays::Ports, "ports"),
    (Stays::Shared, "shared"),
    (Stays::Busy, "busy"),
    (Stays::Kernel, "socket-option"),
    (Stays::UnseenIo, "unseen-io"),
    (Stays::NoMemory, "no-memory-here"),
    (Stays::IoUring, "io_uring"),
];

static STAYED: [AtomicU64; STAYS.len()] = [const { AtomicU64::new(0) }; STAYS.len()];
/// What the monitor said, by the number of its reason.
static REFUSED: [AtomicU64; Reason::ALL.len()] = [const { AtomicU64::new(0) }; Reason::ALL.len()];

/// A connection stays on TCP.
pub(crate) fn stays(why: Stays) {
    count(&STAYED[why as usize], 1);
}

/// The monitor refused one.
pub(crate) fn refused(reason: Reason) {
    if let Some(counter) = counter(reason) {
        count(counter, 1);
    }
}

/// One that was refused for a reason that passes has come to something else.
pub(crate) fn no_longer_refused(reason: Reason) {
    if let Some(counter) = counter(reason) {
        counter.fetch_sub(1, Ordering::Relaxed);
    }
}

fn counter(reason: Reason) -> Option<&'static AtomicU64> {
    Reason::ALL.iter().zip(&REFUSED).find(|(known, _)| **known == reason).map(|(_, counter)| counter)
}

/// In the child of a fork, which tells of itself alone.
pub(crate) fn forked() {
    COUNTERS.clear();
    STAYED.iter().chain(&REFUSED).for_each(|counter| counter.store(0, Ordering::Relaxed));
}

/// Whether there is anything to tell.
pub(crate) fn is_idle() -> bool {
    let c = &COUNTERS;
    [&c.connections, &c.ring_sends, &c.ring_receives].iter().all(|counter| get(counter) == 0)
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Writes the summary, in lines: without memory, since a signal handler may end the program.
pub(crate) fn summary(to: &mut impl Write, name: &str, pid: u32) -> std::fmt::Result {
    let c = &COUNTERS;
    let promoted = get(&c.promoted);
    // One that the parent accepted counts here if it was promoted here.
    let connections = get(&c.connections).max(promoted);
    write!(to, "megapipe: {name} ({pid}): {connections} connections, {promoted} promoted")?;
    let by_monitor = Reason::ALL.iter().zip(&REFUSED).map(|(reason, counter)| (reason.name(), get(counter)));
    let by_itself = STAYS.iter().zip(&STAYED).map(|((_, name), counter)| (*name, get(counter)));
    let mut left = connections.saturating_sub(promoted);
    for (reason, times) in by_monitor.chain(by_itself).filter(|(_, times)| *times > 0) {
        left = left.saturating_sub(times);
        write!(to, ", {times} {reason}")?;
    }
    if left > 0 {
        write!(to, ", {left} not offered")?;
    }
    if connections == 0 && !is_idle() {
        write!(to, ", its parent's apart")?;
    }
    match (get(&c.without_monitor), get(&c.corrupt)) {
        (0, 0) => {}
        (0, corrupt) => write!(to, "; {corrupt} broken by the other end's memory")?,
        (offers, _) => write!(to, "; no monitor answered {offers} times")?,
    }
    writeln!(to)?;
    if get(&c.ring_sends) + get(&c.ring_receives) == 0 {
        return Ok(());
    }
    writeln!(
        to,
        "megapipe: {name} ({pid}): over shared memory {} messages and {} bytes sent, {} messages and {} bytes \
         received, {} system calls avoided",
        get(&c.ring_sends),
        get(&c.ring_bytes_sent),
        get(&c.ring_receives),
        get(&c.ring_bytes_received),
        (get(&c.ring_sends) + get(&c.ring_receives) + get(&c.spun)).saturating_sub(get(&c.bells)),
    )?;
    writeln!(
        to,
        "megapipe: {name} ({pid}): {} bells, {} waits without a sleep, {} looked in vain, {} gave way to others, \
         {} rings given up, {} sleeps cut short by other threads, \
         {} connections awaited by several",
        get(&c.bells),
        get(&c.spun),
        get(&c.vain),
        get(&c.crowded),
        get(&c.retired),
        get(&c.rechecks),
        get(&c.contended),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_the_places_of_their_counters() {
        for (place, (stays, _)) in STAYS.iter().enumerate() {
            assert_eq!(*stays as usize, place);
        }
    }

    #[test]
    fn every_connection_is_accounted_for() {
        count(&COUNTERS.connections, 6);
        count(&COUNTERS.promoted, 2);
        stays(Stays::Ports);
        refused(Reason::Unmatched);
        refused(Reason::Unmatched);
        no_longer_refused(Reason::Unmatched);
        let mut text = String::new();
        summary(&mut text, "name", 7).unwrap();
        assert_eq!(
            text,
            "megapipe: name (7): 6 connections, 2 promoted, 1 unmatched, 1 ports, 2 not offered\n"
        );
        assert!(!is_idle());
        forked();
        assert!(is_idle());
    }
}
