//! A monitor for the program that is about to start: the one that answers, or one of this
//! user's own, which nothing else starts.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use promote::{Client, ConnectError, Options, Place};

/// How long a monitor that was started is waited for. Starting one takes a few milliseconds; later, the program finds it
/// by itself.
const PATIENCE: Duration = Duration::from_millis(50);
/// Between two looks for it.
const PAUSE: Duration = Duration::from_millis(1);
/// How long it waits for clients: programs of a user may rest for a while before they connect to each other, and none of
/// them starts another.
const LINGER_SECONDS: u32 = 3600;

/// Finds or starts a monitor.
///
/// # Errors
///
/// Why there is none, and what to do: one line.
pub(super) fn provide() -> Result<(), String> {
    let options = Options::from_environment("run");
    let answers = || Client::connect(&options).map(|client| client.fd().is_some());
    let outcome = match (answers(), &options.socket) {
        (Ok(false), Some(named)) => {
            let path = named.display();
            return Err(format!(
                "no monitor answers at {path}, which MEGAPIPE_MONITOR names, so connections stay on TCP; unset it, or \
                 start one there: megapipe monitor --socket {path}"
            ));
        }
        (Ok(false), None) => start(&Place::own(), answers),
        (found, _) => found,
    };
    match outcome {
        Ok(true) => Ok(()),
        Ok(false) => Err(
            "no monitor answers and none could be started, so connections stay on TCP until there is one; \
                          to see what is wrong, start one with: megapipe monitor"
                .into(),
        ),
        Err(error) => Err(format!("connections stay on TCP: {error}")),
    }
}

/// Starts this program as the user's own monitor, and waits until it answers. It inherits nothing from the environment,
/// which is meant for the program.
fn start(place: &Place, answers: impl Fn() -> Result<bool, ConnectError>) -> Result<bool, ConnectError> {
    place.prepare()?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("megapipe").args([
        "monitor",
        "--on-demand",
        "--linger",
        &LINGER_SECONDS.to_string(),
        "--socket",
    ]);
    command.arg(place.path()).env_clear();
    if sys::process::start_detached(&mut command).is_err() {
        return Ok(false);
    }
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if answers()? {
            return Ok(true);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(false)
}
