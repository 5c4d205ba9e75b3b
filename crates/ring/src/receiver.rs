//! The half of an end that receives: takes bytes of both lanes in stream order.

use std::hash::{Hash, Hasher};
use std::ops::Range;

use crate::Corrupt;
use crate::layout::{COPIES_MOST, COUNTED_EVERY, TAKEN_MESSAGES};
use crate::memory::{PeerSegment, Segment};
use crate::parts::{self, Lane, Opening};
use crate::sync::Ordering;

mod ahead;
mod arming;
mod ends;

pub use ahead::{Ahead, Here};
pub use ends::Leaving;

/// Bytes at the start of the ring that share a cache line with the positions.
const SHORT: usize = 40;

/// What can be taken now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// So many bytes from the ring, more than 0.
    Ring(usize),
    /// Bytes of the kernel connection, if there are any: at most `limit` if the part's end
    /// is known.
    Tcp {
        /// Stream bytes left in this part; more than 0.
        limit: Option<u64>,
    },
    /// The ring is the lane, and nothing is in it. Bytes of the kernel connection are bells.
    Nothing,
}

/// What the bytes at the front of the TCP lane are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// So many bells: to be read and dropped.
    Bells(u64),
    /// So many stream bytes.
    Data(u64),
    /// Stream bytes that come after ring bytes which are not yet taken.
    Later,
}

/// Receives one direction of a connection. Whoever uses it is alone in that: one thread, or
/// the holder of the direction's lock.
#[derive(Clone, Debug)]
pub struct Receiver {
    own: Segment,
    peer: PeerSegment,
    /// Ring count taken.
    head: u64,
    /// Position of `head` in the other end's ring.
    index: usize,
    /// What the other end's sender knows of `head`.
    released: u64,
    /// The other end's words, as last seen and checked.
    tail: u64,
    base: u64,
    /// The other end's head, unchecked: for this end's sender.
    peer_head: u64,
    /// Records passed.
    parts: u32,
    /// Where the part ends, if that is known.
    next: Option<Opening>,
    /// Stream bytes taken from the kernel.
    data: u64,
    /// TCP-lane offset.
    tcp: u64,
    /// Where in the TCP lane this part's bytes begin; bells lie before.
    tcp_start: u64,
    /// The last arming number.
    number: u32,
    /// Armed, it is rung for each publication.
    each: bool,
    /// It is never hot again.
    stays_armed: bool,
    /// Messages taken, and how many of them the segment tells.
    messages: u64,
    told: u64,
    /// What was taken last lay in more than one cache line.
    long: bool,
}

/// As the sender half's.
impl Hash for Receiver {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Receiver { own: _, peer: _, head, index, released, tail, base, peer_head, .. } = self;
        (head, index, released, tail, base, peer_head).hash(hasher);
        (self.parts, self.next, self.data, self.tcp, self.tcp_start).hash(hasher);
    }
}

impl Receiver {
    /// The receiver half of the end that `own` belongs to, as its words say: of a new
    /// connection, or where another process of this end left it.
    ///
    /// # Errors
    /// The other end's words are nonsense.
    pub fn new(own: Segment, peer: PeerSegment) -> Result<Receiver, Corrupt> {
        let mut receiver = Receiver {
            own,
            peer,
            head: 0,
            index: 0,
            released: 0,
            tail: 0,
            base: 0,
            peer_head: 0,
            parts: 0,
            next: None,
            data: 0,
            tcp: 0,
            tcp_start: 0,
            number: 0,
            each: false,
            stays_armed: false,
            messages: 0,
            told: 0,
            long: false,
        };
        receiver.resume()?;
        Ok(receiver)
    }

    /// Takes over where the last holder of the lock has [saved](Receiver::save) or published
    /// that it is.
    ///
    /// # Errors
    /// The other end's words are nonsense.
    pub fn resume(&mut self) -> Result<(), Corrupt> {
        let own = self.own.header();
        self.released = own.head.load(Ordering::Relaxed);
        self.head = own.taken.last.load(Ordering::Relaxed).max(self.released);
        self.parts = own.parts_taken.load(Ordering::Relaxed);
        self.data = own.taken.data.load(Ordering::Relaxed);
        self.tcp = own.taken.tcp.load(Ordering::Relaxed);
        self.number = own.arming.load(Ordering::Relaxed);
        self.told = own.counters[TAKEN_MESSAGES].load(std::sync::atomic::Ordering::Relaxed);
        self.messages = self.told;
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
        self.tcp_start = match self.lane() {
            // The record that opened this part is the one passed last; MAX_UNREAD_RECORDS keeps its place its own.
            Lane::Tcp if self.parts > 0 => {
                parts::opened_at(peer, self.parts.wrapping_sub(1)).unwrap_or(self.tcp)
            }
            _ => 0,
        };
        self.settle()
    }

    /// Leaves word for the next holder of the lock.
    #[inline]
    pub fn save(&self) {
        self.own.header().taken.last.store(self.head, Ordering::Relaxed);
    }

    /// The lane of the next byte, as far as is known.
    #[inline]
    fn lane(&self) -> Lane {
        Lane::of(self.parts)
    }

    /// Stream offset: bytes taken from both lanes.
    #[inline]
    pub fn stream(&self) -> u64 {
        self.head.wrapping_add(self.data)
    }

    /// Whether all was taken that the other end says it has sent, in both lanes.
    #[cold]
    pub fn took_all(&self) -> bool {
        let peer = self.peer.header();
        peer.tail.load(Ordering::Acquire) == self.head && peer.sent.data.load(Ordering::Relaxed) == self.data
    }

    /// When the other end last published bytes or its end and saw none before them in its ring, in ticks of a clock that all
    /// ends share: anything at all, if that end is hostile.
    #[inline]
    pub fn published_at(&self) -> u64 {
        self.peer.header().stamp.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Stream bytes taken from the kernel.
    #[inline]
    pub fn taken_from_tcp(&self) -> u64 {
        self.data
    }

    /// TCP-lane offset: bytes and bells taken from the kernel.
    pub fn tcp_lane(&self) -> u64 {
        self.tcp
    }

    /// The other end's head as this half saw it last, unchecked.
    #[inline(always)]
    pub(crate) fn peer_head(&self) -> u64 {
        self.peer_head
    }

    /// Ring bytes that are here and belong to this part.
    #[inline(always)]
    fn in_ring(&self) -> usize {
        // `refresh` keeps `tail` at most a ring's length ahead of `head`.
        let here = self.tail.wrapping_sub(self.head) as usize;
        match self.next {
            None => here,
            Some(next) => {
                usize::try_from(next.start.wrapping_sub(self.stream())).map_or(here, |left| left.min(here))
            }
        }
    }

    /// What can be taken now.
    ///
    /// # Errors
    /// The other end's words are nonsense.
    #[inline]
    pub fn look(&mut self) -> Result<Ready, Corrupt> {
        if self.lane() == Lane::Ring {
            let here = self.in_ring();
            if here > 0 {
                return Ok(Ready::Ring(here));
            }
        }
        self.look_again()
    }

    /// What can be taken now, with a new look at the other end's words.
    ///
    /// # Errors
    /// The other end's words are nonsense.
    #[inline]
    pub fn look_again(&mut self) -> Result<Ready, Corrupt> {
        self.refresh()?;
        if self.lane() == Lane::Ring {
            let here = self.in_ring();
            if here > 0 {
                return Ok(Ready::Ring(here));
            }
        }
        self.release();
        if self.long {
            // The next is likely to be as long, and at the start: its lines come together then,
            // and not one after the other.
            self.peer.prefetch_second_line();
        }
        Ok(match self.lane() {
            Lane::Ring => Ready::Nothing,
            Lane::Tcp => Ready::Tcp { limit: self.next.map(|next| next.start.wrapping_sub(self.stream())) },
        })
    }

    /// Loads the other end's words, checks them, and passes the parts that are at their end.
    #[inline]
    fn refresh(&mut self) -> Result<(), Corrupt> {
        let peer = self.peer.header();
        // DATA-PAIR: acquire the bytes, `base`, and the parts that they belong to.
        let tail = peer.tail.load(Ordering::Acquire);
        if tail != self.tail {
            let here = tail.wrapping_sub(self.head);
            if here > self.peer.ring_length() as u64 || here < self.tail.wrapping_sub(self.head) {
                return Err(Corrupt::Tail);
            }
            let base = peer.base.load(Ordering::Relaxed);
            if base != self.base {
                // It moves only when all was taken, to where that ended.
                if base != self.head {
                    return Err(Corrupt::Base);
                }
                self.base = base;
                self.index = 0;
            }
            self.tail = tail;
        }
        // HEAD-PAIR: acquire the end of the other end's copying.
        self.peer_head = peer.head.load(Ordering::Acquire);
        if self.next.is_some() || parts::unread(peer, self.parts)? > 0 {
            return self.settle();
        }
        Ok(())
    }

    /// Learns of the next part, and passes parts that are at their end.
    #[cold]
    fn settle(&mut self) -> Result<(), Corrupt> {
        let peer = self.peer.header();
        let unread = parts::unread(peer, self.parts)?;
        for _ in 0..unread {
            let next = match self.next {
                Some(next) => next,
                None => parts::read(peer, self.parts, self.stream(), self.tcp)?,
            };
            self.next = Some(next);
            if next.start != self.stream() {
                break;
            }
            self.next = None;
            self.tcp_start = next.tcp_start.unwrap_or(0);
            self.parts = self.parts.wrapping_add(1);
            // An heir must not come to the new part with less taken than the old one had.
            self.save();
            // PASSED-PAIR: release the reading of this record.
            self.own.header().parts_taken.store(self.parts, Ordering::Release);
        }
        Ok(())
    }

    /// Whether the part that is being taken has an end that is known: the bytes behind it came
    /// by the other lane.
    #[inline]
    pub fn nears_next_part(&self) -> bool {
        self.next.is_some()
    }

    /// Ring count that the other end had published at the last look.
    #[inline]
    pub fn arrived(&self) -> u64 {
        self.tail
    }

    /// Whether the next byte comes through the kernel, as of the last look.
    #[inline]
    pub fn is_in_tcp(&self) -> bool {
        self.lane() == Lane::Tcp
    }

    /// Whether that is so, and no bell lies before it.
    #[inline]
    pub fn is_behind_bells(&self) -> bool {
        self.is_in_tcp() && self.tcp >= self.tcp_start
    }

    /// Bytes of the TCP lane, bells among them, that the other end says it sent and that were
    /// not taken: what it says lags behind what it did.
    #[inline]
    pub fn kernel_has(&self) -> u64 {
        self.peer.header().sent.tcp.load(Ordering::Relaxed).saturating_sub(self.tcp)
    }

    /// How many bytes of the TCP lane are data before anybody looks at them: those that the other end has
    /// counted, up to the first bell among them. They are on their way at least.
    ///
    /// # Errors
    /// The other end's words are nonsense.
    pub fn surely_data(&mut self) -> Result<u64, Corrupt> {
        // COUNT-PAIR: acquire the part that was opened before a bell was counted.
        let sent = self.peer.header().sent.tcp.load(Ordering::Acquire);
        match sent.saturating_sub(self.tcp) {
            0 => Ok(0),
            counted => match self.tcp(counted)? {
                Front::Data(count) => Ok(count),
                Front::Bells(_) | Front::Later => Ok(0),
            },
        }
    }

    /// Copies bytes from the ring, as many as fit and are here; 0 if the next byte is not in
    /// the ring.
    ///
    /// # Errors
    /// The other end's words are nonsense.
    #[inline]
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Corrupt> {
        let here = match self.look()? {
            Ready::Ring(here) => here.min(buffer.len()),
            Ready::Tcp { .. } | Ready::Nothing => return Ok(0),
        };
        self.index = self.peer.copy_out(self.index, &mut buffer[..here]);
        self.took(here);
        Ok(here)
    }

    /// As [`Receiver::read`], into one buffer after the other.
    ///
    /// # Errors
    /// The other end's words are nonsense.
    pub fn read_vectored<'a>(
        &mut self,
        buffers: impl IntoIterator<Item = &'a mut [u8]>,
    ) -> Result<usize, Corrupt> {
        let mut taken = 0;
        for buffer in buffers {
            let wanted = buffer.len();
            let here = self.read(buffer)?;
            taken += here;
            if here < wanted {
                break;
            }
        }
        Ok(taken)
    }

    /// As [`Receiver::read`], from behind the first `skip` bytes, but takes nothing.
    ///
    /// # Errors
    /// The other end's words are nonsense.
    pub fn peek(&mut self, skip: usize, buffer: &mut [u8]) -> Result<usize, Corrupt> {
        let here = match self.look_again()? {
            Ready::Ring(here) if skip < here => (here - skip).min(buffer.len()),
            Ready::Ring(_) | Ready::Tcp { .. } | Ready::Nothing => return Ok(0),
        };
        let ring_length = self.peer.ring_length();
        // `skip` is less than what the ring holds.
        let index = self.index + skip;
        let index = if index < ring_length { index } else { index - ring_length };
        self.peer.copy_out(index, &mut buffer[..here]);
        Ok(here)
    }

    /// Takes up to `count` bytes from the ring without copying them; returns how many.
    ///
    /// # Errors
    /// The other end's words are nonsense.
    pub fn skip(&mut self, count: usize) -> Result<usize, Corrupt> {
        let here = match self.look()? {
            Ready::Ring(here) => here.min(count),
            Ready::Tcp { .. } | Ready::Nothing => return Ok(0),
        };
        let index = self.index + here;
        let ring_length = self.peer.ring_length();
        self.index = if index < ring_length { index } else { index - ring_length };
        self.took(here);
        Ok(here)
    }

    #[inline(always)]
    fn took(&mut self, count: usize) {
        if count > 0 {
            self.long = count > SHORT;
            self.count();
        }
        self.head = self.head.wrapping_add(count as u64);
        if self.head.wrapping_sub(self.released) >= self.peer.ring_length() as u64 / 4 {
            self.release();
        }
    }

    /// Tells the other end's sender what was taken, if it does not know.
    #[inline]
    pub fn release(&mut self) {
        if self.released != self.head {
            self.released = self.head;
            // HEAD-PAIR: release the end of our copying.
            self.own.header().head.store(self.head, Ordering::Release);
        }
    }

    /// What the first `unread` bytes of the TCP lane, which lie unread in the kernel or were
    /// read already but not counted with [`Receiver::took_tcp`], begin with. To be asked
    /// after the kernel was.
    ///
    /// # Errors
    /// The other end's words are nonsense.
    pub fn tcp(&mut self, unread: u64) -> Result<Front, Corrupt> {
        self.refresh()?;
        Ok(match self.lane() {
            Lane::Tcp if self.tcp < self.tcp_start => Front::Bells(unread.min(self.tcp_start - self.tcp)),
            Lane::Tcp => {
                let left = self.next.map_or(u64::MAX, |next| next.start.wrapping_sub(self.stream()));
                Front::Data(unread.min(left))
            }
            Lane::Ring => {
                let part = self.next.and_then(|next| next.tcp_start);
                // Copies of what was not taken stay: who has the connection after this end may need them.
                let copies = self.copies().map(|copies| copies.start);
                match part.into_iter().chain(copies).min() {
                    None => Front::Bells(unread),
                    Some(start) if self.tcp < start => Front::Bells(unread.min(start - self.tcp)),
                    Some(_) => Front::Later,
                }
            }
        })
    }

    /// Where in the TCP lane the ring bytes that were not taken lie once more, if they do, or are about to. To be asked behind a
    /// refresh that came after the kernel was asked, or after the other end was seen to give it nothing.
    fn copies(&self) -> Option<Range<u64>> {
        let peer = self.peer.header();
        // COPY-PAIR: acquire where they lie.
        let word = peer.copied.load(Ordering::Acquire);
        // COPY-PAIR: acquire that the words change: those that are announced then are in nobody's kernel yet.
        let last = peer.copied_tail.load(Ordering::Acquire) == self.tail;
        let start = peer.copied_at.load(Ordering::Acquire);
        let same = peer.copied.load(Ordering::Relaxed) == word;
        let copied = u64::from(word & COPIES_MOST);
        let untaken = self.tail.wrapping_sub(self.head);
        let end = start.saturating_add(copied);
        (last && same && (1..=copied).contains(&untaken)).then(|| end.saturating_sub(untaken)..end)
    }

    /// The first `count` bytes of the TCP lane were taken: no more than [`Receiver::tcp`]
    /// said they were bells or data.
    pub fn took_tcp(&mut self, count: u64) {
        if self.took_before(count) > 0 {
            self.count();
        }
    }

    /// As [`Receiver::took_tcp`], of messages that nobody counted; how many bytes of them
    /// were data.
    pub fn took_before(&mut self, count: u64) -> u64 {
        let own = self.own.header();
        let bells = match self.lane() {
            Lane::Tcp => count.min(self.tcp_start.saturating_sub(self.tcp)),
            Lane::Ring => count,
        };
        self.tcp = self.tcp.wrapping_add(count);
        self.data = self.data.wrapping_add(count - bells);
        own.taken.data.store(self.data, Ordering::Relaxed);
        own.taken.tcp.store(self.tcp, Ordering::Relaxed);
        count - bells
    }

    /// One more message was taken; as the sender half's.
    #[inline(always)]
    fn count(&mut self) {
        self.messages = self.messages.wrapping_add(1);
        if self.messages.wrapping_sub(self.told) >= COUNTED_EVERY {
            self.tell_count();
        }
    }

    /// Messages that were taken.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Stores how many messages were taken, if the segment does not tell.
    #[inline]
    pub fn tell_count(&mut self) {
        if self.told != self.messages {
            self.told = self.messages;
            let counter = &self.own.header().counters[TAKEN_MESSAGES];
            counter.store(self.messages, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Ring bytes that are here, of all parts, as of the last look.
    #[inline]
    pub fn untaken(&self) -> usize {
        // `refresh` keeps `tail` at most a ring's length ahead of `head`.
        self.tail.wrapping_sub(self.head) as usize
    }

    /// Whether all that was ever in the ring has been taken: what a FIN, once read from the
    /// kernel, announces is then the end of the stream.
    ///
    /// # Errors
    /// The other end's words are nonsense.
    pub fn is_at_end_of_ring(&mut self) -> Result<bool, Corrupt> {
        self.refresh()?;
        Ok(self.tail == self.head)
    }

    /// Whether ring bytes are here that were never taken: a close then is a reset.
    ///
    /// # Errors
    /// The other end's words are nonsense.
    pub fn unread(&mut self) -> Result<bool, Corrupt> {
        self.is_at_end_of_ring().map(|end| !end)
    }
}
