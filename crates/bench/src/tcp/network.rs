//! Where client and servers meet: a network namespace of the benchmark's own, in which TUN devices
//! are made, and a second one at the other end of a veth pair.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::process::Command;

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Why there is no network to measure on.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// This user may not have namespaces of its own.
    #[error("cannot make namespaces of its own; `megapipe doctor` says what this machine permits")]
    Namespaces(#[source] io::Error),
    /// The program `ip` is missing or cannot be run.
    #[error("cannot run `ip`; install iproute2")]
    NoIp(#[source] io::Error),
    /// It failed; its own words.
    #[error("`ip {command}`: {words}")]
    Ip {
        /// Its arguments.
        command: String,
        /// What it printed.
        words: String,
    },
}

/// Moves this process, which must have one thread, into a network namespace of its own; a user without
/// privileges into a user namespace, too, where it may make devices.
pub(super) fn enter_own() -> Result<(), NetworkError> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let mut flags = UnshareFlags::NEWNET;
    if !user.is_root() {
        flags |= UnshareFlags::NEWUSER;
    }
    // SAFETY: the table of descriptors stays shared, which is the only condition.
    unsafe { unshare_unsafe(flags) }.map_err(|error| NetworkError::Namespaces(error.into()))?;
    if !user.is_root() {
        let write = |file: &str, text: String| {
            fs::write(format!("/proc/self/{file}"), text).map_err(NetworkError::Namespaces)
        };
        write("setgroups", "deny".to_owned())?;
        write("gid_map", format!("0 {} 1", group.as_raw()))?;
        write("uid_map", format!("0 {} 1", user.as_raw()))?;
    }
    tune();
    Ok(())
}

/// Settings of this network namespace, the same for every server. What cannot be set stays as it is:
/// the client then runs out of ports, and says so.
fn tune() {
    for (name, value) in [
        // A client that closes first has 60 s of TIME_WAIT for each of its ports.
        ("ip_local_port_range", "1024 65535"),
        ("tcp_tw_reuse", "1"),
        ("tcp_max_syn_backlog", "16384"),
        // Nothing is lost on these links, and pacing would cost the kernel's server a timer a segment.
        ("tcp_congestion_control", "cubic"),
        ("tcp_congestion_control", "reno"),
    ] {
        let _ = fs::write(format!("/proc/sys/net/ipv4/{name}"), value);
    }
    let _ = fs::write("/proc/sys/net/core/somaxconn", "16384");
}

/// How the kernel's TCP of this namespace controls congestion.
pub(super) fn congestion_control() -> String {
    let name = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    name.map_or("unknown".to_owned(), |name| name.trim().to_owned())
}

/// One network of the benchmark. Each measurement has another one: devices of the last may still be
/// on their way out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Network(u8);

impl Network {
    /// The network of this number, which wraps.
    pub(super) fn of(number: u64) -> Self {
        Network((number % 250) as u8)
    }

    /// Of the server.
    pub(super) fn server(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 78, self.0, 2)
    }

    fn client(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 78, self.0, 1)
    }

    /// The TUN device that the server makes.
    pub(super) fn tun(self) -> String {
        format!("tun:mpt{},{}/24", self.0, self.server())
    }

    fn ends(self) -> [String; 2] {
        ["c", "s"].map(|end| format!("mp{end}{}", self.0))
    }

    /// Makes a veth pair between this namespace and that of process `pid`, and this end of it ready.
    pub(super) fn connect_to(self, pid: u32) -> Result<(), NetworkError> {
        let [client, server] = self.ends();
        ip(&format!("link add {client} type veth peer name {server} netns {pid}"))?;
        ip(&format!("address add {}/24 dev {client}", self.client()))?;
        ip(&format!("link set {client} up"))
    }

    /// Makes the server's end ready, in the server's namespace.
    pub(super) fn connected(self) -> Result<(), NetworkError> {
        let [_, server] = self.ends();
        ip(&format!("address add {}/24 dev {server}", self.server()))?;
        ip(&format!("link set {server} up"))
    }
}

fn ip(command: &str) -> Result<(), NetworkError> {
    let output = Command::new("ip").args(command.split(' ')).output().map_err(NetworkError::NoIp)?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(NetworkError::Ip { command: command.to_owned(), words })
}
