//! Servers as child processes, and the tests that cannot be run.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use testkit::process::PATIENCE;

/// What a test came to that did not fail.
pub(crate) type Verdict = Result<(), Skipped>;

/// Why a test cannot be run here.
#[derive(Debug)]
pub(crate) struct Skipped(pub(crate) String);

/// Runs a test on an engine, or tells why it cannot.
pub(crate) fn on_engine(name: &str, engine: &'static str, test: fn(&'static str) -> Verdict) {
    if let Err(Skipped(reason)) = test(engine) {
        println!("SKIPPED {engine}::{name}: {reason}");
    }
}

/// A running server, which is ended with its value.
pub(crate) struct Server {
    child: Child,
    stdout: BufReader<ChildStdout>,
    pub(crate) address: SocketAddr,
}

/// The command `megapipe-SERVICE`, with the engine forced.
pub(crate) fn serve(engine: &str, service: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(match service {
        "echo" => env!("CARGO_BIN_EXE_megapipe-echo"),
        "http" => env!("CARGO_BIN_EXE_megapipe-http"),
        _ => env!("CARGO_BIN_EXE_megapipe-kv"),
    });
    command.args(arguments);
    command.env("MEGAPIPE_ENGINE", engine).stdin(Stdio::null());
    command
}

/// Whether a server ended since io_uring is forbidden, or RLIMIT_MEMLOCK has no room for a ring.
pub(crate) fn lacks_ring(message: &str) -> bool {
    message.contains("io_uring is not available") || message.contains("no memory for a ring")
}

impl Server {
    /// Starts `megapipe-SERVICE` on a free port of the loopback, with two threads unless the
    /// arguments say otherwise.
    pub(crate) fn start(engine: &str, service: &str, arguments: &[&str]) -> Result<Self, Skipped> {
        let mut command = serve(engine, service, arguments);
        if !arguments.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        if !arguments.contains(&"--threads") {
            command.args(["--threads", "2"]);
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
            let mut stderr = child.stderr.take().expect("stderr is piped");
            stderr.read_to_string(&mut message).expect("stderr can be read");
            child.wait().expect("the server is our child");
            if engine == "uring" && lacks_ring(&message) {
                return Err(Skipped(message.trim_end().to_owned()));
            }
            panic!("the server does not start: {line}{message}");
        };
        let address = address.parse().expect("the server tells an address");
        Ok(Self { child, stdout, address })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).expect("the server lives");
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("the server is our child").is_none()
    }

    /// Waits for the end of the server, and returns what it had to say after its address.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("the server is our child") {
                break status;
            }
            assert!(Instant::now() < deadline, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut said = String::new();
        self.stdout.read_to_string(&mut said).expect("stdout can be read");
        (status, said)
    }

    /// Bytes of memory the server uses now.
    pub(crate) fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))
            .expect("the server lives and /proc is there");
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
