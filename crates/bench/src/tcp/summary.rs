//! Rounds made into figures: medians, and each server beside the one that it is compared with.

use super::record::{Measurement, Record};
use super::{Row, Side};
use crate::summary::Spread;

/// One server under one load.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The load.
    pub row: Row,
    /// The server.
    pub side: Side,
    /// Units a second.
    pub rate: Spread,
    /// CPU time of the server for a unit, nanoseconds.
    pub server_ns: Spread,
    /// CPU time of server and client for a unit, nanoseconds.
    pub both_ns: Spread,
    /// Medians of the ratios, round by round, to the server that it is compared with.
    pub ratios: Option<Ratios>,
    /// Packets for each wait of the engine.
    pub packets_per_wait: Option<Spread>,
    /// System calls of the channel for a unit.
    pub calls: Option<Spread>,
    /// Connections that failed in all rounds.
    pub failures: u64,
}

/// Beside another server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratios {
    /// Of units a second.
    pub rate: Spread,
    /// Of CPU time of the server for a unit.
    pub server: Spread,
    /// Of CPU time of server and client.
    pub both: Spread,
    /// Of the time in which the CPUs of both were not idle: right on a machine without other load.
    pub busy: Spread,
}

/// One line for each load and server, in that order.
pub fn lines(records: &[Record]) -> Vec<Line> {
    let measured = records.iter().filter_map(|record| match record {
        Record::Measurement(measured) => Some(measured),
        _ => None,
    });
    let measured = measured.collect::<Vec<_>>();
    let mut points = measured.iter().map(|one| (one.row, one.side)).collect::<Vec<_>>();
    points.sort();
    points.dedup();
    points.into_iter().filter_map(|(row, side)| line(&measured, row, side)).collect()
}

fn line(measured: &[&Measurement], row: Row, side: Side) -> Option<Line> {
    let of = |side| measured.iter().copied().filter(move |one| (one.row, one.side) == (row, side));
    let over = |value: fn(&Measurement) -> f64| Spread::of(of(side).map(value));
    let (_, reference) = row.sides();
    let ratio = |value: fn(&Measurement) -> f64| {
        Spread::of(of(side).filter_map(|one| {
            let other = of(reference).find(|other| other.round == one.round)?;
            Some(value(one) / value(other))
        }))
    };
    let ratios = || {
        Some(Ratios {
            rate: ratio(|one| one.rate)?,
            server: ratio(|one| one.server_cpu_ns)?,
            both: ratio(both)?,
            busy: ratio(|one| one.both_busy_ns)?,
        })
    };
    Some(Line {
        row,
        side,
        rate: over(|one| one.rate)?,
        server_ns: over(|one| one.server_cpu_ns)?,
        both_ns: over(both)?,
        ratios: if side == reference { None } else { ratios() },
        packets_per_wait: Spread::of(of(side).filter_map(|one| one.packets_per_wait)),
        calls: Spread::of(of(side).filter_map(|one| one.calls)),
        failures: of(side).map(|one| one.failures).sum(),
    })
}

fn both(measured: &Measurement) -> f64 {
    measured.server_cpu_ns + measured.client_cpu_ns
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn measured(row: Row, side: Side, round: u32, server: f64, client: f64) -> Record {
        Record::Measurement(Measurement {
            row,
            side,
            round,
            rate: 1e9 / server,
            server_cpu_ns: server,
            client_cpu_ns: client,
            server_busy_ns: server,
            both_busy_ns: server + client,
            packets_per_wait: (side == Side::Stack).then_some(9.0),
            calls: None,
            failures: 0,
        })
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let records = [
            measured(Row::Short, Side::Kernel, 1, 20_000.0, 20_000.0),
            measured(Row::Short, Side::Stack, 1, 15_000.0, 9_000.0),
            measured(Row::Short, Side::Kernel, 2, 40_000.0, 40_000.0),
            measured(Row::Short, Side::Stack, 2, 30_000.0, 18_000.0),
        ];
        let lines = lines(&records);
        assert_eq!(lines.iter().map(|line| line.side).collect::<Vec<_>>(), [Side::Stack, Side::Kernel]);
        let ratios = lines[0].ratios.unwrap();
        assert_eq!((ratios.server.median, ratios.both.median, ratios.both.maximum), (0.75, 0.6, 0.6));
        assert_eq!(lines[1].ratios, None);
    }
}
