//! `megapipe doctor`: what this kernel, container and network card offer, what Megapipe uses instead of what is
//! missing, and the command that would mend it. It only reads.

use std::io::{self, Write};
use std::process::ExitCode;

use sys::capabilities::Capabilities;

use finding::Finding;
use system::System;

mod confinement;
mod cpu;
mod engine;
mod finding;
mod limits;
mod network;
mod report;
mod ring;
mod sysctl;
mod system;
mod tun;

/// Show what this system offers, what Megapipe uses instead of what is missing, and what would mend it
///
/// Exit status: 0 if Megapipe can run here (on io_uring or on epoll), 1 if it cannot.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Print one JSON document instead of text
    ///
    /// Its fields: schema (1), megapipe, kernel, machine, runs, engine ("uring", "epoll" or null), engine_reason, and
    /// findings, each with area, name, found, verdict ("ok", "note" or "missing"), instead and remedy (null where there
    /// is nothing to say).
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let system = System::this();
    let capabilities = Capabilities::get();
    let engine = engine::Choice::make(capabilities, &system);

    let mut findings: Vec<Finding> = Vec::new();
    findings.extend(engine::findings(&engine, &system));
    findings.extend(ring::findings(capabilities, engine.engine, &system));
    findings.extend(limits::findings(&system, engine.engine));
    findings.extend(sysctl::findings(&system));
    findings.extend(confinement::findings(capabilities, &system));
    findings.extend(cpu::findings(&system));
    findings.extend(network::findings(&system));
    findings.extend(tun::findings(&system));

    let report = report::Report::new(&system, &engine, findings);
    let text = if arguments.json { report.json() } else { report.text() };
    if let Err(error) = io::stdout().write_all(text.as_bytes()) {
        // A closed pipe (`megapipe doctor | head`) is the reader's wish, not a failure.
        if error.kind() != io::ErrorKind::BrokenPipe {
            eprintln!("megapipe: cannot write the report: {error}");
            return ExitCode::FAILURE;
        }
    }
    if engine.runs() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
