//! What a channel counts.

/// Counters of a channel since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Completions handed out.
    pub completions: u64,
    /// Times the engine was asked to submit, wait and fetch; polls while spinning do not
    /// count.
    pub turns: u64,
    /// System calls the engine made on the data path.
    pub system_calls: u64,
    /// Times a read found no free pool buffer and was paused.
    pub pool_dry: u64,
    /// Times an accept was paused for want of slots or descriptors.
    pub accepts_paused: u64,
    /// Connections that were reset because their queued writes outlasted the close timeout.
    pub close_timeouts: u64,
    /// Connections that were promoted to shared memory.
    pub promoted: u64,
    /// Offers of a connection that were refused, or did not lead to a promotion.
    pub promotions_refused: u64,
    /// Reads that were served from shared memory.
    pub ring_reads: u64,
    /// Writes that went to shared memory as a whole.
    pub ring_writes: u64,
    /// Times a sleeping peer was woken over TCP.
    pub bells: u64,
    /// Times it was woken by its doorbell.
    pub doorbells: u64,
    /// Times a full ring sent what followed through the kernel.
    pub spills: u64,
    /// Packets that stacks took from their devices; one may hold many segments of a connection.
    pub packets_received: u64,
    /// Packets that stacks gave to their devices.
    pub packets_sent: u64,
    /// Segments that came to a stack and belonged to none of its connections or listeners.
    pub segments_unowned: u64,
    /// Packets of no connection of a stack, handed to another one on the same device:
    /// ICMP errors, above all.
    pub foreign_sent: u64,
    /// Packets that other stacks handed over.
    pub foreign_received: u64,
    /// Packets that were lost because too many were on their way to other stacks.
    pub foreign_dropped: u64,
}
