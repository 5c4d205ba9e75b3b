//! Rounds made into figures: medians, and Megapipe beside TCP and beside UNIX sockets.

use super::app::{App, Case, Operation, Pacing, Transport};
use super::record::{Absent, Cost, Measurement, Overhead, Record};
use crate::pair::Placement;
use crate::summary::Spread;

/// One transport in one case, over all rounds.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) case: Case,
    pub(super) transport: Transport,
    pub(super) requests_per_s: Spread,
    pub(super) p50_us: Option<Spread>,
    pub(super) p99_us: Option<Spread>,
    pub(super) p999_us: Option<Spread>,
    pub(super) server_cpu_ns: Spread,
    pub(super) client_cpu_ns: Spread,
    pub(super) promoted: Option<Spread>,
    /// How many times the requests per second of TCP, and of the UNIX socket.
    pub(super) times_tcp: Option<f64>,
    pub(super) times_unix: Option<f64>,
    /// The first of both within each round, over the rounds.
    pub(super) rounds_times_tcp: Option<Spread>,
}

/// One cost of the library.
#[derive(Debug)]
pub(super) struct OverheadRow {
    pub(super) cost: Cost,
    pub(super) plain: Spread,
    pub(super) preloaded: Spread,
}

/// All rows, by placement, server, operation, connections and transport.
pub(super) fn rows(records: &[Record]) -> Vec<Row> {
    let measured = measured(records).collect::<Vec<_>>();
    let mut connections = measured.iter().map(|one| one.connections).collect::<Vec<_>>();
    connections.sort_unstable();
    connections.dedup();
    let mut rows = Vec::new();
    for &placement in Placement::ALL {
        for &app in App::ALL {
            for &operation in Operation::ALL {
                for (&connections, &pacing) in
                    connections.iter().flat_map(|one| Pacing::ALL.iter().map(move |pacing| (one, pacing)))
                {
                    let case = Case { app, operation, connections, placement, pacing };
                    rows.extend(of_case(case, &measured));
                }
            }
        }
    }
    rows
}

fn of_case(case: Case, measured: &[&Measurement]) -> Vec<Row> {
    let row = |&transport: &Transport| {
        let of = |one: &&&Measurement| one.case() == case && one.transport == transport;
        row(case, transport, &measured.iter().filter(of).copied().collect::<Vec<_>>())
    };
    let mut rows = Transport::ALL.iter().filter_map(row).collect::<Vec<_>>();
    let rate = |transport| {
        let row = rows.iter().find(|row| row.transport == transport);
        row.map(|row| row.requests_per_s.median)
    };
    let (tcp, unix) = (rate(Transport::Tcp), rate(Transport::Unix));
    for row in &mut rows {
        let rate = row.requests_per_s.median;
        row.times_tcp = tcp.map(|tcp| rate / tcp);
        row.times_unix = unix.map(|unix| rate / unix);
        row.rounds_times_tcp = rounds_times_tcp(case, row.transport, measured);
    }
    rows
}

/// Requests per second over those of TCP in the same round.
fn rounds_times_tcp(case: Case, transport: Transport, measured: &[&Measurement]) -> Option<Spread> {
    let of = |transport| measured.iter().filter(move |one| one.case() == case && one.transport == transport);
    let ratios = of(transport).filter_map(|ours| {
        let plain = of(Transport::Tcp).find(|plain| plain.round == ours.round)?;
        Some(ours.requests_per_s / plain.requests_per_s)
    });
    Spread::of(ratios)
}

fn row(case: Case, transport: Transport, rounds: &[&Measurement]) -> Option<Row> {
    let spread = |of: fn(&Measurement) -> Option<f64>| Spread::of(rounds.iter().filter_map(|one| of(one)));
    Some(Row {
        case,
        transport,
        requests_per_s: spread(|one| Some(one.requests_per_s))?,
        p50_us: spread(|one| one.p50_us),
        p99_us: spread(|one| one.p99_us),
        p999_us: spread(|one| one.p999_us),
        server_cpu_ns: spread(|one| Some(one.server_cpu_ns_per_request))?,
        client_cpu_ns: spread(|one| Some(one.client_cpu_ns_per_request))?,
        promoted: spread(|one| one.promoted.map(|count| count as f64)),
        times_tcp: None,
        times_unix: None,
        rounds_times_tcp: None,
    })
}

/// What the library costs, where both sides were measured.
pub(super) fn overheads(records: &[Record]) -> Vec<OverheadRow> {
    let of = |cost: Cost, preloaded: bool| {
        let rounds = records.iter().filter_map(|record| match record {
            Record::Overhead(one) if (one.cost, one.preloaded) == (cost, preloaded) => Some(one),
            _ => None,
        });
        Spread::of(rounds.map(|&Overhead { ns, .. }| ns))
    };
    let row = |&cost: &Cost| Some(OverheadRow { cost, plain: of(cost, false)?, preloaded: of(cost, true)? });
    Cost::ALL.iter().filter_map(row).collect()
}

/// What could not be measured, and why.
pub(super) fn absent(records: &[Record]) -> impl Iterator<Item = &Absent> {
    records.iter().filter_map(|record| match record {
        Record::Absent(absent) => Some(absent),
        _ => None,
    })
}

/// The cases in which Megapipe promoted no connection in any round, though they are worth it: what
/// was measured there is not Megapipe.
pub fn without_promotion(records: &[Record]) -> Vec<Case> {
    let rows = rows(records).into_iter().filter(|row| row.transport == Transport::Megapipe);
    let none = rows.filter(|row| row.promoted.is_none_or(|promoted| promoted.maximum == 0.0));
    none.map(|row| row.case).filter(|case| case.is_worth_it()).collect()
}

fn measured(records: &[Record]) -> impl Iterator<Item = &Measurement> {
    records.iter().filter_map(|record| match record {
        Record::App(measurement) => Some(measurement),
        _ => None,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use crate::apps::record::Header;
    use crate::record::Origin;

    pub(in crate::apps) fn header() -> Record {
        Record::Header(Header {
            origin: Origin::of_this_machine("megapipe-bench apps".to_owned()),
            cpus: vec![0, 1],
            seconds: 2.0,
            rounds: 3,
            versions: BTreeMap::new(),
        })
    }

    pub(in crate::apps) fn measurement(
        operation: Operation,
        transport: Transport,
        round: u32,
        requests_per_s: f64,
        promoted: Option<u64>,
    ) -> Record {
        Record::App(Measurement {
            app: App::Redis,
            client: "redis-benchmark".to_owned(),
            transport,
            connections: 1,
            placement: Placement::TwoCores,
            operation,
            pacing: Pacing::Closed,
            rate: None,
            round,
            requests_per_s,
            p50_us: Some(23.0),
            p99_us: Some(31.0),
            p999_us: None,
            server_cpu_ns_per_request: 2000.0,
            client_cpu_ns_per_request: 3000.0,
            promoted,
            server_promoted: promoted,
        })
    }

    pub(in crate::apps) fn overhead(preloaded: bool, round: u32, ns: f64) -> Record {
        Record::Overhead(Overhead { cost: Cost::Read, preloaded, round, ns })
    }

    #[test]
    fn cases_are_compared_by_their_medians() {
        let rows = rows(&[
            header(),
            measurement(Operation::Get, Transport::Megapipe, 1, 200_000.0, Some(1)),
            measurement(Operation::Get, Transport::Tcp, 1, 10_000.0, None),
            measurement(Operation::Get, Transport::Unix, 1, 40_000.0, None),
            measurement(Operation::Get, Transport::Megapipe, 2, 300_000.0, Some(1)),
            measurement(Operation::Get, Transport::Tcp, 2, 20_000.0, None),
            measurement(Operation::Get, Transport::Tcp, 3, 90_000.0, None),
            measurement(Operation::Set, Transport::Megapipe, 1, 300_000.0, Some(1)),
        ]);
        let figures = rows.iter().map(|row| (row.transport, row.times_tcp, row.times_unix));
        assert_eq!(
            figures.collect::<Vec<_>>(),
            [
                (Transport::Tcp, Some(1.0), Some(0.5)),
                (Transport::Megapipe, Some(12.5), Some(6.25)),
                (Transport::Unix, Some(2.0), Some(1.0)),
                (Transport::Megapipe, None, None),
            ]
        );
        assert_eq!((rows[0].requests_per_s.minimum, rows[0].requests_per_s.maximum), (10_000.0, 90_000.0));
    }

    #[test]
    fn a_case_in_which_nothing_was_promoted_is_found() {
        let records = [
            measurement(Operation::Get, Transport::Megapipe, 1, 1.0, Some(0)),
            measurement(Operation::Get, Transport::Megapipe, 2, 1.0, Some(0)),
            measurement(Operation::Set, Transport::Megapipe, 1, 1.0, Some(0)),
            measurement(Operation::Set, Transport::Megapipe, 2, 1.0, Some(1)),
            measurement(Operation::Short, Transport::Megapipe, 1, 1.0, Some(0)),
            measurement(Operation::Get, Transport::Tcp, 1, 1.0, None),
        ];
        let cases = without_promotion(&records);
        assert_eq!(cases.iter().map(|case| case.operation).collect::<Vec<_>>(), [Operation::Get]);
    }

    #[test]
    fn overheads_need_both_sides() {
        assert!(overheads(&[overhead(true, 1, 50.0)]).is_empty());
        let rows = overheads(&[overhead(true, 1, 54.0), overhead(false, 1, 50.0), overhead(true, 2, 56.0)]);
        assert_eq!((rows[0].plain.median, rows[0].preloaded.median), (50.0, 55.0));
    }
}
