//! The live view at a terminal: what it draws, how it leaves the terminal, and that it always ends.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal};
use testkit::process::{Fosterling, PATIENCE};

use crate::{PROGRAM, Place};

#[test]
fn a_live_view_needs_a_terminal() {
    let place = Place::new();
    let output = place.top(&[]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(1) && text.contains("terminal") && text.contains("--once"),
        "{text}"
    );
    let output = place.top(&["--json"]);
    assert_eq!(output.status.code(), Some(2), "--json alone is a mistake");
}

#[test]
fn a_live_view_has_a_shortest_interval() {
    let place = Place::new();
    for interval in ["0", "0.05", "0.0999"] {
        let (_own, theirs) = terminal();
        let mut command = Command::new(PROGRAM);
        command.args(["top", "--interval", interval, "--socket"]).arg(place.socket()).stderr(Stdio::piped());
        command.stdin(theirs.try_clone().unwrap()).stdout(theirs.try_clone().unwrap());
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && text.contains("at least 0.1 s"), "{interval}: {text}");
    }
}

/// A terminal of 40 lines with 150 columns: its own side, and what programs get. No other test's children inherit
/// either, which would keep it open.
fn terminal() -> (fs::File, fs::File) {
    let own = fs::OpenOptions::new().read(true).write(true).open("/dev/ptmx").unwrap();
    let size = libc::winsize { ws_row: 40, ws_col: 150, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: plain calls on an open descriptor, one of which reads a live struct.
    let theirs = unsafe {
        assert_eq!(libc::unlockpt(own.as_raw_fd()), 0);
        assert_eq!(libc::ioctl(own.as_raw_fd(), libc::TIOCSWINSZ, &raw const size), 0);
        libc::ioctl(own.as_raw_fd(), libc::TIOCGPTPEER, libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC)
    };
    assert!(theirs >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: it is open, and owned by nobody else.
    (own, unsafe { fs::File::from_raw_fd(theirs) })
}

/// How a terminal is set.
fn settings(terminal: &fs::File) -> [u32; 4] {
    let mut settings = std::mem::MaybeUninit::<libc::termios>::zeroed();
    // SAFETY: the kernel fills a live struct, and all zeroes are valid, too.
    let settings = unsafe {
        assert_eq!(libc::tcgetattr(terminal.as_raw_fd(), settings.as_mut_ptr()), 0);
        settings.assume_init()
    };
    [settings.c_iflag, settings.c_oflag, settings.c_cflag, settings.c_lflag]
}

/// A live view that has drawn, at a terminal of its own.
struct Live {
    top: Fosterling,
    own: fs::File,
    theirs: fs::File,
    /// How the terminal was set before.
    before: [u32; 4],
    drawn: Vec<u8>,
}

impl Live {
    fn start(place: &Place) -> Live {
        let (own, theirs) = terminal();
        let before = settings(&theirs);
        let mut command = Command::new(PROGRAM);
        command.args(["top", "--interval", "0.1", "--socket"]).arg(place.socket()).env("TERM", "xterm");
        command.stdin(theirs.try_clone().unwrap()).stdout(theirs.try_clone().unwrap());
        command.stderr(theirs.try_clone().unwrap());
        let top = Fosterling::start(&mut command);
        drop(command);
        let mut live = Live { top, own, theirs, before, drawn: Vec::new() };
        for what in ["\x1b[?1049h", "ADDRESS", "quit"] {
            live.read_to(what);
        }
        assert_ne!(settings(&live.theirs), before, "keys come one by one");
        live
    }

    /// Reads what is drawn until it contains this.
    fn read_to(&mut self, what: &str) {
        let mut bytes = [0; 4096];
        while !self.drawn.windows(what.len()).any(|part| part == what.as_bytes()) {
            let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
            let mut polled = [PollFd::new(&self.own, PollFlags::IN)];
            assert_eq!(rustix::event::poll(&mut polled, Some(&limit)), Ok(1), "no {what:?} comes");
            let count = self.own.read(&mut bytes).unwrap();
            self.drawn.extend_from_slice(&bytes[..count]);
        }
    }

    fn signal(&mut self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(self.top.child()), signal).unwrap();
    }
}

fn ends(top: &mut Fosterling) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = top.child().try_wait().unwrap() {
            return status;
        }
        assert!(start.elapsed() < PATIENCE, "it does not end");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn the_live_view_draws_and_leaves_the_terminal_as_it_was() {
    let place = Place::new();
    let monitor = place.monitor();
    for keys in [&b"q"[..], b"\x03", b"\x1b[B\x1b[5~Q"] {
        let mut live = Live::start(&place);
        live.own.write_all(keys).unwrap();
        live.read_to("\x1b[?1049l");
        assert!(ends(&mut live.top).success());
        assert_eq!(settings(&live.theirs), live.before);
    }
    // It starts with nothing on the screen that there is nothing to show for.
    drop(monitor);
    let (_own, theirs) = terminal();
    let mut command = Command::new(PROGRAM);
    command.args(["top", "--socket"]).arg(place.socket()).stderr(Stdio::piped());
    command.stdin(theirs.try_clone().unwrap()).stdout(theirs.try_clone().unwrap());
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && text.contains("no monitor listens"), "{text}");
}

#[test]
fn a_signal_ends_the_live_view_whatever_it_waits_for() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Waits {
        Time,
        RestOfKey,
        StoppedMonitor,
        StoppedTerminal,
    }
    let place = Place::new();
    let mut monitor = place.monitor();
    let monitor_id = Pid::from_child(monitor.child());
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        for waits in [Waits::Time, Waits::RestOfKey, Waits::StoppedMonitor, Waits::StoppedTerminal] {
            let mut live = Live::start(&place);
            match waits {
                Waits::Time => {}
                Waits::RestOfKey => live.own.write_all(b"\x1b[").unwrap(),
                Waits::StoppedMonitor => {
                    rustix::process::kill_process(monitor_id, Signal::STOP).unwrap();
                }
                Waits::StoppedTerminal => {
                    // SAFETY: a plain call on an open terminal.
                    assert_eq!(unsafe { libc::tcflow(live.theirs.as_raw_fd(), libc::TCOOFF) }, 0);
                }
            }
            // It waits by then, or will; either way it has to end.
            std::thread::sleep(std::time::Duration::from_millis(300));
            live.signal(signal);
            assert!(ends(&mut live.top).success(), "{signal:?}, {waits:?}");
            assert_eq!(settings(&live.theirs), live.before, "{signal:?}, {waits:?}");
            match waits {
                Waits::StoppedTerminal => {}
                _ => live.read_to("\x1b[?1049l"),
            }
            rustix::process::kill_process(monitor_id, Signal::CONT).unwrap();
        }
    }
}

#[test]
fn the_live_view_ends_with_its_terminal() {
    let place = Place::new();
    let monitor = place.monitor();
    for keys in [&b""[..], b"\x1b["] {
        let mut live = Live::start(&place);
        live.own.write_all(keys).unwrap();
        drop((live.own, live.theirs));
        assert!(ends(&mut live.top).success(), "after {keys:?}");
    }
    drop(monitor);
}
