//! The path: a TUN device in each of two namespaces, and what happens to packets between them.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use megapipe::packet::link::Packet;
use megapipe::packet::tun::Tun;
use megapipe::packet::{
    Batch, Capabilities, Checksum, Device, Direction, Faults, Faulty, Frame, Offload, Random, Sum, View,
    pseudo_header, segment,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::UnshareFlags;
use serde::{Deserialize, Serialize};

use super::Path;
use crate::part::{self, Part};
use crate::{Reason, network};

/// A relay, which prints `listening`, and what it has counted whenever a line comes. A flood begins with the first
/// one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Relay {
    pub(super) path: Path,
    pub(super) seed: u64,
    pub(super) network: u8,
}

/// Of what the sender sent, as the relay has seen it: bytes of payload, and answers to a flood.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Counts {
    pub(super) sent: u64,
    pub(super) again: u64,
    pub(super) lost: u64,
    /// Packets of a flood that the sender was sent, and those of them that it has answered.
    pub(super) syns: u64,
    pub(super) answered: u64,
}

/// The kernel's address in the namespace of the sender, and in that of the receiver.
pub(super) const KERNELS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 1, 1), Ipv4Addr::new(10, 77, 2, 1)];

/// Both namespaces reach all of 10.0.0.0/8 through the relay, but for nearer networks of their own.
const PREFIX: u8 = 8;

const MTU: u16 = 1500;

/// Has this namespace forward packets, and learn nothing from one connection for the next.
pub(super) fn forward() -> io::Result<()> {
    fs::write("/proc/sys/net/ipv4/tcp_no_metrics_save", "1")?;
    fs::write("/proc/sys/net/ipv4/ip_forward", "1")
}

impl Part for Relay {
    const NAME: &'static str = "path-relay";

    fn run(self) -> Result<(), Reason> {
        let near = open(&format!("mpr{}", self.network), KERNELS[0])?;
        network::unshare(UnshareFlags::NEWNET)?;
        if self.path.flood == 0 {
            // Else it would send back what is for nobody.
            forward()?;
        }
        let far = open(&format!("mpr{}", self.network), KERNELS[1])?;
        // Timers are 50 us late otherwise, as long as a way of the shortest path (prctl(2)).
        rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
        self.carry(near, far)
    }
}

fn open(name: &str, address: Ipv4Addr) -> Result<Tun, Reason> {
    let tun = Tun::open(name, MTU)?;
    tun.bring_up()?;
    tun.add_kernel_address(IpAddr::V4(address), PREFIX)?;
    Ok(tun)
}

impl Relay {
    fn carry(&self, near: Tun, far: Tun) -> Result<(), Reason> {
        let path = self.path;
        let back = Faults {
            delay: Duration::from_micros(path.rtt / 2),
            rate: path.rate,
            queue: path.queue,
            ..Faults::default()
        };
        let there = Faults {
            loss: path.loss,
            reorder: path.late.0,
            reorder_by: Duration::from_micros(path.late.1),
            ..back
        };
        let device = |tun, faults| {
            let mut device = Faulty::new(Joining { tun, joins: path.gro }, self.seed);
            device.set(Direction::Sent, faults);
            device
        };
        let (mut near, mut far) = (device(near, back), device(far, there));
        let origin = Instant::now();
        let mut batch = Batch::new(1 << 20);
        let mut seen = Seen::default();
        let random = Random::new(self.seed);
        let mut flood = Flood { rate: self.path.flood, begun: None, count: 0, random };
        part::listening("");
        loop {
            let due = [near.deadline(), far.deadline()].into_iter().flatten().min();
            let due = due.into_iter().chain(flood.next(origin.elapsed())).min();
            let wait = due.map(|due| due.saturating_sub(origin.elapsed()));
            let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
            let stdin = rustix::stdio::stdin();
            let mut ready = [
                PollFd::from_borrowed_fd(near.device().tun.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(far.device().tun.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(stdin, PollFlags::IN),
            ];
            // Interrupted is as good as ready: the devices are asked again.
            let _ = poll(&mut ready, wait.as_ref());
            let asked = !ready[2].revents().is_empty();
            while flood.fill(origin.elapsed(), &mut batch) {
                near.device().tun.send(&mut batch)?;
                // What the device did not take is lost.
                batch.clear();
            }
            near.advance(origin.elapsed())?;
            far.advance(origin.elapsed())?;
            while near.device().tun.receive(&mut batch)? > 0 {
                batch.frames().for_each(|frame| seen.note(frame.bytes));
                // Passing on has taken its time: what one end answers is on its way from now on.
                far.advance(origin.elapsed())?;
                far.send(&mut batch)?;
            }
            while far.device().tun.receive(&mut batch)? > 0 {
                near.advance(origin.elapsed())?;
                near.send(&mut batch)?;
            }
            if asked {
                let mut line = String::new();
                if io::stdin().read_line(&mut line)? == 0 {
                    return Ok(());
                }
                flood.begun.get_or_insert(origin.elapsed());
                let (lost, syns) = (far.lost(Direction::Sent), flood.count);
                part::print(&Counts { lost, syns, ..seen.counts })?;
            }
        }
    }
}

/// SYNs to a sender, from addresses that are nobody's.
struct Flood {
    /// A second.
    rate: u32,
    begun: Option<Duration>,
    count: u64,
    random: Random,
}

impl Flood {
    /// When some are due next: a millisecond's at once.
    fn next(&self, now: Duration) -> Option<Duration> {
        self.begun.filter(|_| self.rate > 0).map(|_| now + Duration::from_millis(1))
    }

    /// Fills the batch with those that are due. Returns whether there are any.
    fn fill(&mut self, now: Duration, batch: &mut Batch) -> bool {
        let elapsed = self.begun.map_or(Duration::ZERO, |begun| now.saturating_sub(begun));
        let due = (elapsed.as_secs_f64() * f64::from(self.rate)) as u64;
        while self.count < due && batch.room(SYN.len()).is_ok() {
            self.count += 1;
            let random = self.random.next_u64().to_be_bytes();
            let mut packet = SYN;
            packet[14..16].copy_from_slice(&random[..2]);
            packet[20] |= random[2];
            packet[24..28].copy_from_slice(&random[3..7]);
            let sum = Sum::default().with(&packet[..20]).finish();
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            let sum = pseudo_header(&packet[12..16], &packet[16..20], 6, 20).with(&packet[20..]).finish();
            packet[36..38].copy_from_slice(&sum.to_be_bytes());
            let _ = batch.push(Frame { bytes: &packet, offload: Offload::default() });
        }
        !batch.is_empty()
    }
}

/// Addresses of a flood begin so.
const NOBODY: [u8; 2] = [10, 200];

/// From 10.200.0.0/16, a port from 16,384 on, to the first sender of ours.
const SYN: [u8; 40] = [
    0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 200, 0, 0, 10, 78, 0, 2, 0x40, 9, 0, 7, 0, 0, 0, 0, 0, 0,
    0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0,
];

/// The sender's connections.
#[derive(Default)]
struct Seen {
    /// By ports: one past the highest number that was sent.
    next: HashMap<[u8; 4], u32>,
    counts: Counts,
}

impl Seen {
    fn note(&mut self, packet: &[u8]) {
        let Some(view) = View::of(packet) else { return };
        let Some(payload) = view.tcp_payload(packet) else { return };
        let tcp = &packet[view.transport..];
        if view.addresses(packet).1.starts_with(&NOBODY) {
            self.counts.answered += 1;
            return;
        }
        let seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        let ports = [tcp[0], tcp[1], tcp[2], tcp[3]];
        if tcp[13] & SYN_FLAG != 0 {
            self.next.entry(ports).or_insert(seq.wrapping_add(1));
        }
        // Those of the last measurement have not begun here: the kernel may still repeat their ends.
        let Some(next) = self.next.get_mut(&ports) else { return };
        let len = (view.end - payload) as u32;
        let end = seq.wrapping_add(len);
        let ahead = end.wrapping_sub(*next) as i32;
        let new = ahead.clamp(0, len as i32) as u32;
        self.counts.sent += u64::from(new);
        self.counts.again += u64::from(len - new);
        if ahead > 0 {
            *next = end;
        }
    }
}

/// A device whose kernel gets consecutive segments as one frame, as a card with GRO delivers them.
struct Joining {
    tun: Tun,
    joins: bool,
}

impl Device for Joining {
    fn capabilities(&self) -> Capabilities {
        self.tun.capabilities()
    }

    fn receive(&mut self, batch: &mut Batch) -> io::Result<usize> {
        self.tun.receive(batch)
    }

    fn send(&mut self, batch: &mut Batch) -> io::Result<usize> {
        if !self.joins {
            return self.tun.send(batch);
        }
        let mut frames: Vec<Packet> = Vec::new();
        for next in batch.frames().map(Packet::from) {
            match frames.last_mut().and_then(|last| Some((join(last, &next)?, last))) {
                Some((joined, last)) => *last = joined,
                None => frames.push(next),
            }
        }
        let count = batch.len();
        batch.clear();
        for frame in &frames {
            // It has room: these are no more frames, and no more bytes, than there were.
            let _ = batch.push(frame.frame());
        }
        while !batch.is_empty() && self.tun.send(batch)? > 0 {}
        batch.clear();
        Ok(count)
    }
}

/// A frame and the segment that follows it, as one frame; `None`: it does not follow, or the frame has ended with a
/// shorter segment or with PSH.
fn join(frame: &Packet, next: &Packet) -> Option<Packet> {
    let (view, other) = (View::of(&frame.bytes)?, View::of(&next.bytes)?);
    let len = view.end - view.tcp_payload(&frame.bytes)?;
    let added = other.end - other.tcp_payload(&next.bytes)?;
    let size = if frame.offload.segment > 0 { usize::from(frame.offload.segment) } else { len };
    let has_ended = frame.bytes[view.transport + 13] & PSH_FLAG != 0 || !len.is_multiple_of(size);
    if has_ended || added > size {
        return None;
    }
    let mut joined = segment::join(frame, next)?;
    let view = View::of(&joined.bytes)?;
    let (source, destination) = view.addresses(&joined.bytes);
    let sum = pseudo_header(source, destination, view.protocol.0, view.end - view.transport).folded();
    let field = view.transport + CHECKSUM;
    joined.bytes[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    let checksum = Checksum::Partial { start: view.transport as u16, field: CHECKSUM as u16 };
    joined.offload = Offload { checksum, segment: size as u16 };
    Some(joined)
}

const SYN_FLAG: u8 = 0x02;
const PSH_FLAG: u8 = 0x08;

/// Where a TCP header has its checksum.
const CHECKSUM: usize = 16;
