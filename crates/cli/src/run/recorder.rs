//! The recorder of `megapipe run --stats`: a process beside the program that prints the summary of
//! the program, and of all that it starts, when each ends: also by a signal that it does not
//! handle, by SIGKILL and where it has closed everything. It ends with the last of them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use promote::recorder::{Address, Said};
use promote::summary::{self, Summary};
use promote::wire::Name;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Resource};
use sys::packet;

/// Of the environment, as the program has it.
const STATS: &str = "MEGAPIPE_STATS";
const LOG: &str = "MEGAPIPE_LOG";

/// Prints summaries; `megapipe run --stats` starts it
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The process that becomes the program
    program: i32,
}

/// Starts a recorder for this process, which becomes the program; returns what MEGAPIPE_STATS is to be.
///
/// # Errors
///
/// No socket, or no process.
pub(super) fn start(log: Option<&Path>) -> io::Result<String> {
    let mut bytes = [0; 24];
    sys::random::fill(&mut bytes)?;
    let address = Address::random(bytes);
    let listener = address.listen()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("record").arg(std::process::id().to_string()).env(STATS, address.to_string());
    // What it prints goes where this process's would.
    command.stdin(listener).stdout(Stdio::null()).env_remove("LD_PRELOAD").env_remove(LOG);
    if let Some(log) = log {
        command.env(LOG, log);
    }
    sys::process::start_apart(&mut command)?;
    Ok(address.to_string())
}

/// Records until the last process has ended.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let address = std::env::var(STATS).ok().and_then(|text| Address::parse(&text));
    let Some(address) = address else {
        eprintln!("megapipe record: only megapipe run starts this; use megapipe run --stats");
        return ExitCode::from(2);
    };
    // Signals to the program's group, terminal or service are the program's; it has to outlive that.
    let signals = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGPIPE];
    let _blocked = sys::signals::redirect(&signals);
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let most = rustix::process::Rlimit { current: limit.maximum, ..limit };
    let _ = rustix::process::setrlimit(Resource::Nofile, most);
    let mut recorder = Recorder {
        address,
        log: std::env::var_os(LOG).map(PathBuf::from).filter(|path| path.is_absolute()),
        coming: Vec::new(),
        processes: Vec::new(),
    };
    recorder.watch(arguments.program);
    match recorder.record(&io::stdin()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

struct Recorder {
    address: Address,
    log: Option<PathBuf>,
    /// Connections without a message yet.
    coming: Vec<OwnedFd>,
    processes: Vec<Process>,
}

/// A process that lives, as far as is known.
struct Process {
    pid: u32,
    /// Readable once it has ended.
    pidfd: OwnedFd,
    /// `None`: it has none of its own, or they are printed.
    counters: Option<Shared>,
}

/// What a process shares.
struct Shared {
    name: Name,
    user: u32,
    memory: File,
}

impl Recorder {
    fn record(&mut self, listener: &impl AsFd) -> io::Result<()> {
        loop {
            self.look(listener.as_fd());
            if self.processes.is_empty() && self.coming.is_empty() && !self.finds_more() {
                // A process that connected meanwhile found a listener.
                self.look(listener.as_fd());
                if self.processes.is_empty() && self.coming.is_empty() {
                    return Ok(());
                }
            }
            let fds = [listener.as_fd()].into_iter();
            let fds = fds.chain(self.coming.iter().map(AsFd::as_fd));
            let fds = fds.chain(self.processes.iter().map(|process| process.pidfd.as_fd()));
            let fds: Vec<BorrowedFd<'_>> = fds.collect();
            let mut polled: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            match rustix::event::poll(&mut polled, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Does what there is to do: those that begin before those that have ended, which may have made them.
    fn look(&mut self, listener: BorrowedFd<'_>) {
        while let Ok(socket) = packet::accept(listener) {
            self.coming.push(socket);
        }
        for socket in std::mem::take(&mut self.coming) {
            match self.address.hear(socket.as_fd()) {
                Ok(said) => self.hear(&socket, said),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.coming.push(socket),
                Err(_) => {}
            }
        }
        let all = std::mem::take(&mut self.processes);
        let (live, ended): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|process| packet::is_alive(process.pidfd.as_fd()));
        self.processes = live;
        ended.into_iter().for_each(|process| self.print(process.pid, process.counters));
    }

    fn hear(&mut self, socket: &OwnedFd, said: Option<Said>) {
        let Some((said, who)) = said.zip(packet::credentials(socket.as_fd()).ok()) else { return };
        let known = self.processes.iter_mut().find(|process| process.pid == who.pid);
        let counters = match said {
            Said::Begins { name, memory } => Some(Shared { name, user: who.uid, memory: memory.into() }),
            Said::Ends => None,
        };
        let before = match known {
            // Also one that has become another program.
            Some(process) => std::mem::replace(&mut process.counters, counters),
            // A process that cannot be waited for has ended.
            None => match packet::process(socket.as_fd()).or_else(|_| pidfd(who.pid as i32)) {
                Ok(pidfd) => {
                    self.processes.push(Process { pid: who.pid, pidfd, counters });
                    None
                }
                Err(_) => counters,
            },
        };
        self.print(who.pid, before);
    }

    fn watch(&mut self, pid: i32) {
        if let Ok(pidfd) = pidfd(pid) {
            self.processes.push(Process { pid: pid.unsigned_abs(), pidfd, counters: None });
        }
    }

    /// Whether processes live that have not reported that they began: those that were
    /// just forked, start with the program's environment, or have no library.
    fn finds_more(&mut self) -> bool {
        let mark = format!("{STATS}={}", self.address);
        let own = std::process::id();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            let Ok(environment) = fs::read(entry.path().join("environ")) else { continue };
            let is_ours = environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes());
            if is_ours && pid.unsigned_abs() != own {
                self.watch(pid);
            }
        }
        !self.processes.is_empty()
    }

    fn print(&self, pid: u32, counters: Option<Shared>) {
        let Some(Shared { name, user, memory }) = counters else { return };
        let mut bytes = [0; summary::BYTES];
        // The process may have shortened it.
        if memory.read_exact_at(&mut bytes, 0).is_err() {
            return;
        }
        let summary = Summary::from_bytes(&bytes);
        if summary.is_idle() {
            return;
        }
        let mut text = String::new();
        let users = summary.other_user().map(|other| [user, other].map(named));
        let users = users.as_ref().map(|users| users.each_ref().map(|user| user as &dyn std::fmt::Display));
        // Writing to a string does not fail.
        let _ = summary.write(&mut text, name, pid, users);
        let log =
            self.log.as_ref().and_then(|path| OpenOptions::new().append(true).create(true).open(path).ok());
        // In one write each, so that lines of several processes stay whole.
        if log.is_none_or(|mut log| log.write_all(text.as_bytes()).is_err()) {
            let _ = io::stderr().write_all(text.as_bytes());
        }
    }
}

/// A user by name, or by number where none has it.
fn named(user: u32) -> String {
    sys::user::name(user).ok().flatten().unwrap_or_else(|| user.to_string())
}

fn pidfd(pid: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}
