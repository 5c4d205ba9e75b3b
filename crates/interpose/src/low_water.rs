//! A sleep until so many bytes are here, wherever they lie. While too few are, the kernel's low-water mark is one more
//! than it holds: any byte, of data or of a doorbell, wakes the waiter, which counts again.

use std::ffi::c_int;

use ring::Front;

use crate::kernel::{self, Found};
use crate::sockets::Promoted;

impl Promoted {
    /// Whether so many bytes are here, of the ring and of the kernel, or there will be no more.
    fn has(&mut self, fd: c_int, wanted: usize) -> bool {
        // Nonsense of the other end's is met by whoever reads.
        if self.connection.look_again().is_err() {
            return true;
        }
        let in_ring = self.connection.untaken_here();
        if in_ring >= wanted || self.connection.kernel_has_ended() || kernel::has_ended(fd) {
            return true;
        }
        in_ring + self.in_kernel(fd) >= wanted
    }

    /// Bytes of the stream that the kernel holds; bells before them are taken out.
    fn in_kernel(&mut self, fd: c_int) -> usize {
        for _ in 0..2 {
            let Found::Bytes(unread) = self.look(fd) else { return 0 };
            match self.connection.front(unread) {
                Ok(Front::Bells(bells)) => drop(self.drop_bells_of(fd, bells)),
                Ok(Front::Data(bytes)) => return bytes as usize,
                // Copies may lie before them.
                Ok(Front::Later) => {
                    return self.connection.here(unread).map_or(0, |here| here.in_kernel as usize);
                }
                Err(_) => return 0,
            }
        }
        0
    }

    /// Before a thread sleeps in the kernel: asks for a bell. True: there is something to read.
    pub(crate) fn arm_to_sleep(&mut self) -> bool {
        self.is_used();
        self.connection.rings_each(false);
        self.arm().unwrap_or(true)
    }

    /// The same for a waiter that needs `wanted` bytes, until [`Self::unmark`].
    #[cold]
    pub(crate) fn arm_for(&mut self, fd: c_int, wanted: usize) -> bool {
        self.is_used();
        self.connection.rings_each(false);
        // More may come while it is counted.
        loop {
            if self.has(fd, wanted) {
                return true;
            }
            self.stale = false;
            let Ok(more) = self.connection.arm_for_more() else { return true };
            (self.armed, self.hot) = (!more, false);
            if !more {
                break;
            }
        }
        let held = match self.look(fd) {
            Found::Bytes(unread) => unread,
            Found::Nothing | Found::End | Found::Failed(_) => 0,
        };
        self.mark_kernel(fd, c_int::try_from(held + 1).unwrap_or(c_int::MAX));
        false
    }

    /// The kernel calls the socket readable with the first byte again.
    #[inline]
    pub(crate) fn unmark(&mut self, fd: c_int) {
        if self.kernel_mark > 1 {
            self.mark_kernel(fd, 1);
        }
    }

    fn mark_kernel(&mut self, fd: c_int, mark: c_int) {
        if self.kernel_mark.max(1) != mark {
            self.kernel_mark = mark;
            kernel::set(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &mark);
        }
    }
}
