//! `megapipe serve`: ready-made servers on channels.

mod address;
mod connection;
mod echo;
mod kv;
mod output;
mod resources;
mod server;
mod service;
mod worker;

use std::error::Error;
use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

/// Arguments of `megapipe serve`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    service: ServiceArguments,
}

#[derive(Subcommand, Debug)]
enum ServiceArguments {
    /// Sends back what it receives (RFC 862).
    Echo(server::ServerArguments),
    /// A cache that speaks the memcached text protocol.
    Kv(kv::KvArguments),
}

/// Serves until SIGINT or SIGTERM. What `MEGAPIPE_LOG` asks for (`debug`, say) goes to stderr.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::WARN.into());
    let filter = filter.with_env_var("MEGAPIPE_LOG").from_env_lossy();
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).init();
    let result = match arguments.service {
        ServiceArguments::Echo(arguments) => echo::run(&arguments),
        ServiceArguments::Kv(arguments) => kv::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("megapipe serve: {}", with_causes(&*error));
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
