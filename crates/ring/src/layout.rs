//! The layout of a shared region and of a loop page, version 1.

use crate::sync::{AtomicU32, AtomicU64};

/// First word of a region, "MPR1".
pub const REGION_MAGIC: u32 = 0x3152_504d;
/// First word of a loop page, "MPL1".
pub const LOOP_MAGIC: u32 = 0x314c_504d;
/// The layout version of this crate.
pub const VERSION: u32 = 1;
/// Region sizes are multiples of this many bytes.
pub const PAGE: usize = 4096;
/// The smallest region in bytes.
pub const MIN_SIZE: usize = 8 * 1024;
/// The largest region in bytes.
pub const MAX_SIZE: usize = 16 * 1024 * 1024;
/// Bytes of a loop page.
pub const LOOP_PAGE_SIZE: usize = 4096;
/// Offset of the ring in a region.
pub const RING_OFFSET: usize = 1048;
/// Places for records in a region; each record opens a run.
pub const RECORDS: u32 = 8;
/// Records that may be unread. One less than [`RECORDS`]: a process that takes over the
/// receiver of a TCP run reads the record that opened the run again, although it was
/// passed.
pub const MAX_UNREAD_RECORDS: u32 = RECORDS - 1;
/// Words for statistics in a region and in a loop page.
pub const COUNTERS: usize = 16;
/// Offset of the counters in a region.
pub const REGION_COUNTERS_OFFSET: usize = 512;
/// Counter of a region: messages that its endpoint sent, over either path. Written by the
/// sender half, in another cache line than the receiver half's.
pub const SENT_MESSAGES: usize = 0;
/// Counter of a region: messages that its endpoint consumed, over either path.
pub const CONSUMED_MESSAGES: usize = 8;
/// A half publishes its count after this many messages at the latest, and whenever its
/// owner is idle.
pub(crate) const COUNTED_EVERY: u64 = 64;
/// Waiters of a loop page: epoll sets or threads that sleep independently.
pub const WAITERS: u32 = 61;
/// The waiter of a receiver that is polled whatever its loop does: it never sleeps.
pub const NO_WAITER: u32 = u32::MAX;
/// `at_kernel`: a wake-up byte, or the first bytes of a TCP run, are on their way into
/// the kernel.
pub(crate) const BUSY: u32 = 1;
/// `owes`: this endpoint was demoted before the peer, and resends nothing.
pub(crate) const REFUSED: u32 = u32::MAX;
/// `owes`: this endpoint requests the return of the bytes that the peer did not consume,
/// and sends nothing until it has them.
pub(crate) const WANTS_RETURN: u32 = u32::MAX - 1;
/// `ended`: this endpoint reads no more.
pub(crate) const ENDED: u32 = 1;
/// `demoted`: this endpoint is demoted: it consumes nothing from the ring any more.
pub(crate) const DEMOTED: u32 = 1;
/// `demoted`: demoted, and the unread bytes cannot be resent in order, since they lie on
/// both paths.
pub(crate) const DEMOTED_ON_BOTH: u32 = 2;
/// `demoted`: all of those bytes were returned.
pub(crate) const RETURNED_ALL: u32 = 3;
/// `at_kernel`: this endpoint sends nothing more.
pub(crate) const FINISHED: u32 = 2;
/// `copied`: the largest number of copies; no ring is longer.
pub(crate) const COPIES_MOST: u32 = (1 << 24) - 1;
/// Offset of the counters in a loop page.
pub const LOOP_COUNTERS_OFFSET: usize = 128;

/// Why memory is not a region or loop page of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// No region may have this size.
    #[error("a region of {0} bytes; it has {MIN_SIZE} to {MAX_SIZE}, a multiple of {PAGE}")]
    Size(usize),
    /// The header states another size than was mapped.
    #[error("the region says it has {said} bytes, and is mapped with {mapped}")]
    OtherSize {
        /// The size in the region's header.
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

/// The header of a new region of `size` bytes; the remaining bytes are zeros.
///
/// # Errors
/// [`LayoutError::Size`] if no region may have this size.
pub fn format_region(size: usize) -> Result<[u8; 12], LayoutError> {
    check_size(size)?;
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&REGION_MAGIC.to_le_bytes());
    bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
    // At most MAX_SIZE, so it fits.
    bytes[8..].copy_from_slice(&(size as u32).to_le_bytes());
    Ok(bytes)
}

/// The header of a new loop page; the remaining bytes are zeros.
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
    if magic != REGION_MAGIC {
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

/// Bytes between words: atomics, since the peer may write anything there.
#[cfg(not(ring_loom))]
type Gap<const N: usize> = [std::sync::atomic::AtomicU8; N];
#[cfg(ring_loom)]
#[derive(Debug, Default)]
struct Gap<const N: usize>;

/// Orders nothing, so the model checker need not track it.
type Stamp = std::sync::atomic::AtomicU64;

/// Words for statistics. They order nothing, so the model checker need not track them.
pub type Counters = [std::sync::atomic::AtomicU64; COUNTERS];

/// A record, which opens a run of a direction.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Record {
    pub(crate) start: AtomicU64,
    pub(crate) tcp_start: AtomicU64,
}

/// The words of a region before its ring. Gaps are named by their offset.
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
    /// The waiter of the loop page that polls this receiver while it is hot.
    pub(crate) waiter: AtomicU32,
    /// Not 0: this endpoint is demoted. It consumes nothing from the ring, and ignores
    /// wake-up bytes.
    pub(crate) demoted: AtomicU32,
    /// 1: a process has used this endpoint that did not map it at the promotion.
    pub(crate) several: AtomicU32,
    /// The process that used this endpoint last.
    pub(crate) process: AtomicU32,
    /// Forks that added a holder of this endpoint, less the holders that closed it.
    pub(crate) forks: AtomicU32,
    /// 1: this endpoint sends through the kernel for good.
    pub(crate) keeps_tcp: AtomicU32,
    /// What this endpoint is giving the kernel; a peer that is demoted has to wait for
    /// it.
    pub(crate) at_kernel: AtomicU32,
    /// 1 plus the ring bytes to be resent since the peer was demoted; 0: not answered.
    pub(crate) owes: AtomicU32,
    /// Calls in progress, in all processes of this endpoint, that send bytes of a TCP
    /// run.
    pub(crate) sending: AtomicU32,
    /// 0. Earlier builds wrote 1 to return both endpoints to TCP.
    reserved: AtomicU32,
    /// Bytes that this endpoint has returned since its demotion: the last of them lie
    /// behind `tail`.
    pub(crate) returned: AtomicU64,
    /// How many of the bytes that the demoted peer returned this endpoint has read.
    pub(crate) returned_accepted: AtomicU64,
    pub(crate) runs_published: AtomicU32,
    pub(crate) runs_passed: AtomicU32,
    pub(crate) tcp_wake_ups: AtomicU32,
    gap_140: Gap<4>,
    /// The TCP-path offset at which copies of ring bytes begin, the ring count behind the
    /// last of them, and their number, with a generation number of these three words
    /// above [`COPIES_MOST`].
    pub(crate) copied_at: AtomicU64,
    pub(crate) copied_tail: AtomicU64,
    pub(crate) copied: AtomicU32,
    gap_164: Gap<4>,
    /// CLOCK_MONOTONIC in nanoseconds of this endpoint's last wake-up call; 0: not
    /// reported.
    pub(crate) woke_at: AtomicU64,
    gap_176: Gap<16>,
    pub(crate) records: [Record; RECORDS as usize],
    pub(crate) send_lock: AtomicU32,
    pub(crate) receive_lock: AtomicU32,
    gap_328: Gap<56>,
    pub(crate) sent: Positions,
    pub(crate) consumed: Positions,
    /// The last arming number.
    pub(crate) arming: AtomicU32,
    gap_436: Gap<76>,
    pub(crate) counters: Counters,
    gap_640: Gap<376>,
    /// When the sender last published into a ring that it saw empty (`stamp`): a hint.
    pub(crate) stamp: Stamp,
    pub(crate) tail: AtomicU64,
    pub(crate) base: AtomicU64,
    pub(crate) head: AtomicU64,
}

/// The position of one half, for the other processes that hold this endpoint.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Positions {
    /// Stream bytes that went through the kernel connection.
    pub(crate) data: AtomicU64,
    /// TCP-path offset: these bytes and wake-up bytes.
    pub(crate) tcp: AtomicU64,
    /// Sender: the arming number of the last wake-up. Receiver: ring count consumed,
    /// which may be ahead of the published head.
    pub(crate) last: AtomicU64,
}

/// The words of a loop page.
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
    /// Waiters 1 and on.
    pub(crate) others: [WaiterWord; OTHER_WAITERS],
}

#[cfg(not(ring_loom))]
const OTHER_WAITERS: usize = WAITERS as usize - 1;
/// The model has few, since the checker tracks each word.
#[cfg(ring_loom)]
const OTHER_WAITERS: usize = 1;

/// A word in its own cache line: a loop writes it each time that it goes to sleep or
/// wakes.
#[derive(Debug)]
#[cfg_attr(ring_loom, derive(Default))]
#[repr(C, align(8))]
pub(crate) struct WaiterWord {
    asleep: AtomicU32,
    gap_4: Gap<60>,
}

impl LoopHeader {
    /// The word of a waiter; `None` if there is no such waiter, as for [`NO_WAITER`].
    #[inline(always)]
    pub(crate) fn asleep(&self, waiter: u32) -> Option<&AtomicU32> {
        match waiter {
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
    assert!(offset_of!(Header, waiter) == 72);
    assert!(offset_of!(Header, demoted) == 76);
    assert!(offset_of!(Header, several) == 80);
    assert!(offset_of!(Header, process) == 84);
    assert!(offset_of!(Header, forks) == 88);
    assert!(offset_of!(Header, keeps_tcp) == 92);
    assert!(offset_of!(Header, at_kernel) == 96);
    assert!(offset_of!(Header, owes) == 100);
    assert!(offset_of!(Header, sending) == 104);
    assert!(offset_of!(Header, reserved) == 108);
    assert!(offset_of!(Header, returned) == 112);
    assert!(offset_of!(Header, returned_accepted) == 120);
    assert!(offset_of!(Header, runs_published) == 128);
    assert!(offset_of!(Header, runs_passed) == 132);
    assert!(offset_of!(Header, tcp_wake_ups) == 136);
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
    assert!(offset_of!(Header, consumed) == 408);
    assert!(offset_of!(Header, arming) == 432);
    assert!(offset_of!(Header, counters) == REGION_COUNTERS_OFFSET);
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
    assert!(size_of::<WaiterWord>() == 64);
    assert!(size_of::<LoopHeader>() <= LOOP_PAGE_SIZE);
};
