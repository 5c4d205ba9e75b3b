//! What a server counts, and the `stats` command that tells it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use servers::Output;

use super::Service;

/// What each thread counts. The names are memcached's (protocol.txt, "General-purpose statistics").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Counter {
    TotalConnections,
    ClosedConnections,
    RejectedConnections,
    CmdGet,
    CmdSet,
    CmdFlush,
    CmdTouch,
    GetHits,
    GetMisses,
    GetExpired,
    GetFlushed,
    DeleteHits,
    DeleteMisses,
    IncrHits,
    IncrMisses,
    DecrHits,
    DecrMisses,
    CasHits,
    CasMisses,
    CasBadval,
    TouchHits,
    TouchMisses,
    StoreTooLarge,
    StoreNoMemory,
    BytesRead,
    BytesWritten,
}

const COUNTERS: usize = Counter::BytesWritten as usize + 1;

/// The counters of one thread: only that thread writes them, any may read them.
#[derive(Debug, Default)]
// Two cache lines, so that no thread's counting slows another's (adjacent lines are fetched in pairs).
#[repr(align(128))]
pub(crate) struct Counters([AtomicU64; COUNTERS]);

impl Counters {
    pub(crate) fn add(&self, counter: Counter, amount: u64) {
        let cell = &self.0[counter as usize];
        cell.store(cell.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
    }

    pub(crate) fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }
}

/// The counters of all threads.
#[derive(Debug)]
pub(crate) struct Totals {
    threads: Box<[Counters]>,
    /// What the counters were at the last `stats reset`.
    baseline: Mutex<[u64; COUNTERS]>,
}

impl Totals {
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            threads: (0..threads).map(|_| Counters::default()).collect(),
            baseline: Mutex::new([0; COUNTERS]),
        }
    }

    /// The counters of one thread, by its number.
    pub(crate) fn thread(&self, thread: usize) -> &Counters {
        &self.threads[thread]
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Connections open now.
    pub(crate) fn connections(&self) -> u64 {
        let opened = self.sum(Counter::TotalConnections);
        opened.saturating_sub(self.sum(Counter::ClosedConnections))
    }

    /// Starts all counts anew.
    pub(crate) fn reset(&self) {
        let mut baseline = self.baseline.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, base) in baseline.iter_mut().enumerate() {
            *base = self.threads.iter().map(|counters| load(counters, index)).sum();
        }
    }

    fn sum(&self, counter: Counter) -> u64 {
        self.threads.iter().map(|counters| load(counters, counter as usize)).sum()
    }

    fn since_reset(&self, counter: Counter) -> u64 {
        let baseline = self.baseline.lock().unwrap_or_else(PoisonError::into_inner);
        self.sum(counter).saturating_sub(baseline[counter as usize])
    }
}

fn load(counters: &Counters, index: usize) -> u64 {
    counters.0[index].load(Ordering::Relaxed)
}

/// Answers `stats`.
pub(crate) fn general(service: &Service, output: &mut Output) {
    let (store, totals, clock) = (&service.store, &service.totals, &service.clock);
    let stat = |name: &str, value: u64, output: &mut Output| {
        output.push_line(format_args!("STAT {name} {value}"));
    };
    stat("pid", u64::from(std::process::id()), output);
    stat("uptime", clock.uptime(), output);
    stat("time", clock.unix(), output);
    output.push_line(format_args!("STAT version {}", super::VERSION));
    stat("pointer_size", u64::from(usize::BITS), output);
    stat("max_connections", service.settings.max_connections as u64, output);
    stat("curr_connections", totals.connections(), output);
    let counts = [
        ("total_connections", Counter::TotalConnections),
        ("rejected_connections", Counter::RejectedConnections),
        ("cmd_get", Counter::CmdGet),
        ("cmd_set", Counter::CmdSet),
        ("cmd_flush", Counter::CmdFlush),
        ("cmd_touch", Counter::CmdTouch),
        ("get_hits", Counter::GetHits),
        ("get_misses", Counter::GetMisses),
        ("get_expired", Counter::GetExpired),
        ("get_flushed", Counter::GetFlushed),
        ("delete_misses", Counter::DeleteMisses),
        ("delete_hits", Counter::DeleteHits),
        ("incr_misses", Counter::IncrMisses),
        ("incr_hits", Counter::IncrHits),
        ("decr_misses", Counter::DecrMisses),
        ("decr_hits", Counter::DecrHits),
        ("cas_misses", Counter::CasMisses),
        ("cas_hits", Counter::CasHits),
        ("cas_badval", Counter::CasBadval),
        ("touch_hits", Counter::TouchHits),
        ("touch_misses", Counter::TouchMisses),
        ("store_too_large", Counter::StoreTooLarge),
        ("store_no_memory", Counter::StoreNoMemory),
        ("bytes_read", Counter::BytesRead),
        ("bytes_written", Counter::BytesWritten),
    ];
    for (name, counter) in counts {
        stat(name, totals.since_reset(counter), output);
    }
    stat("limit_maxbytes", store.limits().memory, output);
    stat("threads", totals.threads() as u64, output);
    stat("bytes", store.bytes(), output);
    stat("partial_bytes", store.partial_bytes(), output);
    stat("curr_items", store.len() as u64, output);
    stat("total_items", store.stored(), output);
    stat("evictions", store.evictions(), output);
    output.push(b"END\r\n");
}

/// Answers `stats settings`.
pub(crate) fn settings(service: &Service, output: &mut Output) {
    let limits = service.store.limits();
    output.push_line(format_args!("STAT maxbytes {}", limits.memory));
    output.push_line(format_args!("STAT maxconns {}", service.settings.max_connections));
    output.push_line(format_args!("STAT tcpport {}", service.settings.address.port()));
    output.push_line(format_args!("STAT inter {}", service.settings.address.ip()));
    output.push_line(format_args!("STAT num_threads {}", service.totals.threads()));
    output.push_line(format_args!("STAT item_size_max {}", limits.value));
    output.push(b"STAT evictions on\r\nSTAT cas_enabled yes\r\nSTAT flush_enabled yes\r\n");
    output.push(b"STAT binding_protocol ascii\r\nEND\r\n");
}
