//! One function for each feature: uses it on private sockets and checks what the kernel
//! did.

use std::io::{self, Read, Write};
use std::mem::size_of;
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::ptr;

use io_uring::types::{CancelBuilder, Fd, Fixed, SubmitArgs};
use io_uring::{cqueue, opcode, squeue};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::probe::{BUFFER_GROUP, BUFFER_SIZE, PATIENCE, Probe, Setup};
use super::{Capabilities, DisabledFeatures, RingUnavailable};

const SLOTS: u32 = 8;
/// How long a peer may take to see the end of a closed connection: kernels before 6.5 closed from a work queue.
const CLOSE_PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

static PAYLOAD: [u8; 8] = *b"megapipe";

pub(super) fn capabilities(disabled: DisabledFeatures) -> Capabilities {
    let made = Setup::choose(&disabled).and_then(|setup| Ok((Probe::new(&setup)?, setup)));
    let (mut probe, setup) = match made {
        Ok(made) => made,
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
            return Capabilities::without_ring(Err(RingUnavailable::from_errno(errno)), disabled);
        }
    };
    let mut found = Capabilities::without_ring(Ok(()), disabled.clone());
    found.defer_taskrun = setup.defer_taskrun;
    found.coop_taskrun = setup.coop_taskrun;
    found.taskrun_flag = setup.taskrun_flag;
    found.submit_all = setup.submit_all;
    found.no_sqarray = setup.no_sqarray;

    // A trial that fails for want of descriptors or memory shows nothing of the kernel:
    // it must not count as a missing feature, which would lead to the slower engine.
    let mut shortage = None;
    let mut works = |name: &str, trial: fn(&mut Probe) -> io::Result<bool>| {
        !disabled.contains(name)
            && trial(&mut probe).unwrap_or_else(|error| {
                let errno = error.raw_os_error();
                shortage = shortage
                    .or(errno.filter(|errno| [libc::EMFILE, libc::ENFILE, libc::ENOMEM].contains(errno)));
                false
            })
    };
    found.cqe_skip = works("cqe_skip", Probe::cqe_skip);
    found.min_wait = works("min_wait", Probe::min_wait);
    found.async_cancel_fd = works("async_cancel_fd", Probe::async_cancel_fd);
    found.multishot_accept = works("multishot_accept", Probe::multishot_accept);
    found.accept_reports_more = works("accept_reports_more", Probe::accept_reports_more);

    found.buffer_ring = works("buffer_ring", Probe::buffer_ring);
    if found.buffer_ring {
        found.multishot_recv = works("multishot_recv", Probe::multishot_recv);
        found.recv_len_cap = found.multishot_recv && works("recv_len_cap", Probe::recv_len_cap);
        found.multishot_recvmsg = works("multishot_recvmsg", Probe::multishot_recvmsg);
    }

    found.sparse_files = works("sparse_files", Probe::sparse_files);
    if found.sparse_files {
        found.direct_descriptors_safe = works("direct_descriptors_safe", Probe::direct_descriptors_safe);
        found.fixed_fd_install = works("fixed_fd_install", Probe::fixed_fd_install);
    }
    found.recv_tells_cut = found.cqe_skip && works("recv_tells_cut", Probe::recv_tells_cut);
    found.poll_tells_one = works("poll_tells_one", Probe::poll_tells_one);
    found.registered_ring_fd = works("registered_ring_fd", Probe::registered_ring_fd);
    match shortage {
        Some(errno) => Capabilities::without_ring(Err(RingUnavailable::from_errno(errno)), disabled),
        None => found,
    }
}

/// Each trial returns whether the kernel did the expected; an error (unknown operation,
/// no completion in time) is a no.
impl Probe {
    fn cqe_skip(&mut self) -> io::Result<bool> {
        if !self.ring.params().is_feature_skip_cqe_on_success() {
            return Ok(false);
        }
        let skipped = self.submit(opcode::Nop::new().build().flags(squeue::Flags::SKIP_SUCCESS))?;
        let last = self.submit(opcode::Nop::new().build())?;
        self.completion(last)?;
        Ok(self.ended(skipped).is_none())
    }

    /// The time itself is not measured: a busy machine would make the answer a lottery.
    fn min_wait(&mut self) -> io::Result<bool> {
        if !self.ring.params().is_feature_min_timeout() {
            return Ok(false);
        }
        let request = self.submit(opcode::Nop::new().build())?;
        let arguments = SubmitArgs::new().min_wait_usec(1).timespec(&PATIENCE);
        self.ring.submitter().submit_with_args(1, &arguments)?;
        Ok(self.completion(request)?.result() == 0)
    }

    fn async_cancel_fd(&mut self) -> io::Result<bool> {
        let (socket, _peer) = UnixStream::pair()?;
        let fd = Fd(socket.as_raw_fd());
        let pending = self.submit(opcode::PollAdd::new(fd, libc::POLLIN as u32).build())?;
        let cancel = self.submit(opcode::AsyncCancel2::new(CancelBuilder::fd(fd).all()).build())?;
        let cancelled = self.completion(cancel)?.result() == 1;
        Ok(cancelled && self.completion(pending)?.result() == -libc::ECANCELED)
    }

    fn multishot_accept(&mut self) -> io::Result<bool> {
        // The empty path asks for an address of the kernel's choice (unix(7), autobind).
        let listener = UnixListener::bind("")?;
        let accept = self.submit(opcode::AcceptMulti::new(Fd(listener.as_raw_fd())).build())?;
        let mut all_accepted = true;
        for _ in 0..2 {
            let _client = UnixStream::connect_addr(&listener.local_addr()?)?;
            let entry = self.completion(accept)?;
            // SAFETY: the kernel made this descriptor for us, and nobody else knows it.
            drop(unsafe { OwnedFd::from_raw_fd(value(&entry)?) });
            all_accepted &= cqueue::more(entry.flags());
        }
        self.cancel(accept)?;
        Ok(all_accepted)
    }

    /// Of two connections that wait, the first is accepted before another and the second is not. On TCP: listeners of
    /// UNIX sockets do not say it.
    fn accept_reports_more(&mut self) -> io::Result<bool> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let _clients = [TcpStream::connect(address)?, TcpStream::connect(address)?];
        let mut reported = true;
        for more in [true, false] {
            let fd = Fd(listener.as_raw_fd());
            let request = self.submit(opcode::Accept::new(fd, ptr::null_mut(), ptr::null_mut()).build())?;
            let entry = self.completion(request)?;
            // SAFETY: the kernel made this descriptor for us, and nobody else knows it.
            drop(unsafe { OwnedFd::from_raw_fd(value(&entry)?) });
            reported &= cqueue::sock_nonempty(entry.flags()) == more;
        }
        Ok(reported)
    }

    fn buffer_ring(&mut self) -> io::Result<bool> {
        self.with_buffers(|probe| {
            let (socket, mut peer) = UnixStream::pair()?;
            peer.write_all(&PAYLOAD)?;
            let receive = opcode::Recv::new(Fd(socket.as_raw_fd()), ptr::null_mut(), BUFFER_SIZE as u32)
                .buf_group(BUFFER_GROUP)
                .build()
                .flags(squeue::Flags::BUFFER_SELECT);
            let request = probe.submit(receive)?;
            let entry = probe.completion(request)?;
            Ok(probe.received(&entry) == Some(&PAYLOAD[..]))
        })
    }

    /// One request, two messages.
    fn multishot_recv(&mut self) -> io::Result<bool> {
        self.with_buffers(|probe| {
            let (socket, mut peer) = UnixStream::pair()?;
            let receive = opcode::RecvMulti::new(Fd(socket.as_raw_fd()), BUFFER_GROUP);
            let request = probe.submit(receive.build())?;
            let mut whole = true;
            for _ in 0..2 {
                peer.write_all(&PAYLOAD)?;
                let entry = probe.completion(request)?;
                whole &= entry.result() == PAYLOAD.len() as i32 && cqueue::more(entry.flags());
            }
            drop(peer);
            let end = probe.completion(request)?;
            Ok(whole && end.result() == 0 && !cqueue::more(end.flags()))
        })
    }

    fn recv_len_cap(&mut self) -> io::Result<bool> {
        self.with_buffers(|probe| {
            let (socket, mut peer) = UnixStream::pair()?;
            let cap = PAYLOAD.len() / 2;
            peer.write_all(&PAYLOAD)?;
            let receive = opcode::RecvMulti::new(Fd(socket.as_raw_fd()), BUFFER_GROUP).len(cap as u32);
            let request = probe.submit(receive.build())?;
            let mut honoured = true;
            for _ in 0..2 {
                let entry = probe.completion(request)?;
                honoured &= entry.result() == cap as i32 && cqueue::more(entry.flags());
                if !cqueue::more(entry.flags()) {
                    return Ok(false);
                }
            }
            drop(peer);
            probe.completion(request)?;
            Ok(honoured)
        })
    }

    /// Each message comes when the request already waits: Linux 6.1 loses the buffers that it waits with, and stops
    /// with ENOBUFS at the second message.
    fn multishot_recvmsg(&mut self) -> io::Result<bool> {
        self.with_buffers(|probe| {
            let (socket, peer) = UnixDatagram::pair()?;
            let message = probe.message();
            let receive = opcode::RecvMsgMulti::new(Fd(socket.as_raw_fd()), message, BUFFER_GROUP);
            let request = probe.submit(receive.build())?;
            let mut all_received = true;
            for _ in 0..3 {
                peer.send(&PAYLOAD)?;
                let entry = probe.completion(request)?;
                if !cqueue::more(entry.flags()) {
                    return Ok(false);
                }
                // The header (io_uring_recvmsg_out, four words) comes first, then the payload.
                let header = 4 * size_of::<u32>();
                all_received &=
                    probe.received(&entry).is_some_and(|bytes| bytes.get(header..) == Some(&PAYLOAD[..]));
            }
            probe.cancel(request)?;
            Ok(all_received)
        })
    }

    fn sparse_files(&mut self) -> io::Result<bool> {
        self.ring.submitter().register_files_sparse(SLOTS)?;
        Ok(true)
    }

    /// A request waits on one slot while another slot is closed: does that one's peer see the end?
    fn direct_descriptors_safe(&mut self) -> io::Result<bool> {
        let (busy, _busy_peer) = UnixStream::pair()?;
        let (closed, closed_peer) = UnixStream::pair()?;
        self.ring.submitter().register_files_update(0, &[busy.as_raw_fd(), closed.as_raw_fd()])?;
        drop((busy, closed));

        let waiting = self.submit(opcode::PollAdd::new(Fixed(0), libc::POLLIN as u32).build())?;
        let close = self.submit(opcode::Close::new(Fixed(1)).build())?;
        let slot_closed = self.completion(close)?.result() == 0;
        let end_seen = ended(&closed_peer);
        self.cancel(waiting)?;
        self.ring.submitter().register_files_update(0, &[-1])?;
        Ok(slot_closed && end_seen)
    }

    fn fixed_fd_install(&mut self) -> io::Result<bool> {
        let (socket, peer) = UnixStream::pair()?;
        self.ring.submitter().register_files_update(2, &[socket.as_raw_fd()])?;
        drop(socket);
        let install = self.submit(opcode::FixedFdInstall::new(Fixed(2), 0).build())?;
        let installed = self.completion(install)?;
        self.ring.submitter().register_files_update(2, &[-1])?;
        // SAFETY: the kernel made this descriptor for us, and nobody else knows it.
        let mut installed = UnixStream::from(unsafe { OwnedFd::from_raw_fd(value(&installed)?) });
        installed.write_all(&PAYLOAD)?;
        let mut bytes = [0; PAYLOAD.len()];
        (&peer).read_exact(&mut bytes)?;
        Ok(bytes == PAYLOAD)
    }

    /// One datagram, then two, then one again: is the mask of the middle one the different one?
    fn poll_tells_one(&mut self) -> io::Result<bool> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect(socket.local_addr()?)?;
        let events = (libc::POLLIN | libc::POLLRDBAND) as u32;
        let poll = opcode::PollAdd::new(Fd(socket.as_raw_fd()), events).multi(true);
        let request = self.submit(poll.build())?;
        let mut told = true;
        for datagrams in [1, 2, 1] {
            for _ in 0..datagrams {
                socket.send(&PAYLOAD)?;
            }
            let entry = self.completion(request)?;
            if !cqueue::more(entry.flags()) {
                return Ok(false);
            }
            let one = value(&entry)? & i32::from(libc::POLLRDBAND) != 0;
            told &= one == (datagrams == 1);
            for _ in 0..datagrams {
                socket.recv(&mut [0; PAYLOAD.len()])?;
            }
        }
        self.cancel(request)?;
        Ok(told)
    }

    /// A datagram that fits with room to spare, one that fits exactly, one that does not fit, and none: all have ended
    /// when the call that submits them returns, and the second alone without a completion.
    fn recv_tells_cut(&mut self) -> io::Result<bool> {
        let room = PAYLOAD.len() - 1;
        // Of a kind whose messages are there when they have been sent.
        let (socket, peer) = UnixDatagram::pair()?;
        for len in [room - 1, room, room + 1] {
            peer.send(&PAYLOAD[..len])?;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_WAITALL;
        let receive =
            opcode::Recv::new(Fd(socket.as_raw_fd()), self.room(), room as u32).flags(flags).build();
        let mut requests = [0; 4];
        for request in &mut requests {
            *request = self.queue(receive.clone().flags(squeue::Flags::SKIP_SUCCESS))?;
        }
        self.ring.submit()?;
        let results = requests.map(|request| self.ended(request).map(|entry| entry.result()));
        Ok(results == [Some(room as i32 - 1), None, Some(room as i32), Some(-libc::EAGAIN)])
    }

    fn registered_ring_fd(&mut self) -> io::Result<bool> {
        let request = self.queue(opcode::Nop::new().build())?;
        // The registration lives in this submitter: a later one goes by the descriptor again.
        let mut submitter = self.ring.submitter();
        submitter.register_ring_fd()?;
        let submitted = submitter.submit();
        submitter.unregister_ring_fd()?;
        submitted?;
        Ok(self.completion(request)?.result() == 0)
    }
}

/// The result of a request, or the error that it ended with.
fn value(entry: &cqueue::Entry) -> io::Result<i32> {
    if entry.result() < 0 { Err(io::Error::from_raw_os_error(-entry.result())) } else { Ok(entry.result()) }
}

/// Whether the peer of this socket is closed, now or very soon.
fn ended(socket: &UnixStream) -> bool {
    let mut poll = [PollFd::new(socket, PollFlags::IN)];
    let ready = rustix::event::poll(&mut poll, Some(&CLOSE_PATIENCE));
    ready == Ok(1) && poll[0].revents().contains(PollFlags::HUP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_peer_has_not_ended() {
        let (socket, peer) = UnixStream::pair().expect("a socket pair");
        assert!(!ended(&socket));
        drop(peer);
        assert!(ended(&socket));
    }
}
