//! System calls of TUN devices. The only unsafe code of this crate.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Of linux/if_tun.h.
const IFF_PERSIST: libc::c_int = 0x0800;
const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54d0;
const TUN_F_CSUM: libc::c_uint = 1;
const TUN_F_TSO4: libc::c_uint = 2;
const TUN_F_TSO6: libc::c_uint = 4;

/// An `ifreq` with this name and nothing else.
fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all bytes zero are a valid ifreq: integers and a union of integers.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if name.len() >= request.ifr_name.len() || name.contains('\0') {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "an interface name has at most 15 bytes"));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// TUNSETIFF. Returns the name that the kernel chose or confirmed.
pub(crate) fn set_interface(tun: &File, name: &str, flags: libc::c_int) -> io::Result<String> {
    let mut request = request(name)?;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one ifreq, which lives for the call.
    check(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF as _, &mut request) })?;
    let name = request.ifr_name.iter().take_while(|&&c| c != 0).map(|&c| c as u8 as char);
    Ok(name.collect())
}

/// TUNGETIFF: whether the device stays when nobody has it open.
pub(crate) fn is_persistent(tun: &File) -> io::Result<bool> {
    let mut request = request("")?;
    // SAFETY: TUNGETIFF writes one ifreq, which lives for the call.
    check(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNGETIFF as _, &mut request) })?;
    // SAFETY: TUNGETIFF has filled this member of the union.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(libc::c_int::from(flags) & IFF_PERSIST != 0)
}

/// Asks for checksum and segmentation offload, both directions.
pub(crate) fn set_offloads(tun: &File) -> io::Result<()> {
    let flags = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6;
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    check(unsafe { libc::ioctl(tun.as_raw_fd(), TUNSETOFFLOAD as _, libc::c_ulong::from(flags)) })
}

fn socket(family: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    check(fd)?;
    // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn ioctl<T>(fd: &OwnedFd, call: libc::c_ulong, argument: &mut T) -> io::Result<()> {
    // SAFETY: the callers below pass the structure that their call takes, alive and exclusive.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), call as _, std::ptr::from_mut(argument)) })
}

/// Gives the kernel's endpoint of a device an address.
pub(crate) fn add_address(name: &str, address: IpAddr, prefix: u8) -> io::Result<()> {
    match address {
        IpAddr::V4(address) => {
            let fd = socket(libc::AF_INET)?;
            let mut request = request(name)?;
            request.ifr_ifru.ifru_addr = sockaddr(address);
            ioctl(&fd, libc::SIOCSIFADDR, &mut request)?;
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
            request.ifr_ifru.ifru_netmask = sockaddr(Ipv4Addr::from(mask));
            ioctl(&fd, libc::SIOCSIFNETMASK, &mut request)
        }
        IpAddr::V6(address) => {
            #[repr(C)]
            struct In6Ifreq {
                address: libc::in6_addr,
                prefix: u32,
                index: libc::c_int,
            }
            let fd = socket(libc::AF_INET6)?;
            let mut query = request(name)?;
            ioctl(&fd, libc::SIOCGIFINDEX, &mut query)?;
            let mut request = In6Ifreq {
                address: libc::in6_addr { s6_addr: address.octets() },
                prefix: u32::from(prefix),
                // SAFETY: SIOCGIFINDEX has filled this member of the union.
                index: unsafe { query.ifr_ifru.ifru_ifindex },
            };
            ioctl(&fd, libc::SIOCSIFADDR, &mut request)
        }
    }
}

fn sockaddr(address: Ipv4Addr) -> libc::sockaddr {
    let mut data = [0; 14];
    for (to, from) in data[2..6].iter_mut().zip(address.octets()) {
        *to = from as libc::c_char;
    }
    libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: data }
}

/// Packets that a queue of a device holds until they are read. TUN's default of 500 loses packets of a thousand
/// clients that send at once, each of which costs its client a timeout of 200 ms.
const QUEUE: u32 = 4096;

/// Sets the length of a device's queues: by rtnetlink(7), whose privilege is that of the device's namespace, where
/// SIOCSIFTXQLEN needs that of the first one.
pub(crate) fn lengthen_queues(name: &str) -> io::Result<()> {
    let mut query = request(name)?;
    ioctl(&socket(libc::AF_INET)?, libc::SIOCGIFINDEX, &mut query)?;
    // SAFETY: SIOCGIFINDEX has filled this member of the union.
    let index = unsafe { query.ifr_ifru.ifru_ifindex };
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
    let message = [
        // nlmsghdr: length, type and flags, number, sender.
        &40u32.to_ne_bytes()[..],
        &libc::RTM_NEWLINK.to_ne_bytes(),
        &flags.to_ne_bytes(),
        &[0; 8],
        // ifinfomsg: family and type, index, flags and their mask.
        &[0; 4],
        &index.to_ne_bytes(),
        &[0; 8],
        // rtattr: length and type.
        &8u16.to_ne_bytes(),
        &libc::IFLA_TXQLEN.to_ne_bytes(),
        &QUEUE.to_ne_bytes(),
    ]
    .concat();
    let fd = socket(libc::AF_NETLINK)?;
    // SAFETY: a live message of this length.
    let sent = unsafe { libc::send(fd.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
    check(sent as libc::c_int)?;
    let mut answer = [0u8; 128];
    // SAFETY: so many bytes, which live for the call.
    let len = unsafe { libc::recv(fd.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
    check(len as libc::c_int)?;
    // nlmsgerr: a negative error number, or 0, behind the header.
    match i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]) {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

/// Sets the MTU and brings the device up.
pub(crate) fn bring_up(name: &str, mtu: u16) -> io::Result<()> {
    let fd = socket(libc::AF_INET)?;
    let mut with_mtu = request(name)?;
    with_mtu.ifr_ifru.ifru_mtu = i32::from(mtu);
    ioctl(&fd, libc::SIOCSIFMTU, &mut with_mtu)?;
    let mut with_flags = request(name)?;
    ioctl(&fd, libc::SIOCGIFFLAGS, &mut with_flags)?;
    // SAFETY: SIOCGIFFLAGS has filled this member of the union.
    let flags = unsafe { with_flags.ifr_ifru.ifru_flags };
    with_flags.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
    ioctl(&fd, libc::SIOCSIFFLAGS, &mut with_flags)
}

/// A packet socket (packet(7)) that sends IP packets of one family through one interface.
pub(crate) struct PacketSocket {
    fd: OwnedFd,
    to: libc::sockaddr_ll,
}

impl PacketSocket {
    pub(crate) fn open(name: &str, v4: bool) -> io::Result<PacketSocket> {
        let fd = socket(libc::AF_PACKET)?;
        let mut query = request(name)?;
        ioctl(&fd, libc::SIOCGIFINDEX, &mut query)?;
        // SAFETY: all bytes zero are a valid sockaddr_ll.
        let mut to: libc::sockaddr_ll = unsafe { mem::zeroed() };
        let protocol = if v4 { libc::ETH_P_IP } else { libc::ETH_P_IPV6 };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_protocol = (protocol as u16).to_be();
        // SAFETY: SIOCGIFINDEX has filled this member of the union.
        to.sll_ifindex = unsafe { query.ifr_ifru.ifru_ifindex };
        Ok(PacketSocket { fd, to })
    }

    pub(crate) fn send(&self, packet: &[u8]) -> io::Result<()> {
        // SAFETY: a live packet and a live address of the length that is passed.
        let sent = unsafe {
            libc::sendto(
                self.fd.as_raw_fd(),
                packet.as_ptr().cast(),
                packet.len(),
                0,
                std::ptr::from_ref(&self.to).cast(),
                mem::size_of_val(&self.to) as libc::socklen_t,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
