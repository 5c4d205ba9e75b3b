//! One endpoint of a promoted connection with its memory, the loops of both endpoints,
//! and the locks that separate the processes that hold it.

#![allow(unsafe_code)] // granted memory becomes regions and pages

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use ring::{Corrupt, Direction, LayoutError, LoopPage, PeerRegion, Region, WakeUp};
use sys::mapping::SharedMapping;

use crate::client::PeerLoop;
use crate::machine::Machine;

/// Why granted memory cannot be used. The connection stays on TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdoptError {
    /// It is not a region, or not a loop page.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The peer violated the protocol already.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
}

/// The page of this process's own loop, and its memory.
#[derive(Debug)]
pub struct OwnLoop {
    // Dropped before its memory.
    page: LoopPage,
    _memory: SharedMapping,
}

impl OwnLoop {
    /// The loop whose page came with a welcome.
    ///
    /// # Errors
    ///
    /// The memory is not a loop page.
    pub fn new(memory: SharedMapping) -> Result<OwnLoop, LayoutError> {
        let start = start_of(&memory)?;
        // SAFETY: a welcome's page is mapped writable with its full size, which the
        // client checked, and stays so beside `page`; no references to it exist.
        let page = unsafe { LoopPage::new(start) }?;
        Ok(OwnLoop { page, _memory: memory })
    }

    /// See [`LoopPage::sleep`].
    #[inline]
    pub fn sleep(&self, waiter: u32) {
        self.page.sleep(waiter);
    }

    /// See [`LoopPage::asleep`].
    #[cold]
    pub fn asleep(&self, waiter: u32) -> u32 {
        self.page.asleep(waiter)
    }

    /// See [`LoopPage::wake`].
    #[inline]
    pub fn wake(&self, waiter: u32) {
        self.page.wake(waiter);
    }
}

/// A loop of the peer, and the sleeps for which this loop has woken it: one for all
/// connections between the two.
#[derive(Debug)]
pub struct OtherLoop {
    page: ring::PeerLoop,
    shared: Arc<PeerLoop>,
}

impl OtherLoop {
    /// The loop that a grant named.
    ///
    /// # Errors
    ///
    /// Its page is not a loop page.
    pub fn new(shared: Arc<PeerLoop>) -> Result<OtherLoop, LayoutError> {
        let start = start_of(&shared.page)?;
        // SAFETY: a grant's page is mapped with its full size, which the client checked,
        // and stays so beside `page`.
        let page = unsafe { ring::PeerLoop::new(start) }?;
        Ok(OtherLoop { page, shared })
    }

    /// The loop's number, assigned by the monitor that granted it.
    pub fn id(&self) -> u32 {
        self.shared.id
    }

    /// Whether this is the same loop.
    pub fn is(&self, other: &Arc<PeerLoop>) -> bool {
        Arc::ptr_eq(&self.shared, other)
    }

    /// Whether no other reference to the loop exists: no connection to it is left.
    pub fn is_forgotten(&self) -> bool {
        Arc::strong_count(&self.shared) == 1
    }
}

fn start_of(memory: &SharedMapping) -> Result<NonNull<u8>, LayoutError> {
    NonNull::new(memory.address()).ok_or(LayoutError::Alignment)
}

/// One endpoint of a promoted connection, with its memory.
#[derive(Debug)]
pub struct Connection {
    // Dropped before its memory.
    machine: Machine,
    _own: SharedMapping,
    _peer: SharedMapping,
    shared: bool,
    locks: [ring::Lock; 2],
}

/// Why a shared connection cannot be used now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HoldError {
    /// Another thread, or the thread that this signal handler interrupted, holds it.
    #[error(transparent)]
    Lock(#[from] ring::LockError),
    /// The peer violated the protocol.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
}

impl Connection {
    /// [`Machine::new`] on the memory of a grant.
    ///
    /// # Errors
    ///
    /// The memory is not a pair of regions.
    pub fn new(
        own: SharedMapping,
        peer: SharedMapping,
        written: u64,
        consumed: u64,
    ) -> Result<Connection, AdoptError> {
        Connection::adopt(own, peer, |own, peer| Machine::new(own, peer, written, consumed))
    }

    /// [`Machine::new_armed`] on the memory of a grant.
    ///
    /// # Errors
    ///
    /// The memory is not a pair of regions.
    pub fn new_armed(
        own: SharedMapping,
        peer: SharedMapping,
        written: u64,
        consumed: u64,
        waiter: u32,
    ) -> Result<Connection, AdoptError> {
        Connection::adopt(own, peer, |own, peer| Machine::new_armed(own, peer, written, consumed, waiter))
    }

    fn adopt(
        own: SharedMapping,
        peer: SharedMapping,
        machine: impl FnOnce(Region, PeerRegion) -> Result<Machine, Corrupt>,
    ) -> Result<Connection, AdoptError> {
        // SAFETY: both are mapped with the lengths given, the own one writable as the
        // client requested, and stay so beside `machine`; no references to them exist.
        let (own_segment, peer_segment) = unsafe {
            (Region::new(start_of(&own)?, own.len())?, PeerRegion::new(start_of(&peer)?, peer.len())?)
        };
        let locks =
            [Direction::Send, Direction::Receive].map(|half| ring::Lock::new(own_segment.clone(), half));
        let machine = machine(own_segment, peer_segment)?;
        Ok(Connection { machine, _own: own, _peer: peer, shared: false, locks })
    }

    /// As [`Machine::wants_wake_up_by`].
    #[inline]
    pub fn wants_wake_up_by(&mut self, other: &OtherLoop, has_doorbell: bool) -> Option<WakeUp> {
        self.machine.wants_wake_up_by(&other.page, has_doorbell)
    }

    /// As [`Machine::wants_wake_up`].
    #[inline]
    pub fn wants_wake_up(&mut self, other: &OtherLoop) -> Option<WakeUp> {
        self.machine.wants_wake_up(&other.page)
    }

    /// As [`Machine::woke_by_doorbell`].
    #[inline]
    pub fn woke_by_doorbell(&mut self, other: &OtherLoop) {
        self.machine.woke_by_doorbell(&other.page);
    }

    /// As [`Machine::woke_peer`].
    pub fn woke_peer(&mut self, other: &OtherLoop, accepted: bool) {
        self.machine.woke_peer(&other.page, accepted);
    }

    /// The process that holds this endpoint is about to fork: from here on each of the
    /// two calls [`Self::hold`] before it does anything else. To be called while no other
    /// thread holds it, in `process`, which is getpid(2).
    pub fn share(&mut self, process: u32) {
        self.machine.save();
        self.locks[0].passes_to(process);
        self.locks[0].adds_holder();
        self.shared = true;
    }

    /// The fork failed.
    pub fn unshare(&mut self) {
        self.locks[0].drops_holder();
    }

    /// This process closes the endpoint. True: no other one holds it, as far as is known.
    pub fn give_up(&mut self) -> bool {
        !self.shared || self.locks[0].drops_holder()
    }

    /// Whether another process holds it, as far as is known.
    pub fn is_held_elsewhere(&self) -> bool {
        self.shared && self.locks[0].has_holders()
    }

    /// Whether it was shared.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// Whether a process has used this endpoint that was forked from the promoted one: it
    /// is then never hot, since its wake-ups must wake all processes.
    #[inline]
    pub fn has_several_users(&self) -> bool {
        self.shared && self.locks[0].has_several()
    }

    /// Locks out the endpoint's other processes, and continues at the position that they
    /// saved. `thread` is gettid(2), `process` getpid(2).
    ///
    /// # Errors
    ///
    /// As for [`Machine::send`].
    pub fn hold(&mut self, thread: u32, process: u32, wait: &mut impl ring::Wait) -> Result<(), HoldError> {
        for lock in &self.locks {
            lock.acquire(thread, wait)?;
        }
        if self.locks[0].passes_to(process) {
            // This process, or the previous one, is not the promoted one.
            self.locks[0].mark_several();
            self.machine.resume()?;
            // A wake-up for this process must not count for an epoll set of the other.
            self.machine.stay_armed(false);
        }
        Ok(())
    }

    /// Unlocks them.
    pub fn let_go(&mut self, thread: u32) {
        self.machine.save();
        self.locks.iter().for_each(|lock| lock.release(thread));
    }
}

impl Deref for Connection {
    type Target = Machine;

    #[inline(always)]
    fn deref(&self) -> &Machine {
        &self.machine
    }
}

impl DerefMut for Connection {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Machine {
        &mut self.machine
    }
}
