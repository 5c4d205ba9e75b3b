//! Processes that are part of a measurement, as their controller sees them.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::ops::{Deref, DerefMut};
use std::os::unix::process::CommandExt;
use std::process::{self, ChildStdout, Command, Stdio};

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

/// A running process that answers in lines; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Served {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Served {
    /// Starts it.
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        let mut child = Child::start(command)?;
        let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { child, output: BufReader::new(output) })
    }

    /// Starts one that prints `listening`, and perhaps where, once it serves.
    pub(crate) fn listening(command: &mut Command) -> io::Result<(Self, String)> {
        let mut server = Self::start(command)?;
        let line = server.line()?;
        match line.strip_prefix("listening") {
            Some(place) => Ok((server, place.trim().to_owned())),
            None => Err(io::Error::other(format!("the server said {line:?}"))),
        }
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes a line to its standard input.
    pub(crate) fn ask(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.child.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?, "{line}")
    }

    /// The next line that it prints; its complaint if it has ended.
    pub(crate) fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.output.read_line(&mut line)? {
            0 => Err(io::Error::other(self.complaint("the server has gone"))),
            _ => Ok(line.trim().to_owned()),
        }
    }

    /// Closes its standard input, which ends it, and returns its own words, or else these.
    pub(crate) fn complaint(&mut self, otherwise: &str) -> String {
        drop(self.child.stdin.take());
        self.child.complaint().unwrap_or_else(|| otherwise.to_owned())
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
