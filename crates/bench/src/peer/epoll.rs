//! epoll by hand: `epoll-shared` and `epoll-reuseport`.
//!
//! Edge-triggered, with no system call that could be left out: a connection is added once and
//! never modified unless its peer stops reading, a read that comes up short is known to have
//! emptied the socket, the response is sent at once, and an error event closes directly.

use std::convert::Infallible;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};

use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use super::{Arrived, Worker};
use crate::Reason;
use crate::engine::Engine;
use crate::epoll::Epoll;

pub(super) fn run(worker: &Worker) -> Result<Infallible, Reason> {
    let mut server = Server {
        epoll: Epoll::new()?,
        listener: &worker.listener,
        response: vec![0; worker.options.size],
        scratch: vec![0; SCRATCH_BYTES],
        connections: Vec::with_capacity(worker.options.connections + 64),
    };
    // Of all threads that wait at one socket, a connection wakes one.
    let exclusive = if worker.options.engine == Engine::EpollShared { libc::EPOLLEXCLUSIVE } else { 0 };
    let listening = worker.listener.as_raw_fd();
    server.epoll.control(libc::EPOLL_CTL_ADD, listening, listening as u64, libc::EPOLLIN | exclusive)?;
    worker.ready();
    Ok(server.run()?)
}

struct Server<'worker> {
    epoll: Epoll,
    listener: &'worker TcpListener,
    response: Vec<u8>,
    scratch: Vec<u8>,
    /// Indexed by descriptor number.
    connections: Vec<Option<Connection>>,
}

struct Connection {
    socket: TcpStream,
    arrived: Arrived,
    /// Response bytes that the socket did not take yet.
    unsent: usize,
    watches_output: bool,
}

impl Server<'_> {
    fn run(&mut self) -> io::Result<Infallible> {
        let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        loop {
            for event in self.epoll.wait(&mut events, -1)? {
                match event.u64 as RawFd {
                    listening if listening == self.listener.as_raw_fd() => self.accept_all()?,
                    connection => self.advance(connection as usize, event.events as i32)?,
                }
            }
        }
    }

    fn accept_all(&mut self) -> io::Result<()> {
        for _ in 0..EVENTS {
            let socket = match accept_with(self.listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(socket) => TcpStream::from(socket),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => return Err(error.into()),
            };
            let (descriptor, events) = (socket.as_raw_fd(), libc::EPOLLIN | libc::EPOLLET);
            let index = descriptor as usize;
            if index >= self.connections.len() {
                self.connections.resize_with(index + 64, || None);
            }
            self.epoll.control(libc::EPOLL_CTL_ADD, descriptor, descriptor as u64, events)?;
            let (arrived, unsent, watches_output) = (Arrived::default(), 0, false);
            self.connections[index] = Some(Connection { socket, arrived, unsent, watches_output });
        }
        Ok(())
    }

    fn advance(&mut self, index: usize, events: i32) -> io::Result<()> {
        let Some(connection) = &mut self.connections[index] else { return Ok(()) };
        let is = |event: i32| events & event != 0;
        if is(libc::EPOLLERR | libc::EPOLLHUP)
            || (is(libc::EPOLLOUT) && !connection.send(&self.epoll, &self.response)?)
            || (is(libc::EPOLLIN) && !connection.receive(&self.epoll, &self.response, &mut self.scratch)?)
        {
            self.connections[index] = None;
        }
        Ok(())
    }
}

impl Connection {
    /// Whether the connection goes on.
    fn receive(&mut self, epoll: &Epoll, response: &[u8], scratch: &mut [u8]) -> io::Result<bool> {
        loop {
            let count = match self.socket.read(scratch) {
                Ok(count @ 1..) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                _ => return Ok(false),
            };
            self.unsent += self.arrived.whole_messages(count, response.len()) * response.len();
            if !self.send(epoll, response)? {
                return Ok(false);
            }
            if count < scratch.len() {
                return Ok(true); // short: the socket is empty, its next byte is a new edge
            }
        }
    }

    /// Whether the connection goes on.
    fn send(&mut self, epoll: &Epoll, response: &[u8]) -> io::Result<bool> {
        while self.unsent > 0 {
            // Messages follow each other without a gap, so the rest of a partly sent one is the
            // last bytes of the response.
            let rest = (self.unsent - 1) % response.len() + 1;
            match self.socket.write(&response[response.len() - rest..]) {
                Ok(count) => self.unsent -= count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && self.watches_output => {
                    return Ok(true);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.watches_output = true;
                    let events = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET;
                    let descriptor = self.socket.as_raw_fd();
                    epoll.control(libc::EPOLL_CTL_MOD, descriptor, descriptor as u64, events)?;
                    return Ok(true);
                }
                Err(_) => return Ok(false),
            }
        }
        Ok(true)
    }
}

/// Events fetched, and connections accepted, at once.
const EVENTS: usize = 512;

/// Holds several of the largest messages, so that a read comes up short when the socket is empty.
const SCRATCH_BYTES: usize = 64 << 10;
