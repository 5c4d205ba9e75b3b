//! A monitor on a thread, in a directory of its own, and clients that wait with a bound.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use monitor::{Access, Listener, Monitor, Options, RunError};
use promote::client::{self, PeerLoop, SharedMapping};
use promote::wire::{Name, Token};
use promote::{Answer, Client, Doorbells, Reason, ReceiveError};
use sys::epoll::{self, Event, Set};
pub(crate) use testkit::net::Scratch;
use testkit::process::until;
use testkit::skip::{self, Skipped};

/// What takes longer than this hangs.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(60);

/// A policy under which these tests' processes may share, also where they run as root.
pub(crate) const SHARE: &str = "same_user = true\n";

/// A monitor of this process, which ends when its last client has gone.
pub(crate) struct Running {
    pub(crate) place: Scratch,
    thread: Option<JoinHandle<Result<(), RunError>>>,
}

/// A client, once it has been welcomed.
fn welcomed(mut client: Client) -> Client {
    assert!(matches!(receive(&mut client), Answer::Welcome { .. }));
    client
}

impl Running {
    /// Starts one with this policy, and a first client, which keeps it alive.
    pub(crate) fn start(policy: &str) -> (Running, Client) {
        let place = Scratch::new();
        let policy_path = place.join("policy.toml");
        fs::write(&policy_path, policy).unwrap();
        let listener = Listener::bind(&place.join("socket"), Access::Everybody).unwrap();
        let options = Options {
            policy: Some(policy_path),
            metrics: Some(monitor::MetricsAddress::Path(place.join("metrics"))),
            on_demand: Some(monitor::OnDemand { linger: Duration::from_millis(200), gives_way_to: None }),
            queues: true,
            ..Options::default()
        };
        let mut running = Running { place, thread: None };
        // Before the thread runs: its connection waits in the backlog.
        let first = Client::connect(&running.options("first")).unwrap();
        running.thread = Some(std::thread::spawn(move || Monitor::new(listener, options)?.run()));
        (running, welcomed(first))
    }

    /// A client that has been welcomed.
    pub(crate) fn client(&self, name: &str) -> Client {
        welcomed(Client::connect(&self.options(name)).unwrap())
    }

    /// The same, one that accepts doorbells.
    pub(crate) fn client_with_doorbells(&self, name: &str) -> Client {
        let options = client::Options { doorbells: true, ..self.options(name) };
        welcomed(Client::connect(&options).unwrap())
    }

    pub(crate) fn options(&self, name: &str) -> client::Options {
        client::Options {
            name: Name::new(name),
            socket: Some(self.place.join("socket")),
            retry: Duration::from_millis(10),
            ..client::Options::from_environment(name)
        }
    }

    /// Waits for the monitor's end, after the last client.
    pub(crate) fn end(mut self) {
        self.thread.take().unwrap().join().unwrap().unwrap();
        assert!(!self.place.join("socket").exists());
    }
}

/// Those of a process of a test's own, with the monitor at this socket.
pub(crate) fn options_at(socket: &str) -> client::Options {
    client::Options {
        socket: Some(socket.into()),
        retry: Duration::from_millis(10),
        ..client::Options::from_environment("process")
    }
}

/// Whether a test has to be skipped that only root can run.
pub(crate) fn lacks_root(test: &str) -> bool {
    let lacks = !rustix::process::geteuid().is_root();
    if lacks {
        println!("SKIPPED {test}: it runs as root");
        skip::record(test, &Skipped::because("it runs as root"));
    }
    lacks
}

/// A connection: the client's socket and the server's.
pub(crate) fn connection(listen: &str, connect: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((listen, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let client = TcpStream::connect((connect, port)).unwrap();
    (client, listener.accept().unwrap().0)
}

pub(crate) fn token(value: u64) -> Token {
    Token::new(value).unwrap()
}

/// The next answer, waited for.
pub(crate) fn receive(client: &mut Client) -> Answer {
    try_receive(client).unwrap()
}

/// The next answer, or the end of the connection.
pub(crate) fn try_receive(client: &mut Client) -> Result<Answer, ReceiveError> {
    let start = Instant::now();
    loop {
        match client.receive()? {
            // Tests that want it call `peer`.
            Some(Answer::Peer { .. }) => continue,
            Some(answer) => return Ok(answer),
            None => {}
        }
        assert!(start.elapsed() < WATCHDOG, "no answer comes");
        let set = Set::new().unwrap();
        set.add(client.fd().unwrap(), epoll::IN, 0).unwrap();
        set.wait(&mut [Event::NONE], Some(Duration::from_secs(1))).unwrap();
    }
}

/// The next report of an offer's peer, waited for.
pub(crate) fn peer(client: &mut Client) -> (Token, Option<u32>) {
    match until("a report", || client.receive().unwrap()) {
        Answer::Peer { token, user } => (token, user),
        other => panic!("{other:?}"),
    }
}

/// A grant's parts.
pub(crate) struct Grant {
    pub(crate) token: Token,
    pub(crate) own: SharedMapping,
    pub(crate) peer: SharedMapping,
    pub(crate) peer_loop: std::sync::Arc<PeerLoop>,
    pub(crate) doorbells: Option<Doorbells>,
}

pub(crate) fn granted(client: &mut Client) -> Grant {
    match receive(client) {
        Answer::Granted { token, own, peer, peer_loop, doorbells } => {
            Grant { token, own, peer, peer_loop, doorbells }
        }
        other => panic!("no grant: {other:?}"),
    }
}

pub(crate) fn refused(client: &mut Client) -> (Token, Reason) {
    match receive(client) {
        Answer::Refused { token, reason } => (token, reason),
        other => panic!("no refusal: {other:?}"),
    }
}

pub(crate) fn offer(client: &mut Client, number: u64, end: &impl AsFd) {
    client.offer(token(number), end.as_fd()).unwrap();
}

/// The word at `offset`.
pub(crate) fn word(mapping: &SharedMapping, offset: usize) -> u32 {
    assert!(offset + 4 <= mapping.len() && offset.is_multiple_of(4));
    // SAFETY: the place is inside the mapping and aligned; volatile, as others may write.
    unsafe { mapping.address().add(offset).cast::<u32>().read_volatile() }
}

pub(crate) fn set_word(mapping: &SharedMapping, offset: usize, value: u32) {
    assert!(offset + 4 <= mapping.len() && offset.is_multiple_of(4) && mapping.is_writable());
    // SAFETY: the place is inside the mapping, aligned and writable.
    unsafe { mapping.address().add(offset).cast::<u32>().write_volatile(value) };
}

/// One of the monitor's metrics; `name` with its labels, without the common beginning.
pub(crate) fn metric(place: &Scratch, name: &str) -> u64 {
    use std::io::{Read, Write};
    let mut stream = std::os::unix::net::UnixStream::connect(place.join("metrics")).unwrap();
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: monitor\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("# EOF\n"), "{text}");
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("megapipe_monitor_{name} ")));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

/// Waits until a metric has this value.
pub(crate) fn await_metric(place: &Scratch, name: &str, value: u64) {
    until(&format!("{name} is {value}"), || (metric(place, name) == value).then_some(()));
}

/// Waits until a counter is beyond this value.
pub(crate) fn await_beyond(place: &Scratch, name: &str, value: u64) {
    until(&format!("{name} is beyond {value}"), || (metric(place, name) > value).then_some(()));
}

/// Both endpoints are matched and granted; the grants' memory is released.
pub(crate) fn promote(a: &mut Client, b: &mut Client, number: u64) {
    let (near, far) = connection("127.0.0.1", "127.0.0.1");
    offer(a, number, &near);
    offer(b, number, &far);
    assert_eq!((granted(a).token, granted(b).token), (token(number), token(number)));
    a.withdraw(token(number));
    b.withdraw(token(number));
}
