//! The benchmark of Megapipe: scenarios, load, peers, records and plots.
//!
//! [`rpc`] is the micro-benchmark of the MegaPipe paper (OSDI 2012, section 5.1). One process is
//! both the controller and the client ([`load`]); every server is a child process of it that
//! runs one [`peer`] and nothing else, so that its CPU time and its system calls are its own.
//! [`pair`] measures what carries bytes between two processes of one host, both of them children.
//! [`mmsg`] is the workload of the recvmmmsg proposal: many sockets with a small message each.
//! [`tcp`] is user-level TCP on a TUN device beside the kernel's, [`path`] over paths with a round trip.
//! [`listen`] measures the listen queues of servers, with and without queues of their own for workers.
//! [`apps`] measures servers that people run, with and without the preload library.
//! Results leave as [`record`]s; [`views`] say what they are about, and [`table`] and [`plot`] are made
//! from records alone.

pub mod apps;
mod child;
pub mod clock;
pub mod cpu;
pub mod engine;
mod epoll;
pub mod floor;
pub mod listen;
pub mod load;
pub mod mmsg;
mod names;
mod network;
pub mod options;
pub mod pair;
pub mod part;
pub mod path;
pub mod peer;
pub mod plot;
mod process;
pub mod product;
pub mod record;
mod region;
mod ring;
pub mod rpc;
pub mod run;
pub mod summary;
pub mod syscalls;
pub mod table;
pub mod tcp;
pub mod view;
pub mod views;

/// Why something failed, in words for the user of the benchmark.
pub type Reason = Box<dyn std::error::Error + Send + Sync>;

/// What failed, before the words of its cause.
pub(crate) fn failed<E: Into<Reason>>(what: impl std::fmt::Display) -> impl FnOnce(E) -> Reason {
    move |cause| format!("{what}: {}", with_causes(&*Into::<Reason>::into(cause))).into()
}

/// An error with its causes, in one line; one that quotes its cause says it once.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = error.source();
    }
    text
}
