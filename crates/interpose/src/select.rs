//! select(2), whose sets are waited for like descriptors of poll(2).
#![allow(unsafe_code)] // sets lie in the program's memory

use std::ffi::c_int;

use libc::{fd_set, pollfd, sigset_t, timespec};

use crate::buffer::Mapping;
use crate::epoll::Limit;
use crate::memory::{are_readable, are_writable};
use crate::poll;
use crate::real;
use crate::sockets::{self, Socket, State};
use crate::table::{self, Entry};
use crate::waiters;

/// The three sets of a call; null ones are empty.
#[derive(Clone, Copy)]
pub(crate) struct Sets {
    pub(crate) read: *mut fd_set,
    pub(crate) write: *mut fd_set,
    pub(crate) except: *mut fd_set,
}

impl Sets {
    /// Checks the words of each set for `count` bits.
    fn are_valid(self, count: usize, check: impl Fn(*mut u64, usize) -> bool) -> bool {
        let words = count.div_ceil(u64::BITS as usize);
        [self.read, self.write, self.except].iter().all(|set| set.is_null() || check(set.cast(), words))
    }
}

const MOST: usize = libc::FD_SETSIZE;

/// The descriptors polled for reading; none, if the sets cannot be read.
///
/// # Safety
///
/// As select(2).
pub(crate) unsafe fn polled_for_reading(count: c_int, sets: Sets) -> impl Iterator<Item = c_int> {
    let are_valid = usize::try_from(count)
        .is_ok_and(|count| count <= MOST && sets.are_valid(count, |word, words| are_readable(word, words)));
    let asks = are_valid && !sets.read.is_null();
    // SAFETY: the caller's promise; each is below FD_SETSIZE.
    (0..if asks { count } else { 0 }).filter(move |&fd| unsafe { libc::FD_ISSET(fd, sets.read) })
}

/// Whether a promoted socket is polled for reading.
///
/// # Safety
///
/// As select(2).
pub(crate) unsafe fn concerns(count: c_int, sets: Sets) -> bool {
    if !sockets::any() {
        return false;
    }
    // SAFETY: the caller's promise.
    let requested = unsafe { polled_for_reading(count, sets) };
    requested.fold(false, |concerns, fd| {
        if let Entry::Set(set) = table::entry(fd) {
            crate::sets::polled_from_outside(set, false);
        }
        let promoted = |socket: &'static Socket| socket.state() == State::Promoted;
        concerns || table::socket(fd).is_some_and(promoted)
    })
}

/// Sockets of a select(2) that is left to the kernel, since its sets are larger than an `fd_set`:
/// those whose rings held unannounced bytes when the call began.
pub(crate) struct Ready {
    known: [c_int; 16],
    count: usize,
}

impl Ready {
    /// # Safety
    ///
    /// As select(2).
    pub(crate) unsafe fn of(count: c_int, sets: Sets) -> Ready {
        let mut ready = Ready { known: [0; 16], count: 0 };
        let end = count.min(table::end());
        let words = usize::try_from(end).unwrap_or(0).div_ceil(u64::BITS as usize);
        if usize::try_from(count).is_ok_and(|count| count <= MOST)
            || !sockets::any()
            || sets.read.is_null()
            || !are_readable(sets.read.cast::<u64>(), words)
        {
            return ready;
        }
        for place in 0..words {
            // SAFETY: `are_readable` checked that many words.
            let word = unsafe { sets.read.cast::<u64>().add(place).read_unaligned() };
            for fd in bits(word).map(|bit| place as c_int * u64::BITS as c_int + bit) {
                // More are not needed: some are ready, and the program asks again.
                let Some(known) = ready.known.get_mut(ready.count) else { return ready };
                let is_here = poll::promoted(fd).is_some_and(|socket| {
                    let mut inner = socket.lock();
                    inner.promoted.as_deref_mut().is_some_and(|promoted| {
                        // Wake-up bytes whose ring bytes were consumed already.
                        promoted.discard_wake_ups(fd);
                        promoted.forget_waiters();
                        waiters::arm_always(true);
                        promoted.connection.poll().unwrap_or(true)
                    })
                });
                if is_here {
                    *known = fd;
                    ready.count += 1;
                }
            }
        }
        ready
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The result of the call, which the kernel found `found` descriptors for, with these added to
    /// its set.
    ///
    /// # Safety
    ///
    /// As select(2).
    pub(crate) unsafe fn added_to(&self, found: c_int, sets: Sets) -> c_int {
        let mut all = found;
        for &fd in self.known[..self.count].iter().filter(|_| found >= 0) {
            let bit = 1u64 << (fd as u32 % u64::BITS);
            // SAFETY: its word was read, and the kernel has just written to it.
            unsafe {
                let word = sets.read.cast::<u64>().add(fd as usize / u64::BITS as usize);
                let reported = word.read_unaligned();
                all += c_int::from(reported & bit == 0);
                word.write_unaligned(reported | bit);
            }
        }
        all
    }
}

/// The sets of a call and the kernel's result, in 64-bit words, which the kernel uses, too. They
/// lie in a [`Mapping`], since a small alternate stack has no room for them.
struct Waited<'memory> {
    count: c_int,
    sets: Sets,
    requested: [&'memory mut [u64]; 3],
    reported: [&'memory mut [u64]; 3],
}

/// The positions of the set bits.
fn bits(word: u64) -> impl Iterator<Item = c_int> {
    let rest = |left: u64| (left != 0).then_some(left);
    std::iter::successors(rest(word), move |left| rest(left & (left - 1)))
        .map(|left| left.trailing_zeros().cast_signed())
}

/// Indices of the three sets.
const TO_READ: usize = 0;
const TO_WRITE: usize = 1;
const TO_EXCEPT: usize = 2;

// The poll(2) events that make a descriptor ready in each set (fs/select.c of Linux).
const READABLE: i16 = libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLHUP | libc::POLLERR;
const WRITABLE: i16 = libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND | libc::POLLERR;
const URGENT: i16 = libc::POLLPRI;
/// Events that poll(2) reports unasked.
const IMPLICIT: i16 = libc::POLLHUP | libc::POLLERR;

impl poll::Waited for Waited<'_> {
    fn to_read(&self) -> impl Iterator<Item = (c_int, bool)> {
        let words = self.requested[TO_READ].iter().zip(self.reported[TO_READ].iter()).zip(0..);
        words.flat_map(|((requested, reported), place)| {
            bits(*requested).map(move |bit| (place * u64::BITS as c_int + bit, reported >> bit & 1 != 0))
        })
    }

    fn polls_rings_only(&self) -> bool {
        let others = [TO_WRITE, TO_EXCEPT].iter().flat_map(|&set| self.requested[set].iter());
        others.copied().all(|word| word == 0) && self.to_read().all(|(fd, _)| poll::promoted(fd).is_some())
    }

    fn clear(&mut self) {
        self.reported.iter_mut().for_each(|words| words.fill(0));
    }

    fn entries(&self) -> impl Iterator<Item = pollfd> {
        let [read, write, except] = self.requested.each_ref();
        let words = read.iter().zip(write.iter()).zip(except.iter()).zip(0..);
        words.flat_map(|(((read, write), except), place)| {
            bits(read | write | except).map(move |bit| {
                let asks = |word: &u64, events| if word >> bit & 1 != 0 { events } else { 0 };
                let events = asks(read, READABLE) | asks(write, WRITABLE) | asks(except, URGENT);
                pollfd { fd: place * u64::BITS as c_int + bit, events: events & !IMPLICIT, revents: 0 }
            })
        })
    }

    fn keep(&mut self, entries: &[pollfd]) -> Option<c_int> {
        self.clear();
        let mut ready = 0;
        for entry in entries.iter().filter(|entry| entry.revents != 0) {
            if entry.revents & libc::POLLNVAL != 0 {
                // An error of the whole call.
                return None;
            }
            let (place, bit) = (entry.fd as usize / u64::BITS as usize, 1 << (entry.fd as u32 % u64::BITS));
            for (set, events) in [READABLE, WRITABLE, URGENT].into_iter().enumerate() {
                let reported = if entry.revents & events != 0 { self.requested[set][place] & bit } else { 0 };
                self.reported[set][place] |= reported;
                ready += c_int::from(reported != 0);
            }
        }
        // Hangups and errors, which poll(2) reports unasked, do not make a descriptor ready in
        // every set.
        let ends = entries.iter().any(|entry| entry.revents != 0);
        (ready > 0 || !ends).then_some(ready)
    }

    unsafe fn ask(&mut self, time: *const timespec, mask: *const sigset_t) -> c_int {
        for (reported, requested) in self.reported.iter_mut().zip(&self.requested) {
            reported.copy_from_slice(requested);
        }
        let [read, write, except] = self.reported.each_mut().map(|words| words.as_mut_ptr().cast::<fd_set>());
        let or_null = |set: *mut fd_set, own| if set.is_null() { set } else { own };
        let Sets { read: r, write: w, except: e } = self.sets;
        // SAFETY: sets of that many bits, and the caller's promise.
        unsafe {
            real::pselect(self.count, or_null(r, read), or_null(w, write), or_null(e, except), time, mask)
        }
    }

    fn correct(&mut self) -> c_int {
        for place in 0..self.requested[TO_READ].len() {
            for bit in bits(self.requested[TO_READ][place]) {
                let fd = place as c_int * u64::BITS as c_int + bit;
                let bit = 1 << bit;
                let reported = self.reported[TO_READ][place] & bit != 0;
                let Some((readable, failed)) = poll::judge(fd, reported) else { continue };
                self.reported[TO_READ][place] &= !bit;
                if readable || failed {
                    self.reported[TO_READ][place] |= bit;
                }
                if failed {
                    // As the kernel's select does (fs/select.c, POLLOUT_SET).
                    self.reported[TO_WRITE][place] |= self.requested[TO_WRITE][place] & bit;
                }
            }
        }
        self.reported.iter().flat_map(|words| words.iter()).map(|word| word.count_ones().cast_signed()).sum()
    }
}

/// pselect(2) for sets that passed [`concerns`].
///
/// # Safety
///
/// As pselect(2).
pub(crate) unsafe fn wait(count: c_int, sets: Sets, limit: Limit, mask: *const sigset_t) -> c_int {
    // `concerns` bounded the count.
    let bits = usize::try_from(count).unwrap_or(0);
    let words = bits.div_ceil(u64::BITS as usize);
    let Some(mut memory) = Mapping::take() else {
        real::set_errno(libc::ENOMEM);
        return -1;
    };
    let six = &mut memory.words()[..6 * words];
    six.fill(0);
    let mut six = six.chunks_exact_mut(words.max(1));
    let mut three = || [(); 3].map(|()| six.next().unwrap_or_default());
    let mut waited = Waited { count, sets, requested: three(), reported: three() };
    let places = [sets.read, sets.write, sets.except].map(|set| set.cast::<u8>());
    for (place, requested) in
        places.into_iter().zip(&mut waited.requested).filter(|(place, _)| !place.is_null())
    {
        // SAFETY: `concerns` checked that many words there.
        unsafe {
            std::ptr::copy_nonoverlapping(place, requested.as_mut_ptr().cast(), words * size_of::<u64>())
        };
        if bits % u64::BITS as usize != 0 {
            requested[words - 1] &= (1 << (bits % u64::BITS as usize)) - 1;
        }
    }
    // SAFETY: the caller's promise.
    let ready = unsafe { poll::wait(&mut waited, limit, mask) };
    if ready < 0 {
        return ready;
    }
    if !sets.are_valid(bits, are_writable) {
        real::set_errno(libc::EFAULT);
        return -1;
    }
    for (place, reported) in places.into_iter().zip(&waited.reported).filter(|(place, _)| !place.is_null()) {
        // SAFETY: `are_writable` checked that many words.
        unsafe { std::ptr::copy_nonoverlapping(reported.as_ptr().cast(), place, words * size_of::<u64>()) };
    }
    ready
}
