//! Why a connection is not in shared memory: one closed list. Its words are shared by
//! `--stats`, `megapipe top`, the monitor's metrics and logs, and docs/run.md.

use std::fmt;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $word:literal;)*) => {
        /// Why a connection stays on TCP.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum Reason { $($(#[$doc])* $name = $number),* }

        impl Reason {
            /// Every reason, in the order of their numbers, which begin at 1.
            pub const ALL: [Reason; [$($number),*].len()] = [$(Reason::$name),*];

            /// Its word.
            pub const fn word(self) -> &'static str {
                match self { $(Reason::$name => $word),* }
            }
        }
    };
}

// The monitor's reasons come first: REFUSE carries their numbers.
reasons! {
    /// The peer was not offered: its program does not run under Megapipe, uses another
    /// monitor, or considers the traffic too little.
    NoPeer = 1, "no-peer";
    /// The peer is another user's, and no rule lets the two share.
    OtherUser = 2, "other-user";
    /// A rule of the policy forbids it, or does not let this user's programs share.
    Policy = 3, "policy";
    /// One of the two users has reached its limit of memory, waiting offers or clients.
    Quota = 4, "quota";
    /// This program offers faster than it may; it offers the connection again later.
    Rate = 5, "rate";
    /// The system has no memory, mappings or descriptors left.
    NoMemory = 6, "no-memory";
    /// The peer is on another host, or the socket is its own peer.
    OtherHost = 7, "other-host";
    /// It ended, or was about to, before both endpoints had their memory.
    ClosedEarly = 8, "closed-early";
    /// No monitor answered, or it ended.
    NoMonitor = 9, "no-monitor";
    /// The monitor speaks another version of the protocol.
    Version = 10, "version";
    /// Both endpoints are root's, and they or their connection are of other namespaces
    /// than the monitor.
    Namespace = 11, "namespace";
    /// It carried too few messages, or too few a second.
    LittleTraffic = 12, "little-traffic";
    /// `--promote observe`.
    Observe = 13, "observe";
    /// `--only` or `--not`.
    Ports = 14, "ports";
    /// An option or urgent data that only the kernel can give.
    Option = 15, "option";
    /// The program has an io_uring, through which it may read and write unseen.
    IoUring = 16, "io_uring";
    /// The kernel counted other bytes than the library saw.
    Bypass = 17, "bypass";
    /// Several processes or epoll sets have it, or it went to another program.
    Shared = 18, "shared";
    /// A call on it was in progress whenever it could have been promoted.
    Busy = 19, "busy";
    /// The process denies itself system calls (seccomp).
    Confined = 20, "confined";
}

impl Reason {
    /// The monitor's reasons.
    pub const OF_MONITOR: [Reason; Reason::Namespace as usize] =
        *Reason::ALL.first_chunk().expect("the monitor's are the first");

    /// The reason of a number.
    pub(crate) fn from_number(number: u32) -> Option<Reason> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        Reason::ALL.get(index).copied()
    }

    /// The monitor's reason of a number.
    pub(crate) fn from_monitor(number: u32) -> Option<Reason> {
        Reason::from_number(number).filter(|reason| Reason::OF_MONITOR.contains(reason))
    }

    /// Its index in [`Reason::ALL`].
    pub const fn index(self) -> usize {
        self as usize - 1
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first column of the table behind `heading`, without its markup.
    fn words(document: &str, heading: &str) -> Vec<String> {
        let table = document.split_once(heading).expect("the table's heading").1;
        let rows = table.lines().skip_while(|line| !line.starts_with('|')).skip(2);
        let rows = rows.take_while(|line| line.starts_with('|'));
        rows.filter_map(|row| Some(row.split('|').nth(1)?.trim().trim_matches('`').to_owned())).collect()
    }

    #[test]
    fn the_documented_words_are_these() {
        let run = include_str!("../../../docs/run.md");
        assert_eq!(words(run, "## Why a connection stays on TCP"), Reason::ALL.map(|reason| reason.word()));
        for row in run.lines().filter(|line| line.starts_with("| `")) {
            assert!(row.split('|').all(|cell| cell.len() < 400), "{row}");
        }
        let protocol = include_str!("../../../docs/promotion.md").replace('\n', " ");
        let list: Vec<String> = Reason::OF_MONITOR.map(|reason| format!("{} {reason}", reason as u32)).into();
        assert!(protocol.contains(&list.join(", ")), "{list:?}");
    }

    #[test]
    fn numbers_are_indices() {
        for (index, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason.index(), index);
            let number = index as u32 + 1;
            assert_eq!(Reason::from_number(number), Some(reason));
            assert_eq!(Reason::from_monitor(number), Reason::OF_MONITOR.get(index).copied());
        }
        assert_eq!((Reason::from_monitor(0), Reason::from_monitor(u32::MAX)), (None, None));
    }
}
