//! `megapipe run`: a program as it is, with the library in front of its libc. This process becomes the program, so
//! its pid, descriptors, signals and exit status are the program's own.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;

use environment::Environment;
use program::Program;

mod demand;
mod elf;
mod environment;
mod glibc;
mod library;
mod program;
pub(crate) mod recorder;
mod signals;

/// Run a program so that its TCP connections with programs on this host use shared memory
///
/// Start both programs of a connection this way. A connection that cannot use shared memory stays on TCP. The program
/// replaces this process: pid, signals, descriptors and exit status are its own. For unit files and containers each option
/// has a variable of the environment, too: MEGAPIPE_PROMOTE, MEGAPIPE_SPIN, MEGAPIPE_IO_URING, MEGAPIPE_STATS=1,
/// MEGAPIPE_LOG, MEGAPIPE_ONLY, MEGAPIPE_NOT, MEGAPIPE_LOCAL_LISTEN=1 and MEGAPIPE_VERBOSE=1; MEGAPIPE_MONITOR is the monitor's socket,
/// MEGAPIPE_PRELOAD the library. An option overrides its variable.
///
/// Exit status: the program's; 125 if Megapipe fails, 126 if the program cannot be executed, 127 if it is not found, 2 if an
/// option is not valid.
#[derive(clap::Args)]
#[command(override_usage = "megapipe run [OPTIONS] [--] PROGRAM [ARGUMENTS]...", after_long_help = NOTES)]
pub(crate) struct Arguments {
    /// Which connections with this host are promoted to shared memory [default: auto]
    #[arg(long, value_name = "WHEN")]
    promote: Option<When>,

    /// Microseconds to poll for messages before sleeping; auto measures how long that pays [default: auto]
    #[arg(long, value_name = "US|auto", value_parser = spin)]
    spin: Option<String>,

    /// Take io_uring rings that the library cannot follow (liburing's, as MariaDB has) for used on files only; if they touch sockets, bytes may be lost [default: auto]
    #[arg(long, value_name = "files|auto", value_parser = ["auto", "files"])]
    io_uring: Option<String>,

    /// Print a summary when the program, and each process that it starts, exits: connections, why some stayed on TCP, messages, bytes, system calls avoided
    #[arg(long)]
    stats: bool,

    /// Append summaries to this file instead of standard error
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// Promote only connections with one of these ports on either side
    #[arg(long, value_name = "PORT,..", value_parser = ports)]
    only: Option<String>,

    /// Promote no connections with one of these ports on either side
    #[arg(long, value_name = "PORT,..", value_parser = ports)]
    not: Option<String>,

    /// Experimental: a listen queue for each worker of a server, with the shared one as its slow path
    ///
    /// Connections are accepted on the CPU that handled their SYN, unless the worker there is busy, behind or stopped: then
    /// any worker accepts them. For servers whose processes or threads wait for one listener by epoll; needs CAP_BPF.
    #[arg(long)]
    local_listen: bool,

    /// Print a line for each listener that gets such queues, or why it does not
    #[arg(long, requires = "local_listen")]
    verbose: bool,

    /// The program, searched for in PATH, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// What the manual page and `--help` say besides.
const NOTES: &str = "\
Examples:
  megapipe run -- redis-server                      and, in another shell:
  megapipe run --stats -- redis-benchmark -t get
  megapipe run --only 6379 --log /var/log/mp.log -- server --option

Why a connection stays on TCP, one word in the summary of --stats:
  no-peer         the other program is not under `megapipe run`, is under another monitor, or keeps the
                  connection on TCP: its own --stats says why
  other-user      it is another user's: sudo megapipe setup --allow A:B
  policy          /etc/megapipe/monitor.toml forbids it, or does not let this user's programs share
  quota           a user has all the memory, offers or clients of the policy's [limits]
  rate            too many offers a second; it is offered again
  no-memory       memory, mappings or descriptors have run out
  other-host      the peer is on another host
  closed-early    it was closed before it could be promoted
  no-monitor      no monitor answered: megapipe doctor
  version         the monitor is of another version: systemctl restart megapipe-monitor
  namespace       both are root's, and one is in a container: `same_user = true` in monitor.toml
  little-traffic  too few messages for shared memory to pay
  observe, ports  excluded by --promote observe, --only or --not
  option          it uses an option or urgent data that only the kernel has
  io_uring        the program uses io_uring for it, or unseen: if for files alone, --io-uring files
  bypass          bytes bypassed the library: exclude the port with --not
  shared          several processes or epoll sets use it
  busy            a call was in progress whenever it could have been promoted
  confined        the process forbids itself system calls (seccomp)

Limits: static programs, most Go programs, setuid programs and programs that use liburing stay on TCP, and so do connections \
that are handed to another program (exec, system(3), descriptors in messages); their unread bytes are sent again, or the \
connection is reset where that is not possible. A program that bypasses libc with system calls on a promoted socket reads \
wrong bytes: `--promote observe` finds such programs, and `--not` excludes their ports.

See also: megapipe-doctor(1), megapipe-setup(1), megapipe-top(1), megapipe-monitor(1); docs/run.md in the sources.";

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum When {
    /// Never: the program runs without the library
    Off,
    /// Never, but count them, and the bytes that bypass the library
    Observe,
    /// Once there is enough traffic: some messages each way, at more than a hundred a second
    Auto,
    /// At once
    Eager,
}

fn spin(text: &str) -> Result<String, String> {
    match text.parse::<u32>() {
        Ok(0..=LONGEST_SPIN) => Ok(text.into()),
        _ if text == "auto" => Ok(text.into()),
        _ => Err(format!("expected auto, or a number of microseconds from 0 to {LONGEST_SPIN}")),
    }
}

fn ports(text: &str) -> Result<String, String> {
    let is_port = |port: &str| port.trim().parse::<u16>().is_ok_and(|port| port > 0);
    if text.split(',').all(is_port) {
        Ok(text.into())
    } else {
        Err("expected a list of port numbers from 1 to 65535, as in 6379,8080".into())
    }
}

/// Microseconds; a program that needs more needs a core of its own.
const LONGEST_SPIN: u32 = 1_000_000;

/// Why the program does not run.
struct Failure {
    status: u8,
    message: String,
}

impl Failure {
    /// Megapipe itself is to blame, as it is with env(1) and timeout(1).
    fn own(message: String) -> Failure {
        Failure { status: 125, message }
    }
}

/// What `megapipe run` would find out about a program before it becomes it.
pub(crate) struct Inspected {
    pub(crate) path: PathBuf,
    /// The library, or why there is none.
    pub(crate) library: Result<PathBuf, String>,
    /// What keeps the library out of the program, and what would help.
    pub(crate) obstacle: Option<(String, &'static str)>,
}

/// The file that `megapipe run` executes for this name.
pub(crate) fn file_of(name: &OsStr) -> Option<PathBuf> {
    Program::find(name).ok().map(|program| program.path)
}

/// # Errors
///
/// There is no such program.
pub(crate) fn inspect(name: &OsStr) -> Result<Inspected, String> {
    let program = Program::find(name).map_err(|failure| failure.message)?;
    let library = library::find().map_err(|failure| failure.message);
    let obstacle = library.as_ref().ok().and_then(|library| program.obstacle(library));
    Ok(Inspected {
        obstacle: obstacle.map(|obstacle| (obstacle.to_string(), obstacle.remedy())),
        library: library.map(|library| library.path),
        path: program.path,
    })
}

/// Becomes the program; returns only if that fails.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let failure = start(arguments);
    eprintln!("megapipe run: {}", failure.message);
    failure.status.into()
}

fn start(arguments: Arguments) -> Failure {
    match prepare(&arguments) {
        Ok((program, environment)) => {
            let arguments: Vec<CString> =
                arguments.command.iter().filter_map(|text| c_string(text)).collect();
            signals::restore();
            let Some(path) = c_string(program.path.as_os_str()) else { return program.not_found() };
            program.not_executed(sys::process::execute(&path, &arguments, &environment.strings()))
        }
        Err(failure) => failure,
    }
}

fn prepare(arguments: &Arguments) -> Result<(Program, Environment), Failure> {
    let mut environment = Environment::of_this_process();
    let promote = environment.settle(arguments)?;
    let program = Program::find(&arguments.command[0])?;
    let promotes = promote != When::Off;
    if !promotes && arguments.stats {
        warn(
            "no summary is printed, as nothing is counted (--promote off); to count connections without promoting any: --promote observe",
        );
    }
    if !promotes && !environment.has_local_listen() {
        environment.leave_out_library();
        return Ok((program, environment));
    }
    let library = library::find()?;
    if let Some(obstacle) = program.obstacle(&library) {
        warn(&format!("{obstacle}: its connections stay on TCP; remedy: {}", obstacle.remedy()));
        if !obstacle.bears_library() {
            environment.leave_out_library();
            return Ok((program, environment));
        }
        environment.put_library_first(&library.path);
        environment.record();
        return Ok((program, environment));
    }
    environment.put_library_first(&library.path);
    if promotes {
        environment.record();
    }
    // What is wrong with the monitor is no reason not to run the program.
    if promotes
        && promote != When::Observe
        && let Err(line) = demand::provide()
    {
        warn(&line);
    }
    Ok((program, environment))
}

fn warn(message: &str) {
    eprintln!("megapipe run: {message}");
}

/// Arguments and variables of a process hold no 0.
fn c_string(text: &OsStr) -> Option<CString> {
    CString::new(text.as_bytes()).ok()
}
