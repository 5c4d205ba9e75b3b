//! `megapipe top` beside a real monitor and real processes with promoted connections.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use megapipe::{Channel, Completion, Config, Event, Handle, Promotion, ReadData};
use promote::client::Options;
use promote::wire::Token;
use promote::{Answer, Client};
use serde_json::Value;
use testkit::net::Scratch;
use testkit::process::{Fosterling, PATIENCE, role, start_monitor, this_test_as};

mod terminal;

const PROGRAM: &str = env!("CARGO_BIN_EXE_megapipe");
/// Messages of each connection, and bytes of each of them.
const TRAFFIC: [(usize, usize); 2] = [(10, 100), (333, 1000)];

/// A directory of one test.
struct Place(Scratch);

impl Place {
    fn new() -> Place {
        Place(Scratch::new())
    }

    fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }

    /// A monitor, which listens.
    fn monitor(&self) -> Fosterling {
        start_monitor(PROGRAM.as_ref(), &self.socket())
    }

    fn top(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(PROGRAM);
        command.arg("top").args(arguments).arg("--socket").arg(self.socket());
        command.env_remove("MEGAPIPE_MONITOR").stdin(Stdio::null()).output().unwrap()
    }

    fn json(&self) -> Value {
        let output = self.top(&["--once", "--json", "--interval", "0.05"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// A process that plays a part, and what it says.
struct Part {
    child: Fosterling,
    said: BufReader<ChildStdout>,
}

impl Part {
    fn start(test: &str, role: &str, place: &Place, port: &str) -> Part {
        let mut command = this_test_as(test, role);
        command.env("MEGAPIPE_MONITOR", place.socket()).env("MEGAPIPE_TEST_PORT", port);
        let mut child = Fosterling::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let said = BufReader::new(child.child().stdout.take().unwrap());
        Part { child, said }
    }

    /// What it says behind this word, once it does.
    fn says(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "it ended without saying {word}");
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_owned();
            }
        }
    }

    fn pid(&mut self) -> u64 {
        self.child.child().id().into()
    }
}

fn say(text: &str) {
    println!("\n{text}");
    std::io::stdout().flush().unwrap();
}

/// Blocks until the test says to go on.
fn wait_for_word() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// Serves completions until `done`; returns the bytes that came for each handle.
fn serve(
    channel: &mut Channel,
    mut take: impl FnMut(&mut Channel, Handle, u64, &[u8]),
    done: impl Fn(&Channel) -> bool,
) {
    let start = Instant::now();
    while !done(channel) {
        assert!(start.elapsed() < PATIENCE, "{:?}", channel.stats());
        let completion = channel.dispatch(Some(Duration::from_millis(5))).unwrap();
        let Some(Completion { handle, cookie, event, .. }) = completion else { continue };
        match event {
            Event::Read { data: ReadData::Buffer(data), .. } => take(channel, handle, cookie, &data),
            other => panic!("{other:?}"),
        }
    }
}

fn channel() -> Channel {
    Channel::new(Config { promotion: Promotion::Eager, ..Config::default() }).unwrap()
}

fn register(channel: &mut Channel, streams: Vec<TcpStream>) -> Vec<Handle> {
    let handles: Vec<Handle> = streams
        .into_iter()
        .zip(0..)
        .map(|(stream, cookie)| channel.register(stream, cookie).unwrap())
        .collect();
    for handle in &handles {
        channel.read_stream(*handle).unwrap();
    }
    serve(channel, |_, _, _, _| panic!("nothing was sent"), |channel| channel.stats().promoted == 2);
    handles
}

/// Answers every message with itself, until it is killed.
fn play_server() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    say(&format!("port {}", listener.local_addr().unwrap().port()));
    let streams = TRAFFIC.iter().map(|_| listener.accept().unwrap().0).collect();
    let mut channel = channel();
    register(&mut channel, streams);
    say("promoted");
    loop {
        if let Some(Completion { handle, event: Event::Read { data: ReadData::Buffer(data), .. }, .. }) =
            channel.dispatch(Some(Duration::from_millis(5))).unwrap()
        {
            channel.write_quiet(handle, data.to_vec()).unwrap();
        }
    }
}

fn play_client() {
    let port: u16 = std::env::var("MEGAPIPE_TEST_PORT").unwrap().parse().unwrap();
    let streams = TRAFFIC.iter().map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
    let mut channel = channel();
    let handles = register(&mut channel, streams);
    say("promoted");
    wait_for_word();
    for (handle, (messages, bytes)) in handles.iter().zip(TRAFFIC) {
        for _ in 0..messages {
            channel.write_quiet(*handle, vec![7; bytes]).unwrap();
            let came = std::cell::Cell::new(0);
            serve(&mut channel, |_, _, _, data| came.set(came.get() + data.len()), |_| came.get() >= bytes);
        }
    }
    say("done");
    loop {
        assert!(channel.dispatch(Some(Duration::from_millis(5))).unwrap().is_none());
    }
}

/// What `look` finds, waited for.
fn until(what: &str, mut look: impl FnMut() -> Result<(), Value>) {
    let start = Instant::now();
    while let Err(seen) = look() {
        assert!(start.elapsed() < PATIENCE, "{what}: {seen:#}");
    }
}

#[test]
fn numbers_are_those_of_what_was_sent() {
    match role().as_deref() {
        Some("server") => return play_server(),
        Some("client") => return play_client(),
        _ => {}
    }
    const NAME: &str = "numbers_are_those_of_what_was_sent";
    let place = Place::new();
    let mut monitor = place.monitor();
    let mut server = Part::start(NAME, "server", &place, "");
    let port = server.says("port ");
    let mut client = Part::start(NAME, "client", &place, &port);
    server.says("promoted");
    client.says("promoted");
    client.child.child().stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    client.says("done");

    // A count is told when a channel goes to sleep at the latest.
    let right = |seen: &Value| {
        let connections = seen["monitors"][0]["connections"].as_array().unwrap();
        connections.len() == 2
            && connections.iter().zip(TRAFFIC).all(|(connection, (messages, bytes))| {
                let ends = connection["ends"].as_array().unwrap();
                ends.len() == 2
                    && ends.iter().all(|end| {
                        ["sent", "taken"].iter().all(|way| {
                            end["state"][way]["messages"] == messages
                                && end["state"][way]["bytes"] == messages * bytes
                        })
                    })
            })
    };
    until("the numbers", || {
        let seen = place.json();
        if right(&seen) { Ok(()) } else { Err(seen) }
    });

    let seen = place.json();
    assert_eq!(seen["schema"], 1);
    assert!(seen["interval_s"].as_f64().unwrap() >= 0.05, "{seen:#}");
    let told = &seen["monitors"][0];
    assert_eq!(told["pid"], monitor.child().id());
    assert_eq!(told["everybody"], true);
    for (field, value) in
        [("clients", 2), ("promoted_ends", 4), ("offers", 4), ("granted", 4), ("waiting_offers", 0)]
    {
        assert_eq!(told[field], value, "{field}: {told:#}");
    }
    assert_eq!(told["segment_bytes"], 4 * 262_144);
    assert_eq!(told["refusals"].as_object().unwrap().len(), promote::Reason::OF_MONITOR.len());
    assert!(told["refusals"].as_object().unwrap().values().all(|count| count == 0), "{told:#}");
    let total: usize = TRAFFIC.iter().map(|(messages, bytes)| messages * bytes).sum();
    for pid in [server.pid(), client.pid()] {
        let of_pid = |process: &&Value| process["pid"] == pid;
        let process = told["processes"].as_array().unwrap().iter().find(of_pid).unwrap();
        assert_eq!(process["channels"], 1);
        assert_eq!(process["promoted_ends"], 2);
        assert_eq!((&process["sent"]["bytes"], &process["taken"]["bytes"]), (&total.into(), &total.into()));
        // Long enough without traffic.
        assert_eq!(process["sent"]["messages_per_s"], 0);
    }
    for (connection, (messages, _)) in told["connections"].as_array().unwrap().iter().zip(TRAFFIC) {
        let [one, other] = connection["ends"].as_array().unwrap().as_slice() else { panic!("{connection}") };
        assert_eq!((&one["address"], &one["peer"]), (&other["peer"], &other["address"]));
        assert_ne!(one["pid"], other["pid"]);
        for end in [one, other] {
            assert!(end["address"].as_str().unwrap().starts_with("127.0.0.1:"));
            let state = &end["state"];
            assert_eq!((&state["ring_fill"], &state["ring_bytes"]), (&0.into(), &(262_144 - 1048).into()));
            // Many messages with a bell each may have made it rest on TCP.
            let (in_ring, all) = (&state["sent_ring_bytes"], &state["sent"]["bytes"]);
            assert!(in_ring.as_u64() > Some(0) && in_ring.as_u64() <= all.as_u64(), "{end:#}");
            let rested = state["returns_to_tcp"] != 0;
            assert_eq!(state["lane"] == "tcp", rested, "{end:#}");
            assert!(!rested || messages > 100, "{end:#}");
        }
    }

    let table = place.top(&["--once", "--interval", "0"]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains(&format!("127.0.0.1:{port}")) && table.contains("ring"), "{table}");

    // What is gone is shown no more.
    client.child.kill();
    until("the client's end", || {
        let seen = place.json();
        let gone = seen["monitors"][0]["processes"].as_array().unwrap().len() == 1;
        let ends = |connection: &Value| connection["ends"].as_array().unwrap().len();
        let one = seen["monitors"][0]["connections"].as_array().unwrap().iter().all(|each| ends(each) == 1);
        if gone && one { Ok(()) } else { Err(seen) }
    });
    drop(monitor);
}

#[test]
fn a_monitor_without_promotions_is_shown() {
    let place = Place::new();
    let monitor = place.monitor();
    let seen = place.json();
    let told = &seen["monitors"][0];
    assert_eq!(told["socket"], place.socket().to_str().unwrap());
    assert_eq!((&told["clients"], &told["promoted_ends"]), (&0.into(), &0.into()));
    assert_eq!((&told["connections"], &told["processes"]), (&Value::Array(vec![]), &Value::Array(vec![])));
    let table = place.top(&["--once", "--interval", "0"]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("refusals: none") && table.contains("megapipe run --stats -- PROGRAM"), "{table}");
    // One look has no rates.
    let output = place.top(&["--once", "--json", "--interval", "0"]);
    let seen: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(seen["interval_s"].is_null());
    drop(monitor);
}

#[test]
fn without_a_monitor_it_names_where_it_looked() {
    let place = Place::new();
    let refused = |command: &mut Command| {
        let output = command.args(["--once", "--json"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty());
        String::from_utf8(output.stderr).unwrap()
    };
    let chosen = refused(Command::new(PROGRAM).arg("top").arg("--socket").arg(place.socket()));
    assert!(
        chosen.contains(place.socket().to_str().unwrap()) && chosen.contains("megapipe monitor --socket"),
        "{chosen}"
    );
    let named = refused(Command::new(PROGRAM).arg("top").env("MEGAPIPE_MONITOR", place.0.join("named")));
    assert!(named.contains(place.0.join("named").to_str().unwrap()), "{named}");
    // A dead one's socket is none; the user's own directory is looked at besides the system's.
    let dead = sys::packet::listen(&place.socket(), 1).unwrap();
    drop(dead);
    testkit::net::until_deserted(&place.socket());
    let text = refused(Command::new(PROGRAM).arg("top").arg("--socket").arg(place.socket()));
    assert_eq!(text, chosen);
    // A monitor of this machine would answer.
    let places = ["/run/megapipe/monitor.sock", "/run/megapipe/root.sock"];
    if !places.iter().any(|place| std::path::Path::new(place).exists()) {
        let mut command = Command::new(PROGRAM);
        let text =
            refused(command.arg("top").env_remove("MEGAPIPE_MONITOR").env("XDG_RUNTIME_DIR", &*place.0));
        let root = rustix::process::geteuid().is_root();
        let own = if root { "/run/megapipe/root.sock".into() } else { place.0.join("megapipe/monitor.sock") };
        assert!(
            text.contains("/run/megapipe/monitor.sock")
                && text.contains(own.to_str().unwrap())
                && text.contains("`megapipe run -- PROGRAM` starts one"),
            "{text}"
        );
    }
}

/// The next who connects.
fn accept(listener: &OwnedFd) -> OwnedFd {
    let start = Instant::now();
    loop {
        match sys::packet::accept(listener.as_fd()) {
            Ok(socket) => return socket,
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
        assert!(start.elapsed() < PATIENCE);
    }
}

/// A monitor that does not know the question cuts off who asks it.
#[test]
fn an_older_monitor_is_told_from_a_broken_one() {
    use promote::Reason;
    use promote::wire::MonitorMessage;
    let place = Place::new();
    let listener = sys::packet::listen(&place.socket(), 1).unwrap();
    let mut top = Command::new(PROGRAM);
    top.args(["top", "--once", "--socket"]).arg(place.socket()).stderr(Stdio::piped());
    let mut top = Fosterling::start(&mut top);
    let socket = accept(&listener);
    for message in [
        MonitorMessage::Welcome { version: 1, loop_id: 1, segment_size: 8192 },
        MonitorMessage::Refuse { token: None, reason: Reason::Version },
    ] {
        sys::packet::send(socket.as_fd(), message.encode().as_bytes(), &[]).unwrap();
    }
    let mut text = String::new();
    top.child().stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(text.contains("older") && text.contains("restart"), "{text}");
    assert_eq!(top.child().wait().unwrap().code(), Some(1));
}

/// A monitor whose answer never goes on is believed for a bounded number of pages.
#[test]
fn an_answer_without_an_end_is_nonsense() {
    use promote::wire::view::{Place as From, Record, Section, Totals};
    use promote::wire::{ClientMessage, MOST_BYTES, MonitorMessage};
    const NOTHING: Totals = Totals {
        pid: 1,
        uid: 0,
        everybody: true,
        age_ms: 0,
        clients: 0,
        waiting: 0,
        promoted: 0,
        bytes: 0,
        offers: 0,
        granted: 0,
        refused: [0; promote::Reason::OF_MONITOR.len()],
    };
    for stands_at in [From::FIRST, From { section: Section::Promoted, after: 7 }] {
        let place = Place::new();
        let listener = sys::packet::listen(&place.socket(), 1).unwrap();
        let mut command = Command::new(PROGRAM);
        command.args(["top", "--once", "--socket"]).arg(place.socket()).stderr(Stdio::piped());
        let mut top = Fosterling::start(&mut command);
        let socket = accept(&listener);
        let say = |bytes: &[u8]| sys::packet::send(socket.as_fd(), bytes, &[]).is_ok();
        let welcome = MonitorMessage::Welcome { version: 1, loop_id: 1, segment_size: 8192 };
        assert!(say(welcome.encode().as_bytes()));
        let start = Instant::now();
        let mut bytes = [0; MOST_BYTES];
        while top.child().try_wait().unwrap().is_none() {
            assert!(start.elapsed() < PATIENCE, "it asks for ever");
            let Ok(received) = sys::packet::receive(socket.as_fd(), &mut bytes) else { continue };
            if let Ok(ClientMessage::Query { .. }) = ClientMessage::decode(&bytes[..received.len]) {
                let _ = say(Record::Totals(NOTHING).encode().as_bytes())
                    && say(MonitorMessage::End { next: Some(stands_at) }.encode().as_bytes());
            }
        }
        let mut text = String::new();
        top.child().stderr.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(text.contains("no end") && text.contains(place.socket().to_str().unwrap()), "{text}");
        assert_eq!(top.child().wait().unwrap().code(), Some(1));
    }
}

/// Words that no program which keeps to the rules would write: shown, within bounds.
#[test]
fn hostile_memory_is_shown_within_bounds() {
    let place = Place::new();
    let monitor = place.monitor();
    let mut client = Client::connect(&Options {
        socket: Some(place.socket()),
        ..Options::from_environment("\u{1b}[31mred")
    })
    .unwrap();
    let receive = |client: &mut Client| {
        let start = Instant::now();
        loop {
            if let Some(answer) = client.receive().unwrap() {
                return answer;
            }
            assert!(start.elapsed() < PATIENCE);
        }
    };
    let Answer::Welcome { loop_page, .. } = receive(&mut client) else { panic!() };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    client.offer(Token::new(1).unwrap(), near.as_fd()).unwrap();
    client.offer(Token::new(2).unwrap(), far.as_fd()).unwrap();
    let grants = [receive(&mut client), receive(&mut client)];
    let segments = grants.each_ref().map(|grant| match grant {
        Answer::Granted { own, .. } => own,
        other => panic!("{other:?}"),
    });
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut state = 1u64;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for memory in segments.iter().copied().chain([&loop_page]) {
                    for offset in (0..1048).step_by(8) {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        // SAFETY: inside the mapping, which is writable, and aligned; others
                        // read it as atomics.
                        unsafe { memory.address().add(offset).cast::<u64>().write_volatile(state) };
                    }
                }
            }
        });
        for _ in 0..5 {
            let seen = place.json();
            for end in seen["monitors"][0]["connections"][0]["ends"].as_array().unwrap() {
                let state = &end["state"];
                assert!(state["ring_fill"].as_u64().unwrap() <= state["ring_bytes"].as_u64().unwrap());
                // As much as 2^48 in the twentieth of a second.
                let rate = state["sent"]["bytes_per_s"].as_u64().unwrap();
                assert!(rate <= (1 << 48) * 20, "{end:#}");
            }
            let table = place.top(&["--once", "--interval", "0"]);
            assert!(table.status.success() && !table.stdout.contains(&0x1b));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    drop(monitor);
}
