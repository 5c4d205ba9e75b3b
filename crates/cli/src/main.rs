//! The `megapipe` command: one binary, a verb for each thing Megapipe does.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
mod doctor;
mod documentation;
mod library;
mod monitor;
mod run;
mod serve;
mod top;

#[derive(Parser)]
#[command(name = "megapipe", version, about = "Scalable network I/O for Linux servers")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Measure Megapipe beside what people use today
    Bench(bench::Arguments),
    Doctor(doctor::Arguments),
    Monitor(monitor::Arguments),
    Run(run::Arguments),
    /// Run a ready-made server
    Serve(serve::Arguments),
    Top(top::Arguments),
    #[command(hide = true)]
    GenerateDocs(documentation::Arguments),
}

fn main() -> ExitCode {
    match Arguments::parse().verb {
        Verb::Bench(arguments) => bench::run(arguments),
        Verb::Doctor(arguments) => doctor::run(arguments),
        Verb::Monitor(arguments) => monitor::run(arguments),
        Verb::Run(arguments) => run::run(arguments),
        Verb::Serve(arguments) => serve::run(arguments),
        Verb::Top(arguments) => top::run(arguments),
        Verb::GenerateDocs(arguments) => documentation::run(arguments),
    }
}
