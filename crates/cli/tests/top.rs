//! `megapipe top` beside a real monitor and real processes with promoted connections.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use megapipe::{Channel, Completion, Config, Event, Handle, Promotion, ReadData};
use serde_json::Value;
use testkit::process::{Fosterling, role, this_test_as};

const WATCHDOG: Duration = Duration::from_secs(60);
const PROGRAM: &str = env!("CARGO_BIN_EXE_megapipe");
/// Messages of each connection, and bytes of each of them.
const TRAFFIC: [(usize, usize); 2] = [(10, 100), (333, 1000)];

/// A directory of one test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("megapipe-top-{}-{name}", std::process::id()));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("policy.toml"), "same_user = true\n").unwrap();
        Place(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }

    /// A monitor, which listens.
    fn monitor(&self) -> Fosterling {
        let mut command = Command::new(PROGRAM);
        command.arg("monitor").arg("--socket").arg(self.socket());
        command.arg("--config").arg(self.0.join("policy.toml")).env_remove("MEGAPIPE_LOG");
        let mut monitor = Fosterling::start(command.stderr(Stdio::piped()));
        let mut log = BufReader::new(monitor.child().stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("the monitor listens") {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "the monitor ended");
        }
        // Whatever it says later must not fill the pipe.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        monitor
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

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
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
        assert!(start.elapsed() < WATCHDOG, "{:?}", channel.stats());
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
        assert!(start.elapsed() < WATCHDOG, "{what}: {seen:#}");
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
    let place = Place::new("numbers");
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
    assert_eq!(told["refusals"].as_object().unwrap().len(), 12);
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
    for connection in told["connections"].as_array().unwrap() {
        let [one, other] = connection["ends"].as_array().unwrap().as_slice() else { panic!("{connection}") };
        assert_eq!((&one["address"], &one["peer"]), (&other["peer"], &other["address"]));
        assert_ne!(one["pid"], other["pid"]);
        for end in [one, other] {
            assert!(end["address"].as_str().unwrap().starts_with("127.0.0.1:"));
            let state = &end["state"];
            assert_eq!((&state["lane"], &state["ring_fill"]), (&"ring".into(), &0.into()), "{end:#}");
            assert_eq!(state["ring_bytes"], 262_144 - 1048);
            assert_eq!(state["sent_ring_bytes"], state["sent"]["bytes"]);
            assert_eq!(state["spills"], 0);
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
