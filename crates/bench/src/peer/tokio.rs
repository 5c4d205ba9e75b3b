//! tokio as its documentation advises for servers without shared state: one `current_thread`
//! runtime per CPU, each with its own SO_REUSEPORT listening socket, one task per connection.

use std::convert::Infallible;
use std::io;

use ::tokio::io::{AsyncReadExt, AsyncWriteExt};
use ::tokio::net::{TcpListener, TcpStream};
use ::tokio::runtime;

use super::{Worker, task};
use crate::Reason;

pub(super) fn run(worker: &Worker) -> Result<Infallible, Reason> {
    let runtime = runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = TcpListener::from_std(worker.listener.try_clone()?)?;
        let response = worker.response();
        worker.ready();
        loop {
            let (stream, _) = listener.accept().await?;
            ::tokio::spawn(task::answer(stream, response));
        }
    })
}

impl task::Stream for TcpStream {
    async fn read(&mut self, mut buffer: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
        (self.read_buf(&mut buffer).await, buffer)
    }

    async fn write_all(&mut self, response: &'static [u8]) -> io::Result<()> {
        AsyncWriteExt::write_all(self, response).await
    }
}
