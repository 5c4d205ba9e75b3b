//! The table: the same lines that the live view shows.

use super::report::{Connection, End, Flow, MonitorReport, Process, Report};

/// Titles of the columns of processes.
pub(super) const PROCESS_TITLES: [&str; 10] =
    ["PID", "UID", "NAME", "CHANNELS", "AWAKE", "ENDS", "OUT MSG/S", "OUT B/S", "IN MSG/S", "IN B/S"];
/// Titles of the columns of connections: a line for each end.
pub(super) const END_TITLES: [&str; 12] = [
    "ADDRESS",
    "PEER",
    "PID",
    "NAME",
    "STATE",
    "LANE",
    "OUT MSG/S",
    "OUT B/S",
    "MESSAGES",
    "BYTES",
    "BELLS",
    "FILL",
];

pub(super) fn text(report: &Report) -> String {
    let mut text = String::new();
    for monitor in &report.monitors {
        text.push_str(&heading(monitor));
        text.push('\n');
        text.push_str(&refusals(monitor));
        text.push_str("\n\n");
        grid(&mut text, &PROCESS_TITLES, monitor.processes.iter().map(process).collect());
        text.push('\n');
        grid(&mut text, &END_TITLES, monitor.connections.iter().flat_map(ends).collect());
    }
    text
}

/// What the monitor is and has.
pub(super) fn heading(monitor: &MonitorReport) -> String {
    format!(
        "monitor {} (pid {}, uid {}, {}): {} clients, {} promoted ends, {}B of segments, {} offers, {} wait, {} granted",
        monitor.socket,
        monitor.pid,
        monitor.uid,
        if monitor.everybody { "everybody's" } else { "your own" },
        monitor.clients,
        monitor.promoted_ends,
        short(monitor.segment_bytes),
        monitor.offers,
        monitor.waiting_offers,
        monitor.granted,
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
        process.channels.to_string(),
        process.awake.to_string(),
        process.promoted_ends.to_string(),
    ];
    line.extend(rates(&process.sent));
    line.extend(rates(&process.taken));
    line
}

/// A line for each end of a connection.
pub(super) fn ends(connection: &Connection) -> impl Iterator<Item = Vec<String>> {
    connection.ends.iter().map(end)
}

fn end(end: &End) -> Vec<String> {
    let mut line = vec![
        end.address.to_string(),
        end.peer.to_string(),
        end.pid.map_or("-".into(), |pid| pid.to_string()),
        end.name.clone(),
    ];
    match &end.state {
        None => line.extend(std::iter::repeat_n("-".to_owned(), 8)),
        Some(state) => {
            let awake = if end.awake == Some(false) { " asleep" } else { "" };
            line.push(format!("{}{awake}", if state.hot { "hot" } else { "cold" }));
            line.push(state.lane.into());
            line.extend(rates(&state.sent));
            line.push(short(state.sent.messages));
            line.push(short(state.sent.bytes));
            line.push(state.bells.to_string());
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
    matches!(title, "NAME" | "ADDRESS" | "PEER" | "STATE" | "LANE")
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
