//! The unread bytes of both paths, without consuming them.

use super::Receiver;
use crate::Corrupt;
use crate::runs::{self, Path};

/// Contiguous stream bytes of one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// The path ([`Receiver::copy_ahead`] copies those of the ring).
    pub path: Path,
    /// Unread bytes of that path before them, wake-up bytes included.
    pub skip: u64,
    /// Their number.
    pub count: u64,
}

/// The result of [`Receiver::here`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Here {
    /// Stream bytes in the kernel, of any run, without wake-up bytes.
    pub in_kernel: u64,
    /// Bytes that can be read now, of both paths. Ring bytes cannot while bytes that were
    /// sent through the kernel before them are still on their way.
    pub readable: u64,
}

impl Here {
    fn add(&mut self, in_kernel: u64, here: u64, follows: bool) {
        self.in_kernel = self.in_kernel.saturating_add(in_kernel);
        self.readable = self.readable.saturating_add(if follows { here } else { 0 });
    }
}

impl Receiver {
    /// The unread stream bytes, given `kernel` unread bytes of the TCP path. To be called
    /// after that number was read from the kernel.
    ///
    /// # Errors
    /// The peer violated the protocol.
    pub fn here(&mut self, kernel: u64) -> Result<Here, Corrupt> {
        let mut sum = Here::default();
        self.walk(kernel, |Ahead { path, count, .. }, follows| {
            sum.add(if path == Path::Tcp { count } else { 0 }, count, follows);
        })?;
        Ok(sum)
    }

    /// The bytes that can be read now, by position, in stream order.
    ///
    /// # Errors
    /// The peer violated the protocol.
    pub fn ahead(&mut self, kernel: u64) -> Result<Vec<Ahead>, Corrupt> {
        let mut all = Vec::new();
        self.walk(kernel, |ahead, follows| {
            if follows {
                all.push(ahead);
            }
        })?;
        Ok(all)
    }

    /// Copies bytes behind `skip` unread ones of the ring, regardless of bytes of the
    /// other path between them in the stream; returns how many there are.
    pub fn copy_ahead(&self, skip: u64, buffer: &mut [u8]) -> usize {
        let unread = self.tail.wrapping_sub(self.head);
        let count = unread.saturating_sub(skip).min(buffer.len() as u64) as usize;
        if count > 0 {
            // At most a ring's length is unread.
            let index = (self.index + skip as usize) % self.peer.ring_length();
            self.peer.copy_out(index, &mut buffer[..count]);
        }
        count
    }

    /// Calls `each` with the bytes of each run; false: bytes before them are missing.
    fn walk(&mut self, kernel: u64, mut each: impl FnMut(Ahead, bool)) -> Result<(), Corrupt> {
        self.refresh()?;
        let peer = self.peer.header();
        let end = self.tcp.saturating_add(kernel);
        let in_ring = self.tail.wrapping_sub(self.head);
        let mut passed = 0;
        let (mut path, mut stream) = (self.path(), self.stream());
        let mut tcp = if path == Path::Tcp { self.tcp.max(self.tcp_start) } else { self.tcp };
        let mut follows = true;
        let mut part_is = |path, tcp: u64, run: u64, follows: &mut bool| match path {
            Path::Ring => {
                let count = run.min(in_ring - passed);
                each(Ahead { path, skip: passed, count }, *follows);
                passed += count;
            }
            Path::Tcp => {
                let count = run.min(end.saturating_sub(tcp));
                each(Ahead { path, skip: tcp - self.tcp, count }, *follows);
                *follows &= count == run;
            }
        };
        for record in 0..runs::unread(peer, self.runs)? {
            let next = runs::read(peer, self.runs.wrapping_add(record), stream, tcp)?;
            let run = next.start - stream;
            part_is(path, tcp, run, &mut follows);
            (path, tcp) = match next.tcp_start {
                // The ring run ends, and with it the wake-up bytes.
                Some(start) => (Path::Tcp, start),
                None => (Path::Ring, tcp.saturating_add(run)),
            };
            stream = next.start;
        }
        part_is(path, tcp, u64::MAX, &mut follows);
        Ok(())
    }
}
