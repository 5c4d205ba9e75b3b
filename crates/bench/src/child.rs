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
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        ends_with_controller(command, libc::SIGKILL).spawn().map(Self)
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

    /// Ends it, and returns its own words, or else these.
    pub(crate) fn complaint(&mut self, otherwise: &str) -> String {
        let _ = self.child.kill(); // it may have ended by itself
        self.child.complaint().unwrap_or_else(|| otherwise.to_owned())
    }
}

/// Has a process get this signal when the thread that starts it ends, as its controller's does.
pub(crate) fn ends_with_controller(command: &mut Command, signal: i32) -> &mut Command {
    command.process_group(0); // the terminal's Ctrl-C is for the controller alone
    // SAFETY: between fork and exec only prctl is called, a plain system call.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, signal);
            Ok(())
        })
    }
}

/// What is short and may not be text, as far as it goes.
pub(crate) fn text(stream: impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = stream.take(4096).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Of a monitor that is part of a measurement: nothing but what is measured shall bound the promotions.
pub(crate) const MONITOR_POLICY: &str =
    "same_user = true\n[limits]\noffers_per_second = 1000000\noffers_burst = 1000000\n";
