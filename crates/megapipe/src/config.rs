//! The settings of a channel: its engine, its bounds, and when it batches, waits and
//! spins.

use std::time::Duration;

use crate::error::CreateError;

/// How a channel talks to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// io_uring: operations go to the kernel in one system call per batch.
    Uring,
    /// epoll and one system call per operation: where io_uring is forbidden.
    Epoll,
}

impl EngineKind {
    /// The name used by `MEGAPIPE_ENGINE`, in logs and in benchmark records.
    pub const fn name(self) -> &'static str {
        match self {
            EngineKind::Uring => "uring",
            EngineKind::Epoll => "epoll",
        }
    }
}

/// Whether to look for completions for a while before sleeping in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spin {
    /// Sleep at once.
    Off,
    /// Spin for two or three wake-ups of this machine, while an account of what spins take and
    /// save is not overdrawn (docs/adr/0018-awake-between-calls.md); else sleep at once. So do
    /// waits of more than 32 handles without shared memory, and the first after an accept.
    Auto,
    /// Spin for this long before each sleep, whether or not that pays, unless others want the core.
    For(Duration),
}

/// "`completions` of them or `delay`, whichever comes first": lets a wait gather a batch
/// at the price of a bounded delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencyBound {
    /// How many completions end a wait at once; 1 or more.
    pub completions: u32,
    /// How long a wait with at least one completion may go on.
    pub delay: Duration,
}

/// Whether TCP connections to programs on this host may leave the kernel for shared
/// memory (docs/promotion.md). Both endpoints have to run Megapipe, and a monitor has to
/// allow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promotion {
    /// Never.
    Off,
    /// Those that have brought some messages.
    Auto,
    /// Each as soon as it exists.
    Eager,
}

/// The settings of a channel. Every queue, pool and table has its bound here; hitting
/// one is a result with its own error, never a stall.
#[derive(Clone, Debug)]
pub struct Config {
    /// The engine; `None` takes io_uring if the kernel allows it, else epoll.
    /// `MEGAPIPE_ENGINE=uring|epoll` in the environment overrides both.
    pub engine: Option<EngineKind>,
    /// Requests that may queue before they go to the kernel by themselves, at least 1. The
    /// paper (section 3.5) found 32 enough; on io_uring 128 costs 3 % to 5 % less per
    /// transaction (docs/adr/0005-batch-threshold.md).
    pub batch_threshold: u32,
    /// Operations that may be pending at once, timers included.
    pub operations_max: u32,
    /// Handles that may be registered at once.
    pub handles_max: u32,
    /// Lightweight sockets that may exist at once. On io_uring this is the size of the
    /// ring's file table, which the kernel limits to RLIMIT_NOFILE; elsewhere they are
    /// descriptors. A channel that wants more than the process's soft limit raises that to the
    /// hard one. Sockets of a stack take no descriptor, and count here alone.
    pub lwsockets_max: u32,
    /// Pool buffers for reads; a power of two up to 32768.
    pub read_buffers: u16,
    /// Bytes of one pool buffer, read or write.
    pub buffer_size: u32,
    /// Pool buffers for [`crate::Channel::buffer`].
    pub write_buffers: u16,
    /// Writes that may queue on one handle before `write` is refused: the bound on what a peer
    /// that does not read can hold. Well below `read_buffers`, as echoes that go out in one
    /// batch come from that pool (docs/adr/0006-write-queue.md).
    pub write_queue_max: u32,
    /// How long a close may wait for queued writes before it resets the connection.
    pub close_timeout: Duration,
    /// Whether and how long to spin before sleeping. Of the channels of one process as many spin at
    /// a time as their threads have CPUs.
    pub spin: Spin,
    /// Lets waits gather a batch; `None` returns from a wait with the first completion.
    pub latency_bound: Option<LatencyBound>,
    /// Whether connections on this host may move to shared memory.
    pub promotion: Promotion,
    /// The socket of the monitor through which connections are promoted; `None`: where
    /// `MEGAPIPE_MONITOR` says, or where a monitor of the system or of this user listens.
    pub monitor: Option<std::path::PathBuf>,
    /// Pool buffers for reads from shared memory; 1 or more. None is made with `Promotion::Off`.
    pub ring_buffers: u16,
}

/// Messages that a connection must have brought before it is offered ([`Promotion::Auto`]).
const OFFER_AFTER: u8 = 16;

impl Config {
    pub(crate) fn ring_buffers(&self) -> u16 {
        if self.promotion == Promotion::Off { 1 } else { self.ring_buffers }
    }

    pub(crate) fn offer_after(&self) -> u8 {
        if self.promotion == Promotion::Auto { OFFER_AFTER } else { 0 }
    }

    /// Refuses settings that no engine could work with.
    pub(crate) fn check(&self) -> Result<(), CreateError> {
        let within = |setting, value: u64, ok: bool, range| {
            if ok { Ok(()) } else { Err(CreateError::Setting { setting, value, range }) }
        };
        let count = u64::from(self.read_buffers);
        within(
            "read_buffers",
            count,
            count.is_power_of_two() && count <= 32768,
            "a power of two from 1 to 32768",
        )?;
        let size = u64::from(self.buffer_size);
        within("buffer_size", size, (256..=1 << 20).contains(&size), "256 bytes to 1 MiB")?;
        within("ring_buffers", self.ring_buffers.into(), self.ring_buffers > 0, "at least 1")?;
        within("write_buffers", self.write_buffers.into(), self.write_buffers > 0, "at least 1")?;
        let threshold = u64::from(self.batch_threshold);
        within("batch_threshold", threshold, (1..=4096).contains(&threshold), "1 to 4096")?;
        for (setting, value) in [
            ("operations_max", self.operations_max),
            ("handles_max", self.handles_max),
            ("lwsockets_max", self.lwsockets_max),
            ("write_queue_max", self.write_queue_max),
        ] {
            within(setting, value.into(), (1..=1 << 24).contains(&value), "1 to 16777216")?;
        }
        match self.latency_bound {
            Some(bound) => {
                within("latency_bound", bound.completions.into(), bound.completions > 0, "at least 1")
            }
            None => Ok(()),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            engine: None,
            batch_threshold: 128,
            operations_max: 1 << 20,
            handles_max: 1 << 20,
            lwsockets_max: 1 << 16,
            read_buffers: 1024,
            buffer_size: 4096,
            write_buffers: 1024,
            write_queue_max: 64,
            close_timeout: Duration::from_secs(30),
            spin: Spin::Auto,
            latency_bound: None,
            promotion: Promotion::Off,
            monitor: None,
            ring_buffers: 64,
        }
    }
}
