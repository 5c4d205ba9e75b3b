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
//! The two share two rings, and for each side one word with the number of its sleep. They share nothing else: no
//! lock, no socket, no buffer. The program's threads take turns by the lock of their context (`registry`), which
//! the stack's thread never takes. `Front` answers `read`, `write`, `accept`, `close` and epoll from what events have
//! brought. A call that sets a socket up is a function that runs in the stack's thread while the caller waits
//! ([`Front::run`]).
//!
//! **Ownership.** Bytes move in chunks of a page, and a chunk moves in a message: the side that has popped the
//! message owns the chunk. The program fills a chunk in `mtcp_write`; the stack copies it into its TCP and returns it.
//! The stack fills a chunk with received bytes; the program copies them out in `mtcp_read` and returns it. An idle
//! connection has no chunk. Socket numbers are the stack's. A number is reused only after its close was done, so all
//! events of the former socket come before the first one of the new socket.
//!
//! **Back-pressure.** A connection has at most [`SENDING_MAX`] bytes, in [`CHUNKS_MAX`] chunks, on their way to its
//! TCP. Then `mtcp_write` is partial or returns EAGAIN, and the stack reports room once it has taken all of them. At
//! most [`CHUNKS_MAX`] chunks of received bytes are with the program: further bytes stay in the TCP's buffer, which
//! closes its window. At most [`ACCEPTS_MAX`] connections of a listener wait in the program: further ones stay in
//! its backlog. If the ring of events is full, the stack leaves sockets as they are, and goes on when there is
//! room. If the ring of jobs is full, the program waits for the stack, which never waits for the program.
//!
//! **Wake-ups.** A thread stores the number of its sleep, and checks its ring once more before it sleeps. The other
//! one publishes, and then loads that number (`sleep.rs`). Returned chunks wake the other side only if it may have
//! run out of them.

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
