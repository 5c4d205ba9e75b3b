//! Programs built against the library, and what starts and ends them.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) const BOUND: Duration = Duration::from_secs(100);
pub(crate) const NETWORK: &str = "tun:mtcp%d,10.79.0.2/24";
pub(crate) const STACK: &str = "10.79.0.2";
pub(crate) const LINUX: &str = "10.79.0.1";

/// Where the stacks of programs run: `stack_thread` of the configuration.
pub(crate) const THREADS: [&str; 3] = ["own", "other", "none"];
pub(crate) const OWN_OR_NONE: [&str; 2] = ["own", "none"];

/// The library as it is installed, what is built against it, and where its stacks run.
pub(crate) struct Place(pub(crate) PathBuf, &'static str);

impl Place {
    pub(crate) fn new(test: &str, thread: &'static str) -> Place {
        let name = format!("megapipe-mtcp-{test}-{thread}-{}", std::process::id());
        let place = std::env::temp_dir().join(name);
        fs::create_dir_all(&place).expect("a directory");
        let test = std::env::current_exe().expect("the test knows its path");
        let library = test.with_file_name("libmegapipe_mtcp.so");
        for name in ["libmegapipe_mtcp.so", "libmegapipe_mtcp.so.0"] {
            symlink(&library, place.join(name)).expect("a link");
        }
        Place(place, thread)
    }

    /// Compiles a program. Warnings are errors: programs include the headers with flags of their own.
    pub(crate) fn build(&self, source: &str) -> PathBuf {
        let flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-D_DEFAULT_SOURCE"];
        self.compile(&flags, &[Path::new(env!("CARGO_MANIFEST_DIR")).join(source)])
    }

    /// Compiles a program of several sources, and names it after the first.
    pub(crate) fn compile(&self, flags: &[&str], sources: &[PathBuf]) -> PathBuf {
        let program = self.0.join(sources[0].file_stem().expect("a name"));
        let built = Command::new("cc")
            .args(["-pthread", "-O1", "-g"])
            .args(flags)
            .arg("-I")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"))
            .args(sources)
            .arg("-o")
            .arg(&program)
            .arg("-L")
            .arg(&self.0)
            .arg("-lmegapipe_mtcp")
            .output()
            .expect("a C compiler");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        program
    }

    pub(crate) fn start(&self, program: &Path, arguments: &[&str]) -> Running {
        let mut command = Command::new(program);
        command.stdin(Stdio::piped());
        command.args(arguments).env("LD_LIBRARY_PATH", &self.0).env("MEGAPIPE_STACK", NETWORK);
        command.env("MEGAPIPE_STACK_THREAD", self.1);
        command.current_dir(&self.0);
        Running(command.stdout(Stdio::piped()).spawn().expect("the program starts"))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What is left behind costs room, nothing else.
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) struct Running(Child);

impl Running {
    /// Reads so many lines, each of which says that a thread is ready.
    pub(crate) fn ready(&mut self, threads: usize) {
        for _ in 0..threads {
            let line = self.line();
            assert!(line.contains("is ready"), "{line:?}");
        }
    }

    /// Gives it a command, and returns the line with which it answers.
    pub(crate) fn command(&mut self, line: &str) -> String {
        self.tell(line);
        self.line()
    }

    /// Gives it a line.
    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.0.stdin.as_mut().expect("piped"), "{line}").expect("it reads lines");
    }

    /// The next line that it prints.
    pub(crate) fn line(&mut self) -> String {
        // A byte at a time: what follows is for the next command.
        let mut answer = Vec::new();
        let mut byte = [0];
        while self.0.stdout.as_mut().expect("piped").read(&mut byte).expect("readable") == 1 && byte != *b"\n"
        {
            answer.push(byte[0]);
        }
        String::from_utf8(answer).expect("text")
    }

    /// Interrupts it as a terminal does. It has to end in good order.
    pub(crate) fn interrupt(mut self) {
        let kill = Command::new("kill").args(["-INT", &self.0.id().to_string()]).status();
        assert!(kill.expect("kill runs").success());
        self.ended();
    }

    /// Waits until it has ended, and returns what it has printed since `ready`.
    pub(crate) fn output(mut self) -> String {
        let mut text = String::new();
        self.0.stdout.take().expect("piped").read_to_string(&mut text).expect("readable");
        self.ended();
        text
    }

    pub(crate) fn ended(&mut self) {
        let deadline = Instant::now() + BOUND;
        loop {
            if let Some(status) = self.0.try_wait().expect("wait") {
                assert!(status.success(), "{status}");
                return;
            }
            assert!(Instant::now() < deadline, "the program does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn connect(port: u16) -> TcpStream {
    let address: SocketAddr = format!("{STACK}:{port}").parse().expect("an address");
    let stream = TcpStream::connect_timeout(&address, BOUND).expect("connect");
    stream.set_read_timeout(Some(BOUND)).expect("a timeout");
    stream
}
