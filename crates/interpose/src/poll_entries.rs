//! The entries of a sleep in poll(2) or select(2): those of the program, and behind them the
//! doorbells of its promoted sockets. They lie in memory that a call of a signal handler does not
//! share, and not on the stack.
#![allow(unsafe_code)] // entries of poll(2) in mapped memory

use std::ffi::c_int;
use std::slice::from_raw_parts_mut;

use libc::{pollfd, sigset_t, timespec};

use crate::buffer::Mapping;
use crate::hidden;
use crate::real;

pub(crate) struct PollEntries {
    memory: Mapping,
    /// Entries of the program.
    requested: usize,
    all: usize,
    /// Doorbells that [`Self::is_readable`] has passed.
    passed: usize,
}

const _: () = assert!(size_of::<pollfd>() == size_of::<u64>());

impl PollEntries {
    /// Doorbells of one sleep at most: poll(2) checks each, and each is armed before the sleep and
    /// disarmed after it. Wake-ups over TCP stay armed, which is cheaper for more sockets.
    pub(crate) const MOST: usize = 128;

    /// `None`: there is no memory, or too many entries.
    pub(crate) fn of(requested: impl Iterator<Item = pollfd>) -> Option<PollEntries> {
        let mut polled = PollEntries { memory: Mapping::take()?, requested: 0, all: 0, passed: 0 };
        let most = polled.memory.words().len().checked_sub(Self::MOST)?;
        for entry in requested {
            (polled.all < most).then(|| polled.add(entry))?;
        }
        polled.requested = polled.all;
        Some(polled)
    }

    /// The caller has checked that there is room.
    fn add(&mut self, entry: pollfd) {
        self.all += 1;
        if let Some(last) = self.entries().last_mut() {
            *last = entry;
        }
    }

    fn entries(&mut self) -> &mut [pollfd] {
        let all = self.all;
        let words = self.memory.words();
        // SAFETY: `of` and `push`, which call `add`, keep `all` at most the number of words, any of
        // which is an entry.
        unsafe { from_raw_parts_mut(words.as_mut_ptr().cast(), all) }
    }

    /// Watches one more doorbell, if there is room.
    pub(crate) fn push(&mut self, doorbell: c_int) -> bool {
        if self.all >= self.requested + Self::MOST {
            return false;
        }
        self.add(pollfd { fd: doorbell, events: libc::POLLIN, revents: 0 });
        true
    }

    /// ppoll(2) of all; returns the program's entries.
    ///
    /// # Errors
    ///
    /// As ppoll(2).
    ///
    /// # Safety
    ///
    /// `time` is null or a timeout, `mask` null or a mask.
    pub(crate) unsafe fn ask(
        &mut self,
        time: *const timespec,
        mask: *const sigset_t,
    ) -> Result<&[pollfd], c_int> {
        let entries = self.entries();
        // SAFETY: entries of that number, and the caller's promise.
        let found = unsafe { real::ppoll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, time, mask) };
        if found < 0 {
            let errno = real::errno();
            entries.iter_mut().for_each(|entry| entry.revents = 0);
            return Err(errno);
        }
        let requested = self.requested;
        let (requested, doorbells) = self.entries().split_at(requested);
        for entry in doorbells.iter().filter(|entry| entry.revents & libc::POLLNVAL != 0) {
            // The program has closed it by a raw system call.
            hidden::given_to_program(entry.fd);
        }
        Ok(requested)
    }

    /// Whether this doorbell ended the sleep; to be asked in the order of [`Self::push`]. `None`:
    /// it is not among them.
    pub(crate) fn is_readable(&mut self, doorbell: c_int) -> Option<bool> {
        // Those in between belong to connections that were demoted meanwhile.
        let first = self.requested + self.passed;
        let place = first + self.entries().get(first..)?.iter().position(|entry| entry.fd == doorbell)?;
        self.passed = place + 1 - self.requested;
        Some(self.entries()[place].revents & libc::POLLIN != 0)
    }
}
