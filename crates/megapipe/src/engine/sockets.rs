//! Calls on a socket that are answered at once, in terms that hold on any TCP.
//!
//! A kernel engine answers them through a descriptor, which is what the provided methods
//! do. An engine whose sockets have no descriptor answers them itself.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use socket2::{Domain, SockAddr, SockRef, Socket, TcpKeepalive, Type};

use super::Engine;
use super::view::View;
use crate::core::File;
use crate::lwsocket::LwFile;
use crate::source::Shape;

/// Probes of an idle connection (RFC 9293, 3.8.4; tcp(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Silence before the first probe, in whole seconds, at least 1 s.
    pub idle: Duration,
    /// Time between probes, in whole seconds, at least 1 s.
    pub interval: Duration,
    /// Probes without an answer after which the connection fails with ETIMEDOUT, at least 1.
    pub probes: u32,
}

/// What TCP measures on a connection (TCP_INFO of tcp(7); RFC 4898).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SocketInfo {
    /// Smoothed round-trip time (RFC 6298).
    pub rtt: Duration,
    /// Its variation.
    pub rtt_variation: Duration,
    /// Retransmission timeout.
    pub rto: Duration,
    /// Largest segment to the peer, in bytes of payload.
    pub segment_size: u32,
    /// Congestion window, in bytes.
    pub congestion_window: u64,
    /// Bytes sent for the first time.
    pub bytes_sent: u64,
    /// Bytes sent again.
    pub bytes_retransmitted: u64,
    /// Bytes that the peer has acknowledged.
    pub bytes_acknowledged: u64,
    /// Bytes received in order.
    pub bytes_received: u64,
}

/// What [`SocketCalls::open`] makes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Opening {
    /// A socket that listens on the address, with this many connections waiting at most.
    Listener { address: SocketAddr, backlog: u32 },
    /// A socket that is about to connect to the address.
    Connection { to: SocketAddr },
}

/// Socket calls by handle. The handle's index is valid in `view`; a handle whose file is gone
/// gives EBADF, a file that is no socket ENOTSOCK.
pub(crate) trait SocketCalls {
    /// A socket of the engine's own kind.
    fn open(&mut self, view: &mut View<'_>, opening: Opening) -> io::Result<(File, Shape)>;
    fn local_address(&mut self, view: &mut View<'_>, index: u32) -> io::Result<SockAddr>;
    fn peer_address(&mut self, view: &mut View<'_>, index: u32) -> io::Result<SockAddr>;
    fn set_nodelay(&mut self, view: &mut View<'_>, index: u32, on: bool) -> io::Result<()>;
    fn set_keepalive(&mut self, view: &mut View<'_>, index: u32, probes: Option<KeepAlive>)
    -> io::Result<()>;
    /// In milliseconds, as TCP_USER_TIMEOUT.
    fn set_user_timeout(
        &mut self,
        view: &mut View<'_>,
        index: u32,
        millis: Option<NonZeroU32>,
    ) -> io::Result<()>;
    /// Has the coming close send RST instead of waiting until data is acknowledged.
    fn reset_on_close(&mut self, view: &mut View<'_>, index: u32) -> io::Result<()>;
    fn socket_info(&mut self, view: &mut View<'_>, index: u32) -> io::Result<SocketInfo>;
}

/// An engine whose files are the kernel's.
pub(crate) trait KernelFiles: Engine + Sized {}

impl<E: KernelFiles> SocketCalls for E {
    fn open(&mut self, _view: &mut View<'_>, opening: Opening) -> io::Result<(File, Shape)> {
        match opening {
            Opening::Listener { address, backlog } => {
                let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
                socket.set_reuse_address(true)?;
                socket.bind(&address.into())?;
                socket.listen(backlog.min(i32::MAX as u32) as i32)?;
                Ok((File::Fd(socket.into()), Shape::Listener { packets: false, tcp: true }))
            }
            Opening::Connection { to } => {
                let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
                Ok((File::Fd(socket.into()), Shape::Stream { tcp: true }))
            }
        }
    }

    fn local_address(&mut self, view: &mut View<'_>, index: u32) -> io::Result<SockAddr> {
        with_descriptor(self, view, index, |fd| SockRef::from(&fd).local_addr())
    }

    fn peer_address(&mut self, view: &mut View<'_>, index: u32) -> io::Result<SockAddr> {
        with_descriptor(self, view, index, |fd| SockRef::from(&fd).peer_addr())
    }

    fn set_nodelay(&mut self, view: &mut View<'_>, index: u32, on: bool) -> io::Result<()> {
        with_descriptor(self, view, index, |fd| SockRef::from(&fd).set_tcp_nodelay(on))
    }

    fn set_keepalive(
        &mut self,
        view: &mut View<'_>,
        index: u32,
        probes: Option<KeepAlive>,
    ) -> io::Result<()> {
        with_descriptor(self, view, index, |fd| {
            let socket = SockRef::from(&fd);
            match probes {
                None => socket.set_keepalive(false),
                Some(KeepAlive { idle, interval, probes }) => socket.set_tcp_keepalive(
                    &TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(probes),
                ),
            }
        })
    }

    fn set_user_timeout(
        &mut self,
        view: &mut View<'_>,
        index: u32,
        millis: Option<NonZeroU32>,
    ) -> io::Result<()> {
        let timeout = millis.map(|millis| Duration::from_millis(millis.get().into()));
        with_descriptor(self, view, index, |fd| SockRef::from(&fd).set_tcp_user_timeout(timeout))
    }

    fn reset_on_close(&mut self, view: &mut View<'_>, index: u32) -> io::Result<()> {
        with_descriptor(self, view, index, |fd| SockRef::from(&fd).set_linger(Some(Duration::ZERO)))
    }

    fn socket_info(&mut self, view: &mut View<'_>, index: u32) -> io::Result<SocketInfo> {
        with_descriptor(self, view, index, |fd| {
            let info = sys::tcp::info(fd)?;
            let segment_size = info.segment_size;
            Ok(SocketInfo {
                rtt: info.rtt,
                rtt_variation: info.rtt_variation,
                rto: info.rto,
                segment_size,
                congestion_window: u64::from(info.congestion_window) * u64::from(segment_size),
                bytes_sent: info.bytes_sent.saturating_sub(info.bytes_retransmitted),
                bytes_retransmitted: info.bytes_retransmitted,
                bytes_acknowledged: info.bytes_acknowledged,
                bytes_received: info.bytes_received,
            })
        })
    }
}

/// Runs `f` on a descriptor of a kernel file; one is made for the call where the file is a
/// slot of a ring.
pub(crate) fn with_descriptor<E: Engine + ?Sized, T>(
    engine: &mut E,
    view: &mut View<'_>,
    index: u32,
    f: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
) -> io::Result<T> {
    let gone = || io::Error::from_raw_os_error(libc::EBADF);
    let file = view.file(index).ok_or_else(gone)?;
    if let Some(fd) = file.descriptor() {
        return f(fd);
    }
    if file.stack_socket().is_some() {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    let slot = file.slot().ok_or_else(gone)?;
    let fd: OwnedFd = engine.export(view, &LwFile::Direct(slot))?;
    f(fd.as_fd())
}
