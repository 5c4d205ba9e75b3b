//! tokio and monoio: one runtime per CPU, each with its own SO_REUSEPORT listening socket, one task
//! per connection with a buffer of its own for the connection's life, and a whole write for each request.

use std::convert::Infallible;
use std::io;

use ::monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use ::monoio::{IoUringDriver, RuntimeBuilder};
use ::tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Arrived, Worker};
use crate::Reason;

/// tokio as its documentation advises for servers without shared state: `current_thread` runtimes.
pub(super) fn tokio(worker: &Worker) -> Result<Infallible, Reason> {
    let runtime = ::tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = ::tokio::net::TcpListener::from_std(worker.listener.try_clone()?)?;
        let response = worker.response();
        worker.ready();
        loop {
            let (stream, _) = listener.accept().await?;
            ::tokio::spawn(answer(stream, response));
        }
    })
}

/// monoio on io_uring. Deferred task work is asked for, as a monoio server on a recent kernel would;
/// monoio's own default is a ring without flags.
pub(super) fn monoio(worker: &Worker) -> Result<Infallible, Reason> {
    let mut ring = io_uring_06::IoUring::builder();
    ring.setup_single_issuer().setup_defer_taskrun().setup_cqsize(ENTRIES * 4);
    let mut runtime =
        RuntimeBuilder::<IoUringDriver>::new().with_entries(ENTRIES).uring_builder(ring).build()?;
    let listener = worker.listener.try_clone()?;
    listener.set_nonblocking(false)?; // the ring itself waits
    let response = worker.response();
    runtime.block_on(async {
        let listener = ::monoio::net::TcpListener::from_std(listener)?;
        worker.ready();
        loop {
            let (stream, _) = listener.accept().await?;
            ::monoio::spawn(answer(stream, response));
        }
    })
}

/// A connection of a runtime. What completes takes the buffer and gives it back; what is ready
/// borrows it meanwhile.
trait Stream {
    /// Reads into the buffer, which is empty and has room, what has come; 0 at the end of file.
    async fn read(&mut self, buffer: Vec<u8>) -> (io::Result<usize>, Vec<u8>);
    /// Writes all of the response.
    async fn write_all(&mut self, response: &'static [u8]) -> io::Result<()>;
}

impl Stream for ::tokio::net::TcpStream {
    async fn read(&mut self, mut buffer: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
        (self.read_buf(&mut buffer).await, buffer)
    }

    async fn write_all(&mut self, response: &'static [u8]) -> io::Result<()> {
        AsyncWriteExt::write_all(self, response).await
    }
}

impl Stream for ::monoio::net::TcpStream {
    async fn read(&mut self, buffer: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
        AsyncReadRent::read(self, buffer).await
    }

    async fn write_all(&mut self, response: &'static [u8]) -> io::Result<()> {
        AsyncWriteRentExt::write_all(self, response).await.0.map(drop)
    }
}

/// Answers until the connection ends or fails.
async fn answer(mut stream: impl Stream, response: &'static [u8]) {
    let mut buffer = Vec::with_capacity(response.len().max(4096));
    let mut arrived = Arrived::default();
    loop {
        buffer.clear();
        let (read, returned) = stream.read(buffer).await;
        buffer = returned;
        let Ok(count @ 1..) = read else { return };
        for _ in 0..arrived.whole_messages(count, response.len()) {
            if stream.write_all(response).await.is_err() {
                return;
            }
        }
    }
}

/// Entries of monoio's submission queue.
const ENTRIES: u32 = 1024;
