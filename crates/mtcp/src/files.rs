//! What the numbers of a context stand for. The lowest free one is given out, so that programs can
//! index arrays by them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tcp::sockets::{Notice, Set, Socket};

use crate::errno::{BAD, Errno, INVALID, NOT_SOCKET};
use crate::pipe::{End, Interest};

pub(crate) enum File {
    Socket { socket: Socket, nonblocking: bool, v6: bool },
    Epoll(Epoll),
    Pipe { pipe: usize, end: End },
}

/// An epoll set.
pub(crate) struct Epoll {
    pub(crate) set: Set,
    pub(crate) pipes: Vec<Interest>,
    pub(crate) notices: Vec<Notice>,
}

pub(crate) struct Files {
    entries: Vec<Option<File>>,
    free: BinaryHeap<Reverse<usize>>,
    bound: usize,
}

impl Files {
    pub(crate) fn new(bound: usize) -> Files {
        Files { entries: Vec::new(), free: BinaryHeap::new(), bound }
    }

    pub(crate) fn has_room(&self, count: usize) -> bool {
        self.free.len() + (self.bound - self.entries.len()) >= count
    }

    pub(crate) fn insert(&mut self, file: File) -> Result<i32, Errno> {
        let place = match self.free.pop() {
            Some(Reverse(place)) => place,
            None if self.entries.len() < self.bound => {
                self.entries.push(None);
                self.entries.len() - 1
            }
            None => return Err(Errno(libc::ENFILE)),
        };
        self.entries[place] = Some(file);
        Ok(place as i32)
    }

    pub(crate) fn remove(&mut self, id: i32) -> Option<File> {
        let place = usize::try_from(id).ok()?;
        let file = self.entries.get_mut(place)?.take()?;
        self.free.push(Reverse(place));
        Some(file)
    }

    pub(crate) fn get(&mut self, id: i32) -> Result<&mut File, Errno> {
        let place = usize::try_from(id).map_err(|_| BAD)?;
        self.entries.get_mut(place).and_then(Option::as_mut).ok_or(BAD)
    }

    /// The socket of this number, and whether its calls return EAGAIN.
    pub(crate) fn socket(&mut self, id: i32) -> Result<(Socket, bool), Errno> {
        match self.get(id)? {
            File::Socket { socket, nonblocking, .. } => Ok((*socket, *nonblocking)),
            _ => Err(NOT_SOCKET),
        }
    }

    pub(crate) fn epoll(&mut self, id: i32) -> Result<&mut Epoll, Errno> {
        match self.get(id)? {
            File::Epoll(epoll) => Ok(epoll),
            _ => Err(INVALID),
        }
    }

    pub(crate) fn epolls(&mut self) -> impl Iterator<Item = &mut Epoll> {
        self.entries.iter_mut().flatten().filter_map(|file| match file {
            File::Epoll(epoll) => Some(epoll),
            _ => None,
        })
    }

    pub(crate) fn sockets(&self) -> impl Iterator<Item = Socket> {
        self.entries.iter().flatten().filter_map(|file| match file {
            File::Socket { socket, .. } => Some(*socket),
            _ => None,
        })
    }
}
