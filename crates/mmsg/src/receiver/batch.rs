//! Messages that came, and how long they stay.

use std::io;
use std::mem;
use std::ops::Deref;
use std::rc::Rc;

use socket2::SockAddr;
use sys::socket;

use super::pool::Pool;
use super::{Receiver, SocketId};

/// A message of the batch.
#[derive(Clone, Copy)]
pub(super) struct Raw {
    pub(super) id: SocketId,
    pub(super) cookie: u64,
    /// `NO_BUFFER`: an end or an error.
    pub(super) buffer: u32,
    /// Bytes, more than the buffer holds for one that was cut off; or a negative error number.
    pub(super) result: i32,
}

pub(super) const NO_BUFFER: u32 = u32::MAX;

/// Messages that came. Their buffers return to the pool when it is dropped.
pub struct Batch<'receiver> {
    pub(super) receiver: &'receiver mut Receiver,
}

/// One message, or what else a socket had to tell.
#[derive(Debug)]
pub struct Message<'batch> {
    /// Where it came.
    pub socket: SocketId,
    /// What the socket was registered with.
    pub cookie: u64,
    /// What came.
    pub event: Event<'batch>,
}

/// What a socket had to tell.
#[derive(Debug)]
pub enum Event<'batch> {
    /// A datagram, or a piece of a stream.
    Data {
        /// What was received of it.
        data: &'batch [u8],
        /// How long it was: more than `data` if it was cut off.
        len: usize,
        /// Who sent it, if addresses are wanted and it has one.
        from: Option<SockAddr>,
        /// With GRO, for a train: the length of each datagram in it but the last.
        segment: Option<usize>,
    },
    /// The peer sends no more. Nothing more comes of this socket. (With SOCK_SEQPACKET empty messages that are the
    /// last before it look the same and are part of it.)
    End,
    /// The socket's error, which is thereby told. One that stays, such as that of a socket that is not connected, is
    /// told twice, and again when the socket has been read from.
    Error(io::Error),
}

/// A message that outlives its batch.
pub struct Kept {
    pool: Rc<Pool>,
    buffer: u32,
    len: usize,
}

impl Batch<'_> {
    /// How many messages came.
    pub fn len(&self) -> usize {
        self.receiver.messages.len()
    }

    /// Whether the time was over first.
    pub fn is_empty(&self) -> bool {
        self.receiver.messages.is_empty()
    }

    /// The messages in the order in which they were taken, which is each socket's own.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Message<'_>> {
        self.receiver.messages.iter().map(|raw| self.message(raw))
    }

    /// Keeps the data of a message beyond the batch. None for what is no data. Until it is
    /// dropped the pool has a buffer less.
    pub fn keep(&mut self, index: usize) -> Option<Kept> {
        let len = match self.message(self.receiver.messages.get(index)?).event {
            Event::Data { data, .. } => data.len(),
            _ => return None,
        };
        let raw = &mut self.receiver.messages[index];
        let buffer = mem::replace(&mut raw.buffer, NO_BUFFER);
        raw.result = -libc::ENODATA;
        Some(Kept { pool: Rc::clone(&self.receiver.pool), buffer, len })
    }

    fn message(&self, raw: &Raw) -> Message<'_> {
        let receiver = &*self.receiver;
        let event = match (raw.buffer, raw.result) {
            (NO_BUFFER, 0) => Event::End,
            (NO_BUFFER, error) => Event::Error(io::Error::from_raw_os_error(-error)),
            (buffer, len) => {
                let (data, size) = receiver.pool.room(buffer);
                let len = len as usize;
                let entry = receiver.sockets.get(raw.id.slot, raw.id.generation);
                let headers = entry.is_some_and(|entry| receiver.wanted.headers(entry));
                let named = headers && receiver.wanted.addresses;
                Event::Data {
                    // SAFETY: the kernel wrote so many bytes into this buffer, which is the
                    // batch's until the batch is dropped.
                    data: unsafe { std::slice::from_raw_parts(data, len.min(size)) },
                    len,
                    from: if named { socket::address_from_bytes(receiver.pool.name(buffer)) } else { None },
                    segment: if headers && receiver.wanted.gro {
                        receiver.pool.segment(buffer)
                    } else {
                        None
                    },
                }
            }
        };
        Message { socket: raw.id, cookie: raw.cookie, event }
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.receiver.recycle();
    }
}

impl Deref for Kept {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let (data, _) = self.pool.room(self.buffer);
        // SAFETY: the kernel wrote so many bytes, and the buffer is this value's until it is
        // dropped.
        unsafe { std::slice::from_raw_parts(data, self.len) }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.pool.give_back(self.buffer);
    }
}
