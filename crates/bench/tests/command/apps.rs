//! `megapipe-bench apps`: programs of the distribution, as far as they are installed.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use bench::apps::{self, App};
use bench::cpu::CpuSet;
use bench::pair::Placement;
use serde_json::Value;

use crate::support::{
    Files, bench, children, command, of_kind, product, records, signal, table, until, wait,
};

/// Whether a program is missing that a test takes; the product is there.
fn lacks(test: &str, app: App) -> bool {
    product();
    let missing = apps::missing(app.programs());
    if !missing.is_empty() {
        println!("SKIPPED {test}: not installed: {}", missing.join(", "));
    }
    !missing.is_empty()
}

/// The shortest run of one server, closed and open loop. Whether anything is promoted on a busy machine in so short
/// a time is not for this test: a run says so itself, by its exit status.
fn measures(app: App, operation: &str, placement: Placement, transports: &[&str]) {
    if placement.cpus() > CpuSet::allowed().unwrap().len() {
        println!("SKIPPED bench apps --apps {} --placements {}: one CPU", app.name(), placement.name());
        return;
    }
    let placement = placement.name();
    if app == App::Jdbc && std::env::var_os("MEGAPIPE_TEST_JAVA").is_none() {
        println!(
            "SKIPPED bench apps --apps jdbc: MEGAPIPE_TEST_JAVA is not set; a JVM takes the CPUs of the tests beside it"
        );
        return;
    }
    if lacks(&format!("bench apps --apps {} --operations {operation}", app.name()), app) {
        return;
    }
    let seconds = if app == App::Jdbc { "1" } else { "0.2" }; // Java is still compiling when it starts
    let files = Files::new(&format!("apps-{}-{operation}-{placement}", app.name()));
    let what = format!("--apps {app} --operations {operation} --connections 2 --placements {placement}");
    let output =
        files.bench(&format!("apps {what} --seconds {seconds} --rounds 1 --open-loop")).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let records = records(&files.json);
    let absent = of_kind(&records, "absent");
    assert!(absent.is_empty(), "{absent:?}");
    assert!(output.status.success() || errors.contains("nothing was promoted"), "{errors}");
    let header = &records[0];
    for name in app.programs() {
        assert!(header["versions"][name].is_string(), "{header}");
    }
    let measured = of_kind(&records, "app");
    let mut seen = Vec::new();
    for record in measured {
        let transport = record["transport"].as_str().unwrap();
        seen.push(transport);
        let figure = |field: &str| record[field].as_f64().unwrap_or_default();
        assert!(figure("requests_per_s") > 0.0 && figure("client_cpu_ns_per_request") > 0.0, "{record}");
        assert!(figure("server_cpu_ns_per_request") > 0.0, "{record}");
        assert!(record["p99_us"].is_null() || figure("p50_us") <= figure("p99_us"), "{record}");
        assert_eq!(record["operation"], operation);
        // Both libraries have spoken, or there was none.
        let both = transport == "megapipe";
        assert_eq!(record["promoted"].is_u64(), both || transport == "client-only", "{record}");
        assert_eq!(record["server_promoted"].is_u64(), both || transport == "server-only", "{record}");
        let nothing = |field: &str| record[field].as_u64().unwrap_or_default() == 0;
        assert!(both || (nothing("promoted") && nothing("server_promoted")), "{record}");
    }
    assert_eq!(seen, transports);
    let rate = |record: &&Value| record["rate"].as_f64();
    let (closed, open): (Vec<&Value>, Vec<&Value>) =
        of_kind(&records, "app").into_iter().partition(|record| record["pacing"] == "closed");
    assert!(closed.iter().all(|record| record["rate"].is_null()), "{closed:?}");
    let half = closed[0]["requests_per_s"].as_f64().unwrap() / 2.0;
    assert!(open.iter().all(|record| rate(record) == Some(half)), "{closed:?} {open:?}");
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains(app.name()) && table.contains(placement), "{table}");
    assert!(files.svg().contains("requests/s"));
}

/// One test each: a server, what is asked of it, where both run, and what is compared in the two loops.
macro_rules! measured {
    ($($name:ident: $app:ident, [$($operation:literal),*], $placement:ident, $transports:expr;)*) => {
        $(
            #[test]
            fn $name() {
                for operation in [$($operation),*] {
                    measures(App::$app, operation, Placement::$placement, $transports);
                }
            }
        )*
    };
}

measured! {
    redis_is_measured: Redis, ["get"], OneCore, WITH_UNIX;
    memcached_is_measured: Memcached, ["get"], OneCore, WITH_UNIX;
    nginx_is_measured: Nginx, ["short"], OneCore, &["tcp", "megapipe"];
    haproxy_is_measured: Haproxy, ["keep-alive"], OneCore, PLAIN;
    postgres_is_measured: Postgres, ["select"], OneCore, WITH_UNIX;
    mariadb_is_measured: Mariadb, ["select"], OneCore, WITH_UNIX;
    redis_py_is_measured: RedisPy, ["get", "large", "pipeline", "publish"], OneCore, PLAIN;
    psycopg2_is_measured: Psycopg2, ["select"], OneCore, PLAIN;
    jdbc_is_measured: Jdbc, ["select"], OneCore, PLAIN;
    phpredis_is_measured: Phpredis, ["get"], OneCore, PLAIN;
    grpc_is_measured: Grpc, ["unary"], OneCore, PLAIN;
    gunicorn_behind_nginx_is_measured: Gunicorn, ["keep-alive"], OneCore, PLAIN;
    node_behind_haproxy_is_measured: HaproxyNode, ["keep-alive"], OneCore, PLAIN;
    either_end_alone_is_measured: Redis, ["get"], TwoCores,
        &["tcp", "megapipe", "client-only", "server-only", "unix", "tcp", "megapipe"];
}

const MEMCACHED: &str =
    "apps --apps memcached --operations get --connections 1 --placements one-core --rounds 1";

const PLAIN: &[&str] = &["tcp", "megapipe", "tcp", "megapipe"];

const WITH_UNIX: &[&str] = &["tcp", "megapipe", "unix", "tcp", "megapipe"];

/// Messages of two sizes, and shares of the rate that plain TCP bore with each.
#[test]
fn sizes_and_rates_are_measured() {
    product();
    let files = Files::new("apps-rates");
    let what = "--apps waits --operations by-read --connections 2 --placements one-core --transports tcp --sizes 64,4096";
    let output = files
        .bench(&format!("apps {what} --seconds 0.1 --rounds 1 --open-loop half,quarter"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(["closed", "open", "quarter"].iter().all(|pace| table.contains(pace)), "{table}");
    let records = records(&files.json);
    let number = |record: &Value, field: &str| record[field].as_f64().unwrap();
    for size in [64.0, 4096.0] {
        let of_size = of_kind(&records, "app").into_iter().filter(|one| number(one, "size") == size);
        let [closed, half, quarter]: [&Value; 3] = of_size.collect::<Vec<_>>().try_into().unwrap();
        let plain = number(closed, "requests_per_s");
        assert_eq!([half, quarter].map(|one| number(one, "rate")), [plain / 2.0, plain / 4.0]);
        assert_eq!([half, quarter].map(|one| one["pacing"].as_str().unwrap()), ["open", "quarter"]);
    }
    let refused = bench("apps --open-loop third").output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("the rates are half and quarter"));
}

#[test]
fn what_is_not_installed_is_named_and_left_out() {
    product();
    if testkit::programs::find("memcached").is_some_and(|place| place.ends_with("sbin/memcached")) {
        println!("SKIPPED what_is_not_installed_is_named_and_left_out: memcached is found without PATH");
        return;
    }
    let mut run = bench("apps --apps memcached --rounds 1 --seconds 0.05 --placements one-core");
    let output = run.env("PATH", "/nonexistent").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("memcached is absent: not installed: memcached"), "{table}");
}

#[test]
fn a_run_in_which_nothing_is_promoted_fails_and_says_so() {
    if lacks("a_run_in_which_nothing_is_promoted_fails_and_says_so", App::Memcached) {
        return;
    }
    let mut run = bench(&format!("{MEMCACHED} --seconds 0.05"));
    let output = run.env("MEGAPIPE_PROMOTE", "observe").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("memcached get, 1 connections, one-core: nothing was promoted"), "{errors}");
}

#[test]
fn what_the_library_costs_is_measured_beside() {
    product();
    let files = Files::new("apps-overhead");
    let table = table(&mut files.bench("apps --apps overhead --rounds 1"));
    let records = records(&files.json);
    let seen = of_kind(&records, "overhead");
    assert!(seen.iter().all(|record| record["ns"].as_f64().unwrap() > 0.0), "{seen:?}");
    let seen = seen.iter().map(|record| (record["cost"].as_str().unwrap(), record["preloaded"] == true));
    let costs = ["read", "write", "start-up"];
    let mut expected = costs.map(|cost| (cost, false)).to_vec();
    expected.extend(costs.map(|cost| (cost, true)));
    let mut seen = seen.collect::<Vec<_>>();
    seen.sort_by_key(|(_, preloaded)| *preloaded);
    assert_eq!(seen, expected);
    assert!(table.contains(" start-up "), "{table}");
}

#[test]
fn ctrl_c_ends_servers_and_monitor_and_removes_their_files() {
    if lacks("ctrl_c_ends_servers_and_monitor_and_removes_their_files", App::Memcached) {
        return;
    }
    let temporary = Path::new(env!("CARGO_TARGET_TMPDIR")).join("apps-interrupt");
    let _ = fs::remove_dir_all(&temporary); // of an earlier run, if there was one
    fs::create_dir(&temporary).unwrap();
    for last in [libc::SIGINT, libc::SIGKILL] {
        let mut run = bench(&format!("{MEMCACHED} --seconds 60"))
            .env("TMPDIR", &temporary)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut seen = Vec::new();
        until(|| {
            seen = children(run.id());
            let all = seen.iter().map(|&process| command(process)).collect::<String>();
            ["monitor\0", "memcached\0", "part\0load\0"].iter().all(|name| all.contains(name))
        });
        signal(run.id(), last);
        let status = wait(&mut run);
        until(|| seen.iter().all(|&process| command(process).is_empty()));
        if last == libc::SIGINT {
            assert_eq!(status.code(), Some(130));
            let mut notes = String::new();
            run.stderr.take().unwrap().read_to_string(&mut notes).unwrap();
            assert!(notes.contains("stopped: 0 of 3 measurements kept"), "{notes}");
            assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
        }
    }
    fs::remove_dir_all(&temporary).unwrap(); // nobody is left to do it after SIGKILL
}
