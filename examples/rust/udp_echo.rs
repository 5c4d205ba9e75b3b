//! A UDP echo server: `udp_echo [ADDRESS]`, by default 127.0.0.1:7777. Try it with
//! `nc -u 127.0.0.1 7777`.

use std::net::UdpSocket;
use std::ops::ControlFlow;

use megapipe::{Channel, Config, Event, ReadData};

fn main() -> anyhow::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7777".into());
    let socket = UdpSocket::bind(address)?;
    println!("listening on {}", socket.local_addr()?);

    let mut channel = Channel::new(Config::default())?;
    let socket = channel.register(socket, 0)?;
    channel.read_stream(socket)?;

    channel.run(|channel, completion| {
        match completion.event {
            Event::Read { result: Ok(_), data: ReadData::Buffer(datagram), .. } => {
                if let Some(sender) = datagram.sender()
                    && let Err(refused) = channel.send_to(socket, datagram, &sender)
                {
                    // UDP may lose datagrams; better here than to wait for room.
                    eprintln!("dropped a datagram: {refused}");
                }
            }
            // An error that an earlier datagram brought back (ICMP): reading goes on.
            Event::Read { result: Err(error), more: false, .. } => {
                eprintln!("{error}");
                channel.read_stream(socket)?;
            }
            Event::Write { result: Err(error), .. } => eprintln!("{error}"),
            _ => {}
        }
        Ok(ControlFlow::Continue(()))
    })
}
