//! A monitor for the program that is about to start: the one that answers, or one of this
//! user's own, which nothing else starts.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use promote::{Client, ConnectError, Options, Place};

/// How long a monitor that was started, and the answer of one that runs, is waited for. Starting one takes a few milliseconds; later, the program finds it
/// by itself.
const PATIENCE: Duration = Duration::from_millis(50);
/// Between two looks for it.
const PAUSE: Duration = Duration::from_millis(1);
/// How long it waits for clients: programs of a user may rest for a while before they connect to each other, and none of
/// them starts another.
const LINGER_SECONDS: u32 = 3600;

/// What answers where monitors are searched for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Presence {
    Absent,
    /// It answers, or is so busy that its answer is not waited for.
    Found,
    OtherVersion,
}

/// Finds or starts a monitor.
///
/// # Errors
///
/// Why there is none, and what to do: one line.
pub(super) fn provide() -> Result<(), String> {
    let options = Options::from_environment("run");
    let outcome = match (look(&options), &options.socket) {
        (Ok(Presence::Absent), Some(named)) => {
            let path = named.display();
            return Err(format!(
                "no monitor answers at {path}, which MEGAPIPE_MONITOR names, so connections stay on TCP; unset it, or \
                 start one there: megapipe monitor --socket {path}"
            ));
        }
        (Ok(Presence::Absent), None) => start(&options),
        (found, _) => found,
    };
    match outcome {
        Ok(Presence::Found) => Ok(()),
        Ok(Presence::OtherVersion) => {
            Err("the running monitor is of another version than this program, so connections stay on TCP; restart it: \
                 systemctl restart megapipe-monitor (one that `megapipe run` started exits within 10 s of an upgrade)"
                .into())
        }
        Ok(Presence::Absent) => {
            Err("no monitor answers and none could be started, so connections stay on TCP until there is one; to see \
                 what is wrong, start one with: megapipe monitor"
                .into())
        }
        Err(error) => Err(format!("connections stay on TCP: {error}")),
    }
}

fn look(options: &Options) -> Result<Presence, ConnectError> {
    let mut client = Client::connect(options)?;
    let end = Instant::now() + PATIENCE;
    while client.fd().is_some() && Instant::now() < end {
        match client.receive() {
            Ok(None) => std::thread::sleep(PAUSE),
            Ok(Some(_)) => return Ok(Presence::Found),
            Err(loss) if loss.cause.is_version() => return Ok(Presence::OtherVersion),
            Err(_) => return Ok(Presence::Absent),
        }
    }
    Ok(if client.fd().is_some() { Presence::Found } else { Presence::Absent })
}

/// Starts this program as the user's own monitor, and waits until it answers. The rest of the environment is meant for
/// the program.
fn start(options: &Options) -> Result<Presence, ConnectError> {
    Place::own().prepare()?;
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("megapipe")
        .args(["monitor", "--on-demand", "--linger", &LINGER_SECONDS.to_string()])
        .env_clear();
    // All that decides the place, beside the user.
    if let Some(runtime) = &options.runtime_directory {
        command.env("XDG_RUNTIME_DIR", runtime);
    }
    if sys::process::start_detached(&mut command).is_err() {
        return Ok(Presence::Absent);
    }
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        match look(options)? {
            Presence::Absent => std::thread::sleep(PAUSE),
            found => return Ok(found),
        }
    }
    Ok(Presence::Absent)
}
