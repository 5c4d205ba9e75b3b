//! The address a server listens on: reading it, taking it, and what to say when that fails.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;

/// Ports below this one need a privilege, where the kernel does not tell another number (ip(7)).
const UNPRIVILEGED_PORTS_FROM: u16 = 1024;

/// Why a text is no address.
#[derive(Debug, Error)]
pub(crate) enum AddressError {
    #[error("it has no port; write an address and a port, such as 127.0.0.1:8080 or [::1]:8080")]
    NoPort,
    #[error("it has no address before the port; write 0.0.0.0:{0} for all addresses, or 127.0.0.1:{0}")]
    NoHost(String),
    #[error("an IPv6 address is written in brackets before its port, such as [::1]:8080")]
    NoBrackets,
    #[error("`{0}` is no port; a port is a number from 0 to 65535, such as 8080 in 127.0.0.1:8080")]
    Port(String),
    #[error(
        "the name `{name}` does not resolve ({cause}); look it up with `getent hosts {name}`, or write a number, \
         such as 127.0.0.1:8080"
    )]
    Name { name: String, cause: io::Error },
}

/// Why an address cannot be listened on.
#[derive(Debug, Error)]
pub(crate) enum ListenError {
    #[error(
        "cannot listen on {address}: another server does; stop it (`ss -ltnp` shows it), or choose another port \
         with --listen, such as {}:0 for a free one",
        host(address)
    )]
    InUse {
        address: SocketAddr,
        #[source]
        cause: io::Error,
    },
    #[error(
        "cannot listen on {address}: ports below {first} need root or CAP_NET_BIND_SERVICE; choose another with \
         --listen, such as {}:8080",
        host(address)
    )]
    Privileged {
        address: SocketAddr,
        first: u16,
        #[source]
        cause: io::Error,
    },
    #[error(
        "cannot listen on {address}: no interface here has this address (`ip addr` shows them); choose another \
         with --listen, such as {}:{} for all", all(address), address.port()
    )]
    NotHere {
        address: SocketAddr,
        #[source]
        cause: io::Error,
    },
    #[error("cannot listen on {address}; choose another address with --listen, such as 127.0.0.1:8080")]
    Other {
        address: SocketAddr,
        #[source]
        cause: io::Error,
    },
}

/// Reads `HOST:PORT`; a name is looked up.
pub(crate) fn parse(text: &str) -> Result<SocketAddr, AddressError> {
    if text.parse::<Ipv6Addr>().is_ok() {
        return Err(AddressError::NoBrackets);
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.is_empty() && !port.ends_with(']') => (host, port),
        _ => return Err(AddressError::NoPort),
    };
    let number: u16 = port.parse().map_err(|_| AddressError::Port(port.to_owned()))?;
    if host.is_empty() {
        return Err(AddressError::NoHost(port.to_owned()));
    }
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let unresolved = |cause| AddressError::Name { name: host.to_owned(), cause };
    let mut addresses = (host, number).to_socket_addrs().map_err(unresolved)?;
    addresses.next().ok_or_else(|| unresolved(io::Error::from(io::ErrorKind::NotFound)))
}

/// A socket that every thread's listener can share the address of, and that address with the port it got.
pub(crate) fn bind(address: SocketAddr) -> Result<(Socket, SocketAddr), ListenError> {
    try_bind(address).map_err(|cause| match Errno::from_io_error(&cause) {
        Some(Errno::ADDRINUSE) => ListenError::InUse { address, cause },
        Some(Errno::ACCESS) => ListenError::Privileged { address, first: first_unprivileged_port(), cause },
        Some(Errno::ADDRNOTAVAIL) => ListenError::NotHere { address, cause },
        _ => ListenError::Other { address, cause },
    })
}

fn try_bind(address: SocketAddr) -> io::Result<(Socket, SocketAddr)> {
    let open = || Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP));
    let socket = open()?;
    // A port that we choose is used again in spite of old connections in TIME_WAIT. One that the
    // kernel chooses must not be given to others with this option, as long as nobody listens on it.
    if address.port() != 0 {
        // Without SO_REUSEPORT this fails if another server listens there, be it one that would
        // share the port and take a part of our connections.
        let probe = open()?;
        probe.set_reuse_address(true)?;
        probe.bind(&address.into())?;
        socket.set_reuse_address(true)?;
    }
    socket.set_reuse_port(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.bind(&address.into())?;
    let bound = socket.local_addr()?.as_socket().unwrap_or(address);
    Ok((socket, bound))
}

fn first_unprivileged_port() -> u16 {
    let setting = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    setting.ok().and_then(|port| port.trim().parse().ok()).unwrap_or(UNPRIVILEGED_PORTS_FROM)
}

/// The address as it stands before a port.
fn host(address: &SocketAddr) -> String {
    match address.ip() {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// All addresses of the same family, as they stand before a port.
fn all(address: &SocketAddr) -> &'static str {
    if address.is_ipv4() { "0.0.0.0" } else { "[::]" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_a_port_are_read() {
        for (text, expected) in [("127.0.0.1:80", "127.0.0.1:80"), ("[::1]:0", "[::1]:0")] {
            assert_eq!(parse(text).expect("an address").to_string(), expected);
        }
        assert_eq!(parse("localhost:7").expect("every system knows this name").port(), 7);
    }

    #[test]
    fn each_mistake_is_told_from_the_others() {
        for text in ["", "foo", "127.0.0.1", "127.0.0.1:", "[::1]"] {
            assert!(matches!(parse(text), Err(AddressError::NoPort)), "{text}");
        }
        for text in ["::1", "fe80::7"] {
            assert!(matches!(parse(text), Err(AddressError::NoBrackets)), "{text}");
        }
        for text in ["127.0.0.1:99999", "localhost:x", "[::1]:-1"] {
            assert!(matches!(parse(text), Err(AddressError::Port(_))), "{text}");
        }
        assert!(matches!(parse(":80"), Err(AddressError::NoHost(_))));
        assert!(matches!(parse("no.such.name.invalid:80"), Err(AddressError::Name { .. })));
    }
}
