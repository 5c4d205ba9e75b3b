//! The figures of a run as text, with those of the proposal beside them.

use std::fmt::Write;

use super::record::Record;
use super::summary;
use super::{Call, Traffic};
use crate::summary::Spread;
use crate::table::{align, with_columns};

/// One row for each call and number of ready sockets.
pub fn render(records: &[Record]) -> String {
    let mut text = String::new();
    let mut table = with_columns([
        "traffic",
        "ready",
        "call",
        "calls/msg",
        "fewer",
        "waits/msg",
        "ns/msg",
        "least",
        "most",
        "ratio",
        "asked",
        "paper",
        "lost",
        "p50 us",
        "p99 us",
    ]);
    let rows = summary::rows(records);
    for row in &rows {
        let Spread { median, minimum, maximum } = row.cpu_ns;
        let [median, least, most] = [median, minimum, maximum].map(|value| format!("{value:.0}"));
        let asked = asked(row.traffic, row.ready, row.call);
        table.add_row([
            row.traffic.name().to_owned(),
            row.ready.to_string(),
            name(row.call, row.traffic).to_owned(),
            format!("{:.3}", row.calls_per_packet),
            row.fewer_calls.map_or(String::new(), |fewer| format!("{fewer:.1}x")),
            format!("{:.3}", row.waits_per_packet),
            median,
            least,
            most,
            row.ratio.map_or(String::new(), |ratio| format!("{ratio:.3}")),
            asked.map_or(String::new(), |asked| format!("{asked:.2}")),
            paper(row.traffic, row.ready, row.call).to_owned(),
            row.lost.to_string(),
            format!("{:.1}", row.delay_us[0]),
            format!("{:.1}", row.delay_us[1]),
        ]);
    }
    align(&mut table, &[0, 2]);
    if !rows.is_empty() {
        // Writing to a String cannot fail; so for all below.
        let _ = writeln!(text, "{LEGEND}\n{table}");
    }
    for record in records {
        if let Record::Absent(absent) = record {
            let (call, traffic) = (absent.call.name(), absent.traffic.name());
            let _ = writeln!(text, "{call} ({traffic}) is absent: {}", absent.reason);
        }
    }
    text
}

/// Senders have names of their own.
fn name(call: Call, traffic: Traffic) -> &'static str {
    match (traffic, call) {
        (Traffic::UdpSend, Call::Recvmsg) => "sendmsg",
        (Traffic::UdpSend, Call::Recvmmsg) => "sendmmsg",
        (Traffic::UdpSend, Call::Recvmmmsg) => "sendmmmsg",
        _ => call.name(),
    }
}

/// What is asked of the ratio.
fn asked(traffic: Traffic, ready: usize, call: Call) -> Option<f64> {
    match (traffic, call, ready) {
        (Traffic::Udp, Call::Recvmmmsg | Call::Stateful, 1) => Some(1.05),
        (Traffic::Udp, Call::Stateful, 8..) => Some(0.60),
        (Traffic::Udp, Call::Recvmmmsg, 30..) => Some(0.95),
        _ => None,
    }
}

/// Cycles and calls that the proposal measured with its kernel patch, against recvmsg.
fn paper(traffic: Traffic, ready: usize, call: Call) -> &'static str {
    match (traffic, call, ready) {
        (Traffic::Udp, Call::Recvmmsg, 8) => "1.035",
        (Traffic::Udp, Call::Recvmmsg, 30) => "1.098",
        (Traffic::Udp, Call::Recvmmmsg, 8) => "0.927, 7.9x",
        (Traffic::Udp, Call::Recvmmmsg, 30) => "0.853, 32.8x",
        _ => "",
    }
}

const LEGEND: &str = "\
Medians over the rounds. ns/msg: server time from looking for messages to the last one, the wait included; ratio: to the
better of recvmsg and recvmmsg of the same round; calls/msg: system calls to receive (or send); delay: from the end of a
burst's sending until the server has the message. paper: cycles against recvmsg, and fewer calls, with a patched kernel.
";

#[cfg(test)]
mod tests {
    use super::super::record::Absent;
    use super::super::summary::tests::measured;
    use super::*;

    #[test]
    fn figures_stand_beside_what_is_asked_and_what_the_paper_has() {
        let text = render(&[
            measured(Call::Recvmsg, 30, 1, 300, 600.0),
            measured(Call::Recvmmmsg, 30, 1, 10, 540.0),
            Record::Absent(Absent {
                call: Call::Stateful,
                traffic: Traffic::UdpSend,
                reason: "why".to_owned(),
            }),
        ]);
        let line = text.lines().find(|line| line.contains("recvmmmsg ")).unwrap();
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words[3..5], ["0.033", "30.0x"]);
        assert_eq!(words[9..13], ["0.900", "0.95", "0.853,", "32.8x"]);
        assert!(text.contains("stateful (udp-send) is absent: why"), "{text}");
    }

    #[test]
    fn nothing_measured_is_no_table() {
        assert_eq!(render(&[]), "");
    }
}
