//! What is measured: programs, what is asked of them, and over what.

use serde::{Deserialize, Serialize};

use super::server::Part;
use crate::pair::Placement;

/// A server that people run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum App {
    /// redis-server, asked by redis-benchmark.
    Redis,
    /// memcached, asked by this program: distributions bring no load generator for it.
    Memcached,
    /// nginx, asked by wrk.
    Nginx,
    /// HAProxy, asked by wrk, before an nginx on the same CPU.
    Haproxy,
    /// PostgreSQL, asked by pgbench.
    Postgres,
    /// redis-server, asked by redis-py from some threads.
    RedisPy,
    /// PostgreSQL, asked by psycopg2 from some threads.
    Psycopg2,
    /// A gRPC server in Python, asked by grpcio from some threads.
    Grpc,
    /// gunicorn behind nginx on the same CPU, asked by wrk.
    Gunicorn,
    /// Node.js behind HAProxy on the same CPU, asked by wrk.
    HaproxyNode,
}

/// What the clients of a server do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// One key is read, again and again on each connection.
    Get,
    /// One key is written, again and again on each connection.
    Set,
    /// A response from memory is fetched, again and again on each connection.
    KeepAlive,
    /// A file is fetched, again and again on each connection.
    File,
    /// pgbench's select-only transaction, again and again on each connection.
    Select,
    /// A value of 1 MiB is read, again and again by each thread.
    Large,
    /// 100 reads in one pipeline, again and again by each thread.
    Pipeline,
    /// 64 bytes are published and received, again and again by each thread.
    Publish,
    /// A unary call that returns its 64 bytes, again and again by each thread.
    Unary,
    /// One request on each connection, or one transaction.
    Short,
    /// 500 connections, on ten of which a request is under way: never soon again on the same one.
    Idle,
}

/// When requests are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pacing {
    /// On each connection after the last answer.
    #[default]
    Closed,
    /// At a fixed rate, half of what plain TCP bore; latency counts from when a request was due.
    Open,
}

/// What carries the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// TCP over loopback, both programs plain.
    Tcp,
    /// The same with the preload library in both.
    Megapipe,
    /// The same with the library in the client, which finds nobody to share with.
    ClientOnly,
    /// The same with the library in the server alone.
    ServerOnly,
    /// The server's UNIX socket, both programs plain.
    Unix,
}

/// One place on the axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Case {
    /// The server.
    pub app: App,
    /// What its clients do.
    pub operation: Operation,
    /// On how many connections at a time.
    pub connections: u32,
    /// Where the programs run.
    pub placement: Placement,
    /// When they send.
    pub pacing: Pacing,
}

/// The program that sends requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Client {
    /// The load generator of this program.
    Own,
    RedisBenchmark,
    Wrk,
    Pgbench,
    /// `scripts/client.py`.
    Python,
}

/// What there is to say of a server.
struct Facts {
    name: &'static str,
    operations: &'static [Operation],
    /// What it takes of the distribution: programs, and packages of Python modules.
    programs: &'static [&'static str],
    /// Its usual client.
    client: Client,
    /// Concurrent connections, or threads of the client, unless users choose.
    connections: &'static [u32],
    has_unix_socket: bool,
    has_database: bool,
}

impl App {
    /// All, in the order of tables.
    pub const ALL: &[App] = &[
        App::Redis,
        App::Memcached,
        App::Nginx,
        App::Haproxy,
        App::Postgres,
        App::RedisPy,
        App::Psycopg2,
        App::Grpc,
        App::Gunicorn,
        App::HaproxyNode,
    ];

    const fn facts(self) -> Facts {
        match self {
            App::Redis => Facts {
                name: "redis",
                operations: &[Operation::Get, Operation::Set, Operation::Short, Operation::Idle],
                programs: &["redis-server", "redis-benchmark"],
                client: Client::RedisBenchmark,
                connections: MANY,
                has_unix_socket: true,
                has_database: false,
            },
            App::Memcached => Facts {
                name: "memcached",
                operations: &[Operation::Get, Operation::Set, Operation::Idle],
                programs: &["memcached"],
                client: Client::Own, // distributions have no load generator for it
                connections: MANY,
                has_unix_socket: true,
                has_database: false,
            },
            App::Nginx => Facts {
                name: "nginx",
                operations: &[Operation::KeepAlive, Operation::File, Operation::Short, Operation::Idle],
                programs: &["nginx", "wrk"],
                client: Client::Wrk,
                connections: MANY,
                has_unix_socket: false, // wrk has TCP only
                has_database: false,
            },
            App::Haproxy => Facts {
                name: "haproxy",
                operations: &[Operation::KeepAlive, Operation::Short, Operation::Idle],
                programs: &["haproxy", "nginx", "wrk"],
                ..App::Nginx.facts()
            },
            App::Postgres => Facts {
                name: "postgres",
                operations: &[Operation::Select, Operation::Short],
                programs: &["initdb", "postgres", "pgbench"],
                client: Client::Pgbench,
                connections: MANY,
                has_unix_socket: true,
                has_database: true,
            },
            App::RedisPy => Facts {
                name: "redis-py",
                operations: &[Operation::Get, Operation::Large, Operation::Pipeline, Operation::Publish],
                programs: &["redis-server", "python3", "python3-redis"],
                client: Client::Python,
                connections: FEW,
                has_unix_socket: false,
                has_database: false,
            },
            App::Psycopg2 => Facts {
                name: "psycopg2",
                operations: &[Operation::Select],
                programs: &["initdb", "postgres", "pgbench", "python3", "python3-psycopg2"],
                has_database: true,
                ..App::RedisPy.facts()
            },
            App::Grpc => Facts {
                name: "grpc",
                operations: &[Operation::Unary],
                programs: &["python3", "python3-grpcio"],
                ..App::RedisPy.facts()
            },
            App::Gunicorn => Facts {
                name: "gunicorn",
                operations: &[Operation::KeepAlive],
                programs: &["gunicorn", "nginx", "wrk"],
                connections: FEW,
                ..App::Nginx.facts()
            },
            App::HaproxyNode => Facts {
                name: "haproxy-node",
                operations: &[Operation::KeepAlive],
                programs: &["haproxy", "node", "wrk"],
                connections: FEW,
                ..App::Nginx.facts()
            },
        }
    }

    /// The name users write and records carry.
    pub fn name(self) -> &'static str {
        self.facts().name
    }

    /// What its clients can do.
    pub fn operations(self) -> &'static [Operation] {
        self.facts().operations
    }

    /// What it takes of the distribution: programs, and packages of Python modules.
    pub fn programs(self) -> &'static [&'static str] {
        self.facts().programs
    }

    /// Connections, or threads of the client, unless users choose.
    pub(super) fn connections(self) -> &'static [u32] {
        self.facts().connections
    }

    /// Its usual client.
    pub(super) fn client(self) -> Client {
        self.facts().client
    }

    /// Whether it keeps files that are made once for a run.
    pub(super) fn has_database(self) -> bool {
        self.facts().has_database
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
            Client::Python => "python3",
        }
    }

    fn keeps_a_rate(self) -> bool {
        matches!(self, Client::Own | Client::Pgbench | Client::Python)
    }
}

impl Operation {
    /// All, in the order of tables.
    pub const ALL: &[Operation] = &[
        Operation::Get,
        Operation::Set,
        Operation::KeepAlive,
        Operation::File,
        Operation::Select,
        Operation::Large,
        Operation::Pipeline,
        Operation::Publish,
        Operation::Unary,
        Operation::Short,
        Operation::Idle,
    ];

    /// The name users write and records carry.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Get => "get",
            Operation::Set => "set",
            Operation::KeepAlive => "keep-alive",
            Operation::File => "file",
            Operation::Select => "select",
            Operation::Large => "large",
            Operation::Pipeline => "pipeline",
            Operation::Publish => "publish",
            Operation::Unary => "unary",
            Operation::Short => "short",
            Operation::Idle => "idle",
        }
    }

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

impl Pacing {
    /// All, in the order of tables.
    pub const ALL: &[Pacing] = &[Pacing::Closed, Pacing::Open];

    /// The name that records carry.
    pub fn name(self) -> &'static str {
        match self {
            Pacing::Closed => "closed",
            Pacing::Open => "open",
        }
    }
}

impl Transport {
    /// All, in the order of tables and plots.
    pub const ALL: &[Transport] =
        &[Transport::Tcp, Transport::Megapipe, Transport::ClientOnly, Transport::ServerOnly, Transport::Unix];

    /// Whether one of the two programs has the library.
    pub(super) fn has_library(self, part: Part) -> bool {
        match self {
            Transport::Tcp | Transport::Unix => false,
            Transport::Megapipe => true,
            Transport::ClientOnly => matches!(part, Part::Client),
            Transport::ServerOnly => matches!(part, Part::Server),
        }
    }

    /// The name that records carry.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Megapipe => "megapipe",
            Transport::ClientOnly => "client-only",
            Transport::ServerOnly => "server-only",
            Transport::Unix => "unix",
        }
    }
}

impl Case {
    /// The program that sends the requests.
    pub(super) fn client(self) -> Client {
        let usual = self.app.client();
        match self.pacing {
            _ if self.operation == Operation::Idle => Client::Own,
            Pacing::Open if !usual.keeps_a_rate() => Client::Own,
            _ => usual,
        }
    }

    /// The case whose rate an open loop takes half of.
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
        };
        Transport::ALL.iter().copied().filter(is_compared).collect()
    }

    /// How many times the requests per second of TCP are asked of a transport.
    pub fn asked(self, transport: Transport) -> Option<f64> {
        match transport {
            Transport::Tcp | Transport::Unix => None,
            _ if self.pacing == Pacing::Open => None, // all bear the rate
            Transport::Megapipe => Some(self.asked_of_both()),
            Transport::ClientOnly | Transport::ServerOnly => Some(NEVER_SLOWER),
        }
    }

    fn asked_of_both(self) -> f64 {
        let busy = self.placement == Placement::TwoCores && self.operation.is_worth_it();
        match (self.app, self.connections) {
            _ if !busy => NEVER_SLOWER,
            (App::Redis, 1) => 10.0,
            (App::Redis, 50) => 2.5,
            (App::Nginx, 1) if self.operation == Operation::KeepAlive => 15.0,
            (App::Nginx, 50) if self.operation == Operation::KeepAlive => 3.0,
            (App::Memcached | App::Haproxy, 50) => 2.0,
            (App::Postgres, 1 | 50) => 1.3,
            _ => NEVER_SLOWER,
        }
    }

    /// How many times the requests per second of the UNIX socket are asked of Megapipe.
    pub fn asked_of_unix(self) -> Option<f64> {
        let first = self.app == App::Redis && self.connections == 1;
        (first && self.placement == Placement::TwoCores && self.operation.is_worth_it()).then_some(5.0)
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Case { app, operation, connections, placement, pacing } = self;
        write!(f, "{} {}, {connections} connections, {}", app.name(), operation.name(), placement.name())?;
        if *pacing == Pacing::Open { write!(f, ", open loop") } else { Ok(()) }
    }
}

/// Within 5 % of plain.
const NEVER_SLOWER: f64 = 0.95;

/// Connections of servers that are made for many.
const MANY: &[u32] = &[1, 50, 500];

/// Threads of a client, or connections to one process that takes its time.
const FEW: &[u32] = &[1, 8];
