//! The servers, as they are started in each variant.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use testkit::programs;

use super::disturbance::Stopped;
use super::{HANG, Variant, WORKERS, channels, server};
use crate::Reason;
use crate::cpu::CpuSet;
use crate::names::names;
use crate::network::Namespace;
use crate::options::this_program;
use crate::part::Part;
use crate::process::Process;
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
    process: Process,
}

impl Server {
    pub(super) fn start(
        servers: &Namespace,
        (program, variant): (Program, Variant),
        address: SocketAddr,
        counts: RawFd,
        folder: &Path,
        stop: &AtomicBool,
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
                let task = server::Task { address, reuseport, counts };
                command.args(task.arguments());
            }
            Program::ChannelUring | Program::ChannelEpoll => {
                command.env_remove("MEGAPIPE_ENGINE"); // the program says which one to measure
                let uring = program == Program::ChannelUring;
                let task = channels::Task { address, uring, variant };
                command.args(task.arguments());
            }
        }
        let mut process = Process::start(command, folder, &CpuSet::allowed()?)?;
        // As its own namespace has it (proc_pid_net(5)).
        let sockets = format!("/proc/{}/net/tcp", process.pid());
        let listens = format!(":{:04X} 00000000:0000 0A ", address.port());
        let is_ready = || fs::read_to_string(&sockets).is_ok_and(|sockets| sockets.contains(&listens));
        process.wait_until(is_ready, stop)?;
        thread::sleep(Duration::from_millis(300)); // in which its workers begin
        Ok(Server { program, process })
    }

    /// CPU time of all its processes.
    pub(super) fn cpu_time(&self) -> io::Result<Duration> {
        self.process.cpu_time()
    }

    /// Stops the first of its workers for so long.
    pub(super) fn stop_a_worker(&self, length: Duration) -> io::Result<()> {
        let _stopped = match self.program.has_channels() {
            true => Stopped::thread(self.thread()?)?,
            false => Stopped::process(self.worker()?)?,
        };
        thread::sleep(length);
        Ok(())
    }

    /// Stops the first of its workers for [`HANG`], and ends it.
    pub(super) fn kill_a_worker(&self) -> io::Result<()> {
        if self.program.has_channels() {
            return self.process.signal(Signal::USR1);
        }
        let stopped = Stopped::process(self.worker()?)?;
        thread::sleep(HANG);
        stopped.kill()
    }

    /// Its first worker, of a process with threads.
    fn thread(&self) -> io::Result<Pid> {
        for thread in fs::read_dir(format!("/proc/{}/task", self.process.pid()))? {
            let thread = thread?;
            if fs::read_to_string(thread.path().join("comm"))?.trim() == channels::thread_name(0) {
                return named(&thread.file_name().to_string_lossy());
            }
        }
        Err(io::Error::other("the server has no such thread"))
    }

    /// The first of its workers.
    fn worker(&self) -> io::Result<Pid> {
        let pid = self.process.pid();
        named(fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?.split(' ').next().unwrap_or(""))
    }
}

/// What has this number.
fn named(number: &str) -> io::Result<Pid> {
    let pid = number.parse().ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other("the server has no workers"))
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
