//! The processors that this process may use.

use super::finding::Finding;
use super::system::{System, format_list, parse_list};

const AREA: &str = "cpu";

pub(super) fn findings(system: &System) -> Vec<Finding> {
    let online =
        system.read("/sys/devices/system/cpu/online").map(|list| parse_list(&list)).unwrap_or_default();
    let allowed = system.status("Cpus_allowed_list").map(|list| parse_list(&list)).unwrap_or_default();
    let mut findings = vec![
        Finding::ok(AREA, "online", format!("{} ({})", online.len(), format_list(&online))),
        if allowed.len() < online.len() {
            Finding::note(
                AREA,
                "affinity",
                format!("{} of {} ({})", allowed.len(), online.len(), format_list(&allowed)),
            )
            .instead("channels only on these; connections whose packets arrive elsewhere are steered by hash")
            .remedy(
                "taskset -pc ALL $$   (docker run --cpuset-cpus ALL)".replace("ALL", &format_list(&online)),
            )
        } else {
            Finding::ok(AREA, "affinity", "all")
        },
    ];
    findings.extend(threads_of_a_core(system, &allowed));
    findings
}

/// Two channels on two threads of one core share its execution units.
fn threads_of_a_core(system: &System, allowed: &[u32]) -> Option<Finding> {
    let mut cores: Vec<String> = allowed
        .iter()
        .filter_map(|cpu| {
            system.read(&format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
        })
        .collect();
    let cpus = cores.len();
    cores.sort();
    cores.dedup();
    (cpus > 0).then(|| Finding::ok(AREA, "cores", format!("{} with {} hardware threads", cores.len(), cpus)))
}
