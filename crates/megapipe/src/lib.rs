//! The MegaPipe channel: completion-based, batched, per-core I/O.
//!
//! A [`Channel`] belongs to one thread. Files are registered with it and become
//! [`Handle`]s; calls on handles ([`Channel::read`], [`Channel::write`], ...) queue
//! operations, and [`Channel::dispatch`] hands out their [`Completion`]s one by one
//! (MegaPipe, OSDI 2012, section 3); [`Channel::run`] is the loop around it. Operations go to
//! the kernel in batches and completions are fetched in batches, on io_uring where the kernel
//! allows it and on epoll elsewhere: the calls and their results are the same on both.
//!
//! # Layers
//!
//! `Channel` (what may be called) -> `Core` (tables and queues, the rules that hold on
//! every engine) -> `Engine` (one `turn`: hand the queued requests to the kernel, wait,
//! fetch what is done). The engine is chosen once, and called once per batch.
#![deny(unsafe_code)]

mod accept;
mod buffer;
mod channel;
mod closing;
mod completion;
mod config;
mod control;
mod core;
mod engine;
mod error;
mod foreign;
mod id;
mod lwsocket;
mod now;
mod op_list;
mod operations;
mod pages;
mod partition;
mod poll;
mod promoted;
mod promotion;
mod quota;
mod read;
mod readiness;
mod rejected;
mod run;
mod slab;
mod source;
mod spin;
#[cfg(feature = "tcp")]
mod stack;
mod stats;
mod steering;
mod timer;
mod waker;
mod write;

pub use accept::{AcceptAs, AcceptCount, Accepted};
#[doc(hidden)]
pub use buffer::Foreign;
pub use buffer::{Buffer, ReadData, WriteData};
pub use channel::Channel;
pub use completion::{Completion, Event};
pub use config::{Config, EngineKind, LatencyBound, Promotion, Spin};
pub use engine::sockets::{KeepAlive, SocketInfo};
#[cfg(feature = "tcp")]
pub use engine::stack::Stack;
#[cfg(feature = "tcp")]
pub use error::AttachError;
pub use error::{
    AcceptError, CancelError, ControlError, CreateError, DispatchError, OpenError, PoolDry, RegisterError,
    StaleHandle, SubmitError, UnregisterError,
};
pub use id::{Handle, OpId};
pub use lwsocket::LwSocket;
#[cfg(feature = "tcp")]
pub use packet::{self, TunNetwork, TunNetworkError};
pub use partition::{CpuSet, PartitionError};
pub use readiness::Readiness;
pub use rejected::Rejected;
pub use socket2::SockAddr;
pub use source::Source;
pub use stats::Stats;
pub use std::net::Shutdown;
#[cfg(feature = "tcp")]
pub use tcp;
pub use waker::Waker;

/// The program of the channel's page is compiled with the documentation's examples.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/channel.md")]
struct Page;
