//! What both ends do in these tests: each sends a stream, and checks the other's byte by byte.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

use packet::Random;

/// Longest silence of the other end.
const PATIENCE: Duration = Duration::from_secs(60);
const PIECE: usize = 64 << 10;

/// How much goes each way.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) from_linux: u64,
    pub(crate) to_linux: u64,
    /// Bytes of a write: what is not a multiple of a segment leaves odd ends.
    pub(crate) write: usize,
}

impl Load {
    pub(crate) const fn both_ways(bytes: u64) -> Load {
        Load { from_linux: bytes, to_linux: bytes, write: PIECE }
    }
}

/// A stream of bytes, each of which depends on where it belongs.
#[derive(Clone, Copy)]
pub(crate) struct Stream {
    name: u64,
    len: u64,
    done: u64,
}

impl Stream {
    pub(crate) fn from_linux(load: Load) -> Stream {
        Stream { name: 1, len: load.from_linux, done: 0 }
    }

    pub(crate) fn to_linux(load: Load) -> Stream {
        Stream { name: 2, len: load.to_linux, done: 0 }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done == self.len
    }

    /// The next bytes, as many as there are of a write.
    pub(crate) fn next<'a>(&self, buffer: &'a mut [u8], write: usize) -> &'a [u8] {
        let len = (self.len - self.done).min(write.min(buffer.len()) as u64) as usize;
        self.fill(&mut buffer[..len]);
        &buffer[..len]
    }

    /// So many of them were sent.
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.done += bytes as u64;
    }

    /// These have arrived.
    pub(crate) fn arrived(&mut self, bytes: &[u8], expected: &mut [u8]) {
        let expected = &mut expected[..bytes.len()];
        self.fill(expected);
        if bytes != expected {
            let wrong = bytes.iter().zip(expected.iter()).position(|(left, right)| left != right);
            panic!("byte {} of stream {} is wrong", self.done + wrong.unwrap_or(0) as u64, self.name);
        }
        self.done += bytes.len() as u64;
        assert!(self.done <= self.len, "{} bytes of {} in stream {}", self.done, self.len, self.name);
    }

    fn fill(&self, mut out: &mut [u8]) {
        let mut at = self.done;
        while !out.is_empty() {
            let word = Random::new((self.name << 60) | (at / 8)).next_u64().to_le_bytes();
            let from = (at % 8) as usize;
            let len = out.len().min(8 - from);
            let (now, later) = out.split_at_mut(len);
            now.copy_from_slice(&word[from..from + len]);
            out = later;
            at += len as u64;
        }
    }
}

/// The end of Linux, both directions at the same time.
pub(crate) fn over(mut socket: TcpStream, load: Load) {
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    let mut writer = socket.try_clone().expect("a copy");
    let writing = thread::spawn(move || {
        let (mut stream, mut buffer) = (Stream::from_linux(load), vec![0; PIECE]);
        while !stream.is_done() {
            let bytes = stream.next(&mut buffer, load.write);
            writer.write_all(bytes).expect("Linux writes");
            let len = bytes.len();
            stream.sent(len);
        }
        writer.shutdown(Shutdown::Write).expect("Linux ends its stream");
    });
    let (mut buffer, mut expected) = (vec![0; PIECE], vec![0; PIECE]);
    let mut stream = Stream::to_linux(load);
    loop {
        match socket.read(&mut buffer).expect("Linux reads") {
            0 => break,
            len => stream.arrived(&buffer[..len], &mut expected),
        }
    }
    assert!(stream.is_done(), "the stream to Linux ends after {} of {} bytes", stream.done, stream.len);
    writing.join().expect("the writer");
}
