//! Our end: a host on a TUN device, driven by the machine's clock.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use packet::tun::Tun;
use packet::{Batch, Checksum, Device, Direction, Faults, Faulty, Frame, View};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tcp::{Config, Event, Flow, Host, Initial, Listener, Pattern, Prefix, Read, Ready, Reason, Time};

use crate::exchange::{Load, Stream};

pub(crate) const PORT: u16 = 7;
const PIECE: usize = 64 << 10;

/// The address of Linux (1) or of ours (2).
pub(crate) fn address(last: u16, v6: bool) -> IpAddr {
    if v6 {
        IpAddr::V6(Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, last))
    } else {
        IpAddr::V4(Ipv4Addr::new(10, 78, 0, last as u8))
    }
}

/// Frames of one direction that take some care.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// With a checksum that is to be completed.
    pub(crate) partial: u64,
    /// For several segments, of which the last has an odd length of its own.
    pub(crate) odd_tails: u64,
}

impl Seen {
    pub(crate) fn add(&mut self, other: Seen) {
        self.partial += other.partial;
        self.odd_tails += other.odd_tails;
    }

    fn note(&mut self, frame: &Frame<'_>) {
        self.partial += u64::from(matches!(frame.offload.checksum, Checksum::Partial { .. }));
        let segment = usize::from(frame.offload.segment);
        let header = View::of(frame.bytes).and_then(|view| view.tcp_payload(frame.bytes));
        if let Some(header) = header
            && segment > 0
        {
            self.odd_tails += u64::from((frame.bytes.len() - header) % segment % 2 == 1);
        }
    }
}

/// What a connection still has to do.
struct Work {
    sends: Stream,
    receives: Stream,
    ended: bool,
}

/// A host whose connections exchange a load with Linux.
pub(crate) struct Ours {
    pub(crate) host: Host,
    device: Faulty<Tun>,
    load: Load,
    listener: Option<Listener>,
    flows: HashMap<Flow, Work>,
    /// Connections that have done their work.
    pub(crate) finished: usize,
    pub(crate) received: Seen,
    pub(crate) sent: Seen,
    origin: Instant,
    into: Batch,
    out: Batch,
    piece: Vec<u8>,
    expected: Vec<u8>,
}

impl Ours {
    /// On a new device. Faults happen both ways.
    pub(crate) fn new(mtu: u16, faults: Faults, initial: Initial, load: Load) -> Ours {
        let tun = Tun::open("mp%d", mtu).expect("a TUN device");
        tun.bring_up().expect("up");
        tun.add_kernel_address(address(1, false), 24).expect("an IPv4 address");
        if mtu >= 1280 {
            tun.add_kernel_address(address(1, true), 64).expect("an IPv6 address");
        }
        let addresses = vec![Prefix::one(address(2, false)), Prefix::one(address(2, true))];
        let config = Config { initial, ..Config::new(addresses, tun.capabilities()) };
        let mut device = Faulty::new(tun, 1);
        device.set(Direction::Sent, faults);
        device.set(Direction::Received, faults);
        Ours {
            host: Host::new(config, [7; 32]),
            device,
            load,
            listener: None,
            flows: HashMap::new(),
            finished: 0,
            received: Seen::default(),
            sent: Seen::default(),
            origin: Instant::now(),
            into: Batch::new(1 << 20),
            out: Batch::new(1 << 20),
            piece: vec![0; PIECE],
            expected: vec![0; PIECE],
        }
    }

    fn now(&self) -> Time {
        Time::from_micros(self.origin.elapsed().as_micros() as u64)
    }

    /// Listens, and takes the connections that come.
    pub(crate) fn listen(&mut self) {
        let listener = self.listen_only(64);
        self.listener = Some(listener);
    }

    /// Listens, and takes none until [`accept_from`](Ours::accept_from).
    pub(crate) fn listen_only(&mut self, backlog: usize) -> Listener {
        let pattern = Pattern { address: None, port: Some(PORT) };
        self.host.listen(pattern, backlog).expect("a listener")
    }

    pub(crate) fn accept_from(&mut self, listener: Listener) {
        self.listener = Some(listener);
        self.accept(listener);
    }

    pub(crate) fn connect(&mut self, remote: SocketAddr) {
        let flow = self.host.connect(self.now(), None, None, remote).expect("a flow");
        self.flows.insert(flow, self.work());
    }

    /// Goes on until so many connections have done their work and are over.
    pub(crate) fn run(&mut self, connections: usize, bound: Duration) {
        let deadline = Instant::now() + bound;
        while self.finished < connections || self.host.live_flows().count() > 0 {
            assert!(Instant::now() < deadline, "{} of {connections} are done", self.finished);
            self.turn();
        }
    }

    /// Sends, sleeps until something arrives or is due, receives, and does the work that comes of it.
    pub(crate) fn turn(&mut self) {
        self.send();
        self.sleep();
        let now = self.now();
        self.device.advance(Duration::from_micros(now.micros())).expect("the device");
        self.into.clear();
        self.device.receive(&mut self.into).expect("the device");
        self.into.frames().for_each(|frame| self.received.note(&frame));
        self.host.input(now, self.into.frames());
        self.host.advance(now);
        while let Some(event) = self.host.event() {
            match event {
                Event::Incoming(listener) if self.listener == Some(listener) => self.accept(listener),
                Event::Flow { flow, ready, .. } => self.work_on(now, flow, ready),
                Event::Incoming(_) | Event::Ask { .. } => {}
            }
        }
    }

    /// Sends what there is to send.
    pub(crate) fn send(&mut self) {
        let now = self.now();
        self.device.advance(Duration::from_micros(now.micros())).expect("the device");
        let mut more = true;
        while more {
            more = self.host.output(now, &mut self.out);
            self.out.frames().for_each(|frame| self.sent.note(&frame));
            self.device.send(&mut self.out).expect("the device");
        }
    }

    fn sleep(&mut self) {
        const LONGEST: Duration = Duration::from_millis(20);
        let now = self.now();
        let due = self.device.deadline().map(|at| Time::from_micros(at.as_nanos().div_ceil(1000) as u64));
        let deadline = [self.host.deadline(), due].into_iter().flatten().min();
        let wait = deadline.map_or(LONGEST, |at| at.since(now)).min(LONGEST);
        let timeout = Timespec { tv_sec: 0, tv_nsec: wait.as_nanos() as i64 };
        let _ = poll(&mut [PollFd::new(&self.device.device().as_fd(), PollFlags::IN)], Some(&timeout));
    }

    fn work(&self) -> Work {
        Work { sends: Stream::to_linux(self.load), receives: Stream::from_linux(self.load), ended: false }
    }

    fn accept(&mut self, listener: Listener) {
        while let Some(flow) = self.host.accept(listener) {
            let work = self.work();
            self.flows.insert(flow, work);
            self.work_on(self.now(), flow, Ready::default());
        }
    }

    /// Writes while there is room, reads what is there, closes at the end of both streams.
    fn work_on(&mut self, now: Time, flow: Flow, ready: Ready) {
        let Some(work) = self.flows.get_mut(&flow) else { return };
        let host = &mut self.host;
        assert!(!ready.has(Ready::FAILED), "a connection failed: {:?}", host.read(now, flow, &mut [0]));
        while !work.sends.is_done() {
            let bytes = work.sends.next(&mut self.piece, self.load.write);
            let taken = host.write(now, flow, bytes).expect("it is open");
            let all = taken == bytes.len();
            work.sends.sent(taken);
            if !all {
                break;
            }
        }
        if work.sends.is_done() {
            host.shutdown(now, flow);
        }
        while !work.ended {
            match host.read(now, flow, &mut self.piece).expect("it is open") {
                Read::Bytes(len) => work.receives.arrived(&self.piece[..len], &mut self.expected),
                Read::Empty => break,
                Read::End => work.ended = true,
            }
        }
        if work.ended && work.sends.is_done() {
            assert!(work.receives.is_done(), "the stream from Linux ended early");
            host.close(now, flow);
            self.flows.remove(&flow);
            self.finished += 1;
        }
    }

    /// Segments for which there was no place in the queue of connections to be accepted.
    pub(crate) fn overflows(&self) -> u64 {
        self.host.refused(Reason::Backlog)
    }
}
