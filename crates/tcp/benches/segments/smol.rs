//! smoltcp with one socket, used as its documentation has it where time counts: one packet at a time
//! in, the socket read, then out; no delayed acknowledgements, no allocation.

use packet::{Batch, Checksum, Frame};
use smoltcp::iface::{Config, Interface, PollIngressSingleResult, SocketHandle, SocketSet};
use smoltcp::phy::{self, ChecksumCapabilities, Device, DeviceCapabilities, Medium};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpCidr};

use crate::clients::{PORT, SERVER};
use crate::{Answered, Subject};

/// Bytes of its receive buffer: the largest window that our side offers by default.
const RECEIVE: usize = 256 << 10;

pub(super) struct Smoltcp {
    interface: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
    sent: Sent,
    room: Vec<u8>,
}

impl Smoltcp {
    pub(super) fn new(checksum: Checksum) -> Self {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = 1500;
        if checksum != Checksum::Complete {
            // As in our host, IP headers are summed in any case.
            capabilities.checksum = ChecksumCapabilities::default();
            capabilities.checksum.tcp = phy::Checksum::None;
        }
        let mut sent = Sent { capabilities, packet: vec![0; 1500], len: 0, count: 0 };
        let mut none = [].iter().copied();
        let mut device = Bursts { frames: &mut none, sent: &mut sent };
        let mut interface =
            Interface::new(Config::new(HardwareAddress::Ip), &mut device, Instant::from_micros(0));
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(SERVER.into(), 0)).expect("there is room for one");
        });
        let mut socket = Socket::new(SocketBuffer::new(vec![0; RECEIVE]), SocketBuffer::new(vec![0; 4096]));
        socket.set_ack_delay(None);
        socket.listen(PORT).expect("the socket is closed");
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let socket = sockets.add(socket);
        Self { interface, sockets, socket, sent, room: vec![0; 2048] }
    }
}

impl Subject for Smoltcp {
    fn turn(&mut self, micros: u64, burst: &Batch) -> Answered {
        let now = Instant::from_micros(micros as i64);
        self.sent.count = 0;
        let mut frames = burst.frames();
        let mut device = Bursts { frames: &mut frames, sent: &mut self.sent };
        while self.interface.poll_ingress_single(now, &mut device, &mut self.sockets)
            != PollIngressSingleResult::None
        {}
        let socket = self.sockets.get_mut::<Socket>(self.socket);
        let mut bytes = 0;
        while socket.can_recv() {
            bytes += socket.recv_slice(&mut self.room).unwrap_or(0);
        }
        self.interface.poll_egress(now, &mut device, &mut self.sockets);
        Answered { packets: self.sent.count, bytes }
    }

    fn last(&self) -> &[u8] {
        &self.sent.packet[..self.sent.len]
    }
}

/// Where its packets go: one place, each over the one before.
struct Sent {
    capabilities: DeviceCapabilities,
    packet: Vec<u8>,
    len: usize,
    count: usize,
}

/// A device in memory: the packets of a burst come in.
struct Bursts<'a, I> {
    frames: &'a mut I,
    sent: &'a mut Sent,
}

struct Packet<'a>(&'a [u8]);

impl<'a, I: Iterator<Item = Frame<'a>>> Device for Bursts<'_, I> {
    type RxToken<'b>
        = Packet<'a>
    where
        Self: 'b;
    type TxToken<'b>
        = &'b mut Sent
    where
        Self: 'b;

    fn receive(&mut self, _: Instant) -> Option<(Packet<'a>, &mut Sent)> {
        self.frames.next().map(|frame| (Packet(frame.bytes), &mut *self.sent))
    }

    fn transmit(&mut self, _: Instant) -> Option<&mut Sent> {
        Some(self.sent)
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.sent.capabilities.clone()
    }
}

impl phy::RxToken for Packet<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(self.0)
    }
}

impl phy::TxToken for &mut Sent {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        self.count += 1;
        self.len = len;
        fill(&mut self.packet[..len])
    }
}
