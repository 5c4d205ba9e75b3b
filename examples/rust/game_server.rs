//! A game server: many players with a UDP port each, small packets. `game_server [PLAYERS] [FIRST_PORT]`, by default
//! 1000 players from port 7777 on. A player sends where it is (x and y, a byte each) to its port; 20 times a second
//! everybody hears of everybody who is there (two bytes for the player, x, y), all with the same messages, of 1200
//! bytes at most.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use mmsg::receiver::{Event, Options, WaitError};
use mmsg::{Outbox, Receiver};

const TICK: Duration = Duration::from_millis(50);
/// Bytes of a message: no path takes it apart.
const DATAGRAM: usize = 1200;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| arguments.next().map_or(Some(default), |number| number.parse::<u16>().ok());
    let (Some(players @ 1..), Some(port), None) = (number(1000), number(7777), arguments.next()) else {
        anyhow::bail!("usage: game_server [PLAYERS] [FIRST_PORT]");
    };
    if port > 0 && port.checked_add(players - 1).is_none() {
        anyhow::bail!("there are no {players} ports from {port} on");
    }
    let options = Options { sockets: players.into(), addresses: true, ..Options::default() };
    let mut receiver = Receiver::new(&options)?;
    let mut sockets = Vec::new();
    for player in 0..players {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, if port == 0 { 0 } else { port + player }))?;
        println!("player {player} at {}", socket.local_addr()?);
        sockets.push(socket.try_clone()?);
        receiver.add(socket, player.into())?;
    }
    let mut places: Vec<Option<[u8; 2]>> = vec![None; players.into()];
    let mut next = Instant::now() + TICK;
    loop {
        let batch = match receiver.wait(256, Some(next.saturating_duration_since(Instant::now()))) {
            Err(WaitError::Interrupted) => continue, // stopped and resumed, say
            batch => batch?,
        };
        for message in batch.iter() {
            let player = message.cookie as usize;
            if let Event::Data { data: &[x, y], from: Some(from), .. } = message.event {
                // From now on this port is this player's alone. A false address can be refused.
                let is_here = places[player].is_some()
                    || from.as_socket().is_some_and(|from| sockets[player].connect(from).is_ok());
                if is_here {
                    places[player] = Some([x, y]);
                }
            }
        }
        drop(batch);
        if Instant::now() >= next {
            next += TICK;
            tell(&sockets, &places)?;
        }
    }
}

/// The same messages down every socket, in a few system calls.
fn tell(sockets: &[UdpSocket], places: &[Option<[u8; 2]>]) -> anyhow::Result<()> {
    let present = || places.iter().enumerate().filter_map(|(player, place)| Some((player, (*place)?)));
    let world: Vec<u8> = present()
        .flat_map(|(player, [x, y])| {
            let [high, low] = (player as u16).to_be_bytes();
            [high, low, x, y]
        })
        .collect();
    let mut outbox = Outbox::new();
    let messages = world.chunks(DATAGRAM).map(|part| outbox.push(part)).count();
    let targets: Vec<_> = present().map(|(player, _)| (sockets[player].as_fd(), 0..messages)).collect();
    // A player that has gone, or does not read, misses this one.
    outbox.send(&targets)?;
    Ok(())
}
