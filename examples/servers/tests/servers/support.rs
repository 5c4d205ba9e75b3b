//! Servers as child processes, a client that knows no protocol, and the tests that cannot
//! be run.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal};
use testkit::process::{PATIENCE, until};
use testkit::skip;
pub(crate) use testkit::skip::{Skipped, Verdict};

/// Runs a test on an engine, or says why it cannot.
pub(crate) fn on_engine(name: &str, engine: &'static str, test: fn(&'static str) -> Verdict) {
    if let Err(skipped) = test(engine) {
        skip::record(&format!("{engine}::{name}"), &skipped);
    }
}

/// A running server, which is ended with its value.
pub(crate) struct Server {
    child: Child,
    /// What it prints later must have somewhere to go.
    _stdout: BufReader<ChildStdout>,
    pub(crate) address: SocketAddr,
}

/// The command `megapipe-SERVICE`, with the engine forced.
pub(crate) fn serve(engine: &str, service: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(match service {
        "http" => env!("CARGO_BIN_EXE_megapipe-http"),
        _ => env!("CARGO_BIN_EXE_megapipe-kv"),
    });
    command.args(arguments).env("MEGAPIPE_ENGINE", engine).stdin(Stdio::null());
    command
}

impl Server {
    /// Starts `megapipe-SERVICE` on a free port of the loopback with two threads, unless
    /// the arguments say otherwise.
    pub(crate) fn start(engine: &str, service: &str, arguments: &[&str]) -> Result<Self, Skipped> {
        let mut command = serve(engine, service, arguments);
        for (argument, default) in [("--listen", "127.0.0.1:0"), ("--threads", "2")] {
            if !arguments.contains(&argument) {
                command.args([argument, default]);
            }
        }
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the built program can be started");
        let mut stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("stdout can be read");
        let Some(address) = line.trim_end().strip_prefix("listening on ") else {
            let mut message = String::new();
            child.stderr.take().expect("stderr is piped").read_to_string(&mut message).expect("readable");
            child.wait().expect("the server is our child");
            let lacks_ring =
                message.contains("io_uring is not available") || message.contains("no memory for a ring");
            if engine == "uring" && lacks_ring {
                return Err(Skipped::because(message.trim_end()));
            }
            panic!("the server does not start: {line}{message}");
        };
        let address = address.parse().expect("an address");
        Ok(Self { child, _stdout: stdout, address })
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).expect("the server lives");
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("the server is our child").is_none()
    }

    /// Waits for the end of the server.
    pub(crate) fn wait(mut self) -> ExitStatus {
        until("the end of the server", || self.child.try_wait().expect("the server is our child"))
    }

    /// Bytes of memory the server uses now.
    pub(crate) fn resident(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("the server lives");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kilobytes.expect("a size in kB") * 1024
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection whose reads and writes fail when they take too long.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("sockets have timeouts");
        stream.set_write_timeout(Some(PATIENCE)).expect("sockets have timeouts");
        stream.set_nodelay(true).expect("TCP sockets have this option");
        Self { stream }
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("the server reads");
    }

    /// Reads exactly what is expected, and fails if something else comes.
    #[track_caller]
    pub(crate) fn expect(&mut self, expected: impl AsRef<[u8]>) {
        let expected = expected.as_ref();
        let mut answer = vec![0; expected.len()];
        let result = self.stream.read_exact(&mut answer);
        let shown = answer[..answer.len().min(300)].escape_ascii();
        assert!(result.is_ok() && answer == expected, "{result:?}: {shown}");
    }

    /// Sends a command and expects its answer.
    #[track_caller]
    pub(crate) fn ask(&mut self, command: impl AsRef<[u8]>, answer: impl AsRef<[u8]>) {
        self.send(command);
        self.expect(answer);
    }

    /// Reads until the answer ends with `end`.
    pub(crate) fn read_until(&mut self, end: &str) -> String {
        let mut answer = Vec::new();
        while !answer.ends_with(end.as_bytes()) {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).expect("the answer has an end");
            answer.push(byte[0]);
        }
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Reads to the end of the connection. A reset ends it too.
    pub(crate) fn read_to_end(&mut self) -> Vec<u8> {
        let mut answer = Vec::new();
        match self.stream.read_to_end(&mut answer) {
            Err(error) if error.kind() != io::ErrorKind::ConnectionReset => {
                panic!("the connection does not end: {error}")
            }
            _ => answer,
        }
    }

    /// Stores a value of so many bytes, which differ, and returns what `get big` brings.
    pub(crate) fn store_big(&mut self, length: usize) -> Vec<u8> {
        let value: Vec<u8> = (0..length).map(|index| b'a' + (index % 23) as u8).collect();
        self.send(format!("set big 0 0 {length}\r\n"));
        self.send(&value);
        self.ask("\r\n", "STORED\r\n");
        [format!("VALUE big 0 {length}\r\n").as_bytes(), &value, b"\r\nEND\r\n"].concat()
    }
}

/// Everything that a server answers to `pieces`, which are sent one by one.
pub(crate) fn transcript<'a>(address: SocketAddr, pieces: impl Iterator<Item = &'a [u8]> + Send) -> Vec<u8> {
    let mut reader = Client::connect(address);
    let mut writer = reader.stream.try_clone().expect("descriptors can be had");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for piece in pieces {
                // A server may close before it has read everything.
                if writer.write_all(piece).is_err() {
                    return;
                }
            }
            let _ = writer.shutdown(Shutdown::Write);
        });
        reader.read_to_end()
    })
}
