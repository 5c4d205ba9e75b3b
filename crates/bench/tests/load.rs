//! The load generator against servers of std threads: what is due is sent and accounted for, and whatever is no
//! right answer is a failure.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bench::cpu::CpuSet;
use bench::load::{self, Connections, Engine, Load, LoadError, Options, Outcome, Request, Sample, Target};

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
            assert_eq!(run.outcome.latencies.len(), due(WINDOW), "{engine:?}");
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
        let Outcome { latencies, unanswered, .. } = &run.outcome;
        assert_eq!((latencies.len(), *unanswered), (due(WINDOW), due(WINDOW)), "{engine:?}");
        // Each has at least waited since the window ended, and the first since it began.
        let least = |time: Duration| time.as_nanos() as u64 * 99 / 100;
        assert!(latencies.min() >= least(run.since_window), "{engine:?}: {}", latencies.min());
        let first = run.since_window + WINDOW - Duration::from_millis(1);
        assert!(latencies.max() >= least(first), "{engine:?}: {}", latencies.max());
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
        assert_eq!(run.outcome.latencies.len(), due(WINDOW), "{engine:?}");
        assert!(run.sample.failures > 0, "{engine:?}");
        assert!(run.sample.transactions > 0, "{engine:?}");
    }
}

#[test]
fn a_stall_counts_from_when_requests_were_due() {
    const STALL: Duration = Duration::from_millis(80);
    let server = Server::start(|stream, server| {
        // One connection: all that is due in the stall waits for it.
        while stream.read_exact(&mut [0; SIZE]).is_ok() {
            if server.requests.fetch_add(1, Ordering::Relaxed) == 50 {
                thread::sleep(STALL);
            }
            if stream.write_all(&[0; SIZE]).is_err() {
                return;
            }
        }
    });
    let asked = options(&server, Request::Echo(SIZE));
    let asked = Options { connections: 1, active: 1, rate: Some(RATE as f64), ..asked };
    let Outcome { latencies, answered, failures, .. } = load::run(&asked).unwrap();
    assert_eq!((latencies.len(), failures), (due(WINDOW), 0));
    assert!(answered <= due(WINDOW + Duration::from_millis(20)), "{answered}");
    // Measured from when they were sent, one of two hundred would be slow.
    assert!(latencies.value_at_quantile(0.9) >= STALL.as_nanos() as u64 / 2);
}

#[test]
fn answers_of_each_kind_are_found_whole() {
    let server = Server::start(|stream, _| {
        stream.set_nodelay(true).unwrap();
        let mut request = [0; 256];
        while let Ok(count @ 1..) = stream.read(&mut request) {
            let once = request[..count].ends_with(b"HTTP/1.0\r\nHost: megapipe\r\n\r\n");
            let value = "0123456789abcdef".repeat(4);
            let answer = match request[..count].split(|&byte| byte == b' ').next().unwrap() {
                b"get" => VALUE.to_owned(),
                b"set" => "STORED\r\n".to_owned(),
                b"GET" => "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello".to_owned(),
                redis if redis.starts_with(b"*2") => format!("$64\r\n{value}\r\n"),
                _ => "+OK\r\n".to_owned(),
            };
            // In two parts, which may come as one.
            let (first, second) = answer.split_at(answer.len() / 2);
            let sent = stream.write_all(first.as_bytes()).and_then(|()| stream.write_all(second.as_bytes()));
            if sent.is_err() || once {
                return;
            }
        }
    });
    for request in [Request::MemcachedGet(64), Request::RedisGet, Request::Http, Request::HttpOnce] {
        let lifetime = if request == Request::HttpOnce { Connections::Short } else { Connections::Kept };
        let asked = Options { lifetime, active: 2, ..options(&server, request) };
        let outcome = load::run(&asked).unwrap();
        assert!(outcome.answered_in_window > 0, "{request:?}: {outcome:?}");
        assert_eq!(outcome.latencies.len(), outcome.answered_in_window, "{request:?}");
        assert_eq!((outcome.failures, outcome.unanswered), (0, 0), "{request:?}");
    }
}

/// Other bytes than are expected, more of them, or an early end are failures.
#[test]
fn wrong_answers_are_failures() {
    use Request::{HttpOnce, MemcachedGet};
    let wrong: [(Request, Serve); 4] = [
        (MemcachedGet(64), |stream, _| serve_memcached(stream, &VALUE.replace("key", "yek"))),
        (MemcachedGet(64), |stream, _| serve_memcached(stream, &format!("{VALUE}!"))),
        (MemcachedGet(64), |stream, _| serve_memcached(stream, &VALUE[..9])),
        (HttpOnce, |stream, _| answer_once(stream, "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello!")),
    ];
    for (request, serve) in wrong {
        let server = Server::start(serve);
        let asked = options(&server, request);
        let error = load::run(&asked).unwrap_err();
        assert!(matches!(error, LoadError::Server(1, _)), "{error:?}");
        // Where failures are borne, each is counted, and no answer with them.
        let asked = Options { lifetime: Connections::Short, ..asked };
        let outcome = load::run(&asked).unwrap();
        assert!(outcome.failures > 0 && outcome.answered == 0, "{outcome:?}");
    }
}

/// What memcached answers to a get.
const VALUE: &str =
    "VALUE key 0 64\r\n0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\r\nEND\r\n";

/// Answers a set as memcached does, and a get like this; then ends the connection.
fn serve_memcached(stream: &mut TcpStream, to_get: &str) {
    let mut request = [0; 256];
    let _ = stream.read(&mut request);
    let answer = if request.starts_with(b"set") { "STORED\r\n" } else { to_get };
    let _ = stream.write_all(answer.as_bytes());
}

#[test]
fn a_server_of_other_words_is_refused_at_once() {
    let other: [Serve; 2] = [
        |stream, _| answer_once(stream, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"),
        |stream, _| answer_once(stream, "HTTP/1.1 200 with 503 bytes\r\n\r\n"),
    ];
    for serve in other {
        let server = Server::start(serve);
        let error = load::run(&options(&server, Request::HttpOnce)).unwrap_err();
        assert!(matches!(&error, LoadError::Answer(line) if line.contains("503")), "{error:?}");
    }
}

fn answer_once(stream: &mut TcpStream, answer: &str) {
    let _ = stream.read(&mut [0; 256]);
    let _ = stream.write_all(answer.as_bytes());
}

/// Requests due in some time.
fn due(time: Duration) -> u64 {
    time.as_nanos().div_ceil(1_000_000_000 / u128::from(RATE)) as u64
}

struct Run {
    outcome: Outcome,
    sample: Sample,
    /// From before the start to after the end.
    took: Duration,
    /// Between the end of the window and the end of the load.
    since_window: Duration,
}

fn run(engine: Engine, server: &Server, transactions: u32) -> Run {
    let began = Instant::now();
    let options = Options {
        engine,
        lifetime: Connections::Reset(transactions),
        rate: Some(RATE as f64),
        spin: transactions == 1,
        patience: None,
        ..options(server, Request::Echo(SIZE))
    };
    let load = Load::start(&options, &CpuSet::allowed().unwrap()).unwrap();
    let to = load.window().end;
    thread::sleep(to.saturating_duration_since(Instant::now()) + Duration::from_millis(20));
    let sample = load.sample().unwrap();
    let since_window = to.elapsed();
    let outcome = load.stop().unwrap();
    Run { outcome, sample, took: began.elapsed(), since_window }
}

/// A closed loop on connections that are kept.
fn options(server: &Server, request: Request) -> Options {
    Options {
        engine: Engine::Epoll,
        target: Target::Tcp(server.address),
        request,
        lifetime: Connections::Kept,
        connections: CONNECTIONS,
        active: CONNECTIONS,
        rate: None,
        spin: false,
        warm_up: Duration::from_millis(20),
        window: WINDOW,
        patience: Some(Duration::from_secs(5)),
    }
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

/// What a thread does with its connection.
type Serve = fn(&mut TcpStream, &Server);

/// A listening socket and a thread for each of its connections.
struct Server {
    address: SocketAddr,
    requests: AtomicU64,
    connections: AtomicU64,
}

impl Server {
    fn start(serve: Serve) -> Arc<Self> {
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
