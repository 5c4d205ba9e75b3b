//! smoltcp on the same TUN device, as its best user would have it: sockets made beforehand, one poll for
//! all packets that wait, and no sleep before the time that it asks for.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

use megapipe::packet::tun::Tun;
use megapipe::packet::{Batch, Capabilities, Device as _, Offload};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};

use super::SIZE;

/// Serves echoes on one queue.
pub(super) fn run(tun: Tun, address: SocketAddr, connections: usize) -> io::Result<Infallible> {
    let mut device = Phy { tun, received: Batch::new(BATCH_BYTES), to_send: Batch::new(BATCH_BYTES) };
    let begin = std::time::Instant::now();
    let now = || Instant::from_micros(begin.elapsed().as_micros() as i64);
    let mut interface = Interface::new(Config::new(HardwareAddress::Ip), &mut device, now());
    let IpAddr::V4(own) = address.ip() else { return Err(io::ErrorKind::Unsupported.into()) };
    interface.update_ip_addrs(|addresses| {
        // The list is empty and has room for one.
        let _ = addresses.push(IpCidr::new(IpAddress::Ipv4(own), 24));
    });
    let mut sockets = SocketSet::new(Vec::new());
    let handles = (0..connections).map(|_| sockets.add(listening(address.port())));
    let handles = handles.collect::<Vec<SocketHandle>>();
    crate::part::listening("");
    loop {
        device.receive()?;
        loop {
            let polled = interface.poll(now(), &mut device, &mut sockets);
            for &handle in &handles {
                serve(sockets.get_mut::<Socket<'_>>(handle), address.port());
            }
            if polled == PollResult::None {
                break;
            }
        }
        device.send()?;
        if device.received.is_empty() {
            let limit = interface.poll_delay(now(), &sockets).map(|delay| {
                let delay = Duration::from_micros(delay.total_micros());
                Timespec { tv_sec: delay.as_secs() as i64, tv_nsec: delay.subsec_nanos().into() }
            });
            // Interrupted is as good as ready: the device is asked again.
            let _ = poll(&mut [PollFd::new(&device.tun.as_fd(), PollFlags::IN)], limit.as_ref());
        }
    }
}

fn listening(port: u16) -> Socket<'static> {
    let buffer = || SocketBuffer::new(vec![0; BUFFER]);
    let mut socket = Socket::new(buffer(), buffer());
    socket.set_nagle_enabled(false);
    socket.set_ack_delay(None);
    // Of a socket that is closed, and a port that is not 0: cannot fail.
    let _ = socket.listen(port);
    socket
}

/// Sends back what came; a connection that has ended gives its socket back.
fn serve(socket: &mut Socket<'_>, port: u16) {
    if socket.can_recv() && socket.can_send() {
        let mut message = [0; SIZE];
        if let Ok(len @ 1..) = socket.recv_slice(&mut message) {
            // There is room: the peer waits for the answer to its only request.
            let _ = socket.send_slice(&message[..len]);
        }
    }
    if !socket.is_open() {
        let _ = socket.listen(port);
    } else if !socket.may_recv() && socket.may_send() {
        socket.close();
    }
}

/// The TUN device as smoltcp takes packets, a batch at a time.
struct Phy {
    tun: Tun,
    received: Batch,
    to_send: Batch,
}

impl Phy {
    fn receive(&mut self) -> io::Result<()> {
        self.received.clear();
        self.tun.receive(&mut self.received).map(drop)
    }

    fn send(&mut self) -> io::Result<()> {
        self.tun.send(&mut self.to_send).map(drop)
    }
}

impl Device for Phy {
    type RxToken<'a> = Received<'a>;
    type TxToken<'a> = ToSend<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Received<'_>, ToSend<'_>)> {
        (!self.received.is_empty() && self.to_send.room(MTU).is_ok())
            .then_some((Received(&mut self.received), ToSend(&mut self.to_send)))
    }

    fn transmit(&mut self, _: Instant) -> Option<ToSend<'_>> {
        self.to_send.room(MTU).is_ok().then_some(ToSend(&mut self.to_send))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let Capabilities { mtu, .. } = self.tun.capabilities();
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = mtu;
        // Packets from this machine have no checksum yet; those that are sent need one.
        capabilities.checksum.tcp = Checksum::Tx;
        capabilities
    }
}

struct Received<'a>(&'a mut Batch);

impl RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        let result = take(self.0.first().map_or(&[], |frame| frame.bytes));
        self.0.remove_first();
        result
    }
}

struct ToSend<'a>(&'a mut Batch);

impl TxToken for ToSend<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        let room = self.0.room(len).expect("the token was given with room for a frame of the MTU");
        let result = fill(room);
        self.0.commit(len, Offload::default());
        result
    }
}

const MTU: usize = 1500;

/// Bytes that a socket keeps in each direction: many requests.
const BUFFER: usize = 4096;

const BATCH_BYTES: usize = 256 << 10;
