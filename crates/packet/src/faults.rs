//! A device that misbehaves: repeatable faults over any other device.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::time::Duration;

use crate::link::Packet;
use crate::segment;
use crate::view::View;
use crate::{Batch, Capabilities, Checksum, Device};

/// Repeatable random numbers (SplitMix64). For tests: anybody can predict them.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound.max(1)
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && ((self.next_u64() >> 11) as f64) < probability * (1u64 << 53) as f64
    }
}

/// What happens to the packets of one direction. Chances are between 0 and 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Chance of being lost.
    pub loss: f64,
    /// The longest packet that is not lost; 0 for no limit.
    pub longest: usize,
    /// Chance of arriving twice.
    pub duplicate: f64,
    /// Chance of being held back by `reorder_by`, so that later packets overtake.
    pub reorder: f64,
    /// How long such a packet is held back.
    pub reorder_by: Duration,
    /// How long every packet travels.
    pub delay: Duration,
    /// Chance of one flipped bit.
    pub corrupt: f64,
    /// Bytes a second; 0 for no limit.
    pub rate: u64,
    /// Bytes that wait for the rate at most; further packets are lost. 0 for no limit.
    pub queue: u64,
    /// Chance of a congestion mark on a packet whose sender is capable of ECN.
    pub mark: f64,
    /// Chance that a TCP segment is cut in two or three.
    pub cut: f64,
    /// Chance that a TCP segment is held, to be joined with the one that follows it.
    pub join: f64,
    /// Chance that a TCP segment comes with bytes of the one before it.
    pub overlap: f64,
}

/// Which way packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From this device to its user.
    Received,
    /// From the user to this device.
    Sent,
}

/// A device with faults in each direction. Frames that stand for several segments are split
/// before anything happens to them, and come out with completed checksums.
pub struct Faulty<D> {
    device: D,
    sent: Path,
    received: Path,
    now: Duration,
    scratch: Batch,
}

impl<D: Device> Faulty<D> {
    /// Wraps a device; nothing goes wrong until [`Faulty::set`] says so.
    pub fn new(device: D, seed: u64) -> Faulty<D> {
        let mut random = Random::new(seed);
        Faulty {
            device,
            sent: Path::new(random.next_u64()),
            received: Path::new(random.next_u64()),
            now: Duration::ZERO,
            scratch: Batch::new(1 << 18),
        }
    }

    /// What goes wrong from now on in this direction.
    pub fn set(&mut self, direction: Direction, faults: Faults) {
        match direction {
            Direction::Sent => self.sent.faults = faults,
            Direction::Received => self.received.faults = faults,
        }
    }

    /// Moves the clock, and passes on what is due.
    pub fn advance(&mut self, now: Duration) -> io::Result<()> {
        self.now = now;
        self.flush()
    }

    /// TCP payload bytes that were lost so far in this direction, in a full queue or damaged, too.
    pub fn lost(&self, direction: Direction) -> u64 {
        match direction {
            Direction::Sent => self.sent.lost,
            Direction::Received => self.received.lost,
        }
    }

    /// When the next packet is due, if one is on its way.
    pub fn deadline(&self) -> Option<Duration> {
        [self.sent.deadline(), self.received.deadline()].into_iter().flatten().min()
    }

    /// The device below.
    pub fn device(&mut self) -> &mut D {
        &mut self.device
    }

    fn flush(&mut self) -> io::Result<()> {
        loop {
            while let Some(packet) = self.sent.due(self.now) {
                if self.scratch.push(packet.frame()).is_err() {
                    self.sent.put_back(packet);
                    break;
                }
            }
            if self.scratch.is_empty() {
                return Ok(());
            }
            if self.device.send(&mut self.scratch)? == 0 {
                // Busy: what does not fit is lost, as behind a full queue.
                self.scratch.clear();
            }
        }
    }
}

impl<D: Device> Device for Faulty<D> {
    fn capabilities(&self) -> Capabilities {
        self.device.capabilities()
    }

    fn receive(&mut self, batch: &mut Batch) -> io::Result<usize> {
        let mut arrived = std::mem::replace(&mut self.scratch, Batch::new(0));
        let result = loop {
            match self.device.receive(&mut arrived) {
                Ok(0) => break Ok(()),
                Ok(_) => {
                    for frame in arrived.frames() {
                        self.received.take(frame, self.now);
                    }
                    arrived.clear();
                }
                Err(error) => break Err(error),
            }
        };
        self.scratch = arrived;
        result?;
        let mut count = 0;
        while let Some(packet) = self.received.due(self.now) {
            if batch.push(packet.frame()).is_err() {
                self.received.put_back(packet);
                break;
            }
            count += 1;
        }
        Ok(count)
    }

    fn send(&mut self, batch: &mut Batch) -> io::Result<usize> {
        let mut count = 0;
        while let Some(frame) = batch.first() {
            self.sent.take(frame, self.now);
            batch.remove_first();
            count += 1;
        }
        self.flush()?;
        Ok(count)
    }
}

/// One direction: what is on its way.
struct Path {
    faults: Faults,
    random: Random,
    flying: BinaryHeap<Reverse<Flying>>,
    /// Ties in time are broken by this, so that order is kept.
    count: u64,
    /// When the last byte leaves a link of limited rate.
    busy_until: Duration,
    /// The last TCP segment: what the next is joined with or overlaps.
    last: Option<Packet>,
    held: Option<(Packet, Duration)>,
    /// TCP payload bytes that were lost.
    lost: u64,
}

struct Flying {
    due: Duration,
    count: u64,
    packet: Packet,
}

impl PartialEq for Flying {
    fn eq(&self, other: &Flying) -> bool {
        self.count == other.count
    }
}

impl Eq for Flying {}

impl PartialOrd for Flying {
    fn partial_cmp(&self, other: &Flying) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Flying {
    fn cmp(&self, other: &Flying) -> std::cmp::Ordering {
        (self.due, self.count).cmp(&(other.due, other.count))
    }
}

/// How long a packet that was held for joining waits for the next.
const HELD_FOR: Duration = Duration::from_micros(200);

impl Path {
    fn new(seed: u64) -> Path {
        Path {
            faults: Faults::default(),
            random: Random::new(seed),
            flying: BinaryHeap::new(),
            count: 0,
            busy_until: Duration::ZERO,
            last: None,
            held: None,
            lost: 0,
        }
    }

    fn take(&mut self, frame: crate::Frame<'_>, now: Duration) {
        if self.faults == Faults::default() {
            return self.fly(frame.into(), now);
        }
        for packet in segment::split(frame) {
            self.shape(packet, now);
        }
    }

    /// Cuts, joins and overlaps.
    fn shape(&mut self, mut packet: Packet, now: Duration) {
        if let Some((held, _)) = self.held.take() {
            match segment::join(&held, &packet) {
                Some(joined) => packet = joined,
                None => self.spoil(held, now),
            }
        }
        if self.random.chance(self.faults.join) {
            self.last = None;
            self.held = Some((packet, now + HELD_FOR));
            return;
        }
        if self.random.chance(self.faults.overlap) {
            let back = 1 + self.random.below(1000) as usize;
            if let Some(longer) = self.last.as_ref().and_then(|last| segment::overlap(last, &packet, back)) {
                packet = longer;
            }
        }
        self.last = Some(packet.clone());
        if self.random.chance(self.faults.cut) && packet.bytes.len() > 60 {
            let len = packet.bytes.len() as u64;
            let mut cuts = [self.random.below(len) as usize, self.random.below(len) as usize];
            cuts.sort_unstable();
            for piece in segment::cut(&packet, &cuts) {
                self.spoil(piece, now);
            }
        } else {
            self.spoil(packet, now);
        }
    }

    /// Loses, marks, corrupts, repeats and delays.
    fn spoil(&mut self, mut packet: Packet, now: Duration) {
        let faults = self.faults;
        let is_too_long = faults.longest > 0 && packet.bytes.len() > faults.longest;
        if is_too_long || self.random.chance(faults.loss) {
            return self.lose(&packet);
        }
        if self.random.chance(faults.mark) {
            segment::mark_congestion(&mut packet);
        }
        if self.random.chance(faults.duplicate) {
            self.depart(packet.clone(), now);
        }
        if self.random.chance(faults.corrupt) && !packet.bytes.is_empty() {
            let bit = self.random.below(packet.bytes.len() as u64 * 8) as usize;
            packet.bytes[bit / 8] ^= 1 << (bit % 8);
            packet.offload.checksum = Checksum::Complete;
            self.lose(&packet);
        }
        self.depart(packet, now);
    }

    /// Rate, queue, delay and reordering.
    fn depart(&mut self, packet: Packet, now: Duration) {
        let faults = self.faults;
        let mut at = now;
        if faults.rate > 0 {
            let waiting = self.busy_until.saturating_sub(now).as_secs_f64() * faults.rate as f64;
            if faults.queue > 0 && waiting > faults.queue as f64 {
                return self.lose(&packet);
            }
            let time = Duration::from_secs_f64(packet.bytes.len() as f64 / faults.rate as f64);
            self.busy_until = self.busy_until.max(now) + time;
            at = self.busy_until;
        }
        at += faults.delay;
        if self.random.chance(faults.reorder) {
            at += faults.reorder_by;
        }
        self.fly(packet, at);
    }

    fn lose(&mut self, packet: &Packet) {
        let bytes = &packet.bytes[..];
        let view = View::of(bytes);
        let payload = view.and_then(|view| Some(view.end - view.tcp_payload(bytes)?));
        self.lost += payload.unwrap_or(0) as u64;
    }

    fn fly(&mut self, packet: Packet, due: Duration) {
        self.count += 1;
        self.flying.push(Reverse(Flying { due, count: self.count, packet }));
    }

    fn due(&mut self, now: Duration) -> Option<Packet> {
        if let Some((held, until)) = self.held.take() {
            if until <= now {
                self.spoil(held, now);
            } else {
                self.held = Some((held, until));
            }
        }
        let ready = self.flying.peek().is_some_and(|next| next.0.due <= now);
        if ready { self.flying.pop().map(|next| next.0.packet) } else { None }
    }

    /// Takes back a packet for which the other side has no room yet: it is the next again.
    fn put_back(&mut self, packet: Packet) {
        self.flying.push(Reverse(Flying { due: Duration::ZERO, count: 0, packet }));
    }

    fn deadline(&self) -> Option<Duration> {
        let held = self.held.as_ref().map(|held| held.1);
        self.flying.peek().map(|next| next.0.due).into_iter().chain(held).min()
    }
}
