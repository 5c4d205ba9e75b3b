//! The kernel's account of a process that connected.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use sys::packet::{self, Credentials};

use crate::sharing::Subject;

/// The numbers under which the kernel shows users and groups that this process's user namespace
/// does not hold (user_namespaces(7)): one for all of them. `None` where it holds all.
#[derive(Debug)]
pub(crate) struct Strangers {
    uid: Option<u32>,
    gid: Option<u32>,
}

impl Strangers {
    /// Reads them. Assumes the worse of what cannot be read.
    pub(crate) fn new() -> Strangers {
        const USUAL: u32 = 65_534;
        let number = |kind: &str| {
            let map = fs::read_to_string(format!("/proc/self/{kind}_map")).unwrap_or_default();
            let counts = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
            let overflow = fs::read_to_string(format!("/proc/sys/kernel/overflow{kind}"));
            let overflow = overflow.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(USUAL);
            (counts.sum::<u64>() < u32::MAX.into()).then_some(overflow)
        };
        Strangers { uid: number("uid"), gid: number("gid") }
    }

    /// The program that connected, as a policy describes it.
    ///
    /// # Errors
    ///
    /// Its user or group cannot be distinguished from others.
    pub(crate) fn subject(&self, socket: BorrowedFd<'_>, peer: Credentials) -> io::Result<Subject> {
        if self.uid == Some(peer.uid) || self.gid == Some(peer.gid) {
            return Err(io::Error::other("its user or group is not of this user namespace"));
        }
        let cgroup = of_process(socket, peer.pid, cgroup);
        let in_user_namespace = peer.uid == 0 && of_process(socket, peer.pid, is_in_user_namespace).is_some();
        Ok(Subject { uid: peer.uid, gid: peer.gid, cgroup, in_user_namespace })
    }
}

/// What is read of the process that connected, in its directory of /proc; `None` if it is gone.
fn of_process<T>(socket: BorrowedFd<'_>, pid: u32, read: impl FnOnce(&Path) -> Option<T>) -> Option<T> {
    let process = packet::process(socket);
    // /proc may be of another PID namespace, with other numbers.
    if fs::read_link("/proc/self").ok()? != Path::new(&std::process::id().to_string()) {
        return None;
    }
    let found = read(Path::new(&format!("/proc/{pid}")))?;
    match process {
        // Until now no other process can have had its number.
        Ok(process) if packet::is_alive(process.as_fd()) => Some(found),
        // Before Linux 6.5 there is only the number.
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Some(found),
        _ => None,
    }
}

/// Its control group (version 2).
fn cgroup(process: &Path) -> Option<String> {
    let text = fs::read_to_string(process.join("cgroup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// Whether it is in this process's user namespace, as far as that may be read (ptrace(2)).
fn is_in_user_namespace(process: &Path) -> Option<()> {
    let namespace = |process: &Path| {
        let file = fs::metadata(process.join("ns/user")).ok()?;
        Some((file.dev(), file.ino()))
    };
    (namespace(process)? == namespace(Path::new("/proc/self"))?).then_some(())
}
