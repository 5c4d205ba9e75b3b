//! What the servers of this folder are made of besides their protocols: addresses, threads with a channel each,
//! connections, limits, and an orderly end. A protocol is a [`Service`].

mod address;
mod connection;
mod output;
mod resources;
mod server;
mod service;
mod worker;

use std::error::Error;
use std::io::IsTerminal;
use std::process::ExitCode;

use tracing::level_filters::LevelFilter;

pub use output::{Output, Segment};
pub use resources::memory;
pub use server::{Server, ServerArguments, ServerError};
pub use service::{Next, Progress, Service, Traffic};

/// Runs a server until SIGINT or SIGTERM. What `MEGAPIPE_LOG` asks for (`debug`, say) goes to stderr.
pub fn serve(program: &str, server: impl FnOnce() -> Result<(), Box<dyn Error>>) -> ExitCode {
    let level = std::env::var("MEGAPIPE_LOG").ok().and_then(|level| level.parse().ok());
    let log = tracing_subscriber::fmt().with_max_level(level.unwrap_or(LevelFilter::WARN));
    log.with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal()).init();
    match server() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {}", with_causes(&*error));
            ExitCode::FAILURE
        }
    }
}

/// An error and what caused it, in one line; a cause that is in its effect's message is left out.
fn with_causes(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !line.contains(&message) {
            line.push_str(": ");
            line.push_str(&message);
        }
        cause = error.source();
    }
    line
}
