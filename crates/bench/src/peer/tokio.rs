//! tokio as its documentation advises for servers without shared state: one `current_thread`
//! runtime per CPU, each with its own SO_REUSEPORT listening socket, one task per connection.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use ::tokio::io::{AsyncReadExt, AsyncWriteExt};
use ::tokio::net::{TcpListener, TcpStream};
use ::tokio::runtime;

use super::{Arrived, Worker};

pub(super) fn run(worker: &Worker) -> io::Result<Infallible> {
    let runtime = runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = TcpListener::from_std(worker.listener.try_clone()?)?;
        let response = Arc::<[u8]>::from(vec![0; worker.size]);
        worker.ready();
        loop {
            let (stream, _) = listener.accept().await?;
            ::tokio::spawn(answer(stream, response.clone()));
        }
    })
}

async fn answer(mut stream: TcpStream, response: Arc<[u8]>) {
    let mut buffer = vec![0; response.len().max(4096)];
    let mut arrived = Arrived::default();
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        for _ in 0..arrived.whole_messages(count, response.len()) {
            if stream.write_all(&response).await.is_err() {
                return;
            }
        }
    }
}
