//! SO_RCVTIMEO and SO_SNDTIMEO: they bound all waits of one call together, as in the kernel.

use std::ffi::c_int;

use crate::clock::{self, Instant};
use crate::kernel;

/// The time limit of one call.
pub(crate) struct CallLimit {
    option: c_int,
    /// When its first wait began.
    began: Option<Instant>,
    /// When the time is up, once that was asked.
    until: Option<Option<Instant>>,
}

impl CallLimit {
    /// `option`: which of both bounds it.
    pub(crate) fn of(option: c_int) -> CallLimit {
        CallLimit { option, began: None, until: None }
    }

    /// A wait begins. `None`: a call of the kernel that waits keeps to the limit by itself: this is the
    /// first wait, or there is no limit; else it is to end then. The error: the time is up.
    #[inline]
    pub(crate) fn next_wait(&mut self, fd: c_int) -> Result<Option<Instant>, i32> {
        if self.began.is_none() {
            self.began = Some(clock::now());
            return Ok(None);
        }
        match self.until(fd) {
            Some(until) if clock::now() >= until => Err(libc::EAGAIN),
            until => Ok(until),
        }
    }

    /// When the time is up; `None`: never.
    pub(crate) fn until(&mut self, fd: c_int) -> Option<Instant> {
        let began = *self.began.get_or_insert_with(clock::now);
        let option = self.option;
        *self.until.get_or_insert_with(|| Some(began + kernel::limit(fd, option)?))
    }
}
