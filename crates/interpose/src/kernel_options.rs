//! Options that the kernel applies to each segment or call: connections with one stay on TCP.

use std::ffi::c_int;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;

use crate::kernel;
use crate::sockets::Socket;

/// Level, name, and the values that mean "off".
const OPTIONS: [(c_int, c_int, RangeInclusive<c_int>); 14] = [
    (libc::SOL_SOCKET, libc::SO_OOBINLINE, 0..=0),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP, 0..=0),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 0..=0),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING, 0..=0),
    (libc::SOL_SOCKET, SO_TIMESTAMP_NEW, 0..=0),
    (libc::SOL_SOCKET, SO_TIMESTAMPNS_NEW, 0..=0),
    (libc::SOL_SOCKET, SO_TIMESTAMPING_NEW, 0..=0),
    (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, -1..=-1),
    (libc::SOL_SOCKET, libc::SO_PEEK_OFF, -1..=-1),
    // With it no doorbell would make the socket readable.
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT, 0..=1),
    // The monitor does not find the peer of a bound socket.
    (libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, 0..=0),
    (libc::IPPROTO_TCP, libc::TCP_ULP, 0..=0),
    (libc::IPPROTO_TCP, libc::TCP_REPAIR, 0..=0),
    (libc::IPPROTO_TCP, TCP_TX_DELAY, 0..=0),
];

/// Options that getsockopt(2) cannot return. The monitor does not find the peer of a socket that is
/// bound to a device, which SO_BINDTOIFINDEX also reports.
const UNKNOWN: [(c_int, c_int); 5] = [
    (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER),
    (libc::SOL_SOCKET, libc::SO_ATTACH_BPF),
    (libc::SOL_SOCKET, libc::SO_BINDTODEVICE),
    (libc::IPPROTO_TCP, libc::TCP_MD5SIG),
    (libc::IPPROTO_TCP, libc::TCP_MD5SIG_EXT),
];

const SO_TIMESTAMP_NEW: c_int = 63;
const SO_TIMESTAMPNS_NEW: c_int = 64;
const SO_TIMESTAMPING_NEW: c_int = 65;
const TCP_TX_DELAY: c_int = 37;

/// Whether setting an option turns one of them on; `value`: its int, if it has one.
pub(crate) fn turns_on(level: c_int, name: c_int, value: Option<c_int>) -> bool {
    let is_on = |off: &RangeInclusive<c_int>| value.is_none_or(|value| !off.contains(&value));
    UNKNOWN.contains(&(level, name))
        || OPTIONS.iter().any(|(of, option, off)| (*of, *option) == (level, name) && is_on(off))
}

/// Whether a socket has one, including those of its listener or from before the library saw it; or
/// is not a TCP socket.
pub(crate) fn has_any(socket: &Socket, fd: c_int) -> bool {
    let is_on = |(level, name, off): &(c_int, c_int, RangeInclusive<c_int>)| {
        kernel::option(fd, *level, *name).is_some_and(|value| !off.contains(&value))
    };
    // `mptcpize` creates an MPTCP socket when the program asks for TCP.
    let is_tcp = kernel::option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP);
    let may_have = socket.may_have_options.load(Ordering::Relaxed);
    !is_tcp || (may_have && (OPTIONS.iter().any(is_on) || kernel::has_filter(fd)))
}
