//! The calls without raw pointers: messages to receive into, and messages to send.

use std::io;
use std::mem;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

use socket2::SockAddr;

use crate::{CallError, LIMITED, Mmep};

/// Room for messages, and those that were received last.
pub struct Inbox {
    size: usize,
    memory: Vec<u8>,
    names: Vec<libc::sockaddr_storage>,
    headers: Vec<libc::mmsghdr>,
    pieces: Vec<libc::iovec>,
}

/// A received message.
pub struct Received<'inbox> {
    /// What there was room for.
    pub data: &'inbox [u8],
    /// Whether it was cut off.
    pub is_cut: bool,
    /// Who sent it, if that is known.
    pub from: Option<SockAddr>,
}

impl Inbox {
    /// Room for `count` messages of up to `size` bytes.
    ///
    /// # Panics
    ///
    /// If `count * size` is more than an allocation can have.
    pub fn new(count: usize, size: usize) -> Inbox {
        let bytes = count.checked_mul(size).filter(|&bytes| isize::try_from(bytes).is_ok());
        let Some(bytes) = bytes else {
            panic!("{count} messages of {size} bytes are more than memory can have")
        };
        // SAFETY: zero is a value of an address and of a header.
        let (name, header) = unsafe { (mem::zeroed(), mem::zeroed()) };
        Inbox {
            size,
            memory: vec![0; bytes],
            names: vec![name; count],
            headers: vec![header; count],
            pieces: vec![libc::iovec { iov_base: std::ptr::null_mut(), iov_len: size }; count],
        }
    }

    /// Receives what waits in the sockets, each of which has an equal share of the room, as
    /// [`crate::recvmmmsg`] does. For each socket: the numbers of its messages, or its error;
    /// that nothing waits is one (`WouldBlock`), and that the room has fewer messages than there are sockets
    /// (EINVAL, for the last ones).
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub fn receive(
        &mut self,
        sockets: &[BorrowedFd<'_>],
    ) -> Result<Vec<io::Result<Range<usize>>>, CallError> {
        let base = self.memory.as_mut_ptr();
        for at in 0..self.headers.len() {
            let header = &mut self.headers[at].msg_hdr;
            // SAFETY: the memory has `count * size` bytes.
            self.pieces[at].iov_base = unsafe { base.add(at * self.size) }.cast();
            (header.msg_iov, header.msg_iovlen) = (&raw mut self.pieces[at], 1);
            header.msg_name = (&raw mut self.names[at]).cast();
            header.msg_namelen = mem::size_of::<libc::sockaddr_storage>() as u32;
        }
        let (room, shares) = (self.headers.len(), sockets.len().max(1));
        let share = |at: usize| room / shares + usize::from(at < room % shares);
        let entry = |(at, socket): (usize, &BorrowedFd<'_>)| Mmep {
            sockfd: socket.as_raw_fd(),
            num: i32::try_from(share(at)).unwrap_or(i32::MAX),
            offset: 0,
        };
        let mut eps: Vec<Mmep> = sockets.iter().enumerate().map(entry).collect();
        // SAFETY: the headers were just made to point to memory of this value, which is borrowed
        // for the call.
        unsafe { crate::recvmmmsg(&mut eps, &mut self.headers, LIMITED)? };
        let outcome = |ep: Mmep| match ep.num {
            0.. => Ok(ep.offset as usize..(ep.offset + ep.num) as usize),
            errno => Err(io::Error::from_raw_os_error(-errno)),
        };
        Ok(eps.into_iter().map(outcome).collect())
    }

    /// A message by its number; one that was not received last is empty or an old one.
    pub fn message(&self, number: usize) -> Received<'_> {
        let header = &self.headers[number];
        let start = number * self.size;
        // SAFETY: the storage is plain bytes.
        let name = unsafe {
            let name = (&raw const self.names[number]).cast::<u8>();
            let len = header.msg_hdr.msg_namelen as usize;
            std::slice::from_raw_parts(name, len.min(mem::size_of::<libc::sockaddr_storage>()))
        };
        Received {
            data: &self.memory[start..start + self.size.min(header.msg_len as usize)],
            is_cut: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            from: sys::socket::address_from_bytes(name),
        }
    }
}

// SAFETY: the pointers in headers and pieces are set anew by each call, and followed by it alone.
unsafe impl Send for Inbox {}

/// Messages to send, each down any number of sockets.
#[derive(Default)]
pub struct Outbox<'data> {
    data: Vec<(&'data [u8], Option<u16>)>,
}

impl<'data> Outbox<'data> {
    /// None yet.
    pub fn new() -> Outbox<'data> {
        Outbox::default()
    }

    /// Adds a message; its number.
    pub fn push(&mut self, data: &'data [u8]) -> usize {
        self.data.push((data, None));
        self.data.len() - 1
    }

    /// Adds a train of datagrams, each of `segment` bytes but the last, which a UDP socket sends
    /// at the cost of little more than one (UDP_SEGMENT, udp(7)).
    pub fn push_train(&mut self, data: &'data [u8], segment: u16) -> usize {
        self.data.push((data, Some(segment)));
        self.data.len() - 1
    }

    /// Sends to each socket the messages of these numbers, as [`crate::sendmmmsg`] does. For each
    /// socket: how many went, or its error. It is for datagrams: of a message down a stream a part may go, which
    /// counts as a message and is not told.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub fn send(
        &self,
        targets: &[(BorrowedFd<'_>, Range<usize>)],
    ) -> Result<Vec<io::Result<usize>>, CallError> {
        let mut pieces: Vec<libc::iovec> = self
            .data
            .iter()
            .map(|(data, _)| libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() })
            .collect();
        let mut controls: Vec<_> = self.data.iter().map(|_| [0u64; GSO_SPACE.div_ceil(8)]).collect();
        let mut headers = Vec::with_capacity(self.data.len());
        for ((piece, control), &(_, segment)) in pieces.iter_mut().zip(&mut controls).zip(&self.data) {
            // SAFETY: zero is a value of a header.
            let mut header: libc::mmsghdr = unsafe { mem::zeroed() };
            (header.msg_hdr.msg_iov, header.msg_hdr.msg_iovlen) = (piece, 1);
            if let Some(segment) = segment {
                // SAFETY: so much room it has, aligned.
                unsafe { set_segment(&mut header.msg_hdr, control.as_mut_ptr().cast(), segment) };
            }
            headers.push(header);
        }
        let count = |value: usize| i32::try_from(value).unwrap_or(i32::MAX);
        let mut eps: Vec<Mmep> = targets
            .iter()
            .map(|(socket, messages)| Mmep {
                sockfd: socket.as_raw_fd(),
                num: count(messages.len()),
                offset: count(messages.start),
            })
            .collect();
        // SAFETY: headers, pieces, control messages and data live for the call; the kernel only
        // reads them.
        unsafe { crate::sendmmmsg(&mut eps, &mut headers, 0)? };
        let outcome = |ep: Mmep| match ep.num {
            0.. => Ok(ep.num as usize),
            errno => Err(io::Error::from_raw_os_error(-errno)),
        };
        Ok(eps.into_iter().map(outcome).collect())
    }
}

/// Bytes of room for control messages that [`set_segment`] takes.
// SAFETY: the function computes.
pub const GSO_SPACE: usize = unsafe { libc::CMSG_SPACE(mem::size_of::<u16>() as u32) } as usize;

/// Makes the message a train of datagrams, each of `segment` bytes but the last (UDP_SEGMENT, udp(7)). Its control
/// messages are this one then, in `room`.
///
/// # Safety
///
/// `room` has [`GSO_SPACE`] bytes, aligned as a `cmsghdr`, that are valid for writes.
pub unsafe fn set_segment(header: &mut libc::msghdr, room: *mut u8, segment: u16) {
    header.msg_control = room.cast();
    header.msg_controllen = GSO_SPACE as _;
    // SAFETY: the room holds a control message of two bytes, as the caller promises.
    unsafe {
        room.write_bytes(0, GSO_SPACE);
        let message = libc::CMSG_FIRSTHDR(header);
        (*message).cmsg_level = libc::SOL_UDP;
        (*message).cmsg_type = libc::UDP_SEGMENT;
        (*message).cmsg_len = libc::CMSG_LEN(mem::size_of::<u16>() as u32) as _;
        libc::CMSG_DATA(message).cast::<u16>().write_unaligned(segment);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};
    use std::os::fd::AsFd;

    use super::*;

    fn udp() -> UdpSocket {
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
    }

    /// The product of these is 64 where it wraps.
    #[test]
    #[should_panic(expected = "more than memory can have")]
    fn room_beyond_all_memory_is_refused() {
        Inbox::new(4, (1 << (usize::BITS - 2)) + 16);
    }

    #[test]
    fn what_is_sent_is_received_and_by_whom_is_told() {
        let receivers = [udp(), udp()];
        let senders = [udp(), udp()];
        for (sender, receiver) in senders.iter().zip(&receivers) {
            sender.connect(receiver.local_addr().unwrap()).unwrap();
        }
        let train = [7; 250];
        let mut outbox = Outbox::new();
        outbox.push(b"to both");
        outbox.push_train(&train, 100);
        let targets = [(senders[0].as_fd(), 0..2), (senders[1].as_fd(), 0..1), (senders[1].as_fd(), 1..9)];
        let sent = outbox.send(&targets).unwrap();
        assert_eq!(sent.iter().map(|sent| *sent.as_ref().unwrap_or(&0)).collect::<Vec<_>>(), [2, 1, 0]);
        assert_eq!(sent[2].as_ref().unwrap_err().raw_os_error(), Some(libc::EINVAL));

        let mut inbox = Inbox::new(16, 64);
        let received = inbox.receive(&[receivers[0].as_fd(), receivers[1].as_fd()]).unwrap();
        let [first, second] = [0, 1].map(|at| received[at].as_ref().unwrap().clone());
        assert_eq!((first.len(), second.len()), (4, 1));
        assert_eq!(inbox.message(second.start).data, b"to both");
        let lengths: Vec<_> =
            first.map(|number| (inbox.message(number).data.len(), inbox.message(number).is_cut)).collect();
        assert_eq!(lengths, [(7, false), (64, true), (64, true), (50, false)]);
        let from = inbox.message(second.start).from.unwrap().as_socket();
        assert_eq!(from, Some(senders[1].local_addr().unwrap()));
        let nothing = inbox.receive(&[receivers[0].as_fd()]).unwrap();
        assert_eq!(nothing[0].as_ref().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
