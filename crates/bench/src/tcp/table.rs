//! The figures of a run as text, beside what is asked.

use std::fmt::Write;

use super::record::{Record, Share};
use super::summary::{self, Line};
use super::{Row, Side};
use crate::summary::Spread;
use crate::table::{align, with_columns};

/// One line for each load and server.
pub fn render(records: &[Record]) -> String {
    let mut text = String::new();
    let mut table = with_columns([
        "row",
        "server",
        "rate",
        "server us",
        "both us",
        "rate",
        "server",
        "both",
        "least",
        "most",
        "busy",
        "asked",
        "pkt/wait",
        "calls",
        "failed",
    ]);
    let lines = summary::lines(records);
    for line in &lines {
        table.add_row(cells(line));
    }
    align(&mut table, &[0, 1]);
    if !lines.is_empty() {
        // Writing to a String cannot fail; so for all below.
        let _ = writeln!(text, "{LEGEND}\n{table}");
    }
    for record in records {
        let _ = match record {
            Record::Share(share) => writeln!(text, "{}", shares(share)),
            Record::Absent(absent) => {
                writeln!(text, "{} ({}) is absent: {}", absent.side.name(), absent.row.name(), absent.reason)
            }
            _ => Ok(()),
        };
    }
    text
}

fn cells(line: &Line) -> Vec<String> {
    let ratio = |of: fn(&summary::Ratios) -> f64| {
        line.ratios.as_ref().map_or(String::new(), |ratios| format!("{:.2}", of(ratios)))
    };
    let us = |spread: Spread| format!("{:.2}", spread.median / 1000.0);
    let optional = |spread: Option<Spread>| spread.map_or(String::new(), |one| format!("{:.1}", one.median));
    vec![
        line.row.name().to_owned(),
        line.side.name().to_owned(),
        format!("{:.0}", line.rate.median),
        us(line.server_ns),
        us(line.both_ns),
        ratio(|ratios| ratios.rate.median),
        ratio(|ratios| ratios.server.median),
        ratio(|ratios| ratios.both.median),
        ratio(|ratios| ratios.both.minimum),
        ratio(|ratios| ratios.both.maximum),
        ratio(|ratios| ratios.busy.median),
        asked(line.row, line.side).to_owned(),
        optional(line.packets_per_wait),
        optional(line.calls),
        line.failures.to_string(),
    ]
}

fn shares(share: &Share) -> String {
    let all: u64 = share.accepted.iter().sum();
    let percent = share.accepted.iter().map(|&accepted| {
        let percent = accepted as f64 * 100.0 / all.max(1) as f64;
        format!("{percent:.1} %")
    });
    let percent = percent.collect::<Vec<_>>().join(" and ");
    format!(
        "share, round {}: {percent} of {all} connections, {} foreign segments, also after {} s of silence (asked: 45 to \
         55 %, 0)",
        share.round, share.unowned, share.silence
    )
}

/// What is asked of a server under a load.
fn asked(row: Row, side: Side) -> &'static str {
    match (row, side) {
        (Row::Short, Side::Stack) => "both 0.70",
        (Row::Echo, Side::Stack) => "both 0.90, 8 pkt/wait",
        (Row::BulkIn | Row::BulkOut, Side::Stack) => "rate 0.60",
        (Row::One, Side::Stack) => "server 1.0",
        (Row::Hundred, Side::Stack) => "server 0.5",
        (Row::Thousand, Side::Stack) => "server 0.1",
        (Row::TwoShort, Side::TwoStacks) => "rate 1.0",
        (Row::TwoEcho, Side::TwoStacks) => "rate 1.2, both 1.05",
        _ => "",
    }
}

const LEGEND: &str = "\
Medians over the rounds. rate: connections, transactions or MiB a second; server us, both us: CPU time of the server, and of
server and client, for each; then ratios, round by round: to kernel (epoll over veth), in the rows one, hundred and thousand
to smoltcp, in two-* to one stack; least and most of both; busy: of the time in which the CPUs were not idle, right if
nothing else runs. floor: a responder without state. pkt/wait: packets received for each wait.
";

#[cfg(test)]
mod tests {
    use super::super::record::Absent;
    use super::super::summary::tests::measured;
    use super::*;

    #[test]
    fn figures_stand_beside_what_is_asked() {
        let text = render(&[
            measured(Row::Short, Side::Kernel, 1, 20_000.0, 20_000.0),
            measured(Row::Short, Side::Stack, 1, 15_000.0, 9_000.0),
            Record::Share(Share { round: 1, accepted: vec![4900, 5100], unowned: 0, silence: 6.0 }),
            Record::Absent(Absent { row: Row::One, side: Side::Smoltcp, reason: "why".to_owned() }),
        ]);
        let line = text.lines().find(|line| line.contains("stack ")).unwrap();
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words[3..8], ["15.00", "24.00", "1.33", "0.75", "0.60"]);
        assert!(line.contains("both 0.70"), "{line}");
        assert!(text.contains("49.0 % and 51.0 % of 10000 connections, 0 foreign"), "{text}");
        assert!(text.contains("smoltcp (one) is absent: why"), "{text}");
    }
}
