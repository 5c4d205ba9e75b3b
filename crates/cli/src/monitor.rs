//! `megapipe monitor`: the daemon that matches the endpoints of same-host connections.

mod log;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use ::monitor::{Access, ListenError, Listener, MetricsAddress, Monitor, OnDemand};
use clap::{Args, ValueEnum};
use promote::client::POLICY_FILE;
use promote::{Options, Place};
use tracing::level_filters::LevelFilter;

/// Run the daemon that gives connections between programs on this host their shared memory
///
/// `megapipe run` starts one for its user where none answers; `sudo megapipe setup` enables one for all users.
///
/// Runs in the foreground until SIGTERM or SIGINT. Reads the policy again on SIGHUP, and when a client connects after the file
/// has changed. Takes over the socket of a systemd
/// .socket unit if it was started by one. MEGAPIPE_LOG chooses what is logged: error, warn, info (the default), debug.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Where to listen [default: $MEGAPIPE_MONITOR; else /run/megapipe/monitor.sock for root (root.sock with --on-demand),
    /// $XDG_RUNTIME_DIR/megapipe/monitor.sock or /tmp/megapipe-UID/monitor.sock for others]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Policy: who may share memory with whom, and how much [default: /etc/megapipe/monitor.toml if that exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Serve metrics (OpenMetrics over HTTP) at a loopback address such as 127.0.0.1:9464, or at the path of a UNIX socket
    #[arg(long, value_name = "ADDR|PATH")]
    metrics: Option<MetricsAddress>,

    /// Serve this user only, as `megapipe run` starts it. Exit once there has been no client for the time of --linger, a
    /// system monitor answers (without --socket), or this executable was replaced; exit at once, successfully, if another
    /// monitor listens
    #[arg(long)]
    on_demand: bool,

    /// Seconds without a client after which a monitor with --on-demand exits
    #[arg(long, value_name = "SECONDS", default_value_t = 10, requires = "on_demand")]
    linger: u32,

    /// Replace standard output and error by /dev/null once it listens: before, `megapipe run` reads them
    #[arg(long, hide = true, requires = "on_demand")]
    release_output: bool,

    /// Only check that no monitor listens at --socket: before systemd binds a socket there, for which it would remove
    /// another's
    #[arg(long, hide = true, requires = "socket", conflicts_with = "on_demand")]
    check_deserted: bool,

    /// The IPC namespace is this process's own (systemd: PrivateIPC=yes): message queues may be made there
    #[arg(long, hide = true)]
    private_ipc: bool,

    /// Format of the log lines on stderr
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// Runs until it is told to end.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let chosen = std::env::var("MEGAPIPE_LOG").ok().filter(|level| !level.is_empty());
    let level = chosen.as_ref().map_or(Ok(LevelFilter::INFO), |level| level.parse());
    let log = tracing_subscriber::fmt()
        .with_max_level(*level.as_ref().unwrap_or(&LevelFilter::INFO))
        .with_writer(|| log::Line);
    match arguments.log_format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    // For `megapipe run` the same variable names a file.
    if let (Some(chosen), Err(_)) = (chosen.filter(|chosen| !chosen.starts_with('/')), level) {
        tracing::warn!("MEGAPIPE_LOG={chosen} is no level; choose error, warn, info or debug");
    }
    match serve(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            // The reader may be gone.
            let _ = writeln!(std::io::stderr(), "megapipe monitor: {message}");
            ExitCode::FAILURE
        }
    }
}

fn serve(arguments: Arguments) -> Result<(), String> {
    if let Some(path) = arguments.socket.as_ref().filter(|_| arguments.check_deserted) {
        return ::monitor::ensure_deserted(path).map_err(|error| error.to_string());
    }
    let inherited = sys::process::activated_listener()
        .map_err(|error| format!("the socket from the service manager cannot be used: {error}; check ListenSequentialPacket= in the .socket unit"))?;
    let is_chosen = arguments.socket.is_some();
    let named = arguments.socket.or_else(|| Options::from_environment("monitor").socket);
    // Its clients are configured for that place and do not search the system's.
    let gives_way_to = named.is_none().then(Place::system);
    let (listener, place) = match inherited {
        Some(socket) => {
            if is_chosen {
                return Err("--socket cannot be combined with a socket from the service manager; \
                            set ListenSequentialPacket= in the .socket unit instead"
                    .into());
            }
            (Listener::inherited(socket), "the service manager's socket".to_owned())
        }
        None => {
            let path = match named {
                Some(path) => path,
                None => usual_place(arguments.on_demand)?,
            };
            // Everybody may connect to root's, whose policy decides; to others only their user.
            let root = rustix::process::geteuid().is_root();
            let access = if root && !arguments.on_demand { Access::Everybody } else { Access::User };
            (Listener::bind(&path, access), path.display().to_string())
        }
    };
    let listener = match listener {
        Err(ListenError::Running { .. }) if arguments.on_demand => return Ok(()),
        outcome => outcome.map_err(|error| error.to_string())?,
    };
    if arguments.on_demand {
        // Executed as /proc/self/exe, it is called "exe" in ps(1) and top(1).
        let _ = rustix::thread::set_name(c"megapipe");
    }
    allow_descriptors();
    let queues = may_make_queues(arguments.private_ipc);
    // The usual file is read once it comes into being.
    let policy_optional = arguments.config.is_none();
    let policy = arguments.config.unwrap_or_else(|| POLICY_FILE.into());
    let is_there = policy.exists();
    if !is_there && policy_optional && !arguments.on_demand && rustix::process::geteuid().is_root() {
        tracing::warn!(
            "there is no policy at {POLICY_FILE}, so only root's programs share memory; to let users share: sudo megapipe setup"
        );
    }
    let described = if is_there { policy.display().to_string() } else { "built in".to_owned() };
    let linger = Duration::from_secs(arguments.linger.into());
    let on_demand = arguments.on_demand.then_some(OnDemand { linger, gives_way_to });
    let options = ::monitor::Options {
        policy: Some(policy),
        policy_optional,
        metrics: arguments.metrics,
        on_demand,
        signals: true,
        queues,
    };
    let monitor = Monitor::new(listener, options).map_err(|error| error.to_string())?;
    tracing::info!(socket = place, policy = described, "the monitor listens");
    if arguments.release_output {
        release_output().map_err(|error| format!("/dev/null cannot take its output: {error}"))?;
    }
    monitor.run().map_err(|error| error.to_string())
}

fn release_output() -> std::io::Result<()> {
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(rustix::stdio::dup2_stderr(&null)?)
}

/// Where a monitor listens if nothing says otherwise: root's for the whole system, unless it is on demand, another's for
/// that user.
fn usual_place(on_demand: bool) -> Result<PathBuf, String> {
    let root = rustix::process::geteuid().is_root();
    let place = if root && !on_demand { Place::system() } else { Place::own() };
    place.prepare().map_err(|error| error.to_string())?;
    Ok(place.path().to_owned())
}

/// Each client takes two descriptors: the limit that select(2) once needed is raised to the highest allowed.
fn allow_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::debug!(%error, "the limit of descriptors stays as it is");
    }
}

/// Bytes of message queues (RLIMIT_MSGQUEUE), some hundred each: half of each user's default, which
/// counts for all programs of root.
const QUEUES: u64 = 409_600;

/// Whether this process may make message queues: in an IPC namespace of its own, whose
/// directory no other process reads.
fn may_make_queues(is_private: bool) -> bool {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use rustix::thread::{UnshareFlags, unshare_unsafe};
    if !rustix::process::geteuid().is_root() {
        // It serves one user.
        return false;
    }
    let limit = getrlimit(Resource::Msgqueue);
    let current = Some(limit.current.map_or(QUEUES, |current| current.min(QUEUES)));
    let bounded = setrlimit(Resource::Msgqueue, Rlimit { current, ..limit });
    let separated = bounded.and_then(|()| match is_private {
        true => Ok(()),
        // SAFETY: no other thread is there, and nothing of this process lies in its IPC namespace.
        false => unsafe { unshare_unsafe(UnshareFlags::NEWIPC) },
    });
    match separated {
        Ok(()) => true,
        Err(error) => {
            tracing::debug!(%error, "there are no message queues: two users wake each other over TCP");
            false
        }
    }
}
