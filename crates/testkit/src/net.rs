//! Real sockets on loopback.

use std::collections::hash_map::RandomState;
use std::fs::Permissions;
use std::hash::BuildHasher;
use std::io::{self, ErrorKind, Read};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use tempfile::TempDir;

use crate::driver::WATCHDOG;
use crate::process::until;
use crate::skip::Skipped;
use crate::stack;

/// Any free port of an address of 127.0.0.0/8 that most likely nobody else uses: who connects to where nobody listens any
/// more, as other tests do, reaches no listener there.
pub fn v4() -> SocketAddr {
    let [high, middle, low, ..] = RandomState::new().hash_one(()).to_ne_bytes();
    // Neither the network's own address nor that of a broadcast.
    SocketAddr::from((Ipv4Addr::new(127, high.clamp(1, 254), middle, low), 0))
}

/// Any free port of ::1.
pub fn v6() -> SocketAddr {
    SocketAddr::from((Ipv6Addr::LOCALHOST, 0))
}

/// A listening TCP socket on loopback.
pub fn listener() -> TcpListener {
    TcpListener::bind(v4()).expect("loopback has free ports")
}

/// As [`listener`], over IPv6.
pub fn listener_v6() -> Result<TcpListener, Skipped> {
    TcpListener::bind(v6()).map_err(|error| Skipped::because(format!("no IPv6 loopback: {error}")))
}

/// Connects to a listener, with reads and writes that give up in the end.
pub fn connect(listener: &TcpListener) -> TcpStream {
    if stack::is_on() {
        return stack::connect(listener.local_addr().expect("a bound socket has an address"));
    }
    connect_to(listener.local_addr().expect("a bound socket has an address"))
}

/// As [`connect`], by address.
pub fn connect_to(address: SocketAddr) -> TcpStream {
    if stack::is_on() && address.ip().is_loopback() {
        return stack::connect(address);
    }
    let stream = TcpStream::connect_timeout(&address, WATCHDOG).expect("the listener takes connections");
    bounded(&stream);
    stream
}

/// Makes blocking calls on a test's own socket give up in the end.
pub fn bounded(socket: &impl AsFd) {
    let socket = SockRef::from(socket);
    socket.set_read_timeout(Some(WATCHDOG)).expect("SO_RCVTIMEO is always allowed");
    socket.set_write_timeout(Some(WATCHDOG)).expect("SO_SNDTIMEO is always allowed");
}

/// Both ends of a TCP connection: for the channel, and for the test.
pub fn tcp_pair() -> (OwnedFd, TcpStream) {
    if stack::is_on() {
        return stack::pair(false, false);
    }
    pair_of(&listener())
}

/// Both ends of a TCP connection through `listener`.
pub fn pair_of(listener: &TcpListener) -> (OwnedFd, TcpStream) {
    if stack::is_on() {
        let v6 = listener.local_addr().is_ok_and(|address| address.is_ipv6());
        return stack::pair(v6, false);
    }
    let peer = connect(listener);
    let (socket, _) = listener.accept().expect("the connection is there");
    (socket.into(), peer)
}

/// Both ends of a UNIX socket pair of the given type.
pub fn unix_pair(kind: Type) -> (OwnedFd, Socket) {
    let (one, other) = Socket::pair(Domain::UNIX, kind, None).expect("socket pairs are always allowed");
    bounded(&other);
    (one.into(), other)
}

/// A connection whose kernel buffers are as small as they get, so that writes go out in
/// many parts. The sizes are set before the handshake, which fixes the window.
pub fn tight_tcp_pair() -> (OwnedFd, TcpStream) {
    if stack::is_on() {
        return stack::pair(false, true);
    }
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("TCP sockets are there");
    tighten(&socket);
    socket.bind(&v4().into()).expect("loopback has free ports");
    socket.listen(1).expect("a bound socket may listen");
    let address = socket.local_addr().expect("a bound socket has an address");
    let peer = Socket::new(Domain::IPV4, Type::STREAM, None).expect("TCP sockets are there");
    tighten(&peer);
    peer.connect(&address).expect("the listener takes connections");
    bounded(&peer);
    let (accepted, _) = socket.accept().expect("the connection is there");
    (accepted.into(), peer.into())
}

/// Sets both kernel buffers to the smallest size.
pub fn tighten(socket: &impl AsFd) {
    let socket = SockRef::from(socket);
    socket.set_send_buffer_size(1).expect("SO_SNDBUF is always allowed");
    socket.set_recv_buffer_size(1).expect("SO_RCVBUF is always allowed");
}

/// A port that sends connection attempts away, for as long as its socket, which does not listen, keeps it from others.
pub fn closed_port() -> (Socket, SockAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("TCP sockets are there");
    socket.bind(&v4().into()).expect("loopback has free ports");
    let address = socket.local_addr().expect("a bound socket has an address");
    (socket, address)
}

/// Waits until nobody listens at a UNIX socket, of packets or a stream, that was dropped: a program that another test
/// begins just now holds a copy until it has replaced itself.
pub fn until_deserted(path: &Path) {
    let refused = |kind| {
        let socket = Socket::new(Domain::UNIX, kind, None).expect("a socket");
        let to = SockAddr::unix(path).expect("a path of a socket");
        socket.connect(&to).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    };
    until("a deserted socket", || (refused(Type::STREAM) && refused(Type::SEQPACKET)).then_some(()));
}

/// Bytes of which any piece tells where it belongs.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_ne_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// How the peer saw a connection end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// FIN: read(2) says 0.
    Finished,
    /// RST: read(2) says ECONNRESET.
    Reset,
}

/// Reads to the end of the connection.
pub fn read_to_end(peer: &mut impl Read) -> (Vec<u8>, End) {
    let mut all = Vec::new();
    let mut piece = [0; 16384];
    loop {
        match peer.read(&mut piece) {
            Ok(0) => return (all, End::Finished),
            Ok(count) => all.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return (all, End::Reset),
            Err(error) => panic!("the connection did not end after {} bytes: {error}", all.len()),
        }
    }
}

/// Reads exactly `len` bytes.
pub fn read_exactly(peer: &mut impl Read, len: usize) -> Vec<u8> {
    let mut all = vec![0; len];
    peer.read_exact(&mut all).expect("the bytes arrive");
    all
}

/// Makes the coming close of the peer send RST.
pub fn reset_on_drop(socket: &impl AsFd) {
    SockRef::from(socket).set_linger(Some(std::time::Duration::ZERO)).expect("SO_LINGER is always allowed");
}

/// A directory of this test's own, which every user may enter, and which is removed on drop.
pub struct Scratch(TempDir);

impl Scratch {
    /// Makes it.
    #[allow(clippy::new_without_default)] // makes a directory: not a default value
    pub fn new() -> Scratch {
        let directory = tempfile::Builder::new().prefix("megapipe-test-").tempdir();
        let directory = directory.expect("the temporary directory is writable");
        let all = Permissions::from_mode(0o755);
        std::fs::set_permissions(directory.path(), all).expect("a directory of this user");
        Scratch(directory)
    }
}

impl Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        self.0.path()
    }
}

impl AsRef<Path> for Scratch {
    fn as_ref(&self) -> &Path {
        self
    }
}
