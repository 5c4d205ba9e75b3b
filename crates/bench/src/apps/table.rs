//! The figures of a run as text.

use std::fmt::Write;

use comfy_table::Table;

use super::app::Transport;
use super::brief;
use super::record::Record;
use super::summary::{self, OverheadRow, Row};
use crate::pair::Placement;
use crate::summary::Spread;
use crate::table::{align, with_columns};

/// One table per placement: medians over the rounds, by case and transport; then what the library costs.
pub fn render(records: &[Record]) -> String {
    let mut text = String::new();
    let (rows, overheads) = (summary::rows(records), summary::overheads(records));
    if !rows.is_empty() {
        text.push_str(LEGEND);
    }
    for &placement in Placement::ALL {
        let rows = rows.iter().filter(|row| row.case.placement == placement).collect::<Vec<_>>();
        if !rows.is_empty() {
            // Writing to a String cannot fail; so for all below.
            let _ = writeln!(text, "{}\n{}\n", described(placement), cases(&rows));
        }
    }
    if !overheads.is_empty() {
        let _ = writeln!(
            text,
            "What the library costs a program that it does nothing for\n{}\n",
            costs(&overheads)
        );
    }
    text.push_str(&brief::render(records));
    for absent in summary::absent(records) {
        let what = absent.case.as_deref().unwrap_or(absent.app.name());
        let _ = writeln!(text, "{what} is absent: {}", absent.reason);
    }
    text
}

fn cases(rows: &[&Row]) -> Table {
    let mut table = with_columns([
        "server",
        "operation",
        "conns",
        "loop",
        "transport",
        "requests/s",
        "min..max",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "server ns",
        "client ns",
        "promoted",
        "x tcp",
        "asked",
        "x unix",
        "asked",
    ]);
    for row in rows {
        table.add_row(cells(row));
    }
    align(&mut table, &[0, 1, 3, 4]);
    table
}

fn cells(row: &Row) -> [String; 17] {
    let optional = |spread: Option<Spread>, digits: usize| {
        spread.map_or("-".to_owned(), |spread| format!("{:.digits$}", spread.median))
    };
    let ours = row.transport == Transport::Megapipe;
    let [tcp, asked] = compared(row.times_tcp, row.case.asked(row.transport));
    let [unix, asked_of_unix] =
        compared(row.times_unix.filter(|_| ours), row.case.asked_of_unix().filter(|_| ours));
    [
        row.case.app.name().to_owned(),
        row.case.operation.name().to_owned(),
        row.case.connections.to_string(),
        row.case.pacing.name().to_owned(),
        row.transport.name().to_owned(),
        format!("{:.0}", row.requests_per_s.median),
        format!("{:.0}..{:.0}", row.requests_per_s.minimum, row.requests_per_s.maximum),
        optional(row.p50_us, 0),
        optional(row.p99_us, 0),
        optional(row.p999_us, 0),
        format!("{:.0}", row.server_cpu_ns.median),
        format!("{:.0}", row.client_cpu_ns.median),
        optional(row.promoted, 0),
        tcp,
        asked,
        unix,
        asked_of_unix,
    ]
}

/// A ratio, marked where it is less than asked, and what is asked.
fn compared(ratio: Option<f64>, asked: Option<f64>) -> [String; 2] {
    let missed = matches!((ratio, asked), (Some(ratio), Some(asked)) if ratio < asked);
    let ratio = ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
    [
        if missed { format!("{ratio} <") } else { ratio },
        asked.map_or("-".to_owned(), |asked| format!("{asked}")),
    ]
}

fn costs(rows: &[OverheadRow]) -> Table {
    let mut table = with_columns(["", "plain ns", "min..max", "with it ns", "min..max", "more", "asked"]);
    for row in rows {
        let of = |spread: Spread| {
            let Spread { median, minimum, maximum } = spread;
            [format!("{median:.1}"), format!("{minimum:.1}..{maximum:.1}")]
        };
        let more = row.preloaded.median - row.plain.median;
        let asked = row.cost.asked_ns();
        let mark = if more > asked { " >" } else { "" };
        let mut cells = vec![row.cost.name().to_owned()];
        cells.extend(of(row.plain));
        cells.extend(of(row.preloaded));
        cells.extend([format!("{more:.1}{mark}"), format!("{asked}")]);
        table.add_row(cells);
    }
    align(&mut table, &[0]);
    table
}

fn described(placement: Placement) -> &'static str {
    match placement {
        Placement::TwoCores => "two-cores: a CPU for the server, another one for the client",
        Placement::OneCore => "one-core: server and client on one CPU",
        Placement::Oversubscribed => {
            "oversubscribed: server and client on two CPUs, four busy processes beside on each"
        }
        Placement::Asleep => "asleep",
    }
}

const LEGEND: &str = "\
Medians over the rounds. conns: connections, or threads of a client in Python; loop: closed, a request after the
last answer, or open, at half of what plain TCP bore. p50 to p99.9: time of a request as the client reports it, in
an open loop from when it was due; server ns, client ns: CPU time of their processes over the requests;
client-only, server-only: one of the two programs has the library, and the other is plain; promoted: connections,
by the client's library; x tcp, x unix: requests per second over those of TCP, and of the server's UNIX socket, and
what is asked (< marks less).

";

#[cfg(test)]
mod tests {
    use super::super::app::{App, Operation};
    use super::super::record::Absent;
    use super::super::summary::tests::{header, measurement, overhead};
    use super::*;

    fn cells<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
        let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        lines.find(|cells| cells.get(4) == Some(&name)).unwrap()
    }

    #[test]
    fn ratios_stand_beside_what_is_asked() {
        let text = render(&[
            header(),
            measurement(Operation::Get, Transport::Tcp, 1, 20_000.0, None),
            measurement(Operation::Get, Transport::Megapipe, 1, 250_000.0, Some(1)),
            measurement(Operation::Get, Transport::Unix, 1, 100_000.0, None),
            Record::Absent(Absent { app: App::Nginx, case: None, reason: "wrk is not installed".to_owned() }),
        ]);
        assert_eq!(
            cells(&text, "megapipe"),
            [
                "redis",
                "get",
                "1",
                "closed",
                "megapipe",
                "250000",
                "250000..250000",
                "23",
                "31",
                "-",
                "2000",
                "3000",
                "1",
                "12.50",
                "10",
                "2.50",
                "<",
                "5",
            ]
        );
        assert_eq!(cells(&text, "unix")[13..], ["5.00", "-", "-", "-"]);
        assert!(text.contains("nginx is absent: wrk is not installed"), "{text}");
    }

    #[test]
    fn costs_are_differences() {
        let text = render(&[header(), overhead(false, 1, 50.0), overhead(true, 1, 57.5)]);
        let line = text.lines().find(|line| line.contains("read of another")).unwrap();
        assert!(line.contains("7.5 >") && line.trim_end().ends_with(" 5"), "{line}");
    }

    #[test]
    fn without_measurements_there_is_no_table() {
        assert_eq!(render(&[header()]), "");
    }
}
