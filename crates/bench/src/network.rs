//! Network namespaces of a measurement: this process's own, for clients, and others for servers, each joined to it by
//! a veth pair.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::{Reason, failed};

/// Moves this process, which must have one thread, into a network namespace of its own; a user without
/// privileges into a user namespace, too, where it may make devices.
pub(crate) fn enter_own() -> Result<(), Reason> {
    let none = "cannot make namespaces of its own; `megapipe doctor` says what this machine permits";
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    if user.is_root() {
        return unshare(UnshareFlags::NEWNET).map_err(failed(none));
    }
    unshare(UnshareFlags::NEWNET | UnshareFlags::NEWUSER).map_err(failed(none))?;
    let (users, groups) = (format!("0 {} 1", user.as_raw()), format!("0 {} 1", group.as_raw()));
    for (file, text) in [("setgroups", "deny"), ("gid_map", groups.as_str()), ("uid_map", users.as_str())] {
        fs::write(format!("/proc/self/{file}"), text).map_err(failed(none))?;
    }
    Ok(())
}

/// Another network namespace, which goes with its last process and this.
#[derive(Debug, Clone)]
pub(crate) struct Namespace(Arc<File>);

impl Namespace {
    /// A new one. A veth pair joins it to this process's; both ends have this name.
    pub(crate) fn joined(name: &str, here: Ipv4Addr, there: Ipv4Addr) -> Result<Self, Reason> {
        let made = thread::spawn(|| {
            unshare(UnshareFlags::NEWNET)?;
            File::open("/proc/thread-self/ns/net")
        });
        let file = made.join().map_err(|_| "the thread that makes a namespace has panicked")??;
        let made = Self(Arc::new(file));
        let own = std::process::id();
        let over_there = |arguments: &str| ip(made.command("ip"), arguments);
        over_there(&format!("link add {name} type veth peer name {name} netns {own}"))?;
        over_there("link set lo up")?;
        over_there(&format!("address add {there}/24 dev {name}"))?;
        over_there(&format!("link set {name} up"))?;
        ip(Command::new("ip"), &format!("address add {here}/24 dev {name}"))?;
        ip(Command::new("ip"), &format!("link set {name} up"))?;
        Ok(made)
    }

    /// One for servers, at [`SERVER`]; packets are spread over all CPUs at both ends (RPS).
    pub(crate) fn of_servers() -> Result<Self, Reason> {
        let servers = Self::joined("veth0", CLIENT, SERVER)?;
        ip(Command::new("ip"), "link set lo up")?;
        for mut shell in [Command::new("unshare"), servers.command("unshare")] {
            let set = shell.args(["--mount", "sh", "-ec", SPREAD]).output()?;
            if !set.status.success() {
                return Err(String::from_utf8_lossy(&set.stderr).trim().into());
            }
        }
        Ok(servers)
    }

    /// That of a process.
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        Ok(Self(Arc::new(File::open(format!("/proc/{pid}/ns/net"))?)))
    }

    /// A program that is to run there.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        self.enter(&mut command);
        command
    }

    /// Has a command run there.
    pub(crate) fn enter(&self, command: &mut Command) {
        let Self(file) = self.clone();
        // SAFETY: between fork and exec only setns is called, a plain system call.
        unsafe {
            command.pre_exec(move || {
                Ok(move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?)
            });
        }
    }
}

/// Where servers of [`Namespace::of_servers`] are.
pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 2);

/// sysfs shows the devices of the namespace that mounts it. Short connections leave a port in TIME_WAIT each, which is
/// not what is measured; and what is measured has to do without `tcp_migrate_req`.
const SPREAD: &str = "mount -t sysfs sysfs /sys
mask=$(printf %x $(((1 << $(nproc --all)) - 1)))
for queue in /sys/class/net/veth0/queues/rx-*; do echo $mask >$queue/rps_cpus; done
echo 2000 >/proc/sys/net/ipv4/tcp_max_tw_buckets
echo 0 >/proc/sys/net/ipv4/tcp_migrate_req";

/// Gives the calling thread another network namespace, with settings that are the same for every server. What cannot
/// be set stays as it is: the client then runs out of ports, and says so.
pub(crate) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: the table of descriptors stays shared, which is the only condition.
    unsafe { unshare_unsafe(flags) }?;
    for (name, value) in [
        // A client that closes first has 60 s of TIME_WAIT for each of its ports.
        ("ipv4/ip_local_port_range", "1024 65535"),
        ("ipv4/tcp_tw_reuse", "1"),
        ("ipv4/tcp_max_syn_backlog", "16384"),
        ("core/somaxconn", "16384"),
        // Nothing is lost on these links, and pacing would cost the kernel's server a timer a segment.
        ("ipv4/tcp_congestion_control", "cubic"),
        ("ipv4/tcp_congestion_control", "reno"),
    ] {
        let _ = fs::write(format!("/proc/sys/net/{name}"), value);
    }
    Ok(())
}

fn ip(mut command: Command, arguments: &str) -> Result<(), Reason> {
    let output = command.args(arguments.split(' ')).output();
    let output = output.map_err(failed("cannot run `ip`; install iproute2"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("`ip {arguments}`: {}", String::from_utf8_lossy(&output.stderr).trim()).into()),
    }
}
