//! TCP in safe Rust, without I/O and without a clock. **Experimental.**
//!
//! [`Host`] is a TCP endpoint with addresses of its own: packets go in, packets come out, and
//! between them are listeners, connections and bytes. Its user brings the packets (a TUN device, a
//! link in memory, a test) and the time.
//!
//! Inside are two layers. `core` moves sequence numbers, not bytes: it decides what a segment
//! changes, what is sent and when. `host` owns the bytes: send queues, reassembly, IPv4 and IPv6,
//! checksums, ICMP. Both take bursts of packets, share nothing between threads, allocate nothing
//! once they are made, and bound everything: see [`Limits`].
//!
//! Over a host stand [`sockets`]: descriptors, the calls of POSIX, readiness by level and by edge.
//!
//! What it implements, clause by clause, and what it does not yet: `docs/tcp.md` of the repository.
#![forbid(unsafe_code)]

mod config;
mod control;
mod core;
mod event;
mod host;
pub mod sockets;
mod time;

pub use config::{Config, Initial, Limits, Prefix, Profile};
pub use control::{Control, Reno, Window};
pub use core::calls::{ConnectError, Info, ListenError};
pub use core::listen::Pattern;
pub use core::seq::{Seq, Span};
pub use core::state::State;
pub use event::{Answer, Ask, Event, Failure, Flow, Listener, Ready, Reason};
pub use host::{Host, Read, ReadError, WriteError};
pub use packet;
pub use time::Time;
