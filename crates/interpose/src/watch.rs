//! How an endpoint notices the next bytes of its ring.

/// Changes only in `arming`, and where a wake-up is seen.
///
/// ```text
///                  bytes are here already
///            +---------------------------------+
///            v                                 |
///        Unarmed ------ a wait, a read ----> (arm) ---- nothing is here ----> Armed
///            ^                                 ^                               |
///            | outside a set                   | before a sleep,               | a wake-up
///            |                                 | or quiet for a while          v
///          (heat) ---- in a set, bytes came --> Hot <------------ (heat) --- Stale
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    /// By the next call, which polls: the peer sends no wake-up.
    Unarmed,
    /// By its set, which polls it while awake: the peer wakes the set, if that sleeps.
    Hot,
    /// By a wake-up.
    Armed,
    /// As `Armed`, but the wake-up may have come already.
    Stale,
}

impl Watch {
    /// After a request for a wake-up, if no bytes were here.
    pub(crate) fn armed_unless(pending: bool) -> Watch {
        if pending { Watch::Unarmed } else { Watch::Armed }
    }

    pub(crate) fn is_armed(self) -> bool {
        matches!(self, Watch::Armed | Watch::Stale)
    }

    /// A wake-up was seen, which may have been the requested one.
    pub(crate) fn note_wake_up(&mut self) {
        if *self == Watch::Armed {
            *self = Watch::Stale;
        }
    }
}
