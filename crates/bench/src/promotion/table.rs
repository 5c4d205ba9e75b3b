//! The figures of a run as text.

use std::fmt::Write;

use super::record::{Bytes, Record};
use crate::summary::Spread;
use crate::table::{align, with_columns};

/// One row for each figure: median, least and most over the rounds, and what is asked for.
pub fn render(records: &[Record]) -> String {
    let mut text = String::new();
    let mut table = with_columns(["figure", "unit", "median", "least", "most", "asked"]);
    let mut any = false;
    for line in LINES {
        let Some(spread) = Spread::of(records.iter().filter_map(line.value)) else { continue };
        any = true;
        let shown = |value: f64| format!("{value:.*}", line.digits);
        let [median, least, most] = [spread.median, spread.minimum, spread.maximum].map(shown);
        table.add_row([line.name, line.unit, &median, &least, &most, line.asked]);
    }
    align(&mut table, &[0, 1, 5]);
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

struct Line {
    name: &'static str,
    unit: &'static str,
    digits: usize,
    asked: &'static str,
    value: fn(&Record) -> Option<f64>,
}

/// A line whose value is a field or an expression of one kind of record.
macro_rules! line {
    ($name:literal, $unit:literal, $digits:literal, $asked:literal, $kind:ident, $record:ident => $value:expr) => {
        Line {
            name: $name,
            unit: $unit,
            digits: $digits,
            asked: $asked,
            value: |record| match record {
                Record::$kind($record) => Some($value),
                _ => None,
            },
        }
    };
}

const LINES: &[Line] = &[
    line!("promotion, first side", "us CPU", 1, "30", Cost, cost => cost.first_cpu_us),
    line!("promotion, second side", "us CPU", 1, "30", Cost, cost => cost.second_cpu_us),
    line!("promotion, monitor", "us CPU", 1, "", Cost, cost => cost.monitor_cpu_us),
    line!("of many, first side", "us CPU", 1, "30", Cost, cost => cost.batch_first_cpu_us),
    line!("of many, second side", "us CPU", 1, "30", Cost, cost => cost.batch_second_cpu_us),
    line!("of many, monitor", "us CPU", 1, "", Cost, cost => cost.batch_monitor_cpu_us),
    line!("not promoted, first side", "us CPU", 1, "", Cost, cost => cost.unpromoted_first_cpu_us),
    line!("not promoted, second side", "us CPU", 1, "", Cost, cost => cost.unpromoted_second_cpu_us),
    line!("promotions at most", "1/s", 0, "1000", Cost, cost => cost.promotions_per_s),
    line!("traffic alone", "1/s", 0, "", Load, load => load.alone_messages_per_s),
    line!("traffic beside promotions", "1/s", 0, "", Load, load => load.beside_messages_per_s),
    line!("beside / alone", "", 3, "0.95", Load, load => load.ratio),
    line!("round trip alone", "ns", 0, "", Idle, idle => idle.alone_rtt_ns_p50),
    line!("beside new connections", "ns", 0, "", Idle, idle => idle.fresh_rtt_ns_p50),
    line!("beside idle connections", "ns", 0, "", Idle, idle => idle.beside_rtt_ns_p50),
    line!("beside idle / alone", "", 3, "1.2", Idle, idle => idle.ratio),
    line!("idle, first side", "KiB", 2, "", Memory, memory => kib(memory.idle, memory.unpromoted_idle).first),
    line!("idle, second side", "KiB", 2, "", Memory, memory => kib(memory.idle, memory.unpromoted_idle).second),
    line!("idle, monitor", "KiB", 2, "", Memory, memory => kib(memory.idle, memory.unpromoted_idle).monitor),
    line!("idle, all", "KiB", 2, "16", Memory, memory => memory.idle_bytes / 1024.0),
    line!("used, all", "KiB", 2, "32", Memory, memory => memory.used_bytes / 1024.0),
    line!("not promoted, idle, all", "KiB", 2, "", Memory, memory => memory.unpromoted_idle.sum() / 1024.0),
];

fn kib(promoted: Bytes, unpromoted: Bytes) -> Bytes {
    let more = |promoted: f64, unpromoted: f64| (promoted - unpromoted) / 1024.0;
    Bytes {
        first: more(promoted.first, unpromoted.first),
        second: more(promoted.second, unpromoted.second),
        monitor: more(promoted.monitor, unpromoted.monitor),
    }
}

const LEGEND: &str = "\
Median over the rounds. CPU time from giving a connection to its channel until it is promoted, one at a time unless
\"of many\"; \"not promoted\" is what any connection costs, one sleep included. Memory is Pss per promoted connection,
less that of one not promoted.
";

#[cfg(test)]
mod tests {
    use super::super::Figure;
    use super::super::record::{Absent, Idle};
    use super::*;

    #[test]
    fn figures_are_medians_and_what_is_absent_is_said() {
        let idle = |round, beside: f64| {
            Record::Idle(Idle {
                round,
                connections: 10,
                alone_rtt_ns_p50: 100.0,
                alone_rtt_ns_p99: 200.0,
                fresh_rtt_ns_p50: 100.0,
                fresh_rtt_ns_p99: 200.0,
                beside_rtt_ns_p50: beside,
                beside_rtt_ns_p99: beside,
                ratio: beside / 100.0,
            })
        };
        let absent = Absent { figure: Figure::Cost, reason: "the monitor: no room".to_owned() };
        let text = render(&[idle(1, 110.0), idle(2, 150.0), idle(3, 120.0), Record::Absent(absent)]);
        let line = text.lines().find(|line| line.contains("beside idle / alone")).unwrap();
        assert_eq!(line.split_whitespace().skip(4).collect::<Vec<_>>(), ["1.200", "1.100", "1.500", "1.2"]);
        assert!(text.contains("cost is absent: the monitor: no room"), "{text}");
        assert!(!text.contains("KiB"), "{text}");
    }

    #[test]
    fn nothing_measured_is_no_table() {
        assert_eq!(render(&[]), "");
    }
}
