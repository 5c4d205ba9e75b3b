//! What stands around this process: seccomp, a container, a control group.

use std::env;

use sys::capabilities::Capabilities;

use super::finding::Finding;
use super::system::{System, parse_list};

const AREA: &str = "confinement";

pub(super) fn findings(capabilities: &Capabilities, system: &System) -> Vec<Finding> {
    vec![seccomp(capabilities, system), container(system), cpu_quota(system)]
}

fn seccomp(capabilities: &Capabilities, system: &System) -> Finding {
    const NAME: &str = "seccomp";
    let mode = system.status("Seccomp").unwrap_or_default();
    let filters = system.status("Seccomp_filters").unwrap_or_default();
    match mode.as_str() {
        "0" => Finding::ok(AREA, NAME, "no filter"),
        "" => Finding::note(AREA, NAME, "unknown").instead("what works is found by trying"),
        _ if capabilities.ring.is_ok() => {
            Finding::ok(AREA, NAME, format!("mode {mode}, {filters} filter(s); io_uring passes"))
        }
        _ => Finding::note(AREA, NAME, format!("mode {mode}, {filters} filter(s)"))
            .instead("the epoll engine, if the filter is what forbids io_uring")
            .remedy("docker run --security-opt seccomp=PROFILE.json"),
    }
}

fn container(system: &System) -> Finding {
    const NAME: &str = "container";
    let variable = env::var("container").ok().filter(|name| !name.is_empty());
    let groups = system.read("/proc/1/cgroup").unwrap_or_default();
    let found = if let Some(name) = variable {
        Some(name)
    } else if env::var_os("KUBERNETES_SERVICE_HOST").is_some() || groups.contains("kubepods") {
        Some("kubernetes".to_owned())
    } else if system.exists("/.dockerenv") || groups.contains("docker") {
        Some("docker".to_owned())
    } else if system.exists("/run/.containerenv") {
        Some("podman".to_owned())
    } else if groups.contains("lxc") {
        Some("lxc".to_owned())
    } else {
        None
    };
    match found {
        None => Finding::ok(AREA, NAME, "no sign of one"),
        Some(name) => {
            Finding::ok(AREA, NAME, format!("{name}: limits and kernel settings may be those of the host"))
        }
    }
}

/// A quota below the number of CPUs makes the kernel stop threads in the middle of their work.
fn cpu_quota(system: &System) -> Finding {
    const NAME: &str = "cgroup cpu quota";
    let cpus = system.status("Cpus_allowed_list").map_or(0, |list| parse_list(&list).len());
    match quota(system) {
        None => Finding::ok(AREA, NAME, "none"),
        Some(quota) if quota + 0.001 >= cpus as f64 => Finding::ok(AREA, NAME, format!("{quota:.2} CPUs")),
        Some(quota) => Finding::note(AREA, NAME, format!("{quota:.2} of {cpus} CPUs"))
            .instead("threads beyond the quota are stopped until the next period: latency suffers")
            .remedy(format!(
                "serve with --threads {}, or raise the quota (docker run --cpus {cpus})",
                quota.floor().max(1.0)
            )),
    }
}

/// CPUs worth of time that the control group of this process may use: the tightest of its ancestors.
fn quota(system: &System) -> Option<f64> {
    let groups = system.read("/proc/self/cgroup")?;
    let mut quotas: Vec<f64> = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        if controllers.is_empty() {
            quotas.extend(ancestors(group).filter_map(|group| unified_quota(system, &group)));
        } else if controllers.split(',').any(|controller| controller == "cpu") {
            quotas.extend(ancestors(group).filter_map(|group| legacy_quota(system, &group)));
        }
    }
    quotas.into_iter().reduce(f64::min)
}

/// The group itself and every group above it, the root included: in a cgroup namespace the root is the container.
fn ancestors(group: &str) -> impl Iterator<Item = String> + '_ {
    std::path::Path::new(group)
        .ancestors()
        .map(|path| path.display().to_string().trim_end_matches('/').to_owned())
}

/// `cpu.max` of cgroup v2: "max 100000" or "150000 100000", in microseconds.
fn unified_quota(system: &System, group: &str) -> Option<f64> {
    let text = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        .iter()
        .find_map(|mount| system.read(&format!("{mount}{group}/cpu.max")))?;
    let (quota, period) = text.split_once(' ')?;
    ratio(quota.parse().ok()?, period.parse().ok()?)
}

/// `cpu.cfs_quota_us` of cgroup v1: -1 for none.
fn legacy_quota(system: &System, group: &str) -> Option<f64> {
    ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"].iter().find_map(|mount| {
        let quota: f64 = system.value(&format!("{mount}{group}/cpu.cfs_quota_us"))?;
        ratio(quota, system.value(&format!("{mount}{group}/cpu.cfs_period_us"))?)
    })
}

fn ratio(quota: f64, period: f64) -> Option<f64> {
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_tightest_quota_of_the_ancestors_counts() {
        let root = std::env::temp_dir().join(format!("megapipe-doctor-quota-{}", std::process::id()));
        for (path, text) in [
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/cpu.max", "400000 100000\n"),
            ("sys/fs/cgroup/a/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/cpu.max", "max 100000\n"),
        ] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, text).expect("a file");
        }
        assert_eq!(quota(&System::below(&root)), Some(1.5));
        fs::remove_dir_all(root).expect("removal");
    }
}
