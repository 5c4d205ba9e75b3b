//! Rounds made into figures: medians, and each transport beside TCP and beside the physical limit.

use super::record::{Absent, Record};
use super::transport::Transport;
use super::{Placement, Scenario};
use crate::summary::Spread;

/// One transport at one point, over all rounds.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) transport: Transport,
    pub(super) bytes: usize,
    pub(super) placement: Placement,
    /// The median round trip in nanoseconds, or the bytes per second.
    pub(super) figure: Spread,
    /// Of round trips: the 99th and the 99.9th percentile, nanoseconds.
    pub(super) tail: Option<[Spread; 2]>,
    pub(super) cpu_ns: Spread,
    pub(super) waited: Option<Spread>,
    /// How many times as fast as TCP at the same point.
    pub(super) times_tcp: Option<f64>,
    /// Round trips: how many times the limit it takes. Streams: which share of the limit it is.
    pub(super) of_limit: Option<f64>,
}

/// What a run measured; `None` for records without a header.
pub(super) fn scenario(records: &[Record]) -> Option<Scenario> {
    records.iter().find_map(|record| match record {
        Record::Header(header) => Some(header.scenario),
        _ => None,
    })
}

/// All rows, by placement, size and transport.
pub(super) fn rows(records: &[Record]) -> Vec<Row> {
    let Some(scenario) = scenario(records) else { return Vec::new() };
    let measured = records.iter().filter_map(measured).collect::<Vec<_>>();
    let mut sizes = measured.iter().map(|one| one.bytes).collect::<Vec<_>>();
    sizes.sort_unstable();
    sizes.dedup();
    let mut rows = Vec::new();
    for &placement in Placement::ALL {
        for &bytes in &sizes {
            for &transport in Transport::ALL {
                let of = |one: &&Measured| {
                    (one.placement, one.bytes, one.transport) == (placement, bytes, transport)
                };
                rows.extend(row(&measured.iter().filter(of).collect::<Vec<_>>()));
            }
        }
    }
    let figure = |transport, placement, bytes| {
        let same = |row: &&Row| (row.transport, row.placement, row.bytes) == (transport, placement, bytes);
        rows.iter().find(same).map(|row| row.figure.median)
    };
    // A line has no room for 64 B beside their number; they are compared with the most that fits.
    let limit = |placement, bytes| match scenario {
        Scenario::Stream => figure(Transport::Memcpy, placement, bytes),
        Scenario::Pingpong if bytes > SMALL => None,
        Scenario::Pingpong => {
            let smaller = sizes.iter().rev().filter(|&&size| size <= bytes);
            smaller.filter_map(|&size| figure(Transport::Cacheline, placement, size)).next()
        }
    };
    let compared = rows.iter().map(|row| {
        let tcp = figure(Transport::Tcp, row.placement, row.bytes);
        let times_tcp = tcp.map(|tcp| faster(scenario, row.figure.median, tcp));
        (times_tcp, limit(row.placement, row.bytes).map(|limit| row.figure.median / limit))
    });
    let compared = compared.collect::<Vec<_>>();
    for (row, (times_tcp, of_limit)) in rows.iter_mut().zip(compared) {
        (row.times_tcp, row.of_limit) = (times_tcp, of_limit);
    }
    rows
}

/// How many times as fast a figure is as another one.
pub(super) fn faster(scenario: Scenario, figure: f64, other: f64) -> f64 {
    match scenario {
        Scenario::Pingpong => other / figure,
        Scenario::Stream => figure / other,
    }
}

/// The transports that could not be measured somewhere, and why.
pub(super) fn absent(records: &[Record]) -> Vec<&Absent> {
    let absent = records.iter().filter_map(|record| match record {
        Record::Absent(absent) => Some(absent),
        _ => None,
    });
    absent.collect()
}

/// What both kinds of records have.
struct Measured {
    transport: Transport,
    bytes: usize,
    placement: Placement,
    figure: f64,
    tail: Option<[f64; 2]>,
    cpu_ns: f64,
    waited: Option<f64>,
}

fn measured(record: &Record) -> Option<Measured> {
    match record {
        Record::Pingpong(one) => Some(Measured {
            transport: one.transport,
            bytes: one.bytes,
            placement: one.placement,
            figure: one.rtt_ns_p50,
            tail: Some([one.rtt_ns_p99, one.rtt_ns_p999]),
            cpu_ns: one.cpu_ns_per_message,
            waited: one.waited,
        }),
        Record::Stream(one) => Some(Measured {
            transport: one.transport,
            bytes: one.bytes,
            placement: one.placement,
            figure: one.bytes_per_s,
            tail: None,
            cpu_ns: one.cpu_ns_per_message,
            waited: one.waited,
        }),
        Record::Header(_) | Record::Absent(_) => None,
    }
}

/// The rounds of one transport at one point.
fn row(rounds: &[&Measured]) -> Option<Row> {
    let &&Measured { transport, bytes, placement, .. } = rounds.first()?;
    let tail = |place: usize| Spread::of(rounds.iter().filter_map(|one| Some(one.tail?[place])));
    Some(Row {
        transport,
        bytes,
        placement,
        figure: Spread::of(rounds.iter().map(|one| one.figure))?,
        tail: tail(0).zip(tail(1)).map(|(p99, p999)| [p99, p999]),
        cpu_ns: Spread::of(rounds.iter().map(|one| one.cpu_ns))?,
        waited: Spread::of(rounds.iter().filter_map(|one| one.waited)),
        times_tcp: None,
        of_limit: None,
    })
}

/// Messages up to this are compared with a bare cache line, which larger ones have little to do with.
pub(super) const SMALL: usize = 64;

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::pair::record::{Header, Pingpong, Stream};
    use crate::record::Origin;

    pub(in crate::pair) fn header(scenario: Scenario) -> Record {
        Record::Header(Header {
            origin: Origin::of_this_machine("megapipe-bench".to_owned()),
            scenario,
            cpus: vec![0, 1],
            seconds: 1.0,
            rounds: 3,
            ring_bytes: None,
            clock_ns: 20.0,
            verify: false,
        })
    }

    pub(in crate::pair) fn round_trip(transport: Transport, bytes: usize, round: u32, p50: f64) -> Record {
        Record::Pingpong(Pingpong {
            transport,
            bytes,
            placement: Placement::TwoCores,
            round,
            rtt_ns_p50: p50,
            rtt_ns_p99: 2.0 * p50,
            rtt_ns_p999: 3.0 * p50,
            cpu_ns_per_message: p50,
            round_trips: 1000,
            waited: Some(0.0),
        })
    }

    pub(in crate::pair) fn stream(transport: Transport, bytes: usize, bytes_per_s: f64) -> Record {
        Record::Stream(Stream {
            transport,
            bytes,
            placement: Placement::TwoCores,
            round: 1,
            messages_per_s: bytes_per_s / bytes as f64,
            bytes_per_s,
            cpu_ns_per_message: 100.0,
            waited: None,
        })
    }

    #[test]
    fn round_trips_are_compared_by_their_medians() {
        let rows = rows(&[
            header(Scenario::Pingpong),
            round_trip(Transport::Unix, 8, 1, 4900.0),
            round_trip(Transport::Tcp, 8, 1, 9000.0),
            round_trip(Transport::Unix, 8, 2, 5000.0),
            round_trip(Transport::Tcp, 8, 2, 10_000.0),
            round_trip(Transport::Unix, 8, 3, 7000.0),
            round_trip(Transport::Tcp, 8, 3, 30_000.0),
            round_trip(Transport::Cacheline, 8, 1, 100.0),
            round_trip(Transport::Unix, 64, 1, 6000.0),
            round_trip(Transport::Unix, 65, 1, 6000.0),
        ]);
        let figures = rows.iter().map(|row| (row.transport, row.bytes, row.times_tcp, row.of_limit));
        assert_eq!(
            figures.collect::<Vec<_>>(),
            [
                (Transport::Tcp, 8, Some(1.0), Some(100.0)),
                (Transport::Unix, 8, Some(2.0), Some(50.0)),
                (Transport::Cacheline, 8, Some(100.0), Some(1.0)),
                (Transport::Unix, 64, None, Some(60.0)), // beyond a line: beside the largest in one
                (Transport::Unix, 65, None, None),
            ]
        );
        assert_eq!((rows[1].figure.minimum, rows[1].figure.maximum), (4900.0, 7000.0));
    }

    #[test]
    fn streams_are_compared_by_their_rates() {
        let rows = rows(&[
            header(Scenario::Stream),
            stream(Transport::Tcp, 64, 1e8),
            stream(Transport::Pipe, 64, 3e8),
            stream(Transport::Memcpy, 64, 6e8),
            stream(Transport::Pipe, 8, 3e7),
        ]);
        let figures = rows.iter().map(|row| (row.transport, row.bytes, row.times_tcp, row.of_limit));
        assert_eq!(
            figures.collect::<Vec<_>>(),
            [
                (Transport::Pipe, 8, None, None),
                (Transport::Tcp, 64, Some(1.0), Some(1.0 / 6.0)),
                (Transport::Pipe, 64, Some(3.0), Some(0.5)),
                (Transport::Memcpy, 64, Some(6.0), Some(1.0)),
            ]
        );
    }
}
