//! The receiving half of an endpoint: consumes the bytes of both paths in stream order.

use std::hash::{Hash, Hasher};
use std::ops::Range;

use crate::Corrupt;
use crate::layout::{CONSUMED_MESSAGES, COPIES_MOST, COUNTED_EVERY};
use crate::memory::{PeerRegion, Region};
use crate::runs::{self, Opening, Path};
use crate::sync::Ordering;

mod ahead;
mod arming;
mod demotion;

pub use ahead::{Ahead, Here};
pub use demotion::DemotionStep;

/// Bytes at the start of the ring that share a cache line with the positions.
const FIRST_LINE_BYTES: usize = 40;

/// What can be consumed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// This many bytes of the ring, more than 0.
    Ring(usize),
    /// Bytes of the kernel connection, if there are any: at most `limit` if the end of
    /// the run is known.
    Tcp {
        /// Stream bytes left in this run; more than 0.
        limit: Option<u64>,
    },
    /// The next byte comes through the ring, which is empty. Bytes of the kernel
    /// connection are wake-up bytes.
    Nothing,
}

/// The kind of the bytes at the front of the TCP path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// This many wake-up bytes: to be read and discarded.
    WakeUps(u64),
    /// This many stream bytes.
    Data(u64),
    /// Stream bytes that follow ring bytes which are not yet consumed.
    Later,
}

/// Receives one direction of a connection. Its user has exclusive access: a single
/// thread, or the holder of the direction's lock.
#[derive(Clone, Debug)]
pub struct Receiver {
    own: Region,
    peer: PeerRegion,
    /// Ring count consumed.
    head: u64,
    /// Position of `head` in the peer's ring.
    index: usize,
    /// The `head` that was published last.
    released: u64,
    /// The peer's words, as last loaded and checked.
    tail: u64,
    base: u64,
    /// The peer's head, unchecked: for this endpoint's sender.
    peer_head: u64,
    /// Records passed.
    runs: u32,
    /// Where the run ends, if that is known.
    next: Option<Opening>,
    /// Stream bytes consumed from the kernel.
    data: u64,
    /// TCP-path offset.
    tcp: u64,
    /// TCP-path offset at which this run's bytes begin; the bytes before are wake-up
    /// bytes.
    tcp_start: u64,
    /// The last arming number.
    number: u32,
    /// While armed, it requests a wake-up for each publication.
    each: bool,
    /// It is never hot again.
    stays_armed: bool,
    /// Messages consumed, and the count that the region has.
    messages: u64,
    reported: u64,
    /// The last bytes consumed spanned more than one cache line.
    spans_lines: bool,
}

/// As for the sender half.
impl Hash for Receiver {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Receiver { own: _, peer: _, head, index, released, tail, base, peer_head, .. } = self;
        (head, index, released, tail, base, peer_head).hash(hasher);
        (self.runs, self.next, self.data, self.tcp, self.tcp_start).hash(hasher);
    }
}

impl Receiver {
    /// The receiver half of the endpoint that owns `own`, at the position that its words
    /// state: of a new connection, or where another process of this endpoint stopped.
    ///
    /// # Errors
    /// The peer violated the protocol.
    pub fn new(own: Region, peer: PeerRegion) -> Result<Receiver, Corrupt> {
        let mut receiver = Receiver {
            own,
            peer,
            head: 0,
            index: 0,
            released: 0,
            tail: 0,
            base: 0,
            peer_head: 0,
            runs: 0,
            next: None,
            data: 0,
            tcp: 0,
            tcp_start: 0,
            number: 0,
            each: false,
            stays_armed: false,
            messages: 0,
            reported: 0,
            spans_lines: false,
        };
        receiver.resume()?;
        Ok(receiver)
    }

    /// Continues at the position that the last holder of the lock [saved](Receiver::save)
    /// or published.
    ///
    /// # Errors
    /// The peer violated the protocol.
    pub fn resume(&mut self) -> Result<(), Corrupt> {
        let own = self.own.header();
        self.released = own.head.load(Ordering::Relaxed);
        self.head = own.consumed.last.load(Ordering::Relaxed).max(self.released);
        self.runs = own.runs_passed.load(Ordering::Relaxed);
        self.data = own.consumed.data.load(Ordering::Relaxed);
        self.tcp = own.consumed.tcp.load(Ordering::Relaxed);
        self.number = own.arming.load(Ordering::Relaxed);
        self.reported = own.counters[CONSUMED_MESSAGES].load(std::sync::atomic::Ordering::Relaxed);
        self.messages = self.reported;
        let peer = self.peer.header();
        // DATA-PAIR, as in `refresh`.
        self.tail = peer.tail.load(Ordering::Acquire);
        self.base = peer.base.load(Ordering::Relaxed);
        let ring_length = self.peer.ring_length() as u64;
        if self.tail.wrapping_sub(self.head) > ring_length {
            return Err(Corrupt::Tail);
        }
        if self.base > self.head {
            return Err(Corrupt::Base);
        }
        self.index = ((self.head - self.base) % ring_length) as usize;
        self.next = None;
        self.tcp_start = match self.path() {
            // The record that opened this run was passed last; MAX_UNREAD_RECORDS keeps
            // it from being overwritten.
            Path::Tcp if self.runs > 0 => {
                runs::run_tcp_start(peer, self.runs.wrapping_sub(1)).unwrap_or(self.tcp)
            }
            _ => 0,
        };
        self.pass_runs()
    }

    /// Saves the position for the next holder of the lock.
    #[inline]
    pub fn save(&self) {
        self.own.header().consumed.last.store(self.head, Ordering::Relaxed);
    }

    /// The path of the next byte, as far as is known.
    #[inline]
    fn path(&self) -> Path {
        Path::of(self.runs)
    }

    /// Stream offset: bytes consumed from both paths.
    #[inline]
    pub fn stream(&self) -> u64 {
        self.head.wrapping_add(self.data)
    }

    /// Whether all bytes were consumed that the peer reports to have sent, over both
    /// paths.
    #[cold]
    pub fn consumed_all(&self) -> bool {
        let peer = self.peer.header();
        peer.tail.load(Ordering::Acquire) == self.head && peer.sent.data.load(Ordering::Relaxed) == self.data
    }

    /// When the peer last published bytes, or the end of the stream, into a ring that it
    /// saw empty; in ticks of a clock that all endpoints share. An arbitrary value, if
    /// the peer is hostile.
    #[inline]
    pub fn published_at(&self) -> u64 {
        self.peer.header().stamp.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Stream bytes consumed from the kernel.
    #[inline]
    pub fn consumed_from_tcp(&self) -> u64 {
        self.data
    }

    /// TCP-path offset: bytes and wake-up bytes consumed from the kernel.
    pub fn tcp_offset(&self) -> u64 {
        self.tcp
    }

    /// The peer's head as this half loaded it last, unchecked.
    #[inline(always)]
    pub(crate) fn peer_head(&self) -> u64 {
        self.peer_head
    }

    /// Unread ring bytes of this run.
    #[inline(always)]
    fn available_in_ring(&self) -> usize {
        // `refresh` keeps `tail` at most a ring's length ahead of `head`.
        let available = self.tail.wrapping_sub(self.head) as usize;
        match self.next {
            None => available,
            Some(next) => usize::try_from(next.start.wrapping_sub(self.stream()))
                .map_or(available, |left| left.min(available)),
        }
    }

    /// What can be consumed now.
    ///
    /// # Errors
    /// The peer violated the protocol.
    #[inline]
    pub fn check(&mut self) -> Result<Ready, Corrupt> {
        if self.path() == Path::Ring {
            let available = self.available_in_ring();
            if available > 0 {
                return Ok(Ready::Ring(available));
            }
        }
        self.poll()
    }

    /// As [`Receiver::check`], after reloading the peer's words.
    ///
    /// # Errors
    /// The peer violated the protocol.
    #[inline]
    pub fn poll(&mut self) -> Result<Ready, Corrupt> {
        self.refresh()?;
        if self.path() == Path::Ring {
            let available = self.available_in_ring();
            if available > 0 {
                return Ok(Ready::Ring(available));
            }
        }
        self.release();
        if self.spans_lines {
            // The next message is likely to be as long, and at the start: its cache lines
            // are then fetched in parallel, not one after the other.
            self.peer.prefetch_second_line();
        }
        Ok(match self.path() {
            Path::Ring => Ready::Nothing,
            Path::Tcp => Ready::Tcp { limit: self.next.map(|next| next.start.wrapping_sub(self.stream())) },
        })
    }

    /// Loads and checks the peer's words, and passes the runs whose end is reached.
    #[inline]
    fn refresh(&mut self) -> Result<(), Corrupt> {
        let peer = self.peer.header();
        // DATA-PAIR: acquire the bytes, `base`, and the runs that they belong to.
        let tail = peer.tail.load(Ordering::Acquire);
        if tail != self.tail {
            let available = tail.wrapping_sub(self.head);
            if available > self.peer.ring_length() as u64 || available < self.tail.wrapping_sub(self.head) {
                return Err(Corrupt::Tail);
            }
            let base = peer.base.load(Ordering::Relaxed);
            if base != self.base {
                // It moves only when all bytes were consumed, to where they ended.
                if base != self.head {
                    return Err(Corrupt::Base);
                }
                self.base = base;
                self.index = 0;
            }
            self.tail = tail;
        }
        // HEAD-PAIR: acquire the peer's copying.
        self.peer_head = peer.head.load(Ordering::Acquire);
        if self.next.is_some() || runs::unread(peer, self.runs)? > 0 {
            return self.pass_runs();
        }
        Ok(())
    }

    /// Reads the record of the next run, and passes runs whose end is reached.
    #[cold]
    fn pass_runs(&mut self) -> Result<(), Corrupt> {
        let peer = self.peer.header();
        let unread = runs::unread(peer, self.runs)?;
        for _ in 0..unread {
            let next = match self.next {
                Some(next) => next,
                None => runs::read(peer, self.runs, self.stream(), self.tcp)?,
            };
            self.next = Some(next);
            if next.start != self.stream() {
                break;
            }
            self.next = None;
            self.tcp_start = next.tcp_start.unwrap_or(0);
            self.runs = self.runs.wrapping_add(1);
            // A successor must not start the new run with a lower position than the end
            // of the old one.
            self.save();
            // PASSED-PAIR: release the reading of this record.
            self.own.header().runs_passed.store(self.runs, Ordering::Release);
        }
        Ok(())
    }

    /// Whether the end of the current run is known: the bytes behind it came over the
    /// other path.
    #[inline]
    pub fn nears_next_run(&self) -> bool {
        self.next.is_some()
    }

    /// Ring count that the peer had published at the last check.
    #[inline]
    pub fn arrived(&self) -> u64 {
        self.tail
    }

    /// Whether the next byte comes through the kernel, as of the last check.
    #[inline]
    pub fn is_in_tcp(&self) -> bool {
        self.path() == Path::Tcp
    }

    /// Whether that is so, and no wake-up bytes lie before it.
    #[inline]
    pub fn is_behind_wake_ups(&self) -> bool {
        self.is_in_tcp() && self.tcp >= self.tcp_start
    }

    /// TCP-path bytes, wake-up bytes included, that the peer reports to have sent and
    /// that were not consumed. The report lags behind the sending.
    #[inline]
    pub fn kernel_has(&self) -> u64 {
        self.peer.header().sent.tcp.load(Ordering::Relaxed).saturating_sub(self.tcp)
    }

    /// How many TCP-path bytes are data, without reading them: those that the peer has
    /// counted, up to the first wake-up byte. They are at least on their way.
    ///
    /// # Errors
    /// The peer violated the protocol.
    pub fn surely_data(&mut self) -> Result<u64, Corrupt> {
        // COUNT-PAIR: acquire the run that was opened before a wake-up byte was counted.
        let sent = self.peer.header().sent.tcp.load(Ordering::Acquire);
        match sent.saturating_sub(self.tcp) {
            0 => Ok(0),
            counted => match self.tcp(counted)? {
                Front::Data(count) => Ok(count),
                Front::WakeUps(_) | Front::Later => Ok(0),
            },
        }
    }

    /// Copies as many ring bytes as fit and are available; 0 if the next byte is not in
    /// the ring.
    ///
    /// # Errors
    /// The peer violated the protocol.
    #[inline]
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Corrupt> {
        let available = match self.check()? {
            Ready::Ring(available) => available.min(buffer.len()),
            Ready::Tcp { .. } | Ready::Nothing => return Ok(0),
        };
        self.index = self.peer.copy_out(self.index, &mut buffer[..available]);
        self.consume(available);
        Ok(available)
    }

    /// As [`Receiver::read`], into one buffer after the other.
    ///
    /// # Errors
    /// The peer violated the protocol.
    pub fn read_vectored<'a>(
        &mut self,
        buffers: impl IntoIterator<Item = &'a mut [u8]>,
    ) -> Result<usize, Corrupt> {
        let mut consumed = 0;
        for buffer in buffers {
            let wanted = buffer.len();
            let available = self.read(buffer)?;
            consumed += available;
            if available < wanted {
                break;
            }
        }
        Ok(consumed)
    }

    /// As [`Receiver::read`], from behind the first `skip` bytes, without consuming them.
    ///
    /// # Errors
    /// The peer violated the protocol.
    pub fn peek(&mut self, skip: usize, buffer: &mut [u8]) -> Result<usize, Corrupt> {
        let available = match self.poll()? {
            Ready::Ring(available) if skip < available => (available - skip).min(buffer.len()),
            Ready::Ring(_) | Ready::Tcp { .. } | Ready::Nothing => return Ok(0),
        };
        let ring_length = self.peer.ring_length();
        // `skip` is less than the ring's length.
        let index = self.index + skip;
        let index = if index < ring_length { index } else { index - ring_length };
        self.peer.copy_out(index, &mut buffer[..available]);
        Ok(available)
    }

    /// Consumes up to `count` ring bytes without copying them; returns how many.
    ///
    /// # Errors
    /// The peer violated the protocol.
    pub fn skip(&mut self, count: usize) -> Result<usize, Corrupt> {
        let available = match self.check()? {
            Ready::Ring(available) => available.min(count),
            Ready::Tcp { .. } | Ready::Nothing => return Ok(0),
        };
        let index = self.index + available;
        let ring_length = self.peer.ring_length();
        self.index = if index < ring_length { index } else { index - ring_length };
        self.consume(available);
        Ok(available)
    }

    #[inline(always)]
    fn consume(&mut self, count: usize) {
        if count > 0 {
            self.spans_lines = count > FIRST_LINE_BYTES;
            self.count();
        }
        self.head = self.head.wrapping_add(count as u64);
        if self.head.wrapping_sub(self.released) >= self.peer.ring_length() as u64 / 4 {
            self.release();
        }
    }

    /// Publishes the head, if it changed.
    #[inline]
    pub fn release(&mut self) {
        if self.released != self.head {
            self.released = self.head;
            // HEAD-PAIR: release our copying.
            self.own.header().head.store(self.head, Ordering::Release);
        }
    }

    /// The kind of the first of `unread` TCP-path bytes, which are unread in the kernel,
    /// or were read but not yet counted with [`Receiver::consumed_tcp`]. To be called after
    /// the number of unread bytes was read from the kernel.
    ///
    /// # Errors
    /// The peer violated the protocol.
    pub fn tcp(&mut self, unread: u64) -> Result<Front, Corrupt> {
        self.refresh()?;
        Ok(match self.path() {
            Path::Tcp if self.tcp < self.tcp_start => Front::WakeUps(unread.min(self.tcp_start - self.tcp)),
            Path::Tcp => {
                let left = self.next.map_or(u64::MAX, |next| next.start.wrapping_sub(self.stream()));
                Front::Data(unread.min(left))
            }
            Path::Ring => {
                let run = self.next.and_then(|next| next.tcp_start);
                // Copies of unconsumed bytes stay: the next user of the connection may
                // need them.
                let copies = self.copies().map(|copies| copies.start);
                match run.into_iter().chain(copies).min() {
                    None => Front::WakeUps(unread),
                    Some(start) if self.tcp < start => Front::WakeUps(unread.min(start - self.tcp)),
                    Some(_) => Front::Later,
                }
            }
        })
    }

    /// Where on the TCP path copies of the unconsumed ring bytes lie, if there are any,
    /// or are about to be. To be called behind a refresh that came after the kernel was
    /// queried, or after the peer was seen to give the kernel nothing.
    fn copies(&self) -> Option<Range<u64>> {
        let peer = self.peer.header();
        // COPY-PAIR: acquire their position.
        let word = peer.copied.load(Ordering::Acquire);
        // COPY-PAIR: acquire that the words change: copies announced then are not in the
        // kernel yet.
        let last = peer.copied_tail.load(Ordering::Acquire) == self.tail;
        let start = peer.copied_at.load(Ordering::Acquire);
        let same = peer.copied.load(Ordering::Relaxed) == word;
        let copied = u64::from(word & COPIES_MOST);
        let unconsumed = self.tail.wrapping_sub(self.head);
        let end = start.saturating_add(copied);
        (last && same && (1..=copied).contains(&unconsumed)).then(|| end.saturating_sub(unconsumed)..end)
    }

    /// The first `count` TCP-path bytes were consumed: at most as many as
    /// [`Receiver::tcp`] classified as wake-up bytes or data.
    pub fn consumed_tcp(&mut self, count: u64) {
        if self.consumed_before(count) > 0 {
            self.count();
        }
    }

    /// As [`Receiver::consumed_tcp`], for an unknown number of messages; returns how many of
    /// the bytes were data.
    pub fn consumed_before(&mut self, count: u64) -> u64 {
        let own = self.own.header();
        let wake_ups = match self.path() {
            Path::Tcp => count.min(self.tcp_start.saturating_sub(self.tcp)),
            Path::Ring => count,
        };
        self.tcp = self.tcp.wrapping_add(count);
        self.data = self.data.wrapping_add(count - wake_ups);
        own.consumed.data.store(self.data, Ordering::Relaxed);
        own.consumed.tcp.store(self.tcp, Ordering::Relaxed);
        count - wake_ups
    }

    /// Counts a message; as in the sender half.
    #[inline(always)]
    fn count(&mut self) {
        self.messages = self.messages.wrapping_add(1);
        if self.messages.wrapping_sub(self.reported) >= COUNTED_EVERY {
            self.publish_count();
        }
    }

    /// Messages consumed.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Publishes the count of messages consumed, if it changed.
    #[inline]
    pub fn publish_count(&mut self) {
        if self.reported != self.messages {
            self.reported = self.messages;
            let counter = &self.own.header().counters[CONSUMED_MESSAGES];
            counter.store(self.messages, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Unread ring bytes of all runs, as of the last check.
    #[inline]
    pub fn unconsumed(&self) -> usize {
        // `refresh` keeps `tail` at most a ring's length ahead of `head`.
        self.tail.wrapping_sub(self.head) as usize
    }

    /// Whether all bytes of the ring have been consumed: a FIN that was read from the
    /// kernel is then the end of the stream.
    ///
    /// # Errors
    /// The peer violated the protocol.
    pub fn is_at_end_of_ring(&mut self) -> Result<bool, Corrupt> {
        self.refresh()?;
        Ok(self.tail == self.head)
    }

    /// Whether unread ring bytes are left: a close is then a reset.
    ///
    /// # Errors
    /// The peer violated the protocol.
    pub fn unread(&mut self) -> Result<bool, Corrupt> {
        self.is_at_end_of_ring().map(|end| !end)
    }
}
