//! The memory that a program passes in its calls.
#![allow(unsafe_code)] // addresses and lengths of C callers become slices

use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use libc::{iovec, msghdr, size_t};

use crate::faults;
use crate::mode;
use crate::real::kept_errno;
use crate::signals;

/// Whether a program can have memory at this address, so that it can be tried: the kernel refuses
/// others.
#[inline(always)]
fn is_memory<T>(address: *const T) -> bool {
    address.addr().wrapping_sub(LOWEST) < HIGHEST - LOWEST && (signals::guards() || signals::begin())
}

/// Whether a program can have memory there: null is refused, too.
fn is_plausible(base: *mut u8, len: usize) -> bool {
    base.addr() >= LOWEST && base.addr().checked_add(len).is_some_and(|end| end <= HIGHEST)
}

/// Whether a `T` can be read there.
#[inline(always)]
pub(crate) fn is_readable<T>(address: *const T) -> bool {
    is_memory(address) && faults::can_be_read(address.cast(), size_of::<T>())
}

/// Whether a `T` can be written there.
#[inline(always)]
pub(crate) fn is_writable<T>(address: *mut T) -> bool {
    is_memory(address) && faults::can_be_written(address.cast(), size_of::<T>())
}

/// Whether `count` of them can be read there: no more than a vector of a call has.
#[inline]
pub(crate) fn are_readable<T>(first: *const T, count: usize) -> bool {
    is_memory(first) && faults::can_be_read(first.cast(), count * size_of::<T>())
}

/// Whether `count` of them can be written there.
#[inline]
pub(crate) fn are_writable<T>(first: *mut T, count: usize) -> bool {
    is_memory(first) && faults::can_be_written(first.cast(), count * size_of::<T>())
}

/// The memory that one call reads or writes: at most IOV_MAX pieces.
#[derive(Clone, Copy)]
pub(crate) struct Pieces<'a> {
    pieces: &'a [iovec],
    /// Bytes of the first pieces that are done.
    skip: usize,
    /// Bytes behind these.
    pub(crate) left: usize,
}

/// One piece of memory, as send(2) and recv(2) take it: cut to what one call moves.
pub(crate) fn piece(base: *const u8, len: size_t) -> iovec {
    iovec { iov_base: base.cast_mut().cast(), iov_len: len.min(MOST_BYTES) }
}

/// Whether the kernel accepts this range of addresses: it refuses a range beyond the program's part
/// before it moves a byte, readable or not (access_ok).
#[inline(always)]
pub(crate) fn is_range(base: *const u8, len: usize) -> bool {
    base.addr().checked_add(len).is_some_and(|end| end < SURELY || end <= highest())
}

/// The end of a program's addresses, at most a page too low.
#[cold]
fn highest() -> usize {
    static KNOWN: AtomicUsize = AtomicUsize::new(0);
    if KNOWN.load(Relaxed) == 0 {
        let is_users = |bits: u32| {
            // SAFETY: for no pages nothing is written: mincore(2) checks only the address.
            unsafe {
                let last = (1usize << bits) - 2 * LARGEST_PAGE;
                libc::syscall(libc::SYS_mincore, last, 0usize, null_mut::<u8>()) == 0
            }
        };
        let candidates = [63, 56, 52, 48].into_iter().filter(|_| !mode::is_confined());
        let bits = kept_errno(|| candidates.into_iter().find(|bits| is_users(*bits)).unwrap_or(USUAL_BITS));
        KNOWN.store((1 << bits) - PAGE, Relaxed);
    }
    KNOWN.load(Relaxed)
}

/// The smallest page size of the architectures, and the largest, whose multiples are page addresses
/// with each.
const PAGE: usize = 4096;
const LARGEST_PAGE: usize = 64 << 10;
/// The bits of a program's addresses, unless it asks the kernel for higher ones.
const USUAL_BITS: u32 = if cfg!(target_arch = "x86_64") { 47 } else { 48 };
/// Below this all addresses are a program's, on every architecture.
const SURELY: usize = (1 << 47) - PAGE;

/// Bytes that Linux moves in one call at most (MAX_RW_COUNT).
const MOST_BYTES: usize = 0x7fff_f000;
/// The first page cannot be mapped (vm.mmap_min_addr), nor addresses beyond a program's part: they
/// have 57 bits at most, and half of them are the kernel's.
const LOWEST: usize = 4096;
const HIGHEST: usize = 1 << 56;
const MOST_PIECES: usize = libc::UIO_MAXIOV as usize;
/// Pieces that are passed to the kernel in one call.
pub(crate) const VECTOR: usize = 16;

impl<'a> Pieces<'a> {
    /// The pieces of a vector; the error is the call's errno.
    ///
    /// # Safety
    ///
    /// As readv(2) and writev(2) require: `count` entries lie at `vector`, and the call owns the
    /// memory of each while it runs.
    pub(crate) unsafe fn new(vector: *const iovec, count: usize) -> Result<Pieces<'a>, i32> {
        if count > MOST_PIECES {
            return Err(libc::EINVAL);
        }
        if count == 0 {
            return Ok(Pieces { pieces: &[], skip: 0, left: 0 });
        }
        if !are_readable(vector, count) {
            return Err(libc::EFAULT);
        }
        // SAFETY: the caller's promise.
        let pieces = unsafe { std::slice::from_raw_parts(vector, count) };
        let mut left = 0usize;
        for iovec { iov_base, iov_len } in pieces {
            if *iov_len > isize::MAX as usize {
                return Err(libc::EINVAL);
            }
            // A single one is cut before it is checked (import_ubuf).
            let len = if count == 1 { *iov_len.min(&MOST_BYTES) } else { *iov_len };
            if !is_range(iov_base.cast(), len) {
                return Err(libc::EFAULT);
            }
            left = left.saturating_add(*iov_len);
        }
        Ok(Pieces { pieces, skip: 0, left: left.min(MOST_BYTES) })
    }

    /// The pieces of a message.
    ///
    /// # Safety
    ///
    /// As recvmsg(2) and sendmsg(2) require.
    pub(crate) unsafe fn of_message(message: &msghdr) -> Result<Pieces<'a>, i32> {
        // SAFETY: the caller's promise.
        unsafe { Pieces::new(message.msg_iov, message.msg_iovlen) }.map_err(|errno| match errno {
            libc::EINVAL if message.msg_iovlen > MOST_PIECES => libc::EMSGSIZE,
            other => other,
        })
    }

    /// One piece, for which [`is_range`] is true.
    pub(crate) fn one(piece: &'a iovec) -> Pieces<'a> {
        Pieces { pieces: std::slice::from_ref(piece), skip: 0, left: piece.iov_len }
    }

    /// The same without the first `count` bytes, which are done.
    pub(crate) fn after(self, count: usize) -> Pieces<'a> {
        Pieces { pieces: self.pieces, skip: self.skip + count, left: self.left.saturating_sub(count) }
    }

    /// The same, cut to `limit` bytes.
    pub(crate) fn at_most(self, limit: usize) -> Pieces<'a> {
        Pieces { left: self.left.min(limit), ..self }
    }

    /// Whether all of it can be read.
    #[inline]
    pub(crate) fn is_readable(self) -> bool {
        self.ranges().all(|(base, len)| is_plausible(base, len) && faults::can_be_read(base, len))
    }

    /// Whether all of it can be written.
    #[inline]
    pub(crate) fn is_writable(self) -> bool {
        self.ranges().all(|(base, len)| is_plausible(base, len) && faults::can_be_written(base, len))
    }

    fn ranges(self) -> impl Iterator<Item = (*mut u8, usize)> {
        let (mut skip, mut left) = (self.skip, self.left);
        self.pieces.iter().filter_map(move |piece| {
            let skipped = skip.min(piece.iov_len);
            skip -= skipped;
            let len = (piece.iov_len - skipped).min(left);
            left -= len;
            // Skipped bytes are bytes of this piece.
            (len > 0).then(|| (piece.iov_base.cast::<u8>().wrapping_add(skipped), len))
        })
    }

    /// The bytes to be sent.
    pub(crate) fn sources(self) -> impl Iterator<Item = &'a [u8]> {
        // SAFETY: `new` and `one` were promised that the memory is readable while the call runs,
        // and `ranges` stays within it. A program that writes to it meanwhile sends mixed bytes, as
        // with the kernel.
        self.ranges().map(|(base, len)| unsafe { std::slice::from_raw_parts(base, len) })
    }

    /// The memory to receive into.
    pub(crate) fn targets(self) -> impl Iterator<Item = &'a mut [u8]> {
        // SAFETY: as for `sources`, writable.
        self.ranges().map(|(base, len)| unsafe { std::slice::from_raw_parts_mut(base, len) })
    }

    /// The only piece, if there is just one: the kernel handles it faster than a vector.
    #[inline]
    pub(crate) fn alone(self) -> Option<(*mut u8, usize)> {
        if self.pieces.len() == 1 { self.ranges().next() } else { None }
    }

    /// Bytes of it that one call into the kernel moves.
    pub(crate) fn in_one_call(self) -> usize {
        self.ranges().take(VECTOR).map(|(_, len)| len).sum()
    }

    /// The vector for a call into the kernel: as much of it as fits.
    pub(crate) fn vector(self, into: &mut [iovec; VECTOR]) -> &mut [iovec] {
        let mut count = 0;
        for (place, (base, len)) in into.iter_mut().zip(self.ranges()) {
            *place = piece(base, len);
            count += 1;
        }
        &mut into[..count]
    }
}
