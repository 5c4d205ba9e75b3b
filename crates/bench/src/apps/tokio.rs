//! A server and a client of our own on tokio: a task for each connection.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::app::Operation;
use crate::Reason;
use crate::part::Part;

/// A side of such a pair.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Tokio {
    pub(super) operation: Operation,
    pub(super) port: u16,
    /// `None`: the server.
    pub(super) client: Option<Client>,
}

/// What the client does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Client {
    pub(super) connections: u32,
    pub(super) warm_up: Duration,
    pub(super) window: Duration,
}

impl Part for Tokio {
    const NAME: &'static str = "app-tokio";

    #[cfg(feature = "peers")]
    fn run(self) -> Result<(), Reason> {
        runtime::run(&self)
    }

    #[cfg(not(feature = "peers"))]
    fn run(self) -> Result<(), Reason> {
        Err(crate::peer::NO_PEERS.into())
    }
}

#[cfg(feature = "peers")]
mod runtime {
    use std::io;
    use std::net::Ipv4Addr;
    use std::time::Instant;

    use ::tokio::io::{AsyncReadExt, AsyncWriteExt};
    use ::tokio::net::{TcpListener, TcpStream};
    use ::tokio::runtime::{Builder, Runtime};
    use hdrhistogram::Histogram;

    use super::super::app::{Operation, USUAL_SIZE};
    use super::{Client, Tokio};
    use crate::Reason;
    use crate::load::Report;
    use crate::part::print;

    /// Bytes of a message.
    const MESSAGE: usize = USUAL_SIZE as usize;

    pub(super) fn run(task: &Tokio) -> Result<(), Reason> {
        let runtime = of(task.operation)?;
        match &task.client {
            None => Ok(runtime.block_on(serve(task.port))?),
            Some(client) => print(&runtime.block_on(ask(task.port, client))?),
        }
    }

    /// That of `#[tokio::main]`, with a thread for each CPU of the process; or one thread.
    fn of(operation: Operation) -> io::Result<Runtime> {
        let mut builder = match operation {
            Operation::MultiThread => Builder::new_multi_thread(),
            _ => Builder::new_current_thread(),
        };
        builder.enable_io().build()
    }

    async fn serve(port: u16) -> io::Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        loop {
            let (mut socket, _) = listener.accept().await?;
            socket.set_nodelay(true)?;
            ::tokio::spawn(async move {
                let mut message = [0; MESSAGE];
                // Either fails once the client has gone.
                while socket.read_exact(&mut message).await.is_ok()
                    && socket.write_all(&message).await.is_ok()
                {}
            });
        }
    }

    async fn ask(port: u16, client: &Client) -> Result<Report, Reason> {
        let begin = Instant::now() + client.warm_up;
        let end = begin + client.window;
        let tasks: Vec<_> =
            (0..client.connections).map(|_| ::tokio::spawn(converse(port, begin, end))).collect();
        let (mut times, mut all) = (Histogram::<u64>::new(3)?, 0);
        for task in tasks {
            let (some, answered) = task.await??;
            times.add(some)?;
            all += answered;
        }
        Ok(Report::of(&times, client.window, times.len(), all))
    }

    /// Times of the answers to what was sent after `begin`, and the number of all answers.
    async fn converse(port: u16, begin: Instant, end: Instant) -> io::Result<(Histogram<u64>, u64)> {
        let mut times = Histogram::new(3).map_err(io::Error::other)?;
        let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        socket.set_nodelay(true)?;
        let (mut message, mut answered) = ([7; MESSAGE], 0);
        loop {
            let sent = Instant::now();
            if sent >= end {
                return Ok((times, answered));
            }
            socket.write_all(&message).await?;
            socket.read_exact(&mut message).await?;
            answered += 1;
            if sent >= begin {
                times.record(sent.elapsed().as_nanos() as u64).map_err(io::Error::other)?;
            }
        }
    }
}
