//! What each scenario's records have, and what is compared. The tags and names of fields stay: files
//! in `bench-results/` are read by this version, too.

use serde_json::Value;

use crate::record::Record;
use crate::summary::{Row, Spread, Summary};
use crate::view::{Figure, Key, Over, Ratio, View};

macro_rules! key {
    ($heading:literal) => {
        key!($heading, $heading)
    };
    ($heading:literal, $field:literal) => {
        Key { heading: $heading, field: $field }
    };
}

/// The median of a field, in thousands, millionths or so where a factor is given, or of one field over another.
macro_rules! figure {
    ($heading:literal, $digits:literal, $part:literal / $whole:literal) => {
        Figure::new($heading, $digits, |one| Some(one.number($part)? / one.number($whole)?))
    };
    ($heading:literal, $digits:literal, $field:literal) => {
        Figure::new($heading, $digits, |one| one.number($field))
    };
    ($heading:literal, $digits:literal, $field:literal, $factor:expr) => {
        Figure::new($heading, $digits, |one| Some(one.number($field)? * $factor))
    };
}

/// All, in the order of tables.
pub const VIEWS: &[View] = &[
    // An engine at one point. `server_waited`: share of the time in which the server was ready to run and
    // something else had its CPU. The client's CPU time is without that of idle spinning. With a `rate`,
    // latency counts from when a request was due, requests without an answer count with their age, and
    // `client_lag_us` is the 99th percentile of how late the client sent on a free connection.
    View {
        point: &[
            key!("requests/connection", "transactions"),
            key!("bytes", "size"),
            key!("connections"),
            key!("server CPUs", "server_cpus"),
            key!("loop", "rate"),
        ],
        figures: &[
            figure!("CPU ns/tx", 0, "server_cpu_ns_per_transaction")
                .over(Over::Range)
                .beside(&[EPOLL.ranged(), Ratio::to("x floor", &[&["floor"]])]),
            figure!("tx/s", 0, "transactions_per_s"),
            figure!("syscalls/tx", 2, "syscalls_per_transaction"),
            figure!("p50 us", 0, "p50_us").beside(&[EPOLL]),
            figure!("p99 us", 0, "p99_us").beside(&[EPOLL]),
            figure!("p99.9 us", 0, "p999_us").beside(&[EPOLL]),
            figure!("due/s", 0, "rate"),
            figure!("lag us", 0, "client_lag_us"),
            figure!("server %", 0, "server_utilization", 100.0),
            figure!("client %", 0, "client_utilization", 100.0),
            figure!("failed", 0, "failures").over(Over::Most),
        ],
        plotted: &["tx/s", "CPU ns/tx", "p50 us", "p99 us"],
        ..View::new(
            "Requests and answers over TCP: medians; ratio: to the better epoll server of a round; floor: the kernel's own \
             calls without entering it",
            "measurement",
            "engine",
        )
    },
    // Round trips over one transport; `cpu_ns_per_message`: CPU time of both processes over the messages
    // in both directions. `waited`: share of the time in which a process waited for a CPU.
    View {
        point: PAIR,
        figures: &[
            figure!("p50 ns", 0, "rtt_ns_p50")
                .over(Over::Range)
                .beside(&[TCP_TIMES.inverse(), Ratio::to("x limit", &[&["cacheline"]])]),
            figure!("p99 ns", 0, "rtt_ns_p99"),
            figure!("p99.9 ns", 0, "rtt_ns_p999"),
            figure!("CPU ns/msg", 0, "cpu_ns_per_message"),
        ],
        plotted: &["p50 ns"],
        ..View::new(
            "Round trips between two processes: medians; x tcp: how many times as fast as blocking TCP; limit: two bare cache \
             lines",
            "pingpong",
            "transport",
        )
    },
    // Messages in one direction over one transport.
    View {
        point: PAIR,
        figures: &[
            figure!("MB/s", 1, "bytes_per_s", 1e-6)
                .over(Over::Range)
                .beside(&[TCP_TIMES, Ratio::to("of limit", &[&["memcpy"]])]),
            figure!("msg/s", 0, "messages_per_s"),
            figure!("CPU ns/msg", 0, "cpu_ns_per_message"),
        ],
        plotted: &["MB/s"],
        ..View::new(
            "Streams between two processes: medians; limit: one core copies into a shared buffer, another one out of it",
            "stream",
            "transport",
        )
    },
    APPS,
    // What the library costs a program that it does nothing for; `ns`: the median time of one call, or of
    // one run of true(1).
    View {
        point: &[key!("cost")],
        figures: &[figure!("ns", 1, "ns")
            .over(Over::Range)
            .beside(&[Ratio::to("ratio", &[&["false"]]).ranged()])],
        ..View::new(
            "Calls on files that are no sockets, and start-up, without and with the library",
            "overhead",
            "preloaded",
        )
    },
    // A call at one number of ready sockets. `receive_calls`: calls to receive, or to send;
    // `cpu_ns_per_packet`: the server's time from the look for messages to the last one; latencies from
    // the end of a burst's sending. With `udp-send`, recvmsg stands for sendmsg, and so on.
    View {
        point: &[key!("traffic"), key!("ready")],
        figures: &[
            figure!("calls/msg", 3, "receive_calls" / "packets").beside(&[Ratio::to(
                "x fewer",
                &[&["recvmsg"]],
            )
            .inverse()]),
            figure!("waits/msg", 3, "wait_calls" / "packets"),
            figure!("ns/msg", 0, "cpu_ns_per_packet").over(Over::Range).beside(&[Ratio::to(
                "ratio",
                &[&["recvmsg", "recvmmsg"]],
            )
            .ranged()]),
            figure!("lost", 0, "lost").over(Over::Most),
            figure!("p50 us", 1, "p50_us"),
            figure!("p99 us", 1, "p99_us"),
        ],
        plotted: &["ns/msg"],
        ..View::new(
            "Small messages on many sockets: medians; ratio: to the better of recvmsg and recvmmsg of a round",
            "measurement",
            "call",
        )
    },
    // A server under a load; a unit is a connection, a transaction, or in bulk a MiB. `both_busy_ns`: time
    // in which the CPUs of both were not idle, right if nothing else runs. Packets and calls: of a stack.
    View {
        point: &[key!("row")],
        figures: &[
            figure!("rate", 0, "rate").beside(&[REFERENCE]),
            figure!("server us", 2, "server_cpu_ns", 1e-3).beside(&[REFERENCE]),
            Figure::new("both us", 2, |one| {
                Some((one.number("server_cpu_ns")? + one.number("client_cpu_ns")?) / 1e3)
            })
            .beside(&[REFERENCE.ranged()]),
            figure!("busy us", 2, "both_busy_ns", 1e-3).beside(&[REFERENCE]),
            figure!("pkt/wait", 1, "packets_per_wait"),
            figure!("calls", 1, "calls"),
            figure!("failed", 0, "failures").over(Over::Most),
        ],
        ..View::new(
            "TCP in user space: medians for each connection, transaction or MiB; ratios to kernel, else to smoltcp, else to one \
             stack; floor: a responder without state",
            "measurement",
            "side",
        )
    },
    // How two stacks share the connections of one device: `unowned` segments came to the one that does not
    // have their connection.
    View {
        figures: &[
            Figure::new("first stack %", 1, |one| first_share(&counts(one, "accepted", "")))
                .over(Over::Range),
            Figure::new("connections", 0, |one| Some(counts(one, "accepted", "").iter().sum())),
            figure!("foreign segments", 0, "unowned").over(Over::Most),
            figure!("silence s", 0, "silence"),
        ],
        ..View::new("Connections of one device, shared by two stacks", "share", "")
    },
    // A sender and a receiver on a path. `seconds_SIZE`: from the begin of the connection to the last byte.
    // `again`, `lost`: bytes of payload that were sent again, and that the path lost.
    View {
        point: ON_PATH,
        figures: &[
            Figure::new("MB/s", 2, |one| Some(10.0 / one.number("seconds_10m")?))
                .over(Over::Range)
                .beside(&[CUBIC.ranged(), Ratio::to("x reno", &[&["reno"]])]),
            figure!("1 MB ms", 0, "seconds_1m", 1e3).beside(&[CUBIC.inverse()]),
            figure!("10 KB ms", 1, "seconds_10k", 1e3).beside(&[CUBIC.inverse()]),
            figure!("again KB", 1, "again", 1e-3),
            figure!("lost KB", 1, "lost", 1e-3),
        ],
        ..View::new(
            "TCP over paths with a round trip: medians; MB/s of 10 MB; x: how many times as fast as Linux on the same path",
            "path",
            "ends",
        )
    },
    // A sender beside another one on a bottleneck.
    View {
        point: ON_PATH,
        figures: &[
            figure!("share %", 1, "share", 100.0).over(Over::Range),
            figure!("both MB/s", 2, "bytes_per_s", 1e-6),
        ],
        ..View::new("A bottleneck that two connections share: what the named one gets", "shared-path", "ends")
    },
    // Honest clients of a sender that is flooded with SYNs. CPU: of one, while the connection is open under the flood.
    View {
        point: ON_PATH,
        figures: &[
            figure!("served %", 1, "served", 100.0).over(Over::Range),
            figure!("open connection %", 1, "open", 100.0).over(Over::Range),
            figure!("SYNs/s", 0, "syns_per_s"),
            figure!("answered %", 1, "answered", 100.0).over(Over::Range),
            figure!("relay CPU %", 0, "relay_cpu", 100.0),
            figure!("sender CPU %", 0, "sender_cpu", 100.0),
        ],
        ..View::new("Clients that are served beside a flood of SYNs", "flooded-path", "ends")
    },
    // A listener of a server. Latencies are of answered requests, from when their connection was due.
    // `slow`: more than 10 ms, `stuck`: more than 400 ms. `workers`: what each accepted, and what of that
    // on the CPU of the SYN.
    View {
        point: &[key!("case"), key!("program")],
        figures: &[
            figure!("conn/s", 0, "connections_per_s").beside(&[Ratio::to("ratio", &[&["plain"]]).ranged()]),
            figure!("server CPU us", 1, "server_cpu_us_per_connection").beside(&[Ratio::to(
                "ratio",
                &[&["plain"]],
            )
            .ranged()]),
            figure!("p50 ms", 2, "p50_us", 1e-3),
            figure!("p99 ms", 2, "p99_us", 1e-3).over(Over::Range),
            figure!("slow", 0, "slow").over(Over::Most),
            figure!("stuck", 0, "stuck").over(Over::Most),
            Figure::new("errors", 0, |one| Some(one.number("errors")? + one.number("unfinished")?))
                .over(Over::Most),
            Figure::new("on SYN's CPU %", 1, |one| {
                share(counts(one, "workers", "local").iter().sum(), &counts(one, "workers", "accepted"))
            })
            .over(Over::Range),
            Figure::new("first worker %", 1, |one| first_share(&counts(one, "workers", "accepted")))
                .over(Over::Range),
        ],
        ..View::new(
            "Listeners: medians, of counts the most; ratio: to the queue that all workers share, which plain-again is, too",
            "measurement",
            "variant",
        )
    },
    View {
        point: &[key!("payload"), key!("checksums")],
        ..View::new("A segment in the user-level TCP and in smoltcp", "segment", "")
    },
    View { point: &[key!("payload")], ..View::new("A segment among many connections", "flows", "") },
    View::new("Segments of one thread and of two", "threads", ""),
    View::new("Idle connections", "idle", ""),
    View::new("A promotion", "cost", ""),
    View::new("A busy connection beside promotions", "load", ""),
    View::new("Memory of promoted connections", "memory", ""),
];

/// A server over one transport. Latencies are the client's own, of a pipeline those of all its
/// requests. CPU time is that of all processes of the server, or of the client, over the requests.
/// `promoted`: connections, as the client's library counts them.
pub const APPS: View = View {
    point: &[
        key!("placement"),
        key!("app"),
        key!("operation"),
        key!("bytes", "size"),
        key!("connections"),
        key!("loop", "rate"),
    ],
    figures: &[
        figure!("requests/s", 0, "requests_per_s")
            .over(Over::Range)
            .beside(&[TCP_TIMES, Ratio::to("x unix", &[&["unix"]])]),
        figure!("p50 us", 1, "p50_us").beside(&[TCP_RATIO]),
        figure!("p99 us", 1, "p99_us").beside(&[TCP_RATIO]),
        figure!("p99.9 us", 1, "p999_us").beside(&[TCP_RATIO]),
        figure!("server ns", 0, "server_cpu_ns_per_request").beside(&[TCP_RATIO]),
        figure!("client ns", 0, "client_cpu_ns_per_request").beside(&[TCP_RATIO]),
        figure!("promoted", 0, "promoted"),
    ],
    plotted: &["requests/s"],
    ..View::new(
        "Programs, plain and with the library: medians; ratios to plain TCP; open loop: at half of what plain TCP bore, or at a \
         quarter",
        "app",
        "transport",
    )
};

const EPOLL: Ratio = Ratio::to("ratio", &[&["epoll-shared", "epoll-reuseport"]]);

const PAIR: &[Key] = &[key!("placement"), key!("bytes")];

const TCP_TIMES: Ratio = Ratio::to("x tcp", &[&["tcp"]]).ranged();

const TCP_RATIO: Ratio = Ratio::to("ratio", &[&["tcp"]]);

const REFERENCE: Ratio = Ratio::to("ratio", &[&["kernel"], &["smoltcp"], &["stack"]]);

const ON_PATH: &[Key] = &[key!("path", "row")];

const CUBIC: Ratio = Ratio::to("x cubic", &[&["cubic"]]);

/// What a user should know or do: a line for each engine that fell behind its schedule, and one if what was measured
/// had to wait for its CPU more than 5 % of the time. Work of the network stack is then charged to whatever runs there.
pub(crate) fn notes(summary: &Summary) -> Vec<String> {
    let causes = [
        (
            "client",
            "so these latencies are the client's own: choose a quieter machine, more --client-cpus, or a lower --rate",
        ),
        ("server", "which is at its limit, or others used its CPU"),
    ];
    let behind = |(row, (limit, words)): (&Row, (&str, &str))| {
        let rounds = row.rounds.iter().filter(|one| one.text("limit") == limit).count();
        let line =
            format!("{}: the {limit} fell behind the schedule in {rounds} round(s), {words}", row.subject);
        (rounds > 0).then_some(line)
    };
    // Where each process has a CPU to itself, none should have to wait for one.
    let is_alone = |one: &Record| matches!(one.text("placement").as_str(), "two-cores" | "asleep");
    let waited =
        |one: &Record| one.number("server_waited").or_else(|| one.number("waited").filter(|_| is_alone(one)));
    let waited = |row: &Row| Spread::of(row.rounds.iter().filter_map(waited));
    let most = summary.rows.iter().filter_map(waited).map(|waited| waited.median).fold(0.0, f64::max);
    let disturbed = (most > 0.05).then(|| {
        format!(
            "Disturbed: something else had their CPUs {:.0}% of the time. Measure on a quiet machine.",
            most * 100.0
        )
    });
    let each = summary.rows.iter().flat_map(|row| causes.map(|cause| (row, cause)));
    each.filter_map(behind).chain(disturbed).collect()
}

/// The numbers of a list: its own, or of each of its objects the one of this name.
fn counts(record: &Record, field: &str, name: &str) -> Vec<f64> {
    let list = record.field(field).and_then(Value::as_array);
    let count = |one: &Value| if one.is_object() { one[name].as_f64() } else { one.as_f64() };
    list.into_iter().flatten().filter_map(count).collect()
}

/// The first one in percent of all.
fn first_share(all: &[f64]) -> Option<f64> {
    share(*all.first()?, all)
}

/// A part in percent of all; `None` if that is nothing.
fn share(part: f64, all: &[f64]) -> Option<f64> {
    let all = all.iter().sum::<f64>();
    (all > 0.0).then(|| part * 100.0 / all)
}
