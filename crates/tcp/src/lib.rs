//! TCP in safe Rust, without I/O and without a clock. **Experimental.**
//!
//! [`Host`] is a TCP endpoint with addresses of its own: packets go in, packets come out, and
//! between them are listeners, connections and bytes. Its user brings the packets (a TUN device, a
//! link in memory, a test) and the time. It has no thread: it answers only while it is called.
//!
//! # Two hosts, and packets that the caller carries
//!
//! ```
//! use tcp::packet::{Batch, Capabilities, Frame, Offload};
//! use tcp::{Config, Host, Pattern, Prefix, Read, Time};
//!
//! /// Takes packets of a host as bytes, from the IP header on.
//! fn leave(host: &mut Host, now: Time) -> Vec<Vec<u8>> {
//!     let (mut batch, mut packets) = (Batch::new(64 << 10), Vec::new());
//!     loop {
//!         let more = host.output(now, &mut batch);
//!         packets.extend(batch.frames().map(|frame| frame.bytes.to_vec()));
//!         batch.clear();
//!         if !more {
//!             return packets;
//!         }
//!     }
//! }
//!
//! /// Gives packets to a host.
//! fn arrive(host: &mut Host, now: Time, packets: &[Vec<u8>]) {
//!     host.input(now, packets.iter().map(|bytes| Frame { bytes, offload: Offload::default() }));
//!     host.advance(now);
//! }
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // The host writes whole packets of up to 1,500 bytes, with checksums.
//!     let capabilities = Capabilities { mtu: 1500, checksum: false, segment: 0 };
//!     let host = |address: &str, seed| -> Result<Host, Box<dyn std::error::Error>> {
//!         let addresses = vec![Prefix::one(address.parse()?)];
//!         // A real program takes the seed from getrandom(2).
//!         Ok(Host::new(Config::new(addresses, capabilities), [seed; 32]))
//!     };
//!     let (mut client, mut server) = (host("10.0.0.1", 1)?, host("10.0.0.2", 2)?);
//!
//!     let now = Time::from_micros(0);
//!     let listener = server.listen(Pattern { address: None, port: Some(7) }, 16)?;
//!     let flow = client.connect(now, None, None, "10.0.0.2:7".parse()?)?;
//!     // SYN, SYN-ACK, ACK.
//!     arrive(&mut server, now, &leave(&mut client, now));
//!     arrive(&mut client, now, &leave(&mut server, now));
//!     arrive(&mut server, now, &leave(&mut client, now));
//!     let accepted = server.accept(listener).ok_or("no connection")?;
//!
//!     client.write(now, flow, b"hello")?;
//!     arrive(&mut server, now, &leave(&mut client, now));
//!     let mut bytes = [0; 64];
//!     assert_eq!(server.read(now, accepted, &mut bytes)?, Read::Bytes(5));
//!     assert_eq!(&bytes[..5], b"hello");
//!     Ok(())
//! }
//! ```
//!
//! A program with a loop waits until packets arrive or [`Host::deadline`] has come, and learns from
//! [`Host::event`] what happened: `examples/link.rs` does so, over devices of crate [`packet`].
//!
//! # What is where
//!
//! | for | see |
//! |---|---|
//! | calls on connections | [`Host`] |
//! | a connection as `Read` and `Write` | [`Host::stream`] |
//! | descriptors, the calls of POSIX, readiness by level and by edge | [`sockets`] |
//! | what memory and work a peer can cause, each with a name | [`Limits`] |
//! | timeouts | [`Profile`] |
//! | congestion control of one's own | [`Control`], [`Host::with_control`] |
//! | a SYN that waits for a decision, as forwarders need it | [`Host::listen_asking`], [`Ask`] |
//! | devices, offloads, faults on purpose | [`packet`] |
//!
//! Inside are two layers. `core` moves sequence numbers, not bytes: it decides what a segment
//! changes, what is sent and when. `host` owns the bytes: send queues, reassembly, IPv4 and IPv6,
//! checksums, ICMP. Both take bursts of packets, share nothing between threads, and allocate nothing
//! once they are made.
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

pub use config::{Config, Initial, KeepAlive, Limits, Marking, Offers, Profile};
pub use control::{Acked, Control, Cubic, CubicMemory, Reno, Window};
pub use core::calls::{ConnectError, Info, ListenError};
pub use core::listen::Pattern;
pub use core::seq::{Seq, Span};
pub use core::state::State;
pub use event::{Answer, Ask, Event, Failure, Flow, Listener, Ready, Reason};
pub use host::{Host, Read, ReadError, Stream, WriteError};
pub use packet::{self, Prefix};
pub use time::Time;
