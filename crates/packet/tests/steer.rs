//! Queues that are learned for ports, against the kernel's own choice.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
use packet::steer::queues_of_ports;
use packet::tun::Tun;
use packet::{Batch, Device, Frame, Offload};
use testkit::netns;

const QUEUES: usize = 3;
const PORTS: usize = 100;

/// The answer to a SYN arrives on the queue that was learned, whichever the SYN was sent on.
#[test]
fn answers_arrive_where_they_were_expected() {
    if !netns::enter("answers_arrive_where_they_were_expected", Duration::from_secs(60)) {
        return;
    }
    let mut queues = Tun::open_queues("mp%d", 1500, QUEUES).expect("a TUN device");
    let kernel4 = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
    let kernel6 = IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1));
    queues[0].bring_up().expect("up");
    queues[0].add_kernel_address(kernel4, 24).expect("an IPv4 address");
    queues[0].add_kernel_address(kernel6, 64).expect("an IPv6 address");
    for (kernel, local) in [
        (kernel4, IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2))),
        (kernel6, IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2))),
    ] {
        let listener = TcpListener::bind((kernel, 0)).expect("a listener");
        let remote = listener.local_addr().expect("an address");
        let last = 50_000 + PORTS as u16 - 1;
        let learned = queues_of_ports(QUEUES, local, remote, 50_000..=last).expect("packet sockets");
        assert!(learned.iter().map(|&(port, _)| port).eq(50_000..=last), "{learned:?}");
        for queue in 0..QUEUES {
            let ports = learned.iter().filter(|&&(_, of)| of == queue).count();
            assert!(ports > PORTS / QUEUES / 3, "{ports} of queue {queue}");
        }
        for (at, &(port, queue)) in learned.iter().enumerate() {
            let answered = queue_of_answer(&mut queues, at % QUEUES, SocketAddr::new(local, port), remote);
            assert_eq!(answered, queue, "the answer to port {port} of {local}");
        }
    }
}

/// Sends a SYN on one queue, and returns that of the first answer.
fn queue_of_answer(queues: &mut [Tun], send_on: usize, local: SocketAddr, remote: SocketAddr) -> usize {
    let builder = match (local.ip(), remote.ip()) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => PacketBuilder::ipv4(local.octets(), remote.octets(), 64),
        (IpAddr::V6(local), IpAddr::V6(remote)) => PacketBuilder::ipv6(local.octets(), remote.octets(), 64),
        _ => unreachable!("one family"),
    };
    let mut syn = Vec::new();
    builder.tcp(local.port(), remote.port(), 1, 1000).syn().write(&mut syn, &[]).expect("a packet");
    let mut batch = Batch::new(1 << 18);
    batch.push(Frame { bytes: &syn, offload: Offload::default() }).expect("room");
    assert_eq!(queues[send_on].send(&mut batch).expect("send"), 1);
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        for (number, queue) in queues.iter_mut().enumerate() {
            batch.clear();
            queue.receive(&mut batch).expect("receive");
            if batch.frames().any(|frame| is_to(frame.bytes, local.port())) {
                return number;
            }
        }
    }
    panic!("no answer to {local}");
}

fn is_to(packet: &[u8], port: u16) -> bool {
    let transport = SlicedPacket::from_ip(packet).ok().and_then(|packet| packet.transport);
    matches!(transport, Some(TransportSlice::Tcp(tcp)) if tcp.destination_port() == port)
}
