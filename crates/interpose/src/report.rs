//! The summary, and lines for `--verbose`, on standard error or in the file of MEGAPIPE_LOG.

use std::ffi::CString;
use std::fmt::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags};

use crate::mode;
use crate::real;
use crate::recorded;
use crate::settings::{Settings, Stats};
use crate::stats;

/// At the start, while memory can be allocated: nothing is written without it.
pub(crate) fn prepare(settings: &Settings) {
    if settings.stats == Stats::None && !settings.verbose {
        return;
    }
    let log = settings.log.as_ref().and_then(|path| CString::new(path.as_os_str().as_bytes()).ok());
    let error = real::borrow(libc::STDERR_FILENO).and_then(file_of);
    let (summarizes, verbose) = (settings.stats != Stats::None, settings.verbose);
    let _ = REPORT.set(Report { summarizes, verbose, name: program_name(), log, error });
}

struct Report {
    summarizes: bool,
    verbose: bool,
    name: String,
    log: Option<CString>,
    /// Identifies the file that standard error was at the start.
    error: Option<(u64, u64)>,
}

static REPORT: OnceLock<Report> = OnceLock::new();

/// The name under which the program was called; a file with many names has no better one.
pub(crate) fn program_name() -> String {
    rustix::thread::name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Writes the summary, if this process is to write one and has anything to summarize.
pub(crate) fn write_summary() {
    let Some(report) = REPORT.get().filter(|report| report.summarizes && !recorded::is_recorded()) else {
        return;
    };
    let pid = std::process::id();
    let summary = stats::COUNTERS.summary();
    if summary.is_idle() {
        return;
    }
    let mut text = Text::new();
    let _ = {
        let own = rustix::process::geteuid().as_raw();
        let users = summary.other_user();
        let users = users.as_ref().map(|other| [&own, other].map(|user| user as &dyn fmt::Display));
        summary.write(&mut text, &report.name, pid, users)
    };
    report.write(&text);
}

/// A line for `--verbose`.
pub(crate) fn log_line(line: fmt::Arguments<'_>) {
    let Some(report) = REPORT.get().filter(|report| report.verbose && !mode::is_confined()) else {
        return;
    };
    report.write(&Text::line(format_args!("megapipe: {} ({}): {line}", report.name, std::process::id())));
}

impl Report {
    fn write(&self, text: &Text) {
        real::kept_errno(|| self.try_to_write(text));
    }

    fn try_to_write(&self, text: &Text) {
        let logged = self.log.as_ref().is_some_and(|path| {
            let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOCTTY;
            rustix::fs::open(path.as_c_str(), flags, Mode::from_raw_mode(0o666))
                .is_ok_and(|file| text.write_to(file.as_fd()))
        });
        // A program that dropped its privileges or changed its root directory may not write there
        // any more. The file now at standard error may be a client's connection.
        if let Some(error) = real::borrow(libc::STDERR_FILENO).filter(|_| !logged)
            && (self.log.is_none() || file_of(error) == self.error)
        {
            text.write_to(error);
        }
    }
}

/// Device and inode of an open file.
fn file_of(fd: std::os::fd::BorrowedFd<'_>) -> Option<(u64, u64)> {
    rustix::fs::fstat(fd).ok().map(|status| (status.st_dev, status.st_ino))
}

/// Bytes of a summary or a line at most.
const LONGEST: usize = 2048;

/// Text in a fixed buffer, without an allocation.
struct Text {
    room: [u8; LONGEST],
    len: usize,
}

impl Text {
    fn new() -> Text {
        Text { room: [0; LONGEST], len: 0 }
    }

    /// A line with its line feed. One that is too long, for example with output of the kernel's
    /// verifier, is cut.
    fn line(line: fmt::Arguments<'_>) -> Text {
        const CUT: &str = " [...]";
        let mut text = Text::new();
        if write!(text, "{line}").is_err() || text.len == LONGEST {
            text.len = text.len.min(LONGEST - CUT.len() - 1);
            let _ = text.write_str(CUT);
        }
        let _ = text.write_str("\n");
        text
    }

    /// In one write, so that summaries of several processes stay whole. Returns whether it
    /// succeeded.
    fn write_to(&self, fd: std::os::fd::BorrowedFd<'_>) -> bool {
        rustix::io::write(fd, &self.room[..self.len]).is_ok()
    }
}

impl Write for Text {
    /// Writes as much as fits; an error if that is not all.
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.room[self.len..];
        let fits = text.len().min(room.len());
        room[..fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.len += fits;
        if fits == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_long_lacks_its_end() {
        for length in [0, 100, LONGEST - 1] {
            let text = "x".repeat(length);
            let line = Text::line(format_args!("{text}"));
            assert_eq!(&line.room[..line.len], format!("{text}\n").as_bytes());
        }
        for length in [LONGEST, LONGEST + 1, 3 * LONGEST] {
            let text = "x".repeat(length);
            let line = Text::line(format_args!("begins {text}"));
            let expected = format!("begins {}", &text[..LONGEST - 14]);
            assert_eq!(&line.room[..line.len], format!("{expected} [...]\n").as_bytes());
        }
    }
}
