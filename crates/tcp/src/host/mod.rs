//! A host: addresses, bytes, connections. What programs, devices and tests use.

mod calls;
pub(crate) mod icmp;
pub(crate) mod ip;
mod output;
pub(crate) mod store;
mod stream;

use std::hint::black_box;
use std::net::IpAddr;

use arrayvec::ArrayVec;
use packet::pump::Endpoint;
use packet::{Batch, Capabilities, Frame, Offload, Prefix, Protocol};

use crate::config::{Config, Profile};
use crate::control::{Control, Cubic};
use crate::core::address::Address;
use crate::core::input::{BURST, Burst};
use crate::core::queue::Queue;
use crate::core::seq::{Seq, Span};
use crate::core::tuple::Tuple;
use crate::core::{Keep, Segment, Stack, Verdict};
use crate::event::{Event, Ready, Reason};
use crate::time::Time;
use icmp::{Answers, Refusal};
use ip::Packet;
use store::Pages;

pub use calls::{Read, ReadError, WriteError};
pub use stream::Stream;

/// A TCP endpoint of its own, for the addresses that it was given.
///
/// It has no device and no clock. Its user
/// 1. hands it received packets: [`input`](Host::input);
/// 2. tells it the time: [`advance`](Host::advance), at the latest at its
///    [`deadline`](Host::deadline);
/// 3. takes [`event`](Host::event)s and makes calls: [`accept`](Host::accept),
///    [`read`](Host::read), [`write`](Host::write), [`close`](Host::close);
/// 4. sends what [`output`](Host::output) puts into a batch, until there is no more.
///
/// All memory is reserved when it is made. It is used by one thread.
pub struct Host<C: Control = Cubic> {
    pub(crate) stack: Stack<C>,
    pub(crate) store: Store,
    addresses: Vec<Prefix>,
    capabilities: Capabilities,
    answers: Answers,
    /// Flows that found no page to write to.
    starved: Queue,
    hops: u8,
}

/// The bytes of all flows.
pub(crate) struct Store {
    pub(crate) received: Pages,
    pub(crate) sent: Pages,
    pub(crate) streams: Vec<Streams>,
}

/// The bytes of one flow.
#[derive(Clone, Copy, Default)]
pub(crate) struct Streams {
    pub(crate) received: store::Stream,
    pub(crate) sent: store::Stream,
}

impl Host<Cubic> {
    /// A host with CUBIC congestion control. The seed must be unpredictable: sequence numbers,
    /// ports and the order of tables follow from it.
    pub fn new(config: Config, seed: [u8; 32]) -> Host<Cubic> {
        Host::with_control(config, seed, Cubic)
    }
}

impl<C: Control> Host<C> {
    /// A host with this congestion control.
    pub fn with_control(config: Config, seed: [u8; 32], control: C) -> Host<C> {
        let mut config = config;
        if !config.capabilities.checksum {
            // Segments are cut behind the checksum.
            config.capabilities.segment = 0;
        }
        // Half of the sequence numbers is the most that has an order.
        let limits = &mut config.limits;
        limits.receive_buffer = limits.receive_buffer.clamp(1, 1 << 30);
        limits.send_buffer = limits.send_buffer.clamp(1, 1 << 30);
        // Four bits of a flow count how often it doubles.
        let least = limits.receive_buffer.div_ceil(1 << 15);
        limits.first_receive_buffer = limits.first_receive_buffer.clamp(least, limits.receive_buffer);
        limits.first_send_buffer = limits.first_send_buffer.clamp(1, limits.send_buffer);
        let limits = config.limits;
        Host {
            stack: Stack::new(&config, seed, control),
            store: Store {
                received: Pages::new(limits.receive_pages),
                sent: Pages::new(limits.send_pages),
                streams: vec![Streams::default(); limits.flows],
            },
            addresses: config.addresses,
            capabilities: config.capabilities,
            answers: Answers::new(config.hop_limit),
            starved: Queue::new(limits.flows),
            hops: config.hop_limit,
        }
    }

    /// Its times.
    pub fn profile(&self) -> &Profile {
        &self.stack.profile
    }

    /// Takes received packets.
    pub fn input<'a>(&mut self, now: Time, frames: impl IntoIterator<Item = Frame<'a>>) {
        self.bursts(now, frames.into_iter(), None);
    }

    /// As [`input`](Host::input), for one of several hosts with the same addresses. A packet about a
    /// connection that is not here, or for a port without a listener, goes to `pass_on`, which
    /// returns whether another host gets it. If not, it is answered here.
    pub fn input_shared<'a>(
        &mut self,
        now: Time,
        frames: impl IntoIterator<Item = Frame<'a>>,
        mut pass_on: impl FnMut(Frame<'a>) -> bool,
    ) {
        self.bursts(now, frames.into_iter(), Some(&mut pass_on));
    }

    fn bursts<'a>(
        &mut self,
        now: Time,
        mut frames: impl Iterator<Item = Frame<'a>>,
        mut pass_on: Option<&mut dyn FnMut(Frame<'a>) -> bool>,
    ) {
        let mut segments: Segments<'_> = Default::default();
        let mut sources = Sources::new();
        loop {
            let mut taken = 0;
            for frame in frames.by_ref().take(BURST) {
                taken += 1;
                match self.packet(now, &frame, &mut segments) {
                    Ok(Content::Segment) if pass_on.is_some() => sources.push(frame),
                    Ok(Content::Segment | Content::Done) => {}
                    Ok(Content::Stranger) => {
                        // Nobody is owed an answer to an error.
                        let _ = pass_on.as_mut().is_some_and(|pass_on| pass_on(frame));
                    }
                    Err(reason) => self.stack.refused[reason as usize] += 1,
                }
            }
            let mut keeper = Keeper {
                store: &mut self.store,
                payloads: &segments.1,
                pass_on: |index: usize| pass_on.as_mut().is_some_and(|pass_on| pass_on(sources[index])),
            };
            self.stack.input(now, &segments.0, &mut keeper);
            self.tidy();
            if taken < BURST {
                return;
            }
            segments.0.clear();
            segments.1.clear();
            sources.clear();
        }
    }

    /// Reads one packet. Adds a TCP segment and its payload; everything else is done here.
    #[inline]
    fn packet<'a>(
        &mut self,
        now: Time,
        frame: &Frame<'a>,
        into: &mut Segments<'a>,
    ) -> Result<Content, Reason> {
        match frame.bytes.first().ok_or(Reason::Malformed)? >> 4 {
            4 => self.content(now, frame, ip::parse_v4(frame.bytes)?, into),
            6 => self.packet_v6(now, frame, into),
            _ => Err(Reason::Malformed),
        }
    }

    /// Apart, so that what is read of an IPv4 header stays in registers.
    #[inline(never)]
    fn packet_v6<'a>(
        &mut self,
        now: Time,
        frame: &Frame<'a>,
        into: &mut Segments<'a>,
    ) -> Result<Content, Reason> {
        self.content(now, frame, ip::parse_v6(frame.bytes)?, into)
    }

    #[inline(always)]
    fn content<'a>(
        &mut self,
        now: Time,
        frame: &Frame<'a>,
        packet: Packet<'a>,
        into: &mut Segments<'a>,
    ) -> Result<Content, Reason> {
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.2.3
        //# An incoming SYN with an invalid source address MUST be ignored either by TCP or by the IP layer
        //# [(MUST-63)] (see Section 3.2.1.3).
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.2.3
        //# A TCP implementation MUST silently discard an incoming SYN segment that is addressed to a broadcast or
        //# multicast address [(MUST-57)].
        if !self.has_address(packet.destination) || !packet.source.is_unicast() {
            return Err(Reason::Address);
        }
        if packet.protocol != Protocol::TCP {
            return self.no_segment(now, frame.bytes);
        }
        let (segment, payload) = segment(&packet, frame.offload)?;
        into.0.push(segment);
        into.1.push(payload);
        Ok(Content::Segment)
    }

    /// ICMP, and what the host does not speak. It reads the packet once more: handing it over would have
    /// each packet written to memory.
    #[inline(never)]
    fn no_segment(&mut self, now: Time, bytes: &[u8]) -> Result<Content, Reason> {
        let packet = &ip::parse(bytes)?;
        if matches!(packet.protocol, Protocol::ICMP | Protocol::ICMPV6) {
            let Some(quoted) = self.answers.input(packet)? else { return Ok(Content::Done) };
            let known = self.stack.trouble(now, &quoted.tuple, quoted.seq, quoted.trouble);
            return Ok(if known { Content::Done } else { Content::Stranger });
        }
        if icmp::may_be_refused(packet) {
            let port = packet.protocol == Protocol::UDP;
            let refusal = if port { Refusal::Port } else { Refusal::Protocol };
            self.answers.refuse(now, packet, refusal);
        }
        Err(Reason::Protocol)
    }

    fn has_address(&self, address: Address) -> bool {
        address.is_unicast() && self.addresses.iter().any(|prefix| prefix.contains(address.into()))
    }

    /// Whether a program can have this address here.
    pub(crate) fn owns(&self, address: IpAddr) -> bool {
        is_for_the_wire(address) && self.has_address(address.into())
    }

    /// Does what is due at this time.
    #[inline]
    pub fn advance(&mut self, now: Time) {
        self.stack.advance(now);
        self.tidy();
    }

    /// When [`advance`](Host::advance) has something to do next; possibly a little early.
    pub fn deadline(&self) -> Option<Time> {
        self.stack.deadline()
    }

    /// The next event. There are no more until something else is called.
    #[inline]
    pub fn event(&mut self) -> Option<Event> {
        self.stack.event()
    }

    /// Puts packets into the batch until it is full or there are no more. Returns whether there
    /// are more. An empty batch has to have room for the longest frame of the device.
    pub fn output(&mut self, now: Time, batch: &mut Batch) -> bool {
        if !icmp::drain(&mut self.answers, batch) {
            return true;
        }
        let room = self.store.received.room();
        let mut writer = output::Writer {
            batch,
            store: &mut self.store,
            checksum: self.capabilities.checksum,
            hops: self.hops,
        };
        let more = self.stack.output(now, room, &mut writer);
        self.tidy();
        more
    }

    /// Packets and segments that were dropped for this reason.
    pub fn refused(&self, reason: Reason) -> u64 {
        self.stack.refused[reason as usize]
    }

    /// Frees the bytes of flows that are over, and wakes those that wait for pages.
    #[inline]
    pub(crate) fn tidy(&mut self) {
        if self.stack.has_over() {
            self.reap();
        }
        if !self.starved.is_empty() {
            self.wake_starved();
        }
    }

    fn reap(&mut self) {
        while let Some(slot) = self.stack.reap() {
            self.store.drop_flow(slot);
        }
    }

    fn wake_starved(&mut self) {
        while self.store.sent.room() > 0
            && let Some(slot) = self.starved.pop()
        {
            self.stack.wake_writer(slot);
        }
    }
}

impl<C: Control> Endpoint for Host<C> {
    type Time = Time;

    fn input<'a>(&mut self, now: Time, frames: impl Iterator<Item = Frame<'a>>) {
        Host::input(self, now, frames);
    }

    fn advance(&mut self, now: Time) {
        Host::advance(self, now);
    }

    fn deadline(&self) -> Option<Time> {
        Host::deadline(self)
    }

    fn output(&mut self, now: Time, batch: &mut Batch) -> bool {
        Host::output(self, now, batch)
    }
}

/// Whether a program can ask for this address: not for IPv4-mapped ones (RFC 4291, 2.5).
pub(crate) fn is_for_the_wire(address: IpAddr) -> bool {
    address == address.to_canonical()
}

/// Finds header and payload of a TCP segment, and verifies its checksum (RFC 9293, MUST-3).
#[inline(always)]
fn segment<'a>(packet: &Packet<'a>, offload: Offload) -> Result<(Segment<'a>, &'a [u8]), Reason> {
    let fixed = packet.payload.first_chunk::<20>().ok_or(Reason::Malformed)?;
    let len = usize::from(fixed[12] >> 4) * 4;
    if len < 20 || len > packet.payload.len() {
        return Err(Reason::Malformed);
    }
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
    //# The sender MUST generate it (MUST-2) and the receiver MUST check it (MUST-3).
    if !ip::checksum_is_valid(packet, offload.checksum) {
        return Err(Reason::Checksum);
    }
    let (header, payload) = packet.payload.split_at(len);
    let port = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
    let tuple = Tuple::between((packet.destination, port(2)), (packet.source, port(0)));
    let (len, size) = (payload.len() as u32, offload.segment);
    let segment = Segment { tuple, header, len, size, marked: packet.marked };
    Ok((segment, payload))
}

impl Store {
    fn drop_flow(&mut self, slot: u32) {
        let streams = &mut self.streams[slot as usize];
        self.received.clear(&mut streams.received);
        self.sent.clear(&mut streams.sent);
    }
}

/// The segments of a burst, and their payloads.
type Segments<'a> = (Burst<'a>, ArrayVec<&'a [u8], BURST>);

/// The packets that they are from, where hosts share their addresses.
type Sources<'a> = ArrayVec<Frame<'a>, BURST>;

/// What a packet held.
enum Content {
    /// A TCP segment.
    Segment,
    /// Something that is done with.
    Done,
    /// An ICMP error about a connection that is not here.
    Stranger,
}

/// Copies payloads into the store, as the engine decides.
struct Keeper<'a, P> {
    store: &'a mut Store,
    payloads: &'a [&'a [u8]],
    pass_on: P,
}

impl<P: FnMut(usize) -> bool> Keep for Keeper<'_, P> {
    fn pass_on(&mut self, index: usize) -> bool {
        (self.pass_on)(index)
    }

    fn touch(&self, slot: u32) {
        black_box(self.store.streams.get(slot as usize).map(|streams| streams.received));
    }

    #[inline]
    fn has_room(&mut self, slot: u32, span: Span, behind_gap: bool) -> bool {
        let received = &self.store.received;
        let spare = if behind_gap { received.count() / 4 } else { 0 };
        received.has_room(&self.store.streams[slot as usize].received, span, spare)
    }

    #[inline]
    fn verdict(&mut self, index: usize, verdict: Verdict) {
        if let Verdict::Take { slot, at, skip, len } = verdict {
            let payload = &self.payloads[index][skip as usize..(skip + len) as usize];
            let stream = &mut self.store.streams[slot as usize].received;
            let written = self.store.received.write(stream, at, payload);
            debug_assert_eq!(written, payload.len(), "the engine asked whether there was room");
        }
    }

    fn evict(&mut self, slot: u32, end: Seq) {
        self.store.received.truncate(&mut self.store.streams[slot as usize].received, end);
    }

    fn acknowledged(&mut self, slot: u32, upto: Seq) {
        self.store.sent.release(&mut self.store.streams[slot as usize].sent, upto);
    }
}

impl<C: Control> Stack<C> {
    fn wake_writer(&mut self, slot: u32) {
        if self.flows.is_taken(slot) {
            self.happen(slot, Ready::WRITABLE);
        }
    }
}
