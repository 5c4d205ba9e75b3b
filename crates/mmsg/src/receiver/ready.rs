//! Which sockets of a receiver have something to read.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use sys::capabilities::Capabilities;
use sys::epoll::{self, Set};
use sys::uring::{Ring, Sleep, opcode, types, until_memory_is_unlocked};

use crate::notices;

/// What a look found out about a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// One datagram has come since the last report.
    One,
    /// Something: how much is to be found out by reading.
    Some,
}

/// Tells of sockets as something comes. The socket's number goes with each report.
pub(crate) enum Ready {
    Uring(Box<Polls>),
    Epoll { set: Set, events: Vec<epoll::Event>, calls: u64 },
}

/// Requests of one kind are told from others by this bit of their data.
const POLL: u64 = 1 << 63;
/// The completion of a cancellation: nobody waits for it.
const CANCEL: u64 = 1 << 62;

/// A poll for each socket that lasts, and receives that do not wait.
pub(crate) struct Polls {
    pub(crate) ring: Ring,
    tells_one: bool,
    /// Enters that work off a report of each socket.
    turns: u32,
    pub(crate) calls: u64,
}

/// Requests that one submission carries.
const ENTRIES: u32 = 512;

/// Reports that an enter works off, however many there are (IO_LOCAL_TW_DEFAULT_MAX, Linux 6.13).
const AT_ONCE: u32 = 20;

/// A datagram wakes with this in its mask, and a socket's state lacks it (`poll_tells_one`).
const ONE: u32 = libc::POLLRDBAND as u32;

impl Ready {
    /// io_uring with a file table of `sockets` slots, where that works; epoll elsewhere.
    pub(crate) fn new(uring: bool, sockets: u32) -> io::Result<Ready> {
        if uring && let Some(polls) = Polls::new(sockets)? {
            return Ok(Ready::Uring(Box::new(polls)));
        }
        let events = vec![epoll::Event::NONE; sockets as usize];
        Ok(Ready::Epoll { set: Set::new()?, events, calls: 0 })
    }

    pub(crate) fn add(&mut self, slot: u32, generation: u32, fd: BorrowedFd<'_>) -> io::Result<()> {
        match self {
            Ready::Uring(polls) => {
                polls.ring.set_file(slot, Some(fd))?;
                polls.arm(slot, generation)
            }
            Ready::Epoll { set, .. } => set.add(fd, epoll::IN, data(slot, generation)),
        }
    }

    pub(crate) fn remove(&mut self, slot: u32, generation: u32, fd: BorrowedFd<'_>) -> io::Result<()> {
        match self {
            Ready::Uring(polls) => {
                let poll = POLL | data(slot, generation);
                let cancel = opcode::PollRemove::new(poll).build().user_data(CANCEL);
                polls.push(&cancel)?;
                polls.ring.enter(Sleep::No)?;
                polls.ring.set_file(slot, None)
            }
            Ready::Epoll { set, .. } => set.remove(fd),
        }
    }

    /// From now on a socket is told of when something changes, not as long as it can be read from.
    pub(crate) fn tell_changes(&mut self, slot: u32, generation: u32, fd: BorrowedFd<'_>) -> io::Result<()> {
        match self {
            Ready::Uring(_) => Ok(()),
            Ready::Epoll { set, .. } => set.modify(fd, epoll::IN | epoll::EDGES, data(slot, generation)),
        }
    }

    /// Looks for sockets with something to read, or sleeps until there is one. It finds all that have, and tells
    /// each as slot, generation and what is there; `found` says whether that one is still listened to.
    pub(crate) fn look(
        &mut self,
        sleep: Option<Option<Duration>>,
        found: &mut impl FnMut(u32, u32, Found) -> bool,
        received: &mut impl FnMut(u64, i32, u32),
    ) -> io::Result<()> {
        match self {
            Ready::Uring(polls) => polls.look(sleep, found, received),
            Ready::Epoll { set, events, calls } => {
                *calls += 1;
                let timeout = sleep.unwrap_or(Some(Duration::ZERO));
                let count = set.wait(events, timeout)?;
                for event in &events[..count] {
                    let (slot, generation) = parts(event.data());
                    // What is not read now is told again.
                    found(slot, generation, Found::One);
                }
                Ok(())
            }
        }
    }

    /// Whether a look would find anything that it need not sleep for; a guess that errs on the
    /// side of yes.
    #[inline]
    pub(crate) fn may_find(&mut self) -> bool {
        match self {
            Ready::Uring(polls) => polls.ring.has_completions(),
            Ready::Epoll { .. } => true,
        }
    }

    /// Whether reports tell one datagram from several.
    pub(crate) fn tells_one(&self) -> bool {
        matches!(self, Ready::Uring(polls) if polls.tells_one)
    }

    pub(crate) fn calls(&self) -> u64 {
        match self {
            Ready::Uring(polls) => polls.calls,
            Ready::Epoll { calls, .. } => *calls,
        }
    }
}

impl Polls {
    /// None, with the reason in the log, where there is no io_uring for it.
    fn new(sockets: u32) -> io::Result<Option<Polls>> {
        let capabilities = Capabilities::get();
        if let Err(cause) = &capabilities.ring {
            notices::fallback(cause);
            return Ok(None);
        }
        if !capabilities.sparse_files || !capabilities.direct_descriptors_safe {
            notices::fallback(&"the kernel keeps no table of descriptors for it");
            return Ok(None);
        }
        // Each socket has one report at most that was not reaped, and one receive.
        let completions = (2 * sockets).max(2 * ENTRIES);
        let ring = match until_memory_is_unlocked(|| Ring::new(ENTRIES, completions, capabilities)) {
            Err(cause) if cause.raw_os_error() == Some(libc::ENOMEM) => {
                notices::refused(&cause);
                return Ok(None);
            }
            ring => ring?,
        };
        ring.register_files(sockets)?;
        let turns = sockets.div_ceil(AT_ONCE);
        Ok(Some(Polls { ring, tells_one: capabilities.poll_tells_one, turns, calls: 0 }))
    }

    fn arm(&mut self, slot: u32, generation: u32) -> io::Result<()> {
        let events = libc::POLLIN as u32 | if self.tells_one { ONE } else { 0 };
        let poll = opcode::PollAdd::new(types::Fixed(slot), events).multi(true).build();
        self.push(&poll.user_data(POLL | data(slot, generation)))?;
        self.calls += 1;
        self.ring.submit()
    }

    /// Queues a request that points to nothing.
    fn push(&mut self, request: &sys::uring::squeue::Entry) -> io::Result<()> {
        // SAFETY: the request points to no memory.
        if unsafe { self.ring.push(request) } {
            return Ok(());
        }
        self.ring.submit()?;
        // SAFETY: as above.
        match unsafe { self.ring.push(request) } {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(libc::EBUSY)),
        }
    }

    fn look(
        &mut self,
        sleep: Option<Option<Duration>>,
        found: &mut impl FnMut(u32, u32, Found) -> bool,
        received: &mut impl FnMut(u64, i32, u32),
    ) -> io::Result<()> {
        let sleep = match sleep {
            None | Some(Some(Duration::ZERO)) => Sleep::No,
            Some(timeout) => Sleep::Until { completions: 1, timeout, gather: None },
        };
        self.calls += 1;
        let mut entered = self.ring.enter(sleep);
        self.reap(found, received)?;
        // Whoever was not reported yet would wait while others have their second message.
        for _ in 0..self.turns {
            if entered.is_err() || !self.ring.has_left_completions() {
                break;
            }
            self.calls += 1;
            entered = self.ring.enter(Sleep::No);
            self.reap(found, received)?;
        }
        entered
    }

    /// Takes what has completed: reports of polls, and results of receives.
    pub(crate) fn reap(
        &mut self,
        found: &mut impl FnMut(u32, u32, Found) -> bool,
        received: &mut impl FnMut(u64, i32, u32),
    ) -> io::Result<()> {
        let mut ended = Vec::new();
        self.ring.reap(|data, result, flags| {
            if data & POLL == 0 {
                if data & CANCEL == 0 {
                    received(data, result, flags);
                }
                return;
            }
            let (slot, generation) = parts(data & !POLL);
            let bad = (libc::POLLERR | libc::POLLHUP) as i32;
            let one = result > 0 && result & bad == 0 && result & ONE as i32 != 0;
            if result == -libc::ECANCELED {
                return;
            }
            let is_wanted = found(slot, generation, if one { Found::One } else { Found::Some });
            if is_wanted && !sys::uring::cqueue::more(flags) {
                ended.push((slot, generation));
            }
        });
        // A poll ends when the completion queue was full; the socket was told of just now. That of a socket that is
        // gone would poll an empty slot, which completes at once, for ever, or whoever has the slot now.
        ended.into_iter().try_for_each(|(slot, generation)| self.arm(slot, generation))
    }
}

fn data(slot: u32, generation: u32) -> u64 {
    u64::from(generation & GENERATIONS) << 32 | u64::from(slot)
}

fn parts(data: u64) -> (u32, u32) {
    (data as u32, (data >> 32) as u32)
}

/// Generations have so many bits that the others of a request's data stay free.
pub(crate) const GENERATIONS: u32 = (1 << 30) - 1;

impl Drop for Polls {
    fn drop(&mut self) {
        // The table holds the sockets open until the ring is torn down, which the kernel does
        // later; nothing is left to do if it refuses.
        let _ = self.ring.unregister_files();
    }
}
