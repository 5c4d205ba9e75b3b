//! The monitor: matches the two endpoints of a same-host TCP connection and gives both
//! the shared memory that their bytes then move through. It carries no data; a granted
//! connection works on without it.
//!
//! One thread, one epoll set, threads that close what clients sent, and on demand one
//! that checks for a successor. Control path: nothing here is hot.

mod client;
mod closing;
mod declined;
mod examined;
mod grant;
mod http;
mod ledger;
mod listener;
mod matcher;
mod metrics;
mod offers;
mod partners;
mod place;
pub mod policy;
mod policy_file;
mod process;
mod scrape;
mod server;
mod sharing;
mod succession;
mod verify;
mod view;

pub use listener::{Access, ListenError, Listener, ensure_deserted};
pub use scrape::MetricsAddress;
pub use server::{Monitor, OnDemand, Options, RunError};
