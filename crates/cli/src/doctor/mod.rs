//! `megapipe doctor`: what this kernel, container and network card offer, what Megapipe uses instead of what is
//! missing, and the command that would mend it. It only reads.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::process::ExitCode;

use sys::capabilities::Capabilities;

use finding::Finding;
use monitor::Reach;
use process::Process;
pub(crate) use system::{System, hex_mask, parse_list, parse_mask};

mod confinement;
mod cpu;
mod engine;
mod finding;
mod limits;
mod listen;
mod monitor;
mod network;
mod peers;
mod process;
mod profile;
mod program;
mod report;
mod ring;
mod steering;
mod sysctl;
mod system;
mod tun;

/// Check this system, or one program, for what keeps connections on TCP, and show how to change that
///
/// Without an argument: what this system offers, the effect of what is missing, and the monitor that this user's programs
/// reach. With a program or process: that monitor, what its policy allows, whether the library is or can be loaded into the
/// program, and the next command to type.
///
/// Exit status: 0 if Megapipe can run here (on io_uring or on epoll), or if nothing keeps the program on TCP; else 1, also
/// if the process cannot be read.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A program, searched for in PATH, or the number of a process
    #[arg(value_name = "PROGRAM|PID")]
    subject: Option<OsString>,

    /// Print one JSON document instead of text
    ///
    /// Its fields: schema (1), megapipe, kernel, machine, runs, engine ("uring", "epoll" or null), engine_reason, and
    /// findings, each with area, name, found, verdict ("ok", "note" or "missing"), instead and remedy (null where there
    /// is nothing to say). For a program: schema, megapipe, kernel, machine, findings, and next, the command to type.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let system = System::this();
    let (text, fine) = match &arguments.subject {
        Some(subject) => {
            let report = match of_subject(subject, &system) {
                Ok(report) => report,
                Err(message) => {
                    eprintln!("megapipe doctor: {message}");
                    return ExitCode::FAILURE;
                }
            };
            (if arguments.json { report.json() } else { report.text() }, report.is_fine())
        }
        None => {
            let (report, runs) = of_system(&system);
            (if arguments.json { report.json() } else { report.text() }, runs)
        }
    };
    if let Err(error) = io::stdout().write_all(text.as_bytes()) {
        // A closed pipe (`megapipe doctor | head`) is the reader's wish, not a failure.
        if error.kind() != io::ErrorKind::BrokenPipe {
            eprintln!("megapipe doctor: the report cannot be written: {error}");
            return ExitCode::FAILURE;
        }
    }
    if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn of_system(system: &System) -> (report::Report, bool) {
    let capabilities = Capabilities::get();
    let engine = engine::Choice::make(capabilities, system);

    let mut findings: Vec<Finding> = Vec::new();
    findings.extend(engine::findings(&engine, system));
    findings.extend(ring::findings(capabilities, engine.engine, system));
    findings.extend(limits::findings(system, engine.engine));
    findings.extend(sysctl::findings(system));
    findings.extend(confinement::findings(capabilities, system));
    findings.extend(cpu::findings(system));
    findings.extend(network::findings(system));
    findings.push(steering::finding());
    findings.extend(tun::findings(system));
    findings.extend(own_reach().findings());
    (report::Report::new(system, &engine, findings), engine.runs())
}

/// The monitor that this user's programs reach.
fn own_reach() -> Reach {
    let named = promote::Options::from_environment("doctor").socket.is_some();
    Reach::find(rustix::process::geteuid().as_raw(), promote::viewer::places(None), named)
}

fn of_subject(subject: &OsStr, system: &System) -> Result<report::OfSubject, String> {
    let pid = subject.to_str().and_then(|text| text.parse::<u32>().ok());
    let (reach, (findings, next)) = match pid {
        Some(pid) => {
            let process = Process::find(pid).ok_or_else(|| {
                format!("there is no process {pid}; `pgrep -l NAME` finds one by its name; for a program file of that name type ./{pid}")
            })?;
            let reach = Reach::find(process.user, process.places(), process.names_monitor());
            let found = process.findings(&reach, system);
            (reach, found)
        }
        None => {
            let reach = own_reach();
            let found = program::findings(subject, &reach, system);
            (reach, found)
        }
    };
    let findings = reach.findings().into_iter().chain(findings).collect();
    Ok(report::OfSubject::new(system, findings, next))
}
