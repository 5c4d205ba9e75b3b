//! A program that runs: whether it is under Megapipe, and what keeps it from being.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use promote::summary::RingObstacle;
use promote::wire::view::Loop;
use promote::{Place, Reason};
use rustix::net::{SocketAddrUnix, getpeername};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::finding::Finding;
use super::listen;
use super::monitor::{Reach, user_name};
use super::peers;
use super::profile;
use super::program;
use super::system::System;
use crate::programs;
use crate::shell::quoted;

const AREA: &str = "process";

/// A process, as /proc describes it.
pub(super) struct Process {
    pid: u32,
    name: String,
    pub(super) user: u32,
    /// `NAME=value` of those that concern Megapipe; `None`: another user's.
    environment: Option<Vec<(String, OsString)>>,
    /// The result of `programs::library_of`.
    library: io::Result<Option<String>>,
    /// The socket of the monitor that it is connected to, if its environment does not say that any more.
    connected_to: Option<PathBuf>,
}

impl Process {
    /// `None`: there is no such process.
    pub(super) fn find(pid: u32) -> Option<Process> {
        let (name, user) = programs::name_and_user(pid)?;
        let (environment, library) = (environment(pid), programs::library_of(pid));
        let mut process = Process { pid, name, user, environment, library, connected_to: None };
        // Without the library it has no monitor, and its sockets are no concern of ours.
        if !process.names_monitor() && matches!(process.library, Ok(Some(_))) {
            process.connected_to = monitor_of(pid);
        }
        Some(process)
    }

    fn variable(&self, name: &str) -> Option<PathBuf> {
        let variables = self.environment.as_ref()?;
        let value = &variables.iter().find(|(known, _)| known == name)?.1;
        (!value.is_empty()).then(|| value.into())
    }

    pub(super) fn names_monitor(&self) -> bool {
        self.variable("MEGAPIPE_MONITOR").is_some()
    }

    /// Where its library looks for a monitor. The asker may be another user, root mostly, so what it trusts is no matter.
    pub(super) fn places(&self) -> Vec<Place> {
        if let Some(connected) = &self.connected_to {
            return vec![Place::chosen(connected.clone())];
        }
        if self.user == rustix::process::geteuid().as_raw() {
            return promote::viewer::places(self.variable("MEGAPIPE_MONITOR"));
        }
        if let Some(named) = self.variable("MEGAPIPE_MONITOR") {
            return vec![Place::chosen(named)];
        }
        let own = match self.variable("XDG_RUNTIME_DIR") {
            _ if self.user == 0 => return vec![Place::system(), Place::own_of_root()],
            Some(runtime) => runtime.join("megapipe/monitor.sock"),
            None => format!("/tmp/megapipe-{}/monitor.sock", self.user).into(),
        };
        vec![Place::system(), Place::chosen(own)]
    }

    /// The findings, and what to type next.
    pub(super) fn findings(&self, reach: &Reach, system: &System) -> (Vec<Finding>, Option<String>) {
        let Process { pid, name, .. } = self;
        let user = crate::setup::described(self.user);
        let mut findings = vec![Finding::ok(AREA, "program", format!("{name}, pid {pid}, user {user}"))];
        let library = match &self.library {
            Ok(library) => library,
            Err(error) => {
                let unreadable = Finding::missing(AREA, "library", format!("unknown: {error}"));
                if rustix::process::geteuid().is_root() {
                    findings.push(
                        unreadable.instead("the kernel lets not even this root inspect it (ptrace(2))"),
                    );
                    return (findings, None);
                }
                findings.push(unreadable.instead("only its user and root may inspect it"));
                return (findings, Some(format!("sudo megapipe doctor {pid}")));
            }
        };
        findings.extend(self.variables(library.is_some()));
        let next = match library {
            Some(path) => {
                findings.push(Finding::ok(AREA, "library", path));
                let (connected, next) = self.connected(reach);
                findings.push(connected);
                findings.extend(uring(*pid));
                findings.extend(peers::findings(*pid));
                reach.remedy().or(next)
            }
            None => {
                findings.push(
                    Finding::missing(AREA, "library", "not loaded").instead("its connections stay on TCP"),
                );
                let (obstacles, start) = self.obstacles(reach, system);
                findings.extend(obstacles);
                start.map(|start| self.start(&start))
            }
        };
        findings.extend(network(*pid));
        findings.extend(listen::finding(name));
        findings.extend(profile::of_process(*pid, system));
        (findings, next)
    }

    fn variables(&self, has_library: bool) -> Option<Finding> {
        let variables = self.environment.as_ref()?;
        let ours = variables.iter().filter(|(name, _)| name != "XDG_RUNTIME_DIR");
        let list: Vec<String> = ours.map(|(name, value)| format!("{name}={}", value.display())).collect();
        Some(match list.is_empty() {
            false => Finding::ok(AREA, "variables", list.join(" ")),
            true if has_library => Finding::note(
                AREA,
                "variables",
                "not readable: the program has overwritten its environment",
            )
            .instead("MEGAPIPE_MONITOR and other variables, if it was started with any, are not known here"),
            true => Finding::ok(AREA, "variables", "none of Megapipe's"),
        })
    }

    /// Whether a monitor has it among its clients.
    fn connected(&self, reach: &Reach) -> (Finding, Option<String>) {
        const NAME: &str = "connected";
        let clients = reach.view.iter().flat_map(|view| &view.loops).filter(|client| client.pid == self.pid);
        let clients: Vec<&Loop> = clients.collect();
        let promoted: u64 = clients.iter().map(|client| client.promoted).sum();
        // The program is as it has to be; what is missing is at the other side.
        let other_side = || {
            let user = user_name(self.user);
            let share =
                reach.policy_to_edit().unwrap_or_else(|| format!("sudo megapipe setup --allow {user}:OTHER"));
            Some(format!(
                "start the program at the other side with `megapipe run`, too; if it may be another user's: {share}"
            ))
        };
        match reach.socket() {
            Some(path) if promoted > 0 => {
                let found = format!("to {}, {promoted} promoted endpoints", path.display());
                let top = format!("megapipe top --once --socket {}", quoted(path.as_os_str()));
                (Finding::ok(AREA, NAME, found), Some(top))
            }
            Some(path) if !clients.is_empty() => {
                let found = format!("to {}, no promoted endpoint{}", path.display(), refusals(&clients));
                let finding = Finding::note(AREA, NAME, found)
                    .instead("its connections stay on TCP until the program at the other side is under `megapipe run`, too");
                (finding, other_side())
            }
            Some(_) => {
                let finding = Finding::note(AREA, NAME, "to no monitor")
                    .instead("none of its connections within this host had enough traffic yet, or it uses another monitor");
                (finding, other_side())
            }
            None => {
                let finding =
                    Finding::missing(AREA, NAME, "to no monitor").instead("its connections stay on TCP");
                (finding, Some("megapipe monitor, or for several users: sudo megapipe setup".into()))
            }
        }
    }

    /// What in its file or its rights keeps the library out, and the command that starts it with the library.
    fn obstacles(&self, reach: &Reach, system: &System) -> (Vec<Finding>, Option<String>) {
        let executable = PathBuf::from(format!("/proc/{}/exe", self.pid));
        // Where the file has been replaced, or lies in another mount namespace, the link still leads to it.
        let path = fs::read_link(&executable).ok().filter(|path| path.exists()).unwrap_or(executable);
        let name = called(self.pid, &self.name, &path).unwrap_or(path.into_os_string());
        let (mut findings, start) = program::findings(&name, reach, system);
        if is_secure(self.pid) {
            let secure = Finding::note(
                AREA,
                "rights",
                "it was started with more rights than its caller had (AT_SECURE)",
            )
            .instead("the loader ignores LD_PRELOAD")
            .remedy("start it directly as its own user, or check the profile of AppArmor or SELinux");
            findings.push(secure);
        }
        (findings, start)
    }

    /// How it is started again: by its unit, if it has one.
    fn start(&self, otherwise: &str) -> String {
        match unit(self.pid) {
            Some(unit) => format!(
                "systemctl edit {unit}, with `megapipe run --` before the command of ExecStart= (docs/services.md)"
            ),
            None => otherwise.to_owned(),
        }
    }
}

/// What the monitor refused these clients, by reason.
fn refusals(clients: &[&Loop]) -> String {
    let counts = Reason::OF_MONITOR.iter().enumerate().map(|(index, reason)| {
        let count: u64 = clients.iter().map(|client| client.refused[index]).sum();
        (count, reason)
    });
    let list: Vec<String> =
        counts.filter(|(count, _)| *count > 0).map(|(count, reason)| format!("{count} {reason}")).collect();
    if list.is_empty() { String::new() } else { format!("; refused: {}", list.join(", ")) }
}

/// The name by which the process was started, where that leads to its executable through a link: some programs
/// are several, by their name. It may have written a title over its arguments: then the first word.
fn called(pid: u32, comm: &str, executable: &Path) -> Option<OsString> {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let first = arguments.split(|byte| *byte == 0).next().unwrap_or_default();
    let word = first.split(|byte| *byte == b' ').next().unwrap_or_default();
    let names = [first, word, comm.as_bytes()].into_iter().map(OsStr::from_bytes);
    let mut names = names
        .filter(|name| !name.is_empty() && (name.as_bytes()[0] == b'/' || !name.as_bytes().contains(&b'/')));
    let is_it = |name: &&OsStr| {
        crate::run::file_of(name).and_then(|path| path.canonicalize().ok()).as_deref() == Some(executable)
    };
    names.find(is_it).map(OsStr::to_owned)
}

/// The variables that concern Megapipe (proc_pid_environ(5)): those that it was started with.
fn environment(pid: u32) -> Option<Vec<(String, OsString)>> {
    let bytes = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let lines = bytes.split(|byte| *byte == 0);
    let variables = lines.filter_map(|line| {
        let at = line.iter().position(|byte| *byte == b'=')?;
        let name = std::str::from_utf8(&line[..at]).ok()?.to_owned();
        let ours = name.starts_with("MEGAPIPE_") || name == "LD_PRELOAD" || name == "XDG_RUNTIME_DIR";
        ours.then(|| (name, OsString::from_vec(line[at + 1..].to_vec())))
    });
    Some(variables.collect())
}

/// The path of the monitor's socket that a process with the library is connected to. It may have overwritten its environment.
/// `None`, too, if this user may not take copies of its descriptors (pidfd_getfd(2)), which are taken of SOCK_SEQPACKET
/// sockets alone, one after another until one leads to a monitor.
fn monitor_of(pid: u32) -> Option<PathBuf> {
    // Another program's path may be no UTF-8.
    let sockets = fs::read(format!("/proc/{pid}/net/unix")).ok()?;
    let packets: HashSet<u64> = String::from_utf8_lossy(&sockets).lines().filter_map(packet_socket).collect();
    let process = pidfd_open(Pid::from_raw(pid.try_into().ok()?)?, PidfdFlags::empty()).ok()?;
    programs::sockets(pid).filter(|(_, inode)| packets.contains(inode)).find_map(|(number, _)| {
        let socket = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok()?;
        let listener = sys::packet::credentials(socket.as_fd()).ok()?.pid;
        let path = SocketAddrUnix::try_from(getpeername(&socket).ok()??).ok()?.path()?.into_owned();
        let path = PathBuf::from(OsString::from_vec(path.into_bytes()));
        let is_monitor = programs::name_and_user(listener).is_some_and(|(name, _)| name == "megapipe");
        // A relative one would lead from this command's own directory to some other socket.
        (is_monitor && path.is_absolute()).then_some(path)
    })
}

/// The inode of a line of /proc/net/unix (proc_pid_net(5)) about a SOCK_SEQPACKET socket.
fn packet_socket(line: &str) -> Option<u64> {
    let mut fields = line.split_whitespace().skip(4);
    (fields.next()? == "0005").then(|| fields.nth(1)?.parse().ok()).flatten()
}

/// A ring that the library does not follow keeps a program's connections on TCP, unless it was started with
/// `--io-uring files`.
pub(super) fn uring(pid: u32) -> Option<Finding> {
    let says_files = |(name, value): &(String, OsString)| name == "MEGAPIPE_IO_URING" && value == "files";
    if environment(pid).is_some_and(|variables| variables.iter().any(says_files)) {
        return None;
    }
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
    let is_ring =
        |path: &Path| fs::read_link(path).is_ok_and(|target| target.as_os_str() == "anon_inode:[io_uring]");
    let rings: Vec<_> = descriptors.filter(|entry| is_ring(&entry.path())).collect();
    let is_polled = |ring: &fs::DirEntry| {
        let number = ring.file_name();
        let about =
            fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", number.display())).unwrap_or_default();
        let thread = about.lines().find_map(|line| line.strip_prefix("SqThread:"));
        thread.is_some_and(|thread| thread.trim() != "-1")
    };
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let obstacle = match () {
        () if rings.is_empty() => return None,
        () if rings.iter().any(is_polled) => RingObstacle::Polled,
        () if maps.contains("/liburing") => RingObstacle::Liburing,
        () => {
            let found = "it has a ring of its own, which is followed if it is made and entered through libc's syscall(2), as \
                         those of libuv (Node.js) and of Rust's io-uring";
            return Some(Finding::note(AREA, "io_uring", found).instead(
                "if not, its connections stay on TCP with the word `io_uring`, and the line below it in --stats says what helps",
            ));
        }
    };
    let advice = obstacle.advice();
    Some(Finding::note(AREA, "io_uring", advice).instead("else its connections stay on TCP (`io_uring`)"))
}

/// Both endpoints of a promoted connection are in one network namespace.
fn network(pid: u32) -> Option<Finding> {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    let differs = namespace(&pid.to_string())? != namespace("self")?;
    differs.then(|| {
        Finding::note(AREA, "network", "another network namespace than this shell's")
            .instead("only its connections with programs in the same one are promoted")
    })
}

/// AT_SECURE of its auxiliary vector (getauxval(3)).
fn is_secure(pid: u32) -> bool {
    const AT_SECURE: u64 = 23;
    let bytes = fs::read(format!("/proc/{pid}/auxv")).unwrap_or_default();
    let words: Vec<u64> =
        bytes.chunks_exact(8).filter_map(|word| word.try_into().ok().map(u64::from_ne_bytes)).collect();
    words.chunks_exact(2).any(|pair| pair[0] == AT_SECURE && pair[1] != 0)
}

/// `redis-server.service`, by its control group.
fn unit(pid: u32) -> Option<String> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let names = groups.lines().filter_map(|line| line.split(':').nth(2));
    let services = names.filter(|path| path.starts_with("/system.slice/"));
    services.flat_map(|path| path.split('/')).find(|part| part.ends_with(".service")).map(str::to_owned)
}
