//! The sending half of an endpoint: writes its ring, chooses the path, requests wake-ups.

mod copies;
mod resend;

use std::hash::{Hash, Hasher};

use crate::Corrupt;
use crate::layout::{BUSY, COUNTED_EVERY, ENDED, FINISHED, MAX_UNREAD_RECORDS, NO_WAITER, SENT_MESSAGES};
use crate::memory::{PeerRegion, Region};
use crate::receiver::Receiver;
use crate::runs::{self, Opening, Path};
use crate::stamp;
use crate::sync::{Ordering, full_fence};
use crate::wake_up::{EACH, PeerLoop, WakeUp};

/// Sends one direction of a connection. Its user has exclusive access: a single thread,
/// or the holder of the direction's lock.
#[derive(Clone, Debug)]
pub struct Sender {
    own: Region,
    peer: PeerRegion,
    /// Ring count published.
    tail: u64,
    /// Position of `tail` in the ring.
    index: usize,
    /// The peer's head, as last loaded.
    head: u64,
    /// Records published.
    runs: u32,
    /// Records that the peer has passed, as last loaded.
    runs_passed: u32,
    /// Stream bytes that went through the kernel.
    data: u64,
    /// TCP-path offset.
    tcp: u64,
    /// TCP-path offset at which the newest TCP run begins.
    tcp_start: u64,
    /// The arming number of the last wake-up, and the one loaded last; 0: the loop page
    /// was loaded.
    woken_for: u32,
    arming_seen: u32,
    /// The waiter whose word was loaded, and its sleep number.
    sleep_seen: (u32, u32),
    /// How the waiting receiver requests its wake-up.
    wake_up_seen: WakeUp,
    /// Messages sent, and the count that the region has.
    messages: u64,
    reported: u64,
}

/// The next steps of the half depend on these fields and on the words of the regions.
/// Those words include the wake-up numbers, of which only equality matters. Statistics
/// affect nothing.
impl Hash for Sender {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Sender { own: _, peer: _, tail, index, head, runs, runs_passed, data, tcp, tcp_start, .. } = self;
        (tail, index, head, runs, runs_passed, data, tcp, tcp_start).hash(hasher);
    }
}

impl Sender {
    /// The sender half of the endpoint that owns `own`, at the position that its words
    /// state: of a new connection, or where another process of this endpoint stopped.
    pub fn new(own: Region, peer: PeerRegion) -> Sender {
        let mut sender = Sender {
            own,
            peer,
            tail: 0,
            index: 0,
            head: 0,
            runs: 0,
            runs_passed: 0,
            data: 0,
            tcp: 0,
            tcp_start: 0,
            woken_for: 0,
            arming_seen: 0,
            sleep_seen: (NO_WAITER, 0),
            wake_up_seen: WakeUp::Tcp,
            messages: 0,
            reported: 0,
        };
        sender.resume();
        sender
    }

    /// Continues at the position that the last holder of the lock published.
    pub fn resume(&mut self) {
        let own = self.own.header();
        self.tail = own.tail.load(Ordering::Relaxed);
        let behind_base = self.tail.wrapping_sub(own.base.load(Ordering::Relaxed));
        self.index = (behind_base % self.own.ring_length() as u64) as usize;
        self.runs = own.runs_published.load(Ordering::Relaxed);
        self.data = own.sent.data.load(Ordering::Relaxed);
        self.tcp = own.sent.tcp.load(Ordering::Relaxed);
        self.tcp_start = match self.path() {
            Path::Tcp if self.runs > 0 => {
                runs::run_tcp_start(own, self.runs.wrapping_sub(1)).unwrap_or(self.tcp)
            }
            _ => self.tcp,
        };
        if self.path() == Path::Ring && own.at_kernel.load(Ordering::Relaxed) == BUSY {
            // That holder died, and the number of copies that reached the kernel is
            // unknown.
            self.forget_copies();
        }
        self.woken_for = own.sent.last.load(Ordering::Relaxed) as u32;
        self.reported = own.counters[SENT_MESSAGES].load(std::sync::atomic::Ordering::Relaxed);
        self.messages = self.reported;
        // A safe bound: no more can be unread. The exact values are loaded when they
        // matter.
        self.head = self.tail.wrapping_sub(self.own.ring_length() as u64);
        self.runs_passed = self.runs.wrapping_sub(MAX_UNREAD_RECORDS);
    }

    /// The path of the next byte.
    #[inline]
    pub fn path(&self) -> Path {
        Path::of(self.runs)
    }

    /// Stream offset: bytes sent over both paths.
    pub fn stream(&self) -> u64 {
        self.tail.wrapping_add(self.data)
    }

    /// TCP-path offset: bytes and wake-up bytes that the kernel accepted.
    pub fn tcp(&self) -> u64 {
        self.tcp
    }

    /// Whether the peer has mapped both regions.
    pub fn peer_is_aware(&self) -> bool {
        // Its arming before that store is ordered by the fences of `arm` and
        // `wants_tcp_wake_up`.
        self.peer.header().aware.load(Ordering::Acquire) == 1
    }

    /// Whether the peer reads no more.
    pub fn peer_ended(&self) -> bool {
        self.peer.header().ended.load(Ordering::Relaxed) == ENDED
    }

    /// Whether a reset of the kernel connection means the same as on TCP. It does if the
    /// peer announced that it ends. It does, too, if the peer can have no unread wake-up
    /// bytes, over which the kernel would reset the connection of a process that died.
    pub fn peer_resets(&self) -> bool {
        let peer = self.peer.header();
        peer.ended.load(Ordering::Relaxed) != 0 || self.peer_is_demoted() || !self.peer_is_aware()
    }

    /// Whether the peer was demoted, and consumes nothing from the ring any more: see
    /// [`Sender::recall`].
    #[inline]
    pub fn peer_is_demoted(&self) -> bool {
        self.peer.header().demoted.load(Ordering::Relaxed) != 0
    }

    /// To be called before bytes of a TCP run are given to the kernel;
    /// [`Sender::sent_over_tcp`] or [`Sender::kernel_refused`] follow. True: the peer was
    /// demoted, and has to get its unread ring bytes first.
    #[inline]
    pub fn about_to_send_over_tcp(&mut self) -> bool {
        // Once the kernel has bytes of this run, no ring bytes can be resent.
        if self.tcp != self.tcp_start {
            return self.peer_is_demoted();
        }
        self.begin_kernel_send()
    }

    /// To be called before an unrequested wake-up byte is given to the kernel; the same
    /// calls follow as after [`Sender::wants_tcp_wake_up`]. False: the peer was demoted, and
    /// would read the byte as data; or it closes, and the byte would cause a reset.
    #[inline]
    pub fn may_wake(&mut self) -> bool {
        if self.begin_kernel_send() {
            return false;
        }
        // CLOSE-PAIR: a peer that closes waits for the byte, or is seen here.
        let ended = self.peer_ended();
        if ended {
            self.kernel_refused();
        }
        !ended
    }

    /// True: the peer was demoted.
    fn begin_kernel_send(&mut self) -> bool {
        let at_kernel = &self.own.header().at_kernel;
        at_kernel.store(BUSY, Ordering::Relaxed);
        // DEMOTION-PAIR: a peer that is demoted waits for this, or is seen here.
        full_fence();
        let left = self.peer_is_demoted();
        if left {
            at_kernel.store(0, Ordering::Relaxed);
        }
        left
    }

    /// Such a call begins; its result is reported when it ends. Until then no ring run
    /// may be opened. Ordered by the lock, as all words that the endpoint's processes
    /// share.
    #[inline]
    pub fn kernel_call_begins(&self) {
        self.own.header().sending.fetch_add(1, Ordering::Relaxed);
    }

    /// The call ended.
    #[inline]
    pub fn kernel_call_ends(&self) {
        self.own.header().sending.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether no such call is in progress, in any process that holds this endpoint.
    #[inline]
    pub fn kernel_is_idle(&self) -> bool {
        self.own.header().sending.load(Ordering::Relaxed) == 0
    }

    /// The kernel accepted none of the bytes that it was just given.
    #[inline]
    pub fn kernel_refused(&self) {
        // DEMOTION-PAIR: release the count of the bytes that it accepted before.
        self.own.header().at_kernel.store(0, Ordering::Release);
    }

    /// This endpoint sends nothing more, once [`Sender::recall`] is answered: FIN
    /// follows.
    pub fn sends_no_more(&mut self) {
        if self.refresh().is_ok() && self.tail == self.head {
            // The end of the stream, too, is ordered among the peer's other connections.
            self.own.header().stamp.store(stamp::now(), Ordering::Relaxed);
        }
        self.own.header().at_kernel.store(FINISHED, Ordering::Release);
        // DEMOTION-PAIR: a peer that is demoted sees it, or its demotion is seen behind
        // this.
        full_fence();
    }

    /// Bytes of the ring.
    #[inline]
    pub fn ring_length(&self) -> usize {
        self.own.ring_length()
    }

    /// Free bytes of the ring. The peer's head is loaded only if fewer than `wanted` were
    /// free when it was last loaded.
    ///
    /// # Errors
    /// The peer consumed bytes that were never sent.
    #[inline]
    pub fn free(&mut self, wanted: usize) -> Result<usize, Corrupt> {
        let free = self.free_at_least();
        if free >= wanted { Ok(free) } else { self.refresh() }
    }

    #[inline(always)]
    fn free_at_least(&self) -> usize {
        // `head` is at most a ring's length behind `tail`: `resume` sets it so, and it
        // only grows.
        self.own.ring_length() - self.tail.wrapping_sub(self.head) as usize
    }

    fn refresh(&mut self) -> Result<usize, Corrupt> {
        // HEAD-PAIR: acquire the peer's copying out of the bytes before this head.
        let head = self.peer.header().head.load(Ordering::Acquire);
        // It only advances, and not beyond the bytes sent.
        if self.tail.wrapping_sub(head) > self.tail.wrapping_sub(self.head) {
            return Err(Corrupt::Head);
        }
        self.head = head;
        Ok(self.free_at_least())
    }

    /// Copies as much as fits, at most `limit` bytes, publishes it with one store, and
    /// returns the number of bytes. 0 if the ring is full, or this is not a ring run.
    /// `receiver` is the other half of this endpoint, if the caller holds it, too: its
    /// head is published in the same cache line.
    ///
    /// # Errors
    /// The peer consumed bytes that were never sent.
    #[inline]
    pub fn write<'a>(
        &mut self,
        slices: impl IntoIterator<Item = &'a [u8]>,
        limit: usize,
        receiver: Option<&mut Receiver>,
    ) -> Result<usize, Corrupt> {
        if self.path() != Path::Ring {
            return Ok(0);
        }
        if let Some(receiver) = &receiver {
            // Its value may be older than `self.head`. `refresh` reports protocol
            // violations.
            let head = receiver.peer_head();
            if self.tail.wrapping_sub(head) < self.tail.wrapping_sub(self.head) {
                self.head = head;
            }
        }
        let mut base = None;
        let was_empty = self.tail == self.head;
        if was_empty && self.index != 0 {
            // Return to the start: a small message then shares a cache line with its
            // `tail`.
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
        // DATA-PAIR: release the bytes, `base`, and the runs published before.
        own.tail.store(self.tail, Ordering::Release);
        self.count();
        Ok(written)
    }

    /// Counts a message. The count is published rarely: a small message shall not touch
    /// one more cache line for statistics.
    #[inline(always)]
    fn count(&mut self) {
        self.messages = self.messages.wrapping_add(1);
        if self.messages.wrapping_sub(self.reported) >= COUNTED_EVERY {
            self.publish_count();
        }
    }

    /// Messages sent.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Publishes the count of messages sent, if it changed.
    #[inline]
    pub fn publish_count(&mut self) {
        if self.reported != self.messages {
            self.reported = self.messages;
            let counter = &self.own.header().counters[SENT_MESSAGES];
            counter.store(self.messages, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// The kernel accepted `count` stream bytes of a TCP run: one message.
    pub fn sent_over_tcp(&mut self, count: u64) {
        let first = self.tcp == self.tcp_start;
        self.sent_before(count);
        if first {
            self.kernel_refused();
        }
        self.count();
    }

    /// The kernel accepted `count` stream bytes of a TCP run, in an unknown number of
    /// messages.
    pub fn sent_before(&mut self, count: u64) {
        self.data = self.data.wrapping_add(count);
        self.tcp = self.tcp.wrapping_add(count);
        let own = self.own.header();
        own.sent.data.store(self.data, Ordering::Relaxed);
        // DEMOTION-PAIR: release the answer to a demoted peer.
        own.sent.tcp.store(self.tcp, Ordering::Release);
    }

    /// The kernel accepted `total` bytes of the TCP path in all: for the successor of a
    /// lock holder that died before it could count them.
    pub fn kernel_accepted(&mut self, total: u64) {
        let missing = total.saturating_sub(self.tcp);
        match self.path() {
            Path::Tcp => self.sent_before(missing),
            // Wake-up bytes, since every TCP run is counted before a ring run is opened.
            Path::Ring => {
                self.tcp = self.tcp.wrapping_add(missing);
                // COUNT-PAIR: as for a wake-up byte.
                self.own.header().sent.tcp.store(self.tcp, Ordering::Release);
            }
        }
    }

    /// Opens a ring run, unless this is one: the next bytes go through the ring. False if
    /// the peer has not mapped it, or too many runs are unread.
    ///
    /// # Errors
    /// The peer passed runs that were never opened.
    pub fn open_ring(&mut self) -> Result<bool, Corrupt> {
        if self.path() == Path::Ring {
            return Ok(true);
        }
        if self.own.header().keeps_tcp.load(Ordering::Relaxed) != 0 {
            return Ok(false);
        }
        // The peer may consume the copies from the kernel instead, and later bytes have
        // to follow them there.
        let unconsumed = self.unconsumed()?;
        if unconsumed > 0 && self.has_copied(unconsumed) {
            return Ok(false);
        }
        // Two: a TCP run must always be possible after this one.
        if !self.peer_is_aware() || self.free_records()? < 2 {
            return Ok(false);
        }
        self.open(None);
        Ok(true)
    }

    /// No process opens a ring run of this endpoint from here on. Ordered by the lock for
    /// the endpoint's processes, as all words that they share.
    pub fn keep_to_tcp(&self) {
        // Endpoints of earlier builds acquire with it the bytes sent before.
        self.own.header().keeps_tcp.store(1, Ordering::Release);
    }

    /// Whether the peer sends through the kernel for good.
    pub fn peer_keeps_to_tcp(&self) -> bool {
        self.peer.header().keeps_tcp.load(Ordering::Relaxed) != 0
    }

    /// Opens a TCP run, unless this is one: the next bytes go to the kernel. False if too
    /// many runs are unread: [`Sender::open_ring`] prevents that for any peer that
    /// follows the protocol.
    ///
    /// # Errors
    /// The peer passed runs that were never opened.
    pub fn open_tcp(&mut self) -> Result<bool, Corrupt> {
        if self.path() == Path::Tcp {
            return Ok(true);
        }
        if self.free_records()? < 1 {
            return Ok(false);
        }
        self.open(Some(self.tcp));
        Ok(true)
    }

    fn open(&mut self, tcp_start: Option<u64>) {
        runs::publish(self.own.header(), self.runs, Opening { start: self.stream(), tcp_start });
        self.tcp_start = tcp_start.unwrap_or(self.tcp);
        self.runs = self.runs.wrapping_add(1);
    }

    fn free_records(&mut self) -> Result<u32, Corrupt> {
        // PASSED-PAIR: acquire the peer's reading of the records passed. (No model: loom
        // delays no loads.)
        let passed = self.peer.header().runs_passed.load(Ordering::Acquire);
        let open = self.runs.wrapping_sub(passed);
        if open > self.runs.wrapping_sub(self.runs_passed) {
            return Err(Corrupt::RunsPassed);
        }
        self.runs_passed = passed;
        Ok(MAX_UNREAD_RECORDS - open)
    }

    /// Whether the peer has consumed all ring bytes and reached the newest run: after a
    /// spill, it then pays to open a ring run again.
    ///
    /// # Errors
    /// The peer consumed bytes that were never sent.
    pub fn drained(&mut self) -> Result<bool, Corrupt> {
        self.refresh()?;
        Ok(self.head == self.tail && self.free_records()? == MAX_UNREAD_RECORDS)
    }

    /// Bytes in the ring that the peer has not consumed.
    ///
    /// # Errors
    /// The peer consumed bytes that were never sent.
    pub fn unconsumed(&mut self) -> Result<usize, Corrupt> {
        self.refresh()?;
        Ok(self.tail.wrapping_sub(self.head) as usize)
    }

    /// Whether the peer reports that it consumed all bytes that went through the kernel.
    #[cold]
    pub fn kernel_bytes_were_consumed(&self) -> bool {
        self.peer_consumed_of_kernel() == self.data
    }

    /// Stream bytes that the peer reports to have consumed from the kernel.
    #[cold]
    pub fn peer_consumed_of_kernel(&self) -> u64 {
        self.peer.header().consumed.data.load(Ordering::Relaxed)
    }

    /// Whether no ring run was ever opened.
    pub fn is_in_first_run(&self) -> bool {
        self.runs == 0
    }

    /// Whether the peer reports that it consumed all bytes, of both paths. It may have
    /// consumed ring bytes that it has not reported yet.
    #[cold]
    pub fn all_was_consumed(&self) -> bool {
        let peer = self.peer.header();
        peer.head.load(Ordering::Acquire) == self.tail
            && peer.consumed.data.load(Ordering::Relaxed) == self.data
    }

    /// Whether the peer waits for a wake-up for the bytes published before. To be called
    /// after each write, or after several; if true, the caller sends one byte 0 through
    /// the kernel, without waiting, and reports it with [`Sender::woke_peer`]. Never in a TCP
    /// run, where the byte would be read as data: the data itself wakes the peer. So it
    /// has to be called before a TCP run is opened that no bytes follow at once.
    ///
    /// After each true [`Sender::wake_up_was_accepted`] or [`Sender::kernel_refused`] has to
    /// follow.
    #[inline]
    pub fn wants_tcp_wake_up(&mut self, peer_loop: &PeerLoop) -> bool {
        self.path() == Path::Ring && self.peer_waits(peer_loop) && self.may_wake()
    }

    /// As [`Sender::wants_tcp_wake_up`], for a sender that can write to the receiver's doorbell.
    /// `Doorbell`: write one byte there, then call [`Sender::woke_peer`] with `accepted` false;
    /// if the doorbell is full, proceed as for `Tcp` where [`Sender::may_wake`] permits
    /// it.
    #[inline]
    pub fn wants_wake_up(&mut self, peer_loop: &PeerLoop) -> Option<WakeUp> {
        if self.path() != Path::Ring || !self.peer_waits(peer_loop) {
            return None;
        }
        match self.wake_up_seen {
            WakeUp::Doorbell => Some(WakeUp::Doorbell),
            WakeUp::Tcp => self.may_wake().then_some(WakeUp::Tcp),
        }
    }

    #[inline]
    fn peer_waits(&mut self, peer_loop: &PeerLoop) -> bool {
        // ARM-PAIR, SLEEP-PAIR: store `tail` before these loads; the receiver's and the
        // loop's fences lie between their store and their last check of `tail`.
        full_fence();
        let peer = self.peer.header();
        // The loop first: connections armed before it fell asleep are then seen as armed,
        // and a wake-up on a masked connection does not count for the loop's others.
        let word = peer.waiter.load(Ordering::Relaxed);
        let (waiter, by) = WakeUp::of_waiter(word);
        let number = peer_loop.unwoken_sleep(waiter);
        // WAITER-PAIR: acquire the waiter that polls it since it is hot.
        self.arming_seen = peer.armed.load(Ordering::Acquire);
        if self.arming_seen != 0 {
            self.wake_up_seen = WakeUp::of(self.arming_seen);
            return self.arming_seen != self.woken_for || self.arming_seen & EACH != 0;
        }
        (self.sleep_seen, self.wake_up_seen) = ((waiter, number), by);
        if peer.waiter.load(Ordering::Relaxed) != word {
            // The connection moved to another waiter meanwhile. A spurious wake-up does
            // no harm, but counts for no waiter.
            (self.sleep_seen, self.wake_up_seen) = ((NO_WAITER, 0), WakeUp::Tcp);
            return !self.peer_ended();
        }
        // A wake-up on a connection that the peer has closed would wake nothing, and
        // still count for all others of that loop.
        number != 0 && !self.peer_ended()
    }

    /// Returns how many ring bytes the peer has consumed, if others are unread although
    /// it neither requests a wake-up nor has a waiter that polls the ring. Such a peer is
    /// awake, between two waits, or waits in a way that its endpoint does not see. A
    /// hint: both may change at once.
    pub fn has_unseen_bytes(&mut self) -> Option<u64> {
        let peer = self.peer.header();
        let is_unread = self.path() == Path::Ring
            && peer.armed.load(Ordering::Relaxed) == 0
            && peer.waiter.load(Ordering::Relaxed) == NO_WAITER
            && self.unconsumed().is_ok_and(|unconsumed| unconsumed > 0);
        is_unread.then_some(self.head)
    }

    /// The caller is about to wake the peer, at this time of CLOCK_MONOTONIC in
    /// nanoseconds: the peer measures from it how long its wake-ups take.
    pub fn wakes_at(&self, now: u64) {
        // Orders nothing: it is a hint, stored before a system call.
        self.own.header().woke_at.store(now, Ordering::Relaxed);
    }

    /// The time that the peer last stored so: an arbitrary value, if the peer is hostile.
    pub fn peer_woke_at(&self) -> u64 {
        self.peer.header().woke_at.load(Ordering::Relaxed)
    }

    /// The kernel accepted a wake-up byte (`accepted`), or had no room for it (EAGAIN). The
    /// latter counts as a wake-up, since the receiver has unread bytes.
    pub fn woke_peer(&mut self, peer_loop: &PeerLoop, accepted: bool) {
        let own = self.own.header();
        if self.arming_seen != 0 {
            self.woken_for = self.arming_seen;
            own.sent.last.store(u64::from(self.woken_for), Ordering::Relaxed);
        } else {
            peer_loop.record_wake_up(self.sleep_seen.0, self.sleep_seen.1);
        }
        if accepted {
            self.wake_up_was_accepted();
        }
    }

    /// Whether the peer has unread TCP-path bytes. It checks the ring again once it has
    /// consumed them, so a wake-up byte for which the kernel has no room is not needed
    /// then. The kernel may have no room without unread bytes: bytes that were read
    /// occupy it until they are acknowledged (RFC 1122, 4.2.3.2), and memory may be
    /// short.
    #[cold]
    pub fn is_checked_behind_tcp(&self) -> bool {
        // ARM-PAIR: after the fence behind our `tail`; the consumer of the last of them
        // has a fence before its check.
        self.peer.header().consumed.tcp.load(Ordering::Acquire) < self.tcp
    }

    /// The kernel had no room for a wake-up byte. The receiver has unread bytes
    /// ([`Sender::is_checked_behind_tcp`]), and checks the ring behind them. Its loop
    /// may have reported them long ago, so this counts as a wake-up for no other
    /// connection.
    pub fn wake_up_had_no_room(&mut self) {
        if self.arming_seen != 0 {
            self.woken_for = self.arming_seen;
            self.own.header().sent.last.store(u64::from(self.woken_for), Ordering::Relaxed);
        }
        self.kernel_refused();
    }

    /// The kernel accepted a wake-up byte that was reported to [`Sender::woke_peer`] as not
    /// accepted: for callers that submit wake-ups in batches, and get the results later.
    /// Until then no TCP run may be opened.
    pub fn wake_up_was_accepted(&mut self) {
        let own = self.own.header();
        self.tcp = self.tcp.wrapping_add(1);
        // COUNT-PAIR: release the ring run, so that no receiver reads a counted byte as
        // data before it sees the run.
        own.sent.tcp.store(self.tcp, Ordering::Release);
        self.kernel_refused();
        // Statistics.
        own.tcp_wake_ups.store(own.tcp_wake_ups.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}
