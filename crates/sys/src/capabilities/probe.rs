//! The instrument of the trials: a small ring, memory that the kernel may write to, and requests whose ends are kept
//! track of, so that nothing is in flight when the memory goes.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::{BufRingEntry, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

use super::DisabledFeatures;
use crate::mapping::Mapping;
use crate::uring::until_memory_is_unlocked;

const ENTRIES: u32 = 16;
const BUFFERS: u16 = 4;
pub(super) const BUFFER_SIZE: usize = 256;
pub(super) const BUFFER_GROUP: u16 = 1;
/// The largest page of any Linux: a buffer ring has to start on a page.
const PAGE: usize = 65_536;
/// How long a completion that should be there already is waited for.
pub(super) const PATIENCE: Timespec = Timespec::new().nsec(50_000_000);

/// The flags that `io_uring_setup` takes here.
pub(super) struct Setup {
    pub(super) defer_taskrun: bool,
    pub(super) coop_taskrun: bool,
    pub(super) taskrun_flag: bool,
    pub(super) submit_all: bool,
    pub(super) no_sqarray: bool,
}

impl Setup {
    /// All at once where the kernel knows them all, else one by one; the error is the kernel's reason to make no ring.
    pub(super) fn choose(disabled: &DisabledFeatures) -> io::Result<Self> {
        const DEFER: u32 = 1 << 13 | 1 << 12;
        const COOP: u32 = 1 << 8;
        const TASKRUN_FLAG: u32 = 1 << 9;
        const SUBMIT_ALL: u32 = 1 << 7;
        const NO_SQARRAY: u32 = 1 << 16;

        let all_at_once = || try_setup(DEFER | COOP | TASKRUN_FLAG | SUBMIT_ALL | NO_SQARRAY);
        let all_known = match until_memory_is_unlocked(all_at_once) {
            Ok(()) => true,
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                until_memory_is_unlocked(|| try_setup(0))?;
                false
            }
            Err(error) => return Err(error),
        };
        // The kernel looks at the flags before it takes memory: only EINVAL says that it does not know one.
        let known = |flags| {
            try_setup(flags).map_or_else(|error| error.raw_os_error() != Some(libc::EINVAL), |()| true)
        };
        let takes = |name: &str, flags: u32| !disabled.contains(name) && (all_known || known(flags));
        Ok(Self {
            defer_taskrun: takes("defer_taskrun", DEFER),
            coop_taskrun: takes("coop_taskrun", COOP),
            taskrun_flag: takes("taskrun_flag", COOP | TASKRUN_FLAG),
            submit_all: takes("submit_all", SUBMIT_ALL),
            no_sqarray: takes("no_sqarray", NO_SQARRAY),
        })
    }

    fn build(&self) -> io::Result<IoUring> {
        let mut builder = IoUring::builder();
        if self.defer_taskrun {
            builder.setup_single_issuer().setup_defer_taskrun();
        } else if self.coop_taskrun {
            builder.setup_coop_taskrun();
        }
        if self.submit_all {
            builder.setup_submit_all();
        }
        if self.no_sqarray {
            builder.setup_no_sqarray();
        }
        builder.build(ENTRIES)
    }
}

/// Makes the smallest ring with these flags and closes it.
fn try_setup(flags: u32) -> io::Result<()> {
    // struct io_uring_params: 120 bytes, its third word the flags.
    let mut parameters = [0u32; 30];
    parameters[2] = flags;
    // SAFETY: the kernel reads and writes the 120 bytes that `parameters` owns, during the call only.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel returned this descriptor to us, and nobody else knows it.
    drop(unsafe { OwnedFd::from_raw_fd(fd as i32) });
    Ok(())
}

/// What the kernel may write to while requests are in flight.
struct Memory {
    /// One page: a ring of buffer descriptors. Then one page: the buffers.
    mapping: Mapping,
    message: libc::msghdr,
}

impl Memory {
    pub(super) fn new() -> io::Result<Box<Self>> {
        let mapping = Mapping::anonymous(2 * PAGE)?;
        // SAFETY: msghdr is plain data for which all zeros is "no name, no vectors, no control".
        let message = unsafe { std::mem::zeroed() };
        Ok(Box::new(Self { mapping, message }))
    }

    fn buffer(&self, id: u16) -> *mut u8 {
        // SAFETY: BUFFERS * BUFFER_SIZE bytes lie in the second page of the mapping.
        unsafe { self.mapping.address().add(PAGE + usize::from(id) * BUFFER_SIZE) }
    }

    /// Writes the descriptors of all buffers and publishes them to the kernel.
    fn provide_buffers(&self) {
        let ring = self.mapping.address().cast::<BufRingEntry>();
        for id in 0..BUFFERS {
            // SAFETY: the first page holds BUFFERS entries; the kernel reads them only after the tail says so.
            let entry = unsafe { &mut *ring.add(usize::from(id)) };
            entry.set_addr(self.buffer(id) as u64);
            entry.set_len(BUFFER_SIZE as u32);
            entry.set_bid(id);
        }
        // SAFETY: `ring` is the base of a buffer ring; its tail is an aligned u16 that the kernel only reads.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(ring).cast_mut()) };
        tail.store(BUFFERS, Ordering::Release);
    }

    fn withdraw_buffers(&self) {
        // SAFETY: the first page is ours, and no buffer ring is registered on it when this is called.
        unsafe {
            ptr::write_bytes(self.mapping.address(), 0, usize::from(BUFFERS) * size_of::<BufRingEntry>())
        };
    }
}

pub(super) struct Probe {
    pub(super) ring: IoUring,
    memory: ManuallyDrop<Box<Memory>>,
    user_data: u64,
    /// Requests that have not had their last completion.
    in_flight: Vec<u64>,
    /// Completions that were reaped while another was waited for.
    early: Vec<cqueue::Entry>,
}

impl Probe {
    pub(super) fn new(setup: &Setup) -> io::Result<Self> {
        let ring = until_memory_is_unlocked(|| setup.build())?;
        if !ring.params().is_feature_ext_arg() {
            // Without timed waits no trial could be bounded.
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        }
        Ok(Self {
            ring,
            memory: ManuallyDrop::new(Memory::new()?),
            user_data: 0,
            in_flight: Vec::new(),
            early: Vec::new(),
        })
    }

    /// Runs a trial with a buffer ring; its requests have ended when the ring is taken away.
    pub(super) fn with_buffers(
        &mut self,
        trial: impl FnOnce(&mut Self) -> io::Result<bool>,
    ) -> io::Result<bool> {
        self.memory.withdraw_buffers();
        let (submitter, place) = (self.ring.submitter(), self.memory.mapping.address() as u64);
        until_memory_is_unlocked(|| {
            // SAFETY: the mapping lives until the ring has nothing in flight (see Drop), longer than the registration.
            unsafe { submitter.register_buf_ring_with_flags(place, BUFFERS, BUFFER_GROUP, 0) }
        })?;
        self.memory.provide_buffers();
        let answer = trial(self);
        self.cancel_all();
        self.ring.submitter().unregister_buf_ring(BUFFER_GROUP)?;
        answer
    }

    /// The bytes that a completion brought.
    pub(super) fn received(&self, entry: &cqueue::Entry) -> Option<&[u8]> {
        let id = cqueue::buffer_select(entry.flags()).filter(|&id| id < BUFFERS)?;
        let length = usize::try_from(entry.result()).ok().filter(|&length| length <= BUFFER_SIZE)?;
        // SAFETY: the kernel has given this buffer back with `length` bytes in it, and does not touch it again
        // before it is provided anew.
        Some(unsafe { std::slice::from_raw_parts(self.memory.buffer(id), length) })
    }

    /// Hands one request to the kernel and names it.
    pub(super) fn submit(&mut self, entry: squeue::Entry) -> io::Result<u64> {
        let user_data = self.queue(entry)?;
        self.ring.submit()?;
        Ok(user_data)
    }

    pub(super) fn queue(&mut self, entry: squeue::Entry) -> io::Result<u64> {
        self.user_data += 1;
        let entry = entry.user_data(self.user_data);
        // SAFETY: what requests point to is PAYLOAD, which is static, or `memory`, which outlives them (see Drop).
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        self.in_flight.push(self.user_data);
        Ok(self.user_data)
    }

    /// The next completion of this request, waiting for it if need be.
    pub(super) fn completion(&mut self, user_data: u64) -> io::Result<cqueue::Entry> {
        loop {
            if let Some(index) = self.early.iter().position(|entry| entry.user_data() == user_data) {
                return Ok(self.early.remove(index));
            }
            self.reap();
            if self.early.iter().any(|entry| entry.user_data() == user_data) {
                continue;
            }
            let arguments = SubmitArgs::new().timespec(&PATIENCE);
            match self.ring.submitter().submit_with_args(1, &arguments) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => {
                    outcome?;
                }
            }
        }
    }

    fn reap(&mut self) {
        for entry in self.ring.completion() {
            if !cqueue::more(entry.flags()) {
                self.in_flight.retain(|&user_data| user_data != entry.user_data());
            }
            self.early.push(entry);
        }
    }

    /// The completion of a request that has ended, if it has one.
    pub(super) fn ended(&mut self, user_data: u64) -> Option<cqueue::Entry> {
        self.reap();
        self.in_flight.retain(|&other| other != user_data);
        let index = self.early.iter().position(|entry| entry.user_data() == user_data)?;
        Some(self.early.remove(index))
    }

    /// Room for [`BUFFER_SIZE`] bytes that lives as long as the requests.
    pub(super) fn room(&self) -> *mut u8 {
        self.memory.buffer(0)
    }

    /// An empty message header that lives as long as the requests.
    pub(super) fn message(&self) -> *const libc::msghdr {
        &raw const self.memory.message
    }

    /// Ends a request and drops its further completions.
    pub(super) fn cancel(&mut self, user_data: u64) -> io::Result<()> {
        self.reap();
        if self.in_flight.contains(&user_data) {
            let cancel = self.submit(opcode::AsyncCancel::new(user_data).build())?;
            self.completion(cancel)?;
        }
        while self.in_flight.contains(&user_data) {
            self.completion(user_data)?;
        }
        self.early.retain(|entry| entry.user_data() != user_data);
        Ok(())
    }

    fn cancel_all(&mut self) {
        for user_data in self.in_flight.clone() {
            // A request that cannot be cancelled stays in `in_flight`, and Drop heeds that.
            let _ = self.cancel(user_data);
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.cancel_all();
        if self.in_flight.is_empty() {
            // SAFETY: nothing is in flight, so the kernel writes to `memory` no more; it is not used again.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
        // Else the memory is given up: two pages are a fair price for not having the kernel write into freed ones.
    }
}
