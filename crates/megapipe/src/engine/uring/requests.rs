//! Requests as submissions, and the memory that submissions point to.
#![allow(unsafe_code)] // submissions carry raw addresses; all of the engine's are made here

use std::mem;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr;

use socket2::SockAddr;
use sys::socket::AddressRoom;
use sys::uring::squeue::{Entry, Flags};
use sys::uring::{opcode, types};

use super::stock::BUFFER_GROUP;
use super::token::{self, Token};
use super::{BatchSend, SendOf, Uring};
use crate::accept::AcceptAs;
use crate::buffer::{DATAGRAM_OFFSET, NAME_OFFSET, NAME_SIZE};
use crate::core::{Op, OpKind};
use crate::engine::Done;
use crate::engine::view::View;
use crate::engine::watch::Watch;
use crate::id::{Handle, OpId};
use crate::read::PIECES_MAX;
use crate::readiness::Poll;
use crate::source::Shape;
use crate::write::{Destination, Fresh, NextWrites};

/// Submissions that one request may become.
pub(super) const PER_REQUEST: usize = 4;

/// Buffers that a multishot receive may fill before it lets others go first.
const TURN_BUFFERS: u32 = 8;

/// "The file's own position" for reads and writes.
const CURRENT_POSITION: u64 = u64::MAX;

/// Memory of the batch that is being submitted. The kernel copies message headers,
/// addresses and vectors of pieces at submission, so all of it is free afterwards; its
/// capacity is fixed, so that nothing moves before.
pub(super) struct Requests {
    pub(super) batch: Vec<BatchSend>,
    /// Of this batch, as its tokens have it.
    pub(super) number: u32,
    pieces: Vec<libc::iovec>,
    headers: Vec<libc::msghdr>,
    addresses: Vec<SockAddr>,
    /// The header that every multishot recvmsg starts from: room for a name, no control
    /// data.
    datagram_header: Box<libc::msghdr>,
    /// Single reads of datagrams that are under way, each at the index of its operation.
    datagram_reads: Vec<Option<Box<DatagramRead>>>,
    /// Their memory, for the next ones.
    #[expect(clippy::vec_box, reason = "a box that is taken out again costs no allocation")]
    spare_datagram_reads: Vec<Box<DatagramRead>>,
}

/// What a single recvmsg writes beside the payload; the kernel writes it at the end, so
/// it must stay in place.
struct DatagramRead {
    header: libc::msghdr,
    name: [u8; NAME_SIZE],
    piece: libc::iovec,
}

/// Where a request is aimed.
#[derive(Clone, Copy)]
enum Target {
    Fd(RawFd),
    Slot(u32),
}

/// Builds a submission for either kind of target.
macro_rules! aimed {
    ($target:expr, |$file:ident| $entry:expr) => {
        match $target {
            Target::Fd(raw) => {
                let $file = types::Fd(raw);
                $entry
            }
            Target::Slot(slot) => {
                let $file = types::Fixed(slot);
                $entry
            }
        }
    };
}

impl Requests {
    pub(super) fn new(entries: usize) -> Requests {
        // SAFETY: a message header is plain data, for which zero means "absent".
        let mut header: libc::msghdr = unsafe { mem::zeroed() };
        header.msg_namelen = NAME_SIZE as libc::socklen_t;
        Requests {
            batch: Vec::with_capacity(entries),
            number: 0,
            pieces: Vec::with_capacity(4 * PIECES_MAX),
            headers: Vec::with_capacity(entries),
            addresses: Vec::with_capacity(entries),
            datagram_header: Box::new(header),
            datagram_reads: Vec::new(),
            spare_datagram_reads: Vec::new(),
        }
    }

    /// Whether another request might not find room without moving what is there.
    pub(super) fn is_full(&self) -> bool {
        self.pieces.len() + PIECES_MAX > self.pieces.capacity() || self.batch.len() == self.batch.capacity()
    }

    /// Everything was submitted: the kernel has its copies.
    pub(super) fn batch_is_over(&mut self) {
        self.number = (self.number + 1) & token::GENERATION_MASK;
        self.pieces.clear();
        self.headers.clear();
        self.addresses.clear();
    }

    /// Names the next send of the batch.
    #[inline]
    fn next_token(&self) -> Token {
        Token::Batch { place: self.batch.len() as u32, number: self.number }
    }

    /// A header for the pieces from `first` on, at an address that holds until the batch
    /// is submitted.
    fn header(&mut self, first: usize, to: Option<SockAddr>) -> *const libc::msghdr {
        // SAFETY: a message header is plain data, for which zero means "absent".
        let mut header: libc::msghdr = unsafe { mem::zeroed() };
        header.msg_iov = self.pieces[first..].as_mut_ptr();
        header.msg_iovlen = self.pieces.len() - first;
        if let Some(to) = to {
            self.addresses.push(to);
            let to = &self.addresses[self.addresses.len() - 1];
            header.msg_name = to.as_ptr().cast_mut().cast();
            header.msg_namelen = to.len();
        }
        self.headers.push(header);
        &raw const self.headers[self.headers.len() - 1]
    }

    /// Brings a single datagram read into the layout of buffer.rs.
    #[inline]
    pub(super) fn finish_read(&mut self, view: &View<'_>, done: &mut Done) {
        let place = self.datagram_reads.get_mut(done.op.index as usize);
        let Some(read) = place.and_then(Option::take) else { return };
        if done.result == 0
            && !done.has(Done::BUFFER)
            && let Some(buffer) = view.read_pool().take_free()
        {
            // The kernel spends no buffer on an empty datagram, which has a sender all the
            // same.
            done.buffer = buffer;
            done.flags |= Done::BUFFER;
        }
        if done.has(Done::BUFFER) && done.result >= 0 {
            let room = (view.read_pool().buffer_size() as usize).saturating_sub(DATAGRAM_OFFSET);
            let received = done.result as usize;
            let payload = received.min(room);
            let truncated = read.header.msg_flags & libc::MSG_TRUNC != 0 || received > room;
            let flags = if truncated { libc::MSG_TRUNC } else { 0 };
            let name_len = read.header.msg_namelen.min(NAME_SIZE as u32);
            let words = [name_len, 0, payload as u32, flags as u32];
            let start = view.read_pool().address(done.buffer);
            // SAFETY: the kernel or the pool has just given us this buffer alone; all three copies stay
            // within its `buffer_size` bytes, which hold the header, a name and `room`.
            unsafe {
                ptr::copy(start, start.add(DATAGRAM_OFFSET), payload);
                ptr::copy_nonoverlapping(words.as_ptr().cast(), start, NAME_OFFSET);
                ptr::copy_nonoverlapping(read.name.as_ptr(), start.add(NAME_OFFSET), name_len as usize);
            }
            done.result = (DATAGRAM_OFFSET + payload) as i32;
        }
        self.spare_datagram_reads.push(read);
    }

    /// Memory for a single recvmsg into a provided buffer.
    fn datagram_read(&mut self, op: u32, len: u32) -> *mut libc::msghdr {
        let mut read = self.spare_datagram_reads.pop().unwrap_or_else(|| {
            // SAFETY: plain data, for which zero means "absent".
            Box::new(unsafe { mem::zeroed() })
        });
        read.piece = libc::iovec { iov_base: ptr::null_mut(), iov_len: len as usize };
        read.header.msg_name = read.name.as_mut_ptr().cast();
        read.header.msg_namelen = NAME_SIZE as libc::socklen_t;
        read.header.msg_iov = &raw mut read.piece;
        read.header.msg_iovlen = 1;
        read.header.msg_flags = 0;
        let header = &raw mut read.header;
        let place = op as usize;
        if self.datagram_reads.len() <= place {
            self.datagram_reads.resize_with(place + 1, || None);
        }
        self.datagram_reads[place] = Some(read);
        header
    }
}

impl Uring {
    #[inline]
    fn push(&mut self, entry: Entry, token: Token) {
        let entry = entry.user_data(token.to_bits());
        // SAFETY: payload memory belongs to the operation, which the channel keeps until its
        // completion (or leaks); headers, names and pieces belong to the batch, which is
        // kept until it is submitted; provided buffers belong to the pool.
        let pushed = unsafe { self.ring.push(&entry) };
        debug_assert!(pushed, "take_requests made room");
    }

    fn target(view: &View<'_>, handle: u32) -> Option<Target> {
        let file = view.file(handle)?;
        match file.descriptor() {
            Some(fd) => Some(Target::Fd(fd.as_raw_fd())),
            None => file.slot().map(Target::Slot),
        }
    }

    /// Submits an operation that the channel has counted as started.
    pub(super) fn start(&mut self, view: &mut View<'_>, op: OpId) {
        let shutdown = match view.op(op) {
            Some(&Op { kind: OpKind::Poll(poll), cancelled, .. }) => {
                return self.start_poll(view, op, poll, cancelled);
            }
            Some(&Op { kind: OpKind::Disconnect(how) | OpKind::Shutdown(how), handle, .. }) => {
                Some((handle.index, how))
            }
            _ => None,
        };
        if let Some((handle, how)) = shutdown
            && let Some(result) = self.shut_down(view, handle, how)
        {
            self.pending -= 1;
            view.push_done(Done::plain(op, result));
            return;
        }
        let buffer_size = view.read_pool().buffer_size();
        let nearly_full = view.lwsockets_nearly_full();
        let wanted = |entry: &&Op| !matches!(entry.kind, OpKind::Accept(_)) || !view.is_ended(op);
        let target = view.op(op).filter(wanted).and_then(|entry| Self::target(view, entry.handle.index));
        let (Some(target), Some((file, kind))) = (target, view.task(op)) else {
            self.pending -= 1;
            view.push_done(Done::plain(op, -libc::ECANCELED));
            return;
        };
        let shape = file.shape();
        let request = match kind {
            OpKind::Accept(state) => {
                let lightweight = state.kind == AcceptAs::LwSocket;
                let direct = self.direct && lightweight;
                let multishot = state.is_multishot()
                    && self.capabilities.multishot_accept
                    && !(lightweight && nearly_full);
                accept(target, direct, multishot, state.peer.as_deref_mut())
            }
            OpKind::Connect(address) => {
                aimed!(target, |file| opcode::Connect::new(file, address.as_ptr().cast(), address.len())
                    .build())
            }
            OpKind::ReadStream { once, .. } => {
                let multishot = !*once;
                self.pooled_read(target, shape, multishot, op, buffer_size)
            }
            OpKind::Read { data: crate::buffer::ReadData::None, offset: None } => {
                self.pooled_read(target, shape, false, op, buffer_size)
            }
            OpKind::Read { data, offset } => {
                let first = self.requests.pieces.len();
                let pieces = &mut self.requests.pieces;
                data.for_each_room(&mut |address, len| {
                    pieces.push(libc::iovec { iov_base: address.cast(), iov_len: len });
                });
                let offset = offset.unwrap_or(CURRENT_POSITION);
                self.read(target, shape, first, offset)
            }
            OpKind::Shutdown(how) | OpKind::Disconnect(how) => {
                let how = shutdown_argument(*how);
                aimed!(target, |file| opcode::Shutdown::new(file, how).build())
            }
            OpKind::Write { .. } | OpKind::Timer { .. } | OpKind::Poll(_) => {
                debug_assert!(false, "these are not started one by one");
                opcode::Nop::new().build()
            }
        };
        self.push_after_poll(shape, target, libc::POLLIN, request, Token::op(op));
        if let Some((handle, _)) = shutdown {
            self.note_shutdown(view, handle);
        }
    }

    fn start_poll(&mut self, view: &mut View<'_>, op: OpId, poll: Poll, cancelled: bool) {
        // If it was cancelled, the caller may have closed the descriptor by now.
        if cancelled {
            self.pending -= 1;
            return view.push_done(Done::plain(op, -libc::ECANCELED));
        }
        if poll.through_set {
            self.pending -= 1;
            return self.start_poll_in_set(view, op, poll);
        }
        let request = opcode::PollAdd::new(types::Fd(poll.fd), poll.interest.reported()).build();
        self.push(request, Token::op(op));
    }

    fn start_poll_in_set(&mut self, view: &mut View<'_>, op: OpId, poll: Poll) {
        if self.polls.set().is_none() {
            match self.polls.make_set().map(|set| set.as_raw_fd()) {
                Ok(set) => self.push_watch(set, Watch::POLLS),
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(libc::EIO);
                    return view.push_done(Done::plain(op, -errno));
                }
            }
        }
        self.polls.start(view, op, poll);
    }

    /// A pipe with O_NONBLOCK would answer EAGAIN instead of waiting: there the request
    /// waits behind a poll.
    fn push_after_poll(&mut self, shape: Shape, target: Target, events: i16, request: Entry, token: Token) {
        if shape == (Shape::Pipe { nonblocking: true }) {
            let poll = aimed!(target, |file| opcode::PollAdd::new(file, events as u32).build());
            self.push(poll.flags(Flags::IO_LINK | Flags::SKIP_SUCCESS), Token::Silent);
        }
        self.push(request, token);
    }

    /// A read into a buffer that the kernel chooses when there is data.
    fn pooled_read(&mut self, target: Target, shape: Shape, multishot: bool, op: OpId, len: u32) -> Entry {
        match shape {
            Shape::Stream { .. } if multishot && self.capabilities.multishot_recv => {
                // Bytes that one connection may bring in a row before others get their
                // turn.
                let turn = if self.capabilities.recv_len_cap { len * TURN_BUFFERS } else { 0 };
                aimed!(target, |file| opcode::RecvMulti::new(file, BUFFER_GROUP).len(turn).build())
            }
            Shape::Stream { .. } | Shape::Listener { .. } => {
                let recv = aimed!(target, |file| opcode::Recv::new(file, ptr::null_mut(), len)
                    .buf_group(BUFFER_GROUP)
                    .build());
                recv.flags(Flags::BUFFER_SELECT)
            }
            Shape::Datagram { .. } if multishot && self.capabilities.multishot_recvmsg => {
                let header = &raw const *self.requests.datagram_header;
                aimed!(target, |file| opcode::RecvMsgMulti::new(file, header, BUFFER_GROUP).build())
            }
            Shape::Datagram { .. } => {
                let header = self.requests.datagram_read(op.index, len);
                let recv =
                    aimed!(target, |file| opcode::RecvMsg::new(file, header).buf_group(BUFFER_GROUP).build());
                recv.flags(Flags::BUFFER_SELECT)
            }
            Shape::Pipe { .. } | Shape::File => {
                let read = aimed!(target, |file| opcode::Read::new(file, ptr::null_mut(), len)
                    .buf_group(BUFFER_GROUP)
                    .offset(CURRENT_POSITION)
                    .build());
                read.flags(Flags::BUFFER_SELECT)
            }
        }
    }

    /// A read into the pieces from `first` on.
    fn read(&mut self, target: Target, shape: Shape, first: usize, offset: u64) -> Entry {
        let count = self.requests.pieces.len() - first;
        let pieces = &raw const self.requests.pieces[first];
        if shape.is_socket() {
            if count == 1 {
                let piece = self.requests.pieces[first];
                let len = piece.iov_len.min(i32::MAX as usize) as u32;
                return aimed!(target, |file| opcode::Recv::new(file, piece.iov_base.cast(), len).build());
            }
            let header = self.requests.header(first, None).cast_mut();
            return aimed!(target, |file| opcode::RecvMsg::new(file, header).build());
        }
        aimed!(target, |file| opcode::Readv::new(file, pieces, count as u32).offset(offset).build())
    }

    /// Sends what is queued on a handle. Returns whether the outcome must be handed out
    /// before sleeping.
    pub(super) fn start_writes(&mut self, view: &mut View<'_>, handle: u32) -> bool {
        let urgent = match view.next_writes(handle) {
            NextWrites::Nothing => return false,
            NextWrites::Disconnect(op, _) => {
                self.pending += 1;
                self.start(view, op);
                return false;
            }
            NextWrites::Send { urgent } => urgent,
        };
        let Some((target, file)) = Self::target(view, handle).zip(view.file(handle)) else {
            view.report_write(handle, -libc::EBADF, false);
            return true;
        };
        let (shape, blocked) = (file.shape(), file.is_write_blocked());
        let generation = view.name_of(handle).generation;
        let first = self.requests.pieces.len();
        let pieces = &mut self.requests.pieces;
        let bytes = view.for_each_queued(handle, &mut |part| {
            pieces.push(libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
        });
        let (to, offset) = view.next_write_target(handle);
        if !shape.is_socket() {
            let count = self.requests.pieces.len() - first;
            let pieces = self.requests.pieces[first..].as_ptr();
            let offset = offset.unwrap_or(CURRENT_POSITION);
            let request =
                aimed!(target, |file| opcode::Writev::new(file, pieces, count as u32).offset(offset).build());
            self.hold(view, handle);
            let token = Token::held(handle, generation);
            if blocked {
                self.push_after_poll(shape, target, libc::POLLOUT, request, token);
            } else {
                self.push(request, token);
            }
            return urgent;
        }
        let mut flags = libc::MSG_NOSIGNAL;
        if shape.is_stream() {
            flags |= libc::MSG_WAITALL;
        }
        if !blocked {
            flags |= libc::MSG_DONTWAIT;
        }
        let request = self.send(target, first, to, flags);
        if blocked {
            self.hold(view, handle);
            self.push(request, Token::held(handle, generation));
            return false;
        }
        let token = self.requests.next_token();
        self.requests.batch.push(BatchSend { of: SendOf::Queue(handle), bytes, result: None });
        self.push(request.flags(Flags::SKIP_SUCCESS), token);
        urgent
    }

    /// Sends one piece of data as it is.
    #[inline]
    pub(super) fn send_fresh(&mut self, view: &View<'_>, send: Fresh) {
        let part = send.data.part();
        let (address, bytes) = (part.as_ptr(), part.len());
        let len = bytes.min(i32::MAX as usize) as u32;
        let token = self.requests.next_token();
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL | libc::MSG_DONTWAIT;
        let target = Self::target(view, send.handle);
        let mut batch_send = BatchSend { of: SendOf::Fresh(send), bytes, result: None };
        match target {
            Some(target) => {
                let request =
                    aimed!(target, |file| opcode::Send::new(file, address, len).flags(flags).build());
                self.push(request.flags(Flags::SKIP_SUCCESS), token);
            }
            None => batch_send.result = Some(-libc::EBADF),
        }
        self.requests.batch.push(batch_send);
    }

    fn hold(&mut self, view: &mut View<'_>, handle: u32) {
        self.pending += 1;
        view.hold_writes(handle);
    }

    fn send(&mut self, target: Target, first: usize, to: &Destination, flags: i32) -> Entry {
        let to = to.to_address();
        if to.is_none() && self.requests.pieces.len() - first == 1 {
            let piece = self.requests.pieces[first];
            let len = piece.iov_len.min(i32::MAX as usize) as u32;
            return aimed!(target, |file| opcode::Send::new(file, piece.iov_base.cast(), len)
                .flags(flags)
                .build());
        }
        let header = self.requests.header(first, to);
        aimed!(target, |file| opcode::SendMsg::new(file, header).flags(flags as u32).build())
    }

    pub(super) fn cancel_op(&mut self, view: &mut View<'_>, op: OpId) {
        if let Some(&Op {
            kind: OpKind::Poll(poll @ Poll { through_set: true, .. }), started: true, ..
        }) = view.op(op)
        {
            return self.polls.cancel(view, op, poll);
        }
        let handle = view.op(op).map_or(u32::MAX, |entry| entry.handle.index);
        self.cancel_on(view, handle, Token::op(op));
    }

    pub(super) fn cancel_writes(&mut self, view: &View<'_>, handle: u32) {
        self.cancel_on(view, handle, Token::held(handle, view.name_of(handle).generation));
    }

    /// A request that waits behind a poll is not found by its token; all that is pending
    /// on such a pipe is this one request.
    fn cancel_on(&mut self, view: &View<'_>, handle: u32, token: Token) {
        let polled = view.file(handle).is_some_and(|file| file.shape() == Shape::Pipe { nonblocking: true });
        match Self::target(view, handle) {
            Some(target) if polled => self.cancel_file(target, Flags::empty()),
            _ => self.cancel(token, Flags::empty()),
        }
    }

    fn cancel(&mut self, token: Token, flags: Flags) {
        let cancel = opcode::AsyncCancel::new(token.to_bits()).build();
        self.push(cancel.flags(flags | Flags::SKIP_SUCCESS), Token::Silent);
    }

    /// Cancels everything that is pending on a file.
    fn cancel_file(&mut self, target: Target, flags: Flags) {
        let cancel = aimed!(target, |file| {
            opcode::AsyncCancel2::new(types::CancelBuilder::fd(file).all()).build()
        });
        self.push(cancel.flags(flags | Flags::SKIP_SUCCESS), Token::Silent);
    }

    /// Cancels pending operations of a handle, each by its name where the channel has it:
    /// a cancel by file searches everything that is pending in the ring.
    pub(super) fn cancel_pending(&mut self, view: &View<'_>, handle: u32, flags: Flags) {
        let (Some(file), Some(target)) = (view.file(handle), Self::target(view, handle)) else {
            return;
        };
        let generation = view.name_of(handle).generation;
        if view.has_doorbell(handle) {
            self.cancel(Token::Doorbell { index: handle, generation }, flags);
        }
        let read = view.started_read(handle);
        let held = file.is_write_held();
        let known = u32::from(read.is_some()) + u32::from(held);
        let polled = file.shape() == (Shape::Pipe { nonblocking: true });
        if file.in_engine() == 0 {
            return;
        }
        if known != file.in_engine() || polled {
            return self.cancel_file(target, flags);
        }
        if let Some(read) = read {
            self.cancel(Token::op(read), flags);
        }
        if held {
            self.cancel(Token::held(handle, generation), flags);
        }
    }

    pub(super) fn push_cancel_all(&mut self) {
        let cancel = opcode::AsyncCancel2::new(types::CancelBuilder::any().all()).build();
        self.push(cancel.flags(Flags::SKIP_SUCCESS), Token::Silent);
        self.waker_armed = true;
    }

    pub(super) fn close_slot(&mut self, slot: u32) {
        let close = opcode::Close::new(types::Fixed(slot)).build();
        self.push(close.flags(Flags::SKIP_SUCCESS), Token::Silent);
    }

    pub(super) fn close_fd(&mut self, fd: OwnedFd) {
        let raw = fd.into_raw_fd();
        let close = opcode::Close::new(types::Fd(raw)).build();
        self.push(close.flags(Flags::SKIP_SUCCESS), Token::Silent);
    }

    pub(super) fn push_poll_waker(&mut self) {
        let eventfd = types::Fd(self.waker.descriptor().as_raw_fd());
        let poll = opcode::PollAdd::new(eventfd, libc::POLLIN as u32).multi(true).build();
        self.push(poll, Token::Wake);
    }

    /// Once: what has come is read to its end, and the poll is armed again.
    pub(super) fn push_watch(&mut self, fd: RawFd, watch: Watch) {
        let poll = opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).build();
        self.push(poll, Token::Watch(watch));
        self.watched += 1;
    }

    /// Until it is cancelled: each byte that comes is an event.
    pub(super) fn push_doorbell(&mut self, fd: RawFd, handle: Handle) {
        let poll = opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).multi(true).build();
        self.push(poll, Token::Doorbell { index: handle.index, generation: handle.generation });
        self.watched += 1;
    }

    /// Puts the descriptor into a free slot, whose number replaces it in `*number`. The
    /// caller waits for the answer before it lets go of `number`.
    pub(super) fn push_adopt(&mut self, number: &mut RawFd) {
        const ANY_SLOT: i32 = -1;
        let update = opcode::FilesUpdate::new(&raw const *number, 1).offset(ANY_SLOT).build();
        self.push(update, Token::Control);
    }

    /// Makes a descriptor of a slot; the answer is its number.
    pub(super) fn push_export(&mut self, slot: u32) {
        let install = opcode::FixedFdInstall::new(types::Fixed(slot), 0).build();
        self.push(install, Token::Control);
    }
}

fn accept(target: Target, direct: bool, multishot: bool, peer: Option<&mut AddressRoom>) -> Entry {
    let slot = direct.then_some(types::DestinationSlot::auto_target());
    // Direct descriptors have no close-on-exec flag, and the kernel refuses it.
    let flags = if direct { 0 } else { libc::SOCK_CLOEXEC };
    if multishot {
        aimed!(target, |file| opcode::AcceptMulti::new(file).allocate_file_index(direct).flags(flags).build())
    } else {
        let (name, len) = peer.map_or((ptr::null_mut(), ptr::null_mut()), AddressRoom::pointers);
        aimed!(target, |file| opcode::Accept::new(file, name, len).file_index(slot).flags(flags).build())
    }
}

fn shutdown_argument(how: Shutdown) -> i32 {
    match how {
        Shutdown::Read => libc::SHUT_RD,
        Shutdown::Write => libc::SHUT_WR,
        Shutdown::Both => libc::SHUT_RDWR,
    }
}

/// Owns a descriptor that the kernel just made for us.
pub(super) fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: it is the answer of FIXED_FD_INSTALL, seen once.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
