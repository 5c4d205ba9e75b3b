//! `megapipe serve echo`: sends back what it receives.

use std::error::Error;

use super::output::Output;
use super::server::{Server, ServerArguments};
use super::service::{Next, Progress, Service, Traffic};

/// The echo service (RFC 862).
struct Echo;

pub(crate) fn run(arguments: &ServerArguments) -> Result<(), Box<dyn Error>> {
    let server = Server::bind(arguments)?;
    Ok(server.run(Echo)?)
}

impl Service for Echo {
    type Session = ();

    fn receive(&self, _thread: usize, (): &mut (), input: &[u8], output: &mut Output) -> Progress {
        output.push(input);
        // Input comes a pool buffer at a time, and what was held back is bounded: no need to stop.
        let next = if output.is_full() { Next::Drain } else { Next::Read };
        Progress { next, consumed: input.len() }
    }

    fn refusal(&self) -> &'static [u8] {
        b""
    }

    fn count(&self, _thread: usize, _traffic: Traffic) {}
}
