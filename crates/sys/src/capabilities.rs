//! What this kernel permits this process, found by trying it.
//!
//! A version number is not enough: distributions port features back, stable kernels break
//! them, containers forbid them. So each feature is used once, for real, on private
//! sockets, and counts as present when the kernel did what Megapipe will rely on. What no
//! engine uses is not tried.

use std::env;
use std::io;
use std::sync::OnceLock;

use rustix::event::epoll::{self, CreateFlags};
use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;
use thiserror::Error;

mod probe;
mod trials;

/// The environment variable that switches features off: names of [`Capabilities`] fields, separated by commas.
/// `ring` switches io_uring off altogether. A feature that is switched off is not even tried.
pub const DISABLE_VARIABLE: &str = "MEGAPIPE_DISABLE";

/// The oldest Linux that Megapipe is tested on (`make test-kernels`). The io_uring engine's features came until 5.19.
pub const OLDEST_LINUX: &str = "6.1";

/// One io_uring feature: what it is called, since which release of Linux it exists, and whether it works here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feature {
    /// The name of the field in [`Capabilities`].
    pub name: &'static str,
    /// The release of Linux that brought it. For the reader only: nothing is decided by it.
    pub since: &'static str,
    /// It was tried and works.
    pub available: bool,
    /// It was not tried, because [`DISABLE_VARIABLE`] names it.
    pub disabled: bool,
}

macro_rules! capabilities {
    ($($(#[doc = $doc:literal])+ $name:ident: $since:literal,)+) => {
        /// What io_uring offers to this process. All false where there is no io_uring.
        #[derive(Debug, Clone)]
        pub struct Capabilities {
            /// Whether a ring can be made at all, and why not.
            pub ring: Result<(), RingUnavailable>,
            $(
                $(#[doc = $doc])+
                #[doc = concat!("\n\nSince Linux ", $since, ".")]
                pub $name: bool,
            )+
            disabled: DisabledFeatures,
        }

        impl Capabilities {
            const NAMES: &[&str] = &[$(stringify!($name),)+];

            fn without_ring(ring: Result<(), RingUnavailable>, disabled: DisabledFeatures) -> Self {
                Self { ring, $($name: false,)+ disabled }
            }

            /// Every feature with its state, in the order of the fields.
            pub fn features(&self) -> impl Iterator<Item = Feature> + '_ {
                [$((stringify!($name), $since, self.$name),)+]
                    .into_iter()
                    .map(|(name, since, available)| Feature {
                        name,
                        since,
                        available,
                        disabled: self.disabled.contains(name),
                    })
            }
        }
    };
}

capabilities! {
    /// Completions are processed only when the owner asks for them
    /// (`IORING_SETUP_DEFER_TASKRUN`), in a ring that one thread alone submits to
    /// (`IORING_SETUP_SINGLE_ISSUER`).
    defer_taskrun: "6.1",
    /// The kernel does not interrupt a running thread to complete its requests (`IORING_SETUP_COOP_TASKRUN`).
    coop_taskrun: "5.19",
    /// The ring shows that completions wait to be worked off (`IORING_SETUP_TASKRUN_FLAG`).
    taskrun_flag: "5.19",
    /// A request with an error does not end the submission of those behind it (`IORING_SETUP_SUBMIT_ALL`).
    submit_all: "5.18",
    /// Submission without the index array (`IORING_SETUP_NO_SQARRAY`).
    no_sqarray: "6.6",
    /// The ring's own descriptor can be registered, which spares a lookup in each call.
    registered_ring_fd: "5.18",
    /// One request accepts connection after connection (`IORING_ACCEPT_MULTISHOT`).
    multishot_accept: "5.19",
    /// The completion of an accept says whether more connections wait (`IORING_CQE_F_SOCK_NONEMPTY`).
    accept_reports_more: "6.10",
    /// One request receives message after message into provided buffers (`IORING_RECV_MULTISHOT`).
    multishot_recv: "6.0",
    /// The same for `recvmsg`, with the sender's address in the buffer. Linux 6.0 brought it and 6.1 loses buffers; the
    /// next that was tried works.
    multishot_recvmsg: "6.12",
    /// A length on a multishot receive bounds what one completion brings, so that one busy connection cannot
    /// starve the others.
    recv_len_cap: "6.17",
    /// Buffers that the kernel takes from a ring when data is there (`IORING_REGISTER_PBUF_RING`).
    buffer_ring: "5.19",
    /// A file table with empty slots, into which sockets are accepted and connected.
    sparse_files: "5.19",
    /// A long-lived request on one slot does not hold other, closed slots open. Where it does, peers never see the
    /// end of a connection, and direct descriptors must not be used (liburing's report 1192).
    direct_descriptors_safe: "6.13",
    /// A direct descriptor can be turned into an ordinary one (`IORING_OP_FIXED_FD_INSTALL`).
    fixed_fd_install: "6.8",
    /// A request that succeeds can stay without a completion (`IOSQE_CQE_SKIP_SUCCESS`).
    cqe_skip: "5.17",
    /// A wait that ends at the first completion after a minimum time (`IORING_FEAT_MIN_TIMEOUT`).
    min_wait: "6.12",
    /// Cancellation of everything on one descriptor (`IORING_ASYNC_CANCEL_FD`).
    async_cancel_fd: "5.19",
    /// A multishot poll tells one wake-up (POLLRDBAND, which is in the mask that datagrams wake with) from several
    /// (the socket's state, which lacks it): after one, one datagram is there and no second look is needed.
    poll_tells_one: "5.17",
    /// A receive that stays without a completion when it succeeds (`IOSQE_CQE_SKIP_SUCCESS`) and asks for all of its
    /// room (MSG_WAITALL) has one if the datagram is shorter, or was cut off: a completion with as many bytes as there
    /// was room reports MSG_TRUNC, which IORING_OP_RECV has no other way to.
    recv_tells_cut: "5.17",
}

impl Capabilities {
    /// The capabilities of this process. The first call tries them (a few milliseconds), later calls return what it
    /// found.
    pub fn get() -> &'static Self {
        static CAPABILITIES: OnceLock<Capabilities> = OnceLock::new();
        CAPABILITIES.get_or_init(|| Self::probe(DisabledFeatures::from_environment()))
    }

    /// A feature that the channel's io_uring engine cannot do without and that is missing here: the channel uses epoll
    /// then. None where the engine can run, and where there is no ring at all.
    pub fn lacks(&self) -> Option<&'static str> {
        let required = [
            ("buffer_ring", self.buffer_ring),
            ("cqe_skip", self.cqe_skip),
            ("async_cancel_fd", self.async_cancel_fd),
        ];
        let missing = required.into_iter().find(|(_, available)| !available);
        missing.filter(|_| self.ring.is_ok()).map(|(name, _)| name)
    }

    /// The names that [`DISABLE_VARIABLE`] may hold.
    pub fn names() -> impl Iterator<Item = &'static str> {
        std::iter::once("ring").chain(Self::NAMES.iter().copied())
    }

    fn probe(disabled: DisabledFeatures) -> Self {
        if disabled.contains("ring") {
            return Self::without_ring(Err(RingUnavailable::Disabled), disabled);
        }
        // The kernel takes a closed ring down in the thread that used it, and interrupts that one's calls to do so:
        // not those of a thread that only asks what there is.
        let asked = disabled.clone();
        let thread = std::thread::Builder::new().name("trials".into()).spawn(|| trials::capabilities(asked));
        match thread.map(std::thread::JoinHandle::join) {
            Ok(Ok(found)) => found,
            _ => trials::capabilities(disabled),
        }
    }
}

/// Names in [`DISABLE_VARIABLE`] that no feature has: a misspelling that the user should hear of.
pub fn unknown_disabled() -> Vec<String> {
    DisabledFeatures::from_environment().unknown
}

/// Whether epoll works for this process: the engine for where io_uring does not.
///
/// # Errors
///
/// What `epoll_create1` says: EPERM or ENOSYS from a seccomp filter, EMFILE or ENFILE, ENOMEM.
pub fn try_epoll() -> io::Result<()> {
    drop(epoll::create(CreateFlags::CLOEXEC)?);
    Ok(())
}

/// Why there is no io_uring for this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RingUnavailable {
    /// The system forbids it: EPERM or EACCES.
    #[error(
        "io_uring is forbidden (errno {0}): a seccomp filter of the container or service, or the sysctl \
         kernel.io_uring_disabled; allow io_uring_setup, io_uring_enter and io_uring_register, or set the sysctl to 0"
    )]
    Forbidden(i32),
    /// The kernel has no io_uring, or a filter says so: ENOSYS.
    #[error(
        "the kernel has no io_uring (errno {0}): it is older than Linux {oldest}, was built without CONFIG_IO_URING, \
         or a seccomp filter hides it",
        oldest = OLDEST_LINUX
    )]
    Missing(i32),
    /// Not enough lockable memory: ENOMEM where RLIMIT_MEMLOCK counts.
    #[error(
        "no memory for a ring (errno {0}): RLIMIT_MEMLOCK, for all programs of this user together, is {limit}; \
         a channel locks up to {each} KiB; raise it (ulimit -l; `megapipe doctor` has the number), or set \
         MEGAPIPE_ENGINE=epoll",
        limit = locked_memory_limit(),
        each = LOCKED_BYTES_A_CHANNEL >> 10
    )]
    LockedMemory(i32),
    /// The system has no memory: ENOMEM where RLIMIT_MEMLOCK does not count.
    #[error(
        "no memory for a ring (errno {0}): free some, or raise the limit of the control group (MemoryMax=)"
    )]
    Memory(i32),
    /// The process or the system has no descriptor left: EMFILE or ENFILE.
    #[error("no descriptor left for a ring (errno {0}): raise RLIMIT_NOFILE (ulimit -n)")]
    Descriptors(i32),
    /// Switched off with [`DISABLE_VARIABLE`].
    #[error("io_uring is switched off by MEGAPIPE_DISABLE=ring; unset it to use io_uring")]
    Disabled,
    /// Anything else the kernel said.
    #[error("a ring cannot be made (errno {0}); `megapipe doctor` shows what this system offers")]
    Failed(i32),
}

impl RingUnavailable {
    /// What this error number of a ring's set-up means.
    pub fn from_errno(errno: i32) -> Self {
        match errno {
            libc::EPERM | libc::EACCES => Self::Forbidden(errno),
            libc::ENOSYS => Self::Missing(errno),
            libc::ENOMEM => {
                let limit = getrlimit(Resource::Memlock).current;
                Self::from_shortage(errno, limit, may_lock_memory())
            }
            libc::EMFILE | libc::ENFILE => Self::Descriptors(errno),
            _ => Self::Failed(errno),
        }
    }

    /// ENOMEM under a limit of so many bytes, which CAP_IPC_LOCK lifts.
    fn from_shortage(errno: i32, limit: Option<u64>, lifted: bool) -> Self {
        match limit {
            Some(_) if !lifted => Self::LockedMemory(errno),
            _ => Self::Memory(errno),
        }
    }
}

/// What a channel with the default configuration locks where the kernel counts it: places for 8192 completions
/// (128 KiB), 512 requests (32 KiB) and 1024 buffers (16 KiB), the first of them with a header, in whole pages.
pub const LOCKED_BYTES_A_CHANNEL: u64 = 192 << 10;

/// Whether CAP_IPC_LOCK is effective.
fn may_lock_memory() -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK))
}

/// RLIMIT_MEMLOCK of this process, in words.
fn locked_memory_limit() -> String {
    match getrlimit(Resource::Memlock).current {
        Some(bytes) => format!("{} KiB", bytes >> 10),
        None => "unlimited".to_owned(),
    }
}

/// The features that the user switched off, and the names that are none.
#[derive(Debug, Clone, Default)]
struct DisabledFeatures {
    known: Vec<String>,
    unknown: Vec<String>,
}

impl DisabledFeatures {
    fn from_environment() -> Self {
        Self::parse(&env::var(DISABLE_VARIABLE).unwrap_or_default())
    }

    fn parse(names: &str) -> Self {
        let (known, unknown) = names
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .partition(|name| Capabilities::names().any(|known| known == name));
        Self { known, unknown }
    }

    fn contains(&self, name: &str) -> bool {
        self.known.iter().any(|known| known == name)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, Instant};

    use super::*;

    fn open_descriptors() -> usize {
        fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
    }

    #[test]
    fn names_are_sorted_into_known_and_unknown() {
        let disabled = DisabledFeatures::parse(" min_wait, nonsense,,ring");
        assert!(disabled.contains("min_wait") && disabled.contains("ring"));
        assert_eq!(disabled.unknown, ["nonsense"]);
    }

    #[test]
    fn a_disabled_ring_is_not_tried() {
        let capabilities = Capabilities::probe(DisabledFeatures::parse("ring"));
        assert_eq!(capabilities.ring, Err(RingUnavailable::Disabled));
        assert!(capabilities.features().all(|feature| !feature.available));
    }

    #[test]
    fn each_switch_turns_off_its_own_feature() {
        let all = Capabilities::probe(DisabledFeatures::default());
        for name in Capabilities::NAMES {
            let without = Capabilities::probe(DisabledFeatures::parse(name));
            assert_eq!(without.ring, all.ring);
            for feature in without.features().filter(|feature| feature.name == *name) {
                assert!(feature.disabled && !feature.available, "{name}");
            }
        }
    }

    /// A trial that asks what no engine does finds nothing, and nobody notices.
    #[test]
    fn what_this_release_of_linux_has_is_found() {
        const NAME: &str = "capabilities::tests::what_this_release_of_linux_has_is_found";
        let all = Capabilities::probe(DisabledFeatures::default());
        if let Err(reason) = all.ring {
            println!("SKIPPED {NAME}: {reason}");
            return;
        }
        let number = |release: &str| {
            let mut parts = release.split(|other: char| !other.is_ascii_digit()).map(str::parse::<u32>);
            [parts.next(), parts.next()].map(|part| part.and_then(Result::ok).expect("a release"))
        };
        let here = number(&rustix::system::uname().release().to_string_lossy());
        let missing: Vec<_> =
            all.features().filter(|feature| number(feature.since) <= here && !feature.available).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn the_engine_lacks_what_is_switched_off() {
        for name in ["buffer_ring", "cqe_skip", "async_cancel_fd"] {
            let without = Capabilities::probe(DisabledFeatures::parse(name));
            assert!(without.ring.is_err() || without.lacks().is_some(), "{name}");
        }
        let without_ring = Capabilities::probe(DisabledFeatures::parse("ring"));
        assert_eq!(without_ring.lacks(), None);
    }

    #[test]
    fn a_feature_goes_with_what_it_stands_on() {
        let without_buffers = Capabilities::probe(DisabledFeatures::parse("buffer_ring"));
        assert!(!without_buffers.multishot_recv && !without_buffers.recv_len_cap);
        let without_files = Capabilities::probe(DisabledFeatures::parse("sparse_files"));
        assert!(!without_files.direct_descriptors_safe && !without_files.fixed_fd_install);
    }

    #[test]
    fn two_probes_agree_and_leave_nothing_open() {
        let first: Vec<_> = Capabilities::probe(DisabledFeatures::default()).features().collect();
        let second: Vec<_> = Capabilities::probe(DisabledFeatures::default()).features().collect();
        assert_eq!(first, second);

        // Other tests of this process open descriptors too: wait for a quiet moment, bounded.
        let before = open_descriptors();
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            for _ in 0..20 {
                Capabilities::probe(DisabledFeatures::default());
            }
            if open_descriptors() < before + 20 {
                break;
            }
            assert!(Instant::now() < deadline, "the probe leaks descriptors");
        }
    }

    #[test]
    fn a_limit_that_does_not_count_is_not_blamed() {
        let blamed = |limit, lifted| {
            let reason = RingUnavailable::from_shortage(libc::ENOMEM, limit, lifted).to_string();
            reason.contains("RLIMIT_MEMLOCK")
        };
        assert!(blamed(Some(8 << 20), false));
        assert!(!blamed(Some(8 << 20), true));
        assert!(!blamed(None, false));
    }

    #[test]
    fn every_reason_names_cause_and_remedy() {
        let reasons = [libc::EPERM, libc::ENOSYS, libc::ENOMEM, libc::EMFILE, libc::EINVAL];
        for errno in reasons {
            let reason = RingUnavailable::from_errno(errno);
            assert!(reason.to_string().contains(&format!("errno {errno}")), "{reason}");
        }
        assert!(RingUnavailable::Disabled.to_string().contains(DISABLE_VARIABLE));
    }
}
