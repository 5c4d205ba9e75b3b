//! A second socket with the address and the options of a listening one: bound beside it, not listening yet.
#![allow(unsafe_code)] // socket(2), and options of any kind

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use libc::socklen_t;

use super::word::Word;
use crate::kernel;
use crate::promoter;
use crate::real;

// Of asm-generic/socket.h and linux/tcp.h.
const SO_PREFER_BUSY_POLL: c_int = 69;
const TCP_TX_DELAY: c_int = 37;
const TCP_RTO_MAX_MS: c_int = 44;
const TCP_RTO_MIN_US: c_int = 45;
const TCP_DELACK_MAX_US: c_int = 46;

/// Options that a connection inherits from the socket that accepted it, and those that bind(2) needs.
/// SO_RCVBUF and SO_SNDBUF are apart: the kernel reports what it made of them.
const OPTIONS: &[(c_int, &[c_int])] = &[
    (
        libc::SOL_SOCKET,
        &[
            libc::SO_REUSEADDR,
            libc::SO_KEEPALIVE,
            libc::SO_OOBINLINE,
            libc::SO_DONTROUTE,
            libc::SO_PRIORITY,
            libc::SO_MARK,
            libc::SO_LINGER,
            libc::SO_RCVLOWAT,
            libc::SO_RCVTIMEO,
            libc::SO_SNDTIMEO,
            libc::SO_TIMESTAMP,
            libc::SO_TIMESTAMPNS,
            libc::SO_TIMESTAMPING,
            libc::SO_BUSY_POLL,
            SO_PREFER_BUSY_POLL,
            libc::SO_ZEROCOPY,
            libc::SO_MAX_PACING_RATE,
            libc::SO_BINDTODEVICE,
        ],
    ),
    (
        libc::IPPROTO_TCP,
        &[
            libc::TCP_NODELAY,
            libc::TCP_CORK,
            libc::TCP_MAXSEG,
            libc::TCP_KEEPIDLE,
            libc::TCP_KEEPINTVL,
            libc::TCP_KEEPCNT,
            libc::TCP_SYNCNT,
            libc::TCP_LINGER2,
            libc::TCP_DEFER_ACCEPT,
            libc::TCP_WINDOW_CLAMP,
            libc::TCP_CONGESTION,
            libc::TCP_USER_TIMEOUT,
            libc::TCP_FASTOPEN,
            libc::TCP_FASTOPEN_NO_COOKIE,
            libc::TCP_SAVE_SYN,
            libc::TCP_NOTSENT_LOWAT,
            libc::TCP_THIN_LINEAR_TIMEOUTS,
            libc::TCP_INQ,
            TCP_TX_DELAY,
            TCP_RTO_MAX_MS,
            TCP_RTO_MIN_US,
            TCP_DELACK_MAX_US,
        ],
    ),
    (
        libc::IPPROTO_IP,
        &[
            libc::IP_TOS,
            libc::IP_TTL,
            libc::IP_MTU_DISCOVER,
            libc::IP_FREEBIND,
            libc::IP_TRANSPARENT,
            libc::IP_MINTTL,
            libc::IP_RECVERR,
        ],
    ),
    (
        libc::IPPROTO_IPV6,
        &[
            libc::IPV6_V6ONLY,
            libc::IPV6_TCLASS,
            libc::IPV6_UNICAST_HOPS,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_FREEBIND,
            libc::IPV6_TRANSPARENT,
            libc::IPV6_MINHOPCOUNT,
            libc::IPV6_RECVERR,
        ],
    ),
];

/// Options that cannot be copied: keys that the kernel does not show, and programs.
pub(super) fn is_unique(level: c_int, name: c_int) -> bool {
    // tcp(7) has the first two; linux/tcp.h the others, of TCP-AO.
    const KEYS: [c_int; 5] = [libc::TCP_MD5SIG, libc::TCP_MD5SIG_EXT, 38, 39, 40];
    match level {
        libc::IPPROTO_TCP => KEYS.contains(&name),
        libc::SOL_SOCKET => matches!(
            name,
            libc::SO_ATTACH_FILTER
                | libc::SO_ATTACH_BPF
                | libc::SO_ATTACH_REUSEPORT_CBPF
                | libc::SO_ATTACH_REUSEPORT_EBPF
        ),
        _ => false,
    }
}

/// Makes one of `listener`, with a number from `lowest` on. The listener must have SO_REUSEPORT.
pub(super) fn make(listener: c_int, lowest: c_int) -> Result<c_int, Word> {
    let domain = kernel::option(listener, libc::SOL_SOCKET, libc::SO_DOMAIN).ok_or(Word::Descriptors)?;
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: socket(2) takes numbers.
    let low = unsafe { real::socket(domain, kind, libc::IPPROTO_TCP) };
    let sibling = raised(low, lowest).ok_or(Word::Descriptors)?;
    let made = copy_options(listener, sibling).and_then(|()| bind_beside(listener, sibling));
    if made.is_err() {
        close(sibling);
    }
    made.map(|()| sibling)
}

/// The same file under a number from `lowest` on, where the program does not expect one of its own.
pub(super) fn raised(low: c_int, lowest: c_int) -> Option<c_int> {
    if low < 0 {
        return None;
    }
    let lowest = std::ptr::without_provenance_mut(lowest.unsigned_abs() as usize);
    // SAFETY: F_DUPFD_CLOEXEC takes a number.
    let high = unsafe { real::fcntl(low, libc::F_DUPFD_CLOEXEC, lowest) };
    close(low);
    (high >= 0).then_some(high)
}

/// Closes a descriptor of this module's.
pub(super) fn close(fd: c_int) {
    // SAFETY: close(2) takes a number; the caller owns the descriptor.
    unsafe { real::close(fd) };
}

fn copy_options(from: c_int, to: c_int) -> Result<(), Word> {
    for (level, names) in OPTIONS {
        for name in *names {
            copy_option(from, to, *level, *name)?;
        }
    }
    copy_buffers(from, to)?;
    let one: c_int = 1;
    kernel::set(to, libc::SOL_SOCKET, libc::SO_REUSEPORT, &one);
    Ok(())
}

fn copy_option(from: c_int, to: c_int, level: c_int, name: c_int) -> Result<(), Word> {
    let Some(wanted) = Value::of(from, level, name) else { return Ok(()) };
    let is_copied = Value::of(to, level, name).as_ref() == Some(&wanted) || wanted.set(to, level, name);
    if is_copied { Ok(()) } else { Err(Word::Option) }
}

/// Has one listen, with the option that listen(2) sets back.
pub(super) fn listen(listener: c_int, sibling: c_int, backlog: c_int) -> Result<(), Word> {
    // SAFETY: listen(2) takes numbers.
    if unsafe { real::listen(sibling, backlog) } != 0 {
        return Err(Word::User);
    }
    copy_option(listener, sibling, libc::IPPROTO_TCP, libc::TCP_QUICKACK)
}

/// Sizes that the program chose; the others are the kernel's to tune. getsockopt(2) reports twice of what was asked.
fn copy_buffers(from: c_int, to: c_int) -> Result<(), Word> {
    /// SOCK_SNDBUF_LOCK and SOCK_RCVBUF_LOCK of linux/socket.h.
    const SENT: c_int = 1;
    const RECEIVED: c_int = 2;
    let chosen = kernel::option(from, libc::SOL_SOCKET, libc::SO_BUF_LOCK).unwrap_or(0);
    let buffers =
        [(SENT, libc::SO_SNDBUF, libc::SO_SNDBUFFORCE), (RECEIVED, libc::SO_RCVBUF, libc::SO_RCVBUFFORCE)];
    for (lock, name, forced) in buffers {
        if chosen & lock == 0 {
            continue;
        }
        let wanted = kernel::option(from, libc::SOL_SOCKET, name);
        for name_to_set in [name, forced] {
            kernel::set(to, libc::SOL_SOCKET, name_to_set, &(wanted.unwrap_or(0) / 2));
            if kernel::option(to, libc::SOL_SOCKET, name) == wanted {
                break;
            }
        }
        if kernel::option(to, libc::SOL_SOCKET, name) != wanted {
            return Err(Word::Option);
        }
    }
    Ok(())
}

fn bind_beside(listener: c_int, sibling: c_int) -> Result<(), Word> {
    let (listener, sibling) = (promoter::borrow(listener), promoter::borrow(sibling));
    let (Some(address), Some(sibling)) = (listener.and_then(address_of), sibling) else {
        return Err(Word::Descriptors);
    };
    rustix::net::bind(sibling, &address).map_err(|_| Word::User)
}

/// The address of a listener; `None`: no IP address.
pub(super) fn address(fd: c_int) -> Option<SocketAddr> {
    promoter::borrow(fd).and_then(address_of)
}

fn address_of(fd: BorrowedFd<'_>) -> Option<SocketAddr> {
    SocketAddr::try_from(rustix::net::getsockname(fd).ok()?).ok()
}

/// An option's value, as long as any of the list is.
#[derive(PartialEq)]
struct Value {
    bytes: [u8; 32],
    length: socklen_t,
}

impl Value {
    /// `None`: the socket has no such option.
    fn of(fd: c_int, level: c_int, name: c_int) -> Option<Value> {
        let mut value = Value { bytes: [0; 32], length: 32 };
        let at = value.bytes.as_mut_ptr().cast::<c_void>();
        // SAFETY: room for the value, and its length.
        let status = unsafe { real::getsockopt(fd, level, name, at, &raw mut value.length) };
        (status == 0).then_some(value)
    }

    fn set(&self, fd: c_int, level: c_int, name: c_int) -> bool {
        // SAFETY: a value of that length, which the kernel wrote.
        unsafe { real::setsockopt(fd, level, name, self.bytes.as_ptr().cast(), self.length) == 0 }
    }
}
