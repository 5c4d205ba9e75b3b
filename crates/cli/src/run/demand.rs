//! A monitor for the program that is about to start: the one that answers, or one of this
//! user's own, which nothing else starts.

use std::io::{self, PipeReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use promote::{Client, ConnectError, Options, Place};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// How long the answer of a monitor that runs is waited for.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long a monitor that was started is waited for. That takes a few milliseconds, and more on a busy machine; a
/// program that begins before finds it by itself, but later.
const STARTING: Duration = Duration::from_secs(1);
/// Between two checks for it.
const PAUSE: Duration = Duration::from_millis(1);
/// How long it waits for clients: programs of a user may rest for a while before they connect to each other, and none of
/// them starts another.
const LINGER_SECONDS: u32 = 3600;

/// What answers where monitors are searched for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Presence {
    Absent,
    /// It answers, or is so busy that its answer is not waited for.
    Found,
    OtherVersion,
}

/// What came of starting a monitor.
enum Started {
    /// One answers, which may be that of another process.
    Answers(Presence),
    NotYet,
    /// With its message, or why it was not executed.
    Failed(String),
}

/// Finds or starts a monitor.
///
/// # Errors
///
/// Why there is none, and what to do: one line.
pub(super) fn provide() -> Result<(), String> {
    let options = Options::from_environment("run");
    let outcome = match (look(&options), &options.socket) {
        (Ok(Presence::Absent), Some(named)) => {
            let path = named.display();
            return Err(format!(
                "no monitor answers at {path}, which MEGAPIPE_MONITOR names, so connections stay on TCP; unset it, or \
                 start one there: megapipe monitor --socket {path}"
            ));
        }
        (Ok(Presence::Absent), None) => start(&options),
        (found, _) => found.map(Started::Answers),
    };
    match outcome {
        Ok(Started::Answers(Presence::OtherVersion)) => {
            Err("the running monitor is of another version than this program, so connections stay on TCP; restart it: \
                 systemctl restart megapipe-monitor (one that `megapipe run` started exits within 10 s of an upgrade)"
                .into())
        }
        Ok(Started::Answers(_)) => Ok(()),
        Ok(Started::NotYet) => {
            Err("a monitor was started and does not answer yet, so connections stay on TCP until it does".into())
        }
        Ok(Started::Failed(cause)) => Err(format!(
            "no monitor answers and none could be started, so connections stay on TCP until there is one: {cause}"
        )),
        Err(error) => Err(format!("connections stay on TCP: {error}")),
    }
}

fn look(options: &Options) -> Result<Presence, ConnectError> {
    let mut client = Client::connect(options)?;
    let end = Instant::now() + PATIENCE;
    while client.fd().is_some() && Instant::now() < end {
        match client.receive() {
            Ok(None) => std::thread::sleep(PAUSE),
            Ok(Some(_)) => return Ok(Presence::Found),
            Err(loss) if loss.cause.is_version() => return Ok(Presence::OtherVersion),
            Err(_) => return Ok(Presence::Absent),
        }
    }
    Ok(if client.fd().is_some() { Presence::Found } else { Presence::Absent })
}

/// Starts this program as the user's own monitor, and waits until it answers. The rest of the environment is meant for
/// the program.
fn start(options: &Options) -> Result<Started, ConnectError> {
    Place::own().prepare()?;
    let end = Instant::now() + STARTING;
    let mut output = match spawn(options) {
        Ok(output) => output,
        Err(error) => return Ok(Started::Failed(error.to_string())),
    };
    let said = read_until(&mut output, end);
    loop {
        let found = look(options)?;
        if found != Presence::Absent {
            return Ok(Started::Answers(found));
        }
        if let Some(error) = said.lines().find_map(|line| line.strip_prefix("megapipe monitor: ")) {
            return Ok(Started::Failed(error.to_owned()));
        }
        // Another process has started one, which does not listen yet, or this one takes its time.
        if Instant::now() >= end {
            return Ok(Started::NotYet);
        }
        std::thread::sleep(PAUSE);
    }
}

/// What the monitor writes until it listens or has ended, when it closes the pipe.
fn spawn(options: &Options) -> io::Result<PipeReader> {
    let (output, writer) = io::pipe()?;
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("megapipe")
        .args(["monitor", "--on-demand", "--linger", &LINGER_SECONDS.to_string(), "--release-output"])
        .env_clear()
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    // All that decides the place, beside the user.
    if let Some(runtime) = &options.runtime_directory {
        command.env("XDG_RUNTIME_DIR", runtime);
    }
    sys::process::start_apart(&mut command)?;
    Ok(output)
}

/// Reads up to the end of the stream, or up to this moment.
fn read_until(output: &mut PipeReader, end: Instant) -> String {
    let mut said = Vec::new();
    let mut piece = [0; 1024];
    loop {
        let rest = end.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: rest.as_secs() as i64, tv_nsec: i64::from(rest.subsec_nanos()) };
        let mut polled = [PollFd::new(output, PollFlags::IN)];
        match poll(&mut polled, Some(&timeout)) {
            Err(Errno::INTR) => continue,
            Ok(1..) => {}
            Ok(0) | Err(_) => break,
        }
        match output.read(&mut piece) {
            Ok(count @ 1..) => said.extend_from_slice(&piece[..count]),
            Ok(0) | Err(_) => break,
        }
    }
    String::from_utf8_lossy(&said).into_owned()
}
