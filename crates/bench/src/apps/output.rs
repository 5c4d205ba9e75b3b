//! What the clients print, made into figures.

use crate::load::Report;

/// What our own clients print.
pub(super) fn report(text: &str) -> Result<Report, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// `redis-benchmark --csv` after one test of so many requests. Versions before 7 tell the rate only.
pub(super) fn redis_benchmark(text: &str, requests: u64) -> Result<Report, String> {
    let rows = text.lines().map(|line| line.split(',').map(|cell| cell.trim().trim_matches('"')));
    let rows = rows.map(Iterator::collect::<Vec<_>>).filter(|row| row.len() > 1).collect::<Vec<_>>();
    let heads = rows.iter().find(|row| row[0] == "test");
    let row = rows.iter().find(|row| row[0] != "test" && number(row[1]).is_some());
    let row = row.ok_or_else(|| unknown("redis-benchmark", text))?;
    let column = |name: &str| {
        let place = heads?.iter().position(|head| *head == name)?;
        number(row.get(place)?).map(|milliseconds| milliseconds * 1e3)
    };
    Ok(Report {
        requests_per_s: number(row[1]).ok_or_else(|| unknown("redis-benchmark", text))?,
        requests: requests as f64,
        p50_us: column("p50_latency_ms"),
        p99_us: column("p99_latency_ms"),
        ..Report::default()
    })
}

/// `wrk --latency`. Responses that are no success, and errors of sockets other than timeouts, fail it.
pub(super) fn wrk(text: &str) -> Result<Report, String> {
    let line = |start: &str| text.lines().map(str::trim).find_map(|line| line.strip_prefix(start));
    if let Some(count) = line("Non-2xx or 3xx responses:") {
        return Err(format!("wrk: {} responses were errors", count.trim()));
    }
    if let Some(errors) = line("Socket errors:")
        && !errors.split(',').all(|kind| kind.contains("timeout") || kind.trim().ends_with(" 0"))
    {
        return Err(format!("wrk: errors of sockets:{errors}"));
    }
    let requests_per_s = line("Requests/sec:").and_then(number);
    let made = text.lines().find_map(|line| line.trim().split_once(" requests in "));
    let requests = made.and_then(|(count, _)| number(count));
    match (requests_per_s, requests) {
        (Some(requests_per_s), Some(requests)) => Ok(Report {
            requests_per_s,
            requests,
            p50_us: line("50%").and_then(microseconds),
            p99_us: line("99%").and_then(microseconds),
            ..Report::default()
        }),
        _ => Err(unknown("wrk", text)),
    }
}

/// pgbench, and the lines of its log of transactions, whose third field is a time in microseconds.
pub(super) fn pgbench<'log>(text: &str, log: impl Iterator<Item = &'log str>) -> Result<Report, String> {
    let value = |start: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(start))?;
        number(rest.split_whitespace().next()?.split('/').next()?)
    };
    let failed = value("number of failed transactions:").unwrap_or_default();
    if failed > 0.0 {
        return Err(format!("pgbench: {failed} transactions failed"));
    }
    let mut times = log.filter_map(|line| number(line.split_whitespace().nth(2)?)).collect::<Vec<_>>();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times.get((times.len().saturating_sub(1) as f64 * share) as usize).copied();
    match (value("tps ="), value("number of transactions actually processed:")) {
        (Some(requests_per_s), Some(requests)) => {
            let p999_us = at(0.999).filter(|_| times.len() >= 1000); // else it would be their maximum
            let (p50_us, p99_us) = (at(0.5), at(0.99));
            Ok(Report { requests_per_s, requests, p50_us, p99_us, p999_us, ..Report::default() })
        }
        _ => Err(unknown("pgbench", text)),
    }
}

/// `sysbench --histogram=on`.
pub(super) fn sysbench(text: &str) -> Result<Report, String> {
    let value = |start: &str| text.lines().find_map(|line| line.trim().strip_prefix(start));
    let errors = value("ignored errors:").and_then(|rest| number(rest.split_whitespace().next()?));
    if errors.unwrap_or_default() > 0.0 {
        return Err(format!("sysbench: {} queries failed", errors.unwrap_or_default()));
    }
    let (Some(requests), Some(rate)) = value("queries:")
        .and_then(|rest| rest.split_once('('))
        .map(|(count, rate)| (number(count), rate.split_whitespace().next().and_then(number)))
        .unwrap_or_default()
    else {
        return Err(unknown("sysbench", text));
    };
    // A value in milliseconds, stars, and how often it was.
    let buckets = text.lines().filter_map(|line| {
        let (value, rest) = line.split_once('|')?;
        Some((number(value)? * 1e3, number(rest.split_whitespace().last()?)?))
    });
    let buckets = buckets.collect::<Vec<_>>();
    let all = buckets.iter().map(|(_, count)| count).sum::<f64>();
    let at = |share: f64| {
        let mut seen = 0.0;
        let holds = |(_, count): &&(f64, f64)| {
            seen += count;
            seen >= all * share
        };
        buckets.iter().find(holds).map(|(value, _)| *value)
    };
    let p999_us = at(0.999).filter(|_| all >= 1000.0); // else it would be their maximum
    let (p50_us, p99_us) = (at(0.5), at(0.99));
    Ok(Report { requests_per_s: rate, requests, p50_us, p99_us, p999_us, ..Report::default() })
}

/// The connections that were promoted, of each summary.
pub(super) fn promoted(log: &str) -> Vec<u64> {
    let counts = log.lines().filter_map(|line| {
        let counts = line.strip_prefix("megapipe: ")?.split_once("): ")?.1;
        let promoted = counts.split([',', ';']).find_map(|count| count.trim().strip_suffix(" promoted"))?;
        promoted.parse::<u64>().ok()
    });
    counts.collect()
}

fn number(text: &str) -> Option<f64> {
    text.trim().parse::<f64>().ok().filter(|number| number.is_finite())
}

/// `42.00us`, `2.81ms`, `1.02s` or `1.20m`.
fn microseconds(text: &str) -> Option<f64> {
    let text = text.trim();
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6), ("m", 60e6), ("h", 3600e6)];
    units.iter().find_map(|(unit, factor)| Some(number(text.strip_suffix(unit)?)? * factor))
}

fn unknown(client: &str, text: &str) -> String {
    let words = text.trim().lines().last().unwrap_or("nothing");
    format!("{client} said no figures, but: {words}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_benchmark_tells_a_row() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\
                    \"p99_latency_ms\",\"max_latency_ms\"\n\
                    \"GET\",\"49019.61\",\"0.021\",\"0.008\",\"0.023\",\"0.023\",\"0.031\",\"2.863\"\n";
        let load = redis_benchmark(text, 5000).unwrap();
        assert_eq!((load.requests_per_s, load.requests), (49019.61, 5000.0));
        assert_eq!((load.p50_us, load.p99_us), (Some(23.0), Some(31.0)));
        let old = redis_benchmark("\"SET\",\"45454.55\"\n", 10).unwrap();
        assert_eq!((old.requests_per_s, old.p50_us), (45454.55, None));
        let refused = "Could not connect to Redis at 127.0.0.1:17003: Connection refused\n";
        assert!(redis_benchmark(refused, 10).unwrap_err().contains("Connection refused"));
    }

    const WRK: &str = "\
Running 1s test @ http://127.0.0.1:17002/
  1 threads and 4 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   123.73us  448.15us   5.18ms   96.04%
    Req/Sec    66.53k     7.20k   73.96k    70.00%
  Latency Distribution
     50%   42.00us
     75%   48.00us
     90%   54.00us
     99%    2.81ms
  66131 requests in 1.00s, 9.65MB read
";

    #[test]
    fn wrk_tells_a_distribution() {
        let load = wrk(&format!("{WRK}Requests/sec:  66116.39\nTransfer/sec:      9.65MB\n")).unwrap();
        assert_eq!((load.requests_per_s, load.requests), (66116.39, 66131.0));
        assert_eq!((load.p50_us, load.p99_us), (Some(42.0), Some(2810.0)));
    }

    #[test]
    fn wrk_with_errors_has_no_figures() {
        let rest = "Requests/sec:  66116.39\n";
        let late = format!("{WRK}  Socket errors: connect 0, read 0, write 0, timeout 3\n{rest}");
        assert!(wrk(&late).is_ok());
        let reset = format!("{WRK}  Socket errors: connect 0, read 12, write 0, timeout 0\n{rest}");
        assert!(wrk(&reset).unwrap_err().contains("read 12"));
        let refused = format!("{WRK}  Non-2xx or 3xx responses: 17\n{rest}");
        assert!(wrk(&refused).unwrap_err().contains("17 responses"));
        assert!(wrk("unable to connect to 127.0.0.1:17003 Connection refused\n").is_err());
    }

    const PGBENCH: &str = "\
pgbench (15.18 (Debian 15.18-0+deb12u1))
transaction type: <builtin: select only>
scaling factor: 1
query mode: simple
number of clients: 4
number of threads: 1
maximum number of tries: 1
duration: 1 s
number of transactions actually processed: 37813
number of failed transactions: 0 (0.000%)
latency average = 0.103 ms
initial connection time = 25.883 ms
tps = 38679.735513 (without initial connection time)
";

    #[test]
    fn pgbench_tells_a_rate_and_its_log_the_times() {
        let log = "2 4 153 0 1795284540 212418\n2 5 129 0 1795284540 212565\n2 11 121 0 1795284540 213220\n";
        let load = pgbench(PGBENCH, log.lines()).unwrap();
        assert_eq!((load.requests_per_s, load.requests), (38679.735513, 37813.0));
        assert_eq!((load.p50_us, load.p99_us), (Some(129.0), Some(129.0)));
        assert_eq!(pgbench(PGBENCH, "".lines()).unwrap().p50_us, None);
        let failed = PGBENCH.replace("transactions: 0 (0.000%)", "transactions: 3 (0.010%)");
        assert!(pgbench(&failed, "".lines()).unwrap_err().contains("3 transactions"));
        assert!(pgbench("pgbench: error: connection failed\n", "".lines()).is_err());
    }

    const SYSBENCH: &str = "\
Latency histogram (values are in milliseconds)
       value  ------------- distribution ------------- count
       0.018 |**********************************       800
       0.047 |**                                       180
       0.104 |                                         15
       3.245 |                                         5
 \nSQL statistics:
    queries performed:
        read:                            1000
        write:                           0
        other:                           0
        total:                           1000
    transactions:                        1000   (69211.42 per sec.)
    queries:                             1000   (69211.42 per sec.)
    ignored errors:                      0      (0.00 per sec.)
    reconnects:                          0      (0.00 per sec.)
";

    #[test]
    fn sysbench_tells_a_rate_and_its_histogram_the_times() {
        let load = sysbench(SYSBENCH).unwrap();
        assert_eq!((load.requests_per_s, load.requests), (69211.42, 1000.0));
        assert_eq!((load.p50_us, load.p99_us, load.p999_us), (Some(18.0), Some(104.0), Some(3245.0)));
        let failed = SYSBENCH.replace("errors:                      0 ", "errors:                      3 ");
        assert!(sysbench(&failed).unwrap_err().contains("3 queries"));
        assert!(sysbench("FATAL: unable to connect to MySQL server\n").unwrap_err().contains("unable"));
    }

    #[test]
    fn each_process_has_a_summary() {
        let log = "megapipe: nginx (12): 50 connections, 48 promoted, 1 refused, 0 with I/O that was not seen, 0 broken\n\
                   megapipe: nginx (12): over shared memory 9 messages and 90 bytes sent, 9 messages\n\
                   megapipe: haproxy (13): 100 connections, 2 promoted; no monitor answered 3 times\n";
        assert_eq!(promoted(log), [48, 2]);
        assert!(promoted("something else\n").is_empty());
    }
}
