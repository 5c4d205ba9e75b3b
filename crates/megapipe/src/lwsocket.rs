//! Lightweight sockets: sockets of one channel, outside the process's descriptor table
//! (paper, section 3.4).

use std::cell::{Cell, RefCell};
use std::fmt;
use std::mem;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use crate::source::Shape;

/// A socket that lives in its channel only. On io_uring it is a direct descriptor: it has
/// no number in the process and does not count against its open files; on epoll, and on
/// kernels where direct descriptors are unsafe, a private descriptor. Sockets of a stack
/// in user space are lightweight sockets too.
///
/// Register it to use it. Dropped, it is closed.
pub struct LwSocket {
    pub(crate) file: LwFile,
    pub(crate) shape: Shape,
    pub(crate) owner: Rc<LwOwner>,
}

/// Where a lightweight socket lives.
#[derive(Debug)]
pub(crate) enum LwFile {
    /// A slot of the ring's file table.
    Direct(u32),
    Private(OwnedFd),
    /// A socket of an attached stack, by its index there.
    Stack(u32),
    /// Moved out of a `LwSocket` that is being taken apart.
    Taken,
}

/// What a channel's lightweight sockets share with it.
pub(crate) struct LwOwner {
    /// Slots of sockets that were dropped; the channel closes them on its next turn.
    pub(crate) dropped: RefCell<Vec<u32>>,
    /// The same for sockets of stacks.
    pub(crate) dropped_of_stacks: RefCell<Vec<u32>>,
    /// Sockets that exist, registered ones included.
    pub(crate) live: Cell<u32>,
    /// Those of them that are a stack's.
    pub(crate) live_of_stacks: Cell<u32>,
}

impl LwFile {
    pub(crate) fn is_of_stack(&self) -> bool {
        matches!(self, LwFile::Stack(_))
    }
}

impl LwOwner {
    pub(crate) fn new() -> Rc<LwOwner> {
        Rc::new(LwOwner {
            dropped: RefCell::default(),
            dropped_of_stacks: RefCell::default(),
            live: Cell::new(0),
            live_of_stacks: Cell::new(0),
        })
    }

    /// Whether sockets were dropped that the channel has to close.
    #[inline]
    pub(crate) fn has_dropped(&self) -> bool {
        !self.dropped.borrow().is_empty() || !self.dropped_of_stacks.borrow().is_empty()
    }

    fn opened_one(&self, of_stack: bool) {
        self.live.set(self.live.get() + 1);
        self.live_of_stacks.set(self.live_of_stacks.get() + u32::from(of_stack));
    }

    pub(crate) fn closed_one(&self, of_stack: bool) {
        self.live.set(self.live.get().saturating_sub(1));
        self.live_of_stacks.set(self.live_of_stacks.get().saturating_sub(of_stack.into()));
    }
}

impl LwSocket {
    pub(crate) fn new(file: LwFile, shape: Shape, owner: &Rc<LwOwner>) -> LwSocket {
        owner.opened_one(file.is_of_stack());
        LwSocket { file, shape, owner: Rc::clone(owner) }
    }

    /// The file, which stays counted as live.
    pub(crate) fn into_file(mut self) -> LwFile {
        mem::replace(&mut self.file, LwFile::Taken)
    }
}

impl Drop for LwSocket {
    fn drop(&mut self) {
        match mem::replace(&mut self.file, LwFile::Taken) {
            LwFile::Direct(slot) => self.owner.dropped.borrow_mut().push(slot),
            LwFile::Stack(socket) => self.owner.dropped_of_stacks.borrow_mut().push(socket),
            LwFile::Private(_) => self.owner.closed_one(false),
            LwFile::Taken => {}
        }
    }
}

impl fmt::Debug for LwSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LwSocket").field(&self.file).finish()
    }
}
