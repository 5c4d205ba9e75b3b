//! `megapipe top`: which programs share memory, and how much goes through it.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use source::Sources;

mod live;
mod report;
mod source;
mod table;
mod watch;

/// Show the connections in shared memory, their programs and monitors, and the traffic of each
///
/// A monitor runs once a program was started with `megapipe run -- PROGRAM`. Users see their own programs; root and the
/// user who runs a monitor see all. Keys: q or Ctrl-C quits, the arrow keys, Page Up and Page Down scroll through the
/// connections.
#[derive(clap::Args)]
#[command(after_long_help = COLUMNS)]
pub(crate) struct Arguments {
    /// The monitor's socket [default: $MEGAPIPE_MONITOR; else both /run/megapipe/monitor.sock and
    /// $XDG_RUNTIME_DIR/megapipe/monitor.sock or /tmp/megapipe-UID/monitor.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Print one table and exit
    #[arg(long)]
    once: bool,

    /// Print one JSON document instead of the table
    ///
    /// Its fields: schema (1), interval_s, and monitors, each with its totals, refusals by reason, processes, and
    /// connections with one or two endpoints. Numbers that cannot be read, and rates without an interval, are null.
    #[arg(long, requires = "once")]
    json: bool,

    /// Seconds between two readings, over which rates are computed: at least 0.1; with --once any, and 0 for one reading
    /// without rates
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
}

/// What the titles of the columns stand for.
const COLUMNS: &str = "\
Programs, one a line:
  CLIENTS      its connections to the monitor
  AWAKE        how many of them are not asleep in epoll_wait or the like
  PROMOTED     its endpoints of promoted connections
  SENT, RECV   messages and bytes a second, all its promoted connections together
Connections, a line for each endpoint:
  RECEIVES BY  polling: reads the ring by itself; wake-up: the peer wakes it through the kernel
  VIA          what carries the next byte it sends: ring (shared memory) or tcp
  SENT         messages and bytes a second; MESSAGES, BYTES: all that it sent
  WAKE-UPS     bytes sent through the kernel to wake the peer
  FULL         how full its ring is";

/// The shortest --interval of a live view: more often is not readable.
const LEAST_INTERVAL: Duration = Duration::from_millis(100);

fn interval(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected a number of seconds from 0 to 3600".into()),
    }
}

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    match show(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            // A terminal that has gone takes no words.
            let _ = writeln!(io::stderr(), "megapipe top: {message}");
            ExitCode::FAILURE
        }
    }
}

fn show(arguments: Arguments) -> Result<(), String> {
    let interval = Duration::from_secs_f64(arguments.interval);
    let terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    if !arguments.once && !terminal {
        return Err("the live view needs a terminal; use --once, or --once --json in scripts".into());
    }
    if !arguments.once && interval < LEAST_INTERVAL {
        let least = LEAST_INTERVAL.as_secs_f64();
        return Err(format!(
            "the live view needs an --interval of at least {least} s; with --once it may be shorter"
        ));
    }
    let mut sources = Sources::new(arguments.socket);
    if !arguments.once {
        return live::run(&mut sources, interval);
    }
    let mut report = sources.query()?;
    if !interval.is_zero() {
        std::thread::sleep(interval);
        report = sources.query()?;
    }
    let text = if arguments.json { report.json() } else { table::text(&report) };
    match io::stdout().write_all(text.as_bytes()) {
        // A closed pipe (`megapipe top --once | head`) is the reader's wish, not a failure.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("the report cannot be written: {error}"))
        }
        _ => Ok(()),
    }
}
