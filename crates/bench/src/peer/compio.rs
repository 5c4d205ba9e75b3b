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

use super::{Worker, task};

pub(super) fn run(worker: &Worker) -> io::Result<Infallible> {
    let mut ring = ProactorBuilder::new();
    ring.capacity(ENTRIES).cqsize(ENTRIES * 4).single_issuer(true).defer_taskrun(true);
    let runtime = RuntimeBuilder::new().with_proactor(ring).build()?;
    let listener = worker.listener.try_clone()?;
    let response = worker.response();
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        worker.ready();
        let mut incoming = listener.incoming();
        loop {
            let Some(stream) = incoming.next().await else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            runtime::spawn(task::answer(stream?, response)).detach();
        }
    })
}

impl task::Stream for TcpStream {
    async fn read(&mut self, buffer: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
        let BufResult(read, buffer) = AsyncRead::read(self, buffer).await;
        (read, buffer)
    }

    async fn write_all(&mut self, response: &'static [u8]) -> io::Result<()> {
        AsyncWriteExt::write_all(self, response).await.0
    }
}

/// Entries of the submission queue.
const ENTRIES: u32 = 1024;
