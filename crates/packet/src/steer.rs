//! Which queue of a TUN device the kernel sends a flow to.
//!
//! The kernel sends a flow to the queue that has last sent packets of it. For one that is new, or
//! was silent for some seconds, it chooses by a hash with a secret key. But the choice
//! depends on nothing else than addresses, ports and the number of queues: packets of the flow that
//! are sent through a device of our own show it.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use crate::tun::{OpenError, Tun};
use crate::{Batch, Device, sys};

/// Packets that are sent before they are received: a queue of the device holds 500.
const BURST: usize = 128;

/// For each of these local ports, the queue, of this number of queues, to which the kernel sends
/// what its socket `remote` answers to a connection from `local`. Ports come in order; one without
/// an answer is left out.
///
/// Makes a device for the time of the call, and needs what Linux asks for packet sockets
/// (CAP_NET_RAW), which who may make a device in a user namespace has there.
pub fn queues_of_ports(
    queues: usize,
    local: IpAddr,
    remote: SocketAddr,
    ports: RangeInclusive<u16>,
) -> Result<Vec<(u16, usize)>, OpenError> {
    let mut devices = Tun::open_queues("mpsteer%d", 1500, queues)?;
    devices[0].bring_up()?;
    let socket = sys::PacketSocket::open(devices[0].name(), remote.is_ipv4())?;
    let mut batch = Batch::new(1 << 18);
    let mut found = Vec::new();
    let ports: Vec<u16> = ports.collect();
    for burst in ports.chunks(BURST) {
        for &port in burst {
            socket.send(&acknowledgement(remote, SocketAddr::new(local, port)))?;
        }
        for (queue, device) in devices.iter_mut().enumerate() {
            loop {
                batch.clear();
                if device.receive(&mut batch)? == 0 {
                    break;
                }
                let ports = batch.frames().filter_map(|frame| port_of(frame.bytes, remote));
                found.extend(ports.map(|port| (port, queue)));
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Where the TCP header is in packets of this family without options.
fn header_len(v4: bool) -> usize {
    if v4 { 20 } else { 40 }
}

/// A TCP segment without data. Nobody verifies its checksums.
fn acknowledgement(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let mut packet = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0];
            packet.extend(from.octets());
            packet.extend(to.octets());
            packet
        }
        (from, to) => {
            let octets = |address: IpAddr| match address {
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                IpAddr::V6(address) => address.octets(),
            };
            let mut packet = vec![0x60, 0, 0, 0, 0, 20, 6, 64];
            packet.extend(octets(from));
            packet.extend(octets(to));
            packet
        }
    };
    packet.extend(from.port().to_be_bytes());
    packet.extend(to.port().to_be_bytes());
    packet.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
    packet
}

/// The destination port of such a segment, if it is one from there.
fn port_of(packet: &[u8], from: SocketAddr) -> Option<u16> {
    let v4 = from.is_ipv4();
    let ports: [u8; 4] = packet.get(header_len(v4)..header_len(v4) + 4)?.try_into().ok()?;
    let (version, protocol) = (packet[0] >> 4, packet[if v4 { 9 } else { 6 }]);
    let [a, b, c, d] = ports;
    let ours = version == if v4 { 4 } else { 6 } && protocol == 6 && [a, b] == from.port().to_be_bytes();
    ours.then(|| u16::from_be_bytes([c, d]))
}
