//! The figures of a run as text.

use std::fmt::Write;

use super::Checksums;
use super::record::{Flows, Idle, Record, Segment, Threads};
use crate::summary::Spread;
use crate::table::{align, with_columns};

/// One row for each value: median, least and most over the rounds, and what is asked for.
pub fn render(records: &[Record]) -> String {
    let mut text = String::new();
    let mut table = with_columns(["figure", "unit", "median", "least", "most", "asked"]);
    let mut any = false;
    for row in rows(records) {
        let Some(spread) = Spread::of(row.values) else { continue };
        any = true;
        let shown = |value: f64| format!("{value:.*}", row.digits);
        let [median, least, most] = [spread.median, spread.minimum, spread.maximum].map(shown);
        table.add_row([row.name, row.unit.to_owned(), median, least, most, row.asked.to_owned()]);
    }
    align(&mut table, &[0, 1]);
    if any {
        // Writing to a String cannot fail; so for all below.
        let _ = writeln!(text, "{LEGEND}\n{table}");
    }
    for record in records {
        if let Record::Absent(absent) = record {
            let _ = writeln!(text, "{} is absent: {}", absent.figure.name(), absent.reason);
        }
    }
    text
}

struct Row {
    name: String,
    unit: &'static str,
    digits: usize,
    asked: &'static str,
    values: Vec<f64>,
}

fn rows(records: &[Record]) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut row = |name: String, unit, digits, asked, values| {
        rows.push(Row { name, unit, digits, asked, values });
    };
    let mut cases: Vec<(usize, Checksums)> = Vec::new();
    let segments: Vec<&Segment> = records
        .iter()
        .filter_map(|record| if let Record::Segment(segment) = record { Some(segment) } else { None })
        .collect();
    for segment in &segments {
        if !cases.contains(&(segment.payload, segment.checksums)) {
            cases.push((segment.payload, segment.checksums));
        }
    }
    for (payload, checksums) in cases {
        let of = |value: fn(&Segment) -> f64| {
            let case = segments.iter().filter(|one| (one.payload, one.checksums) == (payload, checksums));
            case.map(|one| value(one)).collect()
        };
        let name = format!("segment of {payload} B, checksums by {}", checksums.name());
        row(format!("{name}: tcp"), "ns CPU", 0, "", of(|one| one.tcp_ns));
        row(format!("{name}: smoltcp"), "ns CPU", 0, "", of(|one| one.smoltcp_ns));
        row(format!("{name}: tcp / smoltcp"), "", 3, "0.55", of(|one| one.ratio));
    }
    let flows: Vec<&Flows> = records
        .iter()
        .filter_map(|record| if let Record::Flows(flows) = record { Some(flows) } else { None })
        .collect();
    if let Some(Flows { flows: count, burst, .. }) = flows.first() {
        let of = |value: fn(&Flows) -> f64| flows.iter().map(|one| value(one)).collect();
        row("1 connection, segments alone".to_owned(), "ns CPU", 0, "", of(|one| one.single_ns));
        row(format!("{burst} connections, bursts of {burst}"), "ns CPU", 0, "", of(|one| one.hot_ns));
        row(format!("{count} connections, bursts of {burst}"), "ns CPU", 0, "", of(|one| one.random_ns));
        row(format!("{count} / {burst} connections"), "", 3, "3.0", of(|one| one.ratio));
        let ratio = of(|one| one.random_ns / one.single_ns);
        row(format!("{count} / 1 connection"), "", 3, "", ratio);
    }
    let threads: Vec<&Threads> = records
        .iter()
        .filter_map(|record| if let Record::Threads(threads) = record { Some(threads) } else { None })
        .collect();
    let of = |value: fn(&Threads) -> f64| threads.iter().map(|one| value(one)).collect();
    row("transactions of one thread".to_owned(), "1/s", 0, "", of(|one| one.one_per_s));
    row("transactions of two threads".to_owned(), "1/s", 0, "", of(|one| one.two_per_s));
    row("two threads / one".to_owned(), "", 3, "1.8", of(|one| one.ratio));
    row("two threads / one, by CPU time".to_owned(), "", 3, "", of(|one| one.cpu_ratio));
    let idle: Vec<&Idle> = records
        .iter()
        .filter_map(|record| if let Record::Idle(idle) = record { Some(idle) } else { None })
        .collect();
    if let Some(Idle { connections, .. }) = idle.first() {
        let of = |value: fn(&Idle) -> f64| idle.iter().map(|one| value(one)).collect();
        let name = format!("{connections} idle connections");
        row(format!("{name}, more than before"), "B each", 0, "", of(|one| one.grown_each));
        row(format!("{name}, whole process"), "B each", 0, "512", of(|one| one.whole_each));
    }
    rows
}

const LEGEND: &str = "\
Medians over the rounds. ns CPU: for a segment that arrives, is read by the program and is acknowledged, each by an ACK of
its own. Connections of bursts come in an order without pattern. Transactions: 64 B there and back between two hosts of
each thread, over a link in memory. Idle: resident memory of a process with a channel whose connections were used once and
have their read pending, all of it, and what came after the channel and its stack were made.
";

#[cfg(test)]
mod tests {
    use super::super::Figure;
    use super::super::record::Absent;
    use super::*;

    #[test]
    fn ratios_stand_beside_what_is_asked() {
        let segment = |round, ratio| {
            let checksums = Checksums::Device;
            let (tcp_ns, smoltcp_ns) = (100.0 * ratio, 100.0);
            Record::Segment(Segment { round, payload: 64, checksums, tcp_ns, smoltcp_ns, ratio })
        };
        let absent = Absent { figure: Figure::Flows, reason: "no room".to_owned() };
        let text = render(&[segment(1, 0.5), segment(2, 0.7), segment(3, 0.6), Record::Absent(absent)]);
        let line = text.lines().find(|line| line.contains("tcp / smoltcp")).unwrap();
        let words: Vec<_> = line.split_whitespace().rev().take(4).collect();
        assert_eq!(words, ["0.55", "0.700", "0.500", "0.600"]);
        assert!(text.contains("flows is absent: no room"), "{text}");
    }

    #[test]
    fn nothing_measured_is_no_table() {
        assert_eq!(render(&[]), "");
    }
}
