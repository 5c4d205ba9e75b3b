//! The client at a rate, against servers of std threads: what is due is sent and accounted for.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bench::client::{Engine, Latencies, Load, Options, Sample};
use bench::cpu::CpuSet;

const SIZE: usize = 64;

/// One request a millisecond.
const RATE: u64 = 1000;

const CONNECTIONS: usize = 4;

const WINDOW: Duration = Duration::from_millis(200);

#[test]
fn each_request_that_is_due_is_sent_once() {
    for engine in engines() {
        for transactions in [1, 3] {
            let server = Server::start(answer_all);
            let run = run(engine, &server, transactions);
            assert_eq!(run.latencies.response.len(), due(WINDOW), "{engine:?}");
            let sent = server.requests.load(Ordering::Relaxed);
            assert!(sent >= run.sample.transactions, "{engine:?}: {sent}");
            assert!(sent <= due(run.took) + CONNECTIONS as u64, "{engine:?}: {sent} in {:?}", run.took);
            assert_eq!(run.sample.failures, 0, "{engine:?}");
            let opened = server.connections.load(Ordering::Relaxed);
            assert!(opened >= run.sample.transactions / u64::from(transactions), "{engine:?}: {opened}");
        }
    }
}

#[test]
fn a_server_that_never_answers_is_held_against_it() {
    for engine in engines() {
        let server = Server::start(|_, _| thread::park());
        let run = run(engine, &server, 10);
        let Latencies { response, unanswered, .. } = &run.latencies;
        assert_eq!((response.len(), *unanswered), (due(WINDOW), due(WINDOW)), "{engine:?}");
        // Each has at least waited since the window ended, and the first since it began.
        let least = |time: Duration| time.as_nanos() as u64 * 99 / 100;
        assert!(response.min() >= least(run.since_window), "{engine:?}: {}", response.min());
        let first = run.since_window + WINDOW - Duration::from_millis(1);
        assert!(response.max() >= least(first), "{engine:?}: {}", response.max());
    }
}

#[test]
fn a_request_whose_connection_fails_is_made_again() {
    for engine in engines() {
        let server = Server::start(|stream, server| match server.connections.load(Ordering::Relaxed) % 3 {
            // Before the request is read: a reset; after it: an end of file.
            0 => {}
            1 => drop(stream.read_exact(&mut [0; SIZE])),
            _ => answer_all(stream, server),
        });
        let run = run(engine, &server, 2);
        assert_eq!(run.latencies.response.len(), due(WINDOW), "{engine:?}");
        assert!(run.sample.failures > 0, "{engine:?}");
        assert!(run.sample.transactions > 0, "{engine:?}");
    }
}

/// Requests due in some time.
fn due(time: Duration) -> u64 {
    time.as_nanos().div_ceil(1_000_000_000 / u128::from(RATE)) as u64
}

struct Run {
    latencies: Latencies,
    sample: Sample,
    /// From before the start to after the end.
    took: Duration,
    /// Between the end of the window and the end of the load.
    since_window: Duration,
}

fn run(engine: Engine, server: &Server, transactions: u32) -> Run {
    let began = Instant::now();
    let load = Load::start(&Options {
        engine,
        target: server.address,
        transactions,
        size: SIZE,
        connections: CONNECTIONS,
        cpus: CpuSet::allowed().unwrap(),
        rate: Some(RATE),
        spin: transactions == 1,
        warm_up: Duration::from_millis(20),
        window: WINDOW,
    })
    .unwrap();
    let to = load.window().end;
    thread::sleep(to.saturating_duration_since(Instant::now()) + Duration::from_millis(20));
    let sample = load.sample().unwrap();
    let since_window = to.elapsed();
    let latencies = load.stop().unwrap();
    Run { latencies, sample, took: began.elapsed(), since_window }
}

/// The clients that this machine permits.
fn engines() -> Vec<Engine> {
    match Engine::best(CONNECTIONS) {
        Engine::IoUring => vec![Engine::IoUring, Engine::Epoll],
        Engine::Epoll => {
            println!("SKIPPED the io_uring client: io_uring is not permitted here");
            vec![Engine::Epoll]
        }
    }
}

/// A listening socket and a thread for each of its connections.
struct Server {
    address: SocketAddr,
    requests: AtomicU64,
    connections: AtomicU64,
}

impl Server {
    fn start(serve: fn(&mut TcpStream, &Server)) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Arc::new(Self {
            address: listener.local_addr().unwrap(),
            requests: AtomicU64::new(0),
            connections: AtomicU64::new(0),
        });
        let shared = server.clone();
        thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                shared.connections.fetch_add(1, Ordering::Relaxed);
                let server = shared.clone();
                thread::spawn(move || serve(&mut stream, &server));
            }
        });
        server
    }
}

fn answer_all(stream: &mut TcpStream, server: &Server) {
    stream.set_nodelay(true).unwrap();
    let mut request = [0; SIZE];
    loop {
        match stream.read_exact(&mut request) {
            Ok(()) => {}
            Err(error) => {
                let ends = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset];
                assert!(ends.contains(&error.kind()), "{error}");
                return;
            }
        }
        server.requests.fetch_add(1, Ordering::Relaxed);
        if stream.write_all(&request).is_err() {
            return;
        }
    }
}
