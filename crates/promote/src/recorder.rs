//! How processes under `megapipe run --stats` share their counters with the recorder, the
//! process that prints each one's summary when it ends, however it ends.
//!
//! A process connects, sends one packet and closes: it keeps no descriptor open. The
//! recorder gets its pid from the kernel. Its counters are in a memory file that only
//! these two have.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use sys::packet;

use crate::wire::{NAME_BYTES, Name};

const SECRET: usize = 16;
const ID: usize = 8;
/// Bytes of a packet: the secret, and the process's name.
const PACKET: usize = SECRET + NAME_BYTES;
/// Processes that may connect before the recorder accepts one.
const BACKLOG: i32 = 4096;
/// How long a process that ends waits for its summary to be printed.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// A recorder's address, and a secret with which processes prove their origin: the value
/// of MEGAPIPE_STATS. Every user sees the names of abstract sockets, but not the
/// environment of other users' processes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Address {
    id: [u8; ID],
    secret: [u8; SECRET],
}

impl Address {
    /// A new address, of random bytes.
    pub fn random(bytes: [u8; ID + SECRET]) -> Address {
        let mut address = Address { id: [0; ID], secret: [0; SECRET] };
        let (id, secret) = bytes.split_at(ID);
        address.id.copy_from_slice(id);
        address.secret.copy_from_slice(secret);
        address
    }

    /// Parses the text that `Display` writes.
    pub fn parse(text: &str) -> Option<Address> {
        let digits = text.strip_prefix('@')?.as_bytes();
        let mut bytes = [0; ID + SECRET];
        if digits.len() != 2 * bytes.len() {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |digit: u8| char::from(digit).to_digit(16);
            *byte = u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok()?;
        }
        Some(Address::random(bytes))
    }

    fn socket(&self) -> [u8; 15 + ID] {
        let mut name = *b"megapipe-stats-\0\0\0\0\0\0\0\0";
        name[15..].copy_from_slice(&self.id);
        name
    }

    /// Listens there.
    ///
    /// # Errors
    ///
    /// bind(2) and listen(2).
    pub fn listen(&self) -> io::Result<OwnedFd> {
        packet::listen_abstract(&self.socket(), BACKLOG)
    }

    /// This process begins: its counters are in `memory` from here on.
    ///
    /// # Errors
    ///
    /// The recorder cannot be reached.
    pub fn begin(&self, name: Name, memory: BorrowedFd<'_>) -> io::Result<()> {
        self.send(name, &[memory]).map(drop)
    }

    /// This process ends: returns when its summary is printed, or after a second.
    ///
    /// # Errors
    ///
    /// As for [`Address::begin`].
    pub fn end(&self) -> io::Result<()> {
        let socket = self.send(Name::new(""), &[])?;
        let until = Instant::now() + END_TIMEOUT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match rustix::event::poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&left)) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn send(&self, name: Name, descriptors: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
        let mut bytes = [0; PACKET];
        bytes[..SECRET].copy_from_slice(&self.secret);
        bytes[SECRET..].copy_from_slice(name.as_bytes());
        let socket = packet::connect_abstract(&self.socket())?;
        packet::send(socket.as_fd(), &bytes, descriptors)?;
        Ok(socket)
    }

    /// Receives the packet of a connected process. `None`: it is invalid.
    ///
    /// # Errors
    ///
    /// EAGAIN if it has sent nothing yet.
    pub fn hear(&self, socket: BorrowedFd<'_>) -> io::Result<Option<Said>> {
        // One byte more than is valid.
        let mut bytes = [0; PACKET + 1];
        let received = packet::receive(socket, &mut bytes)?;
        let name = bytes[SECRET..PACKET].first_chunk().map(|name| Name::from_bytes(*name));
        let is_known = received.len == PACKET && bytes[..SECRET] == self.secret;
        let [memory, ..] = received.descriptors;
        Ok(name.filter(|_| is_known).map(|name| match memory {
            Some(memory) => Said::Begins { name, memory },
            None => Said::Ends,
        }))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("@")?;
        self.id.iter().chain(&self.secret).try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for Address {
    /// Without the secret.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:02x?}", self.id)
    }
}

/// A message of a process to the recorder.
#[derive(Debug)]
pub enum Said {
    /// The process begins, or has executed another program.
    Begins {
        /// Its name.
        name: Name,
        /// Its counters.
        memory: OwnedFd,
    },
    /// The process is about to end.
    Ends,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processes_with_the_address_are_accepted() {
        let address = Address::random(std::array::from_fn(|place| {
            (place as u8).wrapping_add(std::process::id() as u8)
        }));
        assert_eq!(Address::parse(&address.to_string()), Some(address));
        for wrong in ["", "1", "@", "@12", &address.to_string()[1..], &format!("{address}0")] {
            assert_eq!(Address::parse(wrong), None, "{wrong}");
        }
        let listener = address.listen().unwrap();
        let receive = || {
            let socket = packet::accept(listener.as_fd()).unwrap();
            address.hear(socket.as_fd()).unwrap()
        };
        let memory = std::fs::File::open("/dev/null").unwrap();
        address.begin(Name::new("redis"), memory.as_fd()).unwrap();
        assert!(matches!(receive(), Some(Said::Begins { name, .. }) if name.to_string() == "redis"));
        let stranger = Address { secret: [0; SECRET], ..address };
        stranger.begin(Name::new("redis"), memory.as_fd()).unwrap();
        assert!(receive().is_none());
        let ending = std::thread::spawn(move || address.end());
        let socket = loop {
            if let Ok(socket) = packet::accept(listener.as_fd()) {
                break socket;
            }
            std::thread::yield_now();
        };
        while address.hear(socket.as_fd()).is_err() {
            std::thread::yield_now();
        }
        drop(socket);
        ending.join().unwrap().unwrap();
    }
}
