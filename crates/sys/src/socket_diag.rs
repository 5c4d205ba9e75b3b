//! Asking the kernel by number whether a TCP connection still is what it was, and whose its
//! other endpoint is (sock_diag(7), `struct inet_diag_req_v2` and `struct inet_diag_msg`).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

use crate::tcp::{ESTABLISHED, Endpoint};

/// A socket to ask about TCP sockets of one network namespace: that of the process when
/// the socket was made.
pub struct SocketDiag {
    socket: OwnedFd,
    namespace: u64,
    sequence: u32,
}

/// `struct nlmsghdr` and `struct inet_diag_req_v2`.
const REQUEST: usize = HEADER + 56;
const HEADER: usize = 16;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
/// Of `struct inet_diag_msg`.
const UID: usize = HEADER + 64;
const INODE: usize = HEADER + 68;
/// `INET_DIAG_NOCOOKIE`, twice.
const ANY_COOKIE: u64 = u64::MAX;

impl SocketDiag {
    /// Opens one.
    ///
    /// # Errors
    ///
    /// EPROTONOSUPPORT if the kernel has no sock_diag.
    pub fn new() -> io::Result<SocketDiag> {
        let flags = SocketFlags::CLOEXEC;
        let protocol = Some(netlink::SOCK_DIAG);
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        let namespace = crate::socket::namespace_cookie(socket.as_fd())?;
        Ok(SocketDiag { socket, namespace, sequence: 0 })
    }

    /// The namespace whose sockets it knows (SO_NETNS_COOKIE).
    pub fn namespace(&self) -> u64 {
        self.namespace
    }

    /// Whether `endpoint` still is an established connection with the same addresses and
    /// the same cookie. The kernel looks it up by its addresses and compares the cookie:
    /// a successor on the same addresses does not count.
    pub fn is_still(&mut self, endpoint: &Endpoint) -> io::Result<bool> {
        self.ask(endpoint, |_| true).map(|still| still == Some(true))
    }

    /// The user whose process made or accepted the other endpoint of a connection. `None`: it is not
    /// here, not established, or not accepted yet.
    pub fn user_of_peer(&mut self, endpoint: &Endpoint) -> io::Result<Option<u32>> {
        let peer = Endpoint {
            local: endpoint.peer,
            peer: endpoint.local,
            cookie: ANY_COOKIE,
            interface: 0,
            ..*endpoint
        };
        let user =
            |answer: &[u8]| word(answer, UID).filter(|_| word(answer, INODE).is_some_and(|inode| inode != 0));
        self.ask(&peer, user).map(Option::flatten)
    }

    /// Reads the answer about an established socket with `read`; `None`: there is none.
    fn ask<R>(&mut self, endpoint: &Endpoint, read: impl Fn(&[u8]) -> R) -> io::Result<Option<R>> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = request(endpoint, self.sequence);
        rustix::net::send(&self.socket, &request, SendFlags::NOSIGNAL)?;
        let mut answer = [0u8; 1024];
        // The kernel answers within the send; an answer to an earlier, broken-off question
        // is passed over.
        for _ in 0..8 {
            let (len, _) = rustix::io::retry_on_intr(|| {
                rustix::net::recv(&self.socket, &mut answer[..], RecvFlags::DONTWAIT)
            })?;
            let answer = &answer[..len.min(answer.len())];
            if word(answer, 8) == Some(self.sequence) {
                return Ok(verdict(answer)?.then(|| read(answer)));
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }
}

fn request(endpoint: &Endpoint, sequence: u32) -> [u8; REQUEST] {
    let mut bytes = [0; REQUEST];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(0, &(REQUEST as u32).to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &NLM_F_REQUEST.to_ne_bytes());
    put(8, &sequence.to_ne_bytes());
    // A socket of IPv6 that talks IPv4 is found under its IPv4 addresses.
    let family = if endpoint.local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    put(HEADER, &[family as u8, libc::IPPROTO_TCP as u8]);
    put(HEADER + 4, &u32::MAX.to_ne_bytes());
    put(HEADER + 8, &endpoint.local.port().to_be_bytes());
    put(HEADER + 10, &endpoint.peer.port().to_be_bytes());
    let mut address = |at: usize, of: SocketAddr| match of.ip() {
        IpAddr::V4(ip) => put(at, &ip.octets()),
        IpAddr::V6(ip) => put(at, &ip.octets()),
    };
    address(HEADER + 12, endpoint.local);
    address(HEADER + 28, endpoint.peer);
    put(HEADER + 44, &endpoint.interface.to_ne_bytes());
    put(HEADER + 48, &(endpoint.cookie as u32).to_ne_bytes());
    put(HEADER + 52, &((endpoint.cookie >> 32) as u32).to_ne_bytes());
    bytes
}

fn verdict(answer: &[u8]) -> io::Result<bool> {
    let kind = answer.get(4..6).map(|kind| u16::from_ne_bytes([kind[0], kind[1]]));
    match kind {
        Some(SOCK_DIAG_BY_FAMILY) => Ok(answer.get(HEADER + 1) == Some(&ESTABLISHED)),
        Some(NLMSG_ERROR) => match word(answer, HEADER).map(|errno| (errno as i32).wrapping_neg()) {
            // No socket there, or another one.
            Some(libc::ENOENT | libc::ESTALE) => Ok(false),
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        },
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;
    use crate::tcp;

    #[test]
    fn connections_are_found_by_cookie_until_they_end() {
        let mut diag = SocketDiag::new().unwrap();
        for (listen, connect) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "127.0.0.1")] {
            let listener = TcpListener::bind(listen).unwrap();
            let port = listener.local_addr().unwrap().port();
            let client = TcpStream::connect((connect, port)).unwrap();
            let server = listener.accept().unwrap().0;
            let endpoints = [tcp::endpoint(client.as_fd()).unwrap(), tcp::endpoint(server.as_fd()).unwrap()];
            for endpoint in endpoints {
                assert_eq!(endpoint.namespace, diag.namespace());
                assert!(diag.is_still(&endpoint).unwrap(), "{endpoint:?}");
                assert!(!diag.is_still(&Endpoint { cookie: endpoint.cookie + 1000, ..endpoint }).unwrap());
                assert_eq!(diag.user_of_peer(&endpoint).unwrap(), Some(rustix::process::geteuid().as_raw()));
            }
            client.shutdown(std::net::Shutdown::Both).unwrap();
            assert!(!diag.is_still(&endpoints[0]).unwrap());
            assert_eq!(diag.user_of_peer(&endpoints[1]).unwrap(), None);
            // A connection that waits in a listener's queue has no owner yet.
            let client = TcpStream::connect((connect, port)).unwrap();
            assert_eq!(diag.user_of_peer(&tcp::endpoint(client.as_fd()).unwrap()).unwrap(), None);
        }
    }
}
