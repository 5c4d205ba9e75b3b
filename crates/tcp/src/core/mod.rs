//! The engine: it moves sequence numbers, not bytes.
//!
//! Headers go in, verdicts about their payloads come out ([`Keep`]); headers with ranges of
//! sequence numbers come out ([`Emit`]). The bytes are the business of [`host`](crate::host).
//!
//! | question | file |
//! |---|---|
//! | which record does a segment belong to? | `index`, `tuple`, `address`, `table` |
//! | what does it change? | `predicted`, for what everybody expects; else `input`, in the order of RFC 9293, 3.10.7; `ack`, `ecn`, `receive`, `handshake`, `cookies`, `wait` |
//! | what was lost? | `rack`, `sent` |
//! | how large are segments? | `search`, `icmp` |
//! | what may be sent? | `transmit`, `pace`, `reduce`, `output`; `single` where there is no block |
//! | when next? | `timers`, `wheel` |
//! | what may it hold? | `buffers` |
//! | what does the program want? | `calls`, `chosen` |

pub(crate) mod ack;
pub(crate) mod address;
pub(crate) mod blocks;
pub(crate) mod buffers;
pub(crate) mod calls;
pub(crate) mod challenges;
pub(crate) mod chosen;
pub(crate) mod cookies;
pub(crate) mod ecn;
pub(crate) mod few;
pub(crate) mod flow;
pub(crate) mod handshake;
pub(crate) mod icmp;
pub(crate) mod index;
pub(crate) mod input;
pub(crate) mod listen;
pub(crate) mod output;
pub(crate) mod pace;
pub(crate) mod predicted;
pub(crate) mod queue;
pub(crate) mod rack;
pub(crate) mod receive;
pub(crate) mod reduce;
pub(crate) mod search;
pub(crate) mod secret;
pub(crate) mod sent;
pub(crate) mod seq;
pub(crate) mod single;
pub(crate) mod state;
pub(crate) mod table;
pub(crate) mod timers;
pub(crate) mod transmit;
pub(crate) mod tuple;
pub(crate) mod wait;
pub(crate) mod wheel;
pub(crate) mod wire;

use std::collections::VecDeque;

use chosen::Choices;
use flow::{Cold, Hot, Lasting, NO_COLD, Ranges};
use index::{Index, Kind};
use listen::{Listening, Syn};
use queue::Queue;
use secret::Secret;
use sent::Records;
use seq::{Seq, Span};
use table::Table;
use tuple::Tuple;
use wait::Wait;
use wheel::Wheel;
use wire::{Head, Plain};

use crate::config::{Config, Limits, Marking, Offers, Profile};
use crate::control::Control;
use crate::event::{Flow, REASONS, Ready, Reason};
use crate::host::store::PAGE;
use crate::time::Time;

/// The least that a link carries (RFC 791, 3.2; RFC 8200, 5).
const MTU_MIN_V4: u16 = 68;
const MTU_MIN_V6: u16 = 1280;

/// A receive buffer grows when the program reads one part in so many of it within a round trip.
const PARTS: u32 = 4;

/// Segments that belong to no flow and wait to be sent: RSTs, SYN-ACKs, ACKs of TIME_WAIT.
/// Further ones are dropped; the peer repeats what they answer.
const REPLIES: usize = 256;

/// A received segment, without its payload.
#[derive(Clone, Copy)]
pub(crate) struct Segment<'a> {
    pub(crate) tuple: Tuple,
    /// The TCP header with its options.
    pub(crate) header: &'a [u8],
    /// Bytes of payload.
    pub(crate) len: u32,
    /// Payload of each of the segments that were joined into this one; 0 if it is one.
    pub(crate) size: u16,
    /// A router has marked it (RFC 3168, 5: CE).
    pub(crate) marked: bool,
}

/// What becomes of a segment's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing is to be kept.
    Nothing,
    Refused(Reason),
    /// Keep `len` bytes from `skip` on, at `at` of the flow's stream.
    Take {
        slot: u32,
        at: Seq,
        skip: u32,
        len: u32,
    },
}

/// The store of received bytes.
pub(crate) trait Keep {
    /// Loads what later calls for this flow need: nothing waits for it, so that loads of different
    /// flows overlap.
    fn touch(&self, slot: u32);
    /// Whether these bytes can be kept. Those behind a gap stay for as long as the peer likes, and
    /// leave a quarter of all room to others.
    fn has_room(&mut self, slot: u32, span: Span, behind_gap: bool) -> bool;
    /// What becomes of the payload of segment `index` of the burst.
    fn verdict(&mut self, index: usize, verdict: Verdict);
    /// The engine forgets out-of-order bytes; the store must, too. Nothing is needed from `end` on,
    /// where a page may lie that the forgotten range only began in.
    fn evict(&mut self, slot: u32, end: Seq);
    /// Everything that the flow has sent before this is acknowledged.
    fn acknowledged(&mut self, slot: u32, upto: Seq);
    /// Nothing here knows segment `index` of the burst. Whether another stack may: then it is not
    /// answered.
    fn pass_on(&mut self, index: usize) -> bool;
}

/// There is no room for another frame.
pub(crate) struct Full;

/// A segment to be sent.
pub(crate) struct Outgoing<'a> {
    pub(crate) tuple: &'a Tuple,
    /// The flow that the data is from.
    pub(crate) slot: u32,
    pub(crate) head: &'a Head,
    /// Separate from the header's sequence number: a probe has no data, a FIN takes a number.
    pub(crate) data: Span,
    /// Payload of each segment; 0 if it is one.
    pub(crate) size: u16,
    pub(crate) marking: Marking,
}

/// Takes segments.
pub(crate) trait Emit {
    /// An acknowledgement and no more. After an error it does not count as sent.
    fn acknowledgement(&mut self, tuple: &Tuple, head: &Plain, marking: Marking) -> Result<(), Full>;
    /// After an error nothing of it counts as sent.
    fn segment(&mut self, segment: &Outgoing<'_>) -> Result<(), Full>;
}

/// A segment that belongs to no flow.
struct Reply {
    tuple: Tuple,
    head: Head,
    marking: Marking,
}

/// All flows of one core.
pub(crate) struct Stack<C: Control> {
    pub(crate) limits: Limits,
    pub(crate) profile: Profile,
    pub(crate) offers: Offers,
    icmp_ends_attempts: bool,
    pub(crate) mtu: u16,
    /// Longest payload of a frame that the device cuts; 0 if it cuts none.
    pub(crate) gso: u32,
    /// The binary logarithm of a part of a new connection's receive buffer.
    part_bits: u32,
    /// What all connections together can receive.
    received_bytes: u32,
    control: C,
    /// When something was last done.
    now: Time,
    secret: Secret,
    index: Index,
    /// The flow of the last segment: the next one often is of the same.
    last: u32,
    pub(crate) flows: Table<Hot>,
    pub(crate) colds: Table<Cold<C::Memory>>,
    pub(crate) records: Records,
    pub(crate) ranges: Ranges,
    /// By the flow's slot, as far as slots were ever used.
    pub(crate) lasting: Vec<Lasting<C::Memory>>,
    /// Blocks with something that a peer has left there.
    holding: usize,
    pub(crate) choices: Choices,
    syns: Table<Syn>,
    waits: Table<Wait>,
    pub(crate) listeners: Table<Listening>,
    wheel: Wheel,
    /// Flows that may have something to send.
    ready: Queue,
    /// Flows with data to send and no block for it, the one that has waited longest first.
    waiting: Queue,
    /// Flows to which something has happened.
    happened: Queue,
    /// Listeners with connections to accept.
    incoming: Queue,
    asks: VecDeque<u32>,
    /// The last SYN cookies hold until then.
    cookies_until: Time,
    /// Flows that are over and have no handle: the host drops their bytes, then they are freed.
    over: Queue,
    replies: VecDeque<Reply>,
    /// Where the search for the oldest half-open connection and TIME_WAIT goes on.
    syn_hand: u32,
    wait_hand: u32,
    /// Likewise for connections that the program has closed, and for blocks.
    orphan_hand: u32,
    cold_hand: u32,
    pub(crate) refused: [u64; REASONS],
}

impl<C: Control> Stack<C> {
    pub(crate) fn new(config: &Config, seed: [u8; 32], control: C) -> Stack<C> {
        let limits = config.limits;
        let entries = limits.flows + limits.half_open + limits.time_wait;
        // An IP packet has at most 65,535 bytes, headers included.
        let gso = (config.capabilities.segment.min(65_535) as u32).saturating_sub(120);
        let secret = Secret::new(seed, config.initial);
        Stack {
            limits,
            profile: config.profile,
            offers: config.offers,
            icmp_ends_attempts: config.icmp_ends_attempts,
            mtu: config.capabilities.mtu.clamp(usize::from(MTU_MIN_V4), 65_535) as u16,
            gso,
            part_bits: (limits.first_receive_buffer / PARTS).max(1).ilog2(),
            received_bytes: u32::try_from(limits.receive_pages).unwrap_or(u32::MAX).saturating_mul(PAGE),
            control,
            now: Time::default(),
            last: 0,
            secret,
            index: Index::new(entries),
            flows: Table::new(limits.flows),
            colds: Table::new(limits.active),
            // Beside the first block of each flow: one for each four pages that can be filled, which
            // leaves segments of 512 bytes a record each.
            records: Records::new(limits.active, limits.send_pages / 4),
            ranges: Ranges::new(limits.active, limits.receive_pages / 8),
            lasting: Vec::with_capacity(limits.flows),
            holding: 0,
            choices: Choices::new(limits.flows),
            syns: Table::new(limits.half_open),
            waits: Table::new(limits.time_wait),
            listeners: Table::new(limits.listeners),
            wheel: Wheel::new(entries),
            ready: Queue::new(limits.flows),
            waiting: Queue::new(limits.flows),
            happened: Queue::new(limits.flows),
            incoming: Queue::new(limits.listeners),
            asks: VecDeque::with_capacity(limits.half_open),
            cookies_until: Time::default(),
            over: Queue::new(limits.flows),
            replies: VecDeque::with_capacity(REPLIES),
            syn_hand: 0,
            wait_hand: 0,
            orphan_hand: 0,
            cold_hand: 0,
            refused: [0; REASONS],
        }
    }

    /// The slot of a handle, if its flow still exists.
    pub(crate) fn slot(&self, flow: Flow) -> Option<u32> {
        let Flow { slot, generation } = flow;
        (self.flows.is_taken(slot) && self.flows.generation(slot) == generation).then_some(slot)
    }

    pub(crate) fn handle(&self, slot: u32) -> Flow {
        Flow { slot, generation: self.flows.generation(slot) }
    }

    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.7.1
    //# where MMS_R is the maximum size for a transport-layer message that can be received (and reassembled at
    //# the IP layer) (MUST-67).
    /// Payload of a segment without options that fits the path (RFC 9293, MUST-16; RFC 6691).
    fn path_mss(&self, tuple: &Tuple) -> u16 {
        if tuple.is_v6() { self.mtu.max(MTU_MIN_V6) - 60 } else { self.mtu - 40 }
    }

    /// The shift of the windows that we send: the least that can offer the whole buffer.
    fn window_scale(&self) -> u8 {
        (0..14).find(|&scale| 65_535u32 << scale >= self.limits.receive_buffer).unwrap_or(14)
    }

    /// The window of our SYN, which is never scaled (RFC 7323, 2.2).
    fn first_window(&self) -> u32 {
        self.limits.first_receive_buffer.min(65_535)
    }

    fn refuse(&mut self, reason: Reason) -> Verdict {
        self.refused[reason as usize] += 1;
        Verdict::Refused(reason)
    }

    fn reply(&mut self, tuple: Tuple, head: Head) {
        self.reply_marked(tuple, head, Marking::HOST);
    }

    fn reply_marked(&mut self, tuple: Tuple, head: Head, marking: Marking) {
        if self.replies.len() < REPLIES {
            self.replies.push_back(Reply { tuple, head, marking });
        }
    }

    /// Reports something to the program.
    #[inline]
    pub(crate) fn happen(&mut self, slot: u32, what: Ready) {
        let hot = &mut self.flows[slot];
        if !hot.has(flow::flag::ORPHAN) {
            hot.ready.add(what);
            self.happened.push(slot);
        }
    }

    /// The flow's block for outstanding things, if there is or can be one.
    fn warm(&mut self, slot: u32) -> Option<u32> {
        let hot = &mut self.flows[slot];
        if hot.cold == NO_COLD {
            let is_single = Self::is_single(hot);
            hot.cold = self.colds.insert_reset(Cold::reset)?;
            self.colds[hot.cold].slot = slot;
            if is_single {
                self.adopt(slot);
            }
        }
        Some(self.flows[slot].cold)
    }

    /// The same, for what a peer can leave there for as long as it likes: it leaves a quarter of the
    /// blocks to flows that send.
    fn warm_to_hold(&mut self, slot: u32) -> Option<u32> {
        let all = self.colds.bound();
        let used = match self.flows[slot].cold {
            NO_COLD => self.colds.len(),
            cold if self.colds[cold].holds => return Some(cold),
            // It may be there for longer than what is sent.
            _ => self.holding,
        };
        if used + all.div_ceil(4) >= all {
            return None;
        }
        let cold = self.warm(slot)?;
        self.colds[cold].holds = true;
        self.holding += 1;
        Some(cold)
    }

    /// Returns the block once nothing is outstanding.
    fn cool(&mut self, slot: u32) {
        let hot = &mut self.flows[slot];
        if hot.cold == NO_COLD {
            return;
        }
        let cold = &mut self.colds[hot.cold];
        if cold.holds && !cold.is_holding() {
            cold.holds = false;
            self.holding -= 1;
        }
        if cold.is_idle() {
            self.colds.remove(hot.cold);
            hot.cold = NO_COLD;
        }
    }

    /// Removes a flow from the index, so that no segment finds it any more.
    fn unindex(&mut self, slot: u32) {
        let hash = self.secret.hash(&self.flows[slot].tuple);
        self.index.remove(hash, Kind::Flow, slot);
    }

    /// Owners of wheel nodes: flows, then half-open connections, then TIME_WAIT.
    fn syn_owner(&self, slot: u32) -> u32 {
        self.limits.flows as u32 + slot
    }

    fn wait_owner(&self, slot: u32) -> u32 {
        (self.limits.flows + self.limits.half_open) as u32 + slot
    }
}
