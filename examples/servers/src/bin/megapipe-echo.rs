//! Sends back what it receives (RFC 862).

use std::process::ExitCode;

use clap::Parser;
use servers::{Next, Output, Progress, Server, ServerArguments, Service, Traffic};

/// Sends back what it receives (RFC 862)
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    server: ServerArguments<8080>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    servers::serve("megapipe-echo", || Ok(Server::bind(&arguments.server)?.run(Echo)?))
}

struct Echo;

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
