//! Which listening socket of a SO_REUSEPORT group takes a connection: the member of the CPU that
//! handled its SYN, unless the member's owner is away or behind.
//!
//! Steering by CPU alone keeps a connection where its packets arrive, but sends connections to a
//! thread that hangs until it comes back. Here a BPF program also reads three words that each owner
//! shares with it ([`Owner`]), and takes the slow path for an owner that does not accept: another
//! member, or a socket that all share. The connections in the queue of a member that closes move to
//! others, whatever net.ipv4.tcp_migrate_req says.
//!
//! Everything is inherited by fork, and by exec where the caller keeps the descriptors open
//! ([`Inherited`]). Members join and leave from any of the processes, also from those
//! that have dropped the privileges that [`Steering::new`] needs (since Linux 5.19:
//! before, every bpf(2) command needs them where unprivileged BPF is off).
#![forbid(unsafe_code)]
#![cfg_attr(steering_loom, allow(unused))] // the model is of the table alone

#[cfg(not(steering_loom))]
mod inherited;
#[cfg(all(test, not(steering_loom)))]
mod policy;
#[cfg(not(steering_loom))]
mod program;
#[cfg(not(steering_loom))]
mod steering;
mod table;

#[cfg(not(steering_loom))]
pub use inherited::Inherited;
#[cfg(not(steering_loom))]
pub use program::{AWAY_MAX, BEHIND_MAX, SlowPath};
#[cfg(not(steering_loom))]
pub use steering::{JoinError, Owner, Slot, Steering};
