//! `--promotion`: connections to another program move to shared memory.

use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use megapipe::{Channel, Config, Event, Promotion, ReadData};
use monitor::{Access, Listener, Monitor, Options};
use rustix::process::Signal;
use tempfile::TempDir;
use testkit::process::PATIENCE;

use crate::on_both_engines;
use crate::server::{Server, Skipped, Verdict, serve};

on_both_engines!(
    a_cache_is_promoted,
    an_echo_is_promoted_at_once,
    a_promoted_client_gets_its_answers_after_a_signal,
    without_promotion_it_stays_on_tcp,
);

fn a_cache_is_promoted(engine: &'static str) -> Verdict {
    promoted(engine, "kv", "auto", b"get nothing\r\n", b"END\r\n").map(drop)
}

fn an_echo_is_promoted_at_once(engine: &'static str) -> Verdict {
    promoted(engine, "echo", "eager", b"hello", b"hello").map(drop)
}

fn a_promoted_client_gets_its_answers_after_a_signal(engine: &'static str) -> Verdict {
    let (server, mut client, _folder) = promoted(engine, "kv", "eager", b"get big\r\n", b"END\r\n")?;
    let value = "v".repeat(100_000);
    client.ask(format!("set big 0 0 100000\r\n{value}\r\n").as_bytes(), b"STORED\r\n");
    let answers = format!("VALUE big 0 100000\r\n{value}\r\nEND\r\n").repeat(100);
    client
        .channel
        .write_copy(client.server, "get big\r\n".repeat(100).as_bytes())
        .expect("the queue has room");
    client.channel.flush().expect("a sound channel");
    // More than a batch of the server's: it has read the commands.
    let mut got = Vec::new();
    while got.len() < answers.len() / 4 {
        got.extend(client.read().expect("there are more answers"));
    }
    server.signal(Signal::TERM);
    while let Some(data) = client.read() {
        got.extend(data);
    }
    assert!(got == answers.as_bytes(), "{} bytes of {}", got.len(), answers.len());
    drop(client);
    let (status, said) = server.wait();
    assert!(status.success(), "{status}");
    assert_eq!(said, "");
    Ok(())
}

fn without_promotion_it_stays_on_tcp(engine: &'static str) -> Verdict {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let socket = folder.path().join("monitor.sock");
    start_monitor(&socket);
    let server = Server::start(engine, "echo", &["--promotion", "off", "--monitor", text(&socket)])?;
    let mut client = Client::connect(&server, &socket);
    for _ in 0..200 {
        client.ask(b"hello", b"hello");
    }
    // Its offers find nobody.
    let stats = client.channel.stats();
    assert_eq!((stats.promoted, stats.ring_reads), (0, 0), "{stats:?}");
    let output = serve(engine, "echo", &["--monitor", text(&socket)]).output().expect("it can be started");
    assert_eq!(output.status.code(), Some(2), "--monitor alone is a mistake");
    Ok(())
}

/// Asks a server with promotion until both directions go through the rings.
fn promoted(
    engine: &'static str,
    service: &str,
    promotion: &str,
    question: &[u8],
    answer: &[u8],
) -> Result<(Server, Client, TempDir), Skipped> {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let socket = folder.path().join("monitor.sock");
    start_monitor(&socket);
    let server = Server::start(engine, service, &["--promotion", promotion, "--monitor", text(&socket)])?;
    let mut client = Client::connect(&server, &socket);
    let start = Instant::now();
    loop {
        for _ in 0..50 {
            client.ask(question, answer);
        }
        let stats = client.channel.stats();
        if stats.ring_reads > 0 && stats.ring_writes > 0 {
            assert_eq!(stats.promoted, 1);
            return Ok((server, client, folder));
        }
        assert!(start.elapsed() < PATIENCE, "{stats:?}");
    }
}

/// A monitor that lets programs of one user share, root's too; it ends with this process.
fn start_monitor(socket: &Path) {
    let policy = socket.with_file_name("policy.toml");
    std::fs::write(&policy, "same_user = true\n").expect("the folder can be written to");
    let listener = Listener::bind(socket, Access::User).expect("nobody listens there");
    let options = Options { policy: Some(policy), ..Options::default() };
    std::thread::spawn(move || Monitor::new(listener, options).expect("the policy is sound").run());
}

/// A channel with one promoted connection.
struct Client {
    channel: Channel,
    server: megapipe::Handle,
}

impl Client {
    fn connect(server: &Server, monitor: &Path) -> Self {
        let promotion = Promotion::Auto;
        let config = Config { promotion, monitor: Some(monitor.into()), ..Config::default() };
        let mut channel = Channel::new(config).expect("channels can be had");
        let stream = TcpStream::connect(server.address).expect("the server accepts");
        stream.set_nodelay(true).expect("TCP sockets have this option");
        let server = channel.register(stream, 0).expect("there is room");
        channel.read_stream(server).expect("a new connection can be read");
        Self { channel, server }
    }

    fn ask(&mut self, question: &[u8], answer: &[u8]) {
        self.channel.write_copy(self.server, question).expect("the queue has room");
        let mut got = Vec::new();
        while got.len() < answer.len() {
            got.extend(self.read().expect("the server does not end"));
        }
        assert_eq!(got, answer);
    }

    /// Some bytes, or `None` at the end of the stream.
    fn read(&mut self) -> Option<Vec<u8>> {
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < PATIENCE, "nothing to read: {:?}", self.channel.stats());
            let completion = self.channel.dispatch(Some(Duration::from_millis(5)));
            match completion.expect("a sound channel").map(|completion| completion.event) {
                Some(Event::Read { result: Ok(0), .. }) => return None,
                Some(Event::Read { data: ReadData::Buffer(data), .. }) => return Some(data.to_vec()),
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the folder's name is text")
}
