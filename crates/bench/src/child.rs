//! Processes that are part of a measurement, as their controller sees them, and why there are no figures.

use std::io::{self, Read};
use std::ops::{Deref, DerefMut};
use std::os::unix::process::CommandExt;
use std::process::{self, Command, Stdio};

use crate::run::RunError;

/// Why there are no figures.
#[derive(Debug)]
pub(crate) enum Failure {
    Stopped,
    /// In the words of the program that failed, or in ours.
    Because(String),
    /// Nor will there be any of another subject.
    Run(RunError),
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        Failure::Run(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Because(error.to_string())
    }
}

impl From<String> for Failure {
    fn from(reason: String) -> Self {
        Failure::Because(reason)
    }
}

/// A running process of this program; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Child(process::Child);

impl Child {
    /// Starts it, with pipes to its streams.
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        command
            .stdin(Stdio::piped()) // closes with this process
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0) // the terminal's Ctrl-C is for the controller alone
            .spawn()
            .map(Self)
    }

    /// What it has complained of, in one line. To be called once it has ended, or was told to.
    pub(crate) fn complaint(&mut self) -> Option<String> {
        let words = text(self.stderr.take()?);
        let words = words.trim().lines().collect::<Vec<_>>().join("; ");
        (!words.is_empty()).then_some(words)
    }
}

impl Deref for Child {
    type Target = process::Child;

    fn deref(&self) -> &process::Child {
        &self.0
    }
}

impl DerefMut for Child {
    fn deref_mut(&mut self) -> &mut process::Child {
        &mut self.0
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Neither can fail for a child that is not yet waited for, and nobody could act on it.
        let _ = self.kill();
        let _ = self.wait();
    }
}

/// What is short and may not be text, as far as it goes.
pub(crate) fn text(stream: impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = stream.take(4096).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Takes all descriptors that the hard limit allows, for this process and for its children; how many.
pub(crate) fn raise_descriptor_limit() -> io::Result<u64> {
    sys::file::raise_open_files(u64::MAX)
}

/// Of a monitor that is part of a measurement: nothing but what is measured shall bound the promotions.
pub(crate) const MONITOR_POLICY: &str =
    "same_user = true\n[limits]\noffers_per_second = 1000000\noffers_burst = 1000000\n";
