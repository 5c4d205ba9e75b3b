//! libmegapipe_mtcp: the calls of mTCP (NSDI 2014) over [`tcp::sockets`] and a TUN device.
//! **Experimental.**
//!
//! `include/mtcp_api.h` and `include/mtcp_epoll.h` declare what programs for mTCP call;
//! `include/mtcp_device.h` adds contexts on packets and a clock of the caller's. What differs from
//! mTCP is in `docs/mtcp.md` of the repository.
//!
//! * `registry`: contexts as C has them, and the threads that use them in turn;
//! * [`lifecycle`], [`socket`], [`transfer`], [`epoll`]: the calls;
//! * `context`: what the program has of a context: numbers, epoll sets, pipes, and its stack; `link`: where that
//!   stack is, here or in a thread of its own;
//! * `stack`: a TCP, its sockets, its device, the local ports that are answered on its queue of that, and the turn
//!   that moves packets;
//! * `threaded`: a stack in a thread of its own: the rings between it and the program;
//! * `carrier`: TUN devices and those of the caller;
//! * `files`, `pipe`: what the numbers of a context stand for;
//! * `idle`: connections on which nothing moves;
//! * `config`: the configuration file; `signal`: handlers that end waits; `cpu`, `fork`: where a thread runs, and
//!   in which process; `errno`, `address`: conversions.
//!
//! It is a library of its own, since its names are mTCP's: a program that links libmegapipe gets
//! none of them, and this one does not depend on the channel.

mod address;
mod carrier;
mod config;
mod context;
mod cpu;
pub mod epoll;
mod errno;
mod files;
mod fork;
mod idle;
pub mod lifecycle;
mod link;
mod pipe;
mod registry;
mod signal;
pub mod socket;
mod stack;
mod threaded;
pub mod transfer;

pub use registry::{Handle, Opaque};
