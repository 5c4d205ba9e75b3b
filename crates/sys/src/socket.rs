//! Socket calls and addresses.

use std::io;
use std::mem;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use socket2::{SockAddr, SockRef};

use crate::file::counted;

/// The two ways a socket can keep data: as bytes, or as messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SOCK_STREAM.
    Stream,
    /// SOCK_DGRAM and other sockets of single messages.
    Message,
    /// SOCK_SEQPACKET: messages of a connection, which ends.
    Packets,
}

/// The kind of a socket, `None` for a file that is no socket.
pub fn kind(fd: BorrowedFd<'_>) -> io::Result<Option<Kind>> {
    match option(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_TYPE) {
        Ok(libc::SOCK_STREAM) => Ok(Some(Kind::Stream)),
        Ok(libc::SOCK_SEQPACKET) => Ok(Some(Kind::Packets)),
        Ok(_) => Ok(Some(Kind::Message)),
        Err(error) if error.raw_os_error() == Some(libc::ENOTSOCK) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The protocol of a socket, 0 for a family that has but one; `None` for a file that is no
/// socket.
pub fn protocol(fd: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    match option(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PROTOCOL) {
        Ok(protocol) => Ok(Some(protocol)),
        Err(error) if error.raw_os_error() == Some(libc::ENOTSOCK) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The cookie of the socket that has this descriptor number now, if any (SO_COOKIE): two
/// numbers have one cookie only if they name one socket.
pub fn cookie_of_number(number: RawFd) -> io::Result<u64> {
    option(number, libc::SOL_SOCKET, libc::SO_COOKIE)
}

/// The address that the kernel wrote as these bytes; `None` for an empty or absurd one.
pub fn address_from_bytes(bytes: &[u8]) -> Option<SockAddr> {
    if bytes.len() < mem::size_of::<libc::sa_family_t>() {
        return None;
    }
    let mut storage = socket2::SockAddrStorage::zeroed();
    if bytes.len() > mem::size_of_val(&storage) {
        return None;
    }
    // SAFETY: the storage is plain bytes, at least as large as `bytes`, and does not
    // overlap it; every bit pattern is a valid address of some family.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut storage).cast::<u8>(), bytes.len());
        Some(SockAddr::new(storage, bytes.len() as libc::socklen_t))
    }
}

/// What the kernel calls the socket's network namespace (SO_NETNS_COOKIE, since 5.14);
/// 0 on kernels that do not say, which is right while the process has one namespace.
pub fn namespace_cookie(fd: BorrowedFd<'_>) -> io::Result<u64> {
    match option(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_NETNS_COOKIE) {
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(0),
        cookie => cookie,
    }
}

/// What a receive reports besides the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Bytes put into the memory that was given.
    pub len: usize,
    /// Bytes of the sender's address.
    pub name_len: u32,
    /// `msg_flags` of recvmsg(2): MSG_TRUNC and others.
    pub flags: i32,
}

/// recv(2) that never waits, whatever the descriptor's mode.
///
/// # Safety
///
/// `room` is valid for writes of `len` bytes and nobody else uses them meanwhile.
pub unsafe fn receive(fd: BorrowedFd<'_>, room: *mut u8, len: usize) -> io::Result<usize> {
    // SAFETY: the caller promises the memory.
    counted(|| unsafe { libc::recv(fd.as_raw_fd(), room.cast(), len, libc::MSG_DONTWAIT) })
}

/// recvmsg(2) into several pieces that never waits; the sender's address goes to `name`.
///
/// # Safety
///
/// Every piece, and the pair of address and room that `name` is, is valid for writes and
/// nobody else uses it meanwhile.
pub unsafe fn receive_message(
    fd: BorrowedFd<'_>,
    pieces: &mut [libc::iovec],
    name: Option<(*mut u8, u32)>,
) -> io::Result<Received> {
    // SAFETY: a msghdr is integers and pointers, for which zero is a value.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    if let Some((address, len)) = name {
        header.msg_name = address.cast();
        header.msg_namelen = len;
    }
    header.msg_iov = pieces.as_mut_ptr();
    header.msg_iovlen = pieces.len() as _;
    // SAFETY: the caller promises the pieces and the name; the header is ours.
    let len = counted(|| unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) })?;
    Ok(Received { len, name_len: header.msg_namelen, flags: header.msg_flags })
}

/// send(2) that never waits and raises no SIGPIPE.
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the kernel reads a live slice.
    counted(|| unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) })
}

/// sendmsg(2) that never waits and raises no SIGPIPE, to `to` or to the connected peer.
pub fn send_message(
    fd: BorrowedFd<'_>,
    parts: &[io::IoSlice<'_>],
    to: Option<&SockAddr>,
) -> io::Result<usize> {
    // SAFETY: a msghdr is integers and pointers, for which zero is a value.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    if let Some(address) = to {
        header.msg_name = address.as_ptr().cast_mut().cast();
        header.msg_namelen = address.len();
    }
    // IoSlice has iovec's layout; the kernel only reads them.
    header.msg_iov = parts.as_ptr().cast_mut().cast();
    header.msg_iovlen = parts.len() as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the header points to a live address and live slices.
    counted(|| unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const header, flags) })
}

/// Room for an address that the kernel is to write.
pub struct AddressRoom {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl AddressRoom {
    /// Empty room.
    pub fn new() -> AddressRoom {
        // SAFETY: an address is plain data, for which zero means "unspecified".
        let storage = unsafe { mem::zeroed() };
        AddressRoom { storage, len: mem::size_of::<libc::sockaddr_storage>() as libc::socklen_t }
    }

    /// The two pointers that accept4(2) and its like take: to the address, and to the room
    /// there, which becomes the address's length.
    pub fn pointers(&mut self) -> (*mut libc::sockaddr, *mut libc::socklen_t) {
        self.len = mem::size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        ((&raw mut self.storage).cast(), &raw mut self.len)
    }

    /// Puts an address in.
    pub fn set(&mut self, address: SocketAddr) {
        let address = SockAddr::from(address);
        self.len = address.len();
        // SAFETY: an address of the kernel's, at most as long as the storage, which it cannot overlap.
        unsafe {
            ptr::copy_nonoverlapping(
                address.as_ptr().cast::<u8>(),
                (&raw mut self.storage).cast::<u8>(),
                address.len() as usize,
            );
        }
    }

    /// The address, if it is one of IPv4 or IPv6.
    pub fn address(&self) -> Option<SocketAddr> {
        let len = (self.len as usize).min(mem::size_of::<libc::sockaddr_storage>());
        // SAFETY: `len` bytes of `storage`, which is plain data that was zeroed at first.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const self.storage).cast::<u8>(), len) };
        address_from_bytes(bytes)?.as_socket()
    }
}

impl Default for AddressRoom {
    fn default() -> AddressRoom {
        AddressRoom::new()
    }
}

/// accept4(2): the next connection, close-on-exec, in blocking mode; the peer's address goes
/// into `peer`. Waits if the listener is in blocking mode and nobody connects.
pub fn accept(listener: BorrowedFd<'_>, peer: Option<&mut AddressRoom>) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC;
    let (name, len) = peer.map_or((ptr::null_mut(), ptr::null_mut()), AddressRoom::pointers);
    // SAFETY: both pointers are null, or to live memory of the size that `*len` says.
    let fd = unsafe { libc::accept4(listener.as_raw_fd(), name, len, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// connect(2), as the descriptor's mode has it.
pub fn connect(fd: BorrowedFd<'_>, address: &SockAddr) -> io::Result<()> {
    SockRef::from(&fd).connect(address)
}

/// Wakes everything that waits for connections of a listener, if some are there: shutdown(SHUT_WR)
/// wakes all waiters of a socket, and is without effect on one that listens (inet_shutdown in
/// net/ipv4/af_inet.c; unix_shutdown in net/unix/af_unix.c sets a flag that no accept or connect reads).
pub fn wake_accepts(listener: BorrowedFd<'_>) -> io::Result<()> {
    if is_readable(listener)? {
        SockRef::from(&listener).shutdown(Shutdown::Write)?;
    }
    Ok(())
}

/// Whether there is something to read or accept now (poll(2)).
pub fn is_readable(fd: BorrowedFd<'_>) -> io::Result<bool> {
    wait_readable(fd, Duration::ZERO)
}

/// Waits until there is something to read or accept, or for so long (ppoll(2)). Returns whether
/// there is.
pub fn wait_readable(fd: BorrowedFd<'_>, limit: Duration) -> io::Result<bool> {
    let limit = Timespec::try_from(limit).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
    let mut poll = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    rustix::event::poll(&mut poll, Some(&limit))?;
    Ok(poll[0].revents().contains(PollFlags::IN))
}

/// connect(2) that never waits: O_NONBLOCK is set for the time of the call.
///
/// # Errors
///
/// EINPROGRESS if the socket becomes writable when the outcome is known.
pub fn connect_now(fd: BorrowedFd<'_>, address: &SockAddr) -> io::Result<()> {
    if crate::file::is_nonblocking(fd)? {
        return connect(fd, address);
    }
    crate::file::set_nonblocking(fd, true)?;
    let outcome = connect(fd, address);
    crate::file::set_nonblocking(fd, false)?;
    outcome
}

/// A socket option whose value is an integer or some; of a kernel with a longer value
/// only the first bytes are read.
pub(crate) fn option<T: Default + Copy>(fd: RawFd, level: i32, name: i32) -> io::Result<T> {
    let mut value = T::default();
    let mut len = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into a live value, of integers as the callers ask for.
    match unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) } {
        0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}
