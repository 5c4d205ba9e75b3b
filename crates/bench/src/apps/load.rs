//! A load generator for servers that have none, and for open loops: one thread, one epoll set, one request
//! at a time on a connection, and the C library's own calls, which a preload library sees.
//!
//! In an open loop, request number n is due n/rate after the start, on the connection that has rested
//! longest. It waits while there is none, and its latency counts from when it was due: a server that stalls
//! cannot thereby postpone what would have shown the stall (coordinated omission).

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::epoll::Epoll;

mod request;

pub use request::Request;

/// The hidden verb under which the program is this load generator.
pub const LOAD_VERB: &str = "app-load";

/// Where the server listens.
#[derive(Debug, Clone)]
pub enum Target {
    /// A port of 127.0.0.1.
    Port(u16),
    /// A UNIX socket.
    Path(PathBuf),
}

/// What to do.
#[derive(Debug, Clone)]
pub struct Task {
    /// Where the server listens.
    pub target: Target,
    /// What is asked of it.
    pub request: Request,
    /// Connections.
    pub connections: u32,
    /// Those of them on which a request is under way; the one that has rested longest is next.
    pub active: u32,
    /// Not measured.
    pub warm_up: Duration,
    /// Measured.
    pub window: Duration,
    /// Requests per second in an open loop.
    pub rate: Option<f64>,
}

/// What came of it, as printed in JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// Requests per second in the window.
    pub requests_per_s: f64,
    /// Requests of window and warm-up.
    pub requests: u64,
    /// Median time of a request in the window, microseconds.
    pub p50_us: f64,
    /// 99th percentile of the same, unless there are fewer than a hundred.
    pub p99_us: Option<f64>,
    /// 99.9th percentile of the same, unless there are fewer than a thousand.
    pub p999_us: Option<f64>,
    /// CPU time of the client, seconds, if its start is not to be counted.
    pub cpu_s: Option<f64>,
}

/// Why no load was made.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The kernel refused something.
    #[error("cannot {0}")]
    Kernel(&'static str, #[source] io::Error),
    /// The server ended a connection.
    #[error("the server closed connection {0}")]
    Closed(usize),
    /// The server said something else than asked.
    #[error("the server answered with {0:?}")]
    Astray(String),
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn connect(target: &Target) -> io::Result<Self> {
        match target {
            Target::Port(port) => {
                let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, *port))?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
            Target::Path(path) => UnixStream::connect(path).map(Stream::Unix),
        }
    }

    fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_nonblocking(true),
            Stream::Unix(stream) => stream.set_nonblocking(true),
        }
    }

    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => (&*stream).read(buffer),
            Stream::Unix(stream) => (&*stream).read(buffer),
        }
    }

    /// All of it: it always fits, since nothing else is under way.
    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => (&*stream).write_all(bytes),
            Stream::Unix(stream) => (&*stream).write_all(bytes),
        }
    }

    fn descriptor(&self) -> RawFd {
        match self {
            Stream::Tcp(stream) => stream.as_raw_fd(),
            Stream::Unix(stream) => stream.as_raw_fd(),
        }
    }
}

struct Connection {
    stream: Stream,
    received: usize,
    /// From when the latency of its request counts.
    since: Instant,
}

/// Makes the load.
pub fn run(task: &Task) -> Result<Report, LoadError> {
    let failed = |what| move |error| LoadError::Kernel(what, error);
    let (request, start) = task.request.words();
    let epoll = Epoll::new().map_err(failed("make an epoll set"))?;
    let mut connections = Vec::with_capacity(task.connections as usize);
    for place in 0..task.connections as usize {
        let stream = Stream::connect(&task.target).map_err(failed("connect"))?;
        connections.push(Connection { stream, received: 0, since: Instant::now() });
        let descriptor = connections[place].stream.descriptor();
        let added = epoll.control(libc::EPOLL_CTL_ADD, descriptor, place as u64, libc::EPOLLIN);
        added.map_err(failed("watch a connection"))?;
    }
    let Some(first) = connections.first() else { return Err(LoadError::Closed(0)) };
    if let Some((words, answer)) = task.request.preparation() {
        first.stream.write(words.as_bytes()).map_err(failed("send"))?;
        expect(&first.stream, answer, |_| Some(answer.len()))?;
    }
    // One in full, for the length of all.
    first.stream.write(request.as_bytes()).map_err(failed("send"))?;
    let length = expect(&first.stream, start, |response| task.request.length(response))?;
    for connection in &connections {
        connection.stream.set_nonblocking().map_err(failed("choose calls that do not block"))?;
    }
    let mut times = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are valid");
    let mut record = |time: Duration| times.saturating_record(time.as_nanos() as u64);
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; 512];
    let mut buffer = vec![0; 16 << 10];
    let (mut requests, mut in_window) = (1, 0);
    let schedule = Schedule::of(task);
    let (began, last) = (schedule.began, schedule.last);
    let first = began + task.warm_up;
    let timer = schedule.interval.map(Timer::every).transpose().map_err(failed("make a timer"))?;
    if let Some(timer) = &timer {
        let added = epoll.control(libc::EPOLL_CTL_ADD, timer.0.as_raw_fd(), TIMER, libc::EPOLLIN);
        added.map_err(failed("watch a timer"))?;
    }
    // What is due in the window of an open loop may be answered after it, but not for ever.
    let end = if timer.is_some() { last + task.window } else { last };
    let resting = (0..connections.len()).collect();
    let mut sender = Sender { connections, resting, schedule, request };
    let mut now = began;
    while now < last || now < end && sender.is_waiting() {
        sender.send(now)?;
        for event in epoll.wait(&mut events, 50).map_err(failed("wait"))? {
            let place = event.u64 as usize;
            let Some(connection) = sender.connections.get_mut(place) else {
                timer.iter().for_each(Timer::rearm);
                continue;
            };
            match connection.stream.read(&mut buffer) {
                Ok(0) => return Err(LoadError::Closed(place)),
                Ok(count) => {
                    let fresh = connection.received == 0;
                    if fresh && !begins(&buffer[..count], start) {
                        return Err(LoadError::Astray(first_line(&buffer[..count])));
                    }
                    connection.received += count;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(LoadError::Kernel("receive", error)),
            }
            if connection.received > length {
                return Err(LoadError::Astray(first_line(&buffer)));
            }
            if connection.received == length {
                connection.received = 0;
                now = Instant::now();
                requests += 1;
                in_window += u64::from(first <= now && now < last);
                // A closed loop has no time at which a request is due, only one of its answer.
                let counted = if timer.is_some() { connection.since } else { now };
                if first <= counted && counted < last {
                    record(now - connection.since);
                }
                sender.answered(place);
                sender.send(now)?;
            }
        }
        now = Instant::now();
    }
    // In an open loop, what was due and has no answer takes this long at least.
    if timer.is_some() {
        sender.unanswered(now).filter(|since| *since >= first).for_each(|since| record(now - since));
    }
    let quantile = |quantile: f64| times.value_at_quantile(quantile) as f64 / 1e3;
    let of_enough = |count: u64, share: f64| (times.len() >= count).then(|| quantile(share));
    Ok(Report {
        requests_per_s: in_window as f64 / task.window.as_secs_f64(),
        requests,
        p50_us: quantile(0.5),
        p99_us: of_enough(100, 0.99),
        p999_us: of_enough(1000, 0.999),
        cpu_s: None,
    })
}

/// When requests are to be sent.
struct Schedule {
    began: Instant,
    /// Nothing is due from then on.
    last: Instant,
    /// From one request to the next in an open loop.
    interval: Option<Duration>,
    /// Requests begun in an open loop.
    begun: u32,
    /// How many more may be under way in a closed loop.
    free: u32,
}

impl Schedule {
    fn of(task: &Task) -> Self {
        let began = Instant::now();
        let interval = task.rate.map(|rate| Duration::from_secs_f64(1.0 / rate.clamp(1.0, 1e6)));
        Self { began, last: began + task.warm_up + task.window, interval, begun: 0, free: task.active }
    }

    /// Takes the next request if it is to be sent now: from when its latency counts.
    fn next(&mut self, now: Instant) -> Option<Instant> {
        let since = match self.interval {
            Some(interval) => self.began + interval * self.begun,
            None if self.free == 0 => return None,
            None => now,
        };
        if since > now || since >= self.last {
            return None;
        }
        self.begun += 1;
        self.free = self.free.saturating_sub(1);
        Some(since)
    }
}

/// The connections, and what is sent on them when.
struct Sender {
    connections: Vec<Connection>,
    /// Those without a request, the one that has rested longest first.
    resting: VecDeque<usize>,
    schedule: Schedule,
    request: String,
}

impl Sender {
    /// Sends all that is to be sent now and has a connection.
    fn send(&mut self, now: Instant) -> Result<(), LoadError> {
        while let Some(&place) = self.resting.front()
            && let Some(since) = self.schedule.next(now)
        {
            self.resting.pop_front();
            let connection = &mut self.connections[place];
            connection.since = since;
            let sent = connection.stream.write(self.request.as_bytes());
            sent.map_err(|error| LoadError::Kernel("send", error))?;
        }
        Ok(())
    }

    fn answered(&mut self, place: usize) {
        self.resting.push_back(place);
        self.schedule.free += 1;
    }

    fn is_waiting(&self) -> bool {
        self.resting.len() < self.connections.len()
    }

    /// From when each request counts that was due by now and has no answer.
    fn unanswered(mut self, now: Instant) -> impl Iterator<Item = Instant> {
        let connections = self.connections.iter().enumerate();
        let sent = connections.filter(|(place, _)| !self.resting.contains(place));
        let sent = sent.map(|(_, connection)| connection.since).collect::<Vec<_>>();
        sent.into_iter().chain(std::iter::from_fn(move || self.schedule.next(now)))
    }
}

/// A timer that expires again and again (timerfd_create(2)): epoll_wait(2) alone counts whole milliseconds.
struct Timer(OwnedFd);

impl Timer {
    fn every(interval: Duration) -> io::Result<Self> {
        // SAFETY: plain system call; its result is checked before it is a descriptor of ours.
        let descriptor =
            unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it is open, and nobody else's.
        let timer = Self(unsafe { OwnedFd::from_raw_fd(descriptor) });
        let interval = libc::timespec {
            tv_sec: interval.as_secs() as libc::time_t,
            tv_nsec: interval.subsec_nanos().into(),
        };
        let times = libc::itimerspec { it_interval: interval, it_value: interval };
        // SAFETY: `times` is valid for the read.
        match unsafe { libc::timerfd_settime(descriptor, 0, &times, std::ptr::null_mut()) } {
            0 => Ok(timer),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Reads the number of its expirations, which is of no interest: it expires again only then.
    fn rearm(&self) {
        let mut count = [0; 8];
        // SAFETY: the buffer is valid for its length. It fails if the timer has not expired, which is well.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

/// Receives one response that begins so, and tells its length.
fn expect(stream: &Stream, start: &str, length: impl Fn(&[u8]) -> Option<usize>) -> Result<usize, LoadError> {
    let mut response = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let count = stream.read(&mut buffer).map_err(|error| LoadError::Kernel("receive", error))?;
        if count == 0 {
            return Err(LoadError::Closed(0));
        }
        response.extend_from_slice(&buffer[..count]);
        if !begins(&response, start) || response.len() > MOST {
            return Err(LoadError::Astray(first_line(&response)));
        }
        match length(&response) {
            Some(length) if response.len() == length => return Ok(length),
            Some(length) if response.len() > length => {
                return Err(LoadError::Astray(first_line(&response)));
            }
            _ => {}
        }
    }
}

/// Whether a response, or what is there of it, begins as it should.
fn begins(response: &[u8], start: &str) -> bool {
    response.iter().zip(start.as_bytes()).all(|(one, other)| one == other)
}

fn first_line(bytes: &[u8]) -> String {
    let line = bytes.split(|&byte| byte == b'\r').next().unwrap_or_default();
    String::from_utf8_lossy(&line[..line.len().min(80)]).into_owned()
}

/// The name of the timer's events; connections have their places.
const TIMER: u64 = u64::MAX;

/// No response is as long.
const MOST: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufRead;
    use std::net::TcpListener;
    use std::thread;

    /// A server that answers each line that begins with a word, on each connection by itself.
    fn serve(word: &'static str, answer: &'static str) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || {
                    let mut output = stream.try_clone().unwrap();
                    for line in io::BufReader::new(stream).lines().map_while(Result::ok) {
                        let answer = if line.starts_with("set ") { "STORED\r\n" } else { answer };
                        let asked = line.starts_with(word) || line.starts_with("set ");
                        if asked && output.write_all(answer.as_bytes()).is_err() {
                            break;
                        }
                    }
                });
            }
        });
        port
    }

    fn task(port: u16, request: Request) -> Task {
        Task {
            target: Target::Port(port),
            request,
            connections: 8,
            active: 3,
            warm_up: Duration::from_millis(10),
            window: Duration::from_millis(100),
            rate: None,
        }
    }

    #[test]
    fn all_requests_are_answered_and_timed() {
        let port = serve("GET", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nServer: here\r\n\r\nhello");
        let report = run(&task(port, Request::Http)).unwrap();
        assert!(report.requests > 1 && report.requests_per_s > 0.0, "{report:?}");
        assert!(0.0 < report.p50_us && report.p99_us.is_none_or(|p99| report.p50_us <= p99), "{report:?}");
        let value =
            "VALUE key 0 64\r\n0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\r\nEND\r\n";
        assert!(run(&task(serve("get", value), Request::MemcachedGet)).is_ok());
    }

    #[test]
    fn an_open_loop_counts_from_when_requests_were_due() {
        const STALL: Duration = Duration::from_millis(40);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut output = stream.try_clone().unwrap();
            let lines = io::BufReader::new(stream).lines().map_while(Result::ok);
            for (number, _) in lines.filter(|line| line.starts_with("set ")).enumerate() {
                if number == 50 {
                    thread::sleep(STALL);
                }
                if output.write_all(b"STORED\r\n").is_err() {
                    break;
                }
            }
        });
        let window = Duration::from_millis(100);
        let (connections, active, warm_up) = (1, 1, Duration::ZERO);
        let (target, request) = (Target::Port(port), Request::MemcachedSet);
        let task = Task { target, request, connections, active, warm_up, window, rate: Some(2000.0) };
        let report = run(&task).unwrap();
        // Some 80 of 200 were due in the stall, on the only connection: measured from when they were
        // sent, one alone would be slow, which is no percentile.
        assert!(report.requests <= 1 + 200, "{report:?}");
        assert!(report.p99_us.unwrap() >= 0.9 * STALL.as_micros() as f64, "{report:?}");
        let mut schedule = Schedule::of(&task);
        let due = std::iter::from_fn(|| schedule.next(schedule.last)).collect::<Vec<_>>();
        assert_eq!(due.len(), 200);
        assert_eq!(due[1] - due[0], Duration::from_micros(500));
    }

    #[test]
    fn requests_without_an_answer_count() {
        let port = serve("get", ""); // takes what is set, and never answers what is read
        let task = Task { rate: Some(1000.0), ..task(port, Request::MemcachedSet) };
        let connections = vec![Connection {
            stream: Stream::connect(&task.target).unwrap(),
            received: 0,
            since: Instant::now(),
        }];
        let mut sender = Sender {
            connections,
            resting: VecDeque::from([0]),
            schedule: Schedule::of(&task),
            request: "get key\r\n".to_owned(),
        };
        let end = sender.schedule.last;
        sender.send(end).unwrap();
        assert!(sender.is_waiting());
        assert_eq!(sender.unanswered(end).count(), 110);
    }

    #[test]
    fn other_answers_end_it() {
        let port = serve("GET", "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n");
        let error = run(&task(port, Request::Http)).unwrap_err();
        assert!(error.to_string().contains("503"), "{error}");
        let port = serve("get", "END\r\n");
        assert!(matches!(run(&task(port, Request::MemcachedGet)), Err(LoadError::Astray(_))));
    }
}
