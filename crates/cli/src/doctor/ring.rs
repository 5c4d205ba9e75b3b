//! The io_uring features: what each is good for, and what takes its place.

use sys::capabilities::{
    Capabilities, DISABLE_VARIABLE, Feature, OLDEST_LINUX, RingUnavailable, unknown_disabled,
};

use super::finding::Finding;
use super::limits;
use super::system::System;

const AREA: &str = "io_uring";

pub(super) fn findings(capabilities: &Capabilities, engine: Option<&str>, system: &System) -> Vec<Finding> {
    let mut findings = Vec::new();
    let instead = match engine {
        Some(_) => "the epoll engine",
        None => "nothing: Megapipe programs end at start",
    };
    findings.push(match capabilities.ring {
        Ok(()) => Finding::ok(AREA, "ring", "works"),
        Err(reason) => Finding::missing(AREA, "ring", reason.to_string())
            .instead(instead)
            .remedy(ring_remedy(reason, system)),
    });
    findings.extend(capabilities.features().map(|feature| match capabilities.ring {
        Ok(()) => feature_finding(feature),
        Err(_) => Finding::missing(AREA, feature.name, "not tried: no ring").instead(instead),
    }));
    findings.extend(unknown_disabled().iter().map(|name| {
        Finding::note(AREA, DISABLE_VARIABLE, format!("names no feature: {name}"))
            .instead("the name is ignored")
            .remedy(format!("use these names: {}", Capabilities::names().collect::<Vec<_>>().join(", ")))
    }));
    findings
}

fn feature_finding(feature: Feature) -> Finding {
    let Feature { name, since, available, disabled } = feature;
    let instead = replacement(name);
    if available {
        Finding::ok(AREA, name, "works")
    } else if disabled {
        Finding::missing(AREA, name, format!("switched off by {DISABLE_VARIABLE}"))
            .instead(instead)
            .remedy(format!("unset {DISABLE_VARIABLE}"))
    } else {
        Finding::missing(AREA, name, "does not work here")
            .instead(instead)
            .remedy(format!("run Linux {} or later (and enable what it stands on)", at_least_oldest(since)))
    }
}

/// A release that has the feature and is not older than those that are tested.
fn at_least_oldest(since: &'static str) -> &'static str {
    let number = |release: &str| -> Vec<u32> { release.split('.').flat_map(str::parse).collect() };
    if number(since) < number(OLDEST_LINUX) { OLDEST_LINUX } else { since }
}

/// What Megapipe uses where the feature is missing.
fn replacement(feature: &str) -> &'static str {
    match feature {
        "defer_taskrun" => {
            "COOP_TASKRUN: completions are worked off in any system call, at a little more CPU time"
        }
        "coop_taskrun" => "the ring's plain mode, which interrupts the thread to complete requests",
        "taskrun_flag" => "one system call per look at the ring while spinning",
        "submit_all" => "submission again from behind a request with an error",
        "no_sqarray" => "an index array, filled once at start",
        "registered_ring_fd" => "the ring's descriptor, looked up in each call",
        "multishot_accept" => "one accept request per connection",
        "accept_reports_more" => "nothing: `pending` of an accepted connection is false",
        "multishot_recv" => "one receive request per message",
        "multishot_recvmsg" => "one receive request per datagram",
        "recv_len_cap" => {
            "nothing: a busy connection may bring many buffers at a time, and latency of others suffers"
        }
        "buffer_ring" => "the epoll engine: reads have nowhere to put their bytes",
        "sparse_files" => "ordinary descriptors, kept private, for lightweight sockets",
        "direct_descriptors_safe" => {
            "ordinary descriptors, kept private, for lightweight sockets; epoll for the receiver of crate mmsg"
        }
        "fixed_fd_install" => "ordinary descriptors, kept private, for lightweight sockets",
        "cqe_skip" => "the epoll engine: successful steps would drown the others in completions",
        "min_wait" => "the first completion ends a wait: smaller batches under a latency bound",
        "async_cancel_fd" => "the epoll engine: a close could not end what is pending",
        "recv_tells_cut" => "recvmsg in place of recv for recvmmmsg without MSG_TRUNC, at more CPU time",
        "poll_tells_one" => "a second look at each socket after a datagram, for the receiver of crate mmsg",
        _ => "a slower way to the same result",
    }
}

fn ring_remedy(reason: RingUnavailable, system: &System) -> String {
    match reason {
        RingUnavailable::Disabled => format!("unset {DISABLE_VARIABLE}"),
        RingUnavailable::LockedMemory(_) => limits::more_locked_memory(system),
        RingUnavailable::Memory(_) => "free memory, or raise the limit of the control group \
                                       (systemd: MemoryMax=; docker run --memory)"
            .to_owned(),
        RingUnavailable::Descriptors(_) => limits::more_open_files(system),
        _ if is_confined(system) => "docker run --security-opt seccomp=PROFILE.json, where the profile allows \
                                     io_uring_setup, io_uring_enter and io_uring_register \
                                     (systemd: SystemCallFilter=@io-event io_uring_setup io_uring_enter io_uring_register)"
            .to_owned(),
        _ if system.value::<u32>("/proc/sys/kernel/io_uring_disabled").is_some_and(|value| value > 0) => {
            system.as_root("sysctl -w kernel.io_uring_disabled=0")
        }
        RingUnavailable::Missing(_) => {
            format!("run Linux {OLDEST_LINUX} or later, built with CONFIG_IO_URING=y")
        }
        RingUnavailable::Forbidden(_) | RingUnavailable::Failed(_) => {
            "ask the security module (SELinux: ausearch -m avc; AppArmor: dmesg | grep apparmor)".to_owned()
        }
    }
}

/// Whether a seccomp filter is on this process, which is the likeliest reason for a refusal.
fn is_confined(system: &System) -> bool {
    system.status("Seccomp").is_some_and(|mode| mode != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_linux_is_the_one_that_is_tested() {
        let page = include_str!("../../../../docs/channel.md");
        assert!(page.contains(&format!("Linux {OLDEST_LINUX} is the oldest")));
        let script = include_str!("../../../../scripts/test-kernels.sh");
        assert!(script.contains(&format!("VERSIONS=({OLDEST_LINUX} ")));
    }

    #[test]
    fn no_remedy_is_older_than_what_is_tested() {
        assert_eq!(at_least_oldest("5.19"), OLDEST_LINUX);
        assert_eq!(at_least_oldest("6.13"), "6.13");
    }

    #[test]
    fn every_feature_has_a_replacement_of_its_own() {
        for feature in Capabilities::get().features() {
            assert_ne!(replacement(feature.name), replacement("no such feature"), "{}", feature.name);
        }
    }
}
