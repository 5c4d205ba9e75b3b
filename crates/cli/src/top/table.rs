//! The table: the same lines that the live view shows.

use super::report::{Connection, Endpoint, Flow, MonitorReport, Process, Report};

/// Titles of the columns of processes.
pub(super) const PROCESS_TITLES: [&str; 10] = [
    "PID",
    "UID",
    "NAME",
    "CLIENTS",
    "AWAKE",
    "PROMOTED",
    "SENT MSG/S",
    "SENT B/S",
    "RECV MSG/S",
    "RECV B/S",
];
/// Titles of the columns of connections: a line for each endpoint.
pub(super) const ENDPOINT_TITLES: [&str; 12] = [
    "ADDRESS",
    "PEER",
    "PID",
    "NAME",
    "RECEIVES BY",
    "VIA",
    "SENT MSG/S",
    "SENT B/S",
    "MESSAGES",
    "BYTES",
    "WAKE-UPS",
    "FULL",
];

/// What to do where the list of connections is empty.
pub(super) const NO_CONNECTION: &str = "\
no promoted connections; start both programs of one with: megapipe run --stats -- PROGRAM
(each prints at its exit why its connections stayed on TCP)
";

pub(super) fn text(report: &Report) -> String {
    let mut text = String::new();
    for monitor in &report.monitors {
        text.push_str(&heading(monitor));
        text.push('\n');
        text.push_str(&refusals(monitor));
        text.push_str("\n\n");
        grid(&mut text, &PROCESS_TITLES, monitor.processes.iter().map(process).collect());
        text.push('\n');
        grid(&mut text, &ENDPOINT_TITLES, monitor.connections.iter().flat_map(endpoints).collect());
        if monitor.connections.is_empty() {
            text.push_str(NO_CONNECTION);
        }
    }
    text
}

/// What the monitor is and has.
pub(super) fn heading(monitor: &MonitorReport) -> String {
    format!(
        "monitor {} (pid {}, uid {}, {}): {} clients, {} promoted endpoints, {}B of shared memory, {} offers: {} granted, {} waiting",
        monitor.socket,
        monitor.pid,
        monitor.uid,
        if monitor.everybody { "shows all users" } else { "shows only your programs" },
        monitor.clients,
        monitor.promoted_endpoints,
        short(monitor.segment_bytes),
        monitor.offers,
        monitor.granted,
        monitor.waiting_offers,
    )
}

/// Refusals by reason, those that occurred.
pub(super) fn refusals(monitor: &MonitorReport) -> String {
    let occurred = monitor.refusals.iter().filter(|(_, count)| **count > 0);
    let list: Vec<String> = occurred.map(|(reason, count)| format!("{reason} {count}")).collect();
    if list.is_empty() { "refusals: none".into() } else { format!("refusals: {}", list.join(", ")) }
}

pub(super) fn process(process: &Process) -> Vec<String> {
    let mut line = vec![
        process.pid.to_string(),
        process.uid.to_string(),
        process.name.clone(),
        process.clients.to_string(),
        process.awake.to_string(),
        process.promoted_endpoints.to_string(),
    ];
    line.extend(rates(&process.sent));
    line.extend(rates(&process.received));
    line
}

/// A line for each endpoint of a connection.
pub(super) fn endpoints(connection: &Connection) -> impl Iterator<Item = Vec<String>> {
    connection.endpoints.iter().map(endpoint)
}

fn endpoint(endpoint: &Endpoint) -> Vec<String> {
    let mut line = vec![
        endpoint.address.to_string(),
        endpoint.peer.to_string(),
        endpoint.pid.map_or("-".into(), |pid| pid.to_string()),
        endpoint.name.clone(),
    ];
    match &endpoint.state {
        None => line.extend(std::iter::repeat_n("-".to_owned(), 8)),
        Some(state) => {
            let asleep = endpoint.awake == Some(false);
            line.push(if state.polling && !asleep { "polling" } else { "wake-up" }.into());
            line.push(state.via.into());
            line.extend(rates(&state.sent));
            line.push(short(state.sent.messages));
            line.push(short(state.sent.bytes));
            line.push(state.wakeups.to_string());
            line.push(state.ring_fill.map_or("-".into(), |fill| {
                format!("{}%", fill.saturating_mul(100) / state.ring_bytes.max(1))
            }));
        }
    }
    line
}

fn rates(flow: &Flow) -> [String; 2] {
    [flow.messages_per_s, flow.bytes_per_s].map(|rate| rate.map_or("-".into(), short))
}

/// A number in at most five characters, with a decimal prefix.
pub(super) fn short(number: u64) -> String {
    if number < 10_000 {
        return number.to_string();
    }
    let mut value = number as f64;
    for prefix in ["k", "M", "G", "T", "P", "E"] {
        value /= 1000.0;
        if value < 99.95 {
            return format!("{value:.1}{prefix}");
        }
        if value < 999.5 {
            return format!("{value:.0}{prefix}");
        }
    }
    "many".into()
}

/// Whether a column begins at its left; numbers end at its right.
pub(super) fn is_left(title: &str) -> bool {
    matches!(title, "NAME" | "ADDRESS" | "PEER" | "RECEIVES BY" | "VIA")
}

/// Columns as wide as what is in them; all but names and addresses to the right.
fn grid(text: &mut String, titles: &[&str], lines: Vec<Vec<String>>) {
    let mut widths: Vec<usize> = titles.iter().map(|title| title.len()).collect();
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let titles_line = titles.iter().map(|title| (*title).to_owned()).collect();
    for line in std::iter::once(titles_line).chain(lines) {
        let mut written = String::new();
        for ((cell, width), title) in line.iter().zip(&widths).zip(titles) {
            if is_left(title) {
                written.push_str(&format!("{cell:<width$}  "));
            } else {
                written.push_str(&format!("{cell:>width$}  "));
            }
        }
        text.push_str(written.trim_end());
        text.push('\n');
    }
}
