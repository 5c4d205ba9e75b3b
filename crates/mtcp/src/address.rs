//! Socket addresses as C has them.

use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

use crate::errno::{Errno, FAULT, INVALID};

/// # Safety
/// `address` is null or valid for reads of `len` bytes.
pub(crate) unsafe fn read(address: *const sockaddr, len: socklen_t) -> Result<SocketAddr, Errno> {
    let len = len as usize;
    if address.is_null() {
        return Err(FAULT);
    }
    if len < mem::size_of::<libc::sa_family_t>() {
        return Err(INVALID);
    }
    // SAFETY: the caller promises `len` bytes; the family is within them.
    let family = unsafe { (&raw const (*address).sa_family).read_unaligned() };
    match i32::from(family) {
        libc::AF_INET if len >= mem::size_of::<sockaddr_in>() => {
            // SAFETY: as above, for a whole sockaddr_in.
            let from = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from_bits(u32::from_be(from.sin_addr.s_addr));
            Ok(SocketAddr::new(IpAddr::V4(ip), u16::from_be(from.sin_port)))
        }
        libc::AF_INET6 if len >= mem::size_of::<sockaddr_in6>() => {
            // SAFETY: as above, for a whole sockaddr_in6.
            let from = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(from.sin6_addr.s6_addr);
            Ok(SocketAddr::new(IpAddr::V6(ip), u16::from_be(from.sin6_port)))
        }
        libc::AF_INET | libc::AF_INET6 => Err(INVALID),
        _ => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

/// Writes as much of an address as fits, and its whole length.
///
/// # Safety
/// `len` is valid for reads and writes, and `out` for writes of `*len` bytes.
pub(crate) unsafe fn write(
    address: SocketAddr,
    out: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<(), Errno> {
    if out.is_null() || len.is_null() {
        return Err(INVALID);
    }
    match address {
        SocketAddr::V4(from) => {
            let to = sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: from.port().to_be(),
                sin_addr: libc::in_addr { s_addr: from.ip().to_bits().to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: as the caller promises.
            unsafe { copy(&to, out, len) }
        }
        SocketAddr::V6(from) => {
            let to = sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: from.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: from.ip().octets() },
                sin6_scope_id: 0,
            };
            // SAFETY: as the caller promises.
            unsafe { copy(&to, out, len) }
        }
    }
    Ok(())
}

/// # Safety
/// As [`write`].
unsafe fn copy<T>(from: &T, out: *mut sockaddr, len: *mut socklen_t) {
    let whole = mem::size_of::<T>();
    // SAFETY: `len` is valid, and `out` for as many bytes as it says.
    unsafe {
        let fits = whole.min(len.read() as usize);
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(from).cast::<u8>(), out.cast::<u8>(), fits);
        len.write(whole as socklen_t);
    }
}
