//! IP packets in batches, and the devices that carry them. **Experimental.**
//!
//! * [`Batch`] holds up to 64 packets in one piece of memory. [`Frame`] is one of them; its
//!   [`Offload`] says what a device still has to do to it: complete a checksum, cut it into
//!   segments.
//! * [`Device`] moves batches. [`link::pair`] makes two devices joined in memory;
//!   [`tun::Tun`] is the kernel's TUN device with checksum and segmentation offload. [`group`] is
//!   one device for several stacks, and [`ports`] has the local ports that the kernel answers on
//!   a stack's own queue. [`TunNetwork`] reads a device and its addresses from text.
//! * [`pump`] moves packets between a device and a TCP. [`Datagrams`] beside a TCP hands UDP to the program.
//! * [`Faulty`] wraps any device and loses, repeats, reorders, delays, corrupts, marks, cuts,
//!   joins and overlaps packets, repeatably, from a seed and under a clock of the caller.
//!
//! Nothing but [`pump::Pump`] reads a clock. Devices take and give IP packets, without a link header.
#![deny(unsafe_code)]

mod batch;
mod checksum;
mod datagram;
mod device;
#[cfg(feature = "tun")]
mod doorbell;
mod faults;
pub mod link;
mod prefix;
pub mod pump;
pub mod segment;
mod view;

#[cfg(feature = "tun")]
pub mod group;
#[cfg(feature = "tun")]
mod network;
#[cfg(feature = "tun")]
pub mod ports;
#[cfg(feature = "tun")]
mod sys;
#[cfg(feature = "tun")]
pub mod tun;
#[cfg(feature = "tun")]
mod vnet;

pub use batch::{BATCH_FRAMES, Batch, Checksum, Frame, Full, Offload};
pub use checksum::{Sum, pseudo_header};
pub use datagram::{DATAGRAMS_MAX, Datagram, Datagrams};
pub use device::{Capabilities, Device};
pub use faults::{Direction, Faults, Faulty, Random};
#[cfg(feature = "tun")]
pub use network::{TunNetwork, TunNetworkError};
pub use prefix::Prefix;
pub use view::{Protocol, View};
