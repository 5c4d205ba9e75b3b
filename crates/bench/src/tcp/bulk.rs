//! The client of bulk transfers: a thread that writes or reads one connection as fast as it goes.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::cpu;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    ToServer,
    FromServer,
}

/// A thread at work, until it is dropped.
pub(super) struct Bulk {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

#[derive(Default)]
struct Shared {
    bytes: AtomicU64,
    stop: AtomicBool,
}

impl Bulk {
    pub(super) fn start(target: SocketAddr, direction: Direction, cpu: usize) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let its = shared.clone();
        let thread = thread::Builder::new().spawn(move || {
            cpu::pin(&[cpu])?;
            transfer(target, direction, &its)
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Bytes so far.
    pub(super) fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// Whether the thread has not ended by itself.
    pub(super) fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// CPU time of the thread.
    pub(super) fn cpu(&self) -> io::Result<Duration> {
        self.thread.as_ref().map_or(Ok(Duration::ZERO), crate::clock::of_thread)
    }

    /// Why the thread has ended by itself, if it has.
    pub(super) fn stop(mut self) -> io::Result<()> {
        self.end()
    }

    fn end(&mut self) -> io::Result<()> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the client panicked")))
    }
}

impl Drop for Bulk {
    fn drop(&mut self) {
        // After an error of the controller, which is reported in place of this one.
        let _ = self.end();
    }
}

fn transfer(target: SocketAddr, direction: Direction, shared: &Shared) -> io::Result<()> {
    let mut stream = TcpStream::connect(target)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut bytes = vec![b'q'; BULK];
    while !shared.stop.load(Ordering::Relaxed) {
        let moved = match direction {
            Direction::ToServer => stream.write(&bytes),
            Direction::FromServer => stream.read(&mut bytes),
        };
        match moved {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {} // nothing moved for a while
            moved => drop(shared.bytes.fetch_add(moved? as u64, Ordering::Relaxed)),
        }
    }
    Ok(())
}

/// Bytes of one call.
pub(super) const BULK: usize = 256 << 10;

/// How long a call waits before the thread checks whether it is to stop.
const PATIENCE: Duration = Duration::from_millis(100);
