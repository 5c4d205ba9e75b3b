//! The limits of this process.

use sys::capabilities::LOCKED_BYTES_A_CHANNEL;

use super::finding::Finding;
use super::system::{System, parse_list};

const AREA: &str = "limits";
/// As many as a channel has lightweight sockets by default.
const DESCRIPTORS_WANTED: u64 = 65_536;
/// What is wanted at least: other programs of the same user count too.
const LOCKED_BYTES_WANTED: u64 = 8 << 20;
/// capabilities(7): CAP_IPC_LOCK lifts RLIMIT_MEMLOCK.
const CAP_IPC_LOCK: u32 = 14;

pub(super) fn findings(system: &System, engine: Option<&str>) -> Vec<Finding> {
    vec![open_files(system, engine), locked_memory(system, engine)]
}

fn open_files(system: &System, engine: Option<&str>) -> Finding {
    const NAME: &str = "RLIMIT_NOFILE";
    let Some((soft, hard)) = limit(system, "Max open files") else {
        return unknown(NAME);
    };
    let found = format!("{soft} (hard limit {hard})");
    if soft.number() >= DESCRIPTORS_WANTED {
        return Finding::ok(AREA, NAME, found);
    }
    let instead = match engine {
        None => "no channel, no connections: see engine above".to_owned(),
        Some("uring") => {
            format!(
                "a channel holds fewer than {soft} connections: its ring's file table ends there, as do descriptors"
            )
        }
        Some(_) => format!("a program holds fewer than {soft} connections: each has a descriptor"),
    };
    Finding::note(AREA, NAME, found).instead(instead).remedy(more_open_files(system))
}

/// The command that raises the limit of open files.
pub(super) fn more_open_files(system: &System) -> String {
    match limit(system, "Max open files") {
        Some((_, hard)) if hard.number() < DESCRIPTORS_WANTED => {
            let command = format!("prlimit --pid $$ --nofile={DESCRIPTORS_WANTED}");
            format!("{}   (systemd: LimitNOFILE={DESCRIPTORS_WANTED})", system.as_root(&command))
        }
        _ => format!("ulimit -n {DESCRIPTORS_WANTED}"),
    }
}

fn locked_memory(system: &System, engine: Option<&str>) -> Finding {
    const NAME: &str = "RLIMIT_MEMLOCK";
    let Some((soft, hard)) = limit(system, "Max locked memory") else {
        return unknown(NAME);
    };
    let found = format!("{} (hard limit {})", soft.in_kib(), hard.in_kib());
    if system.has_capability(CAP_IPC_LOCK) {
        return Finding::ok(AREA, NAME, format!("{found}, lifted by CAP_IPC_LOCK"));
    }
    if soft.number() >= locked_bytes_wanted(system) {
        return Finding::ok(AREA, NAME, found);
    }
    let each = LOCKED_BYTES_A_CHANNEL >> 10;
    let cpus = allowed_cpus(system);
    let instead = match (soft.number() / LOCKED_BYTES_A_CHANNEL, engine) {
        (0, Some("uring")) => {
            format!("a channel may lock {each} KiB; one was made here, so this kernel counts less, or not")
        }
        (0, _) => format!(
            "a channel locks {each} KiB: on io_uring it ends at start where the kernel counts that \
             (MEGAPIPE_ENGINE=epoll locks nothing)"
        ),
        (channels, _) => format!(
            "room for about {channels} channel(s) on io_uring, {each} KiB each, of all programs of this user \
             together; `megapipe-kv` makes {cpus}, one for each CPU; one too many ends at start"
        ),
    };
    Finding::note(AREA, NAME, found).instead(instead).remedy(more_locked_memory(system))
}

/// The command that raises the limit of locked memory.
pub(super) fn more_locked_memory(system: &System) -> String {
    let wanted = locked_bytes_wanted(system);
    match limit(system, "Max locked memory") {
        Some((_, hard)) if hard.number() < wanted => {
            let command = format!("prlimit --pid $$ --memlock={wanted}");
            format!(
                "{}   (systemd: LimitMEMLOCK={wanted}; docker run --ulimit memlock={wanted})",
                system.as_root(&command)
            )
        }
        _ => format!("ulimit -l {}", wanted >> 10),
    }
}

/// A channel for each CPU, twice: for a server and its successor, or a server and a client.
fn locked_bytes_wanted(system: &System) -> u64 {
    (2 * allowed_cpus(system) * LOCKED_BYTES_A_CHANNEL).max(LOCKED_BYTES_WANTED)
}

fn allowed_cpus(system: &System) -> u64 {
    system.status("Cpus_allowed_list").map_or(1, |list| parse_list(&list).len() as u64)
}

fn unknown(name: &str) -> Finding {
    Finding::note(AREA, name, "unknown").instead("the limit is met when it is met").remedy("mount /proc")
}

/// One side of a limit, as `/proc/self/limits` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Limit {
    Number(u64),
    Unlimited,
}

impl Limit {
    fn parse(text: &str) -> Option<Self> {
        if text == "unlimited" { Some(Self::Unlimited) } else { text.parse().ok().map(Self::Number) }
    }

    fn number(self) -> u64 {
        match self {
            Self::Number(number) => number,
            Self::Unlimited => u64::MAX,
        }
    }

    fn in_kib(self) -> String {
        match self {
            Self::Number(bytes) => format!("{} KiB", bytes / 1024),
            Self::Unlimited => "unlimited".to_owned(),
        }
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => number.fmt(formatter),
            Self::Unlimited => formatter.write_str("unlimited"),
        }
    }
}

/// The soft and the hard limit of this name.
fn limit(system: &System, name: &str) -> Option<(Limit, Limit)> {
    let limits = system.read("/proc/self/limits")?;
    let mut values = limits.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace();
    Some((Limit::parse(values.next()?)?, Limit::parse(values.next()?)?))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A user without capabilities, on four CPUs, with these limits.
    fn system(name: &str, soft: &str, hard: &str) -> System {
        let root = std::env::temp_dir().join(format!("megapipe-doctor-limits-{name}-{}", std::process::id()));
        let process = root.join("proc/self");
        fs::create_dir_all(&process).expect("a directory");
        let status = "Uid:\t7\t7\t7\t7\nCapEff:\t0000000000000000\nCpus_allowed_list:\t0-3\n";
        fs::write(process.join("status"), status).expect("a file");
        let limits = format!("Max locked memory         {soft}    {hard}    bytes\n");
        fs::write(process.join("limits"), limits).expect("a file");
        System::below(root)
    }

    fn forget(system: &System) {
        fs::remove_dir_all(system.path("/")).expect("removal");
    }

    #[test]
    fn channels_are_counted_by_what_they_lock() {
        let system = system("count", "1048576", "unlimited");
        let found = locked_memory(&system, Some("uring"));
        let instead = found.instead.expect("too little has a consequence");
        assert!(instead.contains("about 5 channel(s)") && instead.contains("makes 4"), "{instead}");
        assert_eq!(found.remedy.as_deref(), Some("ulimit -l 8192"));
        forget(&system);
    }

    #[test]
    fn too_little_for_a_channel_says_that_it_ends() {
        let system = system("none", "65536", "65536");
        let found = locked_memory(&system, None);
        assert!(found.instead.expect("a consequence").contains("ends at start"));
        assert!(found.remedy.expect("a remedy").starts_with("sudo prlimit --pid $$ --memlock=8388608 "));
        // What was seen to work is not denied.
        let found = locked_memory(&system, Some("uring"));
        assert!(found.instead.expect("a consequence").contains("one was made here"));
        forget(&system);
    }

    #[test]
    fn no_limit_is_no_note() {
        let system = system("unlimited", "unlimited", "unlimited");
        assert_eq!(locked_memory(&system, None).remedy, None);
        forget(&system);
    }
}
