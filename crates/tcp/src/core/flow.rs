//! A connection: two cache lines that always exist, and a block while something is outstanding.

use super::blocks::{List, Pool};
use super::challenges::Challenges;
use super::few::Few;
use super::pace::{Delivery, Pace, Pipe, Undo, Usage};
use super::reduce::Reduction;
use super::sent::Flight;
use super::seq::{Seq, Span};
use super::state::State;
use super::tuple::Tuple;
use crate::control::Window;
use crate::event::{Failure, Ready};
use crate::time::{Deadline, Time};

/// Boolean facts of a flow.
pub(crate) mod flag {
    /// Small segments are not held back (RFC 9293, MUST-17).
    pub(crate) const NO_DELAY: u16 = 1;
    pub(crate) const KEEP_ALIVE: u16 = 1 << 1;
    /// Both endpoints sent the timestamps option with their SYN.
    pub(crate) const TIMESTAMPS: u16 = 1 << 2;
    /// Both endpoints permit SACK.
    pub(crate) const SACK: u16 = 1 << 3;
    /// The program has no more to send.
    pub(crate) const FIN: u16 = 1 << 4;
    /// The program has closed its handle.
    pub(crate) const ORPHAN: u16 = 1 << 5;
    pub(crate) const ACK_NOW: u16 = 1 << 6;
    pub(crate) const SYN_NOW: u16 = 1 << 7;
    /// A keep-alive or zero-window probe is due.
    pub(crate) const PROBE: u16 = 1 << 8;
    /// Send what there is, however small: the override timer has expired.
    pub(crate) const PUSH: u16 = 1 << 9;
    pub(crate) const SYN_REPEATED: u16 = 1 << 10;
    pub(crate) const FIN_RECEIVED: u16 = 1 << 11;
    /// Retransmit one segment, whatever is in flight: a timer has expired.
    pub(crate) const FORCE: u16 = 1 << 12;
    /// A tail loss probe is due.
    pub(crate) const TAIL_PROBE: u16 = 1 << 13;
    /// Accepted by the stack, not yet by the program.
    pub(crate) const UNACCEPTED: u16 = 1 << 14;
    /// The program has set a time within which the peer has to acknowledge everything.
    pub(crate) const LINGER: u16 = 1 << 15;
}

/// Facts of explicit congestion notification, of a flow.
pub(crate) mod ecn {
    /// Both endpoints do it.
    pub(crate) const ON: u8 = 1 << 4;
    /// The peer is to reduce its window.
    pub(crate) const ECHO: u8 = 1 << 5;
    /// The window was reduced, which the peer has to learn.
    pub(crate) const REDUCED: u8 = 1 << 6;
}

/// No block.
pub(crate) const NO_COLD: u32 = u32::MAX;

/// What a flow needs for each segment.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(crate) struct Hot {
    // First cache line.
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.1
    //# At all other times, a previous segment has either been sent or received on this connection, and TCP
    //# implementations MUST use the same local address that was used in those previous segments (MUST- 45).
    pub(crate) tuple: Tuple,
    pub(crate) state: State,
    pub(crate) failure: Option<Failure>,
    pub(crate) flags: u16,
    pub(crate) rcv_nxt: Seq,
    /// The right edge of the window that the peer was offered.
    pub(crate) rcv_edge: Seq,
    pub(crate) snd_una: Seq,
    pub(crate) snd_nxt: Seq,
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
    //# It is RECOMMENDED that implementations will reserve 32-bit fields for the send and receive window
    //# sizes in the connection record and do all window computations with 32 bits (REC- 1).
    pub(crate) snd_wnd: u32,
    pub(crate) ts_recent: u32,
    // Second cache line.
    /// Whatever the program wants to find with an event.
    pub(crate) owner: u32,
    pub(crate) cold: u32,
    /// The end of what the program has queued.
    pub(crate) snd_end: Seq,
    /// SND.WL1: sequence number of the last segment that updated the window. WL2 would never
    /// decide: what gets that far acknowledges at least `snd_una`.
    pub(crate) snd_wl1: Seq,
    /// The acknowledgement that was sent last.
    pub(crate) rcv_acked: Seq,
    /// What the program has read.
    pub(crate) rcv_read: Seq,
    pub(crate) window: Window,
    /// Smoothed round-trip time in microseconds; 0 before the first measurement.
    pub(crate) srtt: u32,
    pub(crate) rttvar: u32,
    pub(crate) ts_offset: u32,
    /// Retransmission, tail probe, reordering, zero-window probe: whichever is next.
    pub(crate) send_at: Deadline,
    pub(crate) ack_at: Deadline,
    /// Keep-alive, FIN-WAIT-2, TIME-WAIT, linger: by state.
    pub(crate) life_at: Deadline,
    /// Payload of a segment without options: the peer's limit and the path's.
    pub(crate) mss: u16,
    /// Shift of the windows that the peer sends (lower four bits) and that we send.
    pub(crate) scales: u8,
    pub(crate) backoff: u8,
    pub(crate) ready: Ready,
    /// Acknowledgements that are still sent without delay (lower three bits), and the binary
    /// logarithm of the largest window that the peer has offered.
    pub(crate) quick_and_largest: u8,
    /// Unanswered probes.
    pub(crate) probes: u8,
    /// How often the receive buffer has doubled (lower four bits), and flags of congestion notification.
    pub(crate) grown_and_ecn: u8,
}

const _: () = assert!(size_of::<Hot>() == 128 && align_of::<Hot>() == 64);

impl Hot {
    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    pub(crate) fn set(&mut self, flag: u16) {
        self.flags |= flag;
    }

    pub(crate) fn clear(&mut self, flag: u16) {
        self.flags &= !flag;
    }

    pub(crate) fn has_ecn(&self, flag: u8) -> bool {
        self.grown_and_ecn & flag != 0
    }

    pub(crate) fn set_ecn(&mut self, flag: u8) {
        self.grown_and_ecn |= flag;
    }

    pub(crate) fn clear_ecn(&mut self, flag: u8) {
        self.grown_and_ecn &= !flag;
    }

    /// How often the receive buffer has doubled.
    pub(crate) fn grown(&self) -> u32 {
        u32::from(self.grown_and_ecn & 15)
    }

    /// Removes a flag, and returns whether it was there.
    pub(crate) fn take(&mut self, flag: u16) -> bool {
        let had = self.has(flag);
        self.clear(flag);
        had
    }

    pub(crate) fn snd_scale(&self) -> u32 {
        u32::from(self.scales & 15)
    }

    pub(crate) fn rcv_scale(&self) -> u32 {
        u32::from(self.scales >> 4)
    }

    /// The largest window that the peer has offered, rounded down to a power of two.
    pub(crate) fn largest_window(&self) -> u32 {
        1 << (self.quick_and_largest >> 3)
    }

    /// The peer offers a window.
    #[inline]
    pub(crate) fn offered(&mut self, window: u32) {
        if window == self.snd_wnd {
            return;
        }
        let largest = window.max(1).ilog2().max(u32::from(self.quick_and_largest >> 3));
        self.quick_and_largest = (largest as u8) << 3 | self.quick_and_largest & 7;
        self.snd_wnd = window;
    }

    /// The right edge of the peer's window.
    pub(crate) fn snd_edge(&self) -> Seq {
        self.snd_una + self.snd_wnd
    }

    /// The end of what will be sent, the FIN included.
    pub(crate) fn snd_limit(&self) -> Seq {
        if self.has(flag::FIN) { self.snd_end + 1 } else { self.snd_end }
    }

    pub(crate) fn fin_is_sent(&self) -> bool {
        self.has(flag::FIN) && self.snd_nxt == self.snd_end + 1
    }

    /// Bytes, and a FIN, that are sent and not acknowledged.
    pub(crate) fn outstanding(&self) -> u32 {
        self.snd_nxt - self.snd_una
    }

    /// Whether nothing is outstanding, to be sent or held.
    pub(crate) fn is_quiet(&self) -> bool {
        self.cold == NO_COLD && self.snd_una == self.snd_limit()
    }

    /// The end of the bytes that the program can read.
    pub(crate) fn readable_end(&self) -> Seq {
        if self.has(flag::FIN_RECEIVED) { self.rcv_nxt - 1 } else { self.rcv_nxt }
    }

    /// All that has arrived is acknowledged.
    pub(crate) fn acknowledged(&mut self) {
        self.rcv_acked = self.rcv_nxt;
        self.ack_at = Deadline::NONE;
        self.clear(flag::ACK_NOW);
        if self.quick_and_largest & 7 > 0 {
            self.quick_and_largest -= 1;
        }
    }

    /// Whether an acknowledgement is owed.
    pub(crate) fn owes_ack(&self) -> bool {
        self.has(flag::ACK_NOW) || self.rcv_acked != self.rcv_nxt
    }
}

/// Out-of-order bytes that are held, of all flows.
pub(crate) type Ranges = Pool<Span>;

/// Ranges that are remembered as the youngest: as many as two segments report.
pub(crate) const YOUNG: usize = 8;

/// State of RACK (RFC 8985, 5.3).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rack {
    /// When the most recently sent of all delivered segments was sent, and where it ends.
    pub(crate) xmit_at: Time,
    pub(crate) end: Seq,
    /// Its round trip, and the least of all, in microseconds; 0 before the first.
    pub(crate) rtt: u32,
    pub(crate) min_rtt: u32,
    /// The highest sequence number delivered.
    pub(crate) fack: Seq,
    pub(crate) reordering_seen: bool,
    /// Multiple of a quarter of the least round-trip time.
    pub(crate) wnd_mult: u8,
    /// Recoveries after which the multiple is 1 again.
    pub(crate) wnd_persist: u8,
    /// A DSACK counts once a round trip, which is over when this is acknowledged.
    pub(crate) dsack_round: Seq,
    pub(crate) in_dsack_round: bool,
}

impl Default for Rack {
    fn default() -> Rack {
        Rack {
            xmit_at: Time::default(),
            end: Seq::default(),
            rtt: 0,
            min_rtt: 0,
            fack: Seq::default(),
            reordering_seen: false,
            wnd_mult: 1,
            wnd_persist: 0,
            dsack_round: Seq::default(),
            in_dsack_round: false,
        }
    }
}

/// An unanswered tail loss probe (RFC 8985, 7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TailProbe {
    pub(crate) end: Seq,
    pub(crate) is_retransmission: bool,
}

/// A segment that is larger than what is known to arrive, and was sent once (RFC 4821, 7.5).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    pub(crate) span: Span,
    pub(crate) mss: u16,
}

/// What a flow keeps for its life, and rarely needs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lasting<M> {
    pub(crate) rack: Rack,
    /// The congestion controller's.
    pub(crate) memory: M,
    pub(crate) pipe: Pipe,
    pub(crate) challenges: Challenges,
    /// Bytes and segments that were sent again.
    pub(crate) again: u64,
    pub(crate) segments_again: u32,
    /// Bytes a second that were delivered in the last round trip.
    pub(crate) rate: u32,
    /// When the program last read a part of the receive buffer, in microseconds modulo 2^32.
    pub(crate) read_at: u32,
    /// Without a block: the second in which something was last acknowledged, or first sent.
    pub(crate) progress: u32,
    /// What is outstanding had a block, and is lost.
    pub(crate) gave_block: bool,
    /// The largest segment that the peer and the device take.
    pub(crate) mss: u16,
    /// Second until which the path MTU is less than the device's; 0 if it is not.
    pub(crate) narrow_until: u32,
    /// The least segment that is thought not to arrive, where a larger one than now is searched for; 0: none is.
    pub(crate) too_large: u16,
}

/// What a flow needs while data is unacknowledged or held.
#[derive(Clone, Debug)]
pub(crate) struct Cold<M> {
    /// Whose it is.
    pub(crate) slot: u32,
    pub(crate) flight: Flight,
    /// The end of what was sent when a loss was found; nothing more is reduced until it is
    /// acknowledged.
    pub(crate) recovery: Option<Seq>,
    /// That recovery began with a timeout: the window grows in it.
    pub(crate) by_timeout: bool,
    /// The window was reduced for a congestion mark; not again before this is acknowledged.
    pub(crate) reduced_until: Option<Seq>,
    /// How the window shrinks in a fast recovery.
    pub(crate) reduction: Option<Reduction>,
    /// What the last reduction of the window can be undone with.
    pub(crate) undo: Option<Undo<M>>,
    pub(crate) tail_probe: Option<TailProbe>,
    /// A larger segment than others, to find out whether it arrives.
    pub(crate) search: Option<Search>,
    /// Duplicate acknowledgements of a peer without SACK.
    pub(crate) duplicates: u32,
    pub(crate) rto_at: Option<Time>,
    pub(crate) tail_at: Option<Time>,
    pub(crate) reorder_at: Option<Time>,
    /// When something was last acknowledged, or the first byte sent.
    pub(crate) progress_at: Time,
    pub(crate) usage: Usage,
    pub(crate) pace: Pace,
    pub(crate) delivery: Delivery,
    /// Out-of-order bytes, in order.
    pub(crate) held: List,
    /// A byte of each of the ranges that grew last, the last first: they are reported first
    /// (RFC 2018, 4).
    pub(crate) young: Few<Seq, YOUNG>,
    /// What arrived twice, to be reported once (RFC 2883).
    pub(crate) duplicate: Option<Span>,
    /// Where a FIN is that came out of order.
    pub(crate) fin_at: Option<Seq>,
    /// It counts among the blocks with something that the peer has left here.
    pub(crate) holds: bool,
}

impl<M> Default for Cold<M> {
    fn default() -> Cold<M> {
        Cold {
            slot: 0,
            flight: Flight::default(),
            recovery: None,
            by_timeout: false,
            reduced_until: None,
            reduction: None,
            undo: None,
            tail_probe: None,
            search: None,
            duplicates: 0,
            rto_at: None,
            tail_at: None,
            reorder_at: None,
            progress_at: Time::default(),
            usage: Usage::default(),
            pace: Pace::default(),
            delivery: Delivery::default(),
            held: List::default(),
            young: Few::default(),
            duplicate: None,
            fin_at: None,
            holds: false,
        }
    }
}

impl<M> Cold<M> {
    /// Makes it as new. Its lists are empty already, and not written over: they are most of it.
    pub(crate) fn reset(&mut self) {
        let Cold {
            slot: _,
            flight,
            recovery,
            by_timeout,
            reduced_until,
            reduction,
            undo,
            tail_probe,
            search,
            duplicates,
            rto_at,
            tail_at,
            reorder_at,
            progress_at,
            usage,
            pace,
            delivery,
            held,
            young,
            duplicate,
            fin_at,
            holds,
        } = self;
        debug_assert!(flight.is_empty() && held.is_empty());
        *recovery = None;
        *by_timeout = false;
        *reduced_until = None;
        *reduction = None;
        *undo = None;
        *tail_probe = None;
        *search = None;
        *duplicates = 0;
        *rto_at = None;
        *tail_at = None;
        *reorder_at = None;
        *progress_at = Time::default();
        *usage = Usage::default();
        *pace = Pace::default();
        *delivery = Delivery::default();
        young.clear();
        *duplicate = None;
        *fin_at = None;
        *holds = false;
    }

    /// Whether the peer has left something here.
    pub(crate) fn is_holding(&self) -> bool {
        !self.held.is_empty() || self.duplicate.is_some() || self.fin_at.is_some()
    }

    /// Whether the flow can do without it.
    pub(crate) fn is_idle(&self) -> bool {
        self.flight.is_empty() && !self.is_holding()
    }
}
