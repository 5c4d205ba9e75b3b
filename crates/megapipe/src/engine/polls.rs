//! Polls through an epoll set of their own: the epoll engine's has a descriptor once, for the
//! handle that it may have, and io_uring's polls report some ends of streams unasked.
//!
//! The kernel reports once a call (EPOLLONESHOT), and keeps the file in the set until it is
//! closed: to poll it again is to arm its place again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::time::Duration;

use sys::epoll::{Event, IN, OUT, Set};

use super::Done;
use super::view::View;
use crate::core::{Op, OpKind};
use crate::id::OpId;
use crate::readiness::Poll;

/// Reports fetched at once; what is left is reported by the next turn.
const EVENTS: usize = 64;

#[derive(Default)]
pub(crate) struct Polls {
    /// Made with the first poll.
    set: Option<Set>,
    events: Vec<Event>,
    /// By descriptor number.
    places: Vec<Place>,
}

/// The polls of a descriptor number.
#[derive(Clone, Copy, Default)]
struct Place {
    /// The first of its polls, which are linked by `Op::next`.
    first: Option<u32>,
    /// How often it was armed. A report of an earlier time may be of a file that was closed since.
    armed: u32,
}

impl Polls {
    /// The set, which is readable while there are reports.
    pub(crate) fn set(&self) -> Option<BorrowedFd<'_>> {
        self.set.as_ref().map(Set::as_fd)
    }

    /// Makes the set.
    pub(crate) fn make_set(&mut self) -> io::Result<BorrowedFd<'_>> {
        self.events = vec![Event::NONE; EVENTS];
        let set: &Set = self.set.insert(Set::new()?);
        Ok(set.as_fd())
    }

    pub(crate) fn start(&mut self, view: &mut View<'_>, op: OpId, poll: Poll) {
        let others = self.retain(view, poll.fd, |_, _, _| true);
        match self.arm(view, poll.fd, others | poll.interest.reported()) {
            Ok(()) => {
                let place = &mut self.places[poll.fd as usize];
                view.set_next(op.index, place.first.replace(op.index));
            }
            Err(error) => refuse(view, op, poll, &error),
        }
    }

    /// Ends a poll. Later reports of the kernel for it are ignored.
    pub(crate) fn cancel(&mut self, view: &mut View<'_>, op: OpId, poll: Poll) {
        self.retain(view, poll.fd, |_, other, _| other != op);
        view.push_done(Done::plain(op, -libc::ECANCELED));
    }

    /// Fetches and hands out reports.
    pub(crate) fn run(&mut self, view: &mut View<'_>) {
        let Some(set) = &self.set else { return };
        view.count_calls(1);
        // After an error they are still there, and the set stays readable.
        let count = set.wait(&mut self.events, Some(Duration::ZERO)).unwrap_or(0);
        for at in 0..count {
            let event = self.events[at];
            self.report(view, event);
        }
    }

    fn report(&mut self, view: &mut View<'_>, event: Event) {
        let (fd, armed) = (event.data() as RawFd, (event.data() >> 32) as u32);
        if self.places.get(fd as usize).is_none_or(|place| place.armed != armed) {
            return;
        }
        let left = self.retain(view, fd, |view, op, poll| {
            let ready = event.readiness() & poll.interest.reported();
            if ready != 0 {
                view.push_done(Done::plain(op, ready as i32));
            }
            ready == 0
        });
        if left != 0
            && let Err(error) = self.arm(view, fd, left)
        {
            self.retain(view, fd, |view, op, poll| {
                refuse(view, op, poll, &error);
                false
            });
        }
    }

    /// Has the kernel report once what the descriptor is, or becomes, ready for of `interest`.
    fn arm(&mut self, view: &mut View<'_>, fd: RawFd, interest: u32) -> io::Result<()> {
        let (Some(set), Ok(number)) = (&self.set, usize::try_from(fd)) else {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        };
        let before = self.places.get(number).map_or(0, |place| place.armed);
        let armed = before.wrapping_add(1).max(1);
        view.count_calls(1);
        set.report_once(fd, interest, u64::from(armed) << 32 | u64::from(fd.cast_unsigned()), before > 0)?;
        // The number is a descriptor's, so RLIMIT_NOFILE bounds the table.
        if self.places.len() <= number {
            self.places.resize(number + 1, Place::default());
        }
        self.places[number].armed = armed;
        Ok(())
    }

    /// Keeps those polls of the number that `keep` says; returns what they wait for.
    fn retain(
        &mut self,
        view: &mut View<'_>,
        fd: RawFd,
        mut keep: impl FnMut(&mut View<'_>, OpId, Poll) -> bool,
    ) -> u32 {
        let Some(place) = self.places.get_mut(fd as usize) else { return 0 };
        let mut interest = 0;
        let mut at = place.first.take();
        while let Some(index) = at {
            at = view.next_of(index);
            let op = view.op_id(index);
            if let Some(&Op { kind: OpKind::Poll(poll), .. }) = view.op(op)
                && keep(view, op, poll)
            {
                view.set_next(index, place.first.replace(index));
                interest |= poll.interest.reported();
            }
        }
        interest
    }
}

/// Ends a poll that the kernel refused: a file that is always ready (EPERM) is ready, if that is
/// asked.
fn refuse(view: &mut View<'_>, op: OpId, poll: Poll, error: &io::Error) {
    let result = match error.raw_os_error() {
        Some(libc::EPERM) if poll.interest.reported() & (IN | OUT) == 0 => -libc::EINVAL,
        Some(libc::EPERM) => (poll.interest.reported() & (IN | OUT)) as i32,
        error => -error.unwrap_or(libc::EIO),
    };
    view.push_done(Done::plain(op, result));
}
