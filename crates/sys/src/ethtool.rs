//! Features of a network card (linux/ethtool.h).
#![allow(unsafe_code)] // ioctl(2)

use std::io;
use std::os::fd::AsRawFd;

use socket2::{Domain, Socket, Type};

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// ETHTOOL_GFLAGS, and ETH_FLAG_NTUPLE in what it reports.
const GET_FLAGS: u32 = 0x25;
const FLOW_FILTERS: u32 = 1 << 27;

/// Whether the card follows flows by filters of its own (`ntuple-filters`), which accelerated RFS sets.
///
/// # Errors
///
/// ENODEV for a name that no interface has, EOPNOTSUPP for an interface without such features.
pub fn has_flow_filters(interface: &str) -> io::Result<bool> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    let mut value = Value { command: GET_FLAGS, data: 0 };
    // SAFETY: a request of zeros has an empty name and no data.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte stays 0.
    if interface.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the kernel reads a live request, and writes the value that it names, of the size that the command has.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) } {
        0 => Ok(value.data & FLOW_FILTERS != 0),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_says_whether_it_follows_flows() {
        assert!(!has_flow_filters("lo").expect("loopback answers"));
        let absent = has_flow_filters("no-such-card").expect_err("no such interface");
        assert_eq!(absent.raw_os_error(), Some(libc::ENODEV));
        assert!(has_flow_filters(&"n".repeat(64)).is_err());
    }
}
