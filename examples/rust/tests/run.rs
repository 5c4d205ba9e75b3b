//! Runs each example as a user would, on both engines, and talks to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use testkit::process::{PATIENCE, until};

struct Server {
    child: Child,
    address: String,
    /// What it prints later must have somewhere to go.
    _output: BufReader<ChildStdout>,
}

impl Server {
    /// Starts the program and waits until it says where it listens.
    fn start(program: &str, engine: &str, arguments: &[&str]) -> Server {
        Server::of(Command::new(program).args(arguments).env("MEGAPIPE_ENGINE", engine))
    }

    fn of(command: &mut Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let address = line.strip_prefix("listening on ").and_then(|rest| rest.split_whitespace().next());
        let address = address.unwrap_or_default().to_owned();
        Server { child, address, _output: output }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The engines that can be had here; io_uring may be forbidden. Tried on a thread of its own: see `Channel`, on what
/// the kernel does to the thread after the ring has gone.
fn engines() -> Vec<&'static str> {
    let config = megapipe::Config { engine: Some(megapipe::EngineKind::Uring), ..Default::default() };
    match std::thread::spawn(|| megapipe::Channel::new(config).map(drop)).join().unwrap() {
        Ok(()) => vec!["uring", "epoll"],
        Err(error) => {
            println!("skipped: the examples on io_uring: {error}");
            vec!["epoll"]
        }
    }
}

fn echoes(server: &Server) {
    for round in 0..20u8 {
        let mut stream = server.connect();
        stream.write_all(&[round; 5000]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        assert_eq!(all, [round; 5000]);
    }
}

#[test]
fn echo() {
    for engine in engines() {
        echoes(&Server::start(env!("CARGO_BIN_EXE_echo"), engine, &["127.0.0.1:0"]));
    }
}

#[test]
fn multicore() {
    for engine in engines() {
        // A port for all threads.
        echoes(&Server::start(env!("CARGO_BIN_EXE_multicore"), engine, &[&free_address(), "2"]));
    }
}

#[test]
fn udp_echo() {
    for engine in engines() {
        let server = Server::start(env!("CARGO_BIN_EXE_udp_echo"), engine, &["127.0.0.1:0"]);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        for len in [0, 1, 100, 1400] {
            socket.send_to(&vec![7; len], &server.address).unwrap();
            let mut got = [0; 2000];
            assert_eq!(socket.recv(&mut got).unwrap(), len);
        }
    }
}

#[test]
fn file_and_socket() {
    let path = std::env::temp_dir().join(format!("megapipe-example-{}", std::process::id()));
    let content: Vec<u8> = (0..1_000_000u32).flat_map(u32::to_ne_bytes).collect();
    std::fs::write(&path, &content).unwrap();
    for engine in engines() {
        let arguments = [path.to_str().unwrap(), "127.0.0.1:0"];
        let server = Server::start(env!("CARGO_BIN_EXE_file_and_socket"), engine, &arguments);
        let mut streams = [server.connect(), server.connect(), server.connect()];
        // One leaves early; the others get all of it.
        drop(server.connect());
        for stream in &mut streams {
            let mut all = Vec::new();
            stream.read_to_end(&mut all).unwrap();
            assert!(all == content, "{} of {} bytes", all.len(), content.len());
        }
    }
    std::fs::remove_file(&path).unwrap();
}

/// More clients than a server may have descriptors for end no server: once they have gone,
/// the next one is served.
#[test]
fn a_crowd_ends_no_server() {
    let folder = tempfile::tempdir().unwrap();
    // More than the socket buffers of a client that does not read hold.
    let path = folder.path().join("file");
    std::fs::File::create(&path).unwrap().set_len(16 << 20).unwrap();
    let file = path.to_str().unwrap();
    let address = free_address();
    let servers: [(&str, &[&str]); 5] = [
        (env!("CARGO_BIN_EXE_echo"), &["127.0.0.1:0"]),
        (env!("CARGO_BIN_EXE_multicore"), &[&address, "1"]),
        (env!("CARGO_BIN_EXE_file_and_socket"), &[file, "127.0.0.1:0"]),
        (env!("CARGO_BIN_EXE_line_server"), &["127.0.0.1:0"]),
        (env!("CARGO_BIN_EXE_promotion"), &["serve", "127.0.0.1:0"]),
    ];
    for engine in engines() {
        for (program, arguments) in servers {
            let mut limited = Command::new("sh");
            limited.args(["-c", "ulimit -n 100 && exec \"$0\" \"$@\"", program]).args(arguments);
            let mut server = Server::of(limited.env("MEGAPIPE_ENGINE", engine).stderr(Stdio::null()));
            let mut crowd: Vec<TcpStream> = (0..150).map(|_| server.connect()).collect();
            for client in &mut crowd {
                client.write_all(b"x\n").unwrap();
            }
            std::thread::sleep(Duration::from_millis(300));
            drop(crowd);
            // While it has not closed all of them yet it turns more away.
            let began = Instant::now();
            loop {
                let mut last = server.connect();
                let served = last.write_all(b"x\n").and_then(|()| last.read_exact(&mut [0]));
                let ended = server.child.try_wait().unwrap();
                let is_late = began.elapsed() > PATIENCE;
                assert!(ended.is_none() && !is_late, "{program} on {engine}: {served:?}, {ended:?}");
                if served.is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

#[test]
fn promotion() {
    let folder = tempfile::tempdir().unwrap();
    let (policy, socket) = (folder.path().join("policy.toml"), folder.path().join("monitor.sock"));
    std::fs::write(&policy, "same_user = true\n").unwrap();
    let listener = monitor::Listener::bind(&socket, monitor::Access::User).unwrap();
    let options = monitor::Options { policy: Some(policy), ..monitor::Options::default() };
    // It ends with this process.
    std::thread::spawn(move || monitor::Monitor::new(listener, options).unwrap().run());
    for engine in engines() {
        let program = |part, address: &str| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_promotion"));
            command.args([part, address]).env("MEGAPIPE_ENGINE", engine).env("MEGAPIPE_MONITOR", &socket);
            command
        };
        let server = Server::of(&mut program("serve", "127.0.0.1:0"));
        let output = program("ask", &server.address).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{engine}: {text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("promoted: 1000 round trips of "), "{engine}: {text}");
    }
}

/// A game's server and the addresses of its players' ports.
fn game(players: usize, engine: &str) -> (Server, Vec<String>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_game_server"));
    command.args([&players.to_string(), "0"]).env("MEGAPIPE_ENGINE", engine);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let port = || {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        line.trim().rsplit(' ').next().unwrap_or_default().to_owned()
    };
    let ports = std::iter::repeat_with(port).take(players).collect();
    (Server { child, address: String::new(), _output: output }, ports)
}

fn player(port: &str, place: [u8; 2]) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect(port).unwrap();
    socket.send(&place).unwrap();
    socket
}

/// Whether a player hears what it listens for, among much.
fn hears(player: &UdpSocket, what: impl Fn(&[u8]) -> bool) -> bool {
    let mut message = [0; 2000];
    (0..1000).any(|_| match player.recv(&mut message) {
        Err(error) if error.kind() == std::io::ErrorKind::Interrupted => false, // stopped and resumed, say
        len => what(&message[..len.unwrap()]),
    })
}

/// Two players of a game hear of each other.
#[test]
fn players_hear_of_each_other() {
    for engine in engines() {
        let (_server, ports) = game(3, engine);
        let players = [player(&ports[0], [0, 7]), player(&ports[1], [1, 7])];
        for player in &players {
            assert!(hears(player, |world| world == [0, 0, 0, 7, 0, 1, 1, 7]), "{engine}");
        }
    }
}

/// More players than one datagram tells of.
#[test]
fn many_players_hear_of_the_last() {
    for engine in engines() {
        let (_server, ports) = game(400, engine);
        let players: Vec<UdpSocket> = ports.iter().map(|port| player(port, [3, 4])).collect();
        let last = [1, 143, 3, 4];
        assert!(
            hears(&players[0], |world| world.len() <= 1200 && world.chunks(4).any(|one| one == last)),
            "{engine}"
        );
    }
}

fn line_server(engine: &str, idle: &str) -> Server {
    Server::start(env!("CARGO_BIN_EXE_line_server"), engine, &["127.0.0.1:0", idle])
}

/// A port that the kernel has just given out, of an address that no other test uses: it stays free.
fn free_address() -> String {
    let [.., high, low] = std::process::id().to_be_bytes();
    let probe = std::net::TcpListener::bind((std::net::Ipv4Addr::new(127, 79, high, low), 0)).unwrap();
    probe.local_addr().unwrap().to_string()
}

/// Sends something and expects its answer.
fn ask(stream: &mut TcpStream, what: &str, answer: &str) {
    stream.write_all(what.as_bytes()).unwrap();
    let mut got = vec![0; answer.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(String::from_utf8_lossy(&got), answer);
}

/// Sends numbered lines and reads nothing, until the server sleeps over that. Returns the answers to all that
/// was sent, of which the last may lack its end.
fn flood(server: &Server, stream: &TcpStream) -> Vec<u8> {
    const BOUND: usize = 64 << 20;
    let mut stream = stream;
    stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut answers = Vec::new();
    for first in (0..).step_by(100) {
        let lines: String = (first..first + 100).map(|number| format!("line {number}\n")).collect();
        let mut sent = 0;
        while sent < lines.len() {
            match stream.write(&lines.as_bytes()[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && !server.is_asleep() => {}
                Err(error) => {
                    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                    answers.extend(lines.as_bytes()[..sent].to_ascii_uppercase());
                    return answers;
                }
            }
        }
        answers.extend(lines.to_ascii_uppercase().into_bytes());
        assert!(answers.len() < BOUND, "{BOUND} bytes are taken from a client that does not read");
    }
    unreachable!("numbers have no end")
}

impl Server {
    /// Whether each of its threads sleeps (proc_pid_stat(5)).
    fn is_asleep(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let is_asleep =
            |stat: String| stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('S'));
        threads
            .flatten()
            .all(|thread| std::fs::read_to_string(thread.path().join("stat")).is_ok_and(is_asleep))
    }

    fn terminate(&self) {
        let status = Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        assert!(status.success());
    }

    /// Waits for the end, which must be a success.
    fn ends(&mut self) {
        let status = until("the end of the server", || self.child.try_wait().unwrap());
        assert!(status.success(), "{status}");
    }
}

#[test]
fn lines_may_come_in_pieces() {
    for engine in engines() {
        let server = line_server(engine, "60");
        let mut stream = server.connect();
        stream.set_nodelay(true).unwrap();
        for piece in ["o", "ne", "\ntwo\nthr", "ee"] {
            stream.write_all(piece.as_bytes()).unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
        ask(&mut stream, "\n\nfive\n", "ONE\nTWO\nTHREE\n\nFIVE\n");
        // A line of which the end never comes is given up, and so is what stands behind the last line end.
        let mut long = server.connect();
        let taken = long.write_all(&[b'x'; 100_000]);
        assert!(taken.is_err() || long.read(&mut [0]).unwrap_or(0) == 0);
        stream.write_all(b"last\nno line").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "LAST\n");
    }
}

#[test]
fn a_client_that_does_not_read_is_not_read_from() {
    for engine in engines() {
        let server = line_server(engine, "60");
        let (silent, mut other) = (server.connect(), server.connect());
        let answers = flood(&server, &silent);
        ask(&mut other, "hello\n", "HELLO\n");
        // Nothing of it is lost.
        silent.shutdown(Shutdown::Write).unwrap();
        let mut got = Vec::new();
        (&silent).read_to_end(&mut got).unwrap();
        let whole = answers.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        assert!(got == answers[..whole], "{engine}: {} of {whole} bytes", got.len());
        ask(&mut other, "bye\n", "BYE\n");
    }
}

#[test]
fn idle_clients_are_disconnected() {
    for engine in engines() {
        let server = line_server(engine, "3");
        let (idle, mut half, full) = (server.connect(), server.connect(), server.connect());
        half.write_all(b"half a line").unwrap();
        flood(&server, &full);
        let mut busy = server.connect();
        let is_over = |mut stream: &TcpStream| {
            stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            match stream.read(&mut [0]) {
                Ok(count) => count == 0,
                Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        };
        // It takes no answer, and sees its end by writing.
        let is_given_up =
            || (&full).write(b"x").is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock);
        full.set_nonblocking(true).unwrap();
        let start = std::time::Instant::now();
        while !(is_over(&idle) && is_over(&half) && is_given_up()) {
            assert!(start.elapsed() < PATIENCE, "{engine}: idle clients stay");
            ask(&mut busy, "x\n", "X\n");
            std::thread::sleep(Duration::from_millis(50));
        }
        ask(&mut busy, "x\n", "X\n");
    }
}

#[test]
fn a_server_ends_when_its_answers_are_taken() {
    for engine in engines() {
        let mut server = line_server(engine, "60");
        let (mut quiet, pending) = (server.connect(), server.connect());
        ask(&mut quiet, "hello\n", "HELLO\n");
        let answers = flood(&server, &pending);
        server.terminate();
        // The quiet one gets an end; new ones get nothing.
        assert_eq!(quiet.read(&mut [0]).unwrap(), 0);
        drop(quiet);
        let refused = TcpStream::connect(&server.address).and_then(|mut late| late.read(&mut [0]));
        assert!(refused.is_err() || refused.is_ok_and(|count| count == 0));
        assert!(server.child.try_wait().unwrap().is_none(), "answers are pending");
        let mut got = Vec::new();
        (&pending).read_to_end(&mut got).unwrap();
        assert!(
            !got.is_empty() && got.ends_with(b"\n") && answers.starts_with(&got),
            "{engine}: {}",
            got.len()
        );
        drop(pending);
        server.ends();
    }
}
