//! The counters of one process under `megapipe run`, and their summary.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Reason;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The counters of a process: one page, so that it can be shared with the program
        /// that prints them after the process was killed.
        #[derive(Debug)]
        #[repr(C, align(4096))]
        pub struct Counters {
            /// Connections that are, or stayed, on TCP, by reason in the order of [`Reason::ALL`].
            pub reasons: [AtomicU64; Reason::ALL.len()],
            $($(#[$doc])* pub $name: AtomicU64),*
        }

        /// The counters at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Summary {
            /// As [`Counters::reasons`].
            pub reasons: [u64; Reason::ALL.len()],
            $($(#[$doc])* pub $name: u64),*
        }

        impl Counters {
            /// All zero.
            #[allow(clippy::new_without_default)] // for statics
            pub const fn new() -> Counters {
                Counters {
                    reasons: [const { AtomicU64::new(0) }; Reason::ALL.len()],
                    $($name: AtomicU64::new(0)),*
                }
            }

            fn all(&self) -> impl Iterator<Item = &AtomicU64> {
                self.reasons.iter().chain([$(&self.$name),*])
            }
        }

        impl Summary {
            fn all(&mut self) -> impl Iterator<Item = &mut u64> {
                self.reasons.iter_mut().chain([$(&mut self.$name),*])
            }
        }
    };
}

counters! {
    /// Connections that were in shared memory, at least for a while.
    promoted,
    /// Calls that moved bytes through rings, each way.
    ring_sends,
    /// The same.
    ring_receives,
    /// Their bytes.
    ring_bytes_sent,
    /// The same.
    ring_bytes_received,
    /// Calls into the kernel to wake the peer.
    wake_ups,
    /// Waits that ended without a sleep.
    spun,
    /// Nanoseconds of wake-ups that these avoided.
    saved_time,
    /// Nanoseconds of all spins, less the time that they yielded to others.
    spun_time,
    /// Spins without finding anything.
    vain,
    /// Spins that ended because others needed the core.
    crowded,
    /// Sleeps in an epoll set that another thread ended, since it may have consumed the
    /// wake-up that was to end them.
    rechecks,
    /// Connections that several threads waited for at a time.
    contended,
    /// Connections with invalid words from the peer.
    corrupt,
    /// 1 plus the last other user whose connection could not be shared; 0: none.
    other_user,
    /// The first [`RingObstacle`] of the process by its number; 0: none.
    ring_obstacle,
    /// The last [`Reason`] why a peer's program did not offer, by its number; 0: none.
    declined,
}

/// Bytes of a page of [`Counters`].
pub const PAGE: usize = size_of::<Counters>();
/// The bytes of the counters in it.
pub const BYTES: usize = 8 * (Reason::ALL.len() + 17);

/// Why the library cannot track an io_uring of a process, which keeps its connections on
/// TCP (`io_uring`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum RingObstacle {
    /// liburing enters it, by direct system calls.
    Liburing = 1,
    /// The program enters it, by other direct system calls.
    Unseen,
    /// A kernel thread polls the submission queue (SQPOLL).
    Polled,
    /// It has a layout that leaves nothing to map, or a newer one.
    Form,
    /// There are more rings than are tracked.
    Many,
    /// It polls epoll sets, registers files, or links requests that concern a connection.
    Use,
}

impl RingObstacle {
    /// All, by their numbers from 1 on.
    const ALL: [RingObstacle; 6] = [
        RingObstacle::Liburing,
        RingObstacle::Unseen,
        RingObstacle::Polled,
        RingObstacle::Form,
        RingObstacle::Many,
        RingObstacle::Use,
    ];

    /// The obstacle, and the remedy.
    pub const fn advice(self) -> &'static str {
        match self {
            RingObstacle::Liburing => {
                "liburing enters an io_uring past libc: if the program's rings are for files alone, --io-uring files; else \
                 turn io_uring off in it"
            }
            RingObstacle::Unseen => {
                "it enters an io_uring by system calls of its own: if its rings are for files alone, --io-uring files; else \
                 turn io_uring off in it"
            }
            RingObstacle::Polled => {
                "its io_uring has SQPOLL: turn that off in the program, or if its rings are for files alone, --io-uring files"
            }
            RingObstacle::Form => {
                "its io_uring has NO_MMAP, SQE_MIXED or another form that is not followed: turn io_uring off in the program, \
                 or if its rings are for files alone, --io-uring files"
            }
            RingObstacle::Many => {
                "it has more than 13 io_urings at a time: turn io_uring off in the program, or if its rings are for files \
                 alone, --io-uring files"
            }
            RingObstacle::Use => {
                "its io_uring polls an epoll set, changes registered files or links what concerns a connection: turn io_uring \
                 off in the program"
            }
        }
    }
}

impl Counters {
    /// The counters at this moment, each loaded separately.
    pub fn summary(&self) -> Summary {
        let mut summary = Summary::default();
        for (value, counter) in summary.all().zip(self.all()) {
            *value = counter.load(Ordering::Relaxed);
        }
        summary
    }

    /// Zeroes them.
    pub fn clear(&self) {
        self.all().for_each(|counter| counter.store(0, Ordering::Relaxed));
    }
}

impl Summary {
    /// Reads the page that a process left, which is untrusted.
    pub fn from_bytes(bytes: &[u8; BYTES]) -> Summary {
        let mut summary = Summary::default();
        for (value, word) in summary.all().zip(bytes.as_chunks().0) {
            *value = u64::from_ne_bytes(*word);
        }
        summary
    }

    /// Connections that the process made or accepted, or was forked with and used: those
    /// in shared memory, and those with a reason.
    pub fn connections(&self) -> u64 {
        self.reasons.iter().fold(self.promoted, |sum, count| sum.saturating_add(*count))
    }

    /// Whether there is nothing to print.
    pub fn is_idle(&self) -> bool {
        self.connections() == 0 && self.ring_sends == 0 && self.ring_receives == 0
    }

    /// The other user that has to be allowed, while a connection has that reason: a
    /// connection that was promoted after all needs no rule.
    pub fn other_user(&self) -> Option<u32> {
        let user = self.other_user.checked_sub(1).filter(|_| self.reasons[Reason::OtherUser.index()] > 0);
        user.and_then(|user| user.try_into().ok())
    }

    /// Why its io_urings are not tracked, while a connection has that reason.
    pub fn ring_obstacle(&self) -> Option<RingObstacle> {
        let number = self.ring_obstacle.checked_sub(1).filter(|_| self.reasons[Reason::IoUring.index()] > 0);
        number.and_then(|number| RingObstacle::ALL.get(usize::try_from(number).ok()?)).copied()
    }

    /// Why a peer's program keeps a connection on TCP, while one has that reason.
    pub fn declined(&self) -> Option<Reason> {
        let number = self.declined.try_into().ok().filter(|_| self.reasons[Reason::NoPeer.index()] > 0);
        number.and_then(Reason::from_number)
    }

    /// Writes it, in lines. `users`: this user and the one of [`Summary::other_user`],
    /// for the command that lets them share. Allocates nothing: it may run in a signal
    /// handler that ends the program.
    pub fn write(
        &self,
        to: &mut impl Write,
        name: impl fmt::Display,
        pid: u32,
        users: Option<[&dyn fmt::Display; 2]>,
    ) -> fmt::Result {
        let connections = self.connections();
        write!(to, "megapipe: {name} ({pid}): {connections} connections, {} promoted", self.promoted)?;
        for (reason, times) in Reason::ALL.iter().zip(&self.reasons).filter(|(_, times)| **times > 0) {
            write!(to, ", {times} {reason}")?;
        }
        if connections == 0 {
            write!(to, ", not counting those inherited from its parent")?;
        }
        if self.corrupt > 0 {
            write!(to, "; {} reset over invalid ring state of the peer", self.corrupt)?;
        }
        writeln!(to)?;
        if let Some([own, other]) = users {
            writeln!(
                to,
                "megapipe: {name} ({pid}): connections with programs of user {other} stay on TCP until root runs: \
                 sudo megapipe setup --allow {own}:{other}"
            )?;
        }
        if let Some(obstacle) = self.ring_obstacle() {
            writeln!(to, "megapipe: {name} ({pid}): {}", obstacle.advice())?;
        }
        match self.declined() {
            Some(Reason::IoUring) => writeln!(
                to,
                "megapipe: {name} ({pid}): no-peer: the program at the other end keeps an io_uring; its own summary \
                 (--stats) says what helps"
            )?,
            Some(reason) => writeln!(
                to,
                "megapipe: {name} ({pid}): no-peer: the program at the other end has it as {reason}"
            )?,
            None => {}
        }
        if self.ring_sends.saturating_add(self.ring_receives) == 0 {
            return Ok(());
        }
        let calls = self.ring_sends.saturating_add(self.ring_receives).saturating_add(self.spun);
        writeln!(
            to,
            "megapipe: {name} ({pid}): over shared memory {} messages and {} bytes sent, {} messages and {} bytes \
             received, {} system calls avoided",
            self.ring_sends,
            self.ring_bytes_sent,
            self.ring_receives,
            self.ring_bytes_received,
            calls.saturating_sub(self.wake_ups),
        )?;
        writeln!(
            to,
            "megapipe: {name} ({pid}): {} ms of wake-ups saved, {} ms spun",
            self.saved_time / 1_000_000,
            self.spun_time / 1_000_000,
        )?;
        writeln!(
            to,
            "megapipe: {name} ({pid}): {} wake-ups sent, {} waits without sleeping, {} spins without a message, \
             {} yields to other work, {} sleeps cut short by other threads, \
             {} connections with several waiters",
            self.wake_ups, self.spun, self.vain, self.crowded, self.rechecks, self.contended,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_and_promotions_are_all_connections() {
        let counters = Counters::new();
        for (counter, number) in counters.all().zip(1..) {
            counter.store(number, Ordering::Relaxed);
        }
        let page = counters.all().flat_map(|counter| counter.load(Ordering::Relaxed).to_ne_bytes());
        let page: Vec<u8> = page.collect();
        let mut summary = Summary::from_bytes(page[..].try_into().unwrap());
        assert_eq!(summary, counters.summary());
        assert_eq!(summary.connections(), (1..=Reason::ALL.len() as u64 + 1).sum());
        summary.reasons = Default::default();
        summary.reasons[Reason::NoPeer.index()] = 2;
        (summary.promoted, summary.ring_sends, summary.ring_receives, summary.corrupt) = (1, 0, 0, 0);
        let mut text = String::new();
        summary.write(&mut text, "name", 7, None).unwrap();
        assert_eq!(text, "megapipe: name (7): 3 connections, 1 promoted, 2 no-peer\n");
        text.clear();
        summary.write(&mut text, "name", 7, Some([&"me", &"postgres"])).unwrap();
        assert!(text.ends_with(": sudo megapipe setup --allow me:postgres\n"), "{text}");
        summary.other_user = 8;
        assert_eq!(summary.other_user(), None, "no connection has that reason any more");
        summary.reasons[Reason::OtherUser.index()] = 1;
        assert_eq!(summary.other_user(), Some(7));
        text.clear();
        for (obstacle, number) in RingObstacle::ALL.into_iter().zip(1..) {
            assert_eq!(obstacle as u64, number);
        }
        summary.ring_obstacle = RingObstacle::Polled as u64;
        assert_eq!(summary.ring_obstacle(), None, "no connection is on TCP for it");
        summary.reasons[Reason::IoUring.index()] = 1;
        summary.write(&mut text, "name", 7, None).unwrap();
        assert!(text.contains("\nmegapipe: name (7): its io_uring has SQPOLL: turn that off"), "{text}");
        text.clear();
        (summary.declined, summary.reasons[Reason::NoPeer.index()]) = (Reason::IoUring as u64, 0);
        assert_eq!(summary.declined(), None, "no connection is on TCP for it");
        summary.reasons[Reason::NoPeer.index()] = 1;
        summary.write(&mut text, "name", 7, None).unwrap();
        assert!(text.contains("no-peer: the program at the other end keeps an io_uring;"), "{text}");
        // No value of a process can overflow.
        let summary = Summary::from_bytes(&[255; BYTES]);
        summary.write(&mut text, "name", 7, None).unwrap();
        assert_eq!((summary.connections(), summary.other_user()), (u64::MAX, None));
        counters.clear();
        assert!(counters.summary().is_idle());
    }
}
