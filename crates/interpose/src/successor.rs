//! The successor of a connection whose peer has closed, and can no longer resend unread bytes: a
//! new connection in its place, which holds those bytes and ends the same way.

use std::ffi::c_int;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{self, AddressFamily, SendFlags, SocketFlags, SocketType, sockopt};

use crate::demotion;
use crate::kernel;
use crate::sockets::Promoted;
use crate::table::{self, Entry};

impl Promoted {
    /// Puts the rest of the stream under every descriptor of the socket. `None`: the peer has not
    /// closed, more is to come, or there is no room for so many bytes.
    pub(crate) fn replace_with_successor(&mut self, fd: c_int, number: u32) -> Option<()> {
        let mut deadline = None;
        loop {
            match self.detach(fd) {
                ControlFlow::Break(Ok(0)) => break,
                ControlFlow::Break(Ok(_)) => deadline = None,
                // The peer has announced its end of stream, and is about to close.
                ControlFlow::Continue(()) if self.connection.peer_has_finished() => {
                    demotion::wait(&mut deadline)?
                }
                ControlFlow::Break(Err(_)) | ControlFlow::Continue(()) => return None,
            }
        }
        // The peer sets this before its FIN.
        if !self.connection.peer_has_closed() {
            return None;
        }
        let successor = connection_with(self.detached.make_contiguous())?;
        kernel::control(successor.as_raw_fd(), libc::F_SETFL, kernel::control(fd, libc::F_GETFL, 0));
        if kernel::hangups(fd) & libc::POLLHUP as u32 != 0 {
            // This endpoint had sent FIN, too.
            net::shutdown(&successor, net::Shutdown::Write).ok()?;
        }
        table::names(Entry::Socket(number)).for_each(|name| kernel::replace(name, successor.as_raw_fd()));
        Some(())
    }
}

/// A connection from which these bytes, and then an end of stream, can be read.
fn connection_with(bytes: &[u8]) -> Option<OwnedFd> {
    let socket =
        || net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).ok();
    let (listener, sender) = (socket()?, socket()?);
    sockopt::set_socket_recv_buffer_size(&listener, bytes.len()).ok()?;
    sockopt::set_socket_send_buffer_size(&sender, bytes.len()).ok()?;
    net::bind(&listener, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).ok()?;
    net::listen(&listener, 1).ok()?;
    net::connect(&sender, &net::getsockname(&listener).ok()?).ok()?;
    let successor = net::accept_with(&listener, SocketFlags::CLOEXEC).ok()?;
    // Another process may have connected first.
    let ours = net::getpeername(&successor).ok()? == Some(net::getsockname(&sender).ok()?);
    let mut left = bytes;
    while ours && !left.is_empty() {
        let sent = net::send(&sender, left, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).ok()?;
        left = &left[sent..];
    }
    ours.then_some(successor)
}
