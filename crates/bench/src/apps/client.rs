//! The clients: each as its documentation says one should run it, once for a measurement. At a rate,
//! latency counts from when a request was due.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use super::app::{App, Case, Client, Operation, SYSBENCH, Transport};
use super::output::{self, report};
use super::programs::JDBC;
use super::server::{Part, Server, Site, UNIX_PORT};
use super::tokio::{self, Tokio};
use super::waits::{self, Waits};
use crate::Reason;
use crate::load::{Connections, Engine, Options, Report, Request, Target};
use crate::part;
use crate::process::{Process, cpu_of_ended_children};

/// The clients in Python, Java and PHP; their options are in the first.
pub(super) const SCRIPTS: [(&str, &str); 3] = [
    (PYTHON, include_str!("scripts/client.py")),
    (JAVA, include_str!("scripts/Client.java")),
    (PHP, include_str!("scripts/client.php")),
];

const PYTHON: &str = "client.py";
const JAVA: &str = "Client.java";
const PHP: &str = "client.php";

/// What a client and its server did.
pub(super) struct Measured {
    pub(super) load: Report,
    pub(super) server_cpu: Duration,
    pub(super) client_cpu: Duration,
}

/// Lets the client of a case run for a time, at so many requests per second if it is an open loop.
pub(super) fn measure(
    case: &Case,
    rate: Option<f64>,
    server: &Server,
    site: &Site<'_>,
    program: &Path,
    window: Duration,
) -> Result<Measured, Reason> {
    let run = Run { case, rate, server, site, window };
    match case.client() {
        Client::Own => run.load(program),
        Client::RedisBenchmark => run.redis_benchmark(),
        Client::Wrk => run.wrk(),
        Client::Pgbench => run.pgbench(),
        Client::Sysbench => run.sysbench(),
        Client::Python => run.script("python3", &[], PYTHON),
        // Without its file of performance counters in /tmp.
        Client::Java => run.script("java", &["-XX:-UsePerfData", "-cp", JDBC], JAVA),
        Client::Php => run.script("php", &[], PHP),
        Client::Waits => run.waits(program),
        Client::Tokio => run.tokio(program),
    }
}

struct Run<'run> {
    case: &'run Case,
    rate: Option<f64>,
    server: &'run Server,
    site: &'run Site<'run>,
    window: Duration,
}

impl Run<'_> {
    /// Knows no time, but a number of requests, which short runs find.
    fn redis_benchmark(&self) -> Result<Measured, Reason> {
        let run = |operation: &str, requests: u64| {
            let command = self.redis_command(operation, requests)?;
            self.run(command, |text| output::redis_benchmark(text, requests))
        };
        run("set", FIRST_REQUESTS)?; // so that there is something to get
        let probe = run("get", FIRST_REQUESTS.max(u64::from(self.case.connections) * 10))?;
        let warm_up = run("get", requests(probe.load.requests_per_s, self.window / 4))?;
        let rate = warm_up.load.requests_per_s;
        let _ = fs::remove_file(self.site.log(Part::Client)); // of the runs before
        run("get", requests(rate, self.window))
    }

    fn redis_command(&self, operation: &str, requests: u64) -> Result<Command, Reason> {
        let mut command = self.site.program("redis-benchmark", Part::Client)?;
        match &self.server.target {
            Target::Tcp(address) => command.args(["-h", "127.0.0.1", "-p", &address.port().to_string()]),
            Target::Unix(path) => command.arg("-s").arg(path),
        };
        command.args(["--csv", "-t", operation]);
        command.args(["-n", &requests.to_string(), "-c", &self.case.connections.to_string()]);
        if self.case.operation == Operation::Short {
            command.args(["-k", "0"]);
        }
        Ok(command)
    }

    fn wrk(&self) -> Result<Measured, Reason> {
        let address = self.server.address()?;
        let mut command = self.site.program("wrk", Part::Client)?;
        command.args(["-t", "1", "-c", &self.case.connections.to_string()]);
        command.args(["-d", &format!("{}s", self.whole_seconds()), "--latency"]);
        if self.case.operation == Operation::Short {
            command.args(["-H", "Connection: close"]);
        }
        command.arg(format!("http://{address}/"));
        self.run(command, output::wrk)
    }

    fn pgbench(&self) -> Result<Measured, Reason> {
        let home = self.site.home();
        self.fill_memory()?;
        let log = home.join("transactions");
        let mut command = self.site.program("pgbench", Part::Client)?;
        match &self.server.target {
            Target::Tcp(_) => command.args(["-h", "127.0.0.1"]),
            Target::Unix(folder) => command.arg("-h").arg(folder),
        };
        command.args(["-p", &self.database_port(), "-U", "postgres", "-n", "-S"]);
        // Its time begins before its connections do, each of which is a new process of the server.
        let connecting = match self.case.operation {
            Operation::Short => 0,
            _ => u64::from(self.case.connections).div_ceil(CONNECTING_PER_S),
        };
        let seconds = self.whole_seconds() + connecting;
        command.args(["-c", &self.case.connections.to_string(), "-T", &seconds.to_string()]);
        command.args(["-l", "--sampling-rate", "0.1"]).arg("--log-prefix").arg(&log);
        if self.case.operation == Operation::Short {
            command.arg("-C");
        }
        if let Some(rate) = self.rate {
            command.args(["--rate", &rate.to_string()]);
        }
        command.arg("postgres");
        let measured = self.run(command, |text| {
            let times =
                logs(home).iter().map(|log| fs::read_to_string(log).unwrap_or_default()).collect::<String>();
            output::pgbench(text, times.lines())
        });
        for log in logs(home) {
            let _ = fs::remove_file(log); // the folder is removed in the end
        }
        measured
    }

    fn sysbench(&self) -> Result<Measured, Reason> {
        let mut command = self.site.program("sysbench", Part::Client)?;
        command.args(SYSBENCH).args(["--percentile=99", "--histogram=on"]);
        match &self.server.target {
            Target::Tcp(address) => {
                command.args(["--mysql-host=127.0.0.1", &format!("--mysql-port={}", address.port())])
            }
            Target::Unix(path) => command.arg(format!("--mysql-socket={}", path.display())),
        };
        command.arg(format!("--threads={}", self.case.connections));
        command.arg(format!("--time={}", self.whole_seconds()));
        if let Some(rate) = self.rate {
            command.arg(format!("--rate={}", rate.round().max(1.0)));
        }
        command.arg("run");
        self.run(command, output::sysbench)
    }

    /// Has PostgreSQL read the table into memory of its own.
    fn fill_memory(&self) -> Result<(), Reason> {
        let plain = Site { transport: Transport::Unix, ..*self.site };
        let mut command = plain.program("pgbench", Part::Client)?;
        command.arg("-h").arg(self.site.home()).args(["-p", &self.database_port(), "-U", "postgres"]);
        command.args(["-n", "-S", "-c", "4", "-t", "4000", "postgres"]);
        self.run(command, |text| output::pgbench(text, "".lines())).map(drop)
    }

    fn script(&self, interpreter: &str, flags: &[&str], script: &str) -> Result<Measured, Reason> {
        if self.case.app.facts().database.is_some() {
            self.fill_memory()?;
        }
        let mut command = self.site.program(interpreter, Part::Client)?;
        command.args(flags).arg(self.site.folder.join(script));
        command.arg(format!("{}-{}", self.case.app.name(), self.case.operation.name()));
        command.args(["--port", &self.server.port()?.to_string()]);
        command.args(["--threads", &self.case.connections.to_string()]);
        command.args(["--warm-up", &(self.window / 4).as_secs_f64().to_string()]);
        command.args(["--window", &self.window.as_secs_f64().to_string()]);
        if let Some(rate) = self.rate {
            command.args(["--rate", &rate.to_string()]);
        }
        self.run(command, report)
    }

    fn waits(&self, program: &Path) -> Result<Measured, Reason> {
        let threads = self.case.connections;
        let (warm_up, window, rate) = (self.window / 4, self.window, self.rate);
        let client = Some(waits::Client { threads, warm_up, window, rate });
        let &Case { operation, size, .. } = self.case;
        let task = Waits { operation, port: self.server.port()?, size, client };
        let mut command = self.site.command(program, Part::Client);
        command.args(part::Part::arguments(&task));
        self.run(command, report)
    }

    fn tokio(&self, program: &Path) -> Result<Measured, Reason> {
        let connections = self.case.connections;
        let client = Some(tokio::Client { connections, warm_up: self.window / 4, window: self.window });
        let task = Tokio { operation: self.case.operation, port: self.server.port()?, client };
        let mut command = self.site.command(program, Part::Client);
        command.args(part::Part::arguments(&task));
        self.run(command, report)
    }

    fn database_port(&self) -> String {
        match &self.server.target {
            Target::Tcp(address) => address.port().to_string(),
            Target::Unix(_) => UNIX_PORT.to_owned(),
        }
    }

    fn load(&self, program: &Path) -> Result<Measured, Reason> {
        let request = match self.case.app {
            App::Memcached => Request::MemcachedGet(self.case.size as usize),
            App::Redis => Request::RedisGet,
            App::Tokio => Request::Echo(self.case.size as usize),
            _ => Request::Http,
        };
        let connections = self.case.connections as usize;
        let options = Options {
            engine: Engine::Epoll, // by calls that a preload library sees
            target: self.server.target.clone(),
            request,
            lifetime: match self.case.operation {
                Operation::Short => Connections::Short,
                _ => Connections::Kept,
            },
            connections,
            active: if self.case.operation == Operation::Idle { IDLE_ACTIVE } else { connections },
            rate: self.rate,
            spin: false,
            warm_up: self.window / 4,
            window: self.window,
            // What is due in the window of an open loop may be answered after it, but not for ever.
            patience: Some(if self.rate.is_some() { self.window } else { Duration::ZERO }),
        };
        let mut command = self.site.command(program, Part::Client);
        command.args(part::Part::arguments(&options));
        self.run(command, report)
    }

    /// Runs it to its end.
    fn run(
        &self,
        command: Command,
        figures: impl FnOnce(&str) -> Result<Report, String>,
    ) -> Result<Measured, Reason> {
        let (server, client) = (self.server.cpu_time()?, cpu_of_ended_children());
        let site = self.site;
        let mut process = Process::start(command, site.folder, site.client_cpus)?;
        let text = process.finish(self.window * 10 + PATIENCE, site.stop)?;
        let load = figures(&text)?;
        let client_cpu = load.cpu_s.map(Duration::try_from_secs_f64).and_then(Result::ok);
        let client_cpu = client_cpu.unwrap_or(cpu_of_ended_children().saturating_sub(client));
        thread::sleep(SETTLING);
        let server_cpu = self.server.cpu_time()?.saturating_sub(server);
        Ok(Measured { load, server_cpu, client_cpu })
    }

    /// wrk, pgbench and sysbench take no others.
    fn whole_seconds(&self) -> u64 {
        (self.window.as_secs_f64().round() as u64).max(1)
    }
}

/// What pgbench has logged.
fn logs(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let logs = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("transactions."));
    logs.map(|entry| entry.path()).collect()
}

/// As many as are made in a time.
fn requests(rate: f64, time: Duration) -> u64 {
    (rate * time.as_secs_f64()).clamp(1000.0, 1e9) as u64
}

/// To learn a rate from.
const FIRST_REQUESTS: u64 = 4000;

/// Requests under way on 500 connections that are mostly idle.
const IDLE_ACTIVE: usize = 10;

/// In which servers see that their client has gone: what PostgreSQL's processes for connections have
/// used is counted again only when they have ended.
const SETTLING: Duration = Duration::from_millis(100);

/// Connections that PostgreSQL begins in a second on a slow machine.
const CONNECTING_PER_S: u64 = 100;

/// How much longer than its time a client may take.
const PATIENCE: Duration = Duration::from_secs(60);
