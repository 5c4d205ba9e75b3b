//! The way with an aggressive low-water mark: epoll reports a connection when a whole batch of messages waits, or when
//! the first of them has waited for the timeout.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use mmsg::RcvLowat;

use super::server::{Course, PATIENCE, Task, Way};
use super::{GAP, SIZE};
use crate::Reason;
use crate::epoll::Epoll;

/// Messages of a batch.
const BATCH: usize = 16;

/// A quarter more than a batch takes at the rate of the workload.
const TIMEOUT: Duration = GAP.saturating_mul(BATCH as u32 + BATCH as u32 / 4);

/// In place of a connection's number: the timer of the marks.
const TIMER: u64 = u64::MAX;

pub(super) struct Marked {
    epoll: Epoll,
    marks: RcvLowat,
    fds: Vec<OwnedFd>,
    events: Vec<libc::epoll_event>,
    memory: Vec<u8>,
    unread: u64,
}

impl Marked {
    pub(super) fn new(task: &Task, fds: Vec<OwnedFd>) -> Result<Self, Reason> {
        let (epoll, marks) = (Epoll::new()?, RcvLowat::new()?);
        let timer = marks.timer().ok_or("the marks have no timer")?;
        epoll.control(libc::EPOLL_CTL_ADD, timer.as_raw_fd(), TIMER, libc::EPOLLIN)?;
        for (at, fd) in fds.iter().enumerate() {
            epoll.control(libc::EPOLL_CTL_ADD, fd.as_raw_fd(), at as u64, libc::EPOLLIN)?;
            marks.set(fd, (BATCH * SIZE) as u32, TIMEOUT)?;
        }
        Ok(Self {
            epoll,
            marks,
            fds,
            events: vec![libc::epoll_event { events: 0, u64: 0 }; task.ready + 1],
            memory: vec![0; 4 * BATCH * SIZE],
            unread: task.turns * task.ready as u64,
        })
    }

    fn look(&mut self, course: &mut Course, milliseconds: i32) -> Result<(), Reason> {
        course.waits += 1;
        for event in self.epoll.wait(&mut self.events, milliseconds)? {
            if event.u64 == TIMER {
                self.marks.expire()?;
                continue;
            }
            let fd = &self.fds[event.u64 as usize];
            course.calls += 1;
            // SAFETY: the memory is live and as long as said.
            let received =
                unsafe { libc::recv(fd.as_raw_fd(), self.memory.as_mut_ptr().cast(), self.memory.len(), 0) };
            if received < 0 {
                return Err(io::Error::last_os_error().into());
            }
            self.marks.rearm(fd);
            self.memory[..received as usize].chunks(SIZE).for_each(|message| course.take(message));
        }
        Ok(())
    }
}

impl Way for Marked {
    fn turn(&mut self, course: &mut Course) -> Result<(), Reason> {
        let before = course.got;
        self.look(course, 0)?;
        self.unread -= (course.got - before) as u64;
        Ok(())
    }

    /// What waits below the marks.
    fn rest(&mut self, course: &mut Course) -> Result<(), Reason> {
        let patience = Instant::now() + PATIENCE;
        while self.unread > 0 && Instant::now() < patience {
            let before = course.got;
            self.look(course, TIMEOUT.as_millis() as i32)?;
            self.unread -= (course.got - before) as u64;
        }
        Ok(())
    }

    fn calls(&self) -> u64 {
        0
    }
}
