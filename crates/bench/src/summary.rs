//! Rounds made into figures: medians, and each engine beside the baseline.

use crate::engine::Engine;
use crate::record::{Absent, Floor, Limit, Measurement, Record};

/// All measurements of one point.
#[derive(Debug)]
pub struct Group {
    /// Transactions per connection.
    pub transactions: u32,
    /// Bytes of a message.
    pub size: usize,
    /// Concurrent connections.
    pub connections: usize,
    /// CPUs of the server.
    pub server_cpus: Vec<usize>,
    /// Requests per second; `None` for a closed loop.
    pub rate: Option<u64>,
    /// One row per engine, in the order of [`Engine::ALL`].
    pub rows: Vec<Row>,
    /// The better of the epoll baselines by server CPU, if one was measured.
    pub baseline: Option<Engine>,
    /// The median of each of the kernel's costs at this size.
    pub floor: Option<Floor>,
}

impl Group {
    /// The row of an engine, if it was measured here.
    pub fn row(&self, engine: Engine) -> Option<&Row> {
        self.rows.iter().find(|row| row.engine == engine)
    }

    /// The baseline for which a value is the smallest, and that value.
    pub fn best_baseline(&self, value: impl Fn(&Row) -> f64) -> Option<(Engine, f64)> {
        let baselines = self.rows.iter().filter(|row| Engine::BASELINES.contains(&row.engine));
        let values = baselines.map(|row| (row.engine, value(row)));
        values.min_by(|(_, a), (_, b)| f64::total_cmp(a, b))
    }
}

/// One engine at one point, over all rounds.
#[derive(Debug)]
pub struct Row {
    /// The server.
    pub engine: Engine,
    /// Server CPU time per transaction, nanoseconds.
    pub server_cpu_ns: Spread,
    /// The median of that over the median of the baseline.
    pub ratio: Option<f64>,
    /// Transactions per second.
    pub transactions_per_s: Spread,
    /// System calls of the server per transaction.
    pub syscalls: Option<Spread>,
    /// Latency quantiles, microseconds.
    pub p50_us: Spread,
    /// 99th percentile.
    pub p99_us: Spread,
    /// 99.9th percentile.
    pub p999_us: Spread,
    /// Share of its CPUs that the server used.
    pub server_utilization: Spread,
    /// Share of its CPUs that the client used.
    pub client_utilization: Spread,
    /// Share of the time in which the server waited while something else had its CPU.
    pub server_waited: Option<Spread>,
    /// Failed connections, summed over the rounds.
    pub failures: u64,
    /// With a rate: the client's own lag, microseconds.
    pub client_lag_us: Option<Spread>,
    /// With a rate: rounds in which the client, and in which the server fell behind.
    pub limited_by: [u32; 2],
}

/// The middle and the ends of several values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The middle value, or the mean of the two in the middle.
    pub median: f64,
    /// The smallest value.
    pub minimum: f64,
    /// The largest value.
    pub maximum: f64,
}

impl Spread {
    /// The spread of some values; `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values = values.into_iter().collect::<Vec<_>>();
        values.sort_by(f64::total_cmp);
        let (&minimum, &maximum) = (values.first()?, values.last()?);
        let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Self { median: (low + high) / 2.0, minimum, maximum })
    }
}

/// The groups of a run, in the order in which their points were first measured.
pub fn groups(records: &[Record]) -> Vec<Group> {
    let mut groups: Vec<(Group, Vec<&Measurement>)> = Vec::new();
    for record in records {
        let Record::Measurement(measurement) = record else {
            continue;
        };
        let known = groups.iter_mut().find(|(group, _)| {
            (group.transactions, group.size, group.connections)
                == (measurement.transactions, measurement.size, measurement.connections)
                && group.server_cpus == measurement.server_cpus
                && group.rate == measurement.rate
        });
        match known {
            Some((_, measurements)) => measurements.push(measurement),
            None => groups.push((
                Group {
                    transactions: measurement.transactions,
                    size: measurement.size,
                    connections: measurement.connections,
                    server_cpus: measurement.server_cpus.clone(),
                    rate: measurement.rate,
                    rows: Vec::new(),
                    baseline: None,
                    floor: floor(records, measurement.size),
                },
                vec![measurement],
            )),
        }
    }
    groups
        .into_iter()
        .map(|(mut group, measurements)| {
            group.rows = Engine::ALL.iter().filter_map(|&engine| row(engine, &measurements)).collect();
            compare(&mut group);
            group
        })
        .collect()
}

/// The engines that could not be measured, and why.
pub fn absent(records: &[Record]) -> Vec<&Absent> {
    let absent = records.iter().filter_map(|record| match record {
        Record::Absent(absent) => Some(absent),
        _ => None,
    });
    absent.collect()
}

fn row(engine: Engine, measurements: &[&Measurement]) -> Option<Row> {
    let mine = || measurements.iter().filter(|measurement| measurement.engine == engine);
    let spread = |value: fn(&Measurement) -> f64| Spread::of(mine().map(|m| value(m)));
    Some(Row {
        engine,
        server_cpu_ns: spread(|m| m.server_cpu_ns_per_transaction)?,
        ratio: None,
        transactions_per_s: spread(|m| m.transactions_per_s)?,
        syscalls: Spread::of(mine().filter_map(|m| m.syscalls_per_transaction)),
        p50_us: spread(|m| m.p50_us)?,
        p99_us: spread(|m| m.p99_us)?,
        p999_us: spread(|m| m.p999_us)?,
        server_utilization: spread(|m| m.server_utilization)?,
        client_utilization: spread(|m| m.client_utilization)?,
        server_waited: Spread::of(mine().filter_map(|m| m.server_waited)),
        failures: mine().map(|m| m.failures).sum(),
        client_lag_us: Spread::of(mine().filter_map(|m| m.client_lag_us)),
        limited_by: [Limit::Client, Limit::Server]
            .map(|limit| mine().filter(|m| m.limit == Some(limit)).count() as u32),
    })
}

fn compare(group: &mut Group) {
    let best = group.best_baseline(|row| row.server_cpu_ns.median);
    let Some((engine, cost)) = best else { return };
    group.baseline = Some(engine);
    for row in &mut group.rows {
        row.ratio = Some(row.server_cpu_ns.median / cost);
    }
}

fn floor(records: &[Record], size: usize) -> Option<Floor> {
    let floors = || {
        records.iter().filter_map(|record| match record {
            Record::Floor(floor) if floor.size == size => Some(floor),
            _ => None,
        })
    };
    let median = |value: fn(&Floor) -> f64| Some(Spread::of(floors().map(value))?.median);
    Some(Floor {
        size,
        round: 0,
        accept_ns: median(|floor| floor.accept_ns)?,
        first_recv_ns: median(|floor| floor.first_recv_ns)?,
        first_send_ns: median(|floor| floor.first_send_ns)?,
        recv_ns: median(|floor| floor.recv_ns)?,
        send_ns: median(|floor| floor.send_ns)?,
        close_ns: median(|floor| floor.close_ns)?,
        entry_ns: median(|floor| floor.entry_ns)?,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn measurement(engine: Engine, round: u32, cpu_ns: f64) -> Record {
        Record::Measurement(closed(engine, round, cpu_ns))
    }

    pub(crate) fn paced(engine: Engine, p99_us: f64, limit: Option<Limit>) -> Record {
        Record::Measurement(Measurement {
            p99_us,
            rate: Some(40_000),
            transactions_per_s: 39_990.0,
            requests_due: Some(40_000),
            requests_unanswered: Some(0),
            client_lag_us: Some(3.0),
            limit,
            ..closed(engine, 1, 4000.0)
        })
    }

    fn closed(engine: Engine, round: u32, cpu_ns: f64) -> Measurement {
        Measurement {
            engine,
            transactions: 10,
            size: 64,
            connections: 256,
            server_cpus: vec![0],
            round,
            transactions_per_s: 1e9 / cpu_ns,
            connections_per_s: 1e8 / cpu_ns,
            server_cpu_ns_per_transaction: cpu_ns,
            syscalls_per_transaction: None,
            p50_us: 100.0,
            p99_us: 200.0,
            p999_us: 300.0,
            client_cpu_ns_per_transaction: cpu_ns,
            server_utilization: 1.0,
            client_utilization: 0.9,
            server_waited: Some(0.0),
            failures: 0,
            rate: None,
            requests_due: None,
            requests_unanswered: None,
            client_lag_us: None,
            limit: None,
        }
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        let spread = Spread::of([4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((spread.median, spread.minimum, spread.maximum), (2.5, 1.0, 4.0));
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn engines_are_compared_with_the_better_baseline() {
        let records = [
            measurement(Engine::UringPlain, 1, 3000.0),
            measurement(Engine::EpollShared, 1, 4100.0),
            measurement(Engine::EpollReuseport, 1, 4000.0),
            measurement(Engine::UringPlain, 2, 3200.0),
        ];
        let groups = groups(&records);
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].baseline, Some(Engine::EpollReuseport));
        let uring = groups[0].rows.last().unwrap();
        assert_eq!(uring.engine, Engine::UringPlain);
        assert_eq!(uring.ratio, Some(3100.0 / 4000.0));
        assert_eq!(groups[0].rows[0].ratio, Some(4100.0 / 4000.0));
    }

    #[test]
    fn a_paced_point_is_no_closed_loop_point() {
        let records = [measurement(Engine::EpollShared, 1, 4000.0), paced(Engine::EpollShared, 90.0, None)];
        let groups = groups(&records);
        let rates = groups.iter().map(|group| (group.rate, group.rows[0].p99_us.median));
        assert_eq!(rates.collect::<Vec<_>>(), [(None, 200.0), (Some(40_000), 90.0)]);
    }
}
