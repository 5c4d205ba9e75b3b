//! A group of listening sockets, its members, and what their owners share with the program.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use sys::bpf::{Error, Kind, Program, SocketArray, WordArray};

use crate::inherited::Inherited;
use crate::program::{self, Maps, Select, SlowPath};
use crate::table::{self, ACCEPTED, AWAY, CANNOT_ACCEPT, CONTROL, Lines, STEERED};

// As bpftool(8) shows them, and by which `Inherited` finds them.
pub(crate) const PROGRAM: &str = "steering";
pub(crate) const MEMBERS: &str = "members";
pub(crate) const PLACES: &str = "places";
pub(crate) const SOCKETS: &str = "sockets";

/// Members that a group has at most.
const MEMBERS_MAX: u32 = 1023;

/// The program of one SO_REUSEPORT group, and what it shares with the members' owners.
#[derive(Debug)]
pub struct Steering {
    program: Program,
    members: WordArray,
    places: WordArray,
    sockets: SocketArray,
}

/// A member's place in its [`Steering`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(u32);

impl Slot {
    /// Counted from 1; the lowest that is free.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// Why a socket could not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// All places are taken.
    #[error("the group has {MEMBERS_MAX} members already, which is the most")]
    Full,
    /// It does not listen, or lacks SO_REUSEPORT.
    #[error("the socket cannot be steered to: {0}")]
    Io(#[from] io::Error),
}

impl Steering {
    /// Steering without members.
    ///
    /// # Errors
    ///
    /// [`Error::NotPermitted`] without CAP_BPF.
    pub fn new(slow_path: SlowPath) -> Result<Steering, Error> {
        let cpus = possible_cpus();
        let members = WordArray::new(MEMBERS, MEMBERS_MAX + 1, table::words(cpus))?;
        let places = WordArray::new(PLACES, cpus, table::PLACES as usize)?;
        let sockets = SocketArray::new(SOCKETS, MEMBERS_MAX + 1)?;
        let maps = Maps { members: &members, places: &places, sockets: &sockets };
        let code = program::assemble(&maps, slow_path, &Select(maps.sockets.as_fd()))?;
        let program = Program::load(PROGRAM, Kind::ReuseportSelectOrMigrate, &code)?;
        Ok(Steering { program, members, places, sockets })
    }

    /// This one, which has no members; or the inherited one whose shared socket has this
    /// cookie (SO_COOKIE), with its members, if it was made exactly as this one was.
    #[must_use]
    pub fn or_inherited(self, inherited: &[Inherited<'_>], cookie: u64) -> Steering {
        let same_make = |&Inherited([program, members, places, sockets]): &Inherited<'_>| {
            Some(Steering {
                program: self.program.inherit(program).ok()?,
                members: self.members.inherit(members).ok()?,
                places: self.places.inherit(places).ok()?,
                sockets: self.sockets.inherit(sockets).ok()?,
            })
        };
        let mut inherited = inherited.iter().filter_map(same_make);
        inherited.find(|steering| steering.is_shared_by(cookie)).unwrap_or(self)
    }

    /// Whether the socket of this cookie (SO_COOKIE) is the one of [`Steering::share`].
    pub fn is_shared_by(&self, cookie: u64) -> bool {
        self.sockets.holds(CONTROL, cookie)
    }

    /// Has its descriptors numbers from `lowest` on, out of the way of a program that
    /// expects its own.
    ///
    /// # Errors
    ///
    /// EMFILE and EINVAL, as of fcntl(2).
    pub fn raise(&mut self, lowest: RawFd) -> io::Result<()> {
        self.program.raise(lowest)?;
        self.members.raise(lowest)?;
        self.places.raise(lowest)?;
        self.sockets.raise(lowest)
    }

    /// The descriptors that it keeps open.
    pub fn descriptors(&self) -> [RawFd; 4] {
        let all = [self.program.as_fd(), self.members.as_fd(), self.places.as_fd(), self.sockets.as_fd()];
        all.map(|fd| fd.as_raw_fd())
    }

    /// Closes the descriptors. The words of [`Steering::owner`] stay mapped for good, for
    /// threads that may still use them.
    pub fn keep_words(self) {
        self.members.keep_mapped();
    }

    /// Whether this process may have members join and leave.
    ///
    /// # Errors
    ///
    /// As of [`SocketArray::probe`].
    pub fn probe(&self) -> io::Result<()> {
        self.sockets.probe()
    }

    /// Makes `socket`, which listens, the one of [`SlowPath::SharedSocket`].
    ///
    /// # Errors
    ///
    /// As of [`SocketArray::insert`]: EEXIST if there is one, EBUSY if the socket has a
    /// place already.
    pub fn share(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.sockets.insert(CONTROL, socket)
    }

    /// Makes `socket`, which listens, the member that takes the connections of `cpus`, and the
    /// program that of its group. Its owner counts as away from now on, until it says otherwise.
    ///
    /// # Errors
    ///
    /// [`JoinError`].
    pub fn join(
        &self,
        socket: BorrowedFd<'_>,
        cpus: impl Iterator<Item = u32> + Clone,
    ) -> Result<Slot, JoinError> {
        let slot = self.take_slot(socket)?;
        let owner = self.owner(slot);
        owner.is_away_since(sys::clock::monotonic());
        owner.found_queue_empty();
        self.set_cpus(slot, cpus);
        if let Err(error) = self.program.attach_to_reuseport(socket) {
            self.leave(slot);
            return Err(error.into());
        }
        Ok(slot)
    }

    /// Changes which CPUs' connections a member takes.
    pub fn set_cpus(&self, slot: Slot, cpus: impl Iterator<Item = u32> + Clone) {
        let lines = Lines { members: &self.members, places: &self.places };
        lines.set_mask(slot.0, cpus, |member| self.sockets.contains(member));
    }

    /// Steers no more to a member; a closed socket need not leave, but its CPUs' connections take
    /// the slow path until then.
    pub fn leave(&self, slot: Slot) {
        // It is gone already if the socket was closed.
        let _ = self.sockets.remove(slot.0);
        self.set_cpus(slot, std::iter::empty());
    }

    /// What the member's owner shares with the program.
    #[inline]
    pub fn owner(&self, slot: Slot) -> Owner<'_> {
        Owner(self.members.entry(slot.0).unwrap_or_default())
    }

    /// The kernel lets one of several that want a place have it, and frees those of dead processes.
    fn take_slot(&self, socket: BorrowedFd<'_>) -> Result<Slot, JoinError> {
        for slot in CONTROL + 1..=MEMBERS_MAX {
            match self.sockets.insert(slot, socket) {
                Ok(()) => return Ok(Slot(slot)),
                Err(error) if error.raw_os_error() == Some(EEXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(JoinError::Full)
    }
}

/// What the owner of a member shares with the program: hints, in any order.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a>(&'a [AtomicU64]);

impl Owner<'_> {
    /// Waits for connections from now on.
    #[inline]
    pub fn waits(&self) {
        self.store(AWAY, 0);
    }

    /// Does something else since `now` (CLOCK_MONOTONIC, nanoseconds).
    #[inline]
    pub fn is_away_since(&self, now: u64) {
        self.store(AWAY, now.max(1));
    }

    /// As [`Owner::is_away_since`], unless it said that it cannot accept.
    #[inline]
    pub fn waited_until(&self, now: u64) {
        if self.load(AWAY) != CANNOT_ACCEPT {
            self.is_away_since(now);
        }
    }

    /// Would not accept a connection, until it waits again: the last to get one.
    pub fn cannot_accept(&self) {
        self.store(AWAY, CANNOT_ACCEPT);
    }

    /// Accepted a connection from the member's own queue.
    #[inline]
    pub fn accepted(&self) {
        if let Some(accepted) = self.0.get(ACCEPTED) {
            // The owner is the only writer.
            accepted.store(accepted.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// Found the queue empty: what was steered here and never came (a SYN of a flood, a handshake
    /// that failed) counts no more. Returns how many those were. Of them, handshakes
    /// under way still come.
    #[inline]
    pub fn found_queue_empty(&self) -> i64 {
        let (steered, accepted) = (self.load(STEERED), self.load(ACCEPTED));
        if steered != accepted {
            self.store(ACCEPTED, steered);
        }
        steered.wrapping_sub(accepted).cast_signed()
    }

    /// Connections steered here and not accepted. One whose handshake is under way counts, unless
    /// [`Owner::found_queue_empty`] came between.
    #[inline]
    pub fn behind(&self) -> i64 {
        self.load(STEERED).wrapping_sub(self.load(ACCEPTED)).cast_signed()
    }

    fn load(&self, word: usize) -> u64 {
        self.0.get(word).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    fn store(&self, word: usize, value: u64) {
        if let Some(word) = self.0.get(word) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

/// One more than the highest number that a CPU can have here.
pub(crate) fn possible_cpus() -> u32 {
    let possible = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = possible.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<u32>().ok());
    // Without sysfs: as many as the smallest mask of sched_setaffinity(2) holds.
    last.map_or(1024, |last| last + 1)
}

const EEXIST: i32 = 17;
