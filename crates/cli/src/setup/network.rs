//! `megapipe setup --network`: what spreads packets and connections over CPUs, and is off by default. The settings last
//! until the next boot, as do the notes by which they are undone.

use std::fs;
use std::io;

use crate::doctor::{System, hex_mask, parse_list, parse_mask};

/// What each setting was, and became: a line each, separated by tabs.
const NOTES: &str = "/run/megapipe-network";
const FLOW_ENTRIES: &str = "/proc/sys/net/core/rps_sock_flow_entries";
const MIGRATE: &str = "/proc/sys/net/ipv4/tcp_migrate_req";
/// Flows that RFS follows.
const FLOWS: usize = 32_768;

/// A file of the kernel's, and what is to stand there.
#[derive(Debug, PartialEq, Eq)]
struct Setting {
    path: String,
    value: String,
}

/// A setting that was made.
struct Note {
    path: String,
    before: String,
    after: String,
}

/// Makes the settings that are missing.
pub(super) fn set(system: &System) -> Result<(), String> {
    let mut notes = notes(system)?;
    let wanted = wanted(system);
    if wanted.is_empty() {
        println!("packets and connections are spread over the CPUs already; nothing is changed");
        return Ok(());
    }
    for Setting { path, value } in wanted {
        let before = system.read(&path).unwrap_or_default();
        fs::write(system.path(&path), &value).map_err(|error| format!("{path} cannot be set: {error}"))?;
        println!("{path}: {before} -> {value}");
        let after = system.read(&path).unwrap_or_default();
        notes.push(Note { path, before, after });
        // At once: what fails later does not lose it.
        keep(system, &notes)?;
    }
    println!("these last until the next boot; undo them with: megapipe setup --network --undo");
    Ok(())
}

/// Restores each setting, unless it was changed since.
pub(super) fn undo(system: &System) -> Result<(), String> {
    let notes = notes(system)?;
    if notes.is_empty() {
        println!("setup has changed no network settings since the last boot");
    }
    for Note { path, before, after } in notes.iter().rev() {
        match system.read(path) {
            Some(now) if now == *after => {
                fs::write(system.path(path), before)
                    .map_err(|error| format!("{path} cannot be set: {error}"))?;
                println!("{path}: {after} -> {before}");
            }
            Some(now) => println!("{path} was changed to {now} since, and is left so"),
            // Of an interface that is gone.
            None => {}
        }
    }
    match fs::remove_file(system.path(NOTES)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(format!("{NOTES}: {error}")),
        _ => Ok(()),
    }
}

fn wanted(system: &System) -> Vec<Setting> {
    let cpus = system.status("Cpus_allowed_list").map(|list| parse_list(&list)).unwrap_or_default();
    let mut settings = Vec::new();
    let mut want = |path: String, value: String| settings.push(Setting { path, value });
    let is_zero = |path: &str| system.read(path).as_deref() == Some("0");
    let mut follows = false;
    for name in system.names("/sys/class/net") {
        let base = format!("/sys/class/net/{name}/queues");
        let (receive, transmit): (Vec<String>, Vec<String>) =
            system.names(&base).into_iter().partition(|queue| queue.starts_with("rx-"));
        let is_card = system.exists(&format!("/sys/class/net/{name}/device"));
        let is_unset = |file: &str| system.read(file).is_some_and(|mask| parse_mask(&mask).is_empty());
        let mut spreads = !receive.iter().all(|queue| is_unset(&format!("{base}/{queue}/rps_cpus")));
        if is_card && !spreads && receive.len() < cpus.len() {
            receive.iter().for_each(|queue| want(format!("{base}/{queue}/rps_cpus"), hex_mask(&cpus)));
            spreads = !receive.is_empty();
        }
        if spreads && cpus.len() > 1 {
            follows = true;
            for queue in &receive {
                let flows = format!("{base}/{queue}/rps_flow_cnt");
                if is_zero(&flows) {
                    want(flows, (FLOWS / receive.len()).to_string());
                }
            }
        }
        for (index, queue) in transmit.iter().enumerate().filter(|_| is_card && transmit.len() > 1) {
            let file = format!("{base}/{queue}/xps_cpus");
            if is_unset(&file) {
                want(file, hex_mask(&share(&cpus, index, transmit.len())));
            }
        }
    }
    if follows && is_zero(FLOW_ENTRIES) {
        want(FLOW_ENTRIES.to_owned(), FLOWS.to_string());
    }
    if is_zero(MIGRATE) {
        want(MIGRATE.to_owned(), "1".to_owned());
    }
    settings
}

/// The CPUs of one of so many queues: each CPU has one, and each queue at least one CPU.
fn share(cpus: &[u32], queue: usize, queues: usize) -> Vec<u32> {
    if queues >= cpus.len() {
        return cpus.get(queue % cpus.len().max(1)).copied().into_iter().collect();
    }
    cpus.iter().skip(queue).step_by(queues).copied().collect()
}

fn notes(system: &System) -> Result<Vec<Note>, String> {
    let text = match fs::read_to_string(system.path(NOTES)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.map_err(|error| format!("{NOTES}: {error}"))?,
    };
    let note = |line: &str| {
        let mut parts = line.split('\t').map(str::to_owned);
        Some(Note { path: parts.next()?, before: parts.next()?, after: parts.next()? })
    };
    Ok(text.lines().filter_map(note).collect())
}

fn keep(system: &System, notes: &[Note]) -> Result<(), String> {
    let line = |note: &Note| format!("{}\t{}\t{}\n", note.path, note.before, note.after);
    let text: String = notes.iter().map(line).collect();
    fs::write(system.path(NOTES), text).map_err(|error| format!("{NOTES} cannot be written: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine of four CPUs with a card of two queues each way, and a veth pair's end that RPS spreads.
    #[test]
    fn settings_are_made_and_undone() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, text).expect("a file");
        };
        let read = |path: &str| fs::read_to_string(folder.path().join(path)).expect("a file");
        write("proc/self/status", "Cpus_allowed_list:\t0-3\n");
        write("proc/sys/net/core/rps_sock_flow_entries", "0\n");
        write("proc/sys/net/ipv4/tcp_migrate_req", "0\n");
        write("run/.keep", "");
        write("sys/class/net/eth7/device/driver", "");
        for queue in 0..2 {
            write(&format!("sys/class/net/eth7/queues/rx-{queue}/rps_cpus"), "0\n");
            write(&format!("sys/class/net/eth7/queues/rx-{queue}/rps_flow_cnt"), "0\n");
            write(&format!("sys/class/net/eth7/queues/tx-{queue}/xps_cpus"), "0\n");
        }
        write("sys/class/net/veth0/queues/rx-0/rps_cpus", "3\n");
        write("sys/class/net/veth0/queues/rx-0/rps_flow_cnt", "0\n");
        write("sys/class/net/veth1/queues/rx-0/rps_cpus", "0\n");
        write("sys/class/net/veth1/queues/rx-0/rps_flow_cnt", "0\n");

        let system = System::below(folder.path());
        set(&system).expect("settings");
        assert_eq!(read("sys/class/net/eth7/queues/rx-1/rps_cpus"), "f");
        assert_eq!(read("sys/class/net/eth7/queues/rx-1/rps_flow_cnt"), "16384");
        assert_eq!(read("sys/class/net/eth7/queues/tx-0/xps_cpus"), "5");
        assert_eq!(read("sys/class/net/eth7/queues/tx-1/xps_cpus"), "a");
        assert_eq!(read("sys/class/net/veth0/queues/rx-0/rps_flow_cnt"), "32768");
        assert_eq!(read("sys/class/net/veth1/queues/rx-0/rps_flow_cnt"), "0\n");
        assert_eq!(read("proc/sys/net/core/rps_sock_flow_entries"), "32768");
        assert_eq!(wanted(&system), [], "a second time there is nothing to do");

        // The administrator's own change stays.
        write("proc/sys/net/core/rps_sock_flow_entries", "65536\n");
        undo(&system).expect("settings as they were");
        assert_eq!(read("sys/class/net/eth7/queues/rx-1/rps_cpus"), "0");
        assert_eq!(read("sys/class/net/eth7/queues/tx-1/xps_cpus"), "0");
        assert_eq!(read("proc/sys/net/ipv4/tcp_migrate_req"), "0");
        assert_eq!(read("proc/sys/net/core/rps_sock_flow_entries"), "65536\n");
        assert!(!folder.path().join("run/megapipe-network").exists());
    }

    #[test]
    fn each_cpu_has_a_queue() {
        assert_eq!(share(&[0, 1, 2], 1, 2), [1]);
        assert_eq!(share(&[0, 1, 2], 0, 2), [0, 2]);
        assert_eq!(share(&[4, 5], 3, 4), [5]);
    }
}
