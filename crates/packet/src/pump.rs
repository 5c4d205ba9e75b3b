//! Moves packets between a device and a TCP. A program with a loop of its own calls [`turn`] whenever the
//! device is readable, at [`Endpoint::deadline`], and after calls on the TCP. [`Pump`] is that loop.

use std::io;
#[cfg(feature = "tun")]
use std::os::fd::{AsFd, BorrowedFd};
#[cfg(feature = "tun")]
use std::time::{Duration, Instant};

#[cfg(feature = "tun")]
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{Batch, Device, Frame};

/// What packets of a device are for: a host of crate `tcp`, or another stack.
pub trait Endpoint {
    /// A moment of the caller's clock.
    type Time: Copy + Ord;

    /// Takes received packets.
    fn input<'a>(&mut self, now: Self::Time, frames: impl Iterator<Item = Frame<'a>>);

    /// Does what is due at this time.
    fn advance(&mut self, now: Self::Time);

    /// When that has something to do next; possibly a little early.
    fn deadline(&self) -> Option<Self::Time>;

    /// Puts packets into the batch until it is full or there are no more. Returns whether there are
    /// more.
    fn output(&mut self, now: Self::Time, batch: &mut Batch) -> bool;
}

/// Packets that one turn has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// From the device.
    pub received: usize,
    /// To the device.
    pub sent: usize,
}

/// A batch of what has arrived, what is due, and then all there is to send. Both batches are the caller's,
/// so that it can have one for several devices; `to_send` keeps what the device did not take, which goes
/// first in the next turn.
///
/// # Errors
///
/// The device's. Packets that it failed to send are lost, as on a wire that was cut.
pub fn turn<E: Endpoint>(
    now: E::Time,
    endpoint: &mut E,
    device: &mut (impl Device + ?Sized),
    received: &mut Batch,
    to_send: &mut Batch,
) -> io::Result<Moved> {
    received.clear();
    let count = device.receive(received)?;
    endpoint.input(now, received.frames());
    endpoint.advance(now);
    let sent = send(now, endpoint, device, to_send)?;
    Ok(Moved { received: count, sent })
}

/// Sends what there is to send, up to 64 batches of it. Returns how many packets went out; what the device did
/// not take stays in the batch.
///
/// # Errors
///
/// As of [`turn`].
pub fn send<E: Endpoint>(
    now: E::Time,
    endpoint: &mut E,
    device: &mut (impl Device + ?Sized),
    batch: &mut Batch,
) -> io::Result<usize> {
    let mut count = 0;
    for _ in 0..BATCHES_MAX {
        let more = endpoint.output(now, batch);
        match device.send(batch) {
            Ok(sent) => count += sent,
            Err(error) => {
                batch.clear();
                return Err(error);
            }
        }
        if !more || !batch.is_empty() {
            break;
        }
    }
    Ok(count)
}

/// A device with what a loop over it needs: batches, a clock that begins when this is made, and a sleep.
#[cfg(feature = "tun")]
pub struct Pump<D> {
    device: D,
    received: Batch,
    to_send: Batch,
    origin: Instant,
}

#[cfg(feature = "tun")]
impl<D: Device + AsFd> Pump<D> {
    /// For a device that does not block. Takes 2 MB of memory.
    pub fn new(device: D) -> Pump<D> {
        Pump {
            device,
            received: Batch::new(BATCH_BYTES),
            to_send: Batch::new(BATCH_BYTES),
            origin: Instant::now(),
        }
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The time since this was made, for calls on the endpoint.
    pub fn now<T: From<Duration>>(&self) -> T {
        self.origin.elapsed().into()
    }

    /// A [`turn`] at this time.
    ///
    /// # Errors
    ///
    /// The device's.
    pub fn turn<E: Endpoint<Time: From<Duration>>>(&mut self, endpoint: &mut E) -> io::Result<Moved> {
        let now = self.now();
        turn(now, endpoint, &mut self.device, &mut self.received, &mut self.to_send)
    }

    /// A turn, and if it has moved nothing, a sleep and another one. The sleep ends when the device has
    /// packets, when the endpoint has something to do, or when a descriptor of the program can be read or
    /// written. Returns the time.
    ///
    /// # Errors
    ///
    /// The device's, and those of poll(2) except EINTR, which ends the sleep.
    pub fn wait<E>(
        &mut self,
        endpoint: &mut E,
        readable: &[BorrowedFd<'_>],
        writable: &[BorrowedFd<'_>],
    ) -> io::Result<E::Time>
    where
        E: Endpoint<Time: From<Duration> + Into<Duration>>,
    {
        if self.turn(endpoint)? == Moved::default() {
            self.sleep(endpoint.deadline().map(Into::into), readable, writable)?;
            self.turn(endpoint)?;
        }
        Ok(self.now())
    }

    /// Sleeps until this time at most.
    fn sleep(
        &self,
        until: Option<Duration>,
        readable: &[BorrowedFd<'_>],
        writable: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let busy = if self.to_send.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        let mut fds = vec![PollFd::new(&self.device, PollFlags::IN | busy)];
        fds.extend(readable.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        fds.extend(writable.iter().map(|fd| PollFd::new(fd, PollFlags::OUT)));
        let timeout = until.map(|until| {
            let left = until.saturating_sub(self.origin.elapsed());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Memory of each batch of a [`Pump`]: 16 of the longest packets.
#[cfg(feature = "tun")]
const BATCH_BYTES: usize = 1 << 20;

/// Batches that are sent in a row; windows bound what there is.
const BATCHES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link;
    use crate::{Capabilities, Offload};

    /// Sends a number of packets, and counts what arrives.
    struct Source {
        left: usize,
        arrived: usize,
    }

    impl Endpoint for Source {
        type Time = u64;

        fn input<'a>(&mut self, _: u64, frames: impl Iterator<Item = Frame<'a>>) {
            self.arrived += frames.count();
        }

        fn advance(&mut self, _: u64) {}

        fn deadline(&self) -> Option<u64> {
            None
        }

        fn output(&mut self, _: u64, batch: &mut Batch) -> bool {
            while self.left > 0 && batch.push(Frame { bytes: &[0; 40], offload: Offload::default() }).is_ok()
            {
                self.left -= 1;
            }
            self.left > 0
        }
    }

    /// A device that takes some packets, and then none.
    struct Slow(usize);

    impl Device for Slow {
        fn capabilities(&self) -> Capabilities {
            Capabilities { mtu: 1500, checksum: false, segment: 0 }
        }

        fn receive(&mut self, _: &mut Batch) -> io::Result<usize> {
            Ok(0)
        }

        fn send(&mut self, batch: &mut Batch) -> io::Result<usize> {
            let count = batch.len().min(self.0);
            (0..count).for_each(|_| batch.remove_first());
            self.0 -= count;
            Ok(count)
        }
    }

    #[test]
    fn all_is_moved_and_what_a_device_does_not_take_stays() {
        let (mut left, mut right) = link::pair(Slow(0).capabilities(), 1000);
        let (mut received, mut to_send) = (Batch::new(1 << 16), Batch::new(1 << 16));
        let (mut source, mut sink) = (Source { left: 300, arrived: 0 }, Source { left: 0, arrived: 0 });
        let moved = turn(0, &mut source, &mut left, &mut received, &mut to_send).expect("a link");
        assert_eq!(moved, Moved { received: 0, sent: 300 });
        while turn(0, &mut sink, &mut right, &mut received, &mut to_send).expect("a link").received > 0 {}
        assert_eq!(sink.arrived, 300);

        let mut slow = Slow(100);
        source.left = 200;
        assert_eq!(send(0, &mut source, &mut slow, &mut to_send).expect("it takes some"), 100);
        assert_eq!(source.left + to_send.len(), 100);
        assert_eq!(send(0, &mut source, &mut slow, &mut to_send).expect("it takes none"), 0);
        slow.0 = 1000;
        assert_eq!(send(0, &mut source, &mut slow, &mut to_send).expect("it takes all"), 100);
        assert!(to_send.is_empty() && source.left == 0);
    }
}
