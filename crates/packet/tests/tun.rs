//! The TUN device against the kernel's own sockets: UDP datagrams out, an answer back in.
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use packet::group::Queue;
use packet::tun::{OpenError, Tun};
use packet::{Batch, Device, View};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use testkit::netns;
use testkit::skip::{self, Skipped};

/// What the kernel sends to an address behind the device arrives; with source and destination
/// swapped, the same bytes are an answer that the kernel's socket takes.
#[test]
fn datagrams_go_out_and_come_back() {
    if !netns::enter("datagrams_go_out_and_come_back", Duration::from_secs(60)) {
        return;
    }
    let mut tun = Tun::open("mp%d", 1500).expect("a TUN device");
    let kernel4 = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
    let kernel6 = IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1));
    tun.bring_up().expect("up");
    match Command::new("ip").args(["link", "show", tun.name()]).output() {
        Ok(shown) => {
            let shown = String::from_utf8_lossy(&shown.stdout);
            assert!(shown.contains("qlen 4096"), "the queue is no longer: {shown}");
        }
        Err(error) => println!("SKIPPED the length of the queue: ip: {error}"),
    }
    tun.add_kernel_address(kernel4, 24).expect("an IPv4 address");
    tun.add_kernel_address(kernel6, 64).expect("an IPv6 address");
    for (kernel, other) in [
        (kernel4, IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2))),
        (kernel6, IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2))),
    ] {
        let socket = UdpSocket::bind((kernel, 0)).expect("bind");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        socket.connect((other, 9)).expect("connect");
        socket.send(b"there and back").expect("send");
        let mut answer = answer_to_datagram(&mut tun);
        let mut batch = Batch::new(1 << 16);
        answer.offload = packet::Offload::default();
        batch.push(answer.frame()).expect("room");
        assert_eq!(tun.send(&mut batch).expect("send"), 1);
        let mut bytes = [0; 64];
        let (len, from) = socket.recv_from(&mut bytes).expect("an answer");
        assert_eq!((&bytes[..len], from), (&b"there and back"[..], SocketAddr::new(other, 9)));
    }
}

fn answer_to_datagram(tun: &mut Tun) -> packet::link::Packet {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut batch = Batch::new(1 << 18);
    while Instant::now() < deadline {
        batch.clear();
        match tun.receive(&mut batch) {
            Ok(0) => std::thread::sleep(Duration::from_millis(1)),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
        for frame in batch.frames() {
            let Some(view) = View::of(frame.bytes) else { continue };
            if view.protocol != packet::Protocol::UDP {
                continue;
            }
            let mut bytes = frame.bytes.to_vec();
            let (at, len) = if view.v6 { (8, 16) } else { (12, 4) };
            let (source, destination) = bytes[at..at + 2 * len].split_at_mut(len);
            source.swap_with_slice(destination);
            let t = view.transport;
            let (source, destination) = bytes[t..t + 4].split_at_mut(2);
            source.swap_with_slice(destination);
            // Swapping leaves the sum as it was, but the kernel left it to be completed.
            bytes[t + 6..t + 8].fill(0);
            let sum = view.transport_sum(&bytes).finish();
            bytes[t + 6..t + 8].copy_from_slice(&sum.to_be_bytes());
            return packet::link::Packet::complete(bytes);
        }
    }
    panic!("the datagram did not arrive");
}

/// The kernel lets a user join a device of its own; a second program must not get part of
/// the flows.
#[test]
fn a_device_that_is_in_use_is_refused_by_name() {
    if !netns::enter("a_device_that_is_in_use_is_refused_by_name", Duration::from_secs(60)) {
        return;
    }
    let queues = Tun::open_queues("mp0", 1500, 2).expect("a TUN device");
    for again in [1, 2] {
        let refused = Tun::open_queues("mp0", 1500, again).map(drop).expect_err("the device is in use");
        assert!(matches!(&refused, OpenError::Exists { name, .. } if name == "mp0"), "{refused:?}");
        assert!(refused.to_string().contains("a device mp0 already"), "{refused}");
    }
    let refused = Tun::open("lo", 1500).map(drop).expect_err("lo is no TUN device");
    assert!(matches!(refused, OpenError::Exists { .. }), "{refused:?}");
    drop(queues);
    Tun::open("mp0", 1500).expect("the name is free again");
}

/// An administrator makes such a device for several programs.
#[test]
fn queues_of_a_persistent_device_may_be_shared() {
    const NAME: &str = "queues_of_a_persistent_device_may_be_shared";
    if !netns::enter(NAME, Duration::from_secs(60)) {
        return;
    }
    let mut add = Command::new("ip");
    add.args(["tuntap", "add", "mp0", "mode", "tun", "multi_queue"]);
    match add.status() {
        Err(error) => return skip::record(NAME, &Skipped::because(format!("ip: {error}"))),
        Ok(status) => assert!(status.success()),
    }
    let one = Tun::open_queues("mp0", 1500, 2).expect("queues");
    let other = Tun::open_queues("mp0", 1500, 2).expect("further queues");
    assert_eq!((one[1].name(), other[1].name()), ("mp0", "mp0"));
}

/// A child has a descriptor of the same epoll set as its parent, and still sleeps on it.
#[test]
fn a_stack_that_is_gone_leaves_its_signal_to_a_forked_child() {
    if !netns::enter("a_stack_that_is_gone_leaves_its_signal_to_a_forked_child", Duration::from_secs(60)) {
        return;
    }
    let mut queues = Queue::open("mp0", 1500, 2).expect("queues");
    let signal = queues[0].signal().try_clone_to_owned().expect("a descriptor");
    queues[0].tun().bring_up().expect("up");
    queues[0].tun().add_kernel_address(Ipv4Addr::new(10, 77, 0, 1).into(), 24).expect("an address");
    queues[0].join();
    queues[0].leave();
    // By its addresses and ports each is of one of the queues.
    for _ in 0..64 {
        let socket = UdpSocket::bind("10.77.0.1:0").expect("bind");
        socket.send_to(b"for either queue", "10.77.0.2:9").expect("send");
    }
    let mut ready = [PollFd::new(&signal, PollFlags::IN)];
    assert_eq!(poll(&mut ready, Some(&Timespec::default())).expect("poll"), 1);
}
