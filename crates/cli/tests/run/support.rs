//! A directory of one test, its monitor, and programs under `megapipe run`.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use testkit::net::Scratch;
use testkit::process::{
    Fosterling, copy_program, listening_monitor, preload_library, start_monitor, until_ended,
};

/// An echo server with a thread for each connection, which prints its port first. It ends with as many connections as
/// its argument says; without one it goes on.
pub(crate) const ECHO: &str = r#"
import socket, sys, threading
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
def echo(connection):
    while data := connection.recv(4096):
        connection.sendall(data)
    connection.close()
threads = []
while len(threads) != int(sys.argv[1] if sys.argv[1:] else -1):
    threads.append(threading.Thread(target=echo, args=[listener.accept()[0]], daemon=True))
    threads[-1].start()
for thread in threads:
    thread.join()
"#;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_megapipe");

pub(crate) fn library() -> &'static Path {
    preload_library()
}

/// A directory of one test.
pub(crate) struct Place(Scratch);

impl Place {
    pub(crate) fn new() -> Place {
        Place(Scratch::new())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A file that can be executed.
    pub(crate) fn script(&self, name: &str, text: &str) -> PathBuf {
        let (written, path) = (self.file(&format!("{name}.text")), self.file(name));
        fs::write(&written, text).unwrap();
        copy_program(&written, &path);
        path
    }

    /// A C program; `None` if it cannot be linked so.
    pub(crate) fn compile(&self, name: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
        let text = self.file(&format!("{name}.c"));
        fs::write(&text, source).unwrap();
        let path = self.file(name);
        let output =
            Command::new("cc").arg("-o").arg(&path).arg(&text).args(flags).output().expect("cc runs");
        output.status.success().then_some(path)
    }

    /// A monitor for the programs that run here.
    pub(crate) fn monitor(&self) -> Fosterling {
        start_monitor(PROGRAM.as_ref(), &self.file("socket"))
    }

    /// One at another socket of this directory, with another policy.
    pub(crate) fn monitor_with(&self, socket: &str, policy: &str) -> Fosterling {
        let (socket, written) = (self.file(socket), self.file(&format!("{socket}.toml")));
        fs::write(&written, policy).unwrap();
        let mut command = Command::new(PROGRAM);
        command.args(["monitor", "--socket"]).arg(&socket).arg("--config").arg(written);
        listening_monitor(&mut command)
    }

    /// `megapipe run` with this directory's monitor, whether there is one or not, and with nothing of the caller's
    /// settings.
    pub(crate) fn run(&self) -> Command {
        library();
        let mut command = clean(PROGRAM);
        command.arg("run").env("MEGAPIPE_MONITOR", self.file("socket")).current_dir(&*self.0);
        command
    }
}

/// A program with two connections: both ends of one.
pub(crate) const PAIR: &str = "import socket
listener = socket.create_server((\"127.0.0.1\", 0))
client = socket.create_connection(listener.getsockname())
listener.accept()";

/// A command without what the tests themselves may have been started with.
pub(crate) fn clean(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    for name in ["PROMOTE", "SPIN", "STATS", "LOG", "ONLY", "NOT", "PRELOAD", "PROGRAM"] {
        command.env_remove(format!("MEGAPIPE_{name}"));
    }
    command.env_remove("LD_PRELOAD").stdin(Stdio::null());
    command
}

/// Runs to the end, but not for ever.
pub(crate) fn output(command: &mut Command) -> Output {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Fosterling::start(command);
    let mut streams = (child.child().stdout.take().unwrap(), child.child().stderr.take().unwrap());
    let stderr = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        streams.1.read_to_end(&mut bytes).map(|_| bytes)
    });
    let stdout = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        streams.0.read_to_end(&mut bytes).map(|_| bytes)
    });
    let status = until_ended(&format!("the end of {command:?}"), child.child());
    Output { status, stdout: stdout.join().unwrap().unwrap(), stderr: stderr.join().unwrap().unwrap() }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A real interpreter: a shim would be a shell script.
pub(crate) fn python() -> Option<PathBuf> {
    let asked = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().ok()?;
    let path = PathBuf::from(text(&asked.stdout).trim()).canonicalize().ok()?;
    path.is_file().then_some(path)
}
