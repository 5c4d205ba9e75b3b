//! Shutdowns: a system call of their own, as they never wait.
//!
//! The ring would leave a shutdown(2) to a worker thread (IORING_OP_SHUTDOWN is always
//! asynchronous), whose creation interrupts this thread's system calls with EINTR, and
//! which looks the file up only when it begins: a number that was closed by then may be
//! another connection's. Only a lightweight socket in a process that is out of descriptors
//! has no other way; there a close waits for the handle's shutdowns, which
//! `HandleEntry::engine_word` counts.

use std::io;
use std::time::Duration;

use socket2::SockRef;
use sys::uring::Sleep;

use super::Uring;
use crate::core::{Core, OpKind};
use crate::engine::{self, Request};
use crate::id::OpId;

/// In `HandleEntry::engine_word`, above the count: a close waits for it to reach 0.
/// (`Config::operations_max` is at most 2^24.)
const CLOSE_WAITS: u32 = 1 << 31;

impl Uring {
    /// Carries out a shutdown, behind everything that was requested before it, and returns
    /// its result; `None` for other operations, and for what needs a worker.
    pub(super) fn shut_down(&mut self, core: &mut Core, op: OpId) -> Option<i32> {
        let entry = core.op(op)?;
        let handle = entry.handle.index;
        let how = match entry.kind {
            OpKind::Disconnect(how) | OpKind::Shutdown(how) => how,
            _ => return None,
        };
        let submitted = if self.ring.queued() > 0 { self.submit(core) } else { Ok(()) };
        core.stats.system_calls += 1;
        let result = submitted.and_then(|()| {
            engine::with_descriptor(self, core, handle, |fd| SockRef::from(&fd).shutdown(how))
        });
        match result.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO)) {
            Ok(()) => Some(0),
            Err(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => None,
            Err(error) => Some(-error),
        }
    }

    /// Counts the operation that was just submitted, if it is a shutdown.
    pub(super) fn note_shutdown(&mut self, core: &mut Core, op: OpId) {
        if let Some(handle) = shut_down_by(core, op.index)
            && let Some(entry) = core.handles.at_mut(handle)
        {
            entry.engine_word += 1;
            self.shutdowns += 1;
        }
    }

    /// Waits for the handle's shutdowns: its file goes back to the user with this turn.
    pub(super) fn finish_shutdowns(&mut self, core: &mut Core, handle: u32) {
        // A shutdown waits for nothing but a worker.
        const TRIES: u32 = 1000;
        const PATIENCE: Duration = Duration::from_millis(10);
        for _ in 0..TRIES {
            if core.handles.at(handle).is_none_or(|entry| entry.engine_word == 0) {
                return;
            }
            let sleep = Sleep::Until { completions: 1, timeout: Some(PATIENCE), gather: None };
            let entered = self.enter(core, sleep);
            self.settle_batch(core);
            match entered {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return,
                _ => {}
            }
        }
    }
}

/// Whether the close has to wait; it is requested again once it need not.
pub(super) fn postpone_close(core: &mut Core, handle: u32) -> bool {
    match core.handles.at_mut(handle) {
        Some(entry) if entry.engine_word > 0 => {
            entry.engine_word |= CLOSE_WAITS;
            true
        }
        _ => false,
    }
}

/// An operation has ended; `shutdowns` counts those of the ring.
pub(super) fn note_end(core: &mut Core, op: u32, shutdowns: &mut u32) {
    let Some(handle) = shut_down_by(core, op) else { return };
    *shutdowns -= 1;
    let Some(entry) = core.handles.at_mut(handle) else { return };
    entry.engine_word -= 1;
    if entry.engine_word == CLOSE_WAITS {
        entry.engine_word = 0;
        core.requests.push_back(Request::Close(handle));
    }
}

/// The handle of a shutdown; `None` for other operations.
#[inline]
fn shut_down_by(core: &Core, op: u32) -> Option<u32> {
    let entry = core.ops.at(op)?;
    matches!(entry.kind, OpKind::Disconnect(_) | OpKind::Shutdown(_)).then_some(entry.handle.index)
}
