//! Receiving and sending messages by system calls that never wait, and the state of a
//! socket's queue.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use crate::socket::option;

/// Most messages that the kernel takes in one recvmmsg(2) or sendmmsg(2) (UIO_MAXIOV).
pub const MESSAGES_MAX: usize = 1024;

/// recv(2). The descriptor may be anything: a bad one is the kernel's to refuse, as in all
/// calls here that take a number.
///
/// # Safety
///
/// `room` is valid for writes of `len` bytes, or the kernel may refuse it (EFAULT).
#[inline]
pub unsafe fn receive(fd: RawFd, room: *mut u8, len: usize, flags: i32) -> io::Result<usize> {
    // SAFETY: the caller answers for the memory.
    retried(|| unsafe { libc::recv(fd, room.cast(), len, flags | libc::MSG_DONTWAIT) })
}

/// recvmsg(2).
///
/// # Safety
///
/// `header` points to a message header; what that points to is valid for writes, or the
/// kernel may refuse it (EFAULT).
#[inline]
pub unsafe fn receive_message(fd: RawFd, header: *mut libc::msghdr, flags: i32) -> io::Result<usize> {
    // SAFETY: the caller answers for the memory.
    retried(|| unsafe { libc::recvmsg(fd, header, flags | libc::MSG_DONTWAIT) })
}

/// recvmmsg(2) without a timeout; at most [`MESSAGES_MAX`].
///
/// # Safety
///
/// `headers` points to `count` headers; see [`receive_message`] for what they point to.
pub unsafe fn receive_messages(
    fd: RawFd,
    headers: *mut libc::mmsghdr,
    count: usize,
    flags: i32,
) -> io::Result<usize> {
    let count = count.min(MESSAGES_MAX) as u32;
    retried(|| {
        // SAFETY: the caller answers for the memory; no timeout is given. The flags have
        // another type where the C library is musl.
        let received =
            unsafe { libc::recvmmsg(fd, headers, count, (flags | libc::MSG_DONTWAIT) as _, ptr::null_mut()) };
        received as isize
    })
}

/// sendmsg(2), without SIGPIPE.
///
/// # Safety
///
/// `header` points to a message header; what that points to is valid for reads, or the
/// kernel may refuse it (EFAULT).
pub unsafe fn send_message(fd: RawFd, header: *const libc::msghdr, flags: i32) -> io::Result<usize> {
    // SAFETY: the caller answers for the memory.
    retried(|| unsafe { libc::sendmsg(fd, header, flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) })
}

/// sendmmsg(2), without SIGPIPE; at most [`MESSAGES_MAX`].
///
/// # Safety
///
/// `headers` points to `count` headers; see [`send_message`] for what they point to.
pub unsafe fn send_messages(
    fd: RawFd,
    headers: *mut libc::mmsghdr,
    count: usize,
    flags: i32,
) -> io::Result<usize> {
    let count = count.min(MESSAGES_MAX) as u32;
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the caller answers for the memory. The flags have another type where the C
    // library is musl.
    retried(|| unsafe { libc::sendmmsg(fd, headers, count, flags as _) } as isize)
}

/// How many of the sockets can be read from (poll(2)); none where the call fails.
pub fn readable(sockets: impl Iterator<Item = RawFd>) -> usize {
    let mut polls: Vec<_> = sockets.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    // SAFETY: so many live pollfds.
    let ready = unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, 0) };
    usize::try_from(ready).unwrap_or(0)
}

/// Bytes that wait in a stream's queue, or of the datagram that comes next (FIONREAD).
pub fn unread(fd: RawFd) -> io::Result<usize> {
    let mut count: libc::c_int = 0;
    // SAFETY: the kernel writes one live integer.
    match unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut count) } {
        0 => Ok(usize::try_from(count).unwrap_or(0)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether it is a stream socket.
pub fn is_stream(fd: RawFd) -> bool {
    option::<i32>(fd, libc::SOL_SOCKET, libc::SO_TYPE).is_ok_and(|kind| kind == libc::SOCK_STREAM)
}

/// Whether it is a stream in which bytes wait.
pub fn has_stream_data(fd: RawFd) -> bool {
    is_stream(fd) && unread(fd).is_ok_and(|count| count > 0)
}

/// Whether the peer sends no more and no bytes wait (poll(2) and FIONREAD).
pub fn has_ended(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one live pollfd.
    let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
    let ends = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL;
    ready > 0 && poll.revents & ends != 0 && unread(fd).unwrap_or(0) == 0
}

/// Bytes that a TCP socket has received in all (TCP_INFO).
pub fn received(fd: RawFd) -> io::Result<u64> {
    // SAFETY: the struct is integers, for which zero is a value.
    let mut info: TcpInfo = unsafe { mem::zeroed() };
    let mut len = mem::size_of_val(&info) as libc::socklen_t;
    let room = (&raw mut info).cast();
    // SAFETY: the kernel writes at most `len` bytes into a live struct.
    match unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, room, &raw mut len) } {
        0 if len as usize == mem::size_of_val(&info) => Ok(info.bytes_received),
        0 => Err(io::ErrorKind::Unsupported.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The beginning of `struct tcp_info` up to what is read of it.
#[repr(C)]
struct TcpInfo {
    before: [u64; 16],
    bytes_received: u64,
}

/// The socket's number, unique since the system's start (SO_COOKIE).
pub fn cookie(fd: RawFd) -> io::Result<u64> {
    option(fd, libc::SOL_SOCKET, libc::SO_COOKIE)
}

/// The socket's protocol (SO_PROTOCOL), such as IPPROTO_TCP.
pub fn protocol(fd: RawFd) -> io::Result<i32> {
    option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL)
}

/// Whether the socket listens (SO_ACCEPTCONN).
pub fn is_listening(fd: RawFd) -> io::Result<bool> {
    Ok(option::<i32>(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN)? != 0)
}

/// The socket's low-water mark (SO_RCVLOWAT).
pub fn low_water_mark(fd: RawFd) -> io::Result<i32> {
    option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT)
}

/// Sets the socket's low-water mark. Lowering it below what waits makes the socket readable:
/// for polls, for edge-triggered epoll, and for receives of io_uring that are under way, not for blocking ones.
pub fn set_low_water_mark(fd: RawFd, bytes: i32) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes)
}

/// Sets the low-water mark of the socket with this cookie and of no other, whatever becomes of the number meanwhile:
/// a duplicate, held for the time of the call, goes on naming the socket that was checked. Without a descriptor to be
/// had (EMFILE) the number has to do.
pub fn set_low_water_mark_of(fd: RawFd, expected: u64, bytes: i32) -> io::Result<()> {
    // SAFETY: the call takes no memory.
    let duplicate = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    // SAFETY: the kernel just gave us this descriptor; nobody else owns it.
    let duplicate = (duplicate >= 0).then(|| unsafe { OwnedFd::from_raw_fd(duplicate) });
    let fd = duplicate.as_ref().map_or(fd, AsRawFd::as_raw_fd);
    if cookie(fd)? != expected {
        return Err(io::ErrorKind::NotConnected.into());
    }
    set_low_water_mark(fd, bytes)
}

/// Lets trains of datagrams of one flow come as one message (UDP_GRO, udp(7)).
pub fn set_udp_gro(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_option(fd.as_raw_fd(), libc::SOL_UDP, libc::UDP_GRO, 1)
}

fn set_option(fd: RawFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    let len = mem::size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel reads one live integer.
    match unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A call that counts, again while signals interrupt it.
#[inline]
fn retried(call: impl Fn() -> isize) -> io::Result<usize> {
    loop {
        let count = call();
        if count >= 0 {
            return Ok(count as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
