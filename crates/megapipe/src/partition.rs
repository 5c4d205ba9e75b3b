//! Partitioned listeners: one listening socket per channel on one address, and a program
//! in the kernel that steers each connection by the CPU that handled its SYN.
//!
//! The sockets are a SO_REUSEPORT group; a member's number in it is its place in the
//! order of listen(2), and when a member leaves, the last one moves into its place
//! (net/core/sock_reuseport.c). The program knows members by number, so it is rebuilt at
//! every join, leave and change of a mask. In between, a number that is out of range
//! makes the kernel choose by hash: a connection may land on the wrong CPU for a moment,
//! but none is lost.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use socket2::{SockAddr, SockRef, Socket};
use sys::reuseport;
use thiserror::Error;

use crate::id::OpId;
use crate::waker::Waker;

/// A set of CPUs, by their kernel numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet {
    cpus: Vec<u32>,
}

impl CpuSet {
    /// No CPU: the member gets only what no mask claims, by hash.
    pub fn empty() -> CpuSet {
        CpuSet::default()
    }

    /// One CPU.
    pub fn of(cpu: u32) -> CpuSet {
        CpuSet { cpus: vec![cpu] }
    }

    /// The CPUs, each once, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.cpus.iter().copied()
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        let mut cpus: Vec<u32> = cpus.into_iter().collect();
        cpus.sort_unstable();
        cpus.dedup();
        CpuSet { cpus }
    }
}

/// Why a listener could not be partitioned.
#[derive(Debug, Error)]
pub enum PartitionError {
    /// Only TCP sockets can be members.
    #[error("not an internet stream socket; partitioned listeners are TCP")]
    NotTcp,
    /// The socket has no address yet.
    #[error("the socket is not bound; bind it first")]
    NotBound,
    /// SO_REUSEPORT was not set before bind(2).
    #[error("the socket lacks SO_REUSEPORT; set it before bind")]
    NoReusePort,
    /// The masks need a longer program than the kernel takes.
    #[error(
        "the cpu masks need {instructions} instructions, and the kernel takes 4096; use fewer or simpler masks"
    )]
    ProgramTooLong {
        /// Instructions needed.
        instructions: usize,
    },
    /// The kernel refused.
    #[error("the listener cannot be partitioned: {0}")]
    Io(#[from] io::Error),
}

impl From<PartitionError> for io::Error {
    fn from(error: PartitionError) -> Self {
        match error {
            PartitionError::Io(error) => error,
            PartitionError::NotTcp | PartitionError::NotBound | PartitionError::NoReusePort => {
                io::Error::new(io::ErrorKind::InvalidInput, error)
            }
            PartitionError::ProgramTooLong { .. } => io::Error::new(io::ErrorKind::OutOfMemory, error),
        }
    }
}

/// All members of one listener in this process.
struct Group {
    /// In the kernel's order; some may have been left to the caller's listener.
    members: Vec<Arc<Seat>>,
}

/// A listening socket of the caller's that a member shares.
struct Given {
    number: RawFd,
    cookie: u64,
}

/// What a member shares with the channels of the other members.
struct Seat {
    /// `None` once the member has left.
    socket: Mutex<Option<OwnedFd>>,
    /// The caller's listener, if that is the socket: it stays in the kernel's group when the
    /// member leaves, until the caller closes it.
    given: Option<Given>,
    /// A forked child inherits the table of groups, but the members are its parent's.
    process: u32,
    mask: Mutex<CpuSet>,
    /// Connections that the channel could take: 0 unless it sleeps.
    room: AtomicU32,
    /// Handles of the channel, as of its last sleep.
    load: AtomicU32,
    /// `None` once the member has left.
    handed_over: Mutex<Option<VecDeque<OwnedFd>>>,
    /// How many those are, for a look without the lock.
    waiting: AtomicUsize,
    waker: Waker,
}

/// A channel's place in a partitioned listener; leaving is dropping it.
pub(crate) struct Member {
    seat: Arc<Seat>,
    key: Vec<u8>,
    /// Accepts without end of this channel's listener, which take what is handed over.
    pub(crate) accepts: Vec<OpId>,
}

/// Another channel that could take a connection.
pub(crate) struct Peer(Arc<Seat>);

/// Connections that may wait to be taken over by one channel.
const HANDED_OVER_MAX: usize = 256;

/// Longest accept queue asked for; the kernel cuts it to net.core.somaxconn.
const BACKLOG: i32 = 65535;

fn groups() -> MutexGuard<'static, HashMap<Vec<u8>, Group>> {
    static GROUPS: OnceLock<Mutex<HashMap<Vec<u8>, Group>>> = OnceLock::new();
    // The map is whole between any two steps, so a panic elsewhere cannot have torn it.
    GROUPS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

impl Member {
    /// Opens this channel's own listening socket on `listener`'s address. The first member
    /// shares `listener` itself if that already listens, so that no connection waits where
    /// nobody accepts.
    pub(crate) fn join(
        listener: BorrowedFd<'_>,
        mask: &CpuSet,
        waker: Waker,
    ) -> Result<(OwnedFd, Member), PartitionError> {
        let given = SockRef::from(&listener);
        let address = check(&given)?;
        let key = key_of(&given, &address)?;
        let mut groups = groups();
        let group = groups.entry(key.clone()).or_insert_with(|| Group { members: Vec::new() });
        group.members.retain(|seat| seat.process == std::process::id());
        let result = open_member(group, listener, &given, &address, mask, waker);
        if group.is_deserted() {
            groups.remove(&key);
        }
        let (fd, seat) = result?;
        Ok((fd, Member { seat, key, accepts: Vec::new() }))
    }

    pub(crate) fn set_mask(&mut self, mask: &CpuSet) -> Result<(), PartitionError> {
        let mut groups = groups();
        let Some(group) = groups.get_mut(&self.key) else {
            return Ok(());
        };
        let old = std::mem::replace(&mut *lock(&self.seat.mask), mask.clone());
        let steered = group.steer();
        if steered.is_err() {
            *lock(&self.seat.mask) = old;
        }
        steered
    }

    /// How many connections the channel could take, and how many handles it has.
    pub(crate) fn publish(&self, room: u32, load: u32) {
        // Hints for `idle_peer` only: nothing else hangs on their order.
        self.seat.load.store(load, Ordering::Relaxed);
        self.seat.room.store(room, Ordering::Relaxed);
    }

    /// The least loaded channel that sleeps while this one has more to do.
    pub(crate) fn idle_peer(&self, load: u32) -> Option<Peer> {
        let groups = groups();
        groups
            .get(&self.key)?
            .members
            .iter()
            .filter(|seat| !Arc::ptr_eq(seat, &self.seat))
            .filter(|seat| seat.load.load(Ordering::Relaxed) < load)
            .filter(|seat| seat.waiting.load(Ordering::Relaxed) < seat.room())
            .min_by_key(|seat| seat.load.load(Ordering::Relaxed))
            .map(|seat| Peer(Arc::clone(seat)))
    }

    /// Whether connections wait to be taken over. Who handed one over wakes this channel
    /// afterwards, so that no look is too early for good.
    pub(crate) fn has_handed_over(&self) -> bool {
        self.seat.waiting.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn take_handed_over(&self) -> Option<OwnedFd> {
        let mut queue = lock(&self.seat.handed_over);
        let fd = queue.as_mut()?.pop_front();
        self.seat.waiting.store(queue.as_ref().map_or(0, VecDeque::len), Ordering::Relaxed);
        fd
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut groups = groups();
        let Some(group) = groups.get_mut(&self.key) else {
            return;
        };
        if let Some(place) = group.members.iter().position(|seat| Arc::ptr_eq(seat, &self.seat)) {
            let socket = lock(&self.seat.socket).take();
            if self.seat.is_callers() {
                *lock(&self.seat.mask) = CpuSet::empty();
                self.publish(0, 0);
            } else {
                // Leaves the kernel's group now, not when the last copy of the descriptor is
                // closed (a pending accept holds one).
                let _ = socket.map(|socket| SockRef::from(&socket).shutdown(std::net::Shutdown::Both));
                group.members.swap_remove(place);
            }
            // A stale program falls back to hashing: nothing is lost if this fails.
            let _ = group.steer();
            // What was handed to it goes to who sleeps, or to the first; to nobody if it was
            // the last, as its accept queue does.
            let left = lock(&self.seat.handed_over).take().unwrap_or_default();
            let heir = group.members.iter().find(|seat| seat.room() > 0);
            if let Some(heir) = heir.or(group.members.iter().find(|seat| !seat.is_left())) {
                left.into_iter().for_each(|fd| {
                    heir.receive(fd, usize::MAX);
                });
            }
        }
        if group.is_deserted() {
            groups.remove(&self.key);
        }
    }
}

impl Group {
    fn is_deserted(&self) -> bool {
        self.members.iter().all(|seat| seat.is_left())
    }

    /// Gives the kernel's group the program for its members' present masks and numbers.
    fn steer(&mut self) -> Result<(), PartitionError> {
        // As the kernel does when a listener is closed.
        while let Some(place) = self.members.iter().position(|seat| seat.is_left() && !seat.is_callers()) {
            self.members.swap_remove(place);
        }
        let masks: Vec<Vec<u32>> = self.members.iter().map(|seat| lock(&seat.mask).cpus.clone()).collect();
        let program = reuseport::steer_by_cpu(&masks);
        if program.len() > reuseport::PROGRAM_MAX {
            return Err(PartitionError::ProgramTooLong { instructions: program.len() });
        }
        for seat in &self.members {
            if let Some(socket) = &*lock(&seat.socket) {
                return Ok(reuseport::attach(socket.as_fd(), &program)?);
            }
        }
        Ok(())
    }
}

impl Peer {
    /// False if the channel left, or has too many waiting, since it was chosen.
    pub(crate) fn hand_over(self, fd: OwnedFd) -> bool {
        self.0.receive(fd, self.0.room())
    }
}

impl Seat {
    fn is_left(&self) -> bool {
        lock(&self.socket).is_none()
    }

    /// Whether the caller has the socket, too, and still open.
    fn is_callers(&self) -> bool {
        self.given.as_ref().is_some_and(|given| {
            sys::socket::cookie_of_number(given.number).is_ok_and(|cookie| cookie == given.cookie)
        })
    }

    fn room(&self) -> usize {
        (self.room.load(Ordering::Relaxed) as usize).min(HANDED_OVER_MAX)
    }

    fn receive(&self, fd: OwnedFd, max: usize) -> bool {
        match &mut *lock(&self.handed_over) {
            Some(queue) if queue.len() < max => {
                queue.push_back(fd);
                self.waiting.store(queue.len(), Ordering::Relaxed);
            }
            _ => return false,
        }
        self.waker.wake();
        true
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn check(given: &SockRef<'_>) -> Result<SockAddr, PartitionError> {
    let address = given.local_addr()?;
    let Some(internet) = address.as_socket() else {
        return Err(PartitionError::NotTcp);
    };
    if given.r#type()? != socket2::Type::STREAM {
        return Err(PartitionError::NotTcp);
    }
    if internet.port() == 0 {
        return Err(PartitionError::NotBound);
    }
    if !given.reuse_port()? {
        return Err(PartitionError::NoReusePort);
    }
    Ok(address)
}

/// Address and network namespace: the same address in two namespaces is two listeners.
fn key_of(given: &SockRef<'_>, address: &SockAddr) -> io::Result<Vec<u8>> {
    let namespace = sys::socket::namespace_cookie(given.as_fd())?;
    let mut key = namespace.to_ne_bytes().to_vec();
    key.extend_from_slice(format!("{:?}", address.as_socket()).as_bytes());
    Ok(key)
}

fn open_member(
    group: &mut Group,
    listener: BorrowedFd<'_>,
    given: &SockRef<'_>,
    address: &SockAddr,
    mask: &CpuSet,
    waker: Waker,
) -> Result<(OwnedFd, Arc<Seat>), PartitionError> {
    let shared = group.members.is_empty() && given.is_listener()?;
    let fd = if shared {
        listener.try_clone_to_owned()?
    } else {
        let socket = Socket::new(address.domain(), socket2::Type::STREAM, Some(socket2::Protocol::TCP))?;
        socket.set_reuse_port(true)?;
        socket.set_reuse_address(given.reuse_address()?)?;
        socket.set_tcp_nodelay(given.tcp_nodelay()?)?;
        if address.is_ipv6() {
            socket.set_only_v6(given.only_v6()?)?;
        }
        socket.bind(address)?;
        socket.listen(BACKLOG)?;
        OwnedFd::from(socket)
    };
    let number = listener.as_raw_fd();
    let given = match shared {
        true => Some(Given { number, cookie: sys::socket::cookie_of_number(number)? }),
        false => None,
    };
    let seat = Arc::new(Seat {
        socket: Mutex::new(Some(fd.try_clone()?)),
        given,
        process: std::process::id(),
        mask: Mutex::new(mask.clone()),
        room: AtomicU32::new(0),
        load: AtomicU32::new(0),
        handed_over: Mutex::new(Some(VecDeque::new())),
        waiting: AtomicUsize::new(0),
        waker,
    });
    group.members.push(Arc::clone(&seat));
    if let Err(error) = group.steer() {
        group.members.pop();
        return Err(error);
    }
    Ok((fd, seat))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound() -> Socket {
        let socket = Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.set_reuse_port(true).unwrap();
        socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        socket
    }

    #[test]
    fn a_socket_that_cannot_be_shared_is_refused() {
        let socket = Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let waker = Waker::new().unwrap();
        let refused = Member::join(socket.as_fd(), &CpuSet::of(0), waker.clone());
        assert!(matches!(refused, Err(PartitionError::NotBound)));
        socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let refused = Member::join(socket.as_fd(), &CpuSet::of(0), waker);
        assert!(matches!(refused, Err(PartitionError::NoReusePort)));
    }

    /// A descriptor that can be told from others, and the other end of it.
    fn connection() -> (OwnedFd, Socket) {
        let (ours, peer) = Socket::pair(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
        (ours.into(), peer)
    }

    #[test]
    fn a_member_that_leaves_loses_no_connection() {
        let socket = bound();
        let waker = Waker::new().unwrap();
        let join = || Member::join(socket.as_fd(), &CpuSet::of(0), waker.clone()).unwrap().1;
        let (busy, idle) = (join(), join());
        idle.publish(2, 0);
        assert!(idle.idle_peer(9).is_none(), "nobody sleeps but the one that asks");
        let (first, mut peer) = connection();
        assert!(busy.idle_peer(1).unwrap().hand_over(first));
        assert!(idle.has_handed_over());
        let late = busy.idle_peer(1).unwrap();
        drop(idle);
        // What it had goes to who is left; what comes too late stays where it was.
        assert!(!late.hand_over(connection().0));
        let passed_on = busy.take_handed_over().unwrap();
        std::io::Write::write_all(&mut std::fs::File::from(passed_on), b"x").unwrap();
        let mut byte = [0];
        std::io::Read::read_exact(&mut peer, &mut byte).unwrap();
        assert!(!busy.has_handed_over() && busy.take_handed_over().is_none());
    }

    #[test]
    fn nobody_gets_more_than_there_is_room_for() {
        let socket = bound();
        let waker = Waker::new().unwrap();
        let join = || Member::join(socket.as_fd(), &CpuSet::of(0), waker.clone()).unwrap().1;
        let (busy, idle) = (join(), join());
        idle.publish(2, 0);
        let (one, two) = (busy.idle_peer(1).unwrap(), busy.idle_peer(1).unwrap());
        let three = busy.idle_peer(1).unwrap();
        assert!(one.hand_over(connection().0) && two.hand_over(connection().0));
        assert!(!three.hand_over(connection().0));
        assert!(busy.idle_peer(1).is_none());
    }

    #[test]
    fn leaving_keeps_the_kernels_order() {
        let socket = bound();
        let waker = Waker::new().unwrap();
        let mut members: Vec<_> = (0..3)
            .map(|cpu| Member::join(socket.as_fd(), &CpuSet::of(cpu), waker.clone()).unwrap())
            .collect();
        let last = Arc::clone(&members[2].1.seat);
        let key = members[0].1.key.clone();
        members.remove(0);
        assert!(Arc::ptr_eq(&groups()[&key].members[0], &last));
        drop(members);
        assert!(!groups().contains_key(&key));
    }
}
