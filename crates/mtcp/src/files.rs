//! What the numbers of a context stand for: below `max_concurrency`, as mTCP's, so that programs
//! can size arrays by it. A number that was closed is given out again after all others, as by mTCP:
//! its programs go on using what they keep for a connection after they have closed it, and begun
//! the next one.

use std::collections::VecDeque;

use tcp::sockets::{Interests, Notice, Readiness, Set, Socket};

use crate::errno::{BAD, Errno, INVALID, NOT_SOCKET};
use crate::pipe::End;

pub(crate) enum File {
    Socket { socket: Socket, nonblocking: bool, v6: bool },
    Epoll(Epoll),
    Pipe { pipe: usize, end: End, nonblocking: bool },
}

/// An epoll set.
pub(crate) struct Epoll {
    /// The sockets of a stack that is here.
    pub(crate) set: Option<Set>,
    /// What else it has.
    pub(crate) others: Interests<Key>,
    pub(crate) notices: Vec<Notice>,
}

/// What an epoll set has beside the sockets of a stack that is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Pipe(usize, End),
    /// Its stack is in a thread of its own.
    Socket(Socket),
}

/// A place in an epoll set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// Its number.
    pub(crate) epoll: i32,
    pub(crate) place: u32,
}

/// Called with members of epoll sets and what they may be ready for: sockets whose stack is in a thread of its own.
pub(crate) trait Wake: FnMut(&[Member], Readiness) {}

impl<F: FnMut(&[Member], Readiness)> Wake for F {}

pub(crate) struct Files {
    entries: Vec<Option<File>>,
    /// Numbers that were closed, the oldest first.
    closed: VecDeque<usize>,
    bound: usize,
}

impl Files {
    pub(crate) fn new(bound: usize) -> Files {
        Files { entries: Vec::new(), closed: VecDeque::new(), bound }
    }

    pub(crate) fn has_room(&self, count: usize) -> bool {
        self.closed.len() + (self.bound - self.entries.len()) >= count
    }

    pub(crate) fn insert(&mut self, file: File) -> Result<i32, Errno> {
        if self.entries.len() < self.bound {
            self.entries.push(Some(file));
            return Ok(self.entries.len() as i32 - 1);
        }
        let place = self.closed.pop_front().ok_or(Errno(libc::ENFILE))?;
        self.entries[place] = Some(file);
        Ok(place as i32)
    }

    pub(crate) fn remove(&mut self, id: i32) -> Option<File> {
        let place = usize::try_from(id).ok()?;
        let file = self.entries.get_mut(place)?.take()?;
        self.closed.push_back(place);
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

    /// Members of sets may be ready for these.
    pub(crate) fn wake(&mut self, members: &[Member], bits: Readiness) {
        for member in members {
            if let Ok(epoll) = self.epoll(member.epoll) {
                epoll.others.wake(member.place, bits);
            }
        }
    }

    /// Members leave their sets.
    pub(crate) fn forget(&mut self, members: &[Member]) {
        for member in members {
            if let Ok(epoll) = self.epoll(member.epoll) {
                epoll.others.remove(member.place);
            }
        }
    }

    pub(crate) fn epoll(&mut self, id: i32) -> Result<&mut Epoll, Errno> {
        match self.get(id)? {
            File::Epoll(epoll) => Ok(epoll),
            _ => Err(INVALID),
        }
    }
}
