//! What concerns a whole process: limits, filters, forks, deaths. Tests of these run in
//! a process of their own, which is this test program again with one test chosen.

use std::io::{self, BufRead, BufReader};
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use rustix::thread::{CpuSet, UnshareFlags, sched_getaffinity, sched_setaffinity, unshare_unsafe};
use rustix::time::{ClockId, clock_gettime};

use crate::driver::WATCHDOG;

/// Nothing that other processes do takes nearly as long, however slow the machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Names the part that a child process plays in a test.
const ROLE: &str = "MEGAPIPE_TEST_ROLE";

/// The part this process plays in its test; `None` in the process that was started to
/// run tests.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// This test program, to run the test `name` alone and in the given role.
pub fn this_test_as(name: &str, role: &str) -> Command {
    let program = std::env::current_exe().expect("a running program has a path");
    let mut command = Command::new(program);
    command.args([name, "--exact", "--nocapture", "--include-ignored", "--test-threads=1"]).env(ROLE, role);
    command
}

/// Says in an isolated process's output that the body ran to its end.
const MARK: &str = "the isolated part ran to its end";

/// Runs `body` in a process of its own, which runs the test `name` only.
pub fn isolated(name: &str, body: impl FnOnce()) {
    isolated_as(this_test_as(name, "isolated"), body);
}

/// As [`isolated`], in a process that does without a feature of io_uring.
pub fn isolated_without(name: &str, feature: &str, body: impl FnOnce()) {
    const DISABLE: &str = "MEGAPIPE_DISABLE";
    let mut program = this_test_as(name, "isolated");
    let before = std::env::var(DISABLE).unwrap_or_default();
    program.env(DISABLE, format!("{before},{feature}"));
    isolated_as(program, body);
}

/// As [`isolated`], in a process made by `program`, which is [`this_test_as`] this one, `isolated`.
pub fn isolated_as(mut program: Command, body: impl FnOnce()) {
    if role().as_deref() == Some("isolated") {
        body();
        println!("{MARK}");
        return;
    }
    let output = program.stdin(Stdio::null()).output().expect("a test program can start itself");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains(MARK),
        "the test's own process ended with {}:\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    // What the body had to say, without the runner's frame.
    let said = text.lines().filter(|line| !line.is_empty() && !line.starts_with("running"));
    said.take_while(|line| *line != MARK).for_each(|line| println!("{line}"));
}

/// Where this is root's process: becomes the user's, without capabilities.
pub fn leave_root(user: libc::uid_t) {
    if rustix::process::geteuid().is_root() {
        // SAFETY: numbers only.
        assert_eq!(unsafe { libc::setresuid(user, user, user) }, 0, "{}", io::Error::last_os_error());
    }
}

/// Copies a program, by another program: while this one had the copy open for writing, another thread might fork, and
/// until that child has executed what it is for, nobody could execute the copy (ETXTBSY, execve(2)).
pub fn copy_program(from: &Path, to: &Path) {
    let copied =
        Command::new("install").args(["-m", "755"]).arg(from).arg(to).status().expect("install runs");
    assert!(copied.success(), "{} is copied to {}", from.display(), to.display());
}

/// The library that is loaded into programs.
pub fn preload_library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| built("megapipe-preload", "libmegapipe_preload.so"))
}

/// A file of another package, built where this test was: cargo builds none for the tests of a package.
/// `scripts/test.sh` has built all packages at once and says so by MEGAPIPE_TEST_BUILT; cargo would build
/// some of them again, with the features of that package alone.
pub fn built(package: &str, file: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its path");
    let directory = test.parent().and_then(Path::parent).expect("target/PROFILE/deps");
    if std::env::var_os("MEGAPIPE_TEST_BUILT").is_none() {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--locked", "--quiet", "--package", package]);
        build.args(directory.ends_with("release").then_some("--release"));
        build.arg("--target-dir").arg(directory.parent().expect("target"));
        build.current_dir(env!("CARGO_MANIFEST_DIR"));
        assert!(build.status().expect("cargo runs").success(), "{package} is built");
    }
    let file = directory.join(file);
    assert!(file.exists(), "there is no {}", file.display());
    file
}

/// The calling thread's one ring, without its registered descriptor (IORING_UNREGISTER_RING_FDS):
/// until it is mended, an io_uring_enter(2) that names that fails with EBADF.
pub struct BrokenRing(RawFd);

impl BrokenRing {
    /// Breaks the ring; `None` where its descriptor was not registered.
    pub fn new() -> Option<BrokenRing> {
        let mut descriptors = std::fs::read_dir("/proc/self/fd").expect("proc is mounted").flatten();
        let ring = descriptors.find(|entry| {
            std::fs::read_link(entry.path()).is_ok_and(|link| link == Path::new("anon_inode:[io_uring]"))
        })?;
        let ring = BrokenRing(ring.file_name().to_str()?.parse().ok()?);
        const UNREGISTER: libc::c_uint = 21;
        ring.update(UNREGISTER, 0).then_some(ring)
    }

    /// Registers it again, in its old place.
    pub fn mend(self) {
        const REGISTER: libc::c_uint = 20;
        assert!(self.update(REGISTER, self.0 as u64), "{}", io::Error::last_os_error());
    }

    fn update(&self, operation: libc::c_uint, data: u64) -> bool {
        // `struct io_uring_rsrc_update`: the thread's first place, and the data.
        let mut update = [0, data];
        // SAFETY: the kernel reads and writes one live update.
        unsafe { libc::syscall(libc::SYS_io_uring_register, self.0, operation, &raw mut update, 1) == 1 }
    }
}

/// What `look` finds, waited for. A time in which this process was stopped hardly counts.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    const MOST_EACH: Duration = Duration::from_secs(1);
    let mut waited = Duration::ZERO;
    loop {
        let began = Instant::now();
        if let Some(found) = look() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(1));
        waited += began.elapsed().min(MOST_EACH);
        assert!(waited < PATIENCE, "{what}: waited in vain");
    }
}

/// The end of a child, waited for.
pub fn until_ended(what: &str, child: &mut Child) -> ExitStatus {
    until(what, || child.try_wait().expect("a child of this process"))
}

/// The children of a process, of whichever thread.
pub fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.map(|thread| std::fs::read_to_string(thread.path().join("children")));
    let lists = lists.flatten().collect::<Vec<_>>();
    lists.iter().flat_map(|list| list.split_whitespace()).filter_map(|pid| pid.parse().ok()).collect()
}

/// Sends a signal to a process that this test, or what it started, has started and not waited for.
pub fn signal(pid: u32, signal: libc::c_int) {
    // SAFETY: plain system call.
    let sent = unsafe { libc::kill(pid as libc::pid_t, signal) };
    assert_eq!(sent, 0, "{}", io::Error::last_os_error());
}

/// A child process that is ended with the test, whatever becomes of that.
pub struct Fosterling(Child);

impl Fosterling {
    /// Starts it.
    pub fn start(command: &mut Command) -> Fosterling {
        Fosterling::try_start(command).expect("a test program can start itself")
    }

    /// The same, as another user perhaps, who may not be able to.
    pub fn try_start(command: &mut Command) -> io::Result<Fosterling> {
        command.spawn().map(Fosterling)
    }

    /// The child.
    pub fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        self.0.kill().expect("an unreaped child can be signalled");
        self.0.wait().expect("an unreaped child can be waited for");
    }

    /// Stops it once all of its threads have been asleep for a while, so that it stays as
    /// it is.
    pub fn stop_asleep(&mut self) {
        let tasks = format!("/proc/{}/task", self.0.id());
        let all_are = |state: &str| {
            std::fs::read_dir(&tasks).is_ok_and(|mut tasks| {
                tasks.all(|task| {
                    let path = task.expect("a thread").path().join("stat");
                    std::fs::read_to_string(path).is_ok_and(|text| text.contains(&format!(") {state} ")))
                })
            })
        };
        let mut asleep = 0;
        until("a process that sleeps", || {
            asleep = if all_are("S") { asleep + 1 } else { 0 };
            (asleep == 50).then_some(())
        });
        kill_process(Pid::from_child(&self.0), Signal::STOP).expect("the child is there");
        until("a process that is stopped", || all_are("T").then_some(()));
    }
}

impl Drop for Fosterling {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A monitor, which listens at `socket` and lets programs of one user share, root's too; its policy lies beside that.
pub fn start_monitor(program: &Path, socket: &Path) -> Fosterling {
    let policy = socket.with_file_name("policy.toml");
    std::fs::write(&policy, "same_user = true\n").expect("the directory can be written to");
    let mut command = Command::new(program);
    listening_monitor(command.arg("monitor").arg("--socket").arg(socket).arg("--config").arg(policy))
}

/// The monitor that a command starts, once it says that it listens: its socket is there earlier, when nobody can
/// connect, or not everybody.
pub fn listening_monitor(command: &mut Command) -> Fosterling {
    let mut monitor = Fosterling::start(command.env_remove("MEGAPIPE_LOG").stderr(Stdio::piped()));
    let mut log = BufReader::new(monitor.child().stderr.take().expect("it is piped"));
    let mut said = String::new();
    while !said.contains("the monitor listens") {
        assert!(log.read_line(&mut said).expect("it is text") > 0, "the monitor ended: {said}");
    }
    // Whatever it says later must not fill the pipe.
    std::thread::spawn(move || io::copy(&mut log, &mut io::sink()));
    monitor
}

/// Sets a variable of this process's environment; only in a process of the test's own.
pub fn set_variable(name: &str, value: &str) {
    assert_eq!(role().as_deref(), Some("isolated"), "other tests share this environment");
    // SAFETY: the process runs this one test, so no other thread looks at the environment.
    unsafe { std::env::set_var(name, value) };
}

/// Descriptors this process has open.
pub fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc is mounted").count() - 1
}

/// Waits until a monitor of this process, which has no TCP sockets of its own, has closed those
/// that it was offered, and its connections to clients that are gone.
pub fn await_closes() {
    until("closed sockets", || {
        let mut entries = std::fs::read_dir("/proc/self/fd").expect("proc is mounted");
        let open = entries.any(|entry| {
            let number = entry.expect("an open descriptor").file_name().to_str().map(str::parse);
            number.is_some_and(|number| is_left_over(number.expect("a number")))
        });
        (!open).then_some(())
    });
}

/// Whether it is a TCP socket, or one whose peer is gone.
fn is_left_over(fd: RawFd) -> bool {
    let Ok(protocol) = sys::message::protocol(fd) else { return false };
    let mut poll = libc::pollfd { fd, events: 0, revents: 0 };
    // SAFETY: one live pollfd.
    let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
    protocol == libc::IPPROTO_TCP || (ready == 1 && poll.revents & libc::POLLHUP != 0)
}

/// Limits this process's descriptors so that exactly `count` more can be opened: the limit
/// bounds their numbers (getrlimit(2)), which have gaps where some were closed.
pub fn leave_descriptors(count: u64) {
    let numbers = std::fs::read_dir("/proc/self/fd").expect("proc is mounted");
    let mut open: Vec<u64> =
        numbers.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    open.sort_unstable();
    // The listing itself is one of those listed, and closed by now: the first free number
    // is found by asking.
    let probe = std::fs::File::open("/dev/null").expect("there is a descriptor to spare");
    let first_free = probe.as_raw_fd() as u64;
    drop(probe);
    let free = (first_free..).filter(|number| *number == first_free || open.binary_search(number).is_err());
    limit_descriptors(free.take(count as usize).last().map_or(first_free, |last| last + 1));
}

/// Lowers (or raises up to the hard limit) the number of descriptors this process may have.
pub fn limit_descriptors(count: u64) {
    limit(Resource::Nofile, count);
}

/// How many descriptors this process may have at most: the hard limit.
pub fn descriptors_max() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

/// The same for the bytes that a file may come to have by this process (RLIMIT_FSIZE).
pub fn limit_file_size(bytes: u64) {
    limit(Resource::Fsize, bytes);
}

fn limit(resource: Resource, value: u64) {
    let limits = getrlimit(resource);
    let current = limits.maximum.map_or(value, |most| value.min(most));
    setrlimit(resource, Rlimit { current: Some(current), ..limits }).expect("setrlimit");
}

/// Gives the calling thread a network of its own, which has a loopback and nothing else
/// (network_namespaces(7)); its other system calls stay as they were.
pub fn enter_own_network() -> io::Result<()> {
    // SAFETY: no descriptor table or memory becomes another.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: a request is plain bytes, for which zero is a value; the name fits, and the
    // kernel reads one live struct.
    let status = unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[..2].copy_from_slice(&[b'l' as libc::c_char, b'o' as libc::c_char]);
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw mut request)
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// CPU time the calling thread has used.
pub fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Binds the calling thread to one CPU; false if it may not run there.
pub fn pin_to(cpu: u32) -> bool {
    let mut set = CpuSet::new();
    set.set(cpu as usize);
    sched_setaffinity(None, &set).is_ok()
}

/// The CPUs the calling thread may run on.
pub fn cpus() -> Vec<u32> {
    let Ok(set) = sched_getaffinity(None) else { return vec![0] };
    (0..CpuSet::MAX_CPU as u32).filter(|&cpu| set.is_set(cpu as usize)).collect()
}

/// Forbids io_uring_setup(2) to this process, as container runtimes do (seccomp(2)).
pub fn forbid_io_uring() {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let program = [
        // The number of the system call is the first word of `struct seccomp_data`.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_io_uring_setup as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies a live program of the given length.
    let status = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        // All threads: the test runner's too, which make no rings.
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &raw const filter,
        )
    };
    assert_eq!(status, 0, "seccomp: {}", io::Error::last_os_error());
}

/// Forks; the child runs `body`, which must not return by a panic, and exits with its
/// result. Returns the child's exit status.
pub fn in_forked_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs `body` on the one thread it has and leaves through `_exit`,
    // which runs none of the parent's exit handlers.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", io::Error::last_os_error());
    if child == 0 {
        let status = body();
        // SAFETY: ends the process.
        unsafe { libc::_exit(status) };
    }
    let start = Instant::now();
    let mut status = 0;
    loop {
        // SAFETY: the kernel writes a live integer; the child is ours and unreaped.
        let reaped = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
        if reaped == child {
            break;
        }
        if start.elapsed() > WATCHDOG {
            // SAFETY: the child is ours and unreaped, so the number is still its own.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) }
}
