//! The beginning and the end of a program's run.

use std::io::Write;

use crate::fork;
use crate::holders;
use crate::promoter;
use crate::settings::{Mode, Settings};
use crate::sockets;
use crate::spin;
use crate::stats;
use crate::table;

/// Begins to watch this process's sockets, once, before the program's own code runs. Without
/// it every function of [`crate::calls`] is the kernel's.
pub fn start(settings: Settings) {
    if settings.mode == Mode::Off
        || sockets::make().and_then(|()| holders::make()).and_then(|()| table::make()).is_err()
    {
        return;
    }
    fork::remember_process();
    spin::fix(settings.spin);
    promoter::start(settings);
}

/// Writes the summary that MEGAPIPE_STATS asks for; at exit.
pub fn finish(settings: &Settings) {
    if !settings.stats {
        return;
    }
    let name = std::env::current_exe().unwrap_or_default();
    let name = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let summary = stats::summary(&name, std::process::id());
    let _ = match &settings.log {
        Some(path) => std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .and_then(|mut file| file.write_all(summary.as_bytes())),
        None => std::io::stderr().write_all(summary.as_bytes()),
    };
}
