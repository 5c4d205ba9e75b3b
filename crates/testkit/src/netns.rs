//! Tests in namespaces of their own: of the network, as a user without privileges would have
//! one, or of mounts.
//!
//! A process with threads cannot enter a user namespace (EINVAL), and the test runner has
//! threads. So the test executes itself again in a child that enters the namespaces between
//! fork and exec. There the user is one without capabilities outside, whatever the user of the
//! test run is, and `/dev/net/tun` is open to all.

use std::env;
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, OFlags, chmod, makedev, mknodat};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use rustix::process::{DumpableBehavior, getegid, geteuid, set_dumpable_behavior};
use rustix::thread::{
    Gid, Uid, UnshareFlags, set_thread_groups, set_thread_res_gid, set_thread_res_uid, unshare_unsafe,
};

use crate::skip::{self, Skipped};

const INSIDE: &str = "MEGAPIPE_TEST_NETNS";
const NOBODY: u32 = 65_534;
/// How many of the last lines of a failed child's output are kept in the panic's message.
const LINES_KEPT: usize = 200;

/// Runs the test of this name, of TUN devices, in namespaces of its own. Returns true there: the caller
/// goes on with the test. Returns false outside, once the test has passed inside or cannot run here.
///
/// # Panics
/// If the test fails inside, or takes longer than the bound.
pub fn enter(test: &str, bound: Duration) -> bool {
    // Root opens it to the child.
    if !is_inside(test)
        && !geteuid().is_root()
        && let Err(error) = File::options().read(true).write(true).open("/dev/net/tun")
    {
        skip(test, format!("/dev/net/tun cannot be opened: {error}"));
        return false;
    }
    enter_without_tun(test, bound)
}

/// As [`enter`], for a test that opens no TUN device.
///
/// # Panics
/// As [`enter`].
pub fn enter_without_tun(test: &str, bound: Duration) -> bool {
    if is_inside(test) {
        return true;
    }
    let plan = Plan::of(geteuid().as_raw(), getegid().as_raw());
    again(test, bound, "no namespaces for a user without privileges", move || plan.carry_out());
    false
}

fn is_inside(test: &str) -> bool {
    env::var(INSIDE).as_deref() == Ok(test)
}

/// As [`enter`], as root in a mount namespace where `/run` is empty and the test's own: no
/// monitor of this machine is met, and none of its files is touched.
///
/// # Panics
/// As [`enter`].
pub fn enter_own_run(test: &str, bound: Duration) -> bool {
    if is_inside(test) {
        return true;
    }
    again(test, bound, "no mount namespace (needs root)", own_run);
    false
}

/// Executes this test again in a child that has carried out `plan`, and waits for it.
fn again(
    test: &str,
    bound: Duration,
    obstacle: &str,
    plan: impl Fn() -> io::Result<()> + Send + Sync + 'static,
) {
    let program = env::current_exe().expect("the path of this test");
    // A file, not a pipe: processes that the child leaves behind keep a pipe open.
    let output = tempfile::tempfile().expect("a file for the output");
    let stream = || Stdio::from(output.try_clone().expect("another descriptor"));
    let mut command = Command::new(program);
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(INSIDE, test);
    command.stdin(Stdio::null()).stdout(stream()).stderr(stream());
    // SAFETY: every plan makes system calls only, and neither allocates nor locks.
    unsafe { command.pre_exec(plan) };
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            return skip(test, format!("{obstacle}: {error}"));
        }
    };
    let deadline = Instant::now() + bound;
    let failure = loop {
        if let Some(status) = child.try_wait().expect("wait for the child") {
            break (!status.success()).then(|| format!("failed in its namespace: {status}"));
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            break Some(format!("took longer than {bound:?}"));
        }
        thread::sleep(Duration::from_millis(5));
    };
    let lines = lines_of(output, test);
    if let Some(failure) = failure {
        let kept = &lines[lines.len().saturating_sub(LINES_KEPT)..];
        // Indented: a runner's frame in it is not taken for this process's.
        panic!("{test} {failure}; the last lines of its output:\n    {}", kept.join("\n    "));
    }
    lines.iter().for_each(|line| println!("{line}"));
}

fn skip(test: &str, reason: String) {
    println!("SKIPPED {test}: {reason}");
    skip::record(test, &Skipped::because(reason));
}

/// What a test printed, without the runner's frame around that.
fn lines_of(mut output: File, test: &str) -> Vec<String> {
    let mut bytes = Vec::new();
    output.rewind().and_then(|()| output.read_to_end(&mut bytes)).expect("the output is read");
    let text = String::from_utf8_lossy(&bytes);
    let begin = format!("test {test} ... ");
    let lines = text.lines().map(|line| line.strip_prefix(&begin).unwrap_or(line));
    let is_frame = |line: &&str| {
        line.is_empty() || *line == "ok" || *line == "running 1 test" || line.starts_with("test result: ")
    };
    lines.filter(|line| !is_frame(line)).map(str::to_owned).collect()
}

/// What the child does between fork and exec, all text ready: it may not allocate.
struct Plan {
    become_nobody: bool,
    uid_map: String,
    gid_map: String,
}

impl Plan {
    fn of(user: u32, group: u32) -> Plan {
        let become_nobody = user == 0;
        let (user, group) = if become_nobody { (NOBODY, NOBODY) } else { (user, group) };
        Plan { become_nobody, uid_map: format!("0 {user} 1"), gid_map: format!("0 {group} 1") }
    }

    fn carry_out(&self) -> io::Result<()> {
        if self.become_nobody {
            open_tun_to_all()?;
            drop_privileges()?;
        }
        enter_namespaces(UnshareFlags::NEWUSER | UnshareFlags::NEWNET)?;
        write_file(c"/proc/self/setgroups", b"deny")?;
        write_file(c"/proc/self/gid_map", self.gid_map.as_bytes())?;
        write_file(c"/proc/self/uid_map", self.uid_map.as_bytes())
    }
}

/// As root: a mount namespace in which `/dev/net/tun` has mode 0666, as udev makes it.
fn open_tun_to_all() -> io::Result<()> {
    const NODE: &CStr = c"/mnt/tun";
    const OPEN_TO_ALL: Mode = Mode::from_bits_retain(0o666);
    enter_own_mounts()?;
    mount(c"tmpfs", c"/mnt", c"tmpfs", MountFlags::empty(), None::<&CStr>)?;
    mknodat(CWD, NODE, FileType::CharacterDevice, OPEN_TO_ALL, makedev(10, 200))?;
    // mknod obeys the umask, chmod does not.
    chmod(NODE, OPEN_TO_ALL)?;
    Ok(mount_bind(NODE, c"/dev/net/tun")?)
}

/// An empty `/run` for this process and its children.
fn own_run() -> io::Result<()> {
    enter_own_mounts()?;
    mount(c"tmpfs", c"/run", c"tmpfs", MountFlags::empty(), None::<&CStr>)?;
    // The mode of a fresh tmpfs is 1777.
    Ok(chmod(c"/run", Mode::from_raw_mode(0o755))?)
}

fn enter_own_mounts() -> io::Result<()> {
    enter_namespaces(UnshareFlags::NEWNS)?;
    Ok(mount_change(c"/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?)
}

fn enter_namespaces(namespaces: UnshareFlags) -> io::Result<()> {
    // SAFETY: no descriptor table or memory becomes another.
    Ok(unsafe { unshare_unsafe(namespaces) }?)
}

/// Of a process with one thread.
fn drop_privileges() -> io::Result<()> {
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    set_thread_groups(&[])?;
    set_thread_res_gid(group, group, group)?;
    set_thread_res_uid(user, user, user)?;
    // A process that changed its user cannot write its own maps otherwise.
    Ok(set_dumpable_behavior(DumpableBehavior::Dumpable)?)
}

fn write_file(path: &CStr, text: &[u8]) -> io::Result<()> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, text)?;
    Ok(())
}
