//! The network cards: their queues, the CPUs that they interrupt, and how the kernel
//! spreads packets from there. A partitioned listener steers a connection to the channel
//! of the CPU that handled its SYN, so packets have to arrive on the CPUs that serve.

use super::finding::Finding;
use super::system::{System, format_list, hex_mask, parse_list, parse_mask};

const AREA: &str = "network";

pub(super) fn findings(system: &System) -> Vec<Finding> {
    let allowed = system.status("Cpus_allowed_list").map(|list| parse_list(&list)).unwrap_or_default();
    let cards: Vec<Card> =
        system.names("/sys/class/net").into_iter().filter_map(|name| Card::read(system, name)).collect();
    let mut findings = Vec::new();
    if cards.is_empty() {
        findings.push(Finding::ok(AREA, "cards", "none: loopback and virtual interfaces only"));
    }
    for card in &cards {
        findings.extend(card.findings(system, &allowed));
    }
    findings.extend(virtual_steering(system));
    findings.push(flow_steering(system));
    findings
}

/// A network interface with hardware (or a virtual machine's idea of it) behind it.
struct Card {
    name: String,
    driver: Option<String>,
    state: Option<String>,
    mtu: Option<u32>,
    /// Megabits a second.
    speed: Option<u32>,
    receive_queues: Vec<ReceiveQueue>,
    /// The CPUs of each transmit queue, empty where XPS is not set up.
    transmit_cpus: Vec<Vec<u32>>,
    interrupts: Vec<Interrupt>,
}

struct ReceiveQueue {
    /// The CPUs of its RPS mask.
    rps_cpus: Vec<u32>,
    /// Flows that RFS follows on this queue.
    rps_flows: u32,
}

struct Interrupt {
    number: u32,
    cpus: Vec<u32>,
}

impl Card {
    fn read(system: &System, name: String) -> Option<Self> {
        let base = format!("/sys/class/net/{name}");
        if !system.exists(&format!("{base}/device")) {
            return None;
        }
        let queues = system.names(&format!("{base}/queues"));
        let transmit_cpus = queues
            .iter()
            .filter(|queue| queue.starts_with("tx-"))
            .map(|queue| mask(system, &format!("{base}/queues/{queue}/xps_cpus")))
            .collect();
        Some(Self {
            driver: system.link_name(&format!("{base}/device/driver")),
            state: system.read(&format!("{base}/operstate")),
            mtu: system.value(&format!("{base}/mtu")),
            speed: system.value(&format!("{base}/speed")),
            receive_queues: receive_queues(system, &name),
            transmit_cpus,
            interrupts: interrupts(system, &base),
            name,
        })
    }

    fn findings(&self, system: &System, allowed: &[u32]) -> Vec<Finding> {
        let mut findings = vec![self.summary(), self.queues(system, allowed)];
        findings.extend(self.interrupt_cpus(system, allowed));
        findings.push(packet_steering(system, &self.name, &self.receive_queues));
        findings.extend(self.flow_filters(system));
        findings.push(self.transmit_steering(system));
        findings
    }

    fn named(&self, what: &str) -> String {
        format!("{} {what}", self.name)
    }

    fn summary(&self) -> Finding {
        let mut parts = vec![self.driver.clone().unwrap_or_else(|| "unknown driver".to_owned())];
        parts.extend(self.state.clone());
        parts.extend(self.mtu.map(|mtu| format!("MTU {mtu}")));
        parts.extend(self.speed.map(|speed| format!("{speed} Mbit/s")));
        Finding::ok(AREA, self.named("card"), parts.join(", "))
    }

    fn spread_by_rps(&self) -> bool {
        self.receive_queues.iter().any(|queue| queue.rps_cpus.len() > 1)
    }

    fn queues(&self, system: &System, allowed: &[u32]) -> Finding {
        let receive = self.receive_queues.len();
        let found = format!("{receive} receive, {} transmit", self.transmit_cpus.len());
        if receive >= allowed.len() || self.spread_by_rps() {
            return Finding::ok(AREA, self.named("queues"), found);
        }
        let base = format!("/sys/class/net/{}/queues", self.name);
        Finding::note(AREA, self.named("queues"), found)
            .instead(format!(
                "packets arrive on {receive} of {} CPUs: steer connections by hash, or serve on those CPUs",
                allowed.len()
            ))
            .remedy(format!(
                "{}   (or, in software: {})",
                system.as_root(&format!("ethtool -L {} combined {}", self.name, allowed.len())),
                system.as_root(&format!(
                    "sh -c 'for q in {base}/rx-*; do echo {} > $q/rps_cpus; done'",
                    hex_mask(allowed)
                ))
            ))
    }

    fn interrupt_cpus(&self, system: &System, allowed: &[u32]) -> Option<Finding> {
        let first = self.interrupts.first()?;
        let mut cpus: Vec<u32> =
            self.interrupts.iter().flat_map(|interrupt| interrupt.cpus.clone()).collect();
        cpus.sort_unstable();
        cpus.dedup();
        let name = self.named("interrupts");
        let found = format!("{} on CPUs {}", self.interrupts.len(), format_list(&cpus));
        let queues = self.receive_queues.len().min(allowed.len());
        if cpus.len() >= queues || self.spread_by_rps() {
            return Some(Finding::ok(AREA, name, found));
        }
        Some(
            Finding::note(AREA, name, found)
                .instead("the CPUs that take the interrupts handle all packets; connections are steered to them first")
                .remedy(system.as_root(&format!(
                    "sh -c 'echo CPU > /proc/irq/{}/smp_affinity_list'   (one CPU each, for {} to {}; or start irqbalance)",
                    first.number,
                    first.number,
                    self.interrupts.last().map_or(first.number, |interrupt| interrupt.number)
                ))),
        )
    }

    /// Accelerated RFS: the card itself sends packets to the CPU of their program, by filters.
    fn flow_filters(&self, system: &System) -> Option<Finding> {
        let filters = system.has_flow_filters(&self.name)?;
        let name = self.named("aRFS");
        Some(match filters {
            true => Finding::ok(AREA, name, "the card has flow filters, which RFS sets"),
            false if self.receive_queues.len() < 2 => {
                Finding::ok(AREA, name, "not needed with one receive queue")
            }
            false => {
                Finding::note(AREA, name, "off").instead("RFS moves packets between CPUs in software").remedy(
                    system
                        .as_root(&format!("ethtool -K {} ntuple on   (if the card has filters)", self.name)),
                )
            }
        })
    }

    fn transmit_steering(&self, system: &System) -> Finding {
        let name = self.named("XPS");
        let set = self.transmit_cpus.iter().filter(|cpus| !cpus.is_empty()).count();
        if self.transmit_cpus.len() <= 1 {
            Finding::ok(AREA, name, "not needed with one transmit queue")
        } else if set == self.transmit_cpus.len() {
            Finding::ok(AREA, name, "each transmit queue has its CPUs")
        } else {
            Finding::note(
                AREA,
                name,
                format!("{set} of {} transmit queues have CPUs", self.transmit_cpus.len()),
            )
            .instead("transmit queues are chosen by hash: channels meet at their locks")
            .remedy(system.as_root(&format!(
                "sh -c 'echo MASK > /sys/class/net/{}/queues/tx-N/xps_cpus'   (for each N)",
                self.name
            )))
        }
    }
}

fn receive_queues(system: &System, interface: &str) -> Vec<ReceiveQueue> {
    let base = format!("/sys/class/net/{interface}/queues");
    let queues = system.names(&base).into_iter().filter(|queue| queue.starts_with("rx-"));
    queues
        .map(|queue| ReceiveQueue {
            rps_cpus: mask(system, &format!("{base}/{queue}/rps_cpus")),
            rps_flows: system.value(&format!("{base}/{queue}/rps_flow_cnt")).unwrap_or(0),
        })
        .collect()
}

/// Virtual interfaces whose packets RPS spreads.
fn virtual_steering(system: &System) -> Vec<Finding> {
    let interfaces = system.names("/sys/class/net").into_iter();
    let virtual_ones = interfaces.filter(|name| !system.exists(&format!("/sys/class/net/{name}/device")));
    virtual_ones
        .map(|name| (receive_queues(system, &name), name))
        .filter(|(queues, _)| queues.iter().any(|queue| !queue.rps_cpus.is_empty()))
        .map(|(queues, name)| packet_steering(system, &name, &queues))
        .collect()
}

/// RPS spreads packets over CPUs by hash; RFS has them follow the program that reads them.
fn packet_steering(system: &System, interface: &str, receive_queues: &[ReceiveQueue]) -> Finding {
    let name = format!("{interface} RPS and RFS");
    let queues: Vec<String> = receive_queues
        .iter()
        .enumerate()
        .filter(|(_, queue)| !queue.rps_cpus.is_empty())
        .map(|(index, queue)| format!("rx-{index} to CPUs {}", format_list(&queue.rps_cpus)))
        .collect();
    let flows: u32 = receive_queues.iter().map(|queue| queue.rps_flows).sum();
    let follows = flows > 0 && flow_entries(system) > 0;
    let spread = if queues.is_empty() { "RPS off".to_owned() } else { queues.join(", ") };
    let follow = if follows { format!("RFS follows {flows} flows") } else { "RFS off".to_owned() };
    let found = format!("{spread}; {follow}");
    if follows || queues.is_empty() {
        return Finding::ok(AREA, name, found);
    }
    Finding::note(AREA, name, found)
        .instead("answers arrive on another CPU than that of the program that waits for them")
        .remedy(system.as_root("megapipe setup --network"))
}

fn mask(system: &System, path: &str) -> Vec<u32> {
    system.read(path).map(|mask| parse_mask(&mask)).unwrap_or_default()
}

/// The card's message-signalled interrupts. Those of a virtio card belong to the device above it.
fn interrupts(system: &System, base: &str) -> Vec<Interrupt> {
    ["device/msi_irqs", "device/../msi_irqs"]
        .iter()
        .map(|directory| system.names(&format!("{base}/{directory}")))
        .find(|numbers| !numbers.is_empty())
        .unwrap_or_default()
        .iter()
        .filter_map(|number| number.parse().ok())
        .filter_map(|number| {
            let list = ["effective_affinity_list", "smp_affinity_list"].iter().find_map(|file| {
                system.read(&format!("/proc/irq/{number}/{file}")).filter(|list| !list.is_empty())
            })?;
            Some(Interrupt { number, cpus: parse_list(&list) })
        })
        .collect()
}

fn flow_entries(system: &System) -> u32 {
    system.value("/proc/sys/net/core/rps_sock_flow_entries").unwrap_or(0)
}

fn flow_steering(system: &System) -> Finding {
    let found = match flow_entries(system) {
        0 => "0: RFS off; cpu masks do its work for new connections".to_owned(),
        entries => entries.to_string(),
    };
    Finding::ok(AREA, "net.core.rps_sock_flow_entries", found)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::super::finding::Verdict;
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, text).expect("a file");
    }

    fn verdict_of<'a>(findings: &'a [Finding], name: &str) -> &'a Finding {
        findings.iter().find(|finding| finding.name == name).expect(name)
    }

    /// A card with four queues, all of whose interrupts go to CPU 0, on a machine with four CPUs.
    #[test]
    fn a_card_that_interrupts_one_cpu_gets_a_note() {
        let root = std::env::temp_dir().join(format!("megapipe-doctor-network-{}", std::process::id()));
        write(&root, "proc/self/status", "Cpus_allowed_list:\t0-3\nUid:\t0\t0\t0\t0\n");
        for queue in 0..4 {
            write(&root, &format!("sys/class/net/eth7/queues/rx-{queue}/rps_cpus"), "0\n");
            write(&root, &format!("sys/class/net/eth7/queues/tx-{queue}/xps_cpus"), "0\n");
            write(&root, &format!("sys/class/net/eth7/device/msi_irqs/4{queue}"), "msix\n");
            write(&root, &format!("proc/irq/4{queue}/effective_affinity_list"), "0\n");
        }
        fs::create_dir_all(root.join("sys/drivers/ice")).expect("a directory");
        symlink("../../../../drivers/ice", root.join("sys/class/net/eth7/device/driver")).expect("a link");
        write(&root, "sys/class/net/lo/mtu", "65536\n");

        let system = System::below(&root);
        let seen = findings(&system);
        assert_eq!(verdict_of(&seen, "eth7 card").found, "ice");
        assert_eq!(verdict_of(&seen, "eth7 queues").verdict, Verdict::Ok);
        let interrupts = verdict_of(&seen, "eth7 interrupts");
        assert_eq!((interrupts.verdict, interrupts.found.as_str()), (Verdict::Note, "4 on CPUs 0"));
        assert_eq!(verdict_of(&seen, "eth7 XPS").verdict, Verdict::Note);
        assert!(seen.iter().all(|finding| !finding.name.starts_with("lo ")));

        // RPS spreads in software what the interrupts do not.
        write(&root, "sys/class/net/eth7/queues/rx-0/rps_cpus", "f\n");
        let seen = findings(&system);
        assert_eq!(verdict_of(&seen, "eth7 interrupts").verdict, Verdict::Ok);
        let steering = verdict_of(&seen, "eth7 RPS and RFS");
        assert_eq!((steering.verdict, steering.found.as_str()), (Verdict::Note, "rx-0 to CPUs 0-3; RFS off"));

        // RFS takes a table of the host's and one of each queue.
        write(&root, "sys/class/net/eth7/queues/rx-0/rps_flow_cnt", "4096\n");
        assert_eq!(verdict_of(&findings(&system), "eth7 RPS and RFS").verdict, Verdict::Note);
        write(&root, "proc/sys/net/core/rps_sock_flow_entries", "32768\n");
        let seen = findings(&system);
        let steering = verdict_of(&seen, "eth7 RPS and RFS");
        assert_eq!(steering.found, "rx-0 to CPUs 0-3; RFS follows 4096 flows");
        assert_eq!(steering.verdict, Verdict::Ok);

        // Virtual interfaces count where RPS spreads their packets.
        assert!(seen.iter().all(|finding| !finding.name.starts_with("veth3 ")));
        write(&root, "sys/class/net/veth3/queues/rx-0/rps_cpus", "3\n");
        assert_eq!(verdict_of(&findings(&system), "veth3 RPS and RFS").verdict, Verdict::Note);
        fs::remove_dir_all(root).expect("removal");
    }
}
