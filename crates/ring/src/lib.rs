//! The data plane of a promoted connection: what its two endpoints do with their shared
//! memory, without any system call. `docs/promotion.md` is the specification; comments
//! cite its sections.
//!
//! Each endpoint owns one region ([`Region`]): the ring that it sends through, and every
//! word that it writes. It maps the peer's region read-only ([`PeerRegion`]). A
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
mod receiver;
mod runs;
mod sender;
mod stamp;
mod sync;
#[cfg(not(ring_loom))]
mod view;
mod wake_up;

pub use layout::LayoutError;
pub use lock::{Acquired, Direction, Lock, LockError, Wait};
pub use memory::{PeerRegion, Region};
pub use receiver::{Ahead, DemotionStep, Front, Here, Ready, Receiver};
pub use runs::Path;
pub use sender::Sender;
#[cfg(not(ring_loom))]
pub use view::{LoopView, RegionView, Words};
pub use wake_up::{LoopPage, PeerLoop, WakeUp};

/// A word of the peer that violates the protocol. The connection ends as by a reset:
/// ECONNRESET here, RST to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Corrupt {
    /// `tail` decreased, or advanced by more than the ring's length.
    #[error("the peer published more than its ring holds, or withdrew published bytes")]
    Tail,
    /// `base` moved while bytes were in the ring.
    #[error("the peer moved its ring's base under unread bytes")]
    Base,
    /// `head` decreased, or advanced beyond the bytes sent.
    #[error("the peer consumed ring bytes that were never sent, or moved its head back")]
    Head,
    /// More unread records than the region has places for.
    #[error("the peer published more runs than there are records")]
    Runs,
    /// `runs_passed` decreased, or advanced beyond the records published.
    #[error("the peer passed runs that were never opened")]
    RunsPassed,
    /// A run begins before the bytes consumed already.
    #[error("the peer opened a run before the position that was reached")]
    RecordStart,
    /// A record names the wrong path, or begins before the TCP-path bytes consumed
    /// already.
    #[error("the peer opened a run on an impossible path or position")]
    RecordPath,
    /// The peer was demoted with unread ring bytes behind which others went through the
    /// kernel.
    #[error("the peer was demoted while bytes lay on both paths, and none can be resent in order")]
    Demoted,
    /// `returned` exceeds its bound.
    #[error("the peer returned more than it was sent")]
    Returned,
}

/// Both halves of one endpoint, for a thread that uses both.
#[derive(Clone, Debug, Hash)]
pub struct Endpoint {
    /// The sending half.
    pub sender: Sender,
    /// The receiving half.
    pub receiver: Receiver,
}

impl Endpoint {
    /// The endpoint that owns `own`.
    ///
    /// # Errors
    /// The peer violated the protocol.
    pub fn new(own: Region, peer: PeerRegion) -> Result<Endpoint, Corrupt> {
        let sender = Sender::new(own.clone(), peer.clone());
        Ok(Endpoint { sender, receiver: Receiver::new(own, peer)? })
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
    pub fn publish_counts(&mut self) {
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
