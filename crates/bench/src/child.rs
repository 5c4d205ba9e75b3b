//! Processes that are part of a measurement, as their controller sees them.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{self, ChildStdout, Command, Stdio};

use rustix::process::{Signal, set_parent_process_death_signal};

/// A running process of this program, which answers in lines; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Child {
    process: process::Child,
    output: BufReader<ChildStdout>,
}

impl Child {
    /// Starts it, with pipes to its streams.
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = ends_with_controller(command, Signal::KILL).spawn()?;
        let output = process.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { process, output: BufReader::new(output) })
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
        self.process.id()
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> io::Result<bool> {
        Ok(self.process.try_wait()?.is_some())
    }

    /// Writes a line to its standard input.
    pub(crate) fn ask(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.process.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?, "{line}")
    }

    /// The next line that it prints; its complaint if it has ended.
    pub(crate) fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.output.read_line(&mut line)? {
            0 => Err(io::Error::other(self.complaint("the process ended without a word"))),
            _ => Ok(line.trim().to_owned()),
        }
    }

    /// Ends it, and returns its own words in one line, or else these.
    pub(crate) fn complaint(&mut self, otherwise: &str) -> String {
        let _ = self.process.kill(); // it may have ended by itself
        let mut bytes = Vec::new();
        if let Some(stream) = self.process.stderr.take() {
            let _ = stream.take(4096).read_to_end(&mut bytes);
        }
        let words = String::from_utf8_lossy(&bytes).trim().lines().collect::<Vec<_>>().join("; ");
        if words.is_empty() { otherwise.to_owned() } else { words }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Neither can fail for a child that is not yet waited for, and nobody could act on it.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Has a process get this signal when the thread that starts it ends, as its controller's does.
pub(crate) fn ends_with_controller(command: &mut Command, signal: Signal) -> &mut Command {
    command.process_group(0); // the terminal's Ctrl-C is for the controller alone
    // SAFETY: between fork and exec only prctl is called, a plain system call.
    unsafe { command.pre_exec(move || Ok(set_parent_process_death_signal(Some(signal))?)) }
}

/// Of a monitor that is part of a measurement: nothing but what is measured shall bound the promotions.
pub(crate) const MONITOR_POLICY: &str =
    "same_user = true\n[limits]\noffers_per_second = 1000000\noffers_burst = 1000000\n";
