//! Where what lies: the words of a segment and of a loop page, version 1.

use crate::sync::{AtomicU32, AtomicU64};

/// First word of a segment, "MPR1".
pub const SEGMENT_MAGIC: u32 = 0x3152_504d;
/// First word of a loop page, "MPL1".
pub const LOOP_MAGIC: u32 = 0x314c_504d;
/// The layout that this crate knows.
pub const VERSION: u32 = 1;
/// Sizes of segments are multiples of this, in bytes.
pub const PAGE: usize = 4096;
/// The smallest segment in bytes.
pub const MIN_SIZE: usize = 8 * 1024;
/// The largest segment in bytes.
pub const MAX_SIZE: usize = 16 * 1024 * 1024;
/// Bytes of a loop page.
pub const LOOP_PAGE_SIZE: usize = 4096;
/// Where the ring begins in a segment.
pub const RING_OFFSET: usize = 1048;
/// Records of parts that a segment has places for.
pub const RECORDS: u32 = 8;
/// Records that may be unread: one less, since who takes over as the receiver of a TCP part reads the record that
/// opened it, which was passed, again.
pub const MAX_UNREAD_RECORDS: u32 = RECORDS - 1;
/// Words for statistics in a segment and in a loop page.
pub const COUNTERS: usize = 16;
/// Where the counters begin in a segment.
pub const SEGMENT_COUNTERS_OFFSET: usize = 512;
/// Counter of a segment: messages that its end sent, in either lane. Written by the sender
/// half, in a line apart from the receiver half's.
pub const SENT_MESSAGES: usize = 0;
/// Counter of a segment: messages that its end took, in either lane.
pub const TAKEN_MESSAGES: usize = 8;
/// Messages after which a half stores its count at the latest; it does so too when its owner
/// has time.
pub(crate) const COUNTED_EVERY: u64 = 64;
/// Sleepers of a loop page: epoll sets or threads that sleep each by itself.
pub const SLEEPERS: u32 = 61;
/// The sleeper of a receiver that is looked at whatever its loop does: never asleep.
pub const NO_SLEEPER: u32 = u32::MAX;
/// `at_kernel`: a bell, or the first bytes of a TCP part, are on their way into the kernel.
pub(crate) const BUSY: u32 = 1;
/// `owes`: this end left before the other did, and sends nothing again.
pub(crate) const REFUSED: u32 = u32::MAX;
/// `owes`: this end wants back what the other end did not take, and sends nothing until it has that.
pub(crate) const WANTS_BACK: u32 = u32::MAX - 1;
/// `ended`: this end reads no more.
pub(crate) const ENDED: u32 = 1;
/// `left`: this end takes nothing from the ring any more.
pub(crate) const LEFT: u32 = 1;
/// `left`: nor can what it did not take be sent again in its order, since it lies in both lanes.
pub(crate) const LEFT_BOTH: u32 = 2;
/// `left`: all of that was given back.
pub(crate) const GAVE_BACK: u32 = 3;
/// `at_kernel`: this end sends nothing more.
pub(crate) const FINISHED: u32 = 2;
/// `copied`: copies, at most; no ring is longer.
pub(crate) const COPIES_MOST: u32 = (1 << 24) - 1;
/// Where the counters begin in a loop page.
pub const LOOP_COUNTERS_OFFSET: usize = 128;

/// Why memory is no segment or loop page of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The size is none that a segment may have.
    #[error("a segment of {0} bytes; it has {MIN_SIZE} to {MAX_SIZE}, a multiple of {PAGE}")]
    Size(usize),
    /// The memory says another size than it has.
    #[error("the segment says it has {said} bytes, and is mapped with {mapped}")]
    OtherSize {
        /// The size in the segment's own words.
        said: u32,
        /// The size that was mapped.
        mapped: usize,
    },
    /// The first word is not the magic number.
    #[error("the memory begins with {0:#010x}, which is not what was asked for")]
    Magic(u32),
    /// Another version.
    #[error("the memory has layout version {0}; this program knows version {VERSION}")]
    Version(u32),
    /// The address is not aligned to a cache line.
    #[error("the memory does not begin at a cache line; map it by pages")]
    Alignment,
}

/// What a new segment of `size` bytes begins with; the rest is zeros.
///
/// # Errors
/// [`LayoutError::Size`] for a size that no segment may have.
pub fn format_segment(size: usize) -> Result<[u8; 12], LayoutError> {
    check_size(size)?;
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&SEGMENT_MAGIC.to_le_bytes());
    bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
    // At most MAX_SIZE, so it fits.
    bytes[8..].copy_from_slice(&(size as u32).to_le_bytes());
    Ok(bytes)
}

/// What a new loop page begins with; the rest is zeros.
pub fn format_loop_page() -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&LOOP_MAGIC.to_le_bytes());
    bytes[4..].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

pub(crate) fn check_size(size: usize) -> Result<(), LayoutError> {
    let possible = (MIN_SIZE..=MAX_SIZE).contains(&size) && size.is_multiple_of(PAGE);
    if possible { Ok(()) } else { Err(LayoutError::Size(size)) }
}

#[cfg(not(ring_loom))]
pub(crate) fn check_words(magic: u32, version: u32, said: u32, mapped: usize) -> Result<(), LayoutError> {
    if magic != SEGMENT_MAGIC {
        return Err(LayoutError::Magic(magic));
    }
    if version != VERSION {
        return Err(LayoutError::Version(version));
    }
    if said as usize != mapped {
        return Err(LayoutError::OtherSize { said, mapped });
    }
    Ok(())
}

/// Bytes between words; atomics, since the other end may write what it likes there.
#[cfg(not(ring_loom))]
type Gap<const N: usize> = [std::sync::atomic::AtomicU8; N];
#[cfg(ring_loom)]
#[derive(Debug, Default)]
struct Gap<const N: usize>;

/// Orders nothing: the model checker need not know it.
type Stamp = std::sync::atomic::AtomicU64;

/// Words for statistics, which order nothing: the model checker need not know them.
pub type Counters = [std::sync::atomic::AtomicU64; COUNTERS];

/// Opens a part of a direction.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Record {
    pub(crate) start: AtomicU64,
    pub(crate) tcp_start: AtomicU64,
}

/// The words of a segment before its ring. Gaps are named by where they begin.
#[derive(Debug)]
#[cfg_attr(ring_loom, derive(Default))]
#[repr(C, align(8))]
pub(crate) struct Header {
    pub(crate) magic: AtomicU32,
    pub(crate) version: AtomicU32,
    pub(crate) size: AtomicU32,
    pub(crate) aware: AtomicU32,
    gap_16: Gap<48>,
    pub(crate) armed: AtomicU32,
    pub(crate) ended: AtomicU32,
    /// Which sleeper of the loop page looks at this receiver while it is hot.
    pub(crate) sleeper: AtomicU32,
    /// Not 0: this end takes nothing from the ring any more, and hears no bells.
    pub(crate) left: AtomicU32,
    /// 1: a process of this end has used it that did not map it at the promotion.
    pub(crate) several: AtomicU32,
    /// The process of this end that used it last.
    pub(crate) process: AtomicU32,
    /// Forks that made one more holder of this end, less those who gave it up.
    pub(crate) forks: AtomicU32,
    /// 1: this end sends through the kernel for good.
    pub(crate) keeps_tcp: AtomicU32,
    /// What this end is doing at the kernel connection that one who leaves has to know.
    pub(crate) at_kernel: AtomicU32,
    /// Ring bytes to be sent again since the other end left, and 1; 0: not answered.
    pub(crate) owes: AtomicU32,
    /// Calls of this end's processes that are giving the kernel bytes of a TCP part.
    pub(crate) sending: AtomicU32,
    /// 0. Builds before wrote 1 where both ends were to go back to TCP.
    reserved: AtomicU32,
    /// Bytes that this end, which left, has given back: the last of them lie behind `tail`.
    pub(crate) given_back: AtomicU64,
    /// Of those of the other end, which left: how many this end has.
    pub(crate) got_back: AtomicU64,
    pub(crate) parts_published: AtomicU32,
    pub(crate) parts_taken: AtomicU32,
    pub(crate) bells: AtomicU32,
    gap_140: Gap<4>,
    /// Where in the TCP lane copies of ring bytes begin, the ring count behind the last of them, and how many they are, with
    /// a number of these three words above [`COPIES_MOST`].
    pub(crate) copied_at: AtomicU64,
    pub(crate) copied_tail: AtomicU64,
    pub(crate) copied: AtomicU32,
    gap_164: Gap<4>,
    /// CLOCK_MONOTONIC in nanoseconds of this end's last wake-up call; 0: not reported.
    pub(crate) woke_at: AtomicU64,
    gap_176: Gap<16>,
    pub(crate) records: [Record; RECORDS as usize],
    pub(crate) send_lock: AtomicU32,
    pub(crate) receive_lock: AtomicU32,
    gap_328: Gap<56>,
    pub(crate) sent: Positions,
    pub(crate) taken: Positions,
    /// The arming number last used.
    pub(crate) arming: AtomicU32,
    gap_436: Gap<76>,
    pub(crate) counters: Counters,
    gap_640: Gap<376>,
    /// When the sender last published into a ring that was empty to it (`stamp`): a hint.
    pub(crate) stamp: Stamp,
    pub(crate) tail: AtomicU64,
    pub(crate) base: AtomicU64,
    pub(crate) head: AtomicU64,
}

/// Where a half of an end is; for the other processes that hold this end.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Positions {
    /// Stream bytes that went through the kernel connection.
    pub(crate) data: AtomicU64,
    /// TCP-lane offset: these bytes and bells.
    pub(crate) tcp: AtomicU64,
    /// Sender: the number last rung for. Receiver: ring count taken, which may be ahead of
    /// the published head.
    pub(crate) last: AtomicU64,
}

/// The words of a loop page that its loop and its peers use.
#[derive(Debug)]
#[cfg_attr(ring_loom, derive(Default))]
#[repr(C, align(8))]
pub(crate) struct LoopHeader {
    pub(crate) magic: AtomicU32,
    pub(crate) version: AtomicU32,
    gap_8: Gap<56>,
    pub(crate) asleep: AtomicU32,
    gap_68: Gap<60>,
    pub(crate) counters: Counters,
    /// Sleepers 1 and on.
    pub(crate) others: [Sleeper; OTHER_SLEEPERS],
}

#[cfg(not(ring_loom))]
const OTHER_SLEEPERS: usize = SLEEPERS as usize - 1;
/// The model has few: each is a word that the checker follows.
#[cfg(ring_loom)]
const OTHER_SLEEPERS: usize = 1;

/// A word in a line of its own: a loop that goes to sleep and wakes writes it often.
#[derive(Debug)]
#[cfg_attr(ring_loom, derive(Default))]
#[repr(C, align(8))]
pub(crate) struct Sleeper {
    asleep: AtomicU32,
    gap_4: Gap<60>,
}

impl LoopHeader {
    /// The word of a sleeper; none if there is no such sleeper, [`NO_SLEEPER`] among them.
    #[inline(always)]
    pub(crate) fn asleep(&self, sleeper: u32) -> Option<&AtomicU32> {
        match sleeper {
            0 => Some(&self.asleep),
            other => self.others.get((other as usize).wrapping_sub(1)).map(|other| &other.asleep),
        }
    }
}

#[cfg(not(ring_loom))]
const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(Header, magic) == 0);
    assert!(offset_of!(Header, version) == 4);
    assert!(offset_of!(Header, size) == 8);
    assert!(offset_of!(Header, aware) == 12);
    assert!(offset_of!(Header, armed) == 64);
    assert!(offset_of!(Header, ended) == 68);
    assert!(offset_of!(Header, sleeper) == 72);
    assert!(offset_of!(Header, left) == 76);
    assert!(offset_of!(Header, several) == 80);
    assert!(offset_of!(Header, process) == 84);
    assert!(offset_of!(Header, forks) == 88);
    assert!(offset_of!(Header, keeps_tcp) == 92);
    assert!(offset_of!(Header, at_kernel) == 96);
    assert!(offset_of!(Header, owes) == 100);
    assert!(offset_of!(Header, sending) == 104);
    assert!(offset_of!(Header, reserved) == 108);
    assert!(offset_of!(Header, given_back) == 112);
    assert!(offset_of!(Header, got_back) == 120);
    assert!(offset_of!(Header, parts_published) == 128);
    assert!(offset_of!(Header, parts_taken) == 132);
    assert!(offset_of!(Header, bells) == 136);
    assert!(offset_of!(Header, copied_at) == 144);
    assert!(offset_of!(Header, copied_tail) == 152);
    assert!(offset_of!(Header, copied) == 160);
    assert!(offset_of!(Header, woke_at) == 168);
    assert!(MAX_SIZE - RING_OFFSET <= COPIES_MOST as usize);
    assert!(offset_of!(Header, records) == 192);
    assert!(size_of::<Record>() == 16);
    assert!(offset_of!(Header, send_lock) == 320);
    assert!(offset_of!(Header, receive_lock) == 324);
    assert!(offset_of!(Header, sent) == 384);
    assert!(offset_of!(Header, taken) == 408);
    assert!(offset_of!(Header, arming) == 432);
    assert!(offset_of!(Header, counters) == SEGMENT_COUNTERS_OFFSET);
    assert!(offset_of!(Header, stamp) == 1016);
    assert!(offset_of!(Header, tail) == 1024);
    assert!(offset_of!(Header, base) == 1032);
    assert!(offset_of!(Header, head) == 1040);
    assert!(size_of::<Header>() == RING_OFFSET);
    assert!(offset_of!(LoopHeader, magic) == 0);
    assert!(offset_of!(LoopHeader, version) == 4);
    assert!(offset_of!(LoopHeader, asleep) == 64);
    assert!(offset_of!(LoopHeader, counters) == LOOP_COUNTERS_OFFSET);
    assert!(offset_of!(LoopHeader, others) == 256);
    assert!(size_of::<Sleeper>() == 64);
    assert!(size_of::<LoopHeader>() <= LOOP_PAGE_SIZE);
};
