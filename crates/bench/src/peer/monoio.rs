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

use super::{Arrived, Worker};

pub(super) fn run(worker: &Worker) -> io::Result<Infallible> {
    let mut ring = io_uring_06::IoUring::builder();
    ring.setup_single_issuer().setup_defer_taskrun().setup_cqsize(ENTRIES * 4);
    let mut runtime =
        RuntimeBuilder::<IoUringDriver>::new().with_entries(ENTRIES).uring_builder(ring).build()?;
    let listener = worker.listener.try_clone()?;
    listener.set_nonblocking(false)?; // the ring itself waits
    let response: &'static [u8] = vec![0; worker.size].leak();
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        worker.ready();
        loop {
            let (stream, _) = listener.accept().await?;
            ::monoio::spawn(answer(stream, response));
        }
    })
}

async fn answer(mut stream: TcpStream, response: &'static [u8]) {
    let mut buffer = vec![0; response.len().max(4096)];
    let mut arrived = Arrived::default();
    loop {
        let (read, returned) = stream.read(buffer).await;
        buffer = returned;
        let Ok(count @ 1..) = read else { return };
        for _ in 0..arrived.whole_messages(count, response.len()) {
            if stream.write_all(response).await.0.is_err() {
                return;
            }
        }
    }
}

/// Entries of the submission queue.
const ENTRIES: u32 = 1024;
