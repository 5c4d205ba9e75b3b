//! The limits of this process.
use super::finding::Finding;
use super::system::System;

const AREA: &str = "limits";
/// As many as a channel has lightweight sockets by default.
const DESCRIPTORS_WANTED: u64 = 65_536;
/// Enough for the channels of many threads.
const LOCKED_BYTES_WANTED: u64 = 8 << 20;
/// What the rings of one channel take, rounded up.
const LOCKED_BYTES_A_CHANNEL: u64 = 128 << 10;
/// capabilities(7): CAP_IPC_LOCK lifts RLIMIT_MEMLOCK.
const CAP_IPC_LOCK: u32 = 14;

pub(super) fn findings(system: &System) -> Vec<Finding> {
    vec![open_files(system), locked_memory(system)]
}

fn open_files(system: &System) -> Finding {
    const NAME: &str = "RLIMIT_NOFILE";
    let Some((soft, hard)) = limit(system, "Max open files") else {
        return unknown(NAME);
    };
    let found = format!("{soft} (hard limit {hard})");
    if soft.number() >= DESCRIPTORS_WANTED {
        return Finding::ok(AREA, NAME, found);
    }
    let remedy = if hard.number() >= DESCRIPTORS_WANTED {
        format!("ulimit -n {DESCRIPTORS_WANTED}")
    } else {
        let command = format!("prlimit --pid $$ --nofile={DESCRIPTORS_WANTED}");
        format!("{}   (systemd: LimitNOFILE={DESCRIPTORS_WANTED})", system.as_root(&command))
    };
    Finding::note(AREA, NAME, found)
        .instead(format!("at most {soft} connections: a ring's file table and the descriptors end there"))
        .remedy(remedy)
}

fn locked_memory(system: &System) -> Finding {
    const NAME: &str = "RLIMIT_MEMLOCK";
    let Some((soft, hard)) = limit(system, "Max locked memory") else {
        return unknown(NAME);
    };
    let found = format!("{} (hard limit {})", soft.in_kib(), hard.in_kib());
    if system.has_capability(CAP_IPC_LOCK) {
        return Finding::ok(AREA, NAME, format!("{found}, lifted by CAP_IPC_LOCK"));
    }
    if soft.number() >= LOCKED_BYTES_WANTED {
        return Finding::ok(AREA, NAME, found);
    }
    let channels = soft.number() / LOCKED_BYTES_A_CHANNEL;
    let instead = match channels {
        0 => "the rings of a channel do not fit (128 KiB); it ends at start, or runs on epoll".to_owned(),
        _ => format!("about {channels} channels on io_uring (128 KiB each), counted together for a user"),
    };
    Finding::note(AREA, NAME, found).instead(instead).remedy(if hard.number() >= LOCKED_BYTES_WANTED {
        "ulimit -l 8192".to_owned()
    } else {
        let command = format!("prlimit --pid $$ --memlock={LOCKED_BYTES_WANTED}");
        format!("{}   (systemd: LimitMEMLOCK=8M)", system.as_root(&command))
    })
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
