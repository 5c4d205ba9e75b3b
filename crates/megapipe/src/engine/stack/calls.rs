//! Calls on sockets of a stack that are answered at once.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::time::Duration;

use socket2::SockAddr;
use tcp::{Flow, Host, ListenError, Listener, Pattern, Time};

use super::options::{self, Options, Probes};
use super::port::Listening;
use super::{Of, Socket, Stacks};
use crate::core::File;
use crate::engine::sockets::{KeepAlive, Opening, SocketCalls, SocketInfo};
use crate::engine::view::{FileView, View};
use crate::source::Shape;

/// The dynamic ports (RFC 6335, 6), for listeners that ask for any.
const PORTS: std::ops::RangeInclusive<u16> = 49_152..=65_535;

/// Ports that are tried before there seems to be none.
const PORT_TRIES: usize = 64;

impl Stacks {
    /// The stack that a socket for this belongs to.
    pub(super) fn port_for(&self, opening: Opening) -> Option<usize> {
        self.ports.iter().position(|port| match opening {
            Opening::Listener { address, .. } => port.owns(address.ip()),
            Opening::Connection { to } => port.reaches(to.ip()),
        })
    }

    /// Sets an option of a socket, and of the connection that it has.
    fn set_option(
        &mut self,
        view: &mut View<'_>,
        index: u32,
        keep: impl FnOnce(&mut Options),
        apply: impl FnOnce(Time, &mut Host, Flow),
    ) -> io::Result<()> {
        self.socket(view, index)?;
        if let Some(socket) = self.socket_mut(view, index) {
            keep(&mut socket.options);
        }
        if let Some((port, flow)) = self.flow_of(view, index) {
            apply(self.now, &mut self.ports[port].host, flow);
        }
        Ok(())
    }

    fn listen(
        &mut self,
        port: usize,
        address: SocketAddr,
        backlog: u32,
    ) -> io::Result<(Listener, SocketAddr)> {
        let host = &mut self.ports[port].host;
        let mut listen = |number| {
            let pattern = Pattern { address: Some(address.ip()), port: Some(number) };
            host.listen(pattern, backlog as usize)
        };
        let candidates = match address.port() {
            0 => PORTS.step_by(257).chain(PORTS.skip(1).step_by(257)).take(PORT_TRIES).collect(),
            number => vec![number],
        };
        let mut refused = ListenError::InUse;
        for number in candidates {
            match listen(number) {
                Ok(listener) => return Ok((listener, SocketAddr::new(address.ip(), number))),
                Err(error) => refused = error,
            }
        }
        Err(io::Error::from_raw_os_error(match refused {
            ListenError::InUse => libc::EADDRINUSE,
            ListenError::TooMany => libc::ENOBUFS,
        }))
    }

    /// Both addresses of the handle's socket.
    fn addresses(&self, view: &View<'_>, index: u32) -> io::Result<(SocketAddr, Option<SocketAddr>)> {
        let unspecified = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        let socket = self.socket(view, index)?;
        Ok(match socket.of {
            Of::Nothing => (unspecified, None),
            Of::Listener(listener) => {
                let mut listeners = self.ports[usize::from(socket.port)].listeners.iter();
                let known = listeners.find(|known| known.listener == listener);
                (known.map_or(unspecified, |known| known.address), None)
            }
            Of::Flow(flow) => match self.ports[usize::from(socket.port)].host.addresses(flow) {
                Some((local, remote)) => (local, Some(remote)),
                None => (unspecified, None),
            },
        })
    }

    fn socket(&self, view: &View<'_>, index: u32) -> io::Result<&Socket> {
        let socket = view.file(index).and_then(FileView::stack_socket);
        let socket = socket.and_then(|socket| self.sockets.at(socket));
        socket.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }
}

impl SocketCalls for Stacks {
    fn open(&mut self, view: &mut View<'_>, opening: Opening) -> io::Result<(File, Shape)> {
        let gone = || io::Error::from_raw_os_error(libc::EADDRNOTAVAIL);
        let port = self.port_for(opening).ok_or_else(gone)?;
        let full = || io::Error::from_raw_os_error(libc::ENFILE);
        if view.lwsockets_left(true) == 0 || self.sockets.is_full() {
            return Err(full());
        }
        // Not of the kernel's TCP: such a connection is never promoted.
        let (socket, _) = self.sockets.insert(Socket::new(port as u8, Of::Nothing)).map_err(|_| full())?;
        let shape = match opening {
            Opening::Connection { .. } => Shape::Stream { tcp: false },
            Opening::Listener { address, backlog } => {
                let listening = self.listen(port, address, backlog);
                let (listener, address) = listening.inspect_err(|_| {
                    self.sockets.remove(socket);
                })?;
                self.ports[port].listeners.push(Listening { listener, socket, address });
                if let Some(entry) = self.sockets.at_mut(socket) {
                    entry.of = Of::Listener(listener);
                }
                Shape::Listener { packets: false, tcp: false }
            }
        };
        Ok((view.file_of_stack(socket, shape), shape))
    }

    fn local_address(&mut self, view: &mut View<'_>, index: u32) -> io::Result<SockAddr> {
        self.addresses(view, index).map(|(local, _)| local.into())
    }

    fn peer_address(&mut self, view: &mut View<'_>, index: u32) -> io::Result<SockAddr> {
        let (_, peer) = self.addresses(view, index)?;
        peer.map(SockAddr::from).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOTCONN))
    }

    fn set_nodelay(&mut self, view: &mut View<'_>, index: u32, on: bool) -> io::Result<()> {
        self.set_option(
            view,
            index,
            |options| options.no_delay = on,
            |now, host, flow| {
                host.set_no_delay(now, flow, on);
            },
        )
    }

    fn set_keepalive(
        &mut self,
        view: &mut View<'_>,
        index: u32,
        probes: Option<KeepAlive>,
    ) -> io::Result<()> {
        self.socket(view, index)?;
        let probes = probes.map(Probes::new).transpose()?;
        self.set_option(
            view,
            index,
            |options| options.probes = probes,
            |now, host, flow| {
                options::set_probes(now, host, flow, probes);
            },
        )
    }

    fn set_user_timeout(
        &mut self,
        view: &mut View<'_>,
        index: u32,
        millis: Option<NonZeroU32>,
    ) -> io::Result<()> {
        self.set_option(
            view,
            index,
            |options| options.user_timeout = millis,
            |now, host, flow| {
                options::set_user_timeout(now, host, flow, millis);
            },
        )
    }

    fn reset_on_close(&mut self, view: &mut View<'_>, index: u32) -> io::Result<()> {
        self.socket(view, index)?;
        if let Some(socket) = self.socket_mut(view, index) {
            socket.reset_on_close = true;
        }
        Ok(())
    }

    fn socket_info(&mut self, view: &mut View<'_>, index: u32) -> io::Result<SocketInfo> {
        let socket = self.socket(view, index)?;
        let Of::Flow(flow) = socket.of else { return Ok(SocketInfo::default()) };
        let info = self.ports[usize::from(socket.port)].host.info(flow);
        let info = info.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
        Ok(SocketInfo {
            rtt: Duration::from_micros(info.round_trip_micros.into()),
            segment_size: info.mss.into(),
            congestion_window: info.congestion_window.into(),
            ..SocketInfo::default()
        })
    }
}
