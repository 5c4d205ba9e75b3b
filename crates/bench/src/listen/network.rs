//! Two network namespaces that a veth pair joins, with packets spread over all CPUs at both ends (RPS).

use std::ffi::OsStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};

/// Removed when dropped.
#[derive(Debug)]
pub(super) struct Network {
    server: String,
    client: String,
}

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 2);

impl Network {
    /// Makes them; needs root and ip(8).
    pub(super) fn new() -> io::Result<Network> {
        let pid = std::process::id();
        let network = Network { server: format!("mp-listen-s{pid}"), client: format!("mp-listen-c{pid}") };
        let Network { server, client } = &network;
        let prefix = "/24";
        ip(&["netns", "add", server])?;
        ip(&["netns", "add", client])?;
        ip(&[
            "link", "add", "veth0", "netns", server, "type", "veth", "peer", "name", "veth0", "netns", client,
        ])?;
        for (name, address) in [(server, SERVER), (client, CLIENT)] {
            ip(&["-n", name, "addr", "add", &format!("{address}{prefix}"), "dev", "veth0"])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
            ip(&["-n", name, "link", "set", "veth0", "up"])?;
            run(inside(name, "sh").args(["-c", SETTINGS]))?;
        }
        Ok(network)
    }

    pub(super) fn address() -> IpAddr {
        SERVER.into()
    }

    pub(super) fn in_server(&self, program: impl AsRef<OsStr>) -> Command {
        inside(&self.server, program)
    }

    pub(super) fn in_client(&self, program: impl AsRef<OsStr>) -> Command {
        inside(&self.client, program)
    }

    /// Of the server's namespace.
    pub(super) fn set(&self, setting: &str, value: &str) -> io::Result<()> {
        run(self.in_server("sysctl").args(["-qw", &format!("{setting}={value}")]))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in [&self.server, &self.client] {
            // One that is not there needs no removal.
            let _ = ip(&["netns", "del", name]);
        }
    }
}

/// Short connections leave a port in TIME_WAIT each, which is not what is measured.
const SETTINGS: &str = "mask=$(printf %x $(((1 << $(nproc --all)) - 1)))
for queue in /sys/class/net/veth0/queues/rx-*; do echo $mask >$queue/rps_cpus; done
sysctl -qw net.core.somaxconn=4096 net.ipv4.tcp_max_syn_backlog=8192 net.ipv4.tcp_tw_reuse=1
sysctl -qw net.ipv4.tcp_max_tw_buckets=2000 net.ipv4.ip_local_port_range='10000 65000'";

/// The program becomes ip(8)'s process.
fn inside(namespace: &str, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]).arg(program);
    command
}

fn ip(arguments: &[&str]) -> io::Result<()> {
    run(Command::new("ip").args(arguments))
}

fn run(command: &mut Command) -> io::Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{command:?}: {}", words.trim())))
}
