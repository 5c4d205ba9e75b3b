//! The servers, as they are started in each variant.

use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use testkit::programs;

use super::disturbance::Stopped;
use super::{Variant, channels, server};
use crate::Reason;
use crate::child::Child;
use crate::names::names;
use crate::network::Namespace;
use crate::options::this_program;
use crate::part::Part;
use crate::product;

names! {
    /// A server.
    Program {
        /// nginx with two workers, each on a CPU of its own.
        Nginx = "nginx",
        /// HAProxy with two threads, each on a CPU of its own, which answers by itself.
        Haproxy = "haproxy",
        /// [`super::server`] with two workers.
        Prefork = "prefork",
        /// [`super::channels`] with two threads, on io_uring.
        ChannelUring = "channel-uring",
        /// The same on epoll.
        ChannelEpoll = "channel-epoll",
    }
}

/// Workers or threads of each server.
pub(super) const WORKERS: usize = 2;
/// How long the worker of [`Program::Prefork`] blocks.
pub(super) const BLOCKS: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(10);

impl Program {
    /// Whether it is [`channels`].
    fn has_channels(self) -> bool {
        matches!(self, Program::ChannelUring | Program::ChannelEpoll)
    }

    /// The file to execute; `None`: not installed.
    fn file(self) -> Option<PathBuf> {
        match self {
            Program::Prefork | Program::ChannelUring | Program::ChannelEpoll => Some(this_program()),
            Program::Nginx | Program::Haproxy => programs::find(self.name()),
        }
    }
}

/// A server that runs; ended when dropped.
pub(super) struct Server {
    program: Program,
    child: Child,
}

impl Server {
    pub(super) fn start(
        servers: &Namespace,
        (program, variant): (Program, Variant),
        address: SocketAddr,
        counts: RawFd,
        folder: &Path,
    ) -> Result<Server, Reason> {
        let file = program.file().ok_or_else(|| format!("{program} is not installed"))?;
        // Channels need no library.
        let preloaded = variant == Variant::Local && !program.has_channels();
        let mut command = match preloaded {
            true => servers.command(product::megapipe()?),
            false => servers.command(&file),
        };
        if preloaded {
            command.args(["run", "--promote", "off", "--local-listen", "--"]).arg(&file);
        }
        let reuseport = variant == Variant::Reuseport;
        match program {
            Program::Nginx | Program::Haproxy => {
                let values = match program {
                    Program::Nginx => &nginx(address, reuseport),
                    _ => &haproxy(address, reuseport),
                };
                let values: Vec<_> = values.iter().map(|(name, value)| (*name, value.as_str())).collect();
                let server = programs::Program::new(program.name(), folder, address.port(), &values)?;
                command.args(&server.command[1..]);
            }
            Program::Prefork => {
                let task = server::Task { address, workers: WORKERS, reuseport, blocks: BLOCKS, counts };
                command.args(task.arguments());
            }
            Program::ChannelUring | Program::ChannelEpoll => {
                command.env_remove("MEGAPIPE_ENGINE"); // the program says which one to measure
                let uring = program == Program::ChannelUring;
                let task = channels::Task { address, workers: WORKERS, uring, variant };
                command.args(task.arguments());
            }
        }
        let mut server = Server { program, child: Child::start(&mut command)? };
        server.await_listener(address.port())?;
        Ok(server)
    }

    /// Until it listens, as its own namespace has it (proc_pid_net(5)), and its workers have had time to begin.
    fn await_listener(&mut self, port: u16) -> Result<(), Reason> {
        let end = Instant::now() + PATIENCE;
        let sockets = format!("/proc/{}/net/tcp", self.child.id());
        let listens = format!(":{port:04X} 00000000:0000 0A ");
        while Instant::now() < end {
            if self.child.try_wait()?.is_some() {
                return Err(self.child.complaint().unwrap_or("the server has ended".into()).into());
            }
            if fs::read_to_string(&sockets)?.contains(&listens) {
                std::thread::sleep(Duration::from_millis(300));
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err("the server does not listen".into())
    }

    /// Stops the first of its workers for so long.
    pub(super) fn stop_a_worker(&self, length: Duration) -> io::Result<()> {
        let _stopped = match self.program.has_channels() {
            true => Stopped::thread(self.thread()?)?,
            false => Stopped::process(self.worker()?)?,
        };
        std::thread::sleep(length);
        Ok(())
    }

    /// Stops the first of its workers for so long, and ends it.
    pub(super) fn kill_a_worker(&mut self, length: Duration) -> io::Result<()> {
        if !self.program.has_channels() {
            let stopped = Stopped::process(self.worker()?)?;
            std::thread::sleep(length);
            return stopped.kill();
        }
        let input = self.child.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(input, "{}", length.as_millis())
    }

    /// Its first worker, of a process with threads.
    fn thread(&self) -> io::Result<libc::pid_t> {
        for thread in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let thread = thread?;
            if fs::read_to_string(thread.path().join("comm"))?.trim() == channels::thread_name(0) {
                return thread.file_name().to_string_lossy().parse().map_err(io::Error::other);
            }
        }
        Err(io::Error::other("the server has no such thread"))
    }

    /// The first of its workers.
    fn worker(&self) -> io::Result<libc::pid_t> {
        let pid = self.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
        let first = children.split_whitespace().next().and_then(|pid| pid.parse().ok());
        first.ok_or_else(|| io::Error::other("the server has no workers"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // nginx ends its workers itself.
        // SAFETY: a child that is not yet waited for.
        unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) };
        let end = Instant::now() + Duration::from_secs(2);
        while Instant::now() < end && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Values of its description in tests/programs.toml.
type Values = Vec<(&'static str, String)>;

fn nginx(address: SocketAddr, reuseport: bool) -> Values {
    let option = if reuseport { " reuseport" } else { "" };
    vec![
        ("workers", WORKERS.to_string()),
        ("log", "crit".to_owned()),
        ("main", "worker_cpu_affinity auto;".to_owned()),
        ("http", "keepalive_timeout 0;".to_owned()),
        ("listen", format!("listen {address}{option} backlog=4096;")),
        ("server", "location / { return 200 'hello\\n'; }".to_owned()),
    ]
}

fn haproxy(address: SocketAddr, reuseport: bool) -> Values {
    let option = if reuseport { " shards by-thread" } else { "" };
    vec![
        ("connections", "8000".to_owned()),
        ("threads", WORKERS.to_string()),
        ("main", format!("cpu-map auto:1/1-{WORKERS} 0-{}", WORKERS - 1)),
        ("defaults", "timeout http-request 10s".to_owned()),
        ("bind", format!("{address} backlog 4096{option}")),
    ]
}
