//! The figures of a run as text, with what is asked beside them.

use std::fmt::Write;

use super::record::{Measurement, Record};
use super::{Case, Program, Variant};
use crate::summary::Spread;
use crate::table::{align, with_columns};

/// One table for each case.
pub fn render(records: &[Record]) -> String {
    let measurements: Vec<&Measurement> = records
        .iter()
        .filter_map(|record| match record {
            Record::Measurement(measurement) => Some(measurement),
            Record::Header(_) | Record::Absent(_) => None,
        })
        .collect();
    let mut text = String::new();
    for case in Case::ALL {
        let of_case: Vec<&Measurement> =
            measurements.iter().copied().filter(|measurement| measurement.case == *case).collect();
        if !of_case.is_empty() {
            // Writing to a String cannot fail; so for all below.
            let _ = writeln!(text, "{}\n{}\n", heading(*case), body(&of_case));
        }
    }
    for record in records {
        if let Record::Absent(absent) = record {
            let names = [absent.case.name(), absent.program.name(), absent.variant.name()].join(", ");
            let _ = writeln!(text, "{names} is absent: {}", absent.reason);
        }
    }
    text
}

fn heading(case: Case) -> &'static str {
    match case {
        Case::Short => {
            "short connections, 64 at a time; asked of local: a median ratio of 0.97, within that of plain-again"
        }
        Case::Locality => {
            "800 connections a second, each worker on a CPU of its own; asked of local: 99 % on the SYN's CPU, shares of \
             45 to 55 %"
        }
        Case::Blocked => {
            "800 connections a second, of which 0.5 % block their worker for 20 ms (latencies are the others'); asked of \
             local: p99 no more than plain's"
        }
        Case::Stopped => {
            "800 connections a second, a worker stopped for 1 s; asked of local: p99 of 10 ms, at most 10 slower than 10 ms; \
             stuck: slower than 400 ms"
        }
        Case::Killed => {
            "800 connections a second, a worker stopped for 0.5 s and killed, tcp_migrate_req 0; asked of local: no errors"
        }
    }
}

fn body(measurements: &[&Measurement]) -> comfy_table::Table {
    let mut table = with_columns([
        "server", "listener", "conn/s", "ratio", "min..max", "p50 ms", "p99 ms", "min..max", "slow", "stuck",
        "errors", "local", "share",
    ]);
    let mut sides: Vec<(Program, Variant)> =
        measurements.iter().map(|measurement| (measurement.program, measurement.variant)).collect();
    sides.sort_unstable();
    sides.dedup();
    for (program, variant) in sides {
        let of_program = |variant: Variant| {
            measurements.iter().filter(move |one| one.program == program && one.variant == variant).copied()
        };
        let figures = |figure: fn(&Measurement) -> f64| Spread::of(of_program(variant).map(figure));
        let ratios = Spread::of(of_program(variant).filter_map(|one| {
            let plain = of_program(Variant::Plain).find(|plain| plain.round == one.round)?;
            Some(one.outcome.connections_per_s / plain.outcome.connections_per_s)
        }));
        let most = |figure: fn(&Measurement) -> u64| of_program(variant).map(figure).max().unwrap_or(0);
        let milliseconds = |spread: Option<Spread>| {
            spread.map_or(String::new(), |spread| format!("{:.2}", spread.median / 1e3))
        };
        let p99 = figures(|one| one.outcome.p99_us);
        table.add_row([
            program.name().to_owned(),
            variant.name().to_owned(),
            figures(|one| one.outcome.connections_per_s)
                .map_or(String::new(), |spread| format!("{:.0}", spread.median)),
            ratios.map_or(String::new(), |ratio| format!("{:.3}", ratio.median)),
            ratios.map_or(String::new(), |ratio| format!("{:.2}..{:.2}", ratio.minimum, ratio.maximum)),
            milliseconds(figures(|one| one.outcome.p50_us)),
            milliseconds(p99),
            p99.map_or(String::new(), |p99| format!("{:.1}..{:.1}", p99.minimum / 1e3, p99.maximum / 1e3)),
            most(|one| one.outcome.slow).to_string(),
            most(|one| one.outcome.stuck).to_string(),
            most(|one| one.outcome.errors + one.outcome.unfinished).to_string(),
            percent(Spread::of(of_program(variant).filter_map(local_share))),
            percent(Spread::of(of_program(variant).filter_map(first_share))),
        ]);
    }
    align(&mut table, &[0, 1]);
    table
}

/// Of all that was accepted, what was accepted on the CPU of its SYN.
fn local_share(measurement: &Measurement) -> Option<f64> {
    share(measurement, |measurement| measurement.workers.iter().map(|worker| worker.local).sum())
}

/// Of all that was accepted, what the first worker accepted.
fn first_share(measurement: &Measurement) -> Option<f64> {
    share(measurement, |measurement| measurement.workers.first().map_or(0, |worker| worker.accepted))
}

fn share(measurement: &Measurement, part: fn(&Measurement) -> u64) -> Option<f64> {
    let accepted: u64 = measurement.workers.iter().map(|worker| worker.accepted).sum();
    (accepted > 0).then(|| part(measurement) as f64 / accepted as f64)
}

fn percent(spread: Option<Spread>) -> String {
    spread.map_or(String::new(), |spread| {
        let [median, least, most] =
            [spread.median, spread.minimum, spread.maximum].map(|share| share * 100.0);
        format!("{median:.1} % ({least:.1}..{most:.1})")
    })
}
