//! What carries packets.

use std::io;

use crate::Batch;

/// What a device can do for its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Longest packet that the device sends as one, in bytes with the IP header.
    pub mtu: usize,
    /// Whether it takes packets with [partial checksums](crate::Checksum::Partial).
    pub checksum: bool,
    /// Longest packet that it takes to cut into segments; 0 when it cuts none.
    pub segment: usize,
}

/// A device, or one queue of one.
pub trait Device {
    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Appends received packets to the batch, until it is full or nothing is left. Returns their
    /// number; 0 means that nothing was there.
    fn receive(&mut self, batch: &mut Batch) -> io::Result<usize>;

    /// Sends the frames of the batch, oldest first, and removes what it sent. Frames stay when
    /// the device is busy. A frame that the device refuses is dropped, as on a wire.
    fn send(&mut self, batch: &mut Batch) -> io::Result<usize>;
}
