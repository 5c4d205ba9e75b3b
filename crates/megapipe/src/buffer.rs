//! Memory of operations: the channel's buffer pool, and the data a caller lends.
//!
//! Reads take a buffer of the pool only when there are bytes to put in it, so an idle
//! connection holds no memory. A [`Buffer`] goes back to its pool when it is dropped.
#![allow(unsafe_code)] // raw slices of pool memory and of memory lent by C callers

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use bytes::Bytes;
use socket2::SockAddr;
use sys::mapping::Mapping;

use crate::id::OpId;

/// Where the kernel puts a datagram's header and its sender's address in a pool buffer:
/// `struct io_uring_recvmsg_out`, then the address, then the payload. Both engines keep
/// to this layout.
pub(crate) const NAME_OFFSET: usize = 16;
/// Room for any socket address (`sizeof(struct sockaddr_storage)`).
pub(crate) const NAME_SIZE: usize = 128;
/// First payload byte of a datagram.
pub(crate) const DATAGRAM_OFFSET: usize = NAME_OFFSET + NAME_SIZE;

const CACHE_LINE: usize = 64;

/// Buffers of one size in one mapping, single-threaded.
pub(crate) struct Pool {
    memory: Mapping,
    buffer_size: u32,
    /// Bytes from one buffer's start to the next one's.
    stride: usize,
    count: u16,
    /// Free buffers: for the engine to take, or to lend to the kernel.
    free: RefCell<Vec<u16>>,
    /// For each buffer that counts towards a quota, its stream. Empty until the first does.
    counted: RefCell<Vec<OpId>>,
    /// The streams of counted buffers that were dropped, for the channel to take.
    returned: RefCell<Vec<OpId>>,
}

impl Pool {
    pub(crate) fn new(count: u16, buffer_size: u32) -> io::Result<Rc<Pool>> {
        // One cache line more than a round number: the first lines of the buffers, which
        // small messages use, then lie in different sets of the caches.
        let stride = (buffer_size as usize).next_multiple_of(CACHE_LINE) + CACHE_LINE;
        let memory = Mapping::anonymous(usize::from(count) * stride)?;
        let mut free = Vec::with_capacity(usize::from(count));
        free.extend((0..count).rev());
        let (counted, returned) = (RefCell::default(), RefCell::default());
        Ok(Rc::new(Pool { memory, buffer_size, stride, count, free: RefCell::new(free), counted, returned }))
    }

    pub(crate) fn count(&self) -> u16 {
        self.count
    }

    pub(crate) fn buffer_size(&self) -> u32 {
        self.buffer_size
    }

    pub(crate) fn address(&self, id: u16) -> *mut u8 {
        debug_assert!(id < self.count);
        self.memory.address().wrapping_add(usize::from(id) * self.stride)
    }

    pub(crate) fn take_free(&self) -> Option<u16> {
        self.free.borrow_mut().pop()
    }

    /// Takes a free buffer and has `f` fill it; `f` returns how much it wrote. A buffer to which it
    /// wrote nothing is free again. `None` if there is no free one.
    #[cfg(feature = "tcp")]
    pub(crate) fn fill_free<T>(
        &self,
        f: impl FnOnce(&mut [u8]) -> Result<usize, T>,
    ) -> Option<Result<(u16, usize), T>> {
        let id = self.take_free()?;
        // SAFETY: `id` was free, so nothing else refers to its memory, which is mapped with
        // zeros and at least `buffer_size` long.
        let room = unsafe { std::slice::from_raw_parts_mut(self.address(id), self.buffer_size as usize) };
        let filled = f(room);
        if !matches!(filled, Ok(1..)) {
            self.put_free(id);
        }
        Some(filled.map(|len| (id, len)))
    }

    pub(crate) fn free_count(&self) -> usize {
        self.free.borrow().len()
    }

    pub(crate) fn put_free(&self, id: u16) {
        self.free.borrow_mut().push(id);
    }

    /// The buffer `id`, holding `len` bytes from `start` on.
    ///
    /// The caller hands over the only claim to `id`: it was taken from the free list, or
    /// the kernel reported it filled.
    pub(crate) fn claim(self: &Rc<Self>, id: u16, start: u32, len: u32) -> Buffer {
        let start = start.min(self.buffer_size);
        let len = len.min(self.buffer_size - start);
        Buffer { pool: Rc::clone(self), id, name_len: 0, truncated: false, counted: false, start, len }
    }

    /// Whether counted buffers were dropped.
    pub(crate) fn has_returned(&self) -> bool {
        !self.returned.borrow().is_empty()
    }

    /// Calls `f` with the stream of each counted buffer that was dropped. No buffer is dropped
    /// meanwhile.
    pub(crate) fn take_returned(&self, f: &mut dyn FnMut(OpId)) {
        let mut returned = self.returned.take();
        returned.drain(..).for_each(f);
        // Its room is used again.
        let meanwhile = self.returned.replace(returned);
        debug_assert!(meanwhile.is_empty(), "a counted buffer was dropped by its channel");
    }

    /// Has the buffers of the pool name the streams they count for.
    pub(crate) fn prepare_counting(&self) {
        self.counted.borrow_mut().resize(self.count.into(), OpId::NONE);
        self.returned.borrow_mut().reserve(self.count.into());
    }

    #[cold]
    fn note_return(&self, id: u16) {
        let stream = self.counted.borrow().get(usize::from(id)).copied();
        self.returned.borrow_mut().extend(stream);
    }
}

/// Bytes in a buffer of a channel's pool. Dropping it gives the buffer back, so hold it
/// no longer than needed: a pool that runs dry pauses every reader of its channel
/// ([`crate::Channel::read_stream_with_quota`] bounds what one stream may take of it).
pub struct Buffer {
    pool: Rc<Pool>,
    id: u16,
    name_len: u8,
    truncated: bool,
    /// It counts towards the quota of the stream that its pool names.
    counted: bool,
    start: u32,
    len: u32,
}

impl Buffer {
    /// Bytes that [`Self::extend_from_slice`] can still take.
    pub fn remaining(&self) -> usize {
        (self.pool.buffer_size - self.start - self.len) as usize
    }

    /// Appends as much of `bytes` as fits and says how much that was.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.remaining());
        let old = self.len as usize;
        self.len += count as u32;
        self[old..].copy_from_slice(&bytes[..count]);
        count
    }

    /// Drops the first `count` bytes (all, if there are fewer).
    pub fn advance(&mut self, count: usize) {
        let count = (count as u64).min(u64::from(self.len)) as u32;
        self.start += count;
        self.len -= count;
    }

    /// Keeps the first `len` bytes (all, if there are fewer).
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len.min(u32::MAX as usize) as u32);
    }

    /// Who sent this datagram; `None` for a stream, or an unnamed sender.
    pub fn sender(&self) -> Option<SockAddr> {
        if self.name_len == 0 {
            return None;
        }
        let at = self.pool.address(self.id).wrapping_add(NAME_OFFSET);
        // SAFETY: the name lies inside this buffer, which only `self` may touch, and
        // `set_sender` bounded its length by NAME_SIZE.
        let name = unsafe { std::slice::from_raw_parts(at, usize::from(self.name_len)) };
        sys::socket::address_from_bytes(name)
    }

    /// Whether the datagram was longer than the buffer; its rest is lost (recv(2),
    /// MSG_TRUNC).
    pub fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// The buffer counts towards the quota of this stream until it is dropped.
    pub(crate) fn count_towards(&mut self, stream: OpId) {
        if let Some(counted) = self.pool.counted.borrow_mut().get_mut(usize::from(self.id)) {
            *counted = stream;
            self.counted = true;
        }
    }

    pub(crate) fn set_sender(&mut self, name_len: u32, truncated: bool) {
        self.name_len = name_len.min(NAME_SIZE as u32) as u8;
        self.truncated = truncated;
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let at = self.pool.address(self.id).wrapping_add(self.start as usize);
        // SAFETY: `start + len <= buffer_size` is kept by every method, the mapping lives
        // as long as `pool`, and no one else holds this id until `drop`.
        unsafe { std::slice::from_raw_parts(at, self.len as usize) }
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let at = self.pool.address(self.id).wrapping_add(self.start as usize);
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(at, self.len as usize) }
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        if self.counted {
            self.pool.note_return(self.id);
        }
        self.pool.put_free(self.id);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("id", &self.id).field("len", &self.len).finish()
    }
}

/// Memory that a C caller lends for the time of one operation.
#[derive(Debug)]
#[doc(hidden)]
pub struct Foreign {
    pub(crate) address: *mut u8,
    len: usize,
}

impl Foreign {
    /// # Safety
    ///
    /// `address` is valid for `len` bytes, for writes too if it is given to a read, and
    /// stays so, untouched by others, until the operation's completion was handed out
    /// or its handle was closed.
    pub unsafe fn new(address: *mut u8, len: usize) -> Foreign {
        Foreign { address, len }
    }
}

/// What a write sends. The completion gives it back.
#[derive(Debug, Default)]
pub enum WriteData {
    /// Nothing: what a failed call to the kernel leaves, and `WriteData::default()`.
    #[default]
    None,
    /// A buffer of the channel's pool; what was read can be sent without a copy. Of a write
    /// that had to wait for room, the bytes come back as a `Vec`: the pool serves others
    /// meanwhile.
    Buffer(Buffer),
    /// A vector of the caller's.
    Vec(Vec<u8>),
    /// Shared or static bytes.
    Bytes(Bytes),
    /// Several parts, sent as one write (writev(2)). On a stream or a file there may be any number; a message of a
    /// datagram socket cannot be cut and has at most 64 that are not empty, beyond which the write is
    /// [`crate::SubmitError::InvalidArgument`].
    Vectored(Vec<WriteData>),
    /// Memory of a C caller.
    #[doc(hidden)]
    Foreign(Foreign),
}

impl WriteData {
    /// Bytes in all parts.
    pub fn len(&self) -> usize {
        match self {
            WriteData::Vectored(parts) => parts.iter().map(WriteData::len).sum(),
            _ => self.part().len(),
        }
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `f` with each part's bytes, in order, the first `skip` bytes left out.
    pub(crate) fn for_each_part<'a>(&'a self, mut skip: usize, f: &mut dyn FnMut(&'a [u8])) {
        let mut visit = |part: &'a WriteData| {
            let bytes = part.part();
            if skip < bytes.len() {
                f(&bytes[skip..]);
            }
            skip = skip.saturating_sub(bytes.len());
        };
        match self {
            WriteData::Vectored(parts) => parts.iter().for_each(visit),
            one => visit(one),
        }
    }

    /// Whether this is memory of a C caller, in whole or in part.
    pub(crate) fn is_foreign(&self) -> bool {
        match self {
            WriteData::Foreign(_) => true,
            WriteData::Vectored(parts) => parts.iter().any(WriteData::is_foreign),
            _ => false,
        }
    }

    /// Moves what lies in a pool's buffers to memory of its own: the pool serves others.
    pub(crate) fn leave_pool(&mut self) {
        match self {
            WriteData::Buffer(buffer) => *self = WriteData::Vec(buffer.to_vec()),
            WriteData::Vectored(parts) => parts.iter_mut().for_each(WriteData::leave_pool),
            _ => {}
        }
    }

    /// The same bytes in memory of our own, for writes that outlive their caller's.
    pub(crate) fn to_owned_copy(&self) -> WriteData {
        let mut copy = Vec::with_capacity(self.len());
        self.for_each_part(0, &mut |part| copy.extend_from_slice(part));
        WriteData::Vec(copy)
    }

    #[inline]
    pub(crate) fn part(&self) -> &[u8] {
        match self {
            WriteData::None | WriteData::Vectored(_) => &[],
            WriteData::Buffer(buffer) => buffer,
            WriteData::Vec(vec) => vec,
            WriteData::Bytes(bytes) => bytes,
            // SAFETY: the maker of the Foreign promised validity for the operation's
            // time, and `self` lives no longer than the operation.
            WriteData::Foreign(foreign) => unsafe {
                if foreign.len == 0 { &[] } else { std::slice::from_raw_parts(foreign.address, foreign.len) }
            },
        }
    }
}

impl From<Buffer> for WriteData {
    fn from(buffer: Buffer) -> Self {
        WriteData::Buffer(buffer)
    }
}

impl From<Vec<u8>> for WriteData {
    fn from(vec: Vec<u8>) -> Self {
        WriteData::Vec(vec)
    }
}

impl From<Bytes> for WriteData {
    fn from(bytes: Bytes) -> Self {
        WriteData::Bytes(bytes)
    }
}

impl From<&'static [u8]> for WriteData {
    fn from(bytes: &'static [u8]) -> Self {
        WriteData::Bytes(Bytes::from_static(bytes))
    }
}

impl From<Vec<WriteData>> for WriteData {
    fn from(parts: Vec<WriteData>) -> Self {
        WriteData::Vectored(parts)
    }
}

/// Where a read put its bytes.
#[derive(Debug, Default)]
pub enum ReadData {
    /// Nowhere: end of file, an error, or no data.
    #[default]
    None,
    /// In a buffer of the channel's pool.
    Buffer(Buffer),
    /// In the caller's vector, whose length is now what was read.
    Vec(Vec<u8>),
    /// In the caller's vectors, filled one after the other (readv(2)).
    Vectored(Vec<Vec<u8>>),
    /// In a C caller's memory.
    #[doc(hidden)]
    Foreign(Vec<Foreign>),
    /// In a C caller's memory, one piece.
    #[doc(hidden)]
    ForeignOne(Foreign),
}

impl ReadData {
    /// The bytes, where they lie in one piece (not for vectored reads, nor for C).
    pub fn bytes(&self) -> &[u8] {
        match self {
            ReadData::Buffer(buffer) => buffer,
            ReadData::Vec(vec) => vec,
            _ => &[],
        }
    }

    /// Calls `f` with the address and room of each piece the kernel may fill.
    pub(crate) fn for_each_room(&mut self, f: &mut dyn FnMut(*mut u8, usize)) {
        match self {
            ReadData::None | ReadData::Buffer(_) => {}
            ReadData::Vec(vec) => f(vec.as_mut_ptr(), vec.capacity()),
            ReadData::Vectored(vecs) => vecs.iter_mut().for_each(|vec| f(vec.as_mut_ptr(), vec.capacity())),
            ReadData::Foreign(pieces) => pieces.iter().for_each(|piece| f(piece.address, piece.len)),
            ReadData::ForeignOne(piece) => f(piece.address, piece.len),
        }
    }

    pub(crate) fn room(&mut self) -> usize {
        let mut room = 0;
        self.for_each_room(&mut |_, len| room += len);
        room
    }

    pub(crate) fn is_foreign(&self) -> bool {
        matches!(self, ReadData::Foreign(_) | ReadData::ForeignOne(_))
    }

    /// Sets the vectors' lengths to the `count` bytes that the kernel wrote.
    pub(crate) fn set_filled(&mut self, count: usize) {
        let mut left = count;
        let mut fill = |vec: &mut Vec<u8>| {
            let here = left.min(vec.capacity());
            // SAFETY: the kernel filled `count` bytes of the pieces in order, so the first
            // `here` bytes of this one are initialised; `here` is within its capacity.
            unsafe { vec.set_len(here) };
            left -= here;
        };
        match self {
            ReadData::Vec(vec) => fill(vec),
            ReadData::Vectored(vecs) => vecs.iter_mut().for_each(fill),
            _ => {}
        }
    }

    /// Has `f` fill the pieces in their order with `count` bytes at most, each call as much
    /// as it says, until it fills less than it was given; returns how much that was. Sets
    /// the vectors' lengths.
    pub(crate) fn fill(&mut self, count: usize, f: &mut dyn FnMut(&mut [u8]) -> usize) -> usize {
        let mut filled = 0;
        let mut done = false;
        self.for_each_room(&mut |address, room| {
            if done {
                return;
            }
            let room = room.min(count - filled);
            // SAFETY: the room is the caller's memory, lent to this read alone; writing zeros
            // first makes it readable as bytes.
            let room = unsafe {
                std::ptr::write_bytes(address, 0, room);
                std::slice::from_raw_parts_mut(address, room)
            };
            let here = f(room).min(room.len());
            filled += here;
            done = here < room.len();
        });
        self.set_filled(filled);
        filled
    }

    /// Leaves the memory to the kernel for ever: for an operation that could not be
    /// stopped.
    pub(crate) fn leak(self) {
        let _ = ManuallyDrop::new(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_buffer_is_free_again() {
        let pool = Pool::new(2, 64).unwrap();
        let id = pool.take_free().unwrap();
        let mut buffer = pool.claim(id, 0, 0);
        assert_eq!(buffer.extend_from_slice(&[7; 100]), 64);
        assert_eq!(pool.free_count(), 1);
        buffer.advance(60);
        assert_eq!(&buffer[..], &[7; 4]);
        drop(buffer);
        assert_eq!(pool.free_count(), 2);
    }

    #[test]
    fn parts_skip_what_was_sent() {
        let data = WriteData::from(vec![WriteData::from(&b"abc"[..]), WriteData::from(vec![b'd', b'e'])]);
        let mut seen = Vec::new();
        data.for_each_part(2, &mut |part| seen.extend_from_slice(part));
        assert_eq!(seen, b"cde");
        assert_eq!(data.len(), 5);
    }
}
