//! Ports whose answers come to a queue, against the kernel's own choice.
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::process::Command;
use std::time::{Duration, Instant};

use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
use packet::group::Queue;
use packet::{Batch, Device, Frame, Offload};
use testkit::netns;
use testkit::skip::{Skipped, record};

const QUEUES: usize = 3;

/// More than a third of those that are learned at once.
const PORTS: usize = 250;

/// The answer to a SYN arrives on the queue that the port was chosen for, whichever the SYN was
/// sent on. What one stack has learned serves the others.
#[test]
fn answers_arrive_on_the_own_queue() {
    if !netns::enter("answers_arrive_on_the_own_queue", Duration::from_secs(60)) {
        return;
    }
    let mut queues = Queue::open("mp%d", 1500, QUEUES).expect("a TUN device");
    let kernel4 = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
    let kernel6 = IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1));
    queues[0].tun().bring_up().expect("up");
    queues[0].tun().add_kernel_address(kernel4, 24).expect("an IPv4 address");
    queues[0].tun().add_kernel_address(kernel6, 64).expect("an IPv6 address");
    for (kernel, local) in [
        (kernel4, IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2))),
        (kernel6, IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2))),
    ] {
        let listener = TcpListener::bind((kernel, 0)).expect("a listener");
        let remote = listener.local_addr().expect("an address");
        let before = probes();
        let mut all = HashSet::new();
        for queue in 0..QUEUES {
            let mut ports = queues[queue].ports().expect("several queues");
            for at in 0..PORTS {
                let port = ports.find(local, remote, |port| all.insert(port).then_some(port));
                let port = port.expect("packet sockets").expect("a free port");
                let answered =
                    queue_of_answer(&mut queues, at % QUEUES, SocketAddr::new(local, port), remote);
                assert_eq!(answered, queue, "the answer to port {port} of {local}");
            }
        }
        // The kernel's own packets are few.
        assert!((1024..1024 + 100).contains(&(probes() - before)), "{before}, then {}", probes());
    }
}

/// Packets that went out to learn (the tenth number of the device's line in proc_pid_net(5)).
fn probes() -> u64 {
    let devices = std::fs::read_to_string("/proc/net/dev").expect("the devices of this namespace");
    let line = devices.lines().find_map(|line| line.trim().strip_prefix("mpsteer0:"));
    line.map_or(0, |line| line.split_whitespace().nth(9).expect("a column").parse().expect("a number"))
}

/// A stack that has each port in use gets none, and those of all stacks are all there are.
#[test]
fn every_port_is_of_one_queue() {
    if !netns::enter("every_port_is_of_one_queue", Duration::from_secs(60)) {
        return;
    }
    let queues = Queue::open("mp%d", 1500, QUEUES).expect("a TUN device");
    let local = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));
    let remote = SocketAddr::from(([10, 77, 0, 1], 7));
    let mut all = HashSet::new();
    for queue in &queues {
        let mut ports = queue.ports().expect("several queues");
        let before = all.len();
        let none = ports.find(local, remote, |port| {
            assert!(all.insert(port), "port {port} twice");
            None::<u16>
        });
        assert_eq!(none.expect("packet sockets"), None);
        let own = all.len() - before;
        assert!((4_000..7_000).contains(&own), "{own} ports of queue {}", queue.number());
    }
    assert_eq!(all.len(), 16_384);
    assert!(Queue::open("one%d", 1500, 1).expect("a TUN device")[0].ports().is_none());
}

/// Where no more ports can be learned, the stacks share out the rest: still each port is
/// of one queue.
#[test]
fn ports_that_cannot_be_learned_are_shared_out() {
    const TEST: &str = "ports_that_cannot_be_learned_are_shared_out";
    if !netns::enter(TEST, Duration::from_secs(60)) {
        return;
    }
    let queues = Queue::open("mp%d", 1500, QUEUES).expect("a TUN device");
    let local = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));
    let remote = SocketAddr::from(([10, 77, 0, 1], 7));
    let mut ports: Vec<_> = queues.iter().map(|queue| queue.ports().expect("several queues")).collect();
    ports[0].find(local, remote, Some).expect("packet sockets").expect("a free port");
    match Command::new("ip").args(["link", "set", "mpsteer0", "down"]).status() {
        Ok(status) => assert!(status.success(), "{status}"),
        Err(error) => return record(TEST, &Skipped::because(format!("no ip: {error}"))),
    }
    let mut taken = [const { Vec::new() }; QUEUES];
    let mut reports = 0;
    for (ports, taken) in ports.iter_mut().zip(&mut taken) {
        let take = |port| {
            taken.push(port);
            None::<u16>
        };
        assert_eq!(ports.find_any(local, remote, take, |_| reports += 1), None);
    }
    assert_eq!(reports, 1);
    let taken: Vec<HashSet<u16>> = taken.into_iter().map(HashSet::from_iter).collect();
    assert!(taken.iter().all(|own| own.len() > 5_000), "a share is small");
    assert_eq!(taken.iter().map(HashSet::len).sum::<usize>(), 16_384);
    assert_eq!(taken.iter().flatten().collect::<HashSet<_>>().len(), 16_384, "a port of two queues");
}

/// Where no more ports can be learned, those that are known are tried all the same. The next time a
/// device is made anew.
#[test]
fn known_ports_outlive_a_failure_to_learn() {
    const TEST: &str = "known_ports_outlive_a_failure_to_learn";
    if !netns::enter(TEST, Duration::from_secs(60)) {
        return;
    }
    let queues = Queue::open("mp%d", 1500, QUEUES).expect("a TUN device");
    let mut ports = queues[0].ports().expect("several queues");
    let local = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));
    let remote = SocketAddr::from(([10, 77, 0, 1], 7));
    let first = ports.find(local, remote, Some).expect("packet sockets").expect("a free port");
    match Command::new("ip").args(["link", "set", "mpsteer0", "down"]).status() {
        Ok(status) => assert!(status.success(), "{status}"),
        Err(error) => return record(TEST, &Skipped::because(format!("no ip: {error}"))),
    }
    let mut tried = HashSet::new();
    let mut refuse = |port| {
        tried.insert(port);
        None::<u16>
    };
    ports.find(local, remote, &mut refuse).expect_err("down");
    let none = ports.find(local, remote, &mut refuse);
    assert_eq!(none.expect("packet sockets"), None);
    assert!(tried.contains(&first));
    let next = ports.find(local, remote, Some).expect("known ports");
    assert!(next.is_some_and(|port| port != first), "{next:?} after {first}");
}

/// Sends a SYN on one queue, and returns that of the first answer.
fn queue_of_answer(queues: &mut [Queue], send_on: usize, local: SocketAddr, remote: SocketAddr) -> usize {
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
    let deadline = Instant::now() + Duration::from_secs(60);
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
