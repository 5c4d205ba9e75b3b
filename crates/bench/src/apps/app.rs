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
    /// One request on each connection, or one transaction.
    Short,
    /// 500 connections, on ten of which a request is under way: never soon again on the same one.
    Idle,
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
}

impl App {
    /// All, in the order of tables.
    pub const ALL: &[App] = &[App::Redis, App::Memcached, App::Nginx, App::Haproxy, App::Postgres];

    /// The name users write and records carry.
    pub fn name(self) -> &'static str {
        match self {
            App::Redis => "redis",
            App::Memcached => "memcached",
            App::Nginx => "nginx",
            App::Haproxy => "haproxy",
            App::Postgres => "postgres",
        }
    }

    /// What its clients can do.
    pub fn operations(self) -> &'static [Operation] {
        match self {
            App::Redis => &[Operation::Get, Operation::Set, Operation::Short, Operation::Idle],
            App::Memcached => &[Operation::Get, Operation::Set, Operation::Idle],
            App::Nginx => &[Operation::KeepAlive, Operation::File, Operation::Short, Operation::Idle],
            App::Haproxy => &[Operation::KeepAlive, Operation::Short, Operation::Idle],
            App::Postgres => &[Operation::Select, Operation::Short],
        }
    }

    /// The programs of the distribution that it takes.
    pub fn programs(self) -> &'static [&'static str] {
        match self {
            App::Redis => &["redis-server", "redis-benchmark"],
            App::Memcached => &["memcached"],
            App::Nginx => &["nginx", "wrk"],
            App::Haproxy => &["haproxy", "nginx", "wrk"],
            App::Postgres => &["initdb", "postgres", "pgbench"],
        }
    }

    /// The client of an operation, as records name it.
    pub fn client(self, operation: Operation) -> &'static str {
        match self {
            _ if operation == Operation::Idle => "megapipe",
            App::Redis => "redis-benchmark",
            App::Memcached => "megapipe",
            App::Nginx | App::Haproxy => "wrk",
            App::Postgres => "pgbench",
        }
    }

    fn has_unix_socket(self) -> bool {
        matches!(self, App::Redis | App::Memcached | App::Postgres) // wrk knows TCP only
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
            Operation::Short => "short",
            Operation::Idle => "idle",
        }
    }

    /// The number of connections that is part of the operation, if one is.
    pub(super) fn connections(self) -> Option<u32> {
        match self {
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
    /// Whether some connections have enough to carry to be promoted. Each of PostgreSQL's has a process of
    /// its own, which has too little where they are many.
    pub(super) fn is_worth_it(self) -> bool {
        self.operation.is_worth_it() && !(self.app == App::Postgres && self.connections > 100)
    }

    /// What is compared.
    pub fn transports(self) -> Vec<Transport> {
        let has_unix = self.app.has_unix_socket() && self.operation.is_worth_it();
        // Once for each server is enough.
        let alone =
            self.placement == Placement::TwoCores && self.app.operations().first() == Some(&self.operation);
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
        let Case { app, operation, connections, placement } = self;
        write!(f, "{} {}, {connections} connections, {}", app.name(), operation.name(), placement.name())
    }
}

/// Within 5 % of plain.
const NEVER_SLOWER: f64 = 0.95;
