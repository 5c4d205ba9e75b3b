//! compio on io_uring: one runtime per CPU, each with its own SO_REUSEPORT listening socket and
//! multishot accept, one task per connection with a buffer of its own.

use std::convert::Infallible;
use std::io;

use ::compio::BufResult;
use ::compio::driver::ProactorBuilder;
use ::compio::io::{AsyncRead, AsyncWriteExt};
use ::compio::net::{TcpListener, TcpStream};
use ::compio::runtime::{self, RuntimeBuilder};
use futures_util::StreamExt;

use super::{Arrived, Worker};

pub(super) fn run(worker: &Worker) -> io::Result<Infallible> {
    let mut ring = ProactorBuilder::new();
    ring.capacity(ENTRIES).cqsize(ENTRIES * 4).single_issuer(true).defer_taskrun(true);
    let runtime = RuntimeBuilder::new().with_proactor(ring).build()?;
    let listener = worker.listener.try_clone()?;
    let response: &'static [u8] = vec![0; worker.size].leak();
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        worker.ready();
        let mut incoming = listener.incoming();
        loop {
            let Some(stream) = incoming.next().await else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            runtime::spawn(answer(stream?, response)).detach();
        }
    })
}

async fn answer(mut stream: TcpStream, response: &'static [u8]) {
    let mut buffer = Vec::with_capacity(response.len().max(4096));
    let mut arrived = Arrived::default();
    loop {
        buffer.clear();
        let BufResult(read, returned) = stream.read(buffer).await;
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
