//! Rounds made into figures: medians, and each call beside the baseline.

use super::record::{Measurement, Record};
use super::{Call, Traffic};
use crate::summary::Spread;

/// One call at one number of ready sockets: medians over the rounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// What goes over which sockets.
    pub traffic: Traffic,
    /// Sockets that are ready at a time.
    pub ready: usize,
    /// The call.
    pub call: Call,
    /// System calls to receive or send, for each message.
    pub calls_per_packet: f64,
    /// How many times fewer than recvmsg that is.
    pub fewer_calls: Option<f64>,
    /// System calls to wait, for each message.
    pub waits_per_packet: f64,
    /// Server time for each message, nanoseconds.
    pub cpu_ns: Spread,
    /// Median of the ratios, round by round, to the better of recvmsg and recvmmsg.
    pub ratio: Option<f64>,
    /// Messages lost in all rounds.
    pub lost: u64,
    /// Microseconds from the end of a burst's sending to the message: the median, and the 99th percentile.
    pub delay_us: [f64; 2],
}

/// One row for each call and number of ready sockets, in the order of traffic, number and call.
pub fn rows(records: &[Record]) -> Vec<Row> {
    let measured = records.iter().filter_map(|record| match record {
        Record::Measurement(measured) => Some(measured),
        _ => None,
    });
    let measured: Vec<&Measurement> = measured.collect();
    let mut points: Vec<_> = measured.iter().map(|one| (one.traffic, one.ready, one.call)).collect();
    points.sort();
    points.dedup();
    let row = |(traffic, ready, call)| {
        let of = |call: Call| {
            measured.iter().filter(move |one| (one.traffic, one.ready, one.call) == (traffic, ready, call))
        };
        let over = |value: fn(&Measurement) -> f64| Spread::of(of(call).map(|one| value(one)));
        let calls = |call| Spread::of(of(call).map(|one| one.receive_calls as f64 / one.packets as f64));
        let calls_per_packet = calls(call)?.median;
        let ratios = of(call).filter_map(|one| {
            let baseline = [Call::Recvmsg, Call::Recvmmsg]
                .into_iter()
                .flat_map(of)
                .filter(|other| other.round == one.round)
                .map(|other| other.cpu_ns_per_packet);
            Some(one.cpu_ns_per_packet / baseline.min_by(f64::total_cmp)?)
        });
        Some(Row {
            traffic,
            ready,
            call,
            calls_per_packet,
            fewer_calls: calls(Call::Recvmsg).map(|plain| plain.median / calls_per_packet),
            waits_per_packet: over(|one| one.wait_calls as f64 / one.packets as f64)?.median,
            cpu_ns: over(|one| one.cpu_ns_per_packet)?,
            ratio: Spread::of(ratios).map(|ratios| ratios.median),
            lost: of(call).map(|one| one.lost).sum(),
            delay_us: [over(|one| one.p50_us)?.median, over(|one| one.p99_us)?.median],
        })
    };
    points.into_iter().filter_map(row).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn measured(call: Call, ready: usize, round: u32, calls: u64, cpu: f64) -> Record {
        Record::Measurement(Measurement {
            call,
            traffic: Traffic::Udp,
            sockets: 512,
            ready,
            round,
            packets: 300,
            lost: 0,
            receive_calls: calls,
            wait_calls: 10,
            cpu_ns_per_packet: cpu,
            p50_us: 5.0,
            p99_us: 9.0,
        })
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let records = [
            measured(Call::Recvmsg, 30, 1, 300, 600.0),
            measured(Call::Recvmmsg, 30, 1, 300, 800.0),
            measured(Call::Recvmmmsg, 30, 1, 10, 540.0),
            measured(Call::Recvmsg, 30, 2, 300, 1200.0),
            measured(Call::Recvmmmsg, 30, 2, 10, 1080.0),
        ];
        let rows = rows(&records);
        assert_eq!(rows.iter().map(|row| row.call).collect::<Vec<_>>(), Call::ALL[..3]);
        assert_eq!(rows[2].ratio, Some(0.9));
        assert_eq!(rows[2].fewer_calls, Some(30.0));
        assert_eq!(rows[0].cpu_ns, Spread { median: 900.0, minimum: 600.0, maximum: 1200.0 });
    }
}
