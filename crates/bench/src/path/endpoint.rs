//! The two ends of a path.

use std::io::{self, BufRead, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use serde::{Deserialize, Serialize};

use super::relay::KERNELS;
use super::{Answer, Order, Tcp, ours};
use crate::Reason;
use crate::part::{self, Part};

/// An endpoint, which prints `listening`. A sender answers a request of eight bytes, a number, with that many bytes; a
/// receiver follows the lines of its standard input.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Endpoint {
    pub(super) tcp: Tcp,
    /// Whether it receives, in the other namespace.
    pub(super) receives: bool,
    /// Of several senders.
    pub(super) number: u8,
    pub(super) network: u8,
    pub(super) gso: bool,
    pub(super) lan: bool,
}

impl Endpoint {
    /// Where a sender listens.
    pub(super) fn address(&self) -> SocketAddr {
        let address = match self.tcp {
            Tcp::Ours => self.own_address(2),
            _ => KERNELS[0],
        };
        SocketAddr::new(IpAddr::V4(address), 7 + u16::from(self.number))
    }

    /// Of the TUN device of ours: the kernel's end (1) or ours (2).
    pub(super) fn own_address(&self, last: u8) -> Ipv4Addr {
        let side = if self.receives { 79 } else { 78 };
        Ipv4Addr::new(10, side, self.number, last)
    }
}

impl Part for Endpoint {
    const NAME: &'static str = "path-endpoint";

    fn run(self) -> Result<(), Reason> {
        match (self.tcp, self.receives) {
            (Tcp::Ours, false) => ours::send(&self),
            (Tcp::Ours, true) => ours::receive(&self),
            (_, false) => self.send(),
            (_, true) => self.receive(),
        }
    }
}

impl Endpoint {
    /// Serves connections of the kernel's TCP until the process is ended.
    fn send(&self) -> Result<(), Reason> {
        let listener = TcpListener::bind(self.address())?;
        // Those that it accepts inherit it.
        sockopt::set_tcp_congestion(&listener, self.tcp.name())?;
        part::listening("");
        loop {
            let (stream, _) = listener.accept()?;
            // A receiver that has enough ends the connection.
            thread::spawn(|| serve(stream).ok());
        }
    }

    /// Receives with the kernel's TCP what is asked for.
    fn receive(&self) -> Result<(), Reason> {
        part::listening("");
        for line in io::stdin().lock().lines() {
            let order: Order = serde_json::from_str(&line?)?;
            let answers: Vec<Answer> = thread::scope(|scope| {
                let each = order.from.iter().map(|&from| {
                    scope.spawn({
                        let order = &order;
                        move || fetch(self.tcp, from, order)
                    })
                });
                let threads: Vec<_> = each.collect();
                threads.into_iter().map(|one| one.join().expect("it does not panic")).collect()
            });
            for answer in answers {
                part::print(&answer)?;
            }
        }
        Ok(())
    }
}

fn serve(mut stream: TcpStream) -> io::Result<()> {
    let mut order = [0; 8];
    stream.read_exact(&mut order)?;
    let mut left = u64::from_be_bytes(order);
    let piece = vec![0; 256 << 10];
    while left > 0 {
        left -= stream.write(&piece[..piece.len().min(left.min(1 << 30) as usize)])? as u64;
    }
    Ok(())
}

/// Fetches what can be fetched in time; what it did not get is missing in the answer.
fn fetch(tcp: Tcp, from: SocketAddr, order: &Order) -> Answer {
    let (start, most) = (Instant::now(), Duration::from_secs_f64(order.seconds));
    let mut bytes = 0;
    let mut fetch = || -> io::Result<()> {
        let mut stream = TcpStream::connect_timeout(&from, most)?;
        sockopt::set_tcp_congestion(&stream, tcp.name())?;
        stream.set_read_timeout(Some(most))?;
        let wanted = order.bytes.unwrap_or(u64::MAX);
        stream.write_all(&wanted.to_be_bytes())?;
        let mut piece = vec![0; 1 << 20];
        while bytes < wanted && start.elapsed() < most {
            match stream.read(&mut piece)? {
                0 => break,
                len => bytes += len as u64,
            }
        }
        Ok(())
    };
    let _ = fetch();
    Answer { bytes, seconds: start.elapsed().as_secs_f64() }
}
