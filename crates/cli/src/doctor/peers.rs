//! The peers of a process on this host, and what keeps its connections to them from being
//! promoted: a process only knows that the other endpoint was not offered (`no-peer`).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::finding::Finding;
use super::process;
use crate::programs;

const AREA: &str = "peers";
/// Programs that are named.
const MOST: usize = 4;
/// TCP_ESTABLISHED, as /proc/net/tcp has it.
const ESTABLISHED: &str = "01";

/// A connection of this network namespace, as seen from one endpoint (proc_pid_net(5)).
struct End {
    local: SocketAddr,
    remote: SocketAddr,
    /// The inode of its socket.
    inode: u64,
}

/// One finding for each program that some connections lead to; none where all lead elsewhere.
pub(super) fn findings(pid: u32) -> Vec<Finding> {
    let ends: Vec<End> = ["tcp", "tcp6"]
        .into_iter()
        .filter_map(|name| fs::read_to_string(format!("/proc/{pid}/net/{name}")).ok())
        .flat_map(|text| text.lines().filter_map(end_of).collect::<Vec<_>>())
        .collect();
    let own: HashSet<u64> = programs::sockets(pid).map(|(_, inode)| inode).collect();
    let by_addresses: HashMap<_, u64> = ends.iter().map(|end| ((end.local, end.remote), end.inode)).collect();
    let mut wanted: HashMap<u64, usize> = HashMap::new();
    for end in ends.iter().filter(|end| own.contains(&end.inode)) {
        // 0: it has not been accepted.
        if let Some(other) = by_addresses.get(&(end.remote, end.local)).filter(|other| **other != 0) {
            *wanted.entry(*other).or_default() += 1;
        }
    }
    let mut peers: BTreeMap<u32, usize> = BTreeMap::new();
    for other in programs::all() {
        for (_, inode) in programs::sockets(other) {
            // A socket that several processes have counts for the first of them.
            if let Some(count) = wanted.remove(&inode) {
                *peers.entry(other).or_default() += count;
            }
        }
        if wanted.is_empty() {
            break;
        }
    }
    let mut findings: Vec<Finding> =
        peers.into_iter().take(MOST).map(|(peer, count)| finding(peer, count)).collect();
    let unknown: usize = wanted.values().sum();
    if unknown > 0 {
        let found = format!("{} to programs that this user may not look at", connections(unknown));
        findings.push(Finding::note(AREA, "others", found).remedy(as_root(pid)));
    }
    findings
}

fn finding(peer: u32, count: usize) -> Finding {
    let name = programs::name_and_user(peer).map_or_else(String::new, |(name, _)| name);
    let found = format!("{} to {name}, pid {peer}", connections(count));
    match programs::library_of(peer) {
        Ok(None) => Finding::note(AREA, name, format!("{found}, which is not under Megapipe"))
            .instead("they stay on TCP (`no-peer`)")
            .remedy(format!("megapipe doctor {peer}")),
        Ok(Some(_)) if process::uring(peer).is_some() => {
            Finding::note(AREA, name, format!("{found}, which keeps an io_uring"))
                .instead("if its ring is not followed, they stay on TCP: `io_uring` there, `no-peer` here")
                .remedy(format!("megapipe doctor {peer}"))
        }
        Ok(Some(_)) => Finding::ok(AREA, name, format!("{found}, which is under Megapipe")),
        Err(_) => Finding::note(AREA, name, format!("{found}, which this user may not look at"))
            .remedy(as_root(peer)),
    }
}

fn as_root(pid: u32) -> String {
    match rustix::process::geteuid().is_root() {
        true => "ask outside of this namespace, or with CAP_SYS_PTRACE".into(),
        false => format!("sudo megapipe doctor {pid}"),
    }
}

fn connections(count: usize) -> String {
    format!("{count} connection{}", if count == 1 { "" } else { "s" })
}

/// A line of /proc/net/tcp or tcp6 about an established connection.
fn end_of(line: &str) -> Option<End> {
    let mut fields = line.split_whitespace().skip(1);
    let (local, remote, state) = (fields.next()?, fields.next()?, fields.next()?);
    let inode = fields.nth(5)?.parse().ok()?;
    (state == ESTABLISHED).then_some(End { local: address(local)?, remote: address(remote)?, inode })
}

/// `0100007F:1F90`: words in the machine's order, and the port. What is IPv4 mapped to IPv6 is IPv4.
fn address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.split_once(':')?;
    let word = |at: usize| u32::from_str_radix(host.get(8 * at..8 * at + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip = match host.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let mut bytes = [0; 16];
            for (at, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(at)?);
            }
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn lines_are_read_as_the_kernel_writes_them() {
        let line = "   3: 0100007F:1F90 0200007F:D431 01 00000000:00000000 00:00000000 00000000  1000        0 48213 1 0 20 4 30 10 -1";
        let end = end_of(line).unwrap();
        assert_eq!(
            (end.local, end.remote, end.inode),
            ("127.0.0.1:8080".parse().unwrap(), "127.0.0.2:54321".parse().unwrap(), 48213)
        );
        assert!(end_of(&line.replace(" 01 ", " 0A ")).is_none(), "it listens");
        let mapped = "0000000000000000FFFF00000100007F:1F90";
        assert_eq!(address(mapped), Some(end.local));
        let six = "B80D0120000000000000000001000000:0050";
        assert_eq!(address(six), "[2001:db8::1]:80".parse().ok());
        for broken in ["", "0100007F", "0100007:1F90", "0100007F:1F90F", "x100007F:1F90", "é000000:0050"] {
            assert_eq!(address(broken), None, "{broken}");
        }
    }
}
