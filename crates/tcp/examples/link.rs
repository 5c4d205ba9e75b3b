//! Two hosts over a memory link, under a clock that the program moves itself:
//! `cargo run -p megapipe-tcp --example link`.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use packet::pump::{Moved, turn};
use packet::{Batch, Capabilities, link};
use tcp::{Config, Event, Host, Pattern, Prefix, Read, Ready, Time};

fn main() -> Result<(), Box<dyn Error>> {
    let capabilities = Capabilities { mtu: 1500, checksum: true, segment: 65_535 };
    let (mut left, mut right) = link::pair(capabilities, 1024);
    let address = |last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
    // A real program takes 32 bytes from getrandom(2): sequence numbers follow from them.
    let mut client = Host::new(Config::new(vec![Prefix::one(address(1))], capabilities), [1; 32]);
    let mut server = Host::new(Config::new(vec![Prefix::one(address(2))], capabilities), [2; 32]);

    let mut now = Time::from_micros(0);
    let listener = server.listen(Pattern { address: None, port: Some(7) }, 16)?;
    let question = client.connect(now, None, None, SocketAddr::new(address(2), 7))?;
    let (mut received, mut to_send) = (Batch::new(1 << 20), Batch::new(1 << 20));
    let mut bytes = [0; 64];

    loop {
        while turn(now, &mut client, &mut left, &mut received, &mut to_send)? != Moved::default()
            || turn(now, &mut server, &mut right, &mut received, &mut to_send)? != Moved::default()
        {}
        while let Some(event) = client.event() {
            if let Event::Flow { ready, .. } = event
                && ready.has(Ready::CONNECTED)
            {
                println!("{now:?}: connected from {:?}", client.addresses(question));
                client.write(now, question, b"hello")?;
            }
        }
        while let Some(event) = server.event() {
            match event {
                Event::Incoming(_) => while server.accept(listener).is_some() {},
                Event::Flow { flow, .. } => {
                    if let Read::Bytes(len) = server.read(now, flow, &mut bytes)? {
                        println!("{now:?}: the server has {:?}", String::from_utf8_lossy(&bytes[..len]));
                        server.write(now, flow, &bytes[..len])?;
                        server.close(now, flow);
                    }
                }
                Event::Ask { .. } => {}
            }
        }
        match client.read(now, question, &mut bytes)? {
            Read::Bytes(len) => {
                println!("{now:?}: the client has {:?}", String::from_utf8_lossy(&bytes[..len]))
            }
            Read::End => break,
            Read::Empty if client.has_output() || server.has_output() => {}
            Read::Empty => {
                // Nothing happens before one of them is due.
                let next = client.deadline().into_iter().chain(server.deadline()).min();
                now = next.ok_or("nobody waits for anything")?.max(now.after(Duration::from_micros(1)));
            }
        }
    }
    client.close(now, question);
    println!("{now:?}: closed");
    Ok(())
}
