//! Packets between processes of one host: UNIX sockets of the kind SOCK_SEQPACKET, which
//! keep messages apart, carry descriptors and name the peer (unix(7)). Nothing here waits.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// Descriptors that a packet of ours has at most.
pub const MOST_DESCRIPTORS: usize = 5;
/// Those that any packet can have (SCM_MAX_FD of the kernel).
const MOST_OF_ANY: usize = 253;

/// A process, its user and its group as the kernel reports them, in the numbers of the caller's
/// namespaces. A process that those do not hold is 0; a user or group is the overflow one then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Process.
    pub pid: u32,
    /// User: the effective one when a socket was connected, the real one of a packet's sender.
    pub uid: u32,
    /// Group: likewise.
    pub gid: u32,
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Listens at `path`, which must not exist yet. Only this user may connect until the file's mode
/// is changed. Packets of connections made there bring their senders' credentials.
pub fn listen(path: &Path, backlog: i32) -> io::Result<OwnedFd> {
    let socket = socket()?;
    pass_credentials(socket.as_fd())?;
    // bind(2) gives the file the socket's own mode, less the umask.
    rustix::fs::fchmod(&socket, rustix::fs::Mode::from_raw_mode(0o600))?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    net::listen(&socket, backlog)?;
    Ok(socket)
}

/// Lets packets bring their senders' credentials (SO_PASSCRED), on a listener also those of
/// connections that are made from now on.
pub fn pass_credentials(socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(net::sockopt::set_socket_passcred(socket, true)?)
}

/// Connects to the listener at `path`.
///
/// # Errors
///
/// ENOENT and ECONNREFUSED if nobody listens, EAGAIN if its backlog is full (connect(2)).
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Listens at an abstract name (unix(7)), which everybody in the network namespace can connect to.
pub fn listen_abstract(name: &[u8], backlog: i32) -> io::Result<OwnedFd> {
    let socket = socket()?;
    net::bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    net::listen(&socket, backlog)?;
    Ok(socket)
}

/// Connects to that; errors as those of [`connect`].
pub fn connect_abstract(name: &[u8]) -> io::Result<OwnedFd> {
    let socket = socket()?;
    net::connect(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    Ok(socket)
}

/// Two sockets connected to each other.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Takes the next connection. EAGAIN if there is none.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?)
}

/// The process that connected, or listens, at the other endpoint, as of that moment
/// (SO_PEERCRED).
pub fn credentials(socket: BorrowedFd<'_>) -> io::Result<Credentials> {
    let [pid, uid, gid] = crate::socket::option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED)?;
    Ok(Credentials { pid, uid, gid })
}

/// The process that connected (SO_PEERPIDFD), whose number no other process has while this lasts.
///
/// # Errors
///
/// ENOPROTOOPT before Linux 6.5; ESRCH once the process is gone.
pub fn process(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const SO_PEERPIDFD: i32 = 77;
    let fd: i32 = crate::socket::option(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD)?;
    // SAFETY: the kernel just gave us this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether the process of a pidfd lives (poll(2): readable once it has ended).
pub fn is_alive(process: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&now)), Ok(0))
}

/// Sends one packet with at most `MOST_DESCRIPTORS` descriptors: all of it, or nothing.
///
/// # Errors
///
/// EAGAIN if the peer has not read enough of what it was sent; EPIPE and ECONNRESET if it
/// is gone; ETOOMANYREFS if too many descriptors are under way (unix(7)).
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    // A sequenced packet is sent whole or not at all.
    rustix::io::retry_on_intr(|| net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags))?;
    Ok(())
}

/// What one packet brought.
#[derive(Debug, Default)]
pub struct Received {
    /// Bytes of the packet that are in the given memory; 0 is the end of the connection.
    pub len: usize,
    /// The packet had more bytes, or more descriptors, than there was room for.
    pub truncated: bool,
    /// The descriptors, in order.
    pub descriptors: [Option<OwnedFd>; MOST_DESCRIPTORS],
    /// Those beyond.
    pub excess: Vec<OwnedFd>,
    /// The process that sent it, if [`receive_from`] received it and the socket passes
    /// credentials.
    pub sender: Option<Credentials>,
}

impl Received {
    fn keep(&mut self, descriptor: OwnedFd) {
        match self.descriptors.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(descriptor),
            None => {
                self.truncated = true;
                self.excess.push(descriptor);
            }
        }
    }
}

/// Receives one packet and all its descriptors: the kernel would close those without room in this
/// very call, and a close may wait. It still does so where this process may have no more of them.
///
/// # Errors
///
/// EAGAIN if there is none; ECONNRESET if the peer is gone and had not read everything.
pub fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_OF_ANY))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let result = rustix::io::retry_on_intr(|| {
        net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, flags)
    })?;
    let mut received = Received {
        len: result.bytes,
        truncated: result.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC),
        ..Received::default()
    };
    let arrived = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    arrived.flatten().for_each(|descriptor| received.keep(descriptor));
    Ok(received)
}

/// Room for a packet's credentials and descriptors, aligned as control messages are.
const CONTROL_WORDS: usize = {
    // SAFETY: arithmetic on sizes.
    let bytes = unsafe {
        libc::CMSG_SPACE(size_of::<Credentials>() as u32)
            + libc::CMSG_SPACE((MOST_OF_ANY * size_of::<i32>()) as u32)
    };
    (bytes as usize).div_ceil(size_of::<u64>())
};

/// The same, with the packet's sender, by recvmsg(2) of the C library: rustix's credentials
/// cannot hold process 0, which stands for a sender outside of this process's namespace.
///
/// # Errors
///
/// As for [`receive`].
pub fn receive_from(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<Received> {
    let mut control = [0u64; CONTROL_WORDS];
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: a msghdr is integers and pointers, for which zero is a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut piece;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the header points to live memory of the lengths that it states.
    let len = unsafe {
        crate::message::receive_message(socket.as_raw_fd(), &raw mut header, libc::MSG_CMSG_CLOEXEC)?
    };
    let truncated = header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
    let mut received = Received { len, truncated, ..Received::default() };
    // SAFETY: the kernel wrote whole control messages and their length, whose walk stays inside
    // `control`. Each descriptor in them was just given to this process, and has no other owner.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(&raw const header);
        while !at.is_null() {
            let data = libc::CMSG_DATA(at);
            let length = (*at).cmsg_len as usize - (data as usize - at as usize);
            match ((*at).cmsg_level, (*at).cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if length >= size_of::<[u32; 3]>() => {
                    let [pid, uid, gid] = data.cast::<[u32; 3]>().read_unaligned();
                    received.sender = Some(Credentials { pid, uid, gid });
                }
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    for place in 0..length / size_of::<i32>() {
                        let fd = data.cast::<i32>().add(place).read_unaligned();
                        received.keep(OwnedFd::from_raw_fd(fd));
                    }
                }
                _ => {}
            }
            at = libc::CMSG_NXTHDR(&raw const header, at);
        }
    }
    Ok(received)
}

/// Whether a small packet could be sent now.
pub fn has_room(socket: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags};
    let mut polled = [PollFd::new(&socket, PollFlags::OUT)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut polled, Some(&now)), Ok(1)) && polled[0].revents() == PollFlags::OUT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_connected_is_known_by_more_than_a_number() {
        let (a, _b) = pair().unwrap();
        match process(a.as_fd()) {
            Ok(own) => assert!(is_alive(own.as_fd())),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOPROTOOPT), "{error}"),
        }
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        child.wait().unwrap();
        assert!(!is_alive(pidfd.as_fd()));
    }

    /// Descriptors beyond those of a packet of ours, and the sender.
    #[test]
    fn a_packet_brings_its_sender() {
        let (a, b) = pair().unwrap();
        send(a.as_fd(), b"before", &[]).unwrap();
        pass_credentials(b.as_fd()).unwrap();
        send(a.as_fd(), b"one", &[a.as_fd(), b.as_fd()]).unwrap();
        let mut bytes = [0; 4];
        // Sent when nobody asked for it: the kernel may have kept nothing of the sender.
        let before = receive_from(b.as_fd(), &mut bytes).unwrap();
        assert!(before.truncated && before.sender.is_some());
        let received = receive_from(b.as_fd(), &mut bytes).unwrap();
        assert_eq!((&bytes[..received.len], received.truncated), (&b"one"[..], false));
        assert_eq!(received.descriptors.iter().flatten().count(), 2);
        let user = rustix::process::getuid().as_raw();
        let own = Credentials { pid: std::process::id(), uid: user, gid: rustix::process::getgid().as_raw() };
        assert_eq!(received.sender, Some(own));
        assert_ne!(before.sender, Some(own));
        drop(received);

        let many = [a.as_fd(); MOST_OF_ANY];
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_OF_ANY))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&many)));
        net::sendmsg(&a, &[IoSlice::new(b"many")], &mut ancillary, SendFlags::empty()).unwrap();
        let received = receive_from(b.as_fd(), &mut bytes).unwrap();
        assert_eq!((received.len, received.excess.len()), (4, MOST_OF_ANY - MOST_DESCRIPTORS));
        assert!(received.truncated && received.sender == Some(own));
        drop(received);
        assert_eq!(receive_from(b.as_fd(), &mut bytes).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(a);
        await_end(b.as_fd());
        assert_eq!(receive_from(b.as_fd(), &mut bytes).unwrap().len, 0);
    }

    /// A child that another test forks has the peer's socket until it executes its program.
    fn await_end(socket: BorrowedFd<'_>) {
        assert!(crate::socket::wait_readable(socket, std::time::Duration::from_secs(60)).unwrap());
    }

    #[test]
    fn packets_keep_apart_and_bring_descriptors() {
        let (a, b) = pair().unwrap();
        assert!(has_room(a.as_fd()));
        send(a.as_fd(), b"one", &[a.as_fd(), b.as_fd()]).unwrap();
        send(a.as_fd(), b"two and more", &[]).unwrap();
        let mut bytes = [0; 4];
        let received = receive(b.as_fd(), &mut bytes).unwrap();
        assert_eq!((&bytes[..received.len], received.truncated), (&b"one"[..], false));
        assert_eq!(received.descriptors.iter().flatten().count(), 2);
        drop(received);
        let received = receive(b.as_fd(), &mut bytes).unwrap();
        assert!(received.truncated && received.descriptors.iter().flatten().count() == 0);
        assert_eq!(receive(b.as_fd(), &mut bytes).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(a);
        await_end(b.as_fd());
        assert_eq!(receive(b.as_fd(), &mut bytes).unwrap().len, 0);
        assert!(!has_room(b.as_fd()));
    }
}
