//! The steering of one listener, shared by all processes forked since.

use std::ffi::c_int;
use std::io;
use std::os::fd::BorrowedFd;

use steering::{Inherited, JoinError, Owner, Slot, SlowPath};
use sys::bpf::Error;

use crate::hidden;
use crate::kernel;

/// The words of one sibling that a worker shares with the program in the kernel.
pub(super) type Words = Owner<'static>;

pub(super) struct Steering {
    inner: &'static steering::Steering,
    /// Words of the slots that this process ever had: leaked, as calls of other threads use them
    /// without a lock.
    words: Vec<(Slot, &'static Words)>,
    /// Members of this process had its words, which another thread may still use.
    is_used: bool,
}

impl Steering {
    /// The steering of a listener: the inherited one if this library would make it the same, else a
    /// new one. Its descriptors have numbers from `lowest` on.
    ///
    /// # Errors
    ///
    /// The kernel refuses it.
    pub(super) fn new(
        listener: c_int,
        lowest: c_int,
        inherited: &[Inherited<'_>],
    ) -> Result<Steering, Error> {
        let new = steering::Steering::new(SlowPath::SharedSocket)?;
        let mut inner = Box::new(new.or_inherited(inherited, kernel::cookie(listener)));
        inner.raise(lowest)?;
        for fd in inner.descriptors() {
            hidden::keep(fd);
        }
        Ok(Steering { inner: Box::leak(inner), words: Vec::new(), is_used: false })
    }

    /// Whether this process may put siblings into the group.
    ///
    /// # Errors
    ///
    /// EPERM, before Linux 5.19 and without privileges.
    pub(super) fn probe(&self) -> io::Result<()> {
        self.inner.probe()
    }

    /// Adds a sibling to the group, for one of the CPUs that its thread may run on.
    ///
    /// # Errors
    ///
    /// The listener has steering that this process did not inherit, or too many members.
    pub(super) fn join(
        &mut self,
        shared: BorrowedFd<'_>,
        sibling: BorrowedFd<'_>,
    ) -> Result<(Slot, &'static Words), JoinError> {
        match self.inner.share(shared) {
            // By another worker.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
            shared => shared?,
        }
        let slot = self.inner.join(sibling, std::iter::empty())?;
        // Until the first wait: the set may be for another process, or for later.
        self.inner.owner(slot).cannot_accept();
        // Workers that may run anywhere get one CPU each all the same.
        let cpus = allowed_cpus();
        let cpu = cpus.get((slot.number() as usize - 1) % cpus.len().max(1)).copied();
        self.inner.set_cpus(slot, cpu.into_iter());
        self.is_used = true;
        let known = self.words.iter().find(|(of, _)| *of == slot).map(|&(_, words)| words);
        let words = known.unwrap_or_else(|| {
            let words: &'static Words = Box::leak(Box::new(self.inner.owner(slot)));
            self.words.push((slot, words));
            words
        });
        Ok((slot, words))
    }

    pub(super) fn leave(&self, slot: Slot) {
        self.inner.leave(slot);
    }

    /// Whether a listener has become the group's shared socket.
    pub(super) fn is_shared_by(&self, listener: c_int) -> bool {
        self.inner.is_shared_by(kernel::cookie(listener))
    }

    pub(super) fn descriptors(&self) -> [c_int; 4] {
        self.inner.descriptors()
    }
}

impl Drop for Steering {
    fn drop(&mut self) {
        for fd in self.inner.descriptors() {
            hidden::no_longer_keep(fd);
        }
        // SAFETY: the box that `new` leaked, dropped with `self`: words borrow only from the
        // mapping.
        let inner = unsafe { Box::from_raw(std::ptr::from_ref(self.inner).cast_mut()) };
        if self.is_used {
            inner.keep_words();
        }
    }
}

/// CPUs that this thread may run on.
pub(super) fn allowed_cpus() -> Vec<u32> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    (0..rustix::thread::CpuSet::MAX_CPU as u32).filter(|cpu| set.is_set(*cpu as usize)).collect()
}
