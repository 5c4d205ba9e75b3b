//! The figures of a run as text.

use std::fmt::Write;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use crate::record::Record;
use crate::summary::{self, Group, Row, Spread};

/// One table per point and rate: medians over the rounds. A closed loop's is about the server's CPU
/// cost, an open loop's about latency.
pub fn render(records: &[Record]) -> String {
    let mut text = String::new();
    let groups = summary::groups(records);
    if groups.iter().any(|group| group.rate.is_none()) {
        text.push_str(LEGEND);
    }
    if groups.iter().any(|group| group.rate.is_some()) {
        text.push_str(PACED_LEGEND);
    }
    let disturbed = groups.iter().map(disturbance).fold(0.0, f64::max);
    for group in groups {
        // Writing to a String cannot fail; so for all below.
        let _ = writeln!(text, "{}", heading(&group));
        if group.rate.is_some() {
            let _ = writeln!(text, "{}", paced(&group));
            let _ = writeln!(text, "{}", limits(&group));
            continue;
        }
        let _ = writeln!(text, "{}\n", body(&group));
        if let Some(floor) = floor(&group) {
            let _ = writeln!(text, "{floor}");
        }
    }
    if disturbed > DISTURBED {
        let share = disturbed * 100.0;
        let _ = writeln!(
            text,
            "Disturbed: a server waited for its CPU {share:.0}% of the time, because others used it. \
             Measure on a quiet machine."
        );
    }
    for absent in summary::absent(records) {
        let _ = writeln!(text, "{} is absent: {}", absent.engine.name(), absent.reason);
    }
    text
}

fn heading(group: &Group) -> String {
    let counted = |count: usize, what| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let rate = group.rate.map(|rate| format!(", {rate} requests/s")).unwrap_or_default();
    format!(
        "{} per connection, {} B, {}, {}{rate}",
        counted(group.transactions as usize, "transaction"),
        group.size,
        counted(group.connections, "connection"),
        counted(group.server_cpus.len(), "server core")
    )
}

/// Latency at a rate, each quantile beside its ratio to the better baseline in that quantile.
fn paced(group: &Group) -> Table {
    let quantiles: [fn(&Row) -> f64; 3] =
        [|row| row.p50_us.median, |row| row.p99_us.median, |row| row.p999_us.median];
    let mut table = with_columns([
        "engine",
        "p50 us",
        "ratio",
        "p99 us",
        "ratio",
        "p99.9 us",
        "ratio",
        "tx/s",
        "lag p99 us",
        "CPU ns/tx",
        "ratio",
        "server",
        "client",
        "failed",
    ]);
    for row in &group.rows {
        let mut cells = vec![row.engine.name().to_owned()];
        for quantile in quantiles {
            let ratio = group.best_baseline(quantile).map_or("-".to_owned(), |(engine, best)| {
                let mark = if engine == row.engine { "*" } else { "" };
                format!("{:.2}{mark}", quantile(row) / best)
            });
            cells.extend([format!("{:.0}", quantile(row)), ratio]);
        }
        cells.extend([
            format!("{:.0}", row.transactions_per_s.median),
            row.client_lag_us.map_or("-".to_owned(), |lag| format!("{:.0}", lag.median)),
            format!("{:.0}", row.server_cpu_ns.median),
            ratio(group, row),
            percent(row.server_utilization),
            percent(row.client_utilization),
            row.failures.to_string(),
        ]);
        table.add_row(cells);
    }
    align(&mut table, &[0]);
    table
}

/// Who fell behind the schedule, a line each.
fn limits(group: &Group) -> String {
    let mut text = String::new();
    for row in &group.rows {
        let name = row.engine.name();
        let [client, server] = row.limited_by;
        if client > 0 {
            let _ = writeln!(
                text,
                "{name}: the client was the limit in {client} round(s), so these latencies are its own: choose a \
                 quieter machine, more --client-cpus, or a lower --rate"
            );
        }
        if server > 0 {
            let _ = writeln!(
                text,
                "{name}: the server fell behind the schedule in {server} round(s): it is at its limit, or others \
                 used its CPU"
            );
        }
    }
    text
}

fn body(group: &Group) -> Table {
    let floor = group.floor.as_ref().map(|floor| floor.without_entries(group.transactions));
    let mut table = with_columns([
        "engine",
        "CPU ns/tx",
        "min..max",
        "ratio",
        "floor",
        "tx/s",
        "syscalls/tx",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "server",
        "client",
        "failed",
    ]);
    for row in &group.rows {
        table.add_row([
            row.engine.name().to_owned(),
            format!("{:.0}", row.server_cpu_ns.median),
            format!("{:.0}..{:.0}", row.server_cpu_ns.minimum, row.server_cpu_ns.maximum),
            ratio(group, row),
            floor.map_or("-".to_owned(), |floor| format!("{:.2}x", row.server_cpu_ns.median / floor)),
            format!("{:.0}", row.transactions_per_s.median),
            row.syscalls.map_or("-".to_owned(), |calls| format!("{:.2}", calls.median)),
            format!("{:.0}", row.p50_us.median),
            format!("{:.0}", row.p99_us.median),
            format!("{:.0}", row.p999_us.median),
            percent(row.server_utilization),
            percent(row.client_utilization),
            row.failures.to_string(),
        ]);
    }
    align(&mut table, &[0]);
    table
}

fn ratio(group: &Group, row: &Row) -> String {
    let mark = if group.baseline == Some(row.engine) { "*" } else { "" };
    row.ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.3}{mark}"))
}

/// A table with these columns.
pub(crate) fn with_columns<const COLUMNS: usize>(names: [&str; COLUMNS]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(names);
    table
}

/// Names, which are in these columns, to the left; figures to the right.
pub(crate) fn align(table: &mut Table, names: &[usize]) {
    for (index, column) in table.column_iter_mut().enumerate() {
        if !names.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// The largest share of the time in which a server waited for its CPU.
fn disturbance(group: &Group) -> f64 {
    let waited = |row: &Row| row.server_waited.map_or(0.0, |share| share.median);
    group.rows.iter().map(waited).fold(0.0, f64::max)
}

fn percent(share: Spread) -> String {
    format!("{:.0}%", share.median * 100.0)
}

/// The kernel's own cost at this point, and how far above it each engine is.
fn floor(group: &Group) -> Option<String> {
    let floor = group.floor.as_ref()?;
    let with_entries = floor.with_entries(group.transactions);
    let without_entries = floor.without_entries(group.transactions);
    Some(format!(
        "kernel's own calls, ns: accept {:.0}, recv {:.0} ({:.0} the first time), send {:.0} \
         ({:.0}), close {:.0}; {:.0} of each to enter the kernel\n\
         floor: {with_entries:.0} ns/tx, {without_entries:.0} without the entries\n",
        floor.accept_ns,
        floor.recv_ns,
        floor.first_recv_ns,
        floor.send_ns,
        floor.first_send_ns,
        floor.close_ns,
        floor.entry_ns
    ))
}

/// Share of waiting from which on figures are not to be trusted.
pub(crate) const DISTURBED: f64 = 0.05;

const LEGEND: &str = "\
Medians over the rounds. CPU ns/tx: CPU time of the server per transaction, and its smallest and largest value;
ratio: of that to the better epoll baseline (*); floor: of that to the kernel's own calls without their entries;
server, client: share of their CPUs in use.

";

const PACED_LEGEND: &str = "\
At a rate: latency counts from when a request was due, so what waits behind a slow answer is not left out; ratio: to the
better epoll baseline (*) in the same column; lag: how late the client itself sent; client: without idle spinning.

";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Engine;
    use crate::record::{Absent, Limit};
    use crate::summary::tests::{measurement, paced};

    #[test]
    fn the_baseline_is_marked_and_absent_engines_are_named() {
        let text = render(&[
            measurement(Engine::EpollShared, 1, 4000.0),
            measurement(Engine::UringPlain, 1, 3000.0),
            Record::Absent(Absent { engine: Engine::Tokio, reason: "no such thing".to_owned() }),
        ]);
        assert!(text.contains("1.000*"), "{text}");
        assert!(text.contains("0.750 "), "{text}");
        assert!(text.contains("tokio is absent: no such thing"), "{text}");
    }

    #[test]
    fn paced_engines_are_compared_by_latency_and_say_who_fell_behind() {
        let text = render(&[
            paced(Engine::EpollShared, 100.0, None),
            paced(Engine::EpollReuseport, 80.0, None),
            paced(Engine::UringPlain, 60.0, Some(Limit::Server)),
            paced(Engine::Tokio, 120.0, Some(Limit::Client)),
        ]);
        assert!(text.contains("256 connections, 1 server core, 40000 requests/s"), "{text}");
        let ratios = |name: &str| {
            let row = text.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
            row.split_whitespace().nth(4).unwrap().to_owned()
        };
        assert_eq!(ratios("epoll-shared"), "1.25");
        assert_eq!(ratios("epoll-reuseport"), "1.00*");
        assert_eq!(ratios("uring-plain"), "0.75");
        assert!(text.contains("uring-plain: the server fell behind"), "{text}");
        assert!(text.contains("tokio: the client was the limit"), "{text}");
        assert_eq!(text.matches(" in 1 round(s)").count(), 2, "{text}");
    }
}
