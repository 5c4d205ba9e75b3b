//! SO_RCVTIMEO and SO_SNDTIMEO: they bound the sum of all waits of one call, as in the kernel.

use std::ffi::c_int;

use crate::clock::{self, Instant};
use crate::kernel;

/// The timeout of one call.
pub(crate) struct CallLimit {
    option: c_int,
    /// When its first wait began.
    began: Option<Instant>,
    /// When the call times out, once that was read.
    until: Option<Option<Instant>>,
}

impl CallLimit {
    /// `option`: SO_RCVTIMEO or SO_SNDTIMEO.
    pub(crate) fn of(option: c_int) -> CallLimit {
        CallLimit { option, began: None, until: None }
    }

    /// A wait begins. `None`: a blocking call of the kernel applies the timeout itself, since this
    /// is the first wait, or there is none. Otherwise the wait has to end at the returned time. The
    /// error: timed out.
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

    /// When the call times out; `None`: never.
    pub(crate) fn until(&mut self, fd: c_int) -> Option<Instant> {
        let began = *self.began.get_or_insert_with(clock::now);
        let option = self.option;
        *self.until.get_or_insert_with(|| Some(began + kernel::limit(fd, option)?))
    }
}
