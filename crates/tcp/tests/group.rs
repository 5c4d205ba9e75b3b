//! Hosts that share their addresses: what came to the wrong one finds the right one.
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use etherparse::{Icmpv4Type, PacketBuilder, SlicedPacket, TransportSlice, icmpv4::DestUnreachableHeader};
use packet::group::{PassedOn, Queue};
use packet::{Batch, Capabilities, Device as _, Frame, Offload};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with};
use tcp::{Config, Event, Failure, Flow, Host, Pattern, Prefix, Ready, Reason, Time, WriteError};
use testkit::netns;

const OURS: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
const KERNELS: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
/// Nobody has it.
const NOBODY: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 9);
const PORT: u16 = 7;

fn host(seed: u8, capabilities: Capabilities) -> Host {
    Host::new(Config::new(vec![Prefix::one(IpAddr::V4(OURS))], capabilities), [seed; 32])
}

/// A host without a device.
fn alone(seed: u8) -> Host {
    host(seed, Capabilities { mtu: 1500, checksum: false, segment: 0 })
}

fn sent(host: &mut Host) -> Vec<Vec<u8>> {
    let mut batch = Batch::new(1 << 18);
    while host.output(NOW, &mut batch) {}
    batch.frames().map(|frame| frame.bytes.to_vec()).collect()
}

const NOW: Time = Time::from_micros(1_000_000);

fn frame(bytes: &[u8]) -> Frame<'_> {
    Frame { bytes, offload: Offload::default() }
}

fn begin(host: &mut Host, to: Ipv4Addr) -> (Flow, Vec<u8>) {
    let flow = host.connect(NOW, None, None, SocketAddr::from((to, PORT))).expect("a connection");
    let mut packets = sent(host);
    assert_eq!(packets.len(), 1);
    (flow, packets.remove(0))
}

fn from_peer(flags: &str, syn: &[u8]) -> Vec<u8> {
    let sliced = SlicedPacket::from_ip(syn).expect("a packet");
    let Some(TransportSlice::Tcp(tcp)) = sliced.transport else { panic!("no TCP") };
    let builder = PacketBuilder::ipv4(NOBODY.octets(), OURS.octets(), 64);
    let builder = builder.tcp(PORT, tcp.source_port(), 100, 1_000);
    let builder = match flags {
        "SA" => builder.syn().ack(tcp.sequence_number().wrapping_add(1)),
        "R" => builder.rst().ack(tcp.sequence_number().wrapping_add(1)),
        other => panic!("{other}"),
    };
    let mut packet = Vec::new();
    builder.write(&mut packet, &[]).expect("a packet");
    packet
}

/// "Port unreachable" about this packet, from `from`.
fn port_unreachable(from: Ipv4Addr, about: &[u8]) -> Vec<u8> {
    let builder = PacketBuilder::ipv4(from.octets(), OURS.octets(), 64);
    let builder = builder.icmpv4(Icmpv4Type::DestinationUnreachable(DestUnreachableHeader::Port));
    let mut packet = Vec::new();
    builder.write(&mut packet, &about[..28]).expect("a packet");
    packet
}

fn failure(host: &mut Host, flow: Flow) -> Option<Failure> {
    match host.write(NOW, flow, &[]) {
        Err(WriteError::Failed(failure)) => Some(failure),
        _ => None,
    }
}

/// Segments and errors about a connection of another host are handed on, in their order and among
/// others that are known; nothing is answered and nothing counted.
#[test]
fn strangers_are_handed_on() {
    let (mut left, mut right) = (alone(1), alone(2));
    let (of_left, syn_of_left) = begin(&mut left, NOBODY);
    let (of_right, syn_of_right) = begin(&mut right, NOBODY);
    let packets = [
        from_peer("SA", &syn_of_right),
        from_peer("SA", &syn_of_left),
        port_unreachable(NOBODY, &syn_of_right),
        from_peer("R", &syn_of_right),
    ];
    let mut handed_on = Vec::new();
    left.input_shared(NOW, packets.iter().map(|packet| frame(packet)), |frame| {
        handed_on.push(frame.bytes.to_vec());
        true
    });
    // The connection of `left` is open, and its ACK the only answer.
    assert_eq!(sent(&mut left).len(), 1);
    assert!(matches!(left.event(), Some(Event::Flow { flow, ready, .. })
        if flow == of_left && ready.has(Ready::CONNECTED)));
    assert_eq!(left.refused(Reason::NoFlow), 0);
    let foreign = [0, 3, 2].map(|at| packets[at].clone());
    // Errors go before the segments of their burst.
    handed_on.sort();
    let mut expected = foreign.to_vec();
    expected.sort();
    assert_eq!(handed_on, expected);
    right.input_shared(NOW, [frame(&packets[2])], |_| panic!("it is known here"));
    assert_eq!(failure(&mut right, of_right), Some(Failure::Refused));
}

/// What no host knows is answered by the last one. A SYN for a port without a listener goes round,
/// too.
#[test]
fn what_nobody_knows_is_answered() {
    let mut host = alone(1);
    let mut stranger = Vec::new();
    let builder = PacketBuilder::ipv4(NOBODY.octets(), OURS.octets(), 64);
    builder.tcp(9, 9, 5, 1_000).ack(77).write(&mut stranger, b"data").expect("a packet");
    let mut syn = Vec::new();
    let builder = PacketBuilder::ipv4(NOBODY.octets(), OURS.octets(), 64);
    builder.tcp(9, PORT, 5, 1_000).syn().write(&mut syn, &[]).expect("a packet");
    let mut asked = 0;
    host.input_shared(NOW, [&stranger, &syn].map(|bytes| frame(bytes)), |_| {
        asked += 1;
        false
    });
    assert_eq!((asked, sent(&mut host).len()), (2, 2));
    assert_eq!(host.refused(Reason::NoFlow), 2);
    host.listen(Pattern { address: None, port: Some(PORT) }, 1).expect("a listener");
    host.input_shared(NOW, [frame(&syn)], |_| panic!("there is a listener"));
    assert_eq!(sent(&mut host).len(), 1);
}

/// The kernel sends all ICMP errors from one address to one queue. With a connection that is being
/// opened on each of three queues, each still gets the error that is about it.
#[test]
fn errors_arrive_at_the_right_queue() {
    const QUEUES: usize = 3;
    if !netns::enter("errors_arrive_at_the_right_queue", Duration::from_secs(60)) {
        return;
    }
    let mut queues = Queue::open("mp%d", 1500, QUEUES).expect("a TUN device");
    queues[0].tun().bring_up().expect("up");
    queues[0].tun().add_kernel_address(IpAddr::V4(KERNELS), 24).expect("an address");
    queues.iter_mut().for_each(Queue::join);
    let capabilities = queues[0].capabilities();
    let mut hosts: Vec<Host> = (0..QUEUES).map(|seed| host(seed as u8, capabilities)).collect();
    let raw = socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::ICMP));
    let raw = raw.expect("CAP_NET_RAW in a namespace of our own");
    let flows: Vec<Flow> = hosts
        .iter_mut()
        .map(|host| {
            let (flow, syn) = begin(host, NOBODY);
            let error = port_unreachable(KERNELS, &syn);
            sendto(&raw, &error[20..], SendFlags::empty(), &SocketAddr::from((OURS, 0))).expect("sending");
            flow
        })
        .collect();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut passed = 0;
    let mut batch = Batch::new(1 << 18);
    while flows.iter().zip(&mut hosts).any(|(&flow, host)| failure(host, flow).is_none()) {
        assert!(Instant::now() < deadline, "an error was lost");
        for (queue, host) in queues.iter_mut().zip(&mut hosts) {
            let mut pass_on = |queue: &Queue, frame: Frame<'_>, origin| {
                passed += 1;
                queue.pass_on(frame, origin) == PassedOn::Yes
            };
            batch.clear();
            queue.receive(&mut batch).expect("receiving");
            host.input_shared(NOW, batch.frames(), |frame| pass_on(queue, frame, queue.number()));
            while queue
                .take_passed(|frame, origin| {
                    host.input_shared(NOW, [frame], |frame| pass_on(queue, frame, origin));
                })
                .is_some()
            {}
        }
    }
    for (&flow, host) in flows.iter().zip(&mut hosts) {
        assert_eq!(failure(host, flow), Some(Failure::Refused));
    }
    // One is there at once, one is passed on once, and one twice.
    assert_eq!(passed, 3);
}
