//! The conformance suite over a stack in user space: the channel's sockets are a stack's, its
//! peers are the kernel's, and a TUN device is between them.
//!
//! Cases do not change. What a case is given for its channel stands for a socket of the stack: a
//! copy of the peer's descriptor for a connection, a listener of the kernel for one of the stack
//! at the same port. [`crate::driver::Driver`] puts the stack's socket in its place.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use megapipe::{Channel, Stack, TunNetwork};
use socket2::{Domain, SockRef, Socket, Type};

use crate::net;

/// Where the stack accepts the connections that [`pair`] begins.
const PAIRS: u16 = 1;

/// Bytes that the stack keeps of a connection in each direction: few, so that writes go out in
/// many parts.
const BUFFER: u32 = 32 << 10;

static ON: AtomicBool = AtomicBool::new(false);

/// Stacks that were made, each on a network of its own.
static NETWORK: AtomicU16 = AtomicU16::new(0);

thread_local! {
    /// Whether a stack was made on this thread.
    static STACKS_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Whether cases are run over a stack.
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Has this process, which is in a network namespace of its own, run its case over a stack.
pub fn turn_on() {
    bring_loopback_up().expect("a namespace of our own");
    ON.store(true, Ordering::Relaxed);
}

fn address(last: u8, v6: bool) -> IpAddr {
    // Of a process without one: another's only one.
    let network = NETWORK.load(Ordering::Relaxed).max(1);
    match v6 {
        true => IpAddr::V6(Ipv6Addr::new(0xfd78, network, 0, 0, 0, 0, 0, last.into())),
        false => IpAddr::V4(Ipv4Addr::new(10, 78, network as u8, last)),
    }
}

/// Gives the channel a stack on a network of its own.
pub fn attach(channel: &mut Channel) {
    STACKS_THREAD.set(true);
    NETWORK.fetch_add(1, Ordering::Relaxed);
    let network = format!("tun:mp%d,{}/24,{}/64", address(2, false), address(2, true));
    let network: TunNetwork = network.parse().expect("a network");
    let tun = network.open().expect("a TUN device");
    let mut stack = Stack::new(tun, network.networks().to_vec());
    let limits = &mut stack.config().limits;
    (limits.send_buffer, limits.receive_buffer) = (BUFFER, BUFFER);
    (limits.flows, limits.active) = (1 << 15, 1 << 12);
    channel.attach(stack).expect("the channel takes it");
}

/// The peer of a connection with the last stack, and what stands for the stack's socket. The
/// connection is made while the stack is dispatched.
pub fn pair(v6: bool, tight: bool) -> (OwnedFd, TcpStream) {
    let peer = begin(SocketAddr::new(address(2, v6), PAIRS), tight);
    let stand_in = peer.try_clone().expect("a copy of the descriptor");
    (stand_in.into(), peer)
}

/// Connects to the stack's listener in place of this one.
pub fn connect(listener: SocketAddr) -> TcpStream {
    begin(SocketAddr::new(address(2, listener.is_ipv6()), listener.port()), false)
}

/// A socket in blocking mode that is connected; on the stack's thread, one that is being
/// connected, as the stack answers only while it is dispatched.
fn begin(to: SocketAddr, tight: bool) -> TcpStream {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).expect("TCP sockets are there");
    if tight {
        net::tighten(&socket);
    }
    net::bounded(&socket);
    if STACKS_THREAD.get() {
        begin_to_connect(&socket, to);
    } else {
        socket.connect(&to.into()).expect("the listener takes connections");
    }
    socket.into()
}

fn begin_to_connect(socket: &Socket, to: SocketAddr) {
    socket.set_nonblocking(true).expect("a mode");
    match socket.connect(&to.into()) {
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        other => panic!("nobody dispatches the stack meanwhile, and yet: {other:?}"),
    }
    socket.set_nonblocking(false).expect("a mode");
}

/// What a descriptor stands for.
pub enum StandIn {
    /// The connection whose peer has this address.
    Connection(SocketAddr),
    /// A listener at this address.
    Listener(SocketAddr),
    /// Itself.
    Nothing,
}

impl StandIn {
    /// Where the connections of [`StandIn::Connection`] are accepted.
    pub fn listeners() -> [SocketAddr; 2] {
        [false, true].map(|v6| SocketAddr::new(address(2, v6), PAIRS))
    }

    /// Of this descriptor.
    pub fn of(fd: &impl AsFd) -> StandIn {
        if !is_on() {
            return StandIn::Nothing;
        }
        let socket = SockRef::from(fd);
        let local = socket.local_addr().ok().and_then(|local| local.as_socket());
        match local {
            Some(local) if local.ip() == address(1, local.is_ipv6()) => StandIn::Connection(local),
            Some(local) if is_listener(&socket) => {
                StandIn::Listener(SocketAddr::new(address(2, local.is_ipv6()), local.port()))
            }
            _ => StandIn::Nothing,
        }
    }
}

fn is_listener(socket: &Socket) -> bool {
    socket.r#type().is_ok_and(|kind| kind == Type::STREAM)
        && socket.is_listener().is_ok_and(|listens| listens)
}

/// As `ip link set lo up`.
fn bring_loopback_up() -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    // SAFETY: all bytes zero are a valid ifreq: integers and a union of integers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    (request.ifr_name[0], request.ifr_name[1]) = (b'l' as libc::c_char, b'o' as libc::c_char);
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    // SAFETY: SIOCSIFFLAGS reads one ifreq, which lives for the call.
    let status = unsafe { libc::ioctl(fd, libc::SIOCSIFFLAGS as _, &raw mut request) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
