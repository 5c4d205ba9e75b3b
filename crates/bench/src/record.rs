//! What a run leaves behind: one JSON object per line.

use std::collections::BTreeMap;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::engine::Engine;
use crate::load;

/// One line of a result file; `record` says which kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub enum Record {
    /// The first line: where and how the run was made.
    Header(Header),
    /// What the kernel's own calls cost.
    Floor(Floor),
    /// One engine at one point in one round.
    Measurement(Measurement),
    /// An engine that was asked for and has no measurements from here on.
    Absent(Absent),
}

/// Where and how a run was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The program, the machine and the kernel.
    #[serde(flatten)]
    pub origin: Origin,
    /// What the client runs on.
    pub client: load::Engine,
    /// CPUs of the client's threads.
    pub client_cpus: Vec<usize>,
    /// How system calls are counted; null where that is not permitted.
    pub syscall_counter: Option<String>,
    /// Length of each measurement, seconds.
    pub seconds: f64,
    /// Measurements of each engine at each point.
    pub rounds: u32,
}

/// What made a result file, and where.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    /// The version of this program.
    pub version: String,
    /// The command line.
    pub command: String,
    /// When it began, RFC 3339, UTC.
    pub date: String,
    /// Architecture, number of CPUs, memory, and whether it is a virtual machine.
    pub machine: String,
    /// Model name of the CPU.
    pub cpu: String,
    /// Release and build of the kernel.
    pub kernel: String,
    /// The kernel's mitigations of CPU vulnerabilities, which make system calls dearer.
    pub mitigations: BTreeMap<String, String>,
}

/// One engine at one point in one round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The server.
    pub engine: Engine,
    /// Transactions per connection.
    pub transactions: u32,
    /// Bytes of a request and of its response.
    pub size: usize,
    /// Concurrent connections.
    pub connections: usize,
    /// CPUs of the server, one thread each.
    pub server_cpus: Vec<usize>,
    /// Counted from 1.
    pub round: u32,
    /// Transactions completed per second.
    pub transactions_per_s: f64,
    /// Connections completed per second.
    pub connections_per_s: f64,
    /// CPU time of the server process, nanoseconds.
    pub server_cpu_ns_per_transaction: f64,
    /// System calls of the server process, counted by the kernel; null where not permitted.
    pub syscalls_per_transaction: Option<f64>,
    /// Median time from the send of a request, or at a rate from when it was due, to its whole
    /// response, microseconds.
    pub p50_us: f64,
    /// 99th percentile of the same.
    pub p99_us: f64,
    /// 99.9th percentile of the same.
    pub p999_us: f64,
    /// CPU time of the client's threads, nanoseconds, without that of idle spinning.
    pub client_cpu_ns_per_transaction: f64,
    /// Share of its CPUs that the server used, 0 to 1; near 1 the server is the bottleneck.
    pub server_utilization: f64,
    /// Share of its CPUs that the client used, 0 to 1; near 1 the client is the bottleneck.
    pub client_utilization: f64,
    /// Share of the time in which the server was ready to run and something else had its CPU, 0 to 1;
    /// null where the kernel does not tell. Above a few percent the figures are disturbed: work of
    /// the network stack is then charged to whatever runs there.
    pub server_waited: Option<f64>,
    /// Connections that the server refused, reset or left early.
    pub failures: u64,
    /// Requests per second that were due over all connections; null in a closed loop, as all below.
    /// `transactions_per_s` is what came of it.
    pub rate: Option<u64>,
    /// Requests that were due in the measured time; the percentiles are of these.
    pub requests_due: Option<u64>,
    /// Those of them that had no response at the end, and count with their age.
    pub requests_unanswered: Option<u64>,
    /// 99th percentile of how late the client sent a request whose connection was free,
    /// microseconds.
    pub client_lag_us: Option<f64>,
    /// What kept the load from its schedule; null, too, where nothing did.
    pub limit: Option<Limit>,
}

/// What keeps an open loop from its schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// The client has no CPU time left, or its own lag is half of the 99th percentile: the
    /// latencies say little of the server.
    Client,
    /// The server answers fewer requests than are due, so that their latencies grow with the time.
    Server,
}

/// What the kernel's own calls cost on the server's CPU, nanoseconds per call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Floor {
    /// Bytes of a message.
    pub size: usize,
    /// Counted from 1.
    pub round: u32,
    /// accept4(2) of a connection that waits.
    pub accept_ns: f64,
    /// recv(2) of the first message on a connection, which waits already.
    pub first_recv_ns: f64,
    /// send(2) of the first message on a connection, with its delivery to the client's socket.
    pub first_send_ns: f64,
    /// recv(2) of a later message.
    pub recv_ns: f64,
    /// send(2) of a later message.
    pub send_ns: f64,
    /// close(2) of a connection that its peer has reset.
    pub close_ns: f64,
    /// Entering and leaving the kernel (getppid(2)); part of each of the above.
    pub entry_ns: f64,
}

impl Floor {
    /// Nanoseconds per transaction, each call entering the kernel by itself.
    pub fn with_entries(&self, transactions: u32) -> f64 {
        let transactions = f64::from(transactions);
        let once = self.accept_ns + self.first_recv_ns + self.first_send_ns + self.close_ns;
        let again = self.recv_ns + self.send_ns;
        (once + (transactions - 1.0) * again) / transactions
    }

    /// Nanoseconds per transaction if entering the kernel cost nothing: the bound for batching.
    pub fn without_entries(&self, transactions: u32) -> f64 {
        let entries = 2.0 / f64::from(transactions) + 2.0;
        self.with_entries(transactions) - entries * self.entry_ns
    }
}

/// An engine that cannot be measured here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Absent {
    /// The engine.
    pub engine: Engine,
    /// Why, in its own words.
    pub reason: String,
}

impl Origin {
    /// Describes this machine; what the kernel does not tell is "unknown".
    pub fn of_this_machine(command: String) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command,
            date: date(SystemTime::now()),
            machine: machine(),
            cpu: cpu_field("model name").unwrap_or_else(|| "unknown".to_owned()),
            kernel: format!("{} {}", proc_line("sys/kernel/osrelease"), proc_line("sys/kernel/version")),
            mitigations: mitigations(),
        }
    }
}

fn machine() -> String {
    let cpus = std::thread::available_parallelism().map_or(0, |count| count.get());
    let memory = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    let memory =
        memory.map_or("unknown memory".to_owned(), |kib| format!("{:.1} GiB", kib as f64 / 1024.0 / 1024.0));
    let hypervisor =
        cpu_field("flags").is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor"));
    let kind = if hypervisor { ", virtual" } else { "" };
    format!("{}, {cpus} CPUs, {memory}{kind}", std::env::consts::ARCH)
}

fn cpu_field(name: &str) -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

fn proc_line(path: &str) -> String {
    match fs::read_to_string(format!("/proc/{path}")) {
        Ok(text) => text.trim().to_owned(),
        Err(_) => "unknown".to_owned(),
    }
}

fn mitigations() -> BTreeMap<String, String> {
    let Ok(entries) = fs::read_dir("/sys/devices/system/cpu/vulnerabilities") else {
        return BTreeMap::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let state = fs::read_to_string(entry.path()).ok()?;
            Some((entry.file_name().into_string().ok()?, state.trim().to_owned()))
        })
        .filter(|(_, state)| state != "Not affected")
        .collect()
}

/// RFC 3339 in UTC, by the days-to-civil algorithm of Howard Hinnant.
fn date(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_civil() {
        let at = |seconds| date(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59Z");
    }

    #[test]
    fn the_floor_spreads_what_happens_once_over_the_transactions() {
        let floor = Floor {
            size: 64,
            round: 1,
            accept_ns: 1500.0,
            first_recv_ns: 600.0,
            first_send_ns: 3000.0,
            recv_ns: 400.0,
            send_ns: 2000.0,
            close_ns: 500.0,
            entry_ns: 100.0,
        };
        assert_eq!(floor.with_entries(1), 5600.0);
        assert_eq!(floor.with_entries(10), 2720.0);
        assert_eq!(floor.without_entries(1), 5200.0);
    }

    #[test]
    fn the_kernel_is_known() {
        let origin = Origin::of_this_machine("megapipe-bench rpc".to_owned());
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        assert!(origin.kernel.starts_with(release.trim()));
    }
}
