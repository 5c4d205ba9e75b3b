//! The data plane of a promoted connection: what two ends do with the memory they share,
//! without any system call. `docs/promotion.md` has the specification; sections are cited.
//!
//! Each end owns a [`Segment`]: the ring of what it sends, and every word that it writes. It
//! sees the other end's as a [`PeerSegment`]. A [`Sender`] and a [`Receiver`] are the two
//! halves of one end. What the kernel connection carries is the caller's: it tells the
//! halves what the kernel took and gave, and asks them what these bytes are.
#![deny(unsafe_code)]

#[cfg(all(test, not(ring_loom)))]
extern crate self as ring;

mod bell;
pub mod layout;
mod lock;
#[cfg_attr(ring_loom, path = "memory_model.rs")]
mod memory;
mod parts;
mod receiver;
mod sender;
mod stamp;
mod sync;
#[cfg(not(ring_loom))]
mod view;

pub use bell::{LoopPage, PeerLoop, WakeUp};
pub use layout::LayoutError;
pub use lock::{Acquired, Direction, Lock, LockError, Wait};
pub use memory::{PeerSegment, Segment};
pub use parts::Lane;
pub use receiver::{Ahead, Front, Here, Leaving, Ready, Receiver};
pub use sender::Sender;
#[cfg(not(ring_loom))]
pub use view::{LoopView, SegmentView, Words};

/// A word of the other end that no end which keeps to the rules would write. The connection
/// ends as by a reset: ECONNRESET here, RST to the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Corrupt {
    /// `tail` went back, or further than the ring is long.
    #[error("the other end published more than its ring holds, or took back what it published")]
    Tail,
    /// `base` moved while bytes were in the ring.
    #[error("the other end moved its ring's base under unread bytes")]
    Base,
    /// `head` went back, or beyond what was sent.
    #[error("the other end took ring bytes that were never sent, or gave some back")]
    Head,
    /// More parts than there are records.
    #[error("the other end published more parts than there are records")]
    Parts,
    /// `parts_taken` went back, or beyond what was published.
    #[error("the other end passed parts that were never opened")]
    PartsTaken,
    /// A part begins before what was taken already.
    #[error("the other end opened a part before the place that was reached")]
    RecordStart,
    /// A record is of the wrong lane, or begins before what the TCP lane has given already.
    #[error("the other end opened a part in an impossible lane or place")]
    RecordLane,
    /// It left over ring bytes behind which others went through the kernel.
    #[error("the other end left while bytes lay in both lanes, and none can be sent again in order")]
    Left,
    /// `given_back` is more than it can be.
    #[error("the other end gave back more than it was sent")]
    GivenBack,
}

/// Both halves of one end, for a thread that uses both.
#[derive(Clone, Debug, Hash)]
pub struct End {
    /// What this end sends.
    pub sender: Sender,
    /// What this end receives.
    pub receiver: Receiver,
}

impl End {
    /// The end that `own` belongs to.
    ///
    /// # Errors
    /// The other end's words are nonsense.
    pub fn new(own: Segment, peer: PeerSegment) -> Result<End, Corrupt> {
        let sender = Sender::new(own.clone(), peer.clone());
        Ok(End { sender, receiver: Receiver::new(own, peer)? })
    }

    /// [`Sender::write`], with what the receiver half knows and has to tell.
    ///
    /// # Errors
    /// The other end has taken what was never sent.
    #[inline]
    pub fn write<'a>(
        &mut self,
        slices: impl IntoIterator<Item = &'a [u8]>,
        limit: usize,
    ) -> Result<usize, Corrupt> {
        self.sender.write(slices, limit, Some(&mut self.receiver))
    }

    /// Stores how many messages were counted, where whoever looks on sees it.
    #[inline]
    pub fn tell_counts(&mut self) {
        self.sender.tell_count();
        self.receiver.tell_count();
    }
}

#[cfg(all(test, not(ring_loom)))]
#[allow(unsafe_code)]
mod hostile;
#[cfg(all(test, ring_loom))]
mod loom_tests;
#[cfg(all(test, not(ring_loom)))]
mod model_tests;
#[cfg(all(test, not(ring_loom)))]
mod support;
#[cfg(all(test, not(ring_loom)))]
mod unit_tests;
