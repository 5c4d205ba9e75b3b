//! Settings of the kernel.

use super::finding::Finding;
use super::system::System;

const AREA: &str = "kernel settings";
const QUEUE_WANTED: u32 = 4096;
/// The kernel's own default has 28,232 ports.
const PORTS_WANTED: u32 = 28_232;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

pub(super) fn findings(system: &System) -> Vec<Finding> {
    vec![
        io_uring_disabled(system),
        somaxconn(system),
        tcp_max_syn_backlog(system),
        ip_local_port_range(system),
        tcp_migrate_req(system),
        perf_event_paranoid(system),
    ]
}

fn path(name: &str) -> String {
    format!("/proc/sys/{}", name.replace('.', "/"))
}

fn absent(name: &str, instead: &str) -> Finding {
    Finding::note(AREA, name, "not in this kernel or namespace").instead(instead)
}

fn io_uring_disabled(system: &System) -> Finding {
    const NAME: &str = "kernel.io_uring_disabled";
    let remedy = system.as_root(&format!("sysctl -w {NAME}=0"));
    match system.value::<u32>(&path(NAME)) {
        None => Finding::ok(AREA, NAME, "no such setting: not restricted by it"),
        Some(0) => Finding::ok(AREA, NAME, "0"),
        Some(1) => Finding::note(AREA, NAME, "1: only for kernel.io_uring_group and CAP_SYS_ADMIN")
            .instead("the epoll engine for everybody else")
            .remedy(remedy),
        Some(value) => Finding::missing(AREA, NAME, format!("{value}: for nobody"))
            .instead("the epoll engine")
            .remedy(remedy),
    }
}

fn somaxconn(system: &System) -> Finding {
    const NAME: &str = "net.core.somaxconn";
    match system.value::<u32>(&path(NAME)) {
        None => absent(NAME, "the kernel cuts the backlog of listening sockets as it likes"),
        Some(value) if value >= QUEUE_WANTED => Finding::ok(AREA, NAME, value.to_string()),
        Some(value) => Finding::note(AREA, NAME, value.to_string())
            .instead(format!(
                "a listening socket holds {value} connections; in a burst the rest has to try again"
            ))
            .remedy(system.as_root(&format!("sysctl -w {NAME}={QUEUE_WANTED}"))),
    }
}

fn tcp_max_syn_backlog(system: &System) -> Finding {
    const NAME: &str = "net.ipv4.tcp_max_syn_backlog";
    let cookies = system.value::<u32>(&path("net.ipv4.tcp_syncookies")).unwrap_or(0) > 0;
    match system.value::<u32>(&path(NAME)) {
        None => absent(NAME, "the kernel's default"),
        Some(value) if value >= QUEUE_WANTED => Finding::ok(AREA, NAME, value.to_string()),
        Some(value) => Finding::note(AREA, NAME, value.to_string())
            .instead(if cookies {
                "SYN cookies beyond it: connections come up, without window scaling when clients send no timestamps"
            } else {
                "connection requests beyond it are dropped"
            })
            .remedy(system.as_root(&format!("sysctl -w {NAME}={QUEUE_WANTED}"))),
    }
}

fn ip_local_port_range(system: &System) -> Finding {
    const NAME: &str = "net.ipv4.ip_local_port_range";
    let range = system.read(&path(NAME));
    let bounds = range.as_deref().and_then(|range| {
        let (first, last) = range.split_once(char::is_whitespace)?;
        Some((first.trim().parse::<u32>().ok()?, last.trim().parse::<u32>().ok()?))
    });
    match bounds {
        None => absent(NAME, "the kernel's default"),
        Some((first, last)) => {
            let ports = (last + 1).saturating_sub(first);
            let found = format!("{first}-{last} ({ports} ports)");
            if ports >= PORTS_WANTED {
                Finding::ok(AREA, NAME, found)
            } else {
                Finding::note(AREA, NAME, found)
                    .instead(format!("at most {ports} connections from here to one address and port"))
                    .remedy(system.as_root(&format!("sysctl -w {NAME}=\"1024 65535\"")))
            }
        }
    }
}

fn tcp_migrate_req(system: &System) -> Finding {
    const NAME: &str = "net.ipv4.tcp_migrate_req";
    const LOST: &str = "connections that wait in the queue of a worker that stops are reset";
    match system.value::<u32>(&path(NAME)) {
        None => absent(NAME, LOST).remedy("run Linux 5.14 or later"),
        Some(0) => Finding::note(AREA, NAME, "0")
            .instead(LOST)
            .remedy(system.as_root(&format!("sysctl -w {NAME}=1"))),
        Some(value) => Finding::ok(AREA, NAME, value.to_string()),
    }
}

/// System calls of a process are counted at the tracepoint raw_syscalls:sys_enter, by a perf event where tracefs tells
/// its number, else by a BPF program.
fn perf_event_paranoid(system: &System) -> Finding {
    const NAME: &str = "kernel.perf_event_paranoid";
    const INSTEAD: &str = "`megapipe-bench` leaves system calls per transaction empty";
    let Some(level) = system.value::<i32>(&path(NAME)) else {
        return Finding::note(AREA, NAME, "no perf events in this kernel").instead(INSTEAD);
    };
    let has = |capability| system.has_capability(CAP_SYS_ADMIN) || system.has_capability(capability);
    if has(CAP_PERFMON) && has(CAP_BPF) {
        return Finding::ok(AREA, NAME, format!("{level}, lifted by capabilities"));
    }
    let sees_tracepoint = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"]
        .iter()
        .any(|directory| system.read(&format!("{directory}/events/raw_syscalls/sys_enter/id")).is_some());
    if sees_tracepoint && (level < 0 || has(CAP_PERFMON)) {
        return Finding::ok(AREA, NAME, level.to_string());
    }
    Finding::note(AREA, NAME, level.to_string())
        .instead(INSTEAD)
        .remedy("run `megapipe-bench` as root   (in a container: with CAP_PERFMON and CAP_BPF)")
}
