//! monoio on io_uring: one runtime per CPU, each with its own SO_REUSEPORT listening socket, one
//! task per connection with a buffer of its own.
//!
//! Deferred task work is asked for, as a monoio server on a recent kernel would; monoio's own
//! default is a ring without flags.

use std::convert::Infallible;
use std::io;

use ::monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use ::monoio::net::{TcpListener, TcpStream};
use ::monoio::{IoUringDriver, RuntimeBuilder};

use super::{Worker, task};
use crate::Reason;

pub(super) fn run(worker: &Worker) -> Result<Infallible, Reason> {
    let mut ring = io_uring_06::IoUring::builder();
    ring.setup_single_issuer().setup_defer_taskrun().setup_cqsize(ENTRIES * 4);
    let mut runtime =
        RuntimeBuilder::<IoUringDriver>::new().with_entries(ENTRIES).uring_builder(ring).build()?;
    let listener = worker.listener.try_clone()?;
    listener.set_nonblocking(false)?; // the ring itself waits
    let response = worker.response();
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        worker.ready();
        loop {
            let (stream, _) = listener.accept().await?;
            ::monoio::spawn(task::answer(stream, response));
        }
    })
}

impl task::Stream for TcpStream {
    async fn read(&mut self, buffer: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
        AsyncReadRent::read(self, buffer).await
    }

    async fn write_all(&mut self, response: &'static [u8]) -> io::Result<()> {
        AsyncWriteRentExt::write_all(self, response).await.0.map(drop)
    }
}

/// Entries of the submission queue.
const ENTRIES: u32 = 1024;
