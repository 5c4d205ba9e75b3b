//! What is shown, as numbers: the JSON document, from which the table and the live view are made too.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::path::Path;

use promote::Reason;
use promote::viewer::View;
use promote::wire::view::{Loop, Promoted, Refusals, Words};
use ring::layout::RING_OFFSET;
use serde::Serialize;

/// Differences beyond this are no traffic, but a counter that was set to something else.
const MOST_IN_BETWEEN: u64 = 1 << 48;

#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) schema: u32,
    /// Seconds between the two queries that rates follow from.
    pub(super) interval_s: Option<f64>,
    pub(super) monitors: Vec<MonitorReport>,
}

#[derive(Debug, Serialize)]
pub(super) struct MonitorReport {
    pub(super) socket: String,
    pub(super) pid: u32,
    pub(super) uid: u32,
    /// Everybody's numbers, or only the asker's own.
    pub(super) everybody: bool,
    pub(super) age_s: f64,
    pub(super) clients: u64,
    pub(super) waiting_offers: u64,
    #[serde(rename = "promoted_ends")]
    pub(super) promoted_endpoints: u64,
    pub(super) segment_bytes: u64,
    pub(super) offers: u64,
    pub(super) granted: u64,
    pub(super) refusals: BTreeMap<&'static str, u64>,
    pub(super) processes: Vec<Process>,
    pub(super) connections: Vec<Connection>,
    #[serde(skip)]
    seconds: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) uid: u32,
    pub(super) name: String,
    /// Its clients of the monitor, and how many of them do not sleep.
    #[serde(rename = "channels")]
    pub(super) clients: u64,
    pub(super) awake: u64,
    pub(super) waiting_offers: u64,
    #[serde(rename = "promoted_ends")]
    pub(super) promoted_endpoints: u64,
    pub(super) offers: u64,
    pub(super) granted: u64,
    pub(super) refusals: BTreeMap<&'static str, u64>,
    pub(super) sent: Flow,
    #[serde(rename = "taken")]
    pub(super) received: Flow,
}

/// One direction, as one endpoint counts it.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Flow {
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) messages_per_s: Option<u64>,
    pub(super) bytes_per_s: Option<u64>,
}

#[derive(Debug, Serialize)]
pub(super) struct Connection {
    pub(super) age_s: f64,
    /// One if the other is gone, or another user's.
    #[serde(rename = "ends")]
    pub(super) endpoints: Vec<Endpoint>,
}

#[derive(Debug, Serialize)]
pub(super) struct Endpoint {
    pub(super) address: SocketAddr,
    pub(super) peer: SocketAddr,
    pub(super) cookie: u64,
    pub(super) pid: Option<u32>,
    pub(super) uid: Option<u32>,
    pub(super) name: String,
    /// Whether its loop is awake.
    pub(super) awake: Option<bool>,
    /// The words of its memory; null if the monitor has no room to map it.
    pub(super) state: Option<EndpointState>,
}

#[derive(Debug, Serialize)]
pub(super) struct EndpointState {
    /// It polls the ring while its loop is awake; otherwise it waits for wake-ups.
    #[serde(rename = "hot")]
    pub(super) polling: bool,
    /// What carries the next byte it sends: `ring` or `tcp`.
    #[serde(rename = "lane")]
    pub(super) via: &'static str,
    pub(super) sent: Flow,
    #[serde(rename = "taken")]
    pub(super) received: Flow,
    /// Of the bytes sent, those that went through the ring.
    pub(super) sent_ring_bytes: u64,
    #[serde(rename = "bells")]
    pub(super) wakeups: u32,
    #[serde(rename = "bells_per_s")]
    pub(super) wakeups_per_s: Option<u64>,
    /// How often it returned to the kernel, since its ring was full.
    pub(super) returns_to_tcp: u32,
    /// Bytes of its ring, and those that the peer has not received yet.
    pub(super) ring_bytes: u64,
    pub(super) ring_fill: Option<u64>,
}

impl Report {
    pub(super) fn new() -> Report {
        Report { schema: 1, ..Report::default() }
    }

    pub(super) fn add(&mut self, monitor: MonitorReport) {
        self.interval_s = monitor.seconds.or(self.interval_s);
        self.monitors.push(monitor);
    }

    pub(super) fn json(&self) -> String {
        // Only maps with other keys than strings, and failing writers, can fail.
        serde_json::to_string_pretty(self).map(|text| text + "\n").unwrap_or_default()
    }
}

/// How many a second; `before` is what the same counter was, `seconds` ago.
fn rate(now: u64, before: Option<u64>, seconds: Option<f64>) -> Option<u64> {
    let passed = now.wrapping_sub(before?);
    let passed = if passed > MOST_IN_BETWEEN { 0 } else { passed };
    Some((passed as f64 / seconds?.max(0.001)).round() as u64)
}

fn seconds(milliseconds: u64) -> f64 {
    milliseconds as f64 / 1000.0
}

fn by_reason(refusals: &Refusals) -> BTreeMap<&'static str, u64> {
    Reason::OF_MONITOR.iter().zip(refusals).map(|(reason, count)| (reason.word(), *count)).collect()
}

impl Flow {
    fn sent(words: &Words) -> Flow {
        let bytes = words.tail.wrapping_add(words.sent_tcp);
        Flow { messages: words.sent_messages, bytes, ..Flow::default() }
    }

    fn received(words: &Words) -> Flow {
        let bytes = words.head.wrapping_add(words.consumed_tcp);
        Flow { messages: words.consumed_messages, bytes, ..Flow::default() }
    }

    fn since(self, before: Option<Flow>, seconds: Option<f64>) -> Flow {
        Flow {
            messages_per_s: rate(self.messages, before.map(|before| before.messages), seconds),
            bytes_per_s: rate(self.bytes, before.map(|before| before.bytes), seconds),
            ..self
        }
    }

    fn add(&mut self, other: Flow) {
        let sum = |one: Option<u64>, other: Option<u64>| match (one, other) {
            (Some(one), Some(other)) => Some(one.saturating_add(other)),
            (one, other) => one.or(other),
        };
        self.messages = self.messages.saturating_add(other.messages);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.messages_per_s = sum(self.messages_per_s, other.messages_per_s);
        self.bytes_per_s = sum(self.bytes_per_s, other.bytes_per_s);
    }
}

impl EndpointState {
    fn new(end: &Promoted, now: &Words, before: Option<&Words>, seconds: Option<f64>) -> EndpointState {
        let ring_bytes = u64::from(end.segment_size).saturating_sub(RING_OFFSET as u64);
        // Wake-ups are counted modulo 2^32.
        let woken = before.map(|before| u64::from(now.tcp_wake_ups.wrapping_sub(before.tcp_wake_ups)));
        EndpointState {
            polling: now.aware && !now.armed && !now.ended,
            via: if now.runs.is_multiple_of(2) { "tcp" } else { "ring" },
            sent: Flow::sent(now).since(before.map(Flow::sent), seconds),
            received: Flow::received(now).since(before.map(Flow::received), seconds),
            sent_ring_bytes: now.tail,
            wakeups: now.tcp_wake_ups,
            wakeups_per_s: woken.and_then(|woken| rate(woken, Some(0), seconds)),
            returns_to_tcp: now.runs / 2,
            ring_bytes,
            ring_fill: end.tail_consumed.map(|taken| now.tail.wrapping_sub(taken).min(ring_bytes)),
        }
    }
}

impl MonitorReport {
    pub(super) fn new(socket: &Path, now: &View, before: Option<&View>) -> MonitorReport {
        let seconds_between = before.map(|before| (now.at - before.at).as_secs_f64());
        let earlier: HashMap<u64, &Promoted> =
            before.iter().flat_map(|view| &view.promoted).map(|end| (end.number, end)).collect();
        let loops: HashMap<u64, &Loop> = now.loops.iter().map(|client| (client.number, client)).collect();
        let mut processes = processes(&now.loops);
        let mut connections: BTreeMap<u64, Connection> = BTreeMap::new();
        for end in &now.promoted {
            let words = earlier.get(&end.number).and_then(|end| end.words.as_ref());
            let state = end.words.map(|now| EndpointState::new(end, &now, words, seconds_between));
            let client = loops.get(&end.client);
            if let (Some(state), Some(client)) = (&state, client)
                && let Some(process) = processes.get_mut(&(client.pid, client.uid))
            {
                process.sent.add(state.sent);
                process.received.add(state.received);
            }
            let connection = connections
                .entry(end.number.min(end.other))
                .or_insert_with(|| Connection { age_s: seconds(end.age_ms), endpoints: Vec::new() });
            connection.endpoints.push(Endpoint {
                address: end.local,
                peer: end.peer,
                cookie: end.cookie,
                pid: client.map(|client| client.pid),
                uid: client.map(|client| client.uid),
                name: client.map(|client| client.name.to_string()).unwrap_or_default(),
                awake: client.and_then(|client| client.asleep).map(|asleep| !asleep),
                state,
            });
        }
        let totals = &now.totals;
        MonitorReport {
            socket: socket.display().to_string(),
            pid: totals.pid,
            uid: totals.uid,
            everybody: totals.everybody,
            age_s: seconds(totals.age_ms),
            clients: totals.clients,
            waiting_offers: totals.waiting,
            promoted_endpoints: totals.promoted,
            segment_bytes: totals.bytes,
            offers: totals.offers,
            granted: totals.granted,
            refusals: by_reason(&totals.refused),
            processes: processes.into_values().collect(),
            connections: connections.into_values().collect(),
            seconds: seconds_between,
        }
    }
}

/// The clients by process: several channels of one are one line.
fn processes(loops: &[Loop]) -> BTreeMap<(u32, u32), Process> {
    let mut processes: BTreeMap<(u32, u32), Process> = BTreeMap::new();
    for client in loops {
        let process = processes.entry((client.pid, client.uid)).or_insert_with(|| Process {
            pid: client.pid,
            uid: client.uid,
            name: client.name.to_string(),
            clients: 0,
            awake: 0,
            waiting_offers: 0,
            promoted_endpoints: 0,
            offers: 0,
            granted: 0,
            refusals: by_reason(&Refusals::default()),
            sent: Flow::default(),
            received: Flow::default(),
        });
        process.clients += 1;
        process.awake += u64::from(client.asleep == Some(false));
        process.waiting_offers += client.waiting;
        process.promoted_endpoints += client.promoted;
        process.offers += client.offers;
        process.granted += client.granted;
        for (reason, count) in by_reason(&client.refused) {
            *process.refusals.entry(reason).or_default() += count;
        }
    }
    processes
}
