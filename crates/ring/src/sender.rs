//! The half of an end that sends: writes its ring, chooses the lane, rings bells.

mod back;
mod copies;

use std::hash::{Hash, Hasher};

use crate::Corrupt;
use crate::bell::{EACH, PeerLoop, WakeUp};
use crate::layout::{BUSY, COUNTED_EVERY, ENDED, FINISHED, MAX_UNREAD_RECORDS, NO_SLEEPER, SENT_MESSAGES};
use crate::memory::{PeerSegment, Segment};
use crate::parts::{self, Lane, Opening};
use crate::receiver::Receiver;
use crate::stamp;
use crate::sync::{Ordering, full_fence};

/// Sends one direction of a connection. Whoever uses it is alone in that: one thread, or the
/// holder of the direction's lock.
#[derive(Clone, Debug)]
pub struct Sender {
    own: Segment,
    peer: PeerSegment,
    /// Ring count published.
    tail: u64,
    /// Position of `tail` in the ring.
    index: usize,
    /// The other end's head, as last seen.
    head: u64,
    /// Records published.
    parts: u32,
    /// Records that the other end has passed, as last seen.
    parts_taken: u32,
    /// Stream bytes that went through the kernel.
    data: u64,
    /// TCP-lane offset.
    tcp: u64,
    /// Where in the TCP lane the newest TCP part begins.
    tcp_start: u64,
    /// The arming number last rung for, and the one seen last; 0: the loop page was asked.
    rung: u32,
    seen: u32,
    /// The sleeper that was asked, and the number of its sleep.
    seen_sleep: (u32, u32),
    /// How the receiver that was found waiting asks to be woken.
    seen_by: WakeUp,
    /// Messages sent, and how many of them the segment tells.
    messages: u64,
    told: u64,
}

/// What the half does next depends on this, and on the words of the segments. The numbers of
/// bells lie there too, and only whether two are equal matters; statistics matter to nobody.
impl Hash for Sender {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Sender { own: _, peer: _, tail, index, head, parts, parts_taken, data, tcp, tcp_start, .. } =
            self;
        (tail, index, head, parts, parts_taken, data, tcp, tcp_start).hash(hasher);
    }
}

impl Sender {
    /// The sender half of the end that `own` belongs to, as its words say: of a new
    /// connection, or where another process of this end left it.
    pub fn new(own: Segment, peer: PeerSegment) -> Sender {
        let mut sender = Sender {
            own,
            peer,
            tail: 0,
            index: 0,
            head: 0,
            parts: 0,
            parts_taken: 0,
            data: 0,
            tcp: 0,
            tcp_start: 0,
            rung: 0,
            seen: 0,
            seen_sleep: (NO_SLEEPER, 0),
            seen_by: WakeUp::Tcp,
            messages: 0,
            told: 0,
        };
        sender.resume();
        sender
    }

    /// Takes over where the last holder of the lock has published to.
    pub fn resume(&mut self) {
        let own = self.own.header();
        self.tail = own.tail.load(Ordering::Relaxed);
        let behind_base = self.tail.wrapping_sub(own.base.load(Ordering::Relaxed));
        self.index = (behind_base % self.own.ring_length() as u64) as usize;
        self.parts = own.parts_published.load(Ordering::Relaxed);
        self.data = own.sent.data.load(Ordering::Relaxed);
        self.tcp = own.sent.tcp.load(Ordering::Relaxed);
        self.tcp_start = match self.lane() {
            Lane::Tcp if self.parts > 0 => {
                parts::opened_at(own, self.parts.wrapping_sub(1)).unwrap_or(self.tcp)
            }
            _ => self.tcp,
        };
        if self.lane() == Lane::Ring && own.at_kernel.load(Ordering::Relaxed) == BUSY {
            // That holder died, and nobody knows how many copies the kernel has.
            self.forget_copies();
        }
        self.rung = own.sent.last.load(Ordering::Relaxed) as u32;
        self.told = own.counters[SENT_MESSAGES].load(std::sync::atomic::Ordering::Relaxed);
        self.messages = self.told;
        // What is surely true: no more can be on its way. The other end tells when it matters.
        self.head = self.tail.wrapping_sub(self.own.ring_length() as u64);
        self.parts_taken = self.parts.wrapping_sub(MAX_UNREAD_RECORDS);
    }

    /// The lane that the next byte takes.
    #[inline]
    pub fn lane(&self) -> Lane {
        Lane::of(self.parts)
    }

    /// Stream offset: bytes sent in both lanes.
    pub fn stream(&self) -> u64 {
        self.tail.wrapping_add(self.data)
    }

    /// TCP-lane offset: bytes and bells that the kernel took.
    pub fn tcp(&self) -> u64 {
        self.tcp
    }

    /// Whether the other end has mapped both segments.
    pub fn peer_is_aware(&self) -> bool {
        // What it armed before it said so is ordered by the fences of `arm` and `wants_bell`.
        self.peer.header().aware.load(Ordering::Acquire) == 1
    }

    /// Whether the other end reads no more.
    pub fn peer_ended(&self) -> bool {
        self.peer.header().ended.load(Ordering::Relaxed) == ENDED
    }

    /// Whether a reset of the kernel connection means what it means on TCP: the other end has said that it ends, or has
    /// no doorbells unread, for which the kernel resets a connection whose process died.
    pub fn peer_resets(&self) -> bool {
        let peer = self.peer.header();
        peer.ended.load(Ordering::Relaxed) != 0 || self.peer_left() || !self.peer_is_aware()
    }

    /// Whether the other end takes nothing from the ring any more: see [`Sender::recall`].
    #[inline]
    pub fn peer_left(&self) -> bool {
        self.peer.header().left.load(Ordering::Relaxed) != 0
    }

    /// To be called before bytes of a TCP part are given to the kernel; [`Sender::sent_over_tcp`]
    /// or [`Sender::kernel_refused`] follow. True: the other end has left, and gets what it did
    /// not take before.
    #[inline]
    pub fn about_to_send_over_tcp(&mut self) -> bool {
        // Once the kernel has bytes of this part, none of the ring can be sent again.
        if self.tcp != self.tcp_start {
            return self.peer_left();
        }
        self.goes_to_kernel()
    }

    /// To be called before a bell is given to the kernel that nobody asked for; what follows
    /// [`Sender::wants_bell`] follows. False: the other end has left, and would take it for data, or it closes, and
    /// the bell would meet a reset.
    #[inline]
    pub fn may_ring(&mut self) -> bool {
        if self.goes_to_kernel() {
            return false;
        }
        // CLOSE-PAIR: one who closes waits for the bell, or is seen here.
        let ended = self.peer_ended();
        if ended {
            self.kernel_refused();
        }
        !ended
    }

    /// True: the other end has left.
    fn goes_to_kernel(&mut self) -> bool {
        let at_kernel = &self.own.header().at_kernel;
        at_kernel.store(BUSY, Ordering::Relaxed);
        // LEAVE-PAIR: one who leaves waits for this, or is seen here.
        full_fence();
        let left = self.peer_left();
        if left {
            at_kernel.store(0, Ordering::Relaxed);
        }
        left
    }

    /// Such a call begins, and what it comes to is told when it ends: until then no ring part may
    /// be opened. Ordered by the lock, as all that the end's processes leave each other.
    #[inline]
    pub fn kernel_call_begins(&self) {
        self.own.header().sending.fetch_add(1, Ordering::Relaxed);
    }

    /// It ended.
    #[inline]
    pub fn kernel_call_ends(&self) {
        self.own.header().sending.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether none is under way, in any process that has this end.
    #[inline]
    pub fn kernel_is_idle(&self) -> bool {
        self.own.header().sending.load(Ordering::Relaxed) == 0
    }

    /// The kernel took nothing of what it was just given.
    #[inline]
    pub fn kernel_refused(&self) {
        // LEAVE-PAIR: release the count of what it took before.
        self.own.header().at_kernel.store(0, Ordering::Release);
    }

    /// This end sends nothing more, once [`Sender::recall`] is answered: FIN follows.
    pub fn sends_no_more(&mut self) {
        if self.refresh().is_ok() && self.tail == self.head {
            // An end has its place among what other connections bring to the peer.
            self.own.header().stamp.store(stamp::now(), Ordering::Relaxed);
        }
        self.own.header().at_kernel.store(FINISHED, Ordering::Release);
        // LEAVE-PAIR: one who leaves sees it, or is seen behind this.
        full_fence();
    }

    /// Bytes of the ring.
    #[inline]
    pub fn ring_length(&self) -> usize {
        self.own.ring_length()
    }

    /// Free bytes of the ring; the other end is asked only if fewer than `wanted` were free
    /// when it was last asked.
    ///
    /// # Errors
    /// The other end has taken what was never sent.
    #[inline]
    pub fn free(&mut self, wanted: usize) -> Result<usize, Corrupt> {
        let free = self.free_at_least();
        if free >= wanted { Ok(free) } else { self.refresh() }
    }

    #[inline(always)]
    fn free_at_least(&self) -> usize {
        // `head` is at most a ring's length behind `tail`: `resume` begins so, and it only grows.
        self.own.ring_length() - self.tail.wrapping_sub(self.head) as usize
    }

    fn refresh(&mut self) -> Result<usize, Corrupt> {
        // HEAD-PAIR: acquire the end of the copying that this head says is done.
        let head = self.peer.header().head.load(Ordering::Acquire);
        // It goes forward only, and no further than what was sent.
        if self.tail.wrapping_sub(head) > self.tail.wrapping_sub(self.head) {
            return Err(Corrupt::Head);
        }
        self.head = head;
        Ok(self.free_at_least())
    }

    /// Copies what there is room for, at most `limit` bytes, and publishes it with one
    /// store; returns how much. 0 if the ring is full, or this is no ring part. `receiver`
    /// is the other half of this end, if the caller has it too: its head travels along.
    ///
    /// # Errors
    /// The other end has taken what was never sent.
    #[inline]
    pub fn write<'a>(
        &mut self,
        slices: impl IntoIterator<Item = &'a [u8]>,
        limit: usize,
        receiver: Option<&mut Receiver>,
    ) -> Result<usize, Corrupt> {
        if self.lane() != Lane::Ring {
            return Ok(0);
        }
        if let Some(receiver) = &receiver {
            // What it saw may be older than what is known here. Nonsense is left to `refresh`.
            let head = receiver.peer_head();
            if self.tail.wrapping_sub(head) < self.tail.wrapping_sub(self.head) {
                self.head = head;
            }
        }
        let mut base = None;
        let was_empty = self.tail == self.head;
        if was_empty && self.index != 0 {
            // Return to the start: a small message then lies beside its `tail`.
            base = Some(self.tail);
            self.index = 0;
        }
        let mut room = self.free_at_least().min(limit);
        let mut refreshed = room == limit;
        let mut written = 0;
        let mut index = self.index;
        for slice in slices {
            let mut slice = slice;
            if slice.len() > room && !refreshed {
                refreshed = true;
                room = self.refresh()?.min(limit) - written;
            }
            if slice.len() > room {
                slice = &slice[..room];
            }
            index = self.own.copy_in(index, slice);
            written += slice.len();
            room -= slice.len();
            if room == 0 && refreshed {
                break;
            }
        }
        let own = self.own.header();
        if let Some(base) = base {
            own.base.store(base, Ordering::Relaxed);
        }
        if written == 0 {
            return Ok(0);
        }
        self.index = index;
        self.tail = self.tail.wrapping_add(written as u64);
        if let Some(receiver) = receiver {
            receiver.release();
        }
        if was_empty {
            own.stamp.store(stamp::now(), std::sync::atomic::Ordering::Relaxed);
        }
        // DATA-PAIR: release the bytes, `base`, and the parts published before.
        own.tail.store(self.tail, Ordering::Release);
        self.count();
        Ok(written)
    }

    /// One more message was sent. Its number stays here for a while: a small message shall
    /// not touch one more cache line for statistics.
    #[inline(always)]
    fn count(&mut self) {
        self.messages = self.messages.wrapping_add(1);
        if self.messages.wrapping_sub(self.told) >= COUNTED_EVERY {
            self.tell_count();
        }
    }

    /// Messages that were sent through the ring.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Stores how many messages were sent, if the segment does not tell.
    #[inline]
    pub fn tell_count(&mut self) {
        if self.told != self.messages {
            self.told = self.messages;
            let counter = &self.own.header().counters[SENT_MESSAGES];
            counter.store(self.messages, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// The kernel took `count` stream bytes in a TCP part: a message.
    pub fn sent_over_tcp(&mut self, count: u64) {
        let first = self.tcp == self.tcp_start;
        self.sent_before(count);
        if first {
            self.kernel_refused();
        }
        self.count();
    }

    /// The kernel took `count` stream bytes in a TCP part, in messages that nobody counted.
    pub fn sent_before(&mut self, count: u64) {
        self.data = self.data.wrapping_add(count);
        self.tcp = self.tcp.wrapping_add(count);
        let own = self.own.header();
        own.sent.data.store(self.data, Ordering::Relaxed);
        // LEAVE-PAIR: release the answer to one who left.
        own.sent.tcp.store(self.tcp, Ordering::Release);
    }

    /// The kernel took `total` bytes of the TCP lane in all: for the heir of a lock whose
    /// holder died before it could count what it had sent.
    pub fn kernel_took(&mut self, total: u64) {
        let missing = total.saturating_sub(self.tcp);
        match self.lane() {
            Lane::Tcp => self.sent_before(missing),
            // Bells, since every TCP part is counted before a ring part is opened.
            Lane::Ring => {
                self.tcp = self.tcp.wrapping_add(missing);
                // COUNT-PAIR: as for a bell.
                self.own.header().sent.tcp.store(self.tcp, Ordering::Release);
            }
        }
    }

    /// Opens a ring part, if this is none yet: the next bytes go through the ring. False if
    /// the other end has not mapped it, or too many parts are not taken.
    ///
    /// # Errors
    /// The other end has passed parts that were never sent.
    pub fn open_ring(&mut self) -> Result<bool, Corrupt> {
        if self.lane() == Lane::Ring {
            return Ok(true);
        }
        if self.own.header().keeps_tcp.load(Ordering::Relaxed) != 0 {
            return Ok(false);
        }
        // The other end may leave them to the kernel, in whose order what follows has to be.
        let untaken = self.untaken()?;
        if untaken > 0 && self.has_copied(untaken) {
            return Ok(false);
        }
        // Two: it must always be possible to leave the ring again.
        if !self.peer_is_aware() || self.free_records()? < 2 {
            return Ok(false);
        }
        self.open(None);
        Ok(true)
    }

    /// Nobody who uses this end opens a ring part from here on. For the end's processes ordered by the lock, as all
    /// that they leave each other.
    pub fn keep_to_tcp(&self) {
        // Ends of builds before acquire with it what was sent before.
        self.own.header().keeps_tcp.store(1, Ordering::Release);
    }

    /// Whether the other end keeps to the kernel for good.
    pub fn peer_keeps_to_tcp(&self) -> bool {
        self.peer.header().keeps_tcp.load(Ordering::Relaxed) != 0
    }

    /// Opens a TCP part, if this is none yet: the next bytes go to the kernel. False if too
    /// many parts are not taken, which [`Sender::open_ring`] leaves possible for no peer
    /// that keeps to the rules.
    ///
    /// # Errors
    /// The other end has passed parts that were never sent.
    pub fn open_tcp(&mut self) -> Result<bool, Corrupt> {
        if self.lane() == Lane::Tcp {
            return Ok(true);
        }
        if self.free_records()? < 1 {
            return Ok(false);
        }
        self.open(Some(self.tcp));
        Ok(true)
    }

    fn open(&mut self, tcp_start: Option<u64>) {
        parts::publish(self.own.header(), self.parts, Opening { start: self.stream(), tcp_start });
        self.tcp_start = tcp_start.unwrap_or(self.tcp);
        self.parts = self.parts.wrapping_add(1);
    }

    fn free_records(&mut self) -> Result<u32, Corrupt> {
        // PASSED-PAIR: acquire the end of the reading of the records passed. (No model: loom
        // delays no loads.)
        let taken = self.peer.header().parts_taken.load(Ordering::Acquire);
        let open = self.parts.wrapping_sub(taken);
        if open > self.parts.wrapping_sub(self.parts_taken) {
            return Err(Corrupt::PartsTaken);
        }
        self.parts_taken = taken;
        Ok(MAX_UNREAD_RECORDS - open)
    }

    /// Whether the other end has taken all ring bytes and has come to the newest part: after
    /// a spill, it pays to open a ring part again.
    ///
    /// # Errors
    /// The other end has taken what was never sent.
    pub fn drained(&mut self) -> Result<bool, Corrupt> {
        self.refresh()?;
        Ok(self.head == self.tail && self.free_records()? == MAX_UNREAD_RECORDS)
    }

    /// Bytes in the ring that the other end has not taken.
    ///
    /// # Errors
    /// The other end has taken what was never sent.
    pub fn untaken(&mut self) -> Result<usize, Corrupt> {
        self.refresh()?;
        Ok(self.tail.wrapping_sub(self.head) as usize)
    }

    /// Whether the other end says that it has taken all that went through the kernel.
    #[cold]
    pub fn kernel_bytes_were_taken(&self) -> bool {
        self.peer_took_of_kernel() == self.data
    }

    /// Stream bytes that the other end says it has taken from the kernel.
    #[cold]
    pub fn peer_took_of_kernel(&self) -> u64 {
        self.peer.header().taken.data.load(Ordering::Relaxed)
    }

    /// Whether no ring part was ever opened.
    pub fn is_in_first_part(&self) -> bool {
        self.parts == 0
    }

    /// Whether the other end says that it has taken all that was sent, in both lanes. It may
    /// have taken ring bytes that it does not tell of yet.
    #[cold]
    pub fn all_was_taken(&self) -> bool {
        let peer = self.peer.header();
        peer.head.load(Ordering::Acquire) == self.tail && peer.taken.data.load(Ordering::Relaxed) == self.data
    }

    /// Whether the other end waits for a bell for what was published before. Ask after each
    /// write, or after several; then ring (one byte 0 through the kernel, without waiting),
    /// and say so with [`Sender::rang`]. Never in a TCP part, where a bell would be taken for
    /// data: its bytes themselves wake. So ask before opening one that no bytes follow at once.
    ///
    /// After each true [`Sender::bell_was_taken`] or [`Sender::kernel_refused`] has to follow.
    #[inline]
    pub fn wants_bell(&mut self, peer_loop: &PeerLoop) -> bool {
        self.lane() == Lane::Ring && self.is_waited_for(peer_loop) && self.may_ring()
    }

    /// As [`Sender::wants_bell`], for a sender that can write to the receiver's doorbell. `Doorbell`: one byte
    /// there, then [`Sender::rang`], untaken; or, if it has no room, as for `Tcp` where [`Sender::may_ring`].
    #[inline]
    pub fn wants_wake_up(&mut self, peer_loop: &PeerLoop) -> Option<WakeUp> {
        if self.lane() != Lane::Ring || !self.is_waited_for(peer_loop) {
            return None;
        }
        match self.seen_by {
            WakeUp::Doorbell => Some(WakeUp::Doorbell),
            WakeUp::Tcp => self.may_ring().then_some(WakeUp::Tcp),
        }
    }

    #[inline]
    fn is_waited_for(&mut self, peer_loop: &PeerLoop) -> bool {
        // BELL-PAIR, SLEEP-PAIR: our `tail` before these looks; the receiver's and the
        // loop's fences lie between their store and their last look at `tail`.
        full_fence();
        let peer = self.peer.header();
        // The loop first: what was armed before it fell asleep is seen, and no bell on a muted
        // connection stands for the loop's others.
        let word = peer.sleeper.load(Ordering::Relaxed);
        let (sleeper, by) = WakeUp::of_sleeper(word);
        let number = peer_loop.wants_bell(sleeper);
        // SLEEPER-PAIR: acquire who looks at it since it is hot.
        self.seen = peer.armed.load(Ordering::Acquire);
        if self.seen != 0 {
            self.seen_by = WakeUp::of(self.seen);
            return self.seen != self.rung || self.seen & EACH != 0;
        }
        (self.seen_sleep, self.seen_by) = ((sleeper, number), by);
        if peer.sleeper.load(Ordering::Relaxed) != word {
            // It went from one to another meanwhile. A bell never harms, but counts for none.
            (self.seen_sleep, self.seen_by) = ((NO_SLEEPER, 0), WakeUp::Tcp);
            return !self.peer_ended();
        }
        // A bell on a connection that the other end has closed would wake nobody, and count for
        // all others of that loop.
        number != 0 && !self.peer_ended()
    }

    /// Whether bytes of the ring lie before a peer that asks for no bell for them, and is looked at by no sleeper: it is
    /// awake, between two waits, or waits in a way that its owner does not see. A hint: both may change at once. Returns how
    /// many bytes of the ring it has taken.
    pub fn lies_unseen(&mut self) -> Option<u64> {
        let peer = self.peer.header();
        let lies = self.lane() == Lane::Ring
            && peer.armed.load(Ordering::Relaxed) == 0
            && peer.sleeper.load(Ordering::Relaxed) == NO_SLEEPER
            && self.untaken().is_ok_and(|untaken| untaken > 0);
        lies.then_some(self.head)
    }

    /// The caller is about to wake the peer, at this time of CLOCK_MONOTONIC in nanoseconds: the
    /// peer learns from it how long its wake-ups take.
    pub fn wakes_at(&self, now: u64) {
        // Orders nothing: it travels ahead of a system call, and is a hint.
        self.own.header().woke_at.store(now, Ordering::Relaxed);
    }

    /// The time that the peer last stored so: anything at all, if the peer is hostile.
    pub fn peer_woke_at(&self) -> u64 {
        self.peer.header().woke_at.load(Ordering::Relaxed)
    }

    /// The kernel took a bell (`taken`), or had no room for it (EAGAIN), which counts as
    /// rung: unread bytes lie before the receiver.
    pub fn rang(&mut self, peer_loop: &PeerLoop, taken: bool) {
        let own = self.own.header();
        if self.seen != 0 {
            self.rung = self.seen;
            own.sent.last.store(u64::from(self.rung), Ordering::Relaxed);
        } else {
            peer_loop.rang(self.seen_sleep.0, self.seen_sleep.1);
        }
        if taken {
            self.bell_was_taken();
        }
    }

    /// Whether bytes of the TCP lane lie unread before the other end, who looks at the ring again when it has taken
    /// them: a bell that the kernel has no room for is none too few then. It may have none though nothing
    /// lies there: what was read keeps its room until it is acknowledged (RFC 1122, 4.2.3.2), and memory is short
    /// at times.
    #[cold]
    pub fn is_looked_for_behind_tcp(&self) -> bool {
        // BELL-PAIR: after the fence behind our `tail`; who takes the last of them has a fence before its look.
        self.peer.header().taken.tcp.load(Ordering::Acquire) < self.tcp
    }

    /// The kernel had no room for a bell. The receiver of this connection has unread bytes before
    /// it ([`Sender::is_looked_for_behind_tcp`]), and looks at the ring behind them; but its loop, which may have been told of them long
    /// ago, wakes for no other connection.
    pub fn rang_in_vain(&mut self) {
        if self.seen != 0 {
            self.rung = self.seen;
            self.own.header().sent.last.store(u64::from(self.rung), Ordering::Relaxed);
        }
        self.kernel_refused();
    }

    /// The kernel took a bell of which [`Sender::rang`] had said before that it was not
    /// taken: for callers that ring in batches, and hear later what became of it. Until
    /// then no TCP part may be opened.
    pub fn bell_was_taken(&mut self) {
        let own = self.own.header();
        self.tcp = self.tcp.wrapping_add(1);
        // COUNT-PAIR: release the ring part, before which nobody takes what is counted for data.
        own.sent.tcp.store(self.tcp, Ordering::Release);
        self.kernel_refused();
        // Statistics.
        own.bells.store(own.bells.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}
