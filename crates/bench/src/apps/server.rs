//! The servers, as their documentation says one should run them, and the files they want.

use std::fs::{self, DirBuilder};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::process::{Signal, geteuid};
use testkit::programs::{Program, find};

use super::app::{App, Case, MEMCACHED_PRELOAD, NGINX_MODULE, SYSBENCH, Transport, USUAL_SIZE};
use super::tokio::Tokio;
use super::waits::Waits;
use crate::Reason;
use crate::cpu::CpuSet;
use crate::load::Target;
use crate::network::{self, Namespace};
use crate::options::this_program;
use crate::part;
use crate::process::Process;

/// What is measured, and the monitor of this run.
#[derive(Debug, Clone)]
pub(super) struct Product {
    /// The program `megapipe`, whose `run` finds the library beside it.
    pub(super) megapipe: PathBuf,
    pub(super) library: PathBuf,
    /// Where the servers' loops on channels lie, with libmegapipe.
    pub(super) channels: Option<PathBuf>,
    /// The socket of a private monitor: that of the machine has its own policy and other clients.
    pub(super) monitor: PathBuf,
}

/// Where, and with what, programs of one measurement run.
#[derive(Clone, Copy)]
pub(super) struct Site<'run> {
    /// For their files.
    pub(super) folder: &'run Path,
    pub(super) product: &'run Product,
    /// Where servers are, if not where the clients are.
    pub(super) servers: Option<&'run Namespace>,
    /// Of the measurement.
    pub(super) number: u32,
    pub(super) database: Option<&'run Database>,
    pub(super) transport: Transport,
    pub(super) server_cpus: &'run CpuSet,
    pub(super) client_cpus: &'run CpuSet,
    pub(super) stop: &'run AtomicBool,
}

/// Which of the two programs.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    Server,
    Client,
}

impl Site<'_> {
    /// Where summaries of a program and its processes go: a file of the measurement's own, since that of a process
    /// that a signal ended is written after its end.
    pub(super) fn log(&self, part: Part) -> PathBuf {
        let name = match part {
            Part::Server => "server",
            Part::Client => "client",
        };
        self.home().join(format!("{name}-{}.log", self.number))
    }

    /// A folder in which the programs may write, whoever they run as.
    pub(super) fn home(&self) -> &Path {
        self.database.map_or(self.folder, |database| &database.folder)
    }

    /// A program of the distribution, under `megapipe run` if this is what is measured.
    pub(super) fn program(&self, name: &str, part: Part) -> Result<Command, Reason> {
        let program = find(name).ok_or_else(|| format!("{name} is not installed"))?;
        let mut command = self.command(&program, part);
        if let Some(user) = self.database.and_then(|database| database.user) {
            command.uid(user);
        }
        command.current_dir(self.home());
        Ok(command)
    }

    /// The same for a program by its path.
    pub(super) fn command(&self, program: &Path, part: Part) -> Command {
        let mut command = Command::new(program);
        if self.transport.has_library(part) {
            command = Command::new(&self.product.megapipe);
            command.args(["run", "--stats", "--log"]).arg(self.log(part)).arg("--").arg(program);
        }
        undress(&mut command);
        command.env("MEGAPIPE_MONITOR", &self.product.monitor);
        command
    }

    /// Where servers listen.
    fn address(&self) -> Ipv4Addr {
        if self.servers.is_some() { network::SERVER } else { Ipv4Addr::LOCALHOST }
    }

    /// The folder of the servers' loops on channels, if this is what is measured.
    fn channels(&self) -> Option<&Path> {
        self.product.channels.as_deref().filter(|_| self.transport == Transport::Channel)
    }
}

/// A program of the distribution as if Megapipe were not installed.
pub(super) fn plain(name: &str) -> Result<Command, Reason> {
    let program = find(name).ok_or_else(|| format!("{name} is not installed"))?;
    let mut command = Command::new(program);
    undress(&mut command);
    Ok(command)
}

/// Removes the library, if this process has it, and other settings of this user from a program.
pub(super) fn undress(command: &mut Command) {
    for name in ["LD_PRELOAD", "MEGAPIPE_PRELOAD", "MEGAPIPE_MONITOR", "MEGAPIPE_STATS", "MEGAPIPE_LOG"] {
        command.env_remove(name);
    }
    let names = std::env::vars_os().map(|(name, _)| name);
    for name in names.filter(|name| name.to_string_lossy().starts_with("PG")) {
        command.env_remove(name); // PGHOST and others
    }
}

/// A server that listens; dropping it ends it.
pub(super) struct Server {
    pub(super) target: Target,
    processes: Vec<Process>,
}

impl Server {
    pub(super) fn start(Case { app, operation, size, .. }: Case, site: &Site<'_>) -> Result<Self, Reason> {
        match app {
            App::Redis | App::RedisPy | App::Phpredis => start("redis", site, &[], &[]),
            App::Memcached => start("memcached", site, &[], &[]),
            App::Nginx if size != USUAL_SIZE => {
                let pages = site.home().join("pages");
                fs::create_dir_all(&pages)?;
                fs::write(pages.join("index.html"), vec![b'x'; size as usize])?;
                nginx(&format!("sendfile on; root {}", pages.display()), site)
            }
            App::Nginx => nginx(RETURN_PAGE, site),
            App::Haproxy => haproxy(nginx(RETURN_PAGE, site)?, site),
            App::Postgres | App::Psycopg2 | App::Jdbc => postgres(site),
            App::Mariadb => start("mariadb", site, &[], &[]),
            App::Grpc => start("grpc", site, &[], &[]),
            App::Gunicorn => {
                let behind = start("gunicorn", site, &[], &[])?;
                Ok(nginx(&format!("proxy_pass http://127.0.0.1:{}", behind.port()?), site)?.before(behind))
            }
            App::HaproxyNode => haproxy(start("node", site, &[], &[])?, site),
            App::Waits => {
                this(site, |port| part::Part::arguments(&Waits { operation, port, size, client: None }))
            }
            App::Tokio => this(site, |port| part::Part::arguments(&Tokio { operation, port, client: None })),
            App::Overhead => Err("there is no server".into()),
        }
    }

    /// Adds the server that this one passes requests to; it ends after this one.
    pub(super) fn before(mut self, mut behind: Server) -> Self {
        self.processes.append(&mut behind.processes);
        self
    }

    /// Programs that it consists of.
    pub(super) fn programs(&self) -> usize {
        self.processes.len()
    }

    pub(super) fn port(&self) -> Result<u16, Reason> {
        Ok(self.address()?.port())
    }

    pub(super) fn address(&self) -> Result<SocketAddr, Reason> {
        match &self.target {
            Target::Tcp(address) => Ok(*address),
            Target::Unix(_) => Err("it has a UNIX socket alone".into()),
        }
    }

    pub(super) fn cpu_time(&self) -> io::Result<Duration> {
        self.processes.iter().map(Process::cpu_time).sum()
    }
}

/// Starts a server of tests/programs.toml, with these values in its files and more arguments.
fn start(name: &str, site: &Site<'_>, values: &[(&str, &str)], arguments: &[&str]) -> Result<Server, Reason> {
    let (port, address) = (free_port()?, site.address().to_string());
    let values = [values, &[("address", &address)]].concat();
    let program = Program::new(name, site.home(), port, &values)?;
    let (target, way) = match program.socket {
        Some(socket) if site.transport == Transport::Unix => (Target::Unix(socket), program.unix),
        _ => (Target::Tcp((site.address(), port).into()), program.tcp),
    };
    let mut command = site.program(&program.command[0], Part::Server)?;
    command.args(&program.command[1..]).args(way).args(arguments);
    if let Some(channels) = site.channels() {
        command.env("LD_LIBRARY_PATH", channels);
        if name == "memcached" {
            command.env("LD_PRELOAD", channels.join(MEMCACHED_PRELOAD));
        }
    }
    if name == "mariadb" {
        command.env("MEGAPIPE_IO_URING", "files"); // InnoDB's
    }
    if let Some(file) = &program.ready {
        let _ = fs::remove_file(file); // of one that did not end in time
    }
    if let Some(servers) = site.servers {
        servers.enter(&mut command);
    }
    let mut process = Process::start(command, site.folder, site.server_cpus)?;
    if program.ready.is_some() {
        process.ending = Signal::INT; // after which PostgreSQL does not wait for its clients
    }
    let is_ready = || match &program.ready {
        None => listens(&target),
        Some(file) => {
            let status = fs::read_to_string(file).unwrap_or_default();
            status.lines().last().is_some_and(|line| line.starts_with("ready"))
        }
    };
    process.wait_until(is_ready, site.stop)?;
    Ok(Server { target, processes: vec![process] })
}

/// This program as a part that listens at a port.
fn this(site: &Site<'_>, arguments: impl FnOnce(u16) -> [String; 3]) -> Result<Server, Reason> {
    let port = free_port()?;
    let mut command = site.command(&this_program(), Part::Server);
    command.args(arguments(port));
    let mut process = Process::start(command, site.folder, site.server_cpus)?;
    let target = Target::Tcp((Ipv4Addr::LOCALHOST, port).into());
    process.wait_until(|| listens(&target), site.stop)?;
    Ok(Server { target, processes: vec![process] })
}

/// nginx with one worker that answers as its configuration says.
fn nginx(answer: &str, site: &Site<'_>) -> Result<Server, Reason> {
    let location = format!("location / {{ {answer}; }}");
    let (mut load, mut events) = (String::new(), "");
    if let Some(channels) = site.channels() {
        load = format!("load_module {};", channels.join(NGINX_MODULE).display());
        events = "use megapipe;";
    }
    start("nginx", site, &[("workers", "1"), ("server", &location), ("load", &load), ("events", events)], &[])
}

/// HAProxy with one thread. It reuses connections to a server while all its descriptors are below a quarter of those
/// that follow from their greatest number.
fn haproxy(behind: Server, site: &Site<'_>) -> Result<Server, Reason> {
    let answer = format!("server behind 127.0.0.1:{}", behind.port()?);
    let values = [("connections", "4096"), ("threads", "1"), ("answer", &answer)];
    Ok(start("haproxy", site, &values, &[])?.before(behind))
}

/// A database of its own, made once for a run; dropping its folder's parent removes it.
#[derive(Debug)]
pub(super) struct Database {
    pub(super) folder: PathBuf,
    /// Whom its programs run as, if not as ourselves.
    pub(super) user: Option<u32>,
}

impl Database {
    /// Makes one of this server and fills it. Both refuse to run as root: then they run as users of their own.
    pub(super) fn new(name: &str, site: &Site<'_>) -> Result<Self, Reason> {
        let own_user = if name == "mariadb" { "mysql" } else { "postgres" };
        let user = match geteuid().is_root() {
            true => Some(
                sys::user::number(own_user)?
                    .ok_or_else(|| format!("{name} does not run as root, and there is no user {own_user}"))?,
            ),
            false => None,
        };
        let folder = site.folder.join(name);
        DirBuilder::new().mode(0o700).create(&folder)?;
        if let Some(user) = user {
            chown(&folder, Some(user), None)?;
        }
        let database = Self { folder, user };
        let site = Site { database: Some(&database), transport: Transport::Unix, ..*site };
        let prepare = Program::new(name, &database.folder, 0, &[])?.prepare;
        let mut made = site.program(&prepare[0], Part::Server)?;
        made.args(&prepare[1..]);
        Process::start(made, site.folder, site.server_cpus)?.finish(PATIENCE, site.stop)?;
        let server = if name == "mariadb" { start(name, &site, &[], &[])? } else { postgres(&site)? };
        for command in fillers(name, &server.target, &site)? {
            Process::start(command, site.folder, site.client_cpus)?.finish(PATIENCE, site.stop)?;
        }
        Ok(database)
    }
}

/// What fills a new database, one after the other.
fn fillers(name: &str, target: &Target, site: &Site<'_>) -> Result<Vec<Command>, Reason> {
    let Target::Unix(path) = target else { return Err("it is filled over its UNIX socket".into()) };
    if name == "mariadb" {
        let mut create = site.program("mariadb", Part::Client)?;
        create.args(["--no-defaults", "-u", "root", "-e", "create database sbtest", "--socket"]).arg(path);
        let mut fill = site.program("sysbench", Part::Client)?;
        fill.args(SYSBENCH).arg(format!("--mysql-socket={}", path.display())).arg("prepare");
        return Ok(vec![create, fill]);
    }
    let mut fill = site.program("pgbench", Part::Client)?;
    fill.arg("-h").arg(path).args(["-p", UNIX_PORT, "-U", "postgres", "-i", "-q", "postgres"]);
    Ok(vec![fill])
}

fn postgres(site: &Site<'_>) -> Result<Server, Reason> {
    start("postgres", site, &[], &["-c", "max_connections=600", "-c", "autovacuum=off"])
}

fn listens(target: &Target) -> bool {
    match target {
        Target::Tcp(address) => TcpStream::connect(address).is_ok(),
        Target::Unix(path) => UnixStream::connect(path).is_ok(),
    }
}

/// A free port below those that the kernel gives out (ip(7)): until the server listens, no other socket gets it by
/// chance, to which [`listens`] would connect again and again.
fn free_port() -> io::Result<u16> {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")?;
    let given_out = range.split_whitespace().next().and_then(|low| low.parse().ok()).unwrap_or(32_768);
    let apart = std::process::id().wrapping_mul(37) % 20_000; // another run's next is not ours
    let first = 10_000 + u16::try_from(apart).unwrap_or(0);
    let free = |&port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    (first..given_out).chain(10_000..first).find(free).ok_or(io::ErrorKind::AddrInUse.into())
}

/// The number in the name of PostgreSQL's UNIX socket.
pub(super) const UNIX_PORT: &str = "5432";

/// How long it may take to make a database.
const PATIENCE: Duration = Duration::from_secs(60);

/// nginx's answer from memory, of 63 bytes.
const RETURN_PAGE: &str = "return 200 \"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde\"";
