//! What carries bytes between the two processes.
//!
//! A transport is a type with [`End`]: the controller makes the descriptors of both ends, each
//! process takes its own over, and from then on sends and receives whole messages. A new one is a
//! file below this module, a variant of [`Transport`] and a line in each `match` of this file that names all.

use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::names::names;
use crate::region;

use super::side::{self, Exchange, Figures};
use super::{Placement, Scenario};

mod cacheline;
mod copies;
mod promoted;
mod socket;

pub use cacheline::PAYLOAD as CACHELINE_PAYLOAD;

use cacheline::Cacheline;
use copies::Copies;
use promoted::Promoted;

type Awake = Promoted<true>;
type Asleep = Promoted<false>;

type Tcp = socket::Calls<TcpStream>;
type TcpSpin = socket::Calls<socket::Spinning>;
type Unix = socket::Calls<UnixStream>;

names! {
    /// A way for bytes between two processes of one host.
    Transport {
        /// A TCP connection between two channels that has moved to shared memory.
        Promoted = "promoted",
        /// The same, between two that sleep at once when nothing is there.
        Asleep = "promoted-asleep",
        /// TCP over loopback, blocking calls, TCP_NODELAY.
        Tcp = "tcp",
        /// The same with calls that do not block, repeated until they succeed.
        TcpSpin = "tcp-spin",
        /// A UNIX stream socket, blocking calls.
        Unix = "unix",
        /// Two cache lines of shared memory, one for each direction: the physical limit of a round trip.
        Cacheline = "cacheline",
        /// A copy into shared memory by one core and a copy out of it by another: the physical limit of
        /// a stream.
        Memcpy = "memcpy",
    }
}

/// One end of a connection, in the process that uses it.
pub(super) trait End: Sized {
    /// Makes a connection, in the controller: the descriptors of its two ends.
    fn pair() -> io::Result<[Vec<OwnedFd>; 2]>;

    /// Takes over what [`End::pair`] made for this end, in its process.
    fn attach(side: Side, descriptors: Vec<OwnedFd>) -> io::Result<Self>;

    /// Returns when the message's memory is the caller's again. It is on its way then, or goes
    /// with the next [`End::receive`] or [`End::flush`].
    fn send(&mut self, message: &[u8]) -> io::Result<()>;

    /// What was sent is on its way: for who does not go on to receive.
    #[inline]
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Returns when `message` is full, with what was sent first.
    fn receive(&mut self, message: &mut [u8]) -> io::Result<()>;

    /// As [`End::receive`], for who need not have the bytes in `message`: a transport that
    /// hands out memory of its own with the bytes in it leaves them there.
    #[inline]
    fn take(&mut self, message: &mut [u8]) -> io::Result<()> {
        self.receive(message)
    }
}

/// Which of the two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Side {
    /// The end that is started first and works until it is ended.
    First,
    /// The end that measures.
    Second,
}

impl Transport {
    /// Whether it can be measured in a scenario at all.
    pub fn takes_part_in(self, scenario: Scenario) -> bool {
        match self {
            Transport::Cacheline => scenario == Scenario::Pingpong,
            Transport::Memcpy => scenario == Scenario::Stream,
            _ => true,
        }
    }

    /// Whether it can be measured with the two processes placed so: a limit is one of two free
    /// cores, and who spins does not sleep.
    pub fn can_be_placed(self, placement: Placement) -> bool {
        match self {
            Transport::Cacheline | Transport::Memcpy => placement == Placement::TwoCores,
            Transport::TcpSpin => placement != Placement::Asleep,
            _ => true,
        }
    }

    /// Whether it carries messages of this size.
    pub fn carries(self, bytes: usize) -> bool {
        self != Transport::Cacheline || bytes <= CACHELINE_PAYLOAD
    }

    /// What makes a connection, and what works at an end of one, compiled for this transport alone: no call of either
    /// goes through a table.
    pub(super) fn calls(self) -> (Pair, Work) {
        match self {
            Transport::Promoted => (Awake::pair, side::work::<Awake>),
            Transport::Asleep => (Asleep::pair, side::work::<Asleep>),
            Transport::Tcp => (Tcp::pair, side::work::<Tcp>),
            Transport::TcpSpin => (TcpSpin::pair, side::work::<TcpSpin>),
            Transport::Unix => (Unix::pair, side::work::<Unix>),
            Transport::Cacheline => (Cacheline::pair, side::work::<Cacheline>),
            Transport::Memcpy => (Copies::pair, side::work::<Copies>),
        }
    }
}

pub(super) type Pair = fn() -> io::Result<[Vec<OwnedFd>; 2]>;
pub(super) type Work = fn(&Exchange, Vec<OwnedFd>) -> io::Result<Option<Figures>>;

/// Memory of so many bytes, zeroed; two descriptors of it, one for each end.
fn shared(size: usize) -> io::Result<[Vec<OwnedFd>; 2]> {
    let memory = region::create(size)?;
    Ok([vec![memory.try_clone()?], vec![memory]])
}

/// The descriptors of an end that has so many.
fn exactly<const N: usize>(descriptors: Vec<OwnedFd>) -> io::Result<[OwnedFd; N]> {
    descriptors.try_into().map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Looks without sleeping until there is something, but no longer than [`PATIENCE`].
#[inline]
fn spin_until<T>(mut look: impl FnMut() -> Option<T>) -> io::Result<T> {
    let mut began = None;
    loop {
        for _ in 0..LOOKS_PER_CLOCK {
            if let Some(found) = look() {
                return Ok(found);
            }
        }
        if began.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

const LOOKS_PER_CLOCK: u32 = 1 << 16;

/// The other side may be without a CPU for long, yet not for so long.
const PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use testkit::net::pattern;

    use super::*;

    /// At and about every bound.
    const SIZES: &[usize] = &[1, 8, 56, 4097, 65_536, 1 << 20];

    #[test]
    fn every_transport_carries_every_byte() {
        exchange::<Awake>(SIZES);
        exchange::<Asleep>(SIZES);
        exchange::<Tcp>(SIZES);
        exchange::<TcpSpin>(SIZES);
        exchange::<Unix>(SIZES);
        exchange::<Cacheline>(&SIZES[..3]);
        stream::<Awake>();
        stream::<Asleep>();
        stream::<Tcp>();
        stream::<TcpSpin>();
        stream::<Unix>();
        stream::<Copies>();
    }

    fn exchange<E: End>(sizes: &'static [usize]) {
        let messages = move || sizes.iter().copied().zip(0..);
        between::<E>(
            move |end| {
                for (size, number) in messages() {
                    received(end, size, number);
                    end.send(&pattern(size, !number)).unwrap();
                    end.flush().unwrap();
                }
            },
            move |end| {
                for (size, number) in messages() {
                    end.send(&pattern(size, number)).unwrap();
                    received(end, size, !number);
                }
            },
        );
    }

    fn stream<E: End>() {
        let messages = || SIZES.iter().copied().cycle().zip(0..60);
        between::<E>(
            move |end| {
                for (size, number) in messages() {
                    end.send(&pattern(size, number)).unwrap();
                    end.flush().unwrap();
                }
            },
            move |end| {
                for (size, number) in messages() {
                    match number % 4 {
                        3 => end.take(&mut vec![0; size]).unwrap(),
                        _ => received(end, size, number),
                    }
                }
            },
        );
    }

    fn received<E: End>(end: &mut E, size: usize, number: u64) {
        let mut message = vec![0; size];
        end.receive(&mut message).unwrap();
        assert!(message == pattern(size, number), "{}: {size} bytes", std::any::type_name::<E>());
    }

    /// The first end is there until the second one is done.
    fn between<E: End>(first: impl FnOnce(&mut E) + Send + 'static, second: impl FnOnce(&mut E)) {
        let [firsts, seconds] = E::pair().unwrap();
        let (done, is_done) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            let mut end = E::attach(Side::First, firsts).unwrap();
            first(&mut end);
            let _: Result<_, _> = is_done.recv(); // the end of the channel
        });
        let mut end = E::attach(Side::Second, seconds).unwrap();
        second(&mut end);
        drop(done);
        thread.join().unwrap();
    }
}
