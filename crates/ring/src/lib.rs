//! The data plane of a promoted connection: what its two endpoints do with their shared
//! memory, without any system call. `docs/promotion.md` is the specification; comments
//! cite its sections.
//!
//! Each endpoint owns one region ([`Segment`]): the ring that it sends through, and every
//! word that it writes. It maps the peer's region read-only ([`PeerSegment`]). A
//! [`Sender`] and a [`Receiver`] are the two halves of one endpoint. The kernel
//! connection belongs to the caller: it reports to the halves how many bytes the kernel
//! accepted and delivered, and asks the receiver how to classify delivered bytes.
#![deny(unsafe_code)]

#[cfg(all(test, not(ring_loom)))]
extern crate self as ring;

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
mod wake_up;

pub use layout::LayoutError;
pub use lock::{Acquired, Direction, Lock, LockError, Wait};
pub use memory::{PeerSegment, Segment};
pub use parts::Lane;
pub use receiver::{Ahead, Front, Here, Leaving, Ready, Receiver};
pub use sender::Sender;
#[cfg(not(ring_loom))]
pub use view::{LoopView, SegmentView, Words};
pub use wake_up::{LoopPage, PeerLoop, WakeUp};

/// A word of the peer that violates the protocol. The connection ends as by a reset:
/// ECONNRESET here, RST to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Corrupt {
    /// `tail` decreased, or advanced by more than the ring's length.
    #[error("the other end published more than its ring holds, or took back what it published")]
    Tail,
    /// `base` moved while bytes were in the ring.
    #[error("the other end moved its ring's base under unread bytes")]
    Base,
    /// `head` decreased, or advanced beyond the bytes sent.
    #[error("the other end took ring bytes that were never sent, or gave some back")]
    Head,
    /// More unread records than the region has places for.
    #[error("the other end published more parts than there are records")]
    Parts,
    /// `parts_taken` decreased, or advanced beyond the records published.
    #[error("the other end passed parts that were never opened")]
    PartsTaken,
    /// A run begins before the bytes consumed already.
    #[error("the other end opened a part before the place that was reached")]
    RecordStart,
    /// A record names the wrong path, or begins before the TCP-path bytes consumed
    /// already.
    #[error("the other end opened a part in an impossible lane or place")]
    RecordLane,
    /// The peer was demoted with unread ring bytes behind which others went through the
    /// kernel.
    #[error("the other end left while bytes lay in both lanes, and none can be sent again in order")]
    Left,
    /// `given_back` exceeds its bound.
    #[error("the other end gave back more than it was sent")]
    GivenBack,
}

/// Both halves of one endpoint, for a thread that uses both.
#[derive(Clone, Debug, Hash)]
pub struct End {
    /// The sending half.
    pub sender: Sender,
    /// The receiving half.
    pub receiver: Receiver,
}

impl End {
    /// The endpoint that owns `own`.
    ///
    /// # Errors
    /// The peer violated the protocol.
    pub fn new(own: Segment, peer: PeerSegment) -> Result<End, Corrupt> {
        let sender = Sender::new(own.clone(), peer.clone());
        Ok(End { sender, receiver: Receiver::new(own, peer)? })
    }

    /// [`Sender::write`], which also uses the head that the receiver half loaded last,
    /// and publishes its own.
    ///
    /// # Errors
    /// The peer consumed bytes that were never sent.
    #[inline]
    pub fn write<'a>(
        &mut self,
        slices: impl IntoIterator<Item = &'a [u8]>,
        limit: usize,
    ) -> Result<usize, Corrupt> {
        self.sender.write(slices, limit, Some(&mut self.receiver))
    }

    /// Publishes the message counts in the region, for monitoring.
    #[inline]
    pub fn tell_counts(&mut self) {
        self.sender.publish_count();
        self.receiver.publish_count();
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
