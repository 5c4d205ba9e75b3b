//! The addresses of this process's listeners that have had siblings, for connections that it makes
//! itself.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::Relaxed};

use sys::tcp::is_local;

use super::names::LISTENERS;
use crate::memory::is_readable;

/// The address of a listener.
struct Place {
    /// 0: it has had no sibling.
    port: AtomicU16,
    /// The halves of an IPv6 address, which an IPv4 address is mapped to.
    address: [AtomicU64; 2],
}

static PLACES: [Place; LISTENERS] =
    [const { Place { port: AtomicU16::new(0), address: [const { AtomicU64::new(0) }; 2] } }; LISTENERS];

/// A listener at this address gets a sibling.
pub(super) fn has_sibling(number: usize, address: SocketAddr) {
    let place = &PLACES[number];
    let bits = match address.ip() {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
    .to_bits();
    place.address[0].store((bits >> 64) as u64, Relaxed);
    place.address[1].store(bits as u64, Relaxed);
    place.port.store(address.port(), Relaxed);
}

/// The listeners that may get a connection to this address.
pub(super) fn at(target: SocketAddr) -> impl Iterator<Item = usize> {
    let reached = move |place: &Place| {
        let port = place.port.load(Relaxed);
        port != 0 && port == target.port() && reaches(target.ip().to_canonical(), place.address())
    };
    PLACES.iter().enumerate().filter(move |(_, place)| reached(place)).map(|(number, _)| number)
}

/// A connection to the unspecified address goes to the machine itself.
fn reaches(target: IpAddr, listener: IpAddr) -> bool {
    target.is_unspecified() || target == listener || (listener.is_unspecified() && is_local(target))
}

impl Place {
    fn address(&self) -> IpAddr {
        let [high, low] = [0, 1].map(|half: usize| u128::from(self.address[half].load(Relaxed)));
        IpAddr::V6(Ipv6Addr::from_bits(high << 64 | low)).to_canonical()
    }
}

/// The Internet address that the program passes to a call; `None`: another kind, or none.
///
/// # Safety
///
/// As connect(2).
pub(super) unsafe fn named(address: *const libc::sockaddr, length: libc::socklen_t) -> Option<SocketAddr> {
    // Without sin6_scope_id, which the kernel accepts, too.
    const LEAST_OF_V6: usize = 24;
    let length = length as usize;
    if length < size_of::<libc::sockaddr_in>() || !is_readable(address) {
        return None;
    }
    // SAFETY: it can be read, and the caller's promise. An IPv6 address has its port at the same
    // offset.
    let start = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
    let ip = match c_int::from(start.sin_family) {
        libc::AF_INET => Ipv4Addr::from_bits(u32::from_be(start.sin_addr.s_addr)).into(),
        libc::AF_INET6 if length >= LEAST_OF_V6 => {
            // SAFETY: within the length that the caller promises: sin6_addr, after
            // family, port and flow.
            unsafe { Ipv6Addr::from(address.cast::<u8>().add(8).cast::<[u8; 16]>().read_unaligned()) }.into()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_be(start.sin_port)))
}
