//! What the kernel's own calls cost on the server's CPU: the floor under every engine.
//!
//! The client fills the accept queue with connections in each of which a request waits. The
//! server, a single-threaded process, then makes all accepts, all receives, all sends, and, once
//! the client has reset the connections, all closes, and reads its CPU clock between. Nothing ever
//! waits, so there is no wake-up, no readiness call and no cold start in these figures.

use std::io::{self, BufRead, Read, Write};
use std::mem;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::net;
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};

use crate::Reason;
use crate::child::Served;
use crate::clock;
use crate::cpu;
use crate::part::Part;

/// Nanoseconds of CPU time of each call on the server's CPU.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Floor {
    /// Bytes of a message.
    pub size: usize,
    /// accept4(2) of a connection that waits.
    pub accept_ns: f64,
    /// recv(2) of the first message on a connection, which waits already.
    pub first_recv_ns: f64,
    /// send(2) of the first message on a connection, with its delivery to the client's socket.
    pub first_send_ns: f64,
    /// recv(2) of a later message.
    pub recv_ns: f64,
    /// send(2) of a later message.
    pub send_ns: f64,
    /// close(2) of a connection that its peer has reset.
    pub close_ns: f64,
    /// Entering and leaving the kernel (getppid(2)); part of each of the above.
    pub entry_ns: f64,
}

/// Measures on server CPU `cpu`, with messages of `size` bytes. Takes well under a second.
pub fn measure(program: &Path, cpu: usize, size: usize) -> io::Result<Floor> {
    let mut server = Server::start(program, cpu, size)?;
    let [entry_ns] = server.ask("enter", ENTRIES)?;
    let mut floor = Floor { size, entry_ns, ..Floor::default() };
    let each = 1.0 / f64::from(BATCHES);
    let mut response = vec![0; size];
    for batch in 0..=BATCHES {
        let share = if batch == 0 { 0.0 } else { each }; // the first batch warms up
        let mut clients = (0..BATCH).map(|_| client(server.address)).collect::<io::Result<Vec<_>>>()?;
        for transaction in 0..TRANSACTIONS {
            for client in &mut clients {
                client.write_all(&response)?;
            }
            if transaction == 0 {
                let [accept] = server.ask("accept", BATCH)?;
                let [recv, send] = server.ask("answer", BATCH)?;
                floor.accept_ns += accept * share;
                floor.first_recv_ns += recv * share;
                floor.first_send_ns += send * share;
            } else {
                let [recv, send] = server.ask("answer", BATCH)?;
                let share = share / f64::from(TRANSACTIONS - 1);
                floor.recv_ns += recv * share;
                floor.send_ns += send * share;
            }
            for client in &mut clients {
                client.read_exact(&mut response)?;
            }
        }
        drop(clients); // with RST
        let [close] = server.ask("close", BATCH)?;
        floor.close_ns += close * share;
    }
    Ok(floor)
}

/// The server of the floor measurement; obeys standard input.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Responder {
    /// Where it runs.
    pub cpu: usize,
    /// Bytes of a message.
    pub size: usize,
}

impl Part for Responder {
    const NAME: &'static str = "floor";

    fn run(self) -> Result<(), Reason> {
        Ok(serve(self.cpu, self.size)?)
    }
}

/// The server of this measurement: obeys lines on standard input until it closes.
pub fn serve(cpu: usize, size: usize) -> io::Result<()> {
    cpu::pin(&[cpu])?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut stdout = io::stdout();
    writeln!(stdout, "{}", listener.local_addr()?.port())?;
    let mut connections = Vec::with_capacity(BATCH as usize);
    let mut buffer = vec![0; size];
    for line in io::stdin().lock().lines() {
        match line?.split_once(' ') {
            Some(("enter", count)) => {
                let count = parse(count)?;
                writeln!(stdout, "{}", timed(count, enter)?)?;
            }
            Some(("accept", count)) => {
                let accept = timed(parse(count)?, || {
                    connections.push(accept(&listener)?);
                    Ok(())
                })?;
                writeln!(stdout, "{accept}")?;
            }
            Some(("answer", count)) => {
                let count = parse(count)?;
                let mut each = connections.iter();
                let recv = timed(count, || receive(next(&mut each)?, &mut buffer))?;
                let mut each = connections.iter();
                let send = timed(count, || send(next(&mut each)?, &buffer))?;
                writeln!(stdout, "{recv} {send}")?;
            }
            Some(("close", count)) => {
                let mut each = mem::take(&mut connections).into_iter();
                let close = timed(parse(count)?, || {
                    drop(each.next());
                    Ok(())
                })?;
                writeln!(stdout, "{close}")?;
            }
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        }
    }
    Ok(())
}

struct Server {
    child: Served,
    address: SocketAddr,
}

impl Server {
    fn start(program: &Path, cpu: usize, size: usize) -> io::Result<Self> {
        let mut child = Served::start(&mut Responder { cpu, size }.command(program))?;
        let address = (Ipv4Addr::LOCALHOST, parse(&child.line()?)?).into();
        Ok(Self { child, address })
    }

    fn ask<const N: usize>(&mut self, order: &str, count: u32) -> io::Result<[f64; N]> {
        self.child.ask(&format!("{order} {count}"))?;
        let line = self.child.line()?;
        let numbers = line.split_whitespace().map(parse::<f64>).collect::<io::Result<Vec<_>>>()?;
        numbers.try_into().map_err(|_| io::ErrorKind::UnexpectedEof.into())
    }
}

fn client(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_tcp_nodelay(true)?;
    socket.connect(&address.into())?;
    Ok(socket.into())
}

/// Nanoseconds of CPU time per call of `call`.
fn timed(count: u32, mut call: impl FnMut() -> io::Result<()>) -> io::Result<f64> {
    let before = clock::of_this_thread()?;
    for _ in 0..count {
        call()?;
    }
    let spent = clock::of_this_thread()? - before;
    Ok(spent.as_nanos() as f64 / f64::from(count))
}

/// The cheapest system call.
fn enter() -> io::Result<()> {
    std::hint::black_box(rustix::process::getppid());
    Ok(())
}

fn accept(listener: &TcpListener) -> io::Result<OwnedFd> {
    Ok(net::accept_with(listener, net::SocketFlags::CLOEXEC | net::SocketFlags::NONBLOCK)?)
}

fn receive(connection: &OwnedFd, buffer: &mut [u8]) -> io::Result<()> {
    let length = buffer.len();
    whole(length, net::recv(connection, buffer, net::RecvFlags::empty())?.0)
}

fn send(connection: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    whole(bytes.len(), net::send(connection, bytes, net::SendFlags::NOSIGNAL)?)
}

fn whole(expected: usize, count: usize) -> io::Result<()> {
    if count == expected { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn next<'all>(each: &mut std::slice::Iter<'all, OwnedFd>) -> io::Result<&'all OwnedFd> {
    each.next().ok_or(io::ErrorKind::NotConnected.into())
}

fn parse<T: std::str::FromStr>(text: &str) -> io::Result<T> {
    text.parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Connections that wait at once; within the default accept queue of a TcpListener.
const BATCH: u32 = 100;

/// Batches that count.
const BATCHES: u32 = 20;

/// Transactions on each connection.
const TRANSACTIONS: u32 = 8;

/// Calls that the cost of entering the kernel is averaged over.
const ENTRIES: u32 = 100_000;
