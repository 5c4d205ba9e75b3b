//! A monitor for a program that is about to be started. Unlike a client's look, this waits.

use std::time::{Duration, Instant};

use crate::client::{Client, ConnectError, Options};

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// A monitor answers.
    Found,
    /// None does, and root's own would share nothing without a policy, so none was started.
    NoPolicy,
    /// None does: it may not be started, is not installed, or does not come up in time.
    Absent,
}

/// Between two looks for a monitor that comes up.
const PAUSE: Duration = Duration::from_millis(1);

/// Looks for a monitor, and starts one of the user's own where `options` allow it. A monitor
/// that was started is waited for, at most `patience` long; no child of this process is left.
///
/// # Errors
///
/// Only what looking again would not mend, as for [`Client::connect`].
pub fn ensure_monitor(options: &Options, patience: Duration) -> Result<Presence, ConnectError> {
    let looks = Options { start: false, ..options.clone() };
    if is_there(&looks)? {
        return Ok(Presence::Found);
    }
    if options.start && options.needs_policy() {
        return Ok(Presence::NoPolicy);
    }
    let command = if options.start { options.monitor_command(&options.own_place())? } else { None };
    let Some(mut command) = command else { return Ok(Presence::Absent) };
    if sys::process::start_detached(&mut command).is_err() {
        return Ok(Presence::Absent);
    }
    let end = Instant::now() + patience;
    while Instant::now() < end {
        if is_there(&looks)? {
            return Ok(Presence::Found);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(Presence::Absent)
}

fn is_there(options: &Options) -> Result<bool, ConnectError> {
    Ok(Client::connect(options)?.fd().is_some())
}
