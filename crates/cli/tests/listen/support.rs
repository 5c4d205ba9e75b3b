//! A network namespace and a folder of one test, servers in them under `megapipe run --local-listen`, and clients.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use testkit::process::{Fosterling, enter_own_network, pin_to, preload_library, until};
pub(crate) use testkit::process::{children, signal};
use testkit::programs::Program;
pub(crate) use testkit::programs::find;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_megapipe");
/// CAP_BPF of linux/capability.h.
const BPF: u32 = 39;
/// Longer than any answer takes on a busy machine.
const ANSWER: Duration = Duration::from_secs(60);

pub(crate) struct Lab {
    folder: tempfile::TempDir,
}

impl Lab {
    /// `None`, said with the test's name, where it cannot run. The calling thread enters the namespace.
    pub(crate) fn new(test: &str, programs: &[&str]) -> Option<Lab> {
        let skip = |why: &str| println!("SKIPPED {test}: {why}");
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
        if u64::from_str_radix(effective, 16).unwrap() >> BPF & 1 == 0 || enter_own_network().is_err() {
            skip("needs CAP_BPF and CAP_SYS_ADMIN (root)");
            return None;
        }
        if let Some(missing) = programs.iter().find(|name| find(name).is_none()) {
            skip(&format!("{missing} is not installed"));
            return None;
        }
        preload_library();
        let folder = tempfile::tempdir().unwrap();
        let lab = Lab { folder };
        // Workers of other users write to it, too.
        fs::set_permissions(lab.folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        fs::write(lab.log(), "").unwrap();
        fs::set_permissions(lab.log(), fs::Permissions::from_mode(0o666)).unwrap();
        Some(lab)
    }

    /// As [`Lab::new`], where listeners may have addresses of IPv6.
    pub(crate) fn with_ipv6(test: &str, programs: &[&str]) -> Option<Lab> {
        let lab = Lab::new(test, programs)?;
        if let Err(error) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) {
            println!("SKIPPED {test}: no IPv6: {error}");
            return None;
        }
        Some(lab)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn log(&self) -> PathBuf {
        self.path("log")
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// `megapipe run --local-listen` with a program of this machine.
    pub(crate) fn local(&self, program: &str) -> Command {
        self.run(&find(program).unwrap())
    }

    /// The same with a server of tests/programs.toml.
    pub(crate) fn server(&self, name: &str, port: u16, values: &[(&str, &str)]) -> Command {
        let server = Program::new(name, self.folder.path(), port, values).unwrap();
        let mut command = self.local(&server.command[0]);
        command.args(&server.command[1..]).args(server.tcp);
        command
    }

    pub(crate) fn run(&self, program: &Path) -> Command {
        let mut command = clean(PROGRAM);
        command.args(["run", "--promote", "off", "--local-listen", "--verbose", "--log"]);
        command.arg(self.log()).arg("--").arg(program);
        command.current_dir(self.folder.path());
        command
    }

    /// A file of a Python script, after what `worker.py` defines.
    pub(crate) fn script(&self, script: &str) -> PathBuf {
        self.write("script.py", &[include_str!("worker.py"), script].concat())
    }

    /// Runs such a script under `--local-listen`.
    pub(crate) fn passes(&self, script: &str) {
        let errors = self.path("errors");
        let mut command = self.run(&python());
        command.arg(self.script(script)).stderr(fs::File::create(&errors).unwrap());
        let status = command.status().unwrap();
        assert!(status.success(), "{status}: {}", fs::read_to_string(errors).unwrap());
    }

    /// A C program.
    pub(crate) fn compiled(&self, name: &str, source: &str) -> PathBuf {
        let (source, program) = (self.write(&format!("{name}.c"), source), self.path(name));
        let status = Command::new("cc").args(["-pthread", "-o"]).arg(&program).arg(source).status().unwrap();
        assert!(status.success(), "{name} is compiled");
        program
    }

    /// How many listeners got a queue in some worker, over all processes so far.
    pub(crate) fn queues(&self) -> usize {
        self.lines("has a queue of its own")
    }

    pub(crate) fn lines(&self, word: &str) -> usize {
        fs::read_to_string(self.log()).unwrap().lines().filter(|line| line.contains(word)).count()
    }
}

pub(crate) fn clean(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    for name in ["PROMOTE", "STATS", "LOG", "LOCAL_LISTEN", "VERBOSE"] {
        command.env_remove(format!("MEGAPIPE_{name}"));
    }
    command.env_remove("LD_PRELOAD").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Python itself, where `python3` is a script that looks for it.
pub(crate) fn python() -> PathBuf {
    let said = clean(find("python3").expect("python3"))
        .args(["-c", "import sys; print(sys.executable, end='')"])
        .stdout(Stdio::piped())
        .output()
        .unwrap();
    String::from_utf8(said.stdout).unwrap().into()
}

/// A server and its workers; ended when dropped.
pub(crate) struct Server(Fosterling);

/// A server, once it listens.
pub(crate) fn start(command: &mut Command, port: u16) -> Server {
    let mut server = Server(Fosterling::start(command));
    until("the server listens", || {
        assert!(server.ended().is_none(), "{command:?} has ended");
        (listeners(port) > 0).then_some(())
    });
    server
}

impl Server {
    pub(crate) fn pid(&mut self) -> u32 {
        self.0.child().id()
    }

    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.0.child().try_wait().unwrap()
    }

    pub(crate) fn workers(&mut self) -> Vec<u32> {
        children(self.pid())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Those of a killed master would go on.
        let workers = descendants(self.pid());
        self.0.kill();
        for worker in workers {
            // SAFETY: a process that this server started.
            unsafe { libc::kill(worker as libc::pid_t, libc::SIGKILL) };
        }
    }
}

/// Sockets that listen at a port of the calling thread's network.
pub(crate) fn listeners(port: u16) -> usize {
    let listens = |line: &&str| {
        let mut fields = line.split_whitespace().skip(1);
        let at_port = fields.next().is_some_and(|local| local.ends_with(&format!(":{port:04X}")));
        // TCP_LISTEN of net/tcp_states.h.
        at_port && fields.nth(1) == Some("0A")
    };
    let tables = ["tcp", "tcp6"].map(|table| fs::read_to_string(format!("/proc/thread-self/net/{table}")));
    tables.iter().flatten().map(|table| table.lines().skip(1).filter(listens).count()).sum()
}

/// The children of a process, and theirs, and so on.
fn descendants(pid: u32) -> Vec<u32> {
    children(pid).into_iter().flat_map(|child| std::iter::once(child).chain(descendants(child))).collect()
}

/// Until the process sleeps.
pub(crate) fn asleep(pid: u32) {
    until("the worker sleeps", || {
        let status = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        status.rsplit_once(") ")?.1.starts_with('S').then_some(())
    });
}

/// A connection that has sent its request.
pub(crate) fn ask(address: SocketAddr) -> io::Result<TcpStream> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(ANSWER))?;
    socket.write_all(b"GET / HTTP/1.0\r\nHost: megapipe\r\n\r\n")?;
    Ok(socket)
}

/// The whole answer.
pub(crate) fn answer(mut socket: TcpStream) -> io::Result<String> {
    let mut text = String::new();
    socket.read_to_string(&mut text)?;
    if text.contains("200 OK") { Ok(text) } else { Err(io::Error::other(format!("answered: {text}"))) }
}

pub(crate) fn get(address: impl Into<SocketAddr>) -> String {
    ask(address.into()).and_then(answer).unwrap()
}

/// Short connections from each CPU, one after the other, until it is ended.
pub(crate) struct Load {
    ends: Arc<AtomicBool>,
    clients: Vec<JoinHandle<(u64, Vec<String>)>>,
}

impl Load {
    pub(crate) fn start(address: SocketAddr) -> Load {
        let ends = Arc::new(AtomicBool::new(false));
        let client = |cpu: u32| {
            let ends = ends.clone();
            std::thread::spawn(move || {
                pin_to(cpu);
                let (mut answered, mut errors) = (0, Vec::new());
                // Once at least, however late it gets a core.
                loop {
                    match ask(address).and_then(answer) {
                        Ok(_) => answered += 1,
                        Err(error) => errors.push(error.to_string()),
                    }
                    if ends.load(Ordering::Relaxed) {
                        return (answered, errors);
                    }
                }
            })
        };
        let clients = testkit::process::cpus().into_iter().take(4).map(client).collect();
        Load { ends, clients }
    }

    /// Every connection was answered, and there were some.
    pub(crate) fn end(self) {
        self.ends.store(true, Ordering::Relaxed);
        for client in self.clients {
            let (answered, errors) = client.join().unwrap();
            assert!(errors.is_empty(), "{answered} answered, {} not: {errors:?}", errors.len());
            assert!(answered > 0);
        }
    }
}

/// Arguments of nginx whose answer names the worker; two workers at port 8080, unless the values say otherwise.
pub(crate) fn nginx(folder: &Path, values: &[(&str, &str)]) -> Vec<String> {
    let usual = [
        ("user", "www-data"),
        (
            "main",
            "worker_cpu_affinity auto; env LD_PRELOAD; env MEGAPIPE_PROMOTE; env MEGAPIPE_LOCAL_LISTEN;
                  env MEGAPIPE_VERBOSE; env MEGAPIPE_LOG;",
        ),
        ("http", "keepalive_timeout 0;"),
        ("server", "location / { add_header X-Worker $pid; return 200 hello; }"),
    ];
    Program::new("nginx", folder, 8080, &[&usual[..], values].concat()).unwrap().command.split_off(1)
}

/// Its directives for these addresses.
pub(crate) fn listening(addresses: &[&str]) -> String {
    addresses.iter().map(|address| format!("listen {address}; ")).collect()
}
