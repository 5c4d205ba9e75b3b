//! Partitioned listeners: one listening socket per channel on one address, and a program
//! in the kernel that steers each connection by the CPU that handled its SYN.
//!
//! The sockets are a SO_REUSEPORT group. Where this process may load one, the program is that of
//! crate `steering`, which also passes channels over that are away or behind. Elsewhere it is a
//! classic one that knows the CPU alone, and members by number: a member's number is its place in
//! the order of listen(2), and when a member leaves, the last one moves into its place
//! (net/core/sock_reuseport.c). So it is rebuilt at every join, leave and change of a mask. In
//! between, a number that is out of range makes the kernel choose by hash: a connection may land
//! on the wrong CPU for a moment, but none is lost.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError};

use socket2::{SockAddr, SockFilter, SockRef, Socket};
use steering::{JoinError, Owner, Slot, SlowPath, Steering};
use sys::reuseport;
use thiserror::Error;

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
    pub fn iter(&self) -> impl Iterator<Item = u32> + Clone + '_ {
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
    /// Another user made the socket, or it has connections that were accepted before it had SO_REUSEPORT.
    #[error(
        "the address is in use by a socket of another user, or by connections that were accepted before the listener had \
         SO_REUSEPORT; set SO_REUSEPORT or SO_REUSEADDR before bind"
    )]
    InUse,
    /// The masks need a longer program than the kernel takes.
    #[error(
        "the cpu masks need {instructions} instructions, and the kernel takes 4096; use fewer or simpler masks"
    )]
    ProgramTooLong {
        /// Instructions needed.
        instructions: usize,
    },
    /// The group has as many members as there can be.
    #[error(transparent)]
    TooManyMembers(JoinError),
    /// The kernel refused.
    #[error("the listener cannot be partitioned: {0}")]
    Io(#[from] io::Error),
}

impl From<JoinError> for PartitionError {
    fn from(error: JoinError) -> Self {
        match error {
            JoinError::Io(error) => PartitionError::Io(error),
            full @ JoinError::Full => PartitionError::TooManyMembers(full),
        }
    }
}

impl From<PartitionError> for io::Error {
    fn from(error: PartitionError) -> Self {
        match error {
            PartitionError::Io(error) => error,
            PartitionError::NotTcp | PartitionError::NotBound => {
                io::Error::new(io::ErrorKind::InvalidInput, error)
            }
            PartitionError::InUse => io::Error::new(io::ErrorKind::AddrInUse, error),
            PartitionError::ProgramTooLong { .. } | PartitionError::TooManyMembers(_) => {
                io::Error::new(io::ErrorKind::OutOfMemory, error)
            }
        }
    }
}

/// All members of one listener in this process.
struct Group {
    /// In the kernel's order; some may have been left to the caller's listener.
    members: Vec<Arc<Seat>>,
    /// `None` where it is not permitted.
    steering: Option<Arc<Steering>>,
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
    /// Its place in the group's steering; `None` also for a socket that another process steers to.
    slot: Option<Slot>,
}

/// A channel's membership in a partitioned listener, until it is dropped.
pub(crate) struct Member {
    seat: Arc<Seat>,
    key: Vec<u8>,
    steering: Option<Arc<Steering>>,
}

/// Longest accept queue asked for; the kernel cuts it to net.core.somaxconn.
const BACKLOG: i32 = 65535;

fn groups() -> MutexGuard<'static, HashMap<Vec<u8>, Group>> {
    static GROUPS: OnceLock<Mutex<HashMap<Vec<u8>, Group>>> = OnceLock::new();
    // The map is whole between any two steps, so a panic elsewhere cannot have torn it.
    GROUPS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

impl Member {
    /// Opens this channel's own listening socket on `listener`'s address. The first
    /// member shares `listener` itself if that already listens: no connection may wait in
    /// the queue of a socket that nothing accepts from.
    pub(crate) fn join(listener: BorrowedFd<'_>, mask: &CpuSet) -> Result<(OwnedFd, Member), PartitionError> {
        let given = SockRef::from(&listener);
        let address = check(&given)?;
        let key = key_of(&given, &address)?;
        let mut groups = groups();
        let here = |seat: &Arc<Seat>| seat.process == std::process::id();
        if groups.get(&key).is_some_and(|group| !group.members.iter().all(here)) {
            groups.remove(&key);
        }
        let group = groups.entry(key.clone()).or_insert_with(Group::new);
        // The kernel compares the flags of now when another socket is bound (`inet_csk_bind_conflict`).
        let late = !given.reuse_port()?;
        if late {
            given.set_reuse_port(true)?;
        }
        let result = open_member(group, listener, &given, &address, mask);
        if late && result.is_err() {
            let _ = given.set_reuse_port(false);
        }
        let steering = group.steering.clone();
        if group.is_deserted() {
            groups.remove(&key);
        }
        let (fd, seat) = result?;
        Ok((fd, Member { seat, key, steering }))
    }

    pub(crate) fn set_mask(&mut self, mask: &CpuSet) -> Result<(), PartitionError> {
        let mut groups = groups();
        let Some(group) = groups.get_mut(&self.key) else {
            return Ok(());
        };
        let old = std::mem::replace(&mut *lock(&self.seat.mask), mask.clone());
        if let (Some(steering), Some(slot)) = (&self.steering, self.seat.slot) {
            steering.set_cpus(slot, mask.iter());
            return Ok(());
        }
        let steered = group.steer();
        if steered.is_err() {
            *lock(&self.seat.mask) = old;
        }
        steered
    }

    /// The words that this channel shares with the program that steers to it, where there
    /// is one.
    pub(crate) fn owner(&self) -> Option<Owner<'_>> {
        Some(self.steering.as_ref()?.owner(self.seat.slot?))
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
            if let (Some(steering), Some(slot)) = (&self.steering, self.seat.slot) {
                steering.leave(slot);
            }
            if self.seat.is_callers() {
                *lock(&self.seat.mask) = CpuSet::empty();
            } else {
                // Leaves the kernel's group now, not when the last copy of the descriptor is
                // closed (a pending accept holds one).
                let _ = socket.map(|socket| SockRef::from(&socket).shutdown(std::net::Shutdown::Both));
                group.members.swap_remove(place);
            }
            // A stale program falls back to hashing: nothing is lost if this fails.
            let _ = group.steer();
        }
        if group.is_deserted() {
            groups.remove(&self.key);
        }
    }
}

impl Group {
    fn new() -> Group {
        let steering = Steering::new(SlowPath::OtherMember);
        if let Err(error) = &steering {
            static LOGGED: Once = Once::new();
            LOGGED.call_once(|| {
                tracing::warn!(
                    "partitioned listeners steer by CPU alone, also to channels that hang, and connections \
                     in the queue of one that ends are reset: {error}"
                );
            });
        }
        Group { members: Vec::new(), steering: steering.ok().map(Arc::new) }
    }

    fn is_deserted(&self) -> bool {
        self.members.iter().all(|seat| seat.is_left())
    }

    /// Gives the kernel's group the classic program for its members' present masks and numbers,
    /// unless it has the better one.
    fn steer(&mut self) -> Result<(), PartitionError> {
        // As the kernel does when a listener is closed.
        while let Some(place) = self.members.iter().position(|seat| seat.is_left() && !seat.is_callers()) {
            self.members.swap_remove(place);
        }
        if self.steering.is_some() {
            return Ok(());
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
    Ok(address)
}

/// A socket that listened before it had SO_REUSEPORT gets a group when the next one on its address listens
/// (`reuseport_add_sock`), which is one that drops the SYNs it may be given: their clients send them again.
fn form_group(given: &SockRef<'_>, address: &SockAddr) -> Result<(), PartitionError> {
    const DROP: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let next = bound_beside(given, address)?;
    next.attach_filter(&[SockFilter::new(DROP, 0, 0, 0)])?;
    Ok(next.listen(1)?)
}

/// Another socket on the address of a given one, and of its group.
fn bound_beside(given: &SockRef<'_>, address: &SockAddr) -> Result<Socket, PartitionError> {
    let socket = Socket::new(address.domain(), socket2::Type::STREAM, Some(socket2::Protocol::TCP))?;
    socket.set_reuse_port(true)?;
    socket.set_reuse_address(given.reuse_address()?)?;
    socket.set_tcp_nodelay(given.tcp_nodelay()?)?;
    if let Some(device) = given.device()? {
        socket.bind_device(Some(&device))?;
    }
    if address.is_ipv6() {
        socket.set_only_v6(given.only_v6()?)?;
    } else {
        socket.set_freebind_v4(given.freebind_v4()?)?;
    }
    match socket.bind(address) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(PartitionError::InUse),
        bound => bound.map(|()| socket).map_err(PartitionError::from),
    }
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
) -> Result<(OwnedFd, Arc<Seat>), PartitionError> {
    let shared = group.members.is_empty() && given.is_listener()?;
    let fd = if shared {
        listener.try_clone_to_owned()?
    } else {
        let socket = bound_beside(given, address)?;
        socket.listen(BACKLOG)?;
        OwnedFd::from(socket)
    };
    let seat = match enter(group, &fd, shared.then_some(listener), mask) {
        Err(PartitionError::Io(error)) if shared && error.raw_os_error() == Some(libc::EINVAL) => {
            form_group(given, address)?;
            enter(group, &fd, Some(listener), mask)?
        }
        result => result?,
    };
    Ok((fd, seat))
}

/// Makes a listening socket the group's next member. `given`: it is the caller's.
fn enter(
    group: &mut Group,
    fd: &OwnedFd,
    given: Option<BorrowedFd<'_>>,
    mask: &CpuSet,
) -> Result<Arc<Seat>, PartitionError> {
    let given = match given.map(|given| given.as_raw_fd()) {
        Some(number) => Some(Given { number, cookie: sys::socket::cookie_of_number(number)? }),
        None => None,
    };
    let kept = fd.try_clone()?;
    let slot = match &group.steering {
        Some(steering) => match steering.join(fd.as_fd(), mask.iter()) {
            Ok(slot) => Some(slot),
            // The caller's socket came by fork from a process that steers to it.
            Err(JoinError::Io(error)) if error.raw_os_error() == Some(libc::EBUSY) => None,
            Err(error) => return Err(error.into()),
        },
        None => None,
    };
    let seat = Arc::new(Seat {
        socket: Mutex::new(Some(kept)),
        given,
        process: std::process::id(),
        mask: Mutex::new(mask.clone()),
        slot,
    });
    group.members.push(Arc::clone(&seat));
    if let Err(error) = group.steer() {
        group.members.pop();
        return Err(error);
    }
    Ok(seat)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound() -> Socket {
        let socket = Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        socket
    }

    #[test]
    fn a_socket_that_cannot_be_shared_is_refused() {
        let socket = Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let refused = Member::join(socket.as_fd(), &CpuSet::of(0));
        assert!(matches!(refused, Err(PartitionError::NotBound)));
    }

    fn listening(socket: &Socket) -> std::net::SocketAddr {
        socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        socket.listen(8).unwrap();
        socket.local_addr().unwrap().as_socket().unwrap()
    }

    #[test]
    fn a_listener_gets_its_flag_late_or_keeps_none() {
        let new = || Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let socket = new();
        let address = listening(&socket);
        let client = std::net::TcpStream::connect(address).unwrap();
        let (accepted, _) = socket.accept().unwrap();
        for _ in 0..2 {
            let refused = Member::join(socket.as_fd(), &CpuSet::of(0));
            assert!(matches!(refused, Err(PartitionError::InUse)), "{:?}", refused.err());
            assert!(!socket.reuse_port().unwrap(), "it is as it was");
        }
        accepted.set_linger(Some(std::time::Duration::ZERO)).unwrap();
        drop((accepted, client));
        let first = Member::join(socket.as_fd(), &CpuSet::of(0)).unwrap();
        let second = Member::join(socket.as_fd(), &CpuSet::of(1)).unwrap();
        drop((first, second));
        // The owner set the flag, but too late for a group.
        let socket = new();
        listening(&socket);
        socket.set_reuse_port(true).unwrap();
        drop(Member::join(socket.as_fd(), &CpuSet::of(0)).unwrap());
    }

    #[test]
    fn leaving_keeps_the_kernels_order() {
        let socket = bound();
        let mut members: Vec<_> =
            (0..3).map(|cpu| Member::join(socket.as_fd(), &CpuSet::of(cpu)).unwrap()).collect();
        let last = Arc::clone(&members[2].1.seat);
        let key = members[0].1.key.clone();
        members.remove(0);
        assert!(Arc::ptr_eq(&groups()[&key].members[0], &last));
        drop(members);
        assert!(!groups().contains_key(&key));
    }
}
