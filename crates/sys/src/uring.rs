//! One io_uring: set-up, submission, waiting, and the ring of provided buffers.
//!
//! The io-uring crate makes the ring and encodes requests; entering the kernel is done
//! here, for the arguments that the crate does not offer together (registered ring,
//! minimum wait), through rustix, which makes the system call inline.

use std::io;
use std::mem::{self, ManuallyDrop};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

pub use io_uring::{cqueue, opcode, squeue, types};

use io_uring::{IoUring, Submitter};
use rustix::io::Errno;
use rustix::io_uring::{
    IoringEnterFlags, io_uring_enter, io_uring_enter_arg, io_uring_getevents_arg, io_uring_ptr,
};
use rustix::thread::{Timespec, nanosleep};

use crate::capabilities::Capabilities;
use crate::mapping::{ForkMark, Mapping};

const REGISTER_RING_FDS: u32 = 20;
const UNREGISTER_RING_FDS: u32 = 21;

/// `struct io_uring_rsrc_update`.
#[repr(C)]
struct RingFdUpdate {
    offset: u32,
    reserved: u32,
    data: u64,
}

/// How long an enter may sleep.
#[derive(Clone, Copy, Debug)]
pub enum Sleep {
    /// Not at all.
    No,
    /// Until `completions` of them are there, or the time is over (`None`: never), or,
    /// with a `gather` time, until it is over and there is one completion at least.
    Until {
        /// Completions that end the sleep; at least 1.
        completions: u32,
        /// Longest sleep.
        timeout: Option<Duration>,
        /// How long fewer completions than asked may be waited with.
        gather: Option<Duration>,
    },
}

/// A ring that belongs to the thread that made it. In the child of a fork it is good for
/// nothing but to be dropped, which closes the child's copy of its descriptor.
pub struct Ring {
    uring: ManuallyDrop<IoUring>,
    fork_mark: ForkMark,
    /// Its number in the task's registered rings, if it could be registered.
    registered: Option<u32>,
    taskrun_flag: bool,
}

/// Repeats `attempt` for up to half a second while it fails with ENOMEM. Without CAP_IPC_LOCK the kernel
/// charges a ring against RLIMIT_MEMLOCK of its user, and a closed one until a worker has freed it.
pub fn until_memory_is_unlocked<T>(attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    until_memory_is_unlocked_within(Duration::from_millis(500), attempt)
}

/// The same for so long: where there was room for a ring before, the worker may have much to do.
pub fn until_memory_is_unlocked_within<T>(
    limit: Duration,
    mut attempt: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        match attempt() {
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
                // A signal ends the pause early. std::thread::sleep would sleep for the remainder,
                // to which the kernel adds the timer slack: with signals more often than every
                // 50 us it never returns.
                let pause = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
                let _ = nanosleep(&pause);
            }
            settled => return settled,
        }
    }
    attempt()
}

impl Ring {
    /// Makes a ring with the best set-up that was found to work here: completions are
    /// worked off only when this thread asks (DEFER_TASKRUN), which costs least.
    pub fn new(entries: u32, completions: u32, capabilities: &Capabilities) -> io::Result<Ring> {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_cqsize(completions).setup_clamp();
        if capabilities.submit_all {
            builder.setup_submit_all();
        }
        if capabilities.no_sqarray {
            builder.setup_no_sqarray();
        }
        if capabilities.defer_taskrun {
            builder.setup_single_issuer().setup_defer_taskrun();
        } else if capabilities.coop_taskrun {
            builder.setup_coop_taskrun();
        }
        let deferred = capabilities.defer_taskrun || capabilities.coop_taskrun;
        let taskrun_flag = capabilities.taskrun_flag && deferred;
        if taskrun_flag {
            builder.setup_taskrun_flag();
        }
        let fork_mark = ForkMark::new()?;
        let uring = ManuallyDrop::new(builder.build(entries)?);
        let mut ring = Ring { uring, fork_mark, registered: None, taskrun_flag };
        if capabilities.registered_ring_fd {
            ring.registered = ring.register_ring_fd();
        }
        Ok(ring)
    }

    /// Room for further requests before they must be submitted.
    pub fn room(&mut self) -> usize {
        let queue = self.uring.submission();
        queue.capacity() - queue.len()
    }

    /// Queues one request; false if there is no room.
    ///
    /// # Safety
    ///
    /// What the request points to is valid until the request's last completion, or, for
    /// what the kernel copies at submission (addresses, message headers, vectors of
    /// pieces), until [`Self::enter`] has submitted it.
    #[inline]
    pub unsafe fn push(&mut self, request: &squeue::Entry) -> bool {
        // SAFETY: passed on to the caller.
        unsafe { self.uring.submission().push(request).is_ok() }
    }

    /// Requests queued and not submitted yet.
    #[inline]
    pub fn queued(&mut self) -> u32 {
        self.uring.submission().len() as u32
    }

    /// Whether completions are there, or wait to be worked off, without asking the kernel.
    #[inline]
    pub fn has_completions(&mut self) -> bool {
        if !self.uring.completion().is_empty() {
            return true;
        }
        let queue = self.uring.submission();
        !self.taskrun_flag || queue.taskrun() || queue.cq_overflow()
    }

    /// Whether the kernel left completions to be worked off: an enter works off so many at a time. Only known where
    /// rings have the flag for it, which is older than this bound.
    #[inline]
    pub fn has_left_completions(&mut self) -> bool {
        let queue = self.uring.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    /// Whether the kernel keeps completions that found the queue full. An [`Self::enter`]
    /// brings them, as many as the queue has room for.
    #[inline]
    pub fn has_overflow(&mut self) -> bool {
        self.uring.submission().cq_overflow()
    }

    /// Submits what is queued, processes completions, and sleeps as `sleep` says. An
    /// expired time is no error.
    #[inline(always)]
    pub fn enter(&mut self, sleep: Sleep) -> io::Result<()> {
        let queued = self.queued();
        let (ring, registered) = self.name();
        let flags = IoringEnterFlags::GETEVENTS | registered;
        let (completions, timeout, gather) = match sleep {
            Sleep::No => (0, None, None),
            Sleep::Until { completions, timeout, gather } => (completions, timeout, gather),
        };
        let entered = if timeout.is_none() && gather.is_none() {
            // SAFETY: the call has no argument in memory; what the requests point to is the
            // business of `push`.
            unsafe { io_uring_enter(ring, queued, completions, flags) }
        } else {
            let limit = timeout.map(types::Timespec::from);
            let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
            let argument = io_uring_getevents_arg {
                min_wait_usec: gather.map_or(0, |gather| gather.as_micros().min(u128::from(u32::MAX)) as u32),
                ts: io_uring_ptr::new(limit.cast_mut().cast()),
                ..io_uring_getevents_arg::default()
            };
            let flags = flags | IoringEnterFlags::EXT_ARG;
            // SAFETY: `argument` and the time it points to live until the call returns; for the
            // requests as above.
            unsafe { io_uring_enter_arg(ring, queued, completions, flags, Some(&argument)) }
        };
        match entered {
            Ok(_) | Err(Errno::TIME) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Submits what is queued and asks for no completions: for requests that end while
    /// they are submitted, which is cheaper than [`Self::enter`].
    pub fn submit(&mut self) -> io::Result<()> {
        let queued = self.queued();
        let (ring, flags) = self.name();
        // SAFETY: the call has no argument in memory; what the requests point to is the
        // business of `push`.
        unsafe { io_uring_enter(ring, queued, 0, flags) }?;
        Ok(())
    }

    /// The number by which io_uring_enter(2) names the ring.
    #[inline]
    fn name(&self) -> (BorrowedFd<'_>, IoringEnterFlags) {
        let (number, flags) = match self.registered {
            Some(index) => (index as i32, IoringEnterFlags::REGISTERED_RING),
            None => (self.uring.as_raw_fd(), IoringEnterFlags::empty()),
        };
        // SAFETY: the ring's own descriptor; or no descriptor, as the flag says, but the small number
        // of a registration that lasts as long. It goes to that call alone.
        (unsafe { BorrowedFd::borrow_raw(number) }, flags)
    }

    /// Takes every completion that is there.
    #[inline]
    pub fn reap(&mut self, mut f: impl FnMut(u64, i32, u32)) {
        for completion in self.uring.completion() {
            f(completion.user_data(), completion.result(), completion.flags());
        }
    }

    /// Gives the ring a file table of `slots` empty slots.
    pub fn register_files(&self, slots: u32) -> io::Result<()> {
        self.uring.submitter().register_files_sparse(slots)
    }

    /// Puts a file into a slot of the table; none empties it.
    pub fn set_file(&self, slot: u32, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let fd = fd.map_or(-1, |fd| fd.as_raw_fd());
        self.uring.submitter().register_files_update(slot, &[fd]).map(|_| ())
    }

    /// Closes every file of the table.
    pub fn unregister_files(&self) -> io::Result<()> {
        self.uring.submitter().unregister_files()
    }

    fn register_ring_fd(&self) -> Option<u32> {
        let mut update = RingFdUpdate { offset: u32::MAX, reserved: 0, data: self.uring.as_raw_fd() as u64 };
        let fd = self.uring.as_raw_fd();
        // SAFETY: the kernel reads and writes one live update.
        let done =
            unsafe { libc::syscall(libc::SYS_io_uring_register, fd, REGISTER_RING_FDS, &raw mut update, 1) };
        (done == 1).then_some(update.offset)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if !self.fork_mark.is_here() {
            // Its memory is not mapped here (MADV_DONTFORK): where it was, the child may
            // have something else by now.
            // SAFETY: the ring owns the descriptor, and drops nothing else of `uring`.
            drop(unsafe { OwnedFd::from_raw_fd(self.uring.as_raw_fd()) });
            return;
        }
        // The registration holds the ring open as a descriptor would.
        if let Some(offset) = self.registered {
            let mut update = RingFdUpdate { offset, reserved: 0, data: 0 };
            let fd = self.uring.as_raw_fd();
            // SAFETY: the kernel reads one live update.
            unsafe {
                libc::syscall(libc::SYS_io_uring_register, fd, UNREGISTER_RING_FDS, &raw mut update, 1)
            };
        }
        // SAFETY: nothing uses it afterwards.
        unsafe { ManuallyDrop::drop(&mut self.uring) };
    }
}

/// `struct io_uring_buf`; the first one's last field is the ring's tail.
#[repr(C)]
struct Provided {
    address: u64,
    len: u32,
    id: u16,
    tail: u16,
}

/// Buffers that the kernel takes from as data comes (IORING_REGISTER_PBUF_RING).
pub struct BufferRing {
    entries: Mapping,
    mask: u16,
    /// Where the next buffer goes; published by [`Self::publish`].
    tail: u16,
}

impl BufferRing {
    /// Registers an empty buffer ring as group `group`. `count` is a power of two up to
    /// 32768.
    pub fn new(ring: &Ring, group: u16, count: u16) -> io::Result<BufferRing> {
        Self::of(&ring.uring.submitter(), group, count)
    }

    /// The same of a ring that is not a [`Ring`], whose submitter this is.
    pub fn of(submitter: &Submitter<'_>, group: u16, count: u16) -> io::Result<BufferRing> {
        let entries = Mapping::anonymous(usize::from(count) * mem::size_of::<Provided>())?;
        // SAFETY: the mapping is large enough for `count` entries, and the caller keeps
        // the value alive as long as the ring (a mapping that is gone makes the kernel
        // fault, not write elsewhere: it reads entries through the mapped pages it pinned).
        unsafe {
            submitter.register_buf_ring_with_flags(entries.address() as u64, count, group, 0)?;
        }
        Ok(BufferRing { entries, mask: count - 1, tail: 0 })
    }

    /// Gives the kernel the buffer `id`, with the next [`Self::publish`].
    ///
    /// # Safety
    ///
    /// `len` bytes at `address` are valid, and nobody else touches them, until the kernel
    /// reports `id` as filled or the ring is gone.
    #[inline]
    pub unsafe fn provide(&mut self, id: u16, address: *mut u8, len: u32) {
        let place = usize::from(self.tail & self.mask);
        // SAFETY: `place` is below the number of entries. The tail word of entry 0 is left
        // alone: the kernel reads it at any time.
        unsafe {
            let entry = self.entries.address().cast::<Provided>().add(place);
            (&raw mut (*entry).address).write(address as u64);
            (&raw mut (*entry).len).write(len);
            (&raw mut (*entry).id).write(id);
        }
        self.tail = self.tail.wrapping_add(1);
    }

    /// Lets the kernel see the buffers that were provided.
    #[inline]
    pub fn publish(&mut self) {
        // SAFETY: entry 0 exists, its tail word is aligned, and both sides use it
        // atomically.
        let tail = unsafe {
            let first = self.entries.address().cast::<Provided>();
            AtomicU16::from_ptr(&raw mut (*first).tail)
        };
        // BUFFER-RING: pairs with the kernel's acquire of the tail; the entries must be
        // visible before it.
        tail.store(self.tail, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::thread::JoinHandleExt;
    use std::thread;

    use super::*;

    #[test]
    fn a_wait_for_memory_ends_amid_signals() {
        extern "C" fn ignore(_: libc::c_int) {}
        // SAFETY: all zeros are a valid action without flags, and the handler does nothing.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = ignore as *const () as usize;
            assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, ptr::null_mut()), 0);
        }
        let waiter = thread::spawn(|| {
            until_memory_is_unlocked(|| -> io::Result<()> { Err(io::Error::from_raw_os_error(libc::ENOMEM)) })
        });
        let patience = Instant::now() + Duration::from_secs(60);
        while !waiter.is_finished() && Instant::now() < patience {
            // SAFETY: the thread is not joined yet, so its name is valid.
            unsafe { libc::pthread_kill(waiter.as_pthread_t(), libc::SIGUSR2) };
            thread::yield_now();
        }
        assert!(waiter.is_finished(), "the wait outlasts the signals");
        let ended = waiter.join().unwrap().unwrap_err();
        assert_eq!(ended.raw_os_error(), Some(libc::ENOMEM));
    }
}
