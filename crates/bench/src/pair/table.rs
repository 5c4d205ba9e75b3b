//! The figures of a run as text.

use std::fmt::Write;

use comfy_table::Table;

use super::record::Record;
use super::summary::{self, Row, faster};
use super::{Placement, Scenario, quoted};
use crate::table::{DISTURBED, align, with_columns};

/// One table per placement: medians over the rounds, by size and transport.
pub fn render(records: &[Record]) -> String {
    let mut text = String::new();
    let Some(scenario) = summary::scenario(records) else { return text };
    let rows = summary::rows(records);
    if !rows.is_empty() {
        text.push_str(match scenario {
            Scenario::Pingpong => ROUND_TRIP_LEGEND,
            Scenario::Stream => STREAM_LEGEND,
        });
    }
    if records.iter().any(|record| matches!(record, Record::Header(header) if header.verify)) {
        text.push_str(VERIFIED);
    }
    for &placement in Placement::ALL {
        let rows = rows.iter().filter(|row| row.placement == placement).collect::<Vec<_>>();
        if rows.is_empty() {
            continue;
        }
        let (table, quotes) = table(scenario, placement, &rows);
        // Writing to a String cannot fail; so for all below.
        let _ = writeln!(text, "{}, {}\n{table}", scenario.name(), described(placement));
        if quotes {
            text.push_str(quoted::SOURCE);
        }
        text.push('\n');
    }
    // Where each has a CPU to itself, nobody should have to wait for one.
    let alone = rows.iter().filter(|row| matches!(row.placement, Placement::TwoCores | Placement::Asleep));
    let disturbed = alone.filter_map(|row| row.waited).map(|waited| waited.median).fold(0.0, f64::max);
    if disturbed > DISTURBED {
        let share = disturbed * 100.0;
        let _ = writeln!(
            text,
            "Disturbed: the processes waited for their CPUs {share:.0}% of the time, because others used them. \
             Measure on a quiet machine."
        );
    }
    for absent in summary::absent(records) {
        let (transport, placement) = (absent.transport.name(), absent.placement.name());
        let _ = writeln!(text, "{transport} is absent, {placement}, {} B: {}", absent.bytes, absent.reason);
    }
    text
}

/// The table, and whether it quotes.
fn table(scenario: Scenario, placement: Placement, rows: &[&Row]) -> (Table, bool) {
    let mut table = with_columns(match scenario {
        Scenario::Pingpong => [
            "bytes",
            "transport",
            "p50 ns",
            "min..max",
            "p99 ns",
            "p99.9 ns",
            "x tcp",
            "x limit",
            "CPU ns/msg",
        ],
        Scenario::Stream => {
            ["bytes", "transport", "MB/s", "min..max", "msg/s", "", "x tcp", "of limit", "CPU ns/msg"]
        }
    });
    let mut quotes = false;
    for (index, row) in rows.iter().enumerate() {
        table.add_row(measured(scenario, row));
        let last = rows.get(index + 1).is_none_or(|next| next.bytes != row.bytes);
        if last
            && placement == Placement::TwoCores
            && let Some(cells) = quote(scenario, row.bytes)
        {
            table.add_row(cells);
            quotes = true;
        }
    }
    align(&mut table, &[1]);
    (table, quotes)
}

fn measured(scenario: Scenario, row: &Row) -> [String; 9] {
    let figure = |value| in_unit(scenario, value);
    let [third, fourth] = match row.tail {
        Some(tail) => tail.map(|spread| format!("{:.0}", spread.median)),
        None => [per_second(row.figure.median, row.bytes), String::new()],
    };
    [
        row.bytes.to_string(),
        row.transport.name().to_owned(),
        figure(row.figure.median),
        format!("{}..{}", figure(row.figure.minimum), figure(row.figure.maximum)),
        third,
        fourth,
        ratio(row.times_tcp),
        ratio(row.of_limit),
        format!("{:.0}", row.cpu_ns.median),
    ]
}

fn quote(scenario: Scenario, bytes: usize) -> Option<[String; 9]> {
    let quoted = quoted::at(scenario, bytes)?;
    let none = || "-".to_owned();
    let third = match scenario {
        Scenario::Pingpong => none(),
        Scenario::Stream => per_second(quoted.figure, bytes),
    };
    Some([
        bytes.to_string(),
        quoted::NAME.to_owned(),
        in_unit(scenario, quoted.figure),
        none(),
        third,
        if scenario == Scenario::Pingpong { none() } else { String::new() },
        ratio(Some(faster(scenario, quoted.figure, quoted.tcp))),
        none(),
        none(),
    ])
}

/// Nanoseconds, or millions of bytes per second.
fn in_unit(scenario: Scenario, value: f64) -> String {
    match scenario {
        Scenario::Pingpong => format!("{value:.0}"),
        Scenario::Stream if value < 1e8 => format!("{:.2}", value / 1e6),
        Scenario::Stream => format!("{:.0}", value / 1e6),
    }
}

fn per_second(bytes_per_s: f64, bytes: usize) -> String {
    format!("{:.0}", bytes_per_s / bytes as f64)
}

fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or("-".to_owned(), |ratio| match ratio {
        100.0.. => format!("{ratio:.0}"),
        10.0.. => format!("{ratio:.1}"),
        0.1.. => format!("{ratio:.2}"),
        _ => format!("{ratio:.4}"),
    })
}

fn described(placement: Placement) -> &'static str {
    match placement {
        Placement::TwoCores => "two-cores: a CPU for each process",
        Placement::OneCore => "one-core: both processes on one CPU",
        Placement::Oversubscribed => {
            "oversubscribed: both processes on two CPUs, four busy processes beside on each"
        }
        Placement::Asleep => "asleep: a CPU for each process, one message a millisecond",
    }
}

const ROUND_TRIP_LEGEND: &str = "\
Medians over the rounds. p50: median round trip, without the reading of the clock in it, and its smallest and largest
value; x tcp: how many times as fast as blocking TCP; x limit: how many times the round trip of two bare cache lines (for
64 B, of the largest message in a line that was measured); CPU ns/msg: CPU time of both processes together per message,
two of which are a round trip.

";

const STREAM_LEGEND: &str = "\
Medians over the rounds. MB/s: millions of bytes received per second, and the smallest and largest value; x tcp: to
blocking TCP; of limit: to memcpy, which is one core copying into a shared buffer and another one copying out of it at
the same time, two copies of each byte, and two counters that are told about once in 16 KiB; CPU ns/msg: CPU time of both
processes together per message.

";

const VERIFIED: &str = "\
Every byte was made and checked, which all figures contain: they say that the bytes arrive, and not how fast.

";

#[cfg(test)]
mod tests {
    use super::super::record::Absent;
    use super::super::summary::tests::{header, round_trip, stream};
    use super::super::transport::Transport;
    use super::*;

    fn cells<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
        let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        lines.find(|cells| cells.get(1) == Some(&name)).unwrap()
    }

    #[test]
    fn ratios_stand_beside_round_trips_and_quotes_are_called_so() {
        let text = render(&[
            header(Scenario::Pingpong),
            round_trip(Transport::Tcp, 8, 1, 10_000.0),
            round_trip(Transport::Cacheline, 8, 1, 100.0),
            Record::Absent(Absent {
                transport: Transport::Pipe,
                bytes: 8,
                placement: Placement::OneCore,
                reason: "no such thing".to_owned(),
            }),
        ]);
        assert_eq!(
            cells(&text, "tcp")[2..],
            ["10000", "10000..10000", "20000", "30000", "1.00", "100", "10000"]
        );
        let quoted = text.lines().find(|line| line.contains("quoted  ")).unwrap();
        assert!(quoted.contains(" 298 ") && quoted.contains(" 39.0 "), "{quoted}");
        assert!(text.contains("not here"), "{text}");
        assert!(text.contains("pipe is absent, one-core, 8 B: no such thing"), "{text}");
    }

    #[test]
    fn streams_have_both_rates() {
        let text = render(&[
            header(Scenario::Stream),
            stream(Transport::Tcp, 64, 6.4e8),
            stream(Transport::Memcpy, 64, 1.28e9),
        ]);
        assert_eq!(cells(&text, "tcp")[2..], ["640", "640..640", "10000000", "1.00", "0.50", "100"]);
    }

    #[test]
    fn without_measurements_there_is_no_table() {
        assert_eq!(render(&[header(Scenario::Stream)]), "");
    }

    #[test]
    fn small_ratios_keep_digits() {
        let ratios = [0.0016, 0.25, 3.0, 25.04, 1234.0].map(|value| ratio(Some(value)));
        assert_eq!(ratios, ["0.0016", "0.25", "3.00", "25.0", "1234"]);
    }
}
