//! Many requests that never wait, in one submission.

use std::io;

use sys::capabilities::Capabilities;
use sys::uring::{Ring, Sleep, squeue, until_memory_is_unlocked};

/// Requests that one submission carries.
const ENTRIES: u32 = 256;

/// How often the kernel may take nothing of what is queued before the batch is given up.
const REFUSALS_MAX: u32 = 100;

/// A ring for requests that end while they are submitted.
pub(crate) struct Batch {
    ring: Ring,
    /// Submitted and not completed, but for silent requests: these never wait, so they have ended when the call that submits
    /// them returns (`recv_tells_cut` tries it).
    in_flight: u32,
    pub(crate) calls: u64,
}

/// The kernel took no more of the batch: so many requests, the last that were pushed, have not been done.
pub(crate) struct Stopped {
    pub(crate) undone: usize,
}

/// In the data of a request that completes only if it fails (IOSQE_CQE_SKIP_SUCCESS).
pub(crate) const SILENT: u64 = 1 << 62;

impl Batch {
    pub(crate) fn new() -> io::Result<Batch> {
        let ring = until_memory_is_unlocked(|| Ring::new(ENTRIES, 2 * ENTRIES, Capabilities::get()))?;
        Ok(Batch { ring, in_flight: 0, calls: 0 })
    }

    /// Queues a request; a full queue is submitted first.
    ///
    /// # Safety
    ///
    /// The request never waits, and what it points to is valid until [`Self::finish`]
    /// returned.
    #[inline]
    pub(crate) unsafe fn push(
        &mut self,
        request: &squeue::Entry,
        done: &mut impl FnMut(u64, i32),
    ) -> Result<(), Stopped> {
        // SAFETY: passed on to the caller.
        if !unsafe { self.ring.push(request) } {
            self.finish(done)?;
            // SAFETY: as above.
            if !unsafe { self.ring.push(request) } {
                return Err(Stopped { undone: 0 });
            }
        }
        self.in_flight += is_loud(request.get_user_data());
        Ok(())
    }

    /// Submits what is queued and tells each request's result. Afterwards the kernel holds
    /// nothing of it any more, also after an error; then the batch must be dropped, for what
    /// is still queued would be submitted later.
    #[inline]
    pub(crate) fn finish(&mut self, done: &mut impl FnMut(u64, i32)) -> Result<(), Stopped> {
        let mut refusals = 0;
        while self.ring.queued() > 0 {
            let before = self.ring.queued();
            self.calls += 1;
            // What went wrong shows in what is still queued.
            let _ = self.ring.submit();
            self.reap(done);
            if self.ring.queued() == before {
                refusals += 1;
                if refusals > REFUSALS_MAX {
                    self.in_flight = self.in_flight.saturating_sub(before);
                    self.wait(done);
                    return Err(Stopped { undone: before as usize });
                }
            }
        }
        self.wait(done);
        Ok(())
    }

    fn wait(&mut self, done: &mut impl FnMut(u64, i32)) {
        while self.in_flight > 0 {
            self.calls += 1;
            // Interrupted or not: what counts is what completed. A request that does not wait
            // completes, so this ends.
            let _ = self.ring.enter(Sleep::Until { completions: 1, timeout: None, gather: None });
            self.reap(done);
        }
    }

    #[inline]
    fn reap(&mut self, done: &mut impl FnMut(u64, i32)) {
        let mut completed = 0;
        self.ring.reap(|data, result, _| {
            completed += is_loud(data);
            done(data, result);
        });
        self.in_flight -= completed;
    }
}

fn is_loud(data: u64) -> u32 {
    u32::from(data & SILENT == 0)
}
