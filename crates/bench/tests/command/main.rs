//! `megapipe-bench` as a user and its own servers meet it: real processes, real sockets.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use bench::apps::App;
use bench::cpu::CpuSet;
use bench::engine::Engine;
use bench::part::Part;
use bench::peer::Options;
use serde_json::Value;
use testkit::confine;
use testkit::process::PATIENCE;

mod apps;
mod mmsg;
mod pair;
mod support;
mod tcp;

use support::{Files, PROGRAM, bench, of_kind, product, records, signal, table, until, wait, with_file_size};

#[test]
fn every_engine_answers_whole_messages_only() {
    for_every_engine(16 << 10, |server| {
        let mut partial = server.connect();
        let request = vec![7; server.size];
        partial.write_all(&request[..1]).unwrap();
        partial.write_all(&request[1..server.size - 1]).unwrap();
        // Meanwhile another connection is served, twice at once.
        let mut other = server.connect();
        other.write_all(&[&request[..], &request[..]].concat()).unwrap();
        server.expect_responses(&mut other, 2);
        partial.set_nonblocking(true).unwrap();
        let early = partial.read(&mut [0]).unwrap_err();
        assert_eq!(early.kind(), io::ErrorKind::WouldBlock, "{}", server.engine);
        partial.set_nonblocking(false).unwrap();
        partial.write_all(&request[server.size - 1..]).unwrap();
        server.expect_responses(&mut partial, 1);
    });
}

#[test]
fn every_engine_sends_to_a_client_that_reads_late() {
    for_every_engine(16 << 10, |server| {
        // More than the socket buffers of both ends hold, so that sends are taken in part.
        const REQUESTS: usize = 1000;
        let mut stream = server.connect();
        let mut writer = stream.try_clone().unwrap();
        let request = vec![7; server.size];
        let writing = thread::spawn(move || {
            for _ in 0..REQUESTS {
                writer.write_all(&request).unwrap();
            }
        });
        thread::sleep(Duration::from_millis(100)); // gives the buffers a chance to fill
        server.expect_responses(&mut stream, REQUESTS);
        writing.join().unwrap();
    });
}

#[test]
fn every_engine_survives_resets_and_closes_with_its_client() {
    for_every_engine(64, |server| {
        let request = vec![7; server.size];
        // More connections than any engine has room for at once.
        for _ in 0..300 {
            let mut stream = server.connect();
            stream.write_all(&request).unwrap();
            server.expect_responses(&mut stream, 1);
            socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        }
        let mut last = server.connect();
        last.write_all(&request).unwrap();
        server.expect_responses(&mut last, 1);
        last.shutdown(Shutdown::Write).unwrap();
        assert_eq!(last.read(&mut [0]).unwrap(), 0, "{}", server.engine);
        drop(last);
        let descriptors = server.descriptors();
        assert!(descriptors < 40, "{}: {descriptors} open", server.engine);
    });
}

#[test]
fn a_run_leaves_a_header_and_a_record_per_engine_point_and_round() {
    let files = Files::new("schema");
    let what = "rpc --engines epoll-shared,epoll-reuseport --transactions 1,10 --connections 8";
    let table = table(&mut files.bench(&format!("{what} --seconds 0.3 --rounds 2")));
    let records = records(&files.json);
    let header = &records[0];
    assert!(header["mitigations"].is_object());

    let mut seen = Vec::new();
    for record in of_kind(&records, "measurement") {
        for field in [
            "transactions_per_s",
            "server_cpu_ns_per_transaction",
            "p50_us",
            "p99_us",
            "p999_us",
            "client_cpu_ns_per_transaction",
        ] {
            assert!(record[field].as_f64().unwrap() > 0.0, "{field} in {record}");
        }
        let syscalls = &record["syscalls_per_transaction"];
        assert_eq!(syscalls.is_null(), header["syscall_counter"].is_null());
        assert_eq!((&record["size"], &record["connections"]), (&64.into(), &8.into()));
        assert_eq!(record["failures"], 0);
        seen.push((
            record["engine"].as_str().unwrap().to_owned(),
            record["transactions"].as_u64().unwrap(),
            record["round"].as_u64().unwrap(),
        ));
    }
    // Engines take turns, and the second round starts with the other one.
    let expected = [
        ("epoll-shared", 1, 1),
        ("epoll-reuseport", 1, 1),
        ("epoll-shared", 10, 1),
        ("epoll-reuseport", 10, 1),
        ("epoll-reuseport", 1, 2),
        ("epoll-shared", 1, 2),
        ("epoll-reuseport", 10, 2),
        ("epoll-shared", 10, 2),
    ];
    assert_eq!(seen, expected.map(|(engine, transactions, round)| (engine.to_owned(), transactions, round)));
    assert_eq!(of_kind(&records, "floor").len(), 2);

    assert!(table.contains("epoll-reuseport") && table.contains(" floor "), "{table}");
    let svg = files.svg();
    assert!(svg.contains("requests/connection"), "{svg}");
}

#[test]
fn ctrl_c_keeps_what_was_measured() {
    let files = Files::new("interrupt");
    let what = "rpc --engines epoll-shared,epoll-reuseport --connections 4 --transactions 10";
    let mut run = files.bench(&format!("{what} --seconds 0.05 --rounds 100000"));
    let run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let seen = || fs::read_to_string(&files.json).unwrap_or_default();
    until(|| seen().matches(r#""record":"measurement""#).count() >= 2);
    signal(run.id(), libc::SIGINT);
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let [table, notes] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    let kept = of_kind(&records(&files.json), "measurement").len();
    assert!(notes.contains(&format!("stopped: {kept} of 200000")), "{notes}");
    assert!(table.contains("epoll-shared"), "{table}");
}

#[test]
fn a_run_at_a_rate_has_the_requests_of_its_schedule() {
    let files = Files::new("rate");
    let what = "rpc --engines epoll-shared,megapipe-epoll --transactions 1,10 --connections 8";
    let table = table(&mut files.bench(&format!("{what} --seconds 0.1 --rounds 1 --rate 2000")));
    let records = records(&files.json);
    let measurements = of_kind(&records, "measurement");
    assert_eq!(measurements.len(), 4);
    for record in measurements {
        assert_eq!((&record["rate"], &record["requests_due"]), (&2000.into(), &200.into()), "{record}");
        assert!(record["client_lag_us"].is_f64() && record["requests_unanswered"].is_u64(), "{record}");
        let limit = &record["limit"];
        assert!([Value::Null, "client".into(), "server".into()].contains(limit), "{record}");
        assert!(record["p50_us"].as_f64() <= record["p99_us"].as_f64(), "{record}");
    }
    assert!(table.contains("loop open") && table.contains(" 2000 "), "{table}");
    assert!(files.svg().contains("p99 us"));
}

#[test]
fn half_the_rate_is_that_of_the_better_epoll_server_for_all() {
    let files = Files::new("half");
    let what = "rpc --engines megapipe-epoll,epoll-shared,epoll-reuseport --rate half --transactions 10";
    table(&mut files.bench(&format!("{what} --connections 8 --seconds 0.1 --rounds 2")));
    let records = records(&files.json);
    let measurements = of_kind(&records, "measurement");
    let (closed, paced) = measurements.split_at(2);
    let mut best: f64 = 0.0;
    for record in closed {
        assert!(record["rate"].is_null() && record["requests_due"].is_null(), "{record}");
        assert!(record["engine"].as_str().unwrap().starts_with("epoll-"), "{record}");
        best = best.max(record["transactions_per_s"].as_f64().unwrap());
    }
    assert_eq!(paced.len(), 6);
    for record in paced {
        assert_eq!(record["rate"], (best / 2.0) as u64, "{record}");
    }
}

#[test]
fn what_cannot_be_measured_is_refused_with_the_remedy() {
    product();
    let cpu = CpuSet::allowed().unwrap().first();
    let one_cpu = format!("--placements two-cores --cpus {cpu}");
    let apps = App::ALL.iter().map(|app| app.name()).collect::<Vec<_>>().join(", ");
    for (scenario, arguments, words) in [
        ("rpc", "--engines select", "epoll-shared, epoll-reuseport, uring-plain"),
        ("rpc", "--rounds 0", "from 1 to 1000000"),
        ("rpc", "--connections 10001", "from 1 to 10000"),
        ("rpc", "--seconds nan", "from 0.05 to 3600"),
        ("rpc", "--rate most", "or half"),
        ("rpc", "--rate half --engines tokio", "add epoll-reuseport to --engines"),
        ("rpc", "--rate 10 --seconds 1", "give a higher --rate"),
        ("rpc", "--server-cpus 1023", "--server-cpus: CPU 1023 is not among"),
        ("rpc", "--client-cpus 1023", "--client-cpus: CPU 1023 is not among"),
        ("rpc", "--json -", "./- is a file"),
        ("pingpong", "--transports tcp,carrier-pigeon", "tcp-spin, unix, cacheline"),
        ("pingpong", "--transports memcpy", "memcpy is no part of pingpong"),
        ("stream", "--transports cacheline", "cacheline is no part of stream"),
        ("pingpong", "--transports cacheline --sizes 64", "up to 56 B"),
        ("pingpong", "--transports tcp-spin --placements asleep", "never asleep"),
        ("pingpong", "--placements somewhere", "two-cores, one-core, either, oversubscribed, asleep"),
        ("stream", &one_cpu, "two-cores takes two CPUs"),
        ("stream", "--cpus 0-2", "give two"),
        ("stream", "--cpus 1023 --placements one-core", "CPU 1023"),
        ("pingpong", "--sizes 1048577", "from 1 to 1048576"),
        ("mmsg", "--sockets 8 --ready 9", "give more --sockets"),
        ("mmsg", "--calls recvmsg --cpus 0", "give two"),
        ("apps", "--apps sendmail", &apps),
        ("apps", "--operations think", "keep-alive"),
        ("apps", "--placements asleep", "two-cores, one-core, either, oversubscribed"),
        ("apps", &one_cpu, "two-cores takes two CPUs"),
        ("apps", "--connections 501", "from 1 to 500"),
        ("apps", "--channels /nonexistent", "there is no /nonexistent/libmegapipe.so.0"),
    ] {
        let output = bench(&format!("{scenario} {arguments}")).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments}: {output:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(words), "{arguments}: {stderr}");
    }
    let output = bench("stream --json /nonexistent/records").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("/nonexistent/records"));
    let output = bench("apps").env("MEGAPIPE_PRELOAD", "/nonexistent/library.so").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("/nonexistent/library.so is not there"));
}

#[test]
fn a_full_disk_is_named_and_what_was_measured_is_shown() {
    // A file that can take the header and little more.
    let files = Files::new("full");
    let mut command = files.bench(&format!("{QUICK} --rounds 1000"));
    with_file_size(&mut command, 8192);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains(files.json.to_str().unwrap()) && stderr.contains("File too large"), "{stderr}");
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("epoll-shared"), "{table}");
}

#[test]
fn a_table_that_cannot_be_printed_is_an_error_but_a_gone_reader_is_none() {
    let quick = || {
        let mut command = bench(&format!("{QUICK} --rounds 1"));
        command.stderr(Stdio::piped());
        command
    };
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = quick().stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("standard output") && !stderr.contains("panicked"), "{stderr}");

    let mut run = quick().stdout(Stdio::piped()).spawn().unwrap();
    drop(run.stdout.take());
    assert!(wait(&mut run).success());
}

/// io_uring is forbidden, which is said once.
#[test]
fn a_run_in_which_nothing_could_be_measured_fails() {
    let mut command = bench("rpc --engines megapipe-uring --connections 4 --transactions 10");
    let output = confine::without_io_uring(&mut command).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let table = String::from_utf8(output.stdout).unwrap();
    let said = table.lines().find(|line| line.starts_with("megapipe-uring is absent: ")).unwrap();
    assert_eq!(said.matches("io_uring is forbidden").count(), 1, "{said}");
    assert_eq!(said.matches("megapipe-uring").count(), 1, "{said}");
}

const QUICK: &str = "rpc --engines epoll-shared --connections 4 --transactions 10 --seconds 0.05";

/// A server process of this test; dropping it ends it.
struct Server {
    engine: Engine,
    size: usize,
    child: Child,
    port: u16,
}

/// Runs `check` against each engine; names those that cannot run here.
fn for_every_engine(size: usize, check: fn(&Server)) {
    for &engine in Engine::ALL {
        match Server::start(engine, size) {
            Ok(server) => check(&server),
            Err(reason) => println!("SKIPPED {engine}: {reason}"),
        }
    }
}

/// What may keep an engine from running on some machine.
fn excuses(engine: Engine) -> &'static [&'static str] {
    match engine {
        peer if peer.is_peer() && !cfg!(feature = "peers") => {
            &["built without the feature `peers`: cargo build"]
        }
        Engine::Libevent | Engine::Libuv => &["built without its library"],
        Engine::MegapipeUring | Engine::MegapipePartitioned | Engine::UringPlain | Engine::Monoio => {
            &["not permitted", "not implemented"]
        }
        _ => &[],
    }
}

impl Server {
    fn start(engine: Engine, size: usize) -> Result<Self, String> {
        let listen = (Ipv4Addr::LOCALHOST, 0).into();
        let cpus = CpuSet::allowed().unwrap();
        let mut child = Options { engine, listen, size, connections: 8, cpus }
            .command(PROGRAM.as_ref())
            .env_remove("MEGAPIPE_ENGINE")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Some(port) = line.trim().strip_prefix("listening ") else {
            let mut reason = String::new();
            child.stderr.take().unwrap().read_to_string(&mut reason).unwrap();
            assert_eq!(wait(&mut child).code(), Some(1), "{engine}: {reason}");
            assert!(excuses(engine).iter().any(|words| reason.contains(words)), "{engine}: {reason}");
            return Err(reason);
        };
        let port = port.parse().unwrap();
        Ok(Self { engine, size, child, port })
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn expect_responses(&self, stream: &mut TcpStream, count: usize) {
        let mut response = vec![1; self.size];
        for _ in 0..count {
            if let Err(error) = stream.read_exact(&mut response) {
                panic!("{}: {error}", self.engine);
            }
        }
    }

    fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let ended = self.child.try_wait().unwrap();
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
        assert!(ended.is_none() || thread::panicking(), "{} ended by itself", self.engine);
    }
}
