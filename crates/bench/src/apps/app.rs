//! What is measured: programs, what is asked of them, and over what.

use serde::{Deserialize, Serialize};

use super::server::Part;
use crate::names::names;
use crate::pair::Placement;

names! {
    /// A server that people run.
    App {
        /// redis-server, asked by redis-benchmark.
        Redis = "redis",
        /// memcached, asked by this program: distributions bring no load generator for it.
        Memcached = "memcached",
        /// nginx, asked by wrk.
        Nginx = "nginx",
        /// HAProxy, asked by wrk, before an nginx on the same CPU.
        Haproxy = "haproxy",
        /// PostgreSQL, asked by pgbench.
        Postgres = "postgres",
        /// MariaDB, asked by sysbench. Its rings are for files (`--io-uring files`).
        Mariadb = "mariadb",
        /// redis-server, asked by redis-py from some threads.
        RedisPy = "redis-py",
        /// PostgreSQL, asked by psycopg2 from some threads.
        Psycopg2 = "psycopg2",
        /// PostgreSQL, asked by Java's JDBC from some threads.
        Jdbc = "jdbc",
        /// redis-server, asked by PHP's phpredis from some processes.
        Phpredis = "phpredis",
        /// A gRPC server in Python, asked by grpcio from some threads.
        Grpc = "grpc",
        /// gunicorn behind nginx on the same CPU, asked by wrk.
        Gunicorn = "gunicorn",
        /// Node.js behind HAProxy on the same CPU, asked by wrk.
        HaproxyNode = "haproxy-node",
        /// A server of our own with a thread for each connection, asked by as many threads that wait as it does.
        Waits = "waits",
        /// A server of our own on tokio, asked by a client on tokio; both take the feature `peers`.
        Tokio = "tokio",
        /// No server: what the library costs programs that it does nothing for.
        Overhead = "overhead",
    }
}

names! {
    /// What the clients of a server do.
    Operation {
        /// One key is read, again and again on each connection.
        Get = "get",
        /// A response from memory is fetched, again and again on each connection.
        KeepAlive = "keep-alive",
        /// One row is read, by pgbench's select-only transaction or sysbench's oltp_point_select, again and again on each connection.
        Select = "select",
        /// A value of 1 MiB is read, again and again by each thread.
        Large = "large",
        /// 100 reads in one pipeline, again and again by each thread.
        Pipeline = "pipeline",
        /// 64 bytes are published and received, again and again by each thread.
        Publish = "publish",
        /// A unary call that returns its 64 bytes, again and again by each thread.
        Unary = "unary",
        /// 64 bytes there and back, again and again by each thread; both sides wait by read(2).
        ByRead = "by-read",
        /// The same by poll(2).
        ByPoll = "by-poll",
        /// By select(2).
        BySelect = "by-select",
        /// By a level-triggered epoll set of each connection.
        ByEpoll = "by-epoll",
        /// By an edge-triggered one.
        ByEdge = "by-edge",
        /// The client by read(2); four threads of the server share one set of single shots.
        ByPool = "by-pool",
        /// 64 bytes there and back, again and again on each connection; both runtimes have a thread for each CPU.
        MultiThread = "multi-thread",
        /// The same; both runtimes have one thread.
        CurrentThread = "current-thread",
        /// One request on each connection, or one transaction.
        Short = "short",
        /// 500 connections, on ten of which a request is under way: never soon again on the same one.
        Idle = "idle",
    }
}

names! {
    /// When requests are sent.
    #[derive(Default)]
    Pacing {
        /// On each connection after the last answer.
        #[default]
        Closed = "closed",
        /// At a fixed rate, half of what plain TCP bore; latency counts from when a request was due.
        Open = "open",
        /// The same at a quarter.
        Quarter = "quarter",
    }
}

impl Pacing {
    /// As `--open-loop` names it.
    pub(super) fn of_rate(name: &str) -> Result<Pacing, String> {
        match name {
            "half" => Ok(Pacing::Open),
            "quarter" => Ok(Pacing::Quarter),
            _ => Err("the rates are half and quarter".to_owned()),
        }
    }

    /// The share of plain TCP's rate; `None`: no rate is kept.
    pub(super) fn share(self) -> Option<f64> {
        match self {
            Pacing::Closed => None,
            Pacing::Open => Some(0.5),
            Pacing::Quarter => Some(0.25),
        }
    }
}

names! {
    /// What carries the bytes.
    Transport {
        /// TCP over loopback, both programs plain.
        Tcp = "tcp",
        /// The same with the preload library in both.
        Megapipe = "megapipe",
        /// The same with the library in the client, which finds nobody to share with.
        ClientOnly = "client-only",
        /// The same with the library in the server alone.
        ServerOnly = "server-only",
        /// The server's UNIX socket, both programs plain.
        Unix = "unix",
        /// TCP over loopback, the server's loop a channel: memcached by the preload of `examples/memcached`, nginx by
        /// the module of `examples/nginx`.
        Channel = "channel",
    }
}

/// One place on the axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Case {
    /// The server.
    pub app: App,
    /// What its clients do.
    pub operation: Operation,
    /// On how many connections at a time.
    pub connections: u32,
    /// Where the programs run.
    pub placement: Placement,
    /// When they send; the first records have no such field.
    #[serde(default)]
    pub pacing: Pacing,
    /// Bytes that a request fetches, where they can be chosen; the first records have no such field.
    #[serde(default = "usual_size")]
    pub size: u32,
}

pub(super) const MEMCACHED_PRELOAD: &str = "libmegapipe-memcached.so";
pub(super) const NGINX_MODULE: &str = "ngx_megapipe_module.so";

/// sysbench's task, and the table that the server is filled with.
pub(super) const SYSBENCH: [&str; 6] = [
    "oltp_point_select",
    "--db-driver=mysql",
    "--mysql-user=root",
    "--mysql-db=sbtest",
    "--tables=1",
    "--table-size=10000",
];

/// Bytes that a request fetches unless users choose.
pub(super) const USUAL_SIZE: u32 = 64;

fn usual_size() -> u32 {
    USUAL_SIZE
}

/// The program that sends requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Client {
    /// The load generator of this program.
    Own,
    RedisBenchmark,
    Wrk,
    Pgbench,
    Sysbench,
    /// `scripts/client.py`.
    Python,
    /// `scripts/Client.java`.
    Java,
    /// `scripts/client.php`.
    Php,
    /// Threads of this program, which wait as those of the server do.
    Waits,
    /// Tasks of this program on tokio.
    Tokio,
}

/// What there is to say of a server.
pub(super) struct Facts {
    pub(super) operations: &'static [Operation],
    /// What it takes of the distribution: programs, and packages of libraries.
    pub(super) programs: &'static [&'static str],
    /// Its usual client.
    pub(super) client: Client,
    /// Concurrent connections, or threads of the client, unless users choose.
    pub(super) connections: &'static [u32],
    pub(super) has_unix_socket: bool,
    /// The server of tests/programs.toml whose files are made once for a run, if it keeps some.
    pub(super) database: Option<&'static str>,
}

impl App {
    pub(super) const fn facts(self) -> Facts {
        use Operation::*;
        let (operations, programs): (&[Operation], &[&str]) = match self {
            App::Redis => (&[Get, Short, Idle], &["redis-server", "redis-benchmark"]),
            App::Memcached => (&[Get, Short, Idle], &["memcached"]),
            App::Nginx => (&[KeepAlive, Short, Idle], &["nginx", "wrk"]),
            App::Haproxy => (&[KeepAlive, Short, Idle], &["haproxy", "nginx", "wrk"]),
            App::Postgres => (&[Select, Short], &["initdb", "postgres", "pgbench"]),
            App::Mariadb => (&[Select], &["mariadbd", "mariadb", "sysbench"]),
            App::RedisPy => (&[Get, Large, Pipeline, Publish], &["redis-server", "python3", "python3-redis"]),
            App::Psycopg2 => (&[Select], &["initdb", "postgres", "pgbench", "python3", "python3-psycopg2"]),
            // The Java compiler, since the client is a source file.
            App::Jdbc => {
                (&[Select], &["initdb", "postgres", "pgbench", "java", "javac", "libpostgresql-jdbc-java"])
            }
            App::Phpredis => (&[Get], &["redis-server", "php", "php-redis"]),
            App::Grpc => (&[Unary], &["python3", "python3-grpcio"]),
            App::Gunicorn => (&[KeepAlive], &["gunicorn", "nginx", "wrk"]),
            App::HaproxyNode => (&[KeepAlive], &["haproxy", "node", "wrk"]),
            App::Waits => (&[ByRead, ByPoll, BySelect, ByEpoll, ByEdge, ByPool], &[]),
            App::Tokio => (&[MultiThread, CurrentThread], TOKIO),
            App::Overhead => (&[], &[]),
        };
        let (client, connections) = match self {
            App::Redis => (Client::RedisBenchmark, MANY),
            App::Memcached => (Client::Own, MANY), // distributions have no load generator for it
            App::Nginx | App::Haproxy => (Client::Wrk, MANY),
            App::Postgres => (Client::Pgbench, MANY),
            App::Mariadb => (Client::Sysbench, THREADS),
            App::RedisPy | App::Psycopg2 | App::Grpc | App::Overhead => (Client::Python, FEW),
            App::Jdbc => (Client::Java, THREADS),
            App::Phpredis => (Client::Php, THREADS),
            App::Gunicorn | App::HaproxyNode => (Client::Wrk, FEW),
            App::Waits => (Client::Waits, THREADS),
            App::Tokio => (Client::Tokio, THREADS),
        };
        // wrk has TCP only, and so have the clients in Python, Java and PHP.
        let has_unix_socket = matches!(self, App::Redis | App::Memcached | App::Postgres | App::Mariadb);
        let database = match self {
            App::Postgres | App::Psycopg2 | App::Jdbc => Some("postgres"),
            App::Mariadb => Some("mariadb"),
            _ => None,
        };
        Facts { operations, programs, client, connections, has_unix_socket, database }
    }

    /// What its clients can do.
    pub fn operations(self) -> &'static [Operation] {
        self.facts().operations
    }

    /// Whether its messages or answers can have any size.
    pub(super) fn has_sizes(self) -> bool {
        self.has_channels() || self == App::Waits
    }

    /// Whether it can run on channels.
    pub(super) fn has_channels(self) -> bool {
        matches!(self, App::Memcached | App::Nginx)
    }

    /// What its loop on channels is made of.
    pub(super) fn channel_files(self) -> &'static [&'static str] {
        match self {
            App::Memcached => &["libmegapipe.so.0", MEMCACHED_PRELOAD],
            App::Nginx => &["libmegapipe.so.0", NGINX_MODULE],
            _ => &[],
        }
    }

    /// What it takes of the distribution: programs, and packages of libraries.
    pub fn programs(self) -> &'static [&'static str] {
        self.facts().programs
    }
}

impl Client {
    /// The name that records carry.
    pub(super) fn name(self) -> &'static str {
        match self {
            Client::Own => "megapipe",
            Client::RedisBenchmark => "redis-benchmark",
            Client::Wrk => "wrk",
            Client::Pgbench => "pgbench",
            Client::Sysbench => "sysbench",
            Client::Python => "python3",
            Client::Java => "java",
            Client::Php => "php",
            Client::Waits => "waits",
            Client::Tokio => "tokio",
        }
    }

    fn keeps_a_rate(self) -> bool {
        // tokio's timers count whole milliseconds.
        !matches!(self, Client::RedisBenchmark | Client::Wrk | Client::Tokio)
    }
}

impl Operation {
    /// The number of connections that is part of the operation, if one is.
    pub(super) fn connections(self) -> Option<u32> {
        match self {
            Operation::Large | Operation::Pipeline | Operation::Publish => Some(1),
            Operation::Short => Some(50),
            Operation::Idle => Some(500),
            _ => None,
        }
    }

    /// Whether connections live long and are busy enough for promotion to be worth it.
    pub(super) fn is_worth_it(self) -> bool {
        !matches!(self, Operation::Short | Operation::Idle)
    }
}

impl Transport {
    /// Whether one of the two programs has the library.
    pub(super) fn has_library(self, part: Part) -> bool {
        match self {
            Transport::Tcp | Transport::Unix | Transport::Channel => false,
            Transport::Megapipe => true,
            Transport::ClientOnly => matches!(part, Part::Client),
            Transport::ServerOnly => matches!(part, Part::Server),
        }
    }
}

impl Case {
    /// The program that sends the requests.
    pub(super) fn client(self) -> Client {
        let usual = self.app.facts().client;
        match self.pacing {
            _ if self.operation == Operation::Idle => Client::Own,
            Pacing::Open | Pacing::Quarter if !usual.keeps_a_rate() => Client::Own,
            _ => usual,
        }
    }

    /// The case whose rate an open loop takes a share of.
    pub(super) fn closed(self) -> Case {
        Case { pacing: Pacing::Closed, ..self }
    }

    /// Whether some connections have enough to carry to be promoted.
    pub(super) fn is_worth_it(self) -> bool {
        let has_enough = match self.app {
            // Each connection has a process of its own, which has too little where they are many.
            App::Postgres => self.connections <= 100,
            // One process that answers one request at a time, on a connection of its own.
            App::Gunicorn => false,
            _ => true,
        };
        has_enough && self.operation.is_worth_it() && self.pacing == Pacing::Closed
    }

    /// What is compared.
    pub fn transports(self) -> Vec<Transport> {
        let closed = self.pacing == Pacing::Closed;
        let has_unix = self.app.facts().has_unix_socket && self.operation.is_worth_it() && closed;
        // Once for each server is enough.
        let first = self.app.operations().first() == Some(&self.operation);
        let alone = self.placement == Placement::TwoCores && first && closed;
        let is_compared = |transport: &Transport| match transport {
            Transport::Tcp | Transport::Megapipe => true,
            Transport::ClientOnly | Transport::ServerOnly => alone,
            Transport::Unix => has_unix,
            Transport::Channel => self.app.has_channels(),
        };
        Transport::ALL.iter().copied().filter(is_compared).collect()
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Case { app, operation, connections, placement, pacing, size } = self;
        write!(f, "{} {}, {connections} connections, {}", app.name(), operation.name(), placement.name())?;
        if *size != USUAL_SIZE {
            write!(f, ", {size} bytes")?;
        }
        match pacing {
            Pacing::Closed => Ok(()),
            Pacing::Open => write!(f, ", open loop"),
            Pacing::Quarter => write!(f, ", open loop at a quarter"),
        }
    }
}

/// Connections of servers that are made for many.
const MANY: &[u32] = &[1, 50, 500];

/// What tokio's programs lack in a build without it.
const TOKIO: &[&str] =
    if cfg!(feature = "peers") { &[] } else { &["tokio (the feature `peers` of this program)"] };

/// Threads of each side, or processes, or tasks.
const THREADS: &[u32] = &[1, 8, 50];

/// Threads of a client, or connections to one process that takes its time.
const FEW: &[u32] = &[1, 8];
