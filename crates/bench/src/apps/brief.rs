//! One row a case, plain TCP beside Megapipe, in Markdown: what a document can quote.

use std::fmt::Write;

use super::app::{Case, Client, Pacing, Transport};
use super::record::Record;
use super::summary::{self, Row};
use crate::summary::Spread;

/// The table; empty without a case in which both were measured.
pub(super) fn render(records: &[Record]) -> String {
    let rows = summary::rows(records);
    let cases = rows.chunk_by(|one, next| one.case == next.case);
    let lines = cases.filter_map(|rows| {
        let of = |transport| rows.iter().find(|row| row.transport == transport);
        Some(line(of(Transport::Tcp)?, of(Transport::Megapipe)?))
    });
    let lines = lines.collect::<String>();
    if lines.is_empty() { lines } else { format!("{LEGEND}{HEAD}{lines}\n") }
}

fn line(plain: &Row, ours: &Row) -> String {
    let case = ours.case;
    let times = ours.rounds_times_tcp.map_or(String::new(), |Spread { median, minimum, maximum }| {
        // All bear the rate of an open loop.
        let worse = case.pacing == Pacing::Closed && median < 1.0 - SAME;
        format!("{median:.2} ({minimum:.2} to {maximum:.2}){}", mark(worse))
    });
    let cells = [
        case.app.name().to_owned(),
        load(case),
        format!("{:.0} -> {:.0}", plain.requests_per_s.median, ours.requests_per_s.median),
        times,
        latency(plain.p50_us, ours.p50_us),
        latency(plain.p99_us, ours.p99_us),
        latency(plain.p999_us, ours.p999_us),
        cost(plain.server_cpu_ns, ours.server_cpu_ns),
        cost(plain.client_cpu_ns, ours.client_cpu_ns),
        ours.promoted.map_or(String::new(), |promoted| format!("{:.0}", promoted.median)),
    ];
    let mut line = String::new();
    for cell in cells {
        let _ = write!(line, "| {cell} "); // writing to a String cannot fail
    }
    line + "|\n"
}

fn load(case: Case) -> String {
    let unit = if case.app.client() == Client::Python { "thread" } else { "connection" };
    let many = if case.connections == 1 { "" } else { "s" };
    let pacing = if case.pacing == Pacing::Open { ", open loop" } else { "" };
    format!("{}, {} {unit}{many}{pacing}", case.operation.name(), case.connections)
}

/// Microseconds.
fn latency(plain: Option<Spread>, ours: Option<Spread>) -> String {
    let (Some(plain), Some(ours)) = (plain, ours) else { return "-".to_owned() };
    let (plain, ours) = (plain.median, ours.median);
    let shown = |us: f64| if us < 100.0 { format!("{us:.1}") } else { format!("{us:.0}") };
    format!("{} -> {}{}", shown(plain), shown(ours), mark(ours > plain * (1.0 + SAME)))
}

/// CPU time of a request, Megapipe's over plain.
fn cost(plain: Spread, ours: Spread) -> String {
    let ratio = ours.median / plain.median;
    format!("{ratio:.2}{}", mark(ratio > 1.0 + SAME))
}

fn mark(worse: bool) -> &'static str {
    if worse { " worse" } else { "" }
}

/// Medians nearer to each other than this are not called worse.
const SAME: f64 = 0.05;

const LEGEND: &str = "\
Plain TCP -> Megapipe, medians over the rounds; x: Megapipe over TCP in the same round, median and range. An open
loop has half of the requests/s that plain TCP bore, and its latency counts from when a request was due. CPU: time
of a request, Megapipe's over plain. worse: by more than 5 %.

";

const HEAD: &str = "\
| program | load | requests/s | x | p50 us | p99 us | p99.9 us | server CPU | client CPU | promoted |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|
";

#[cfg(test)]
mod tests {
    use super::super::app::Operation;
    use super::super::summary::tests::{header, measurement};
    use super::*;

    #[test]
    fn what_is_worse_is_marked_and_stays() {
        let records = [
            header(),
            measurement(Operation::Get, Transport::Tcp, 1, 20_000.0, None),
            measurement(Operation::Get, Transport::Megapipe, 1, 60_000.0, Some(1)),
            measurement(Operation::Set, Transport::Tcp, 1, 20_000.0, None),
            measurement(Operation::Set, Transport::Megapipe, 1, 10_000.0, Some(1)),
            measurement(Operation::Set, Transport::Tcp, 2, 20_000.0, None),
            measurement(Operation::Set, Transport::Megapipe, 2, 18_000.0, Some(1)),
            measurement(Operation::Short, Transport::Tcp, 1, 1.0, None),
        ];
        let text = render(&records);
        let lines = text.lines().filter(|line| line.starts_with("| redis")).collect::<Vec<_>>();
        let [get, set] = lines[..] else { panic!("{text}") };
        assert_eq!(
            get,
            "| redis | get, 1 connection | 20000 -> 60000 | 3.00 (3.00 to 3.00) | 23.0 -> 23.0 | 31.0 -> 31.0 | - \
             | 1.00 | 1.00 | 1 |"
        );
        assert!(set.contains("| 20000 -> 14000 | 0.70 (0.50 to 0.90) worse |"), "{set}");
        assert_eq!(render(&[header()]), "");
    }
}
