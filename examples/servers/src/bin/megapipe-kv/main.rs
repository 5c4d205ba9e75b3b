//! A cache that speaks the memcached text protocol. To be read in this order:
//! `command.rs` parses a line, `store.rs` has the items, `session.rs` brings them
//! together.

mod command;
mod session;
mod store;

use std::time::Instant;

use clap::Parser;
use store::Store;

/// What `version` answers: clients read the first three numbers as the memcached release
/// whose commands they may use.
const VERSION: &str = concat!("1.6.0-megapipe-", env!("CARGO_PKG_VERSION"));

/// A cache that speaks the memcached text protocol
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    server: servers::ServerArguments,
    /// Memory for items, in MiB, of which the least used are evicted; requests that come
    /// in part have 64 MiB besides
    #[arg(long, value_name = "MIB", default_value = "64", value_parser = clap::value_parser!(u64).range(8..1 << 40))]
    memory_limit: u64,
}

/// What all connections share.
struct Cache {
    store: Store,
    threads: usize,
    started: Instant,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let store = Store::new(arguments.memory_limit << 20);
    let cache = Cache { store, threads: arguments.server.threads(), started: Instant::now() };
    servers::serve(&arguments.server, 11211, cache)
}
