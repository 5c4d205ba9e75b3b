//! A descriptor that any thread makes readable and one thread watches.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd (eventfd(2)) whose owner sees without a system call whether it was rung.
///
/// Each ring is counted before it makes the descriptor readable. The owner of a readable one therefore
/// always sees a ring to heed, wherever the threads that ring are interrupted: it does not go round in
/// sleeps that end at once.
pub(crate) struct Doorbell {
    fd: OwnedFd,
    /// Rings that have begun.
    begun: AtomicU64,
    /// Rings that were read from `fd`; only the owner writes it.
    heeded: AtomicU64,
}

impl Doorbell {
    /// A ring, step by step.
    const RING: [fn(&Doorbell); 2] = [Doorbell::announce, Doorbell::sound];

    pub(crate) fn new() -> io::Result<Doorbell> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Doorbell { fd, begun: AtomicU64::new(0), heeded: AtomicU64::new(0) })
    }

    pub(crate) fn ring(&self) {
        Doorbell::RING.iter().for_each(|step| step(self));
    }

    fn announce(&self) {
        self.begun.fetch_add(1, Ordering::Release);
    }

    fn sound(&self) {
        // It fails on a full counter alone, which is readable.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Whether a ring has begun that the owner has not heeded.
    pub(crate) fn is_rung(&self) -> bool {
        self.begun.load(Ordering::Acquire) != self.heeded.load(Ordering::Relaxed)
    }

    /// Silences it. Returns whether it had sounded: the owner then takes what was announced.
    pub(crate) fn heed(&self) -> bool {
        let mut count = [0; 8];
        if !self.is_rung() || rustix::io::read(&self.fd, &mut count).is_err() {
            return false;
        }
        self.heeded.fetch_add(u64::from_ne_bytes(count), Ordering::Relaxed);
        true
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(bell: &Doorbell) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&now)).expect("poll") == 1
    }

    /// Two threads that ring and the owner, a step at a time in each order there is.
    #[test]
    fn a_readable_doorbell_can_be_silenced_at_any_moment() {
        const STEPS: usize = 7;
        for order in 0..3u32.pow(STEPS as u32) {
            let bell = Doorbell::new().expect("an eventfd");
            let mut ringers = [Doorbell::RING.iter(), Doorbell::RING.iter()];
            for step in 0..STEPS {
                match order as usize / 3usize.pow(step as u32) % 3 {
                    2 => drop(bell.heed()),
                    ringer => {
                        ringers[ringer].next().into_iter().for_each(|step| step(&bell));
                    }
                }
                assert!(bell.is_rung() || !is_readable(&bell), "step {step} of order {order}");
            }
            ringers.into_iter().flatten().for_each(|step| step(&bell));
            bell.heed();
            assert!(!bell.is_rung() && !is_readable(&bell), "order {order}");
        }
    }
}
