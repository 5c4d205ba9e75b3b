//! A monitor, and pairs of channels with connections between them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::IntoRawFd;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use megapipe::{
    Channel, Completion, Config, CreateError, DispatchError, EngineKind, Event, Handle, OpId, Promotion,
    ReadData,
};
use monitor::{Access, Listener, Monitor, Options};
use rustix::process::{Resource, Rlimit, setrlimit};
use testkit::process::{self, Fosterling};
use testkit::skip::{self, Skipped};

/// How long anything may take before it counts as never.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A folder that goes with its test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("megapipe-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    /// A folder that another process made.
    pub(crate) fn at(path: PathBuf) -> Folder {
        Folder(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.0.join("monitor.sock")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Time that passes while this process runs: while it is stopped, or gets no processor, nothing
/// of it can happen.
pub(crate) struct Patience {
    last: Instant,
    spent: Duration,
}

impl Patience {
    pub(crate) fn new() -> Patience {
        Patience { last: Instant::now(), spent: Duration::ZERO }
    }

    /// To be called again and again; true if something takes too long.
    pub(crate) fn is_over(&mut self) -> bool {
        const STEP: Duration = Duration::from_millis(200);
        let now = Instant::now();
        self.spent += (now - self.last).min(STEP);
        self.last = now;
        self.spent > PATIENCE
    }
}

/// The user's processes may share memory, however late one of them comes.
pub(crate) const SHARE: &str =
    "same_user = true\n[limits]\noffer_expires_ms = 600000\nforeign_offer_expires_ms = 600000\n";

/// A monitor on a thread that ends with the process.
pub(crate) fn start_monitor(folder: &Folder, policy_text: &str) {
    let policy = folder.0.join("policy.toml");
    std::fs::write(&policy, policy_text).unwrap();
    let listener = Listener::bind(&folder.socket(), Access::Everybody).unwrap();
    let options = Options { policy: Some(policy), queues: true, ..Options::default() };
    std::thread::spawn(move || Monitor::new(listener, options).unwrap().run());
}

/// The test's own monitor, which lets the user's processes share memory.
pub(crate) fn own_monitor(name: &str) -> Folder {
    let folder = Folder::new(name);
    start_monitor(&folder, SHARE);
    folder
}

/// A monitor that is a process of its own.
pub(crate) struct MonitorProcess {
    process: Fosterling,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl MonitorProcess {
    /// Starts one, as a process that runs the test `name`, which has to [`play_monitor`].
    pub(crate) fn start(name: &str, folder: &Folder) -> MonitorProcess {
        let mut command = process::this_test_as(name, "monitor");
        command.env("MONITOR_FOLDER", folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Fosterling::start(&mut command);
        let input = process.child().stdin.take().unwrap();
        let output = BufReader::new(process.child().stdout.take().unwrap());
        let mut monitor = MonitorProcess { process, input, output };
        monitor.await_line("listening");
        monitor
    }

    fn await_line(&mut self, word: &str) {
        let mut lines = self.output.by_ref().lines();
        assert!(lines.any(|line| line.unwrap() == word), "the monitor has ended");
    }

    pub(crate) const UNLIMITED: u64 = u64::MAX;

    /// Limits it from now on: `descriptors` it may open more, `bytes` that its files may have.
    pub(crate) fn limit(&mut self, descriptors: u64, bytes: u64) {
        writeln!(self.input, "{descriptors} {bytes}").unwrap();
        self.await_line("limited");
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }
}

/// The role of [`MonitorProcess`], if this process is one.
pub(crate) fn play_monitor() {
    if process::role().as_deref() != Some("monitor") {
        return;
    }
    let folder = Folder::at(std::env::var_os("MONITOR_FOLDER").unwrap().into());
    start_monitor(&folder, SHARE);
    println!("\nlistening");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (descriptors, bytes) = line.split_once(' ').unwrap();
        process::limit_file_size(bytes.parse().unwrap());
        process::limit_descriptors(u64::MAX);
        match descriptors.parse().unwrap() {
            MonitorProcess::UNLIMITED => {}
            count => {
                // Other threads of the monitor close them, and each would leave one more.
                process::await_closes();
                process::leave_descriptors(count);
            }
        }
        println!("limited");
    }
    // Its test is gone; the folder is the test's.
    std::process::exit(0);
}

/// This engine, or epoll where the system has no ring for io_uring.
pub(crate) fn usable(engine: EngineKind) -> EngineKind {
    static INSTEAD: OnceLock<Option<EngineKind>> = OnceLock::new();
    let instead = INSTEAD.get_or_init(|| {
        let config = Config { engine: Some(EngineKind::Uring), lwsockets_max: 64, ..Config::default() };
        // On a thread of its own: the kernel interrupts the thread whose ring has gone.
        let made = std::thread::spawn(|| Channel::new(config).map(drop)).join().unwrap();
        let Err(CreateError::RingUnavailable(cause) | CreateError::LockedMemory(cause)) = made else {
            return None;
        };
        skip::record("promotion on io_uring", &Skipped::because(cause.to_string()));
        Some(EngineKind::Epoll)
    });
    instead.unwrap_or(engine)
}

pub(crate) fn config(engine: EngineKind, socket: &Path) -> Config {
    Config {
        engine: Some(usable(engine)),
        promotion: Promotion::Eager,
        monitor: Some(socket.to_path_buf()),
        ..Config::default()
    }
}

pub(crate) fn pair_at(address: &str, to: impl Fn(SocketAddr) -> SocketAddr) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(address).unwrap();
    let one = TcpStream::connect(to(listener.local_addr().unwrap())).unwrap();
    (one, listener.accept().unwrap().0)
}

pub(crate) fn pair() -> (TcpStream, TcpStream) {
    pair_at("127.0.0.1:0", |address| address)
}

pub(crate) fn engines() -> [[EngineKind; 2]; 3] {
    use EngineKind::{Epoll, Uring};
    [[Uring, Uring], [Epoll, Epoll], [Uring, Epoll]]
}

/// Runs `body` with doorbells, and in a process of its own without them: the test `name` there.
pub(crate) fn with_and_without_doorbells(name: &str, body: impl Fn()) {
    if process::role().is_none() {
        body();
    }
    process::isolated(name, || {
        crowd_out_doorbells();
        body();
    });
}

/// Has so many descriptors that the lowest quarter of their numbers, where doorbells may lie, is taken.
pub(crate) fn crowd_out_doorbells() {
    const OCCUPIED: u64 = 1250;
    let limit = Rlimit { current: Some(4 * OCCUPIED), maximum: Some(4 * OCCUPIED) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    while (null.try_clone().unwrap().into_raw_fd() as u64) < OCCUPIED {}
}

/// The completions of one handle.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) got: Vec<u8>,
    pub(crate) ended: bool,
    /// Of reads, and of writes.
    pub(crate) errors: [Vec<i32>; 2],
    pub(crate) reads: u64,
    pub(crate) writes: u64,
}

/// A channel, and all its completions.
pub(crate) struct Side {
    pub(crate) channel: Channel,
    pub(crate) seen: BTreeMap<u64, Seen>,
    pub(crate) ended_ops: Vec<OpId>,
}

impl Side {
    pub(crate) fn new(config: Config) -> Side {
        Side { channel: Channel::new(config).unwrap(), seen: BTreeMap::new(), ended_ops: Vec::new() }
    }

    pub(crate) fn seen(&mut self, cookie: u64) -> &mut Seen {
        self.seen.entry(cookie).or_default()
    }

    /// Dispatches one completion, if any comes in `wait`.
    pub(crate) fn step(&mut self, wait: Duration) -> bool {
        let completion = match self.channel.dispatch(Some(wait)) {
            Err(DispatchError::Interrupted) => None,
            completion => completion.unwrap(),
        };
        let Some(Completion { event, cookie, op, .. }) = completion else { return false };
        let seen = self.seen.entry(cookie).or_default();
        match event {
            Event::Read { result: Ok(0), .. } => seen.ended = true,
            Event::Read { result: Ok(count), data, more } => {
                let before = seen.got.len();
                match data {
                    ReadData::Buffer(data) => seen.got.extend_from_slice(&data),
                    ReadData::Vec(data) => seen.got.extend_from_slice(&data),
                    ReadData::Vectored(data) => data.iter().for_each(|data| seen.got.extend_from_slice(data)),
                    other => panic!("{other:?}"),
                }
                assert_eq!(seen.got.len() - before, count);
                seen.reads += u64::from(!more);
            }
            Event::Read { result: Err(error), .. } => seen.errors[0].push(error.raw_os_error().unwrap()),
            Event::Write { result: Ok(_), .. } => seen.writes += 1,
            Event::Write { result: Err(error), .. } => seen.errors[1].push(error.raw_os_error().unwrap()),
            other => drop(other),
        }
        self.ended_ops.push(op);
        true
    }
}

/// Two channels on one thread.
pub(crate) struct Two {
    pub(crate) sides: [Side; 2],
    /// The last connection that was made.
    pub(crate) handles: [Handle; 2],
    pub(crate) connections: u64,
}

impl Two {
    pub(crate) fn with(configs: [Config; 2]) -> Two {
        Two { sides: configs.map(Side::new), handles: [Handle::NONE; 2], connections: 0 }
    }

    pub(crate) fn new(engines: [EngineKind; 2], folder: &Folder) -> Two {
        Two::with(engines.map(|engine| config(engine, &folder.socket())))
    }

    /// Adds a connection, whose cookie is how many there were before.
    pub(crate) fn add(&mut self, (a, b): (TcpStream, TcpStream)) {
        let cookie = self.connections;
        self.connections += 1;
        let [first, second] = &mut self.sides;
        self.handles =
            [first.channel.register(a, cookie).unwrap(), second.channel.register(b, cookie).unwrap()];
    }

    pub(crate) fn read_streams(&mut self) {
        for (side, handle) in self.sides.iter_mut().zip(self.handles) {
            side.channel.read_stream(handle).unwrap();
        }
    }

    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&mut Two) -> bool) {
        let mut patience = Patience::new();
        while !done(self) {
            let stats = || [self.sides[0].channel.stats(), self.sides[1].channel.stats()];
            assert!(!patience.is_over(), "{what}: {:?}", stats());
            for side in &mut self.sides {
                side.step(Duration::from_micros(200));
            }
        }
    }

    /// Until every connection so far is promoted.
    pub(crate) fn promoted(&mut self) {
        self.until("promotion", |two| {
            two.sides.iter().all(|side| side.channel.stats().promoted == two.connections)
        });
    }

    /// One connection that is promoted and read by both.
    pub(crate) fn connected(engines: [EngineKind; 2], folder: &Folder) -> Two {
        let mut two = Two::new(engines, folder);
        two.add(pair());
        two.read_streams();
        two.promoted();
        two
    }

    pub(crate) fn send(&mut self, side: usize, bytes: &[u8]) {
        let handle = self.handles[side];
        self.sides[side].channel.write_quiet(handle, bytes.to_vec()).unwrap();
    }
}

/// Bytes of a stream from `offset` on: different places look different.
pub(crate) fn pattern(offset: usize, count: usize) -> Vec<u8> {
    (offset..offset + count).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect()
}

/// A small generator of its own: a test names its seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound
    }
}
