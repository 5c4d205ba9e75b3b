//! A listen queue for each worker, with a fallback, for programs that share one listening socket
//! (`megapipe run --local-listen`).
//!
//! A worker that waits for the shared listener by epoll gets a *sibling*: a socket with the same
//! address in the same SO_REUSEPORT group, which is added to the worker's epoll set beside the
//! shared listener, with the same `epoll_data`. A program in the kernel ([`steering`]) sends a
//! connection to the sibling of the CPU that handles its SYN, unless its worker is away or behind:
//! then to the shared listener, where any worker accepts it. accept(2) on the shared listener tries
//! both.
//!
//! A failure, or a call that is not supported, leaves a listener as it was (docs/listen.md). The
//! program's calls come here with and without `--local-listen`: without it no descriptor is tracked
//! here.
#![allow(unsafe_code)] // addresses and events lie in the program's memory, and options are of any kind

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed},
};

use libc::epoll_event;

use crate::clock;
use crate::kernel;
use crate::real;

mod addresses;
mod listeners;
mod names;
mod sibling;
mod steering;
mod word;

pub(crate) use listeners::{
    Still, before_exec, changes_user, closing, closing_range, confined, duplicated, exec_failed, forked,
    hides_option, hold_still, listened, made_set, polled_outside_epoll, received, set_option, shut_down,
    start, vacate_number,
};
use names::{Kind, LISTENERS, SETS, kind_of};
pub(crate) use names::{is_on, tracks};
use steering::Words;

/// A listener's sibling in one epoll set. Zeroed memory is none.
struct Member {
    /// Its descriptor, plus 1; 0: none that listens.
    fd: AtomicI32,
    /// The set is edge-triggered: a queue that was not tried would not be reported again.
    by_edge: AtomicBool,
    /// Counts accepts, so that the other queue comes first now and then.
    turn: AtomicU32,
    /// The `epoll_data` of the listener and of the sibling.
    data: AtomicU64,
    /// A connection was accepted since the set's last wait.
    has_accepted: AtomicBool,
    /// Connections steered here and not accepted, as far as the words do not count them.
    uncounted: AtomicI64,
    /// The words that the steering program reads.
    words: AtomicPtr<Words>,
}

static MEMBERS: [[Member; LISTENERS]; SETS] = [const { [const { Member::NONE }; LISTENERS] }; SETS];

/// Listeners with a sibling in each set, one bit each.
static OF_SET: [AtomicU32; SETS] = [const { AtomicU32::new(0) }; SETS];
/// Those that a set's own thread removed since its last wait: nginx adds its listeners again in the
/// meantime.
static OUT_OF_SET: [AtomicU32; SETS] = [const { AtomicU32::new(0) }; SETS];

/// Waits since the program's last accept of each listener that reported it while a sibling had
/// connections.
static IGNORED: [AtomicU32; LISTENERS] = [const { AtomicU32::new(0) }; LISTENERS];

thread_local! {
    /// The last set with listeners in which this thread waited.
    static WAITED_IN: Cell<usize> = const { Cell::new(SETS) };
}

impl Member {
    #[allow(clippy::declare_interior_mutable_const)] // each use is a member of its own
    const NONE: Member = Member {
        fd: AtomicI32::new(0),
        by_edge: AtomicBool::new(false),
        turn: AtomicU32::new(0),
        data: AtomicU64::new(0),
        has_accepted: AtomicBool::new(false),
        uncounted: AtomicI64::new(0),
        words: AtomicPtr::new(null_mut()),
    };

    #[inline]
    fn descriptor(&self) -> Option<c_int> {
        Some(self.fd.load(Relaxed) - 1).filter(|fd| *fd >= 0)
    }

    #[inline]
    fn words(&self) -> Option<&'static Words> {
        // WORDS-PAIR: with `begin` of the listener, before which the words were made. SAFETY: null,
        // or words that live for good, to which no exclusive reference exists.
        unsafe { self.words.load(Acquire).as_ref() }
    }

    /// Handles the result of an accept on the sibling, and counts it for the steering program.
    fn counted(&self, new: c_int) -> c_int {
        if new < 0 && matches!(real::errno(), libc::EINVAL | libc::EBADF | libc::ENOTSOCK | libc::EOPNOTSUPP)
        {
            // Another thread has just shut it down or closed it, and its number may be another
            // file's.
            real::set_errno(libc::EAGAIN);
        }
        match (self.words(), new) {
            (Some(words), 0..) => words.accepted(),
            // SYNs that did not become connections were steered, too.
            (Some(words), _) if is_empty() => {
                let uncounted = self.uncounted.load(Relaxed) + words.found_queue_empty();
                self.uncounted.store(uncounted.max(0), Relaxed);
            }
            _ => {}
        }
        new
    }
}

/// The members of a set.
#[inline]
fn members(set: usize) -> impl Iterator<Item = &'static Member> {
    numbers(set).map(move |number| &MEMBERS[set][number])
}

/// The listeners of these members.
#[inline]
fn numbers(set: usize) -> impl Iterator<Item = usize> {
    let mut left = OF_SET[set].load(Relaxed);
    std::iter::from_fn(move || {
        let number = left.checked_ilog2()? as usize;
        left &= !(1 << number);
        Some(number)
    })
}

/// The program is about to connect to an address. If a listener of its own may be there, the
/// connection goes to the shared socket: the program may wait for the answer before it accepts, and
/// then only other workers can answer.
///
/// # Safety
///
/// As connect(2).
pub(crate) unsafe fn connecting(fd: c_int, address: *const libc::sockaddr, length: libc::socklen_t) {
    if !is_on() {
        return;
    }
    // SAFETY: the caller's promise.
    let Some(target) = (unsafe { addresses::named(address, length) }) else { return };
    let is_stream = || kernel::option(fd, libc::SOL_SOCKET, libc::SO_TYPE) == Some(libc::SOCK_STREAM);
    for number in addresses::at(target).filter(|_| is_stream()) {
        MEMBERS.iter().filter_map(|set| set[number].words()).for_each(|words| words.cannot_accept());
    }
}

/// epoll_wait(2) and its variants, made by `call`: meanwhile its thread counts as present.
///
/// # Safety
///
/// `call` returns how many events it has written to `events`, or less than 0.
#[inline(always)]
pub(crate) unsafe fn around_wait(
    epfd: c_int,
    events: *mut epoll_event,
    call: impl FnOnce() -> c_int,
) -> c_int {
    match kind_of(epfd) {
        // SAFETY: the caller's promise.
        Kind::Set(set) => unsafe { in_set(set, events, call) },
        _ => call(),
    }
}

/// # Safety
///
/// As for [`around_wait`].
unsafe fn in_set(set: usize, events: *mut epoll_event, call: impl FnOnce() -> c_int) -> c_int {
    WAITED_IN.set(set);
    if OUT_OF_SET[set].load(Relaxed) != 0 {
        real::kept_errno(|| listeners::settle(set));
    }
    for member in members(set) {
        member.has_accepted.store(false, Relaxed);
        member.words().inspect(|words| words.waits());
    }
    let found = call();
    let now = clock::nanoseconds();
    members(set).filter_map(Member::words).for_each(|words| words.is_away_since(now));
    let Ok(count @ 1..) = usize::try_from(found) else { return found };
    // SAFETY: the caller's promise; they are not in use elsewhere before the call returns.
    let events = unsafe { std::slice::from_raw_parts_mut(events, count) };
    let left = merge(set, events);
    // For the events that are left: it may remove siblings from the set, which `merge` needs.
    count_ignored(set, &events[..left]);
    left as c_int
}

/// A program that accepts by raw system calls gets only the shared queue's connections, and a
/// sibling that is never tried is reported at each wait: such a listener loses its siblings.
fn count_ignored(set: usize, events: &[epoll_event]) {
    /// A thread that leaves the accept to another one may wait several times meanwhile.
    const MOST: u32 = 64;
    for number in numbers(set) {
        let member = &MEMBERS[set][number];
        if member.words().is_none_or(|words| words.behind() <= 0) {
            continue;
        }
        let data = member.data.load(Relaxed);
        let is_reported = events.iter().any(|event| event.u64 == data);
        if is_reported && IGNORED[number].fetch_add(1, Relaxed) + 1 >= MOST {
            real::kept_errno(|| listeners::accepts_unseen(number));
        }
    }
}

/// A listener is reported once, as its set has it once, even if both queues have connections. The
/// program may free the object of its `epoll_data` at the first event.
fn merge(set: usize, events: &mut [epoll_event]) -> usize {
    let mut left = events.len();
    for member in members(set) {
        let data = member.data.load(Relaxed);
        let (mut first, mut kept) = (None, 0);
        for number in 0..left {
            let event = events[number];
            match first {
                Some(first) if event.u64 == data => {
                    let of_first: &mut epoll_event = &mut events[first];
                    of_first.events |= event.events;
                    continue;
                }
                None if event.u64 == data => first = Some(kept),
                _ => {}
            }
            events[kept] = event;
            kept += 1;
        }
        left = kept;
    }
    left
}

/// accept(2), made by `call` on the descriptor that it gets: the sibling's or the shared
/// listener's.
///
/// The sibling comes first if it has connections by the count. Each eighth time the other one does,
/// so that neither starves. EAGAIN is returned only after the shared listener has just returned it.
/// The sibling is then tried, too, unless all connections that were steered to it are accepted. The
/// first accept after a wait tries it in any case: the wait may have reported a connection that was
/// not counted.
#[inline]
pub(crate) fn accept(fd: c_int, call: impl Fn(c_int) -> c_int) -> c_int {
    const OTHER_FIRST: u32 = 8;
    let Kind::Listener(number) = kind_of(fd) else { return call(fd) };
    if IGNORED[number].load(Relaxed) != 0 {
        IGNORED[number].store(0, Relaxed);
    }
    let accept = |from: c_int| {
        let new = call(from);
        if from == fd && new < 0 && real::errno() == libc::EINVAL {
            listeners::may_be_shut_down(fd);
        }
        new
    };
    let member = MEMBERS.get(WAITED_IN.get()).map(|set| &set[number]);
    let Some((member, sibling)) = member.and_then(|member| Some((member, member.descriptor()?))) else {
        return accept_elsewhere(fd, number, accept);
    };
    let turn = member.turn.load(Relaxed).wrapping_add(1);
    member.turn.store(turn, Relaxed);
    let other_first = turn.is_multiple_of(OTHER_FIRST);
    let behind = member.words().map_or(0, |words| words.behind());
    let all_accepted = behind + member.uncounted.load(Relaxed) <= 0;
    let leaves_out =
        all_accepted && member.has_accepted.load(Relaxed) && !member.by_edge.load(Relaxed) && !other_first;
    let shared_first = (behind <= 0) != other_first;
    for from_shared in [shared_first, !shared_first] {
        if !from_shared && leaves_out {
            continue;
        }
        let new = if from_shared { accept(fd) } else { member.counted(accept(sibling)) };
        if new >= 0 {
            member.has_accepted.store(true, Relaxed);
            return new;
        }
        if !is_empty() {
            return new;
        }
    }
    -1
}

/// For a thread that did not wait for the listener: another did, perhaps for a connection of a
/// sibling.
#[cold]
fn accept_elsewhere(fd: c_int, number: usize, accept: impl Fn(c_int) -> c_int) -> c_int {
    let new = accept(fd);
    if new >= 0 || !is_empty() {
        return new;
    }
    for member in MEMBERS.iter().map(|set| &set[number]) {
        let Some(sibling) = member.descriptor() else { continue };
        let new = member.counted(accept(sibling));
        if new >= 0 || !is_empty() {
            return new;
        }
    }
    -1
}

/// Whether the last accept found no connection.
fn is_empty() -> bool {
    real::errno() == libc::EAGAIN
}

/// epoll_ctl(2), made by `call`: applied to the sibling of a listener, too.
///
/// # Safety
///
/// As epoll_ctl(2).
pub(crate) unsafe fn control(
    epfd: c_int,
    operation: c_int,
    fd: c_int,
    event: *const epoll_event,
    call: impl FnOnce() -> c_int,
) -> c_int {
    let status = call();
    if status == 0
        && let Kind::Listener(number) = kind_of(fd)
    {
        let request = (operation != libc::EPOLL_CTL_DEL).then(|| {
            // SAFETY: the kernel has just read it; it is packed.
            unsafe { event.read_unaligned() }
        });
        real::kept_errno(|| listeners::control(number, epfd, fd, request));
    }
    status
}
