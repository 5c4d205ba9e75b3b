//! The `megapipe` command: one binary, a verb for each thing Megapipe does.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod doctor;
mod documentation;
mod library;
mod monitor;
mod monitors;
mod programs;
mod run;
mod setup;
mod shell;
mod top;

const ABOUT: &str = "Carry TCP connections between programs on one host through shared memory";

const FIRST_STEP: &str = "\
Start here, with both programs of a connection:
  megapipe run -- SERVER            and, in another shell:
  megapipe run --stats -- CLIENT
Then `megapipe top` shows what goes through shared memory. If nothing does: megapipe doctor PROGRAM";

#[derive(Parser)]
#[command(name = "megapipe", version, about = ABOUT, after_help = FIRST_STEP)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Doctor(doctor::Arguments),
    Monitor(monitor::Arguments),
    Run(run::Arguments),
    Setup(setup::Arguments),
    Top(top::Arguments),
    #[command(hide = true)]
    Record(run::recorder::Arguments),
    #[command(hide = true)]
    GenerateDocs(documentation::Arguments),
}

fn main() -> ExitCode {
    match Arguments::parse().verb {
        Verb::Doctor(arguments) => doctor::run(arguments),
        Verb::Monitor(arguments) => monitor::run(arguments),
        Verb::Run(arguments) => run::run(arguments),
        Verb::Setup(arguments) => setup::run(arguments),
        Verb::Record(arguments) => run::recorder::run(arguments),
        Verb::Top(arguments) => top::run(arguments),
        Verb::GenerateDocs(arguments) => documentation::run(arguments),
    }
}
