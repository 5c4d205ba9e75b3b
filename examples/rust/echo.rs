//! An echo server on one thread: `echo [ADDRESS]`, by default 127.0.0.1:7777. Try it with
//! `nc 127.0.0.1 7777`.

use std::net::TcpListener;
use std::ops::ControlFlow;

use megapipe::{AcceptAs, AcceptCount, Channel, Config, Event, ReadData};

fn main() -> anyhow::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7777".into());
    let listener = TcpListener::bind(address)?;
    println!("listening on {}", listener.local_addr()?);

    let mut channel = Channel::new(Config::default())?;
    let listener = channel.register(listener, 0)?;
    channel.accept(listener, AcceptCount::Unlimited, AcceptAs::LwSocket)?;

    channel.run(|channel, completion| {
        match completion.event {
            Event::Accept { result: Ok(accepted), .. } => {
                let connection = channel.register(accepted.socket, 0)?;
                channel.read(connection)?;
            }
            // Accepting goes on by itself once there is room again.
            Event::Accept { result: Err(error), .. } => eprintln!("{error}"),
            // What was read goes out again from the same memory.
            Event::Read { result: Ok(1..), data: ReadData::Buffer(buffer), .. } => {
                channel.write(completion.handle, buffer)?;
            }
            // The kernel took all of it: read on. A client that does not read makes only itself wait.
            Event::Write { result: Ok(_), .. } => {
                channel.read(completion.handle)?;
            }
            // The end of the stream, or an error.
            Event::Read { .. } | Event::Write { .. } => channel.close(completion.handle)?,
            _ => {}
        }
        Ok(ControlFlow::Continue(()))
    })
}
