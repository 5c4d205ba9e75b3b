//! Promotion: how a TCP connection between two programs on one host moves its bytes to
//! shared memory. The messages to the monitor, which matches the two endpoints, and the
//! client's side of that protocol.

pub mod client;
mod connection;
mod machine;
mod place;
pub mod policy;
mod reason;
pub mod recorder;
pub mod summary;
pub mod viewer;
pub mod watch;
pub mod wire;

pub use client::{Answer, Client, Doorbells, OfferError, Options, PeerLoop, ReceiveError};
pub use connection::{AdoptError, Connection, HoldError, OtherLoop, OwnLoop};
pub use machine::{KernelEnd, Machine, Next};
pub use place::{ConnectError, Place, SYSTEM_SOCKET};
pub use reason::Reason;
