//! Sends a file to whoever connects: `file_and_socket FILE [ADDRESS]`. Disk and network
//! share one loop, and the file's size does not matter.

use std::fs::File;
use std::net::TcpListener;
use std::ops::ControlFlow;

use anyhow::Context;
use megapipe::{AcceptAs, AcceptCount, Channel, Config, Event, ReadData, WriteData};

/// Bytes that are on their way for one connection.
const PIECE: usize = 64 * 1024;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().context("usage: file_and_socket FILE [ADDRESS]")?;
    let listener = TcpListener::bind(arguments.next().unwrap_or_else(|| "127.0.0.1:7777".into()))?;
    println!("listening on {}", listener.local_addr()?);

    let mut channel = Channel::new(Config::default())?;
    let listener = channel.register(listener, 0)?;
    channel.accept(listener, AcceptCount::Unlimited, AcceptAs::LwSocket)?;

    channel.run(|channel, completion| {
        match completion.event {
            Event::Accept { result: Ok(accepted), .. } => {
                // The two handles of a transfer name each other in their cookies.
                let connection = channel.register(accepted.socket, 0)?;
                let file = match File::open(&path) {
                    Ok(file) => channel.register(file, connection.to_bits())?,
                    // Out of descriptors, say: that is this client's loss only.
                    Err(error) => {
                        eprintln!("{path}: {error}");
                        channel.close(connection)?;
                        return Ok(ControlFlow::Continue(()));
                    }
                };
                channel.set_cookie(connection, file.to_bits())?;
                channel.read_into(file, Vec::with_capacity(PIECE))?;
            }
            Event::Accept { result: Err(error), .. } => eprintln!("{error}"),
            // A piece of the file: on to the connection, and its memory comes back.
            Event::Read { result: Ok(1..), data: ReadData::Vec(piece), .. } => {
                let connection = megapipe::Handle::from_bits(completion.cookie);
                channel.write(connection, piece)?;
            }
            // The end of the file, or an error.
            Event::Read { .. } => {
                channel.close(megapipe::Handle::from_bits(completion.cookie))?;
                channel.close(completion.handle)?;
            }
            Event::Write { result: Ok(_), data: WriteData::Vec(piece) } => {
                channel.read_into(megapipe::Handle::from_bits(completion.cookie), piece)?;
            }
            // The peer went away.
            Event::Write { .. } => {
                channel.close(megapipe::Handle::from_bits(completion.cookie))?;
                channel.close(completion.handle)?;
            }
            _ => {}
        }
        Ok(ControlFlow::Continue(()))
    })
}
