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

pub(crate) struct Beside {
    memory: Mapping,
    /// Entries of the program.
    asked: usize,
    all: usize,
    /// Doorbells that [`Self::is_rung`] has passed.
    passed: usize,
}

const _: () = assert!(size_of::<pollfd>() == size_of::<u64>());

impl Beside {
    /// Doorbells of one sleep at most: poll(2) checks each, and each is armed before the sleep and
    /// disarmed after it. Wake-ups over TCP stay armed, which is cheaper for more sockets.
    pub(crate) const MOST: usize = 128;

    /// `None`: there is no memory, or too many entries.
    pub(crate) fn of(asked: impl Iterator<Item = pollfd>) -> Option<Beside> {
        let mut beside = Beside { memory: Mapping::take()?, asked: 0, all: 0, passed: 0 };
        let most = beside.memory.words().len().checked_sub(Self::MOST)?;
        for entry in asked {
            (beside.all < most).then(|| beside.add(entry))?;
        }
        beside.asked = beside.all;
        Some(beside)
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
        // SAFETY: `of` and `push`, which call `add`, keep `all` at most the number of words, any of which is an entry.
        unsafe { from_raw_parts_mut(words.as_mut_ptr().cast(), all) }
    }

    /// Watches one more doorbell, if there is room.
    pub(crate) fn push(&mut self, doorbell: c_int) -> bool {
        if self.all >= self.asked + Self::MOST {
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
        let asked = self.asked;
        let (asked, doorbells) = self.entries().split_at(asked);
        for entry in doorbells.iter().filter(|entry| entry.revents & libc::POLLNVAL != 0) {
            // The program has closed it by a raw system call.
            hidden::is_taken(entry.fd);
        }
        Ok(asked)
    }

    /// Whether this doorbell ended the sleep; to be asked in the order of [`Self::push`]. `None`:
    /// it is not among them.
    pub(crate) fn is_rung(&mut self, doorbell: c_int) -> Option<bool> {
        // Those in between belong to connections that were demoted meanwhile.
        let first = self.asked + self.passed;
        let place = first + self.entries().get(first..)?.iter().position(|entry| entry.fd == doorbell)?;
        self.passed = place + 1 - self.asked;
        Some(self.entries()[place].revents & libc::POLLIN != 0)
    }
}
