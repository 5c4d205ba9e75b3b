//! Ends the live view from outside: by a signal, or the end of its terminal.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ratatui::crossterm::terminal::disable_raw_mode;
use rustix::event::{PollFd, PollFlags, Timespec};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// How long the view may take to end by itself. It cannot while it waits for a monitor that does not answer, for the rest
/// of a key, or for a terminal that takes nothing.
const GRACE: Duration = Duration::from_millis(500);
/// Shows the cursor, and leaves the alternate screen (xterm's control sequences).
const LEAVE: &[u8] = b"\x1b[?25h\x1b[?1049l";

/// Waits for what ends the view, on a thread of its own: the view may be busy waiting for
/// something else.
pub(super) struct Watch {
    end: Arc<AtomicBool>,
}

impl Watch {
    /// From now on SIGHUP, SIGINT and SIGTERM end the view, as does its terminal's end.
    pub(super) fn start() -> io::Result<Watch> {
        let (signals, raised) = UnixStream::pair()?;
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            signal_hook::low_level::pipe::register(signal, raised.try_clone()?)?;
        }
        let watch = Watch { end: Arc::new(AtomicBool::new(false)) };
        let end = Arc::clone(&watch.end);
        thread::Builder::new().name("watch".into()).spawn(move || {
            if wait(&signals) == End::Signal {
                end.store(true, Ordering::Relaxed);
                thread::sleep(GRACE);
            }
            end_at_once()
        })?;
        Ok(watch)
    }

    /// Whether the view has to end.
    pub(super) fn says_end(&self) -> bool {
        self.end.load(Ordering::Relaxed)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Signal,
    Hangup,
}

fn wait(signals: &UnixStream) -> End {
    let (input, output) = (io::stdin(), io::stdout());
    // poll(2) reports an end even without requested events.
    let mut polled = [
        PollFd::new(&input, PollFlags::empty()),
        PollFd::new(&output, PollFlags::empty()),
        PollFd::new(signals, PollFlags::IN),
    ];
    loop {
        match rustix::event::poll(&mut polled, None) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(_) if !polled[..2].iter().all(|terminal| terminal.revents().is_empty()) => return End::Hangup,
            // Without poll only signals are left to wait for; they could not be received
            // otherwise.
            Ok(_) | Err(_) => return End::Signal,
        }
    }
}

/// Whether the terminal is gone. Errors do not say so for sure: asked for the size of a terminal that is gone, the
/// library goes on to ask other programs, and fails as they do.
pub(super) fn hung_up() -> bool {
    let (input, output) = (io::stdin(), io::stdout());
    let mut polled = [PollFd::new(&input, PollFlags::empty()), PollFd::new(&output, PollFlags::empty())];
    let now = Timespec::default();
    matches!(rustix::event::poll(&mut polled, Some(&now)), Ok(ended) if ended > 0)
}

/// Ends the process whatever its other threads wait for, and leaves the terminal, if there still is one, as it was.
pub(super) fn end_at_once() -> ! {
    // A file of its own, which does not wait: the view may hold the lock of stdout, and the terminal may be full.
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    if let Ok(mut screen) = OpenOptions::new().write(true).custom_flags(nonblocking).open("/proc/self/fd/1") {
        let _ = screen.write(LEAVE);
    }
    let _ = disable_raw_mode();
    std::process::exit(0)
}
