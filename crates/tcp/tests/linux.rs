//! Linux as the peer, over a TUN device, as a user without privileges: its sockets are on one
//! side, a host of ours on the other.
use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use packet::tun::Tun;
use packet::{Batch, Device, Direction, Faults, Faulty};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tcp::{Config, Event, Flow, Host, Pattern, Prefix, Read, Ready, Time};
use testkit::netns;

const BOUND: Duration = Duration::from_secs(120);
const PORT: u16 = 7;

fn address(last: u16, v6: bool) -> IpAddr {
    if v6 {
        IpAddr::V6(Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, last))
    } else {
        IpAddr::V4(Ipv4Addr::new(10, 78, 0, last as u8))
    }
}

fn device(mtu: u16) -> Tun {
    let tun = Tun::open("mp%d", mtu).expect("a TUN device");
    tun.bring_up().expect("up");
    tun.add_kernel_address(address(1, false), 24).expect("an IPv4 address");
    if mtu >= 1280 {
        tun.add_kernel_address(address(1, true), 64).expect("an IPv6 address");
    }
    tun
}

fn host(tun: &Tun) -> Host {
    let addresses = vec![Prefix::one(address(2, false)), Prefix::one(address(2, true))];
    Host::new(Config::new(addresses, tun.capabilities()), [7; 32])
}

/// A host on a device, driven by the machine's clock.
struct Driver {
    host: Host,
    device: Faulty<Tun>,
    origin: Instant,
    into: Batch,
    out: Batch,
}

impl Driver {
    fn new(tun: Tun, faults: Faults) -> Driver {
        let host = host(&tun);
        let mut device = Faulty::new(tun, 1);
        device.set(Direction::Sent, faults);
        device.set(Direction::Received, faults);
        Driver { host, device, origin: Instant::now(), into: Batch::new(1 << 20), out: Batch::new(1 << 20) }
    }

    fn now(&self) -> Time {
        Time::from_micros(self.origin.elapsed().as_micros() as u64)
    }

    /// Sends, sleeps until something arrives or is due, receives.
    fn turn(&mut self) {
        let now = self.now();
        self.device.advance(Duration::from_micros(now.micros())).expect("the device");
        let mut more = true;
        while more {
            more = self.host.output(now, &mut self.out);
            self.device.send(&mut self.out).expect("the device");
        }
        let due = self.device.deadline().map(|at| Time::from_micros(at.as_nanos().div_ceil(1000) as u64));
        let deadline = [self.host.deadline(), due].into_iter().flatten().min();
        let wait =
            deadline.map_or(Duration::from_millis(20), |at| at.since(now)).min(Duration::from_millis(20));
        let timeout = Timespec { tv_sec: 0, tv_nsec: wait.as_nanos() as i64 };
        let fd = self.device.device().as_fd().try_clone_to_owned().expect("a descriptor");
        let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout));
        let now = self.now();
        self.device.advance(Duration::from_micros(now.micros())).expect("the device");
        self.into.clear();
        self.device.receive(&mut self.into).expect("the device");
        self.host.input(now, self.into.frames());
        self.host.advance(now);
    }
}

/// An echo server on the host, until it is told to stop. Returns the connections it served.
fn echo_server(tun: Tun, faults: Faults, stop: &Arc<AtomicBool>) -> JoinHandle<usize> {
    let stop = stop.clone();
    let mut driver = Driver::new(tun, faults);
    let pattern = Pattern { address: None, port: Some(PORT) };
    let listener = driver.host.listen(pattern, 64).expect("a listener");
    thread::spawn(move || {
        let mut served = 0;
        let mut pending: HashMap<Flow, Vec<u8>> = HashMap::new();
        while !stop.load(Ordering::Relaxed) {
            driver.turn();
            let now = driver.now();
            while let Some(event) = driver.host.event() {
                match event {
                    Event::Incoming(_) => {
                        while let Some(flow) = driver.host.accept(listener) {
                            pending.insert(flow, Vec::new());
                            served += 1;
                        }
                    }
                    Event::Flow { flow, ready, .. } => {
                        if ready.has(Ready::FAILED) || !echo(&mut driver.host, now, flow, &mut pending) {
                            pending.remove(&flow);
                            driver.host.close(now, flow);
                        }
                    }
                    Event::Ask { .. } => {}
                }
            }
        }
        served
    })
}

/// Writes back what came. False at the end.
fn echo(host: &mut Host, now: Time, flow: Flow, pending: &mut HashMap<Flow, Vec<u8>>) -> bool {
    let Some(queue) = pending.get_mut(&flow) else { return true };
    let mut buffer = vec![0; 64 << 10];
    loop {
        let Ok(written) = host.write(now, flow, queue) else { return false };
        queue.drain(..written);
        if !queue.is_empty() {
            return true;
        }
        match host.read(now, flow, &mut buffer) {
            Ok(Read::Bytes(len)) => queue.extend_from_slice(&buffer[..len]),
            Ok(Read::Empty) => return true,
            Ok(Read::End) | Err(_) => return false,
        }
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i ^ (i >> 8).wrapping_mul(31)) as u8).collect()
}

/// A Linux client writes and reads back `len` bytes at once, both directions at the same time.
fn linux_client(remote: SocketAddr, len: usize) {
    let mut stream = TcpStream::connect_timeout(&remote, Duration::from_secs(20)).expect("connect");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let mut writer = stream.try_clone().expect("clone");
    let bytes = pattern(len);
    let expected = bytes.clone();
    let writing = thread::spawn(move || {
        writer.write_all(&bytes).expect("write");
        writer.shutdown(Shutdown::Write).expect("shutdown");
    });
    let mut all = Vec::new();
    stream.read_to_end(&mut all).expect("read");
    writing.join().expect("the writer");
    assert!(all == expected, "{} of {len} bytes came back", all.len());
}

/// Linux connects: small and large, both families, many at once.
#[test]
fn linux_clients_talk_to_our_server() {
    if !netns::enter("linux_clients_talk_to_our_server", BOUND) {
        return;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let server = echo_server(device(1500), Faults::default(), &stop);
    for v6 in [false, true] {
        let remote = SocketAddr::new(address(2, v6), PORT);
        for len in [1, 1_000, 100_000, 8_000_000] {
            linux_client(remote, len);
        }
        let clients: Vec<_> = (0..20).map(|_| thread::spawn(move || linux_client(remote, 5_000))).collect();
        clients.into_iter().for_each(|client| client.join().expect("a client"));
    }
    let refused = TcpStream::connect(SocketAddr::new(address(2, false), 9)).expect_err("nobody listens");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    stop.store(true, Ordering::Relaxed);
    assert_eq!(server.join().expect("the server"), 48);
}

/// Packet sizes from the least to jumbo.
#[test]
fn linux_clients_with_other_mtus() {
    if !netns::enter("linux_clients_with_other_mtus", BOUND) {
        return;
    }
    for mtu in [576, 1280, 9000] {
        let stop = Arc::new(AtomicBool::new(false));
        let server = echo_server(device(mtu), Faults::default(), &stop);
        for v6 in [false, true] {
            if mtu >= 1280 || !v6 {
                linux_client(SocketAddr::new(address(2, v6), PORT), 300_000);
            }
        }
        stop.store(true, Ordering::Relaxed);
        server.join().expect("the server");
    }
}

/// Packets are lost, repeated, reordered, cut, joined and overlap, both ways.
#[test]
fn linux_clients_over_a_bad_path() {
    if !netns::enter("linux_clients_over_a_bad_path", BOUND) {
        return;
    }
    let faults = Faults {
        loss: 0.01,
        duplicate: 0.01,
        reorder: 0.02,
        reorder_by: Duration::from_millis(2),
        cut: 0.05,
        join: 0.05,
        overlap: 0.05,
        corrupt: 0.005,
        ..Faults::default()
    };
    let stop = Arc::new(AtomicBool::new(false));
    let server = echo_server(device(1500), faults, &stop);
    for v6 in [false, true] {
        linux_client(SocketAddr::new(address(2, v6), PORT), 1_000_000);
    }
    stop.store(true, Ordering::Relaxed);
    server.join().expect("the server");
}

/// Our host connects to a Linux server, which closes first.
#[test]
fn we_connect_to_a_linux_server() {
    if !netns::enter("we_connect_to_a_linux_server", BOUND) {
        return;
    }
    for v6 in [false, true] {
        let tun = device(1500);
        let listener = TcpListener::bind((address(1, v6), 0)).expect("bind");
        let remote = listener.local_addr().expect("an address");
        let bytes = pattern(2_000_000);
        let expected = bytes.clone();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("accept");
            let mut question = vec![0; 8];
            stream.read_exact(&mut question).expect("read");
            assert_eq!(question, b"question");
            stream.write_all(&bytes).expect("write");
        });
        let mut driver = Driver::new(tun, Faults::default());
        let flow = driver.host.connect(driver.now(), None, None, remote).expect("a flow");
        let mut received = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        let deadline = Instant::now() + Duration::from_secs(60);
        'talk: while Instant::now() < deadline {
            driver.turn();
            let now = driver.now();
            while let Some(event) = driver.host.event() {
                if let Event::Flow { ready, .. } = event
                    && ready.has(Ready::CONNECTED)
                {
                    assert_eq!(driver.host.write(now, flow, b"question"), Ok(8));
                }
            }
            loop {
                match driver.host.read(now, flow, &mut buffer).expect("readable") {
                    Read::Bytes(len) => received.extend_from_slice(&buffer[..len]),
                    Read::Empty => break,
                    Read::End => break 'talk,
                }
            }
        }
        assert!(received == expected, "{} bytes", received.len());
        driver.host.close(driver.now(), flow);
        while driver.host.live_flows().count() > 0 && Instant::now() < deadline {
            driver.turn();
        }
        assert_eq!(driver.host.live_flows().count(), 0);
        server.join().expect("the server");
    }
}
