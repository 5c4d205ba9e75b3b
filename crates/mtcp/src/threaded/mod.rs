//! A stack in a thread of its own, as mTCP has it: it answers while the program computes.
//!
//! ```text
//!   program's threads, in turn                 the stack's thread
//!  +---------------------------+              +----------------------+
//!  | numbers, epoll sets,      |  -- jobs ->  | TCP, sockets, timers |
//!  | what sockets are ready for|              | device               |
//!  | (Front)                   |  <- events - | (Back)               |
//!  +---------------------------+              +----------------------+
//! ```
//!
//! The two share two rings and two words that say who sleeps, and nothing else: no lock, no socket, no buffer.
//! `Front` answers `read`, `write`, `accept`, `close` and epoll from what events have brought; what sets a
//! socket up is a function that runs in the stack's thread while the caller waits ([`Front::run`]).
//!
//! **Who owns what.** Bytes move in chunks of a page, and a chunk moves in a message: the side that has popped
//! the message owns it. The program fills a chunk in `mtcp_write`; the stack copies it into its TCP and gives it
//! back. The stack fills a chunk with what has arrived; the program copies it out in `mtcp_read` and gives it
//! back. An idle connection has no chunk. Socket numbers are the stack's: a number is given out again after its
//! close was done, and all events of the former socket come before the first of the new one.
//!
//! **Back-pressure.** A connection has at most [`SENDING_MAX`] bytes and [`CHUNKS_MAX`] chunks on their way to its
//! TCP: then `mtcp_write` is partial or would block, and the stack reports room once it has taken them all. At most
//! [`CHUNKS_MAX`] chunks of received bytes are with the program: further ones stay in the TCP's buffer, which
//! closes its window. At most [`ACCEPTS_MAX`] connections of a listener wait in the program: further ones stay in
//! its backlog. Where the ring of events is full, the stack leaves sockets as they are and goes on when there is
//! room; where the ring of jobs is full, the program waits for the stack, which never waits for the program.
//!
//! **Wake-ups.** A thread says that it sleeps and looks into its ring once more; the other one publishes and
//! then looks who sleeps (`sleep.rs`). Returned chunks wake nobody, unless the other side has run out of them.

mod back;
mod front;
#[cfg(all(test, mtcp_loom))]
mod loom_tests;
mod message;
mod ring;
mod sleep;
mod start;
mod sync;

pub(crate) use front::Front;
pub(crate) use message::Kind;
pub(crate) use start::start;

/// Places of each ring.
const PLACES: usize = 1024;

/// Places that only a result and the end of a torn stack may use.
const RESERVED: usize = 2;

/// Bytes of a connection on their way to its TCP.
const SENDING_MAX: usize = 64 << 10;

/// Chunks of a connection on their way to its TCP, or with the program.
const CHUNKS_MAX: usize = 32;

/// Connections of a listener that the program has not accepted yet.
const ACCEPTS_MAX: usize = 256;
