//! Shutdowns: a system call of their own, as they never wait.
//!
//! The ring would leave a shutdown(2) to a worker thread (IORING_OP_SHUTDOWN is always
//! asynchronous), whose creation interrupts this thread's system calls with EINTR, and
//! which looks the file up only when it begins: a number that was closed by then may be
//! another connection's. Only a lightweight socket in a process that is out of descriptors
//! has no other way; there a close waits for the handle's shutdowns, which
//! the file's word ([`FileView::word`]) counts.

use std::io;
use std::net::Shutdown;
use std::time::Duration;

use socket2::SockRef;
use sys::uring::Sleep;

use super::Uring;
use crate::core::OpKind;
use crate::engine::view::View;
use crate::engine::{self, Request};

/// In the file's word ([`FileView::word`]), above the count: a close waits for it to reach 0.
/// (`Config::operations_max` is at most 2^24.)
const CLOSE_WAITS: u32 = 1 << 31;

impl Uring {
    /// Carries out a shutdown, behind everything that was requested before it, and returns
    /// its result; `None` for one that needs a worker.
    pub(super) fn shut_down(&mut self, view: &mut View<'_>, handle: u32, how: Shutdown) -> Option<i32> {
        let submitted = if self.ring.queued() > 0 { self.submit(view) } else { Ok(()) };
        view.count_calls(1);
        let result = submitted.and_then(|()| {
            engine::with_descriptor(self, view, handle, |fd| SockRef::from(&fd).shutdown(how))
        });
        match result.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO)) {
            Ok(()) => Some(0),
            Err(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => None,
            Err(error) => Some(-error),
        }
    }

    /// Counts the shutdown that was just submitted.
    pub(super) fn note_shutdown(&mut self, view: &mut View<'_>, handle: u32) {
        if let Some(word) = view.word_mut(handle) {
            *word += 1;
            self.shutdowns += 1;
        }
    }

    /// Waits for the handle's shutdowns: its file goes back to the user with this turn.
    pub(super) fn finish_shutdowns(&mut self, view: &mut View<'_>, handle: u32) {
        // A shutdown waits for nothing but a worker.
        const TRIES: u32 = 1000;
        const PATIENCE: Duration = Duration::from_millis(10);
        for _ in 0..TRIES {
            if view.file(handle).is_none_or(|file| file.word() == 0) {
                return;
            }
            let sleep = Sleep::Until { completions: 1, timeout: Some(PATIENCE), gather: None };
            let entered = self.enter(view, sleep);
            self.settle_batch(view);
            match entered {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return,
                _ => {}
            }
        }
    }
}

/// Whether the close has to wait; it is requested again once it need not.
pub(super) fn postpone_close(view: &mut View<'_>, handle: u32) -> bool {
    match view.word_mut(handle) {
        Some(word) if *word > 0 => {
            *word |= CLOSE_WAITS;
            true
        }
        _ => false,
    }
}

/// An operation has ended; `shutdowns` counts those of the ring.
pub(super) fn note_end(view: &mut View<'_>, op: u32, shutdowns: &mut u32) {
    let Some(handle) = shut_down_by(view, op) else { return };
    *shutdowns -= 1;
    let Some(word) = view.word_mut(handle) else { return };
    *word -= 1;
    if *word == CLOSE_WAITS {
        *word = 0;
        view.request_again(Request::Close(handle));
    }
}

/// The handle of a shutdown; `None` for other operations.
#[inline]
fn shut_down_by(view: &View<'_>, op: u32) -> Option<u32> {
    let entry = view.op(view.op_id(op))?;
    matches!(entry.kind, OpKind::Disconnect(_) | OpKind::Shutdown(_)).then_some(entry.handle.index)
}
