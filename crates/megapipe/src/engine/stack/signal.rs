//! A descriptor that the kernel engine waits for on behalf of a stack.

use std::io;
use std::os::fd::BorrowedFd;

use crate::engine::Engine;
use crate::engine::view::View;
use crate::engine::watch::Watch;

pub(super) struct Signal {
    watch: Watch,
    /// There may be something to take: only an attempt that finds nothing clears it.
    pub(super) readable: bool,
    /// The kernel engine reports what comes next.
    watched: bool,
}

impl Signal {
    pub(super) fn new(watch: Watch) -> Signal {
        Signal { watch, readable: true, watched: false }
    }

    pub(super) fn begin(&mut self, fd: Option<BorrowedFd<'_>>, kernel: &mut dyn Engine) -> io::Result<()> {
        if let Some(fd) = fd {
            kernel.watch(fd, self.watch)?;
            self.watched = true;
        }
        Ok(())
    }

    /// Has the next packet end the kernel engine's sleep.
    pub(super) fn watch(&mut self, fd: Option<BorrowedFd<'_>>, kernel: &mut dyn Engine) {
        if let Some(fd) = fd.filter(|_| !self.readable && !self.watched) {
            self.watched = kernel.watch_again(fd, self.watch).is_ok();
        }
    }

    pub(super) fn note_raised(&mut self, view: &mut View<'_>) {
        if view.take_raised(self.watch) {
            self.readable = true;
            self.watched = false;
        }
    }

    /// Whether the kernel engine would not wait for this descriptor.
    pub(super) fn is_missing(&self, fd: Option<BorrowedFd<'_>>) -> bool {
        !self.watched && fd.is_some()
    }
}
