//! Bugs on purpose: for each there is a test that has to fail with it (`scripts/planted.sh`).
//!
//! They are there only with `--cfg tcp_planted`. Without it the answer to each question is a
//! constant, and the compiler leaves nothing of them.

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Numbers around 2^32 are compared as integers.
    WrappedComparison,
    /// A window update that acknowledges nothing is not taken.
    LostWindowUpdate,
    /// A retransmitted segment measures the round trip.
    RttFromRetransmission,
    /// A measured round trip does not end the backing off.
    BackoffKept,
    /// Of a segment that overlaps, the old bytes are kept instead of the new.
    OverlapTrimmedAtTheEnd,
    /// The store keeps what the engine has evicted.
    EvictionUntold,
    /// Challenge ACKs without limit.
    ChallengeStorm,
    /// A closed connection waits for the peer's FIN for ever.
    EndlessFinWait2,
    /// The right edge moves left by the rounding of the scale.
    EdgeRoundedDown,
    /// No timer while the peer's window is closed.
    ProbeTimerUnset,
    /// No timer for a delayed acknowledgement.
    AckTimerUnset,
    /// Data beyond the peer's window.
    BeyondTheWindow,
    /// Data beyond the window that the peer was offered are taken.
    BeyondTheEdge,
    /// An acknowledgement of bytes for which there was no room.
    AcknowledgesWhatIsDropped,
    /// A FIN that comes too early is forgotten.
    FinForgotten,
    /// No PAWS.
    OldTimestampsTaken,
    /// An RST ends TIME_WAIT.
    TimeWaitAssassinated,
    /// Every RST resets.
    ResetAnywhere,
    /// No congestion window.
    CongestionIgnored,
    /// Three duplicate acknowledgements repair nothing.
    NoFastRetransmit,
    /// What was overtaken is lost at once.
    ReorderingIsLoss,
}

/// Whether a bug is planted.
#[cfg(not(tcp_planted))]
#[inline(always)]
pub(crate) const fn planted(_: Bug) -> bool {
    false
}

/// Whether `MEGAPIPE_TCP_PLANTED` names a bug.
#[cfg(tcp_planted)]
pub(crate) fn planted(bug: Bug) -> bool {
    use std::sync::LazyLock;
    static NAME: LazyLock<String> =
        LazyLock::new(|| std::env::var("MEGAPIPE_TCP_PLANTED").unwrap_or_default());
    // Only names of the enum are ever asked for; a name that is none plants nothing, and the script
    // reports a bug that was not found.
    !NAME.is_empty() && format!("{bug:?}") == *NAME
}
