//! What the servers of this folder have in common: an address, a thread with a channel
//! for each CPU, connections with back-pressure, and an orderly end. [`serve`] makes a
//! server of a protocol, which is a [`Service`].
//!
//! To be read in this order: `server.rs`, `worker.rs`, `connection.rs`, `output.rs`.

mod connection;
mod output;
mod server;
mod worker;

use std::ops::ControlFlow;

pub use output::Output;
pub use server::{ServerArguments, serve};

/// A protocol, and what its connections share. One value serves all threads.
pub trait Service: Send + Sync + 'static {
    /// What a connection keeps from one call to the next, besides its input.
    type Session: Default;

    /// Answers requests at the beginning of `input`, until one is incomplete or the
    /// output is full. Returns how many bytes it consumed: the others come again, with
    /// those that follow them. A client may send without end, so a service has to refuse
    /// what is too long. `Break` closes the connection behind the output.
    fn receive(
        &self,
        session: &mut Self::Session,
        input: &[u8],
        output: &mut Output,
    ) -> ControlFlow<(), usize>;

    /// What a client reads for which there is no room: one connection or one byte too
    /// many.
    fn refusal(&self) -> &'static [u8];
}
