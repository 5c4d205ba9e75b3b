//! State of TCP sockets, as the kernel reports it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::net::{SocketType, ipproto, sockopt};

use crate::socket::option;

/// TCP_ESTABLISHED of the kernel's `enum` of states.
pub const ESTABLISHED: u8 = 1;

/// State of a socket that is one endpoint of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The socket's own number, unique until the next boot (SO_COOKIE).
    pub cookie: u64,
    /// Its network namespace (SO_NETNS_COOKIE; 0 before Linux 5.14).
    pub namespace: u64,
    /// The interface it is bound to, 0 for none.
    pub interface: u32,
    /// State of the connection (`ESTABLISHED` or another).
    pub state: u8,
    /// Its own address; a v4-mapped one is reported as IPv4.
    pub local: SocketAddr,
    /// The address it is connected to, likewise.
    pub peer: SocketAddr,
}

/// Why a descriptor is not an endpoint of a TCP connection.
#[derive(Debug, thiserror::Error)]
pub enum NotAnEndpoint {
    /// No socket, or one of another protocol.
    #[error("the descriptor is not a TCP socket")]
    NotTcp,
    /// A TCP socket without a peer.
    #[error("the socket is not connected")]
    NotConnected,
    /// getsockopt(2).
    #[error("the socket cannot be read: {0}")]
    Unreadable(#[source] io::Error),
}

/// Reads the endpoint of a descriptor.
pub fn endpoint(fd: BorrowedFd<'_>) -> Result<Endpoint, NotAnEndpoint> {
    match sockopt::socket_type(fd) {
        Ok(SocketType::STREAM) => {}
        Ok(_) | Err(rustix::io::Errno::NOTSOCK) => return Err(NotAnEndpoint::NotTcp),
        Err(errno) => return Err(NotAnEndpoint::Unreadable(errno.into())),
    }
    // Also tells TCP from MPTCP, SCTP and streams of UNIX sockets.
    if !matches!(sockopt::socket_protocol(fd), Ok(Some(ipproto::TCP))) {
        return Err(NotAnEndpoint::NotTcp);
    }
    let unreadable = |errno: rustix::io::Errno| NotAnEndpoint::Unreadable(errno.into());
    let cookie = sockopt::socket_cookie(fd).map_err(unreadable)?;
    let namespace = crate::socket::namespace_cookie(fd).map_err(NotAnEndpoint::Unreadable)?;
    let state: u8 =
        option(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO).map_err(NotAnEndpoint::Unreadable)?;
    let interface: u32 = option(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX)
        .map_err(NotAnEndpoint::Unreadable)?;
    let local = rustix::net::getsockname(fd).map_err(unreadable)?;
    let local = SocketAddr::try_from(local).map_err(|_| NotAnEndpoint::NotTcp)?;
    let peer = rustix::net::getpeername(fd).map_err(|_| NotAnEndpoint::NotConnected)?;
    let Some(peer) = peer.and_then(|peer| SocketAddr::try_from(peer).ok()) else {
        return Err(NotAnEndpoint::NotConnected);
    };
    Ok(Endpoint { cookie, namespace, interface, state, local: plain(local), peer: plain(peer) })
}

/// The peer of a TCP connection, by the fewest system calls; `None` if the descriptor is
/// something else, or is not connected.
pub fn peer(fd: BorrowedFd<'_>) -> Option<IpAddr> {
    // Also tells TCP from MPTCP, SCTP and streams of UNIX sockets.
    if !matches!(sockopt::socket_protocol(fd), Ok(Some(ipproto::TCP))) {
        return None;
    }
    let peer = SocketAddr::try_from(rustix::net::getpeername(fd).ok()??).ok()?;
    Some(plain(peer).ip())
}

/// The socket's own number (SO_COOKIE), as in [`Endpoint`].
///
/// # Errors
///
/// getsockopt(2).
pub fn cookie(fd: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(sockopt::socket_cookie(fd)?)
}

/// Positions of both streams of a connection at this endpoint, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positions {
    /// Accepted by the kernel from this endpoint since the connection began.
    pub written: u64,
    /// Delivered by the kernel to this endpoint since the connection began.
    pub consumed: u64,
}

/// Asks the kernel how far a connection has come; `None` if it is not established (a FIN
/// counts as a byte in some of the kernel's counters). Nobody else reads or writes meanwhile;
/// the peer may.
///
/// # Errors
///
/// getsockopt(2), ioctl(2); EWOULDBLOCK if the peer sent faster than the kernel could be asked:
/// ask again later.
pub fn positions(fd: BorrowedFd<'_>) -> io::Result<Option<Positions>> {
    // `struct tcp_info` (linux/tcp.h) in words of eight bytes, as far as it matters.
    const BYTES_RECEIVED: usize = 128 / 8;
    const NOT_SENT: usize = 144 / 8;
    const BYTES_SENT: usize = 200 / 8;
    const BYTES_RESENT: usize = 208 / 8;
    let mut unread = rustix::io::ioctl_fionread(fd)?;
    // Bytes that come between two calls would be counted in one answer only. Nothing is
    // read meanwhile: if as many are unread behind the larger call as before it, none
    // came.
    for _ in 0..POSITION_TRIES {
        let info: [u64; BYTES_RESENT + 1] = option(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO)?;
        if info[0].to_ne_bytes()[0] != ESTABLISHED {
            return Ok(None);
        }
        let before = std::mem::replace(&mut unread, rustix::io::ioctl_fionread(fd)?);
        if before != unread {
            continue;
        }
        let not_sent = info[NOT_SENT].to_ne_bytes();
        let not_sent = u32::from_ne_bytes([not_sent[0], not_sent[1], not_sent[2], not_sent[3]]);
        let sent = info[BYTES_SENT].saturating_sub(info[BYTES_RESENT]);
        let consumed = info[BYTES_RECEIVED].saturating_sub(unread);
        return Ok(Some(Positions { written: sent + u64::from(not_sent), consumed }));
    }
    Err(io::ErrorKind::WouldBlock.into())
}

/// What the kernel measures on a connection (`struct tcp_info` of linux/tcp.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Retransmission timeout.
    pub rto: Duration,
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Its variation.
    pub rtt_variation: Duration,
    /// Payload of the largest segment to the peer, in bytes.
    pub segment_size: u32,
    /// Congestion window, in segments.
    pub congestion_window: u32,
    /// Bytes sent, repetitions included.
    pub bytes_sent: u64,
    /// Bytes of these that were repetitions.
    pub bytes_retransmitted: u64,
    /// Bytes that the peer acknowledged, the SYN included.
    pub bytes_acknowledged: u64,
    /// Bytes received in order.
    pub bytes_received: u64,
}

/// Asks for [`Info`].
///
/// # Errors
///
/// getsockopt(2).
pub fn info(fd: BorrowedFd<'_>) -> io::Result<Info> {
    // Offsets in words of four bytes.
    const RTO: usize = 8 / 4;
    const SEND_MSS: usize = 16 / 4;
    const RTT: usize = 68 / 4;
    const RTT_VARIATION: usize = 72 / 4;
    const WINDOW: usize = 80 / 4;
    const BYTES_ACKED: usize = 120 / 4;
    const BYTES_RECEIVED: usize = 128 / 4;
    const BYTES_SENT: usize = 200 / 4;
    const BYTES_RESENT: usize = 208 / 4;
    const WORDS: usize = BYTES_RESENT + 2;
    /// `Default` is not there for arrays of this length.
    #[derive(Clone, Copy)]
    #[repr(transparent)]
    struct Words([u32; WORDS]);
    impl Default for Words {
        fn default() -> Words {
            Words([0; WORDS])
        }
    }
    let Words(words) = option(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO)?;
    let micros = |at: usize| Duration::from_micros(words[at].into());
    let long = |at: usize| {
        let [a, b, c, d] = words[at].to_ne_bytes();
        let [e, f, g, h] = words[at + 1].to_ne_bytes();
        u64::from_ne_bytes([a, b, c, d, e, f, g, h])
    };
    Ok(Info {
        rto: micros(RTO),
        rtt: micros(RTT),
        rtt_variation: micros(RTT_VARIATION),
        segment_size: words[SEND_MSS],
        congestion_window: words[WINDOW],
        bytes_sent: long(BYTES_SENT),
        bytes_retransmitted: long(BYTES_RESENT),
        bytes_acknowledged: long(BYTES_ACKED),
        bytes_received: long(BYTES_RECEIVED),
    })
}

/// How often the positions are asked for before a peer that keeps sending is too fast.
const POSITION_TRIES: u32 = 64;

/// The address without what is not part of a connection's identity: flow label, scope, and
/// IPv6's way of writing IPv4.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Whether the address belongs to this host, as seen from this process's network
/// namespace: a socket can be bound to it (ip(7)).
pub fn is_local(address: IpAddr) -> bool {
    address.is_loopback()
        || match std::net::UdpSocket::bind((address, 0)) {
            Ok(_) => true,
            // Link-local addresses need an interface to bind; they are not decided here.
            Err(error) => error.kind() != io::ErrorKind::AddrNotAvailable,
        }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn two_ends_mirror_each_other() {
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(matches!(endpoint(listener.as_fd()), Err(NotAnEndpoint::NotConnected)));
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let server = listener.accept().unwrap().0;
        let (one, other) = (endpoint(client.as_fd()).unwrap(), endpoint(server.as_fd()).unwrap());
        assert_eq!((one.local, one.peer), (other.peer, other.local));
        assert!(one.local.is_ipv4() && one.cookie != other.cookie && one.namespace == other.namespace);
        assert_eq!(one.state, ESTABLISHED);
        assert_eq!(peer(client.as_fd()), Some(one.peer.ip()));
        assert_eq!(cookie(client.as_fd()).unwrap(), one.cookie);
        assert_eq!(peer(listener.as_fd()), None);
        assert_eq!(positions(client.as_fd()).unwrap(), Some(Positions { written: 0, consumed: 0 }));
        (&client).write_all(&[1; 100_000]).unwrap();
        let mut some = [0; 300];
        (&server).read_exact(&mut some).unwrap();
        assert_eq!(positions(client.as_fd()).unwrap(), Some(Positions { written: 100_000, consumed: 0 }));
        assert_eq!(positions(server.as_fd()).unwrap(), Some(Positions { written: 0, consumed: 300 }));
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(matches!(endpoint(udp.as_fd()), Err(NotAnEndpoint::NotTcp)));
        udp.connect("127.0.0.1:9").unwrap();
        assert_eq!(peer(udp.as_fd()), None);
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(matches!(endpoint(null.as_fd()), Err(NotAnEndpoint::NotTcp)));
        assert!(is_local("127.0.0.9".parse().unwrap()) && !is_local("192.0.2.1".parse().unwrap()));
    }
}
