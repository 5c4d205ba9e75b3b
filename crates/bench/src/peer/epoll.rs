//! epoll by hand: `epoll-shared` and `epoll-reuseport`.
//!
//! Edge-triggered, with no system call that could be left out: a connection is added once and
//! never modified unless its peer stops reading, a read that comes up short is known to have
//! emptied the socket, the response is sent at once, and an error event closes directly.

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use super::{Arrived, Worker};
use crate::Reason;
use crate::engine::Engine;
use crate::epoll::Epoll;

pub(super) fn run(worker: &Worker) -> Result<Infallible, Reason> {
    let listening = worker.listener.as_raw_fd();
    let mut server = Server {
        epoll: Epoll::new()?,
        listening,
        size: worker.options.size,
        response: vec![0; worker.options.size],
        scratch: vec![0; SCRATCH_BYTES],
        connections: Vec::with_capacity(worker.options.connections + 64),
    };
    // Of all threads that wait at one socket, a connection wakes one.
    let exclusive = if worker.options.engine == Engine::EpollShared { libc::EPOLLEXCLUSIVE } else { 0 };
    server.control(libc::EPOLL_CTL_ADD, listening, libc::EPOLLIN | exclusive)?;
    worker.ready();
    Ok(server.run()?)
}

struct Server {
    epoll: Epoll,
    listening: RawFd,
    size: usize,
    response: Vec<u8>,
    scratch: Vec<u8>,
    /// Indexed by descriptor number.
    connections: Vec<Connection>,
}

#[derive(Default, Clone, Copy)]
struct Connection {
    arrived: Arrived,
    /// Response bytes that the socket did not take yet.
    unsent: usize,
    watches_output: bool,
}

impl Server {
    fn run(&mut self) -> io::Result<Infallible> {
        let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        loop {
            for event in self.epoll.wait(&mut events, -1)? {
                let descriptor = event.u64 as RawFd;
                if descriptor == self.listening {
                    self.accept_all()?;
                } else {
                    self.advance(descriptor, event.events as i32)?;
                }
            }
        }
    }

    fn accept_all(&mut self) -> io::Result<()> {
        for _ in 0..EVENTS {
            // SAFETY: accept4 takes null for an address nobody wants.
            let descriptor = unsafe {
                libc::accept4(
                    self.listening,
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                    libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
                )
            };
            if descriptor < 0 {
                let error = io::Error::last_os_error();
                return match error.raw_os_error() {
                    Some(libc::EAGAIN) => Ok(()),
                    Some(libc::EINTR | libc::ECONNABORTED) => continue,
                    _ => Err(error),
                };
            }
            let index = descriptor as usize;
            if index >= self.connections.len() {
                self.connections.resize(index + 64, Connection::default());
            }
            self.connections[index] = Connection::default();
            self.control(libc::EPOLL_CTL_ADD, descriptor, libc::EPOLLIN | libc::EPOLLET)?;
        }
        Ok(())
    }

    fn advance(&mut self, descriptor: RawFd, events: i32) -> io::Result<()> {
        let is = |event: i32| events & event != 0;
        if is(libc::EPOLLERR | libc::EPOLLHUP)
            || (is(libc::EPOLLOUT) && !self.send(descriptor)?)
            || (is(libc::EPOLLIN) && !self.receive(descriptor)?)
        {
            // SAFETY: the server owns every descriptor it accepted, and forgets this one here.
            unsafe { libc::close(descriptor) };
        }
        Ok(())
    }

    /// Whether the connection goes on.
    fn receive(&mut self, descriptor: RawFd) -> io::Result<bool> {
        loop {
            // SAFETY: the scratch buffer is valid for its whole length.
            let count =
                unsafe { libc::recv(descriptor, self.scratch.as_mut_ptr().cast(), self.scratch.len(), 0) };
            match count {
                0 => return Ok(false),
                1.. => {}
                _ => match io::Error::last_os_error().raw_os_error() {
                    Some(libc::EAGAIN) => return Ok(true),
                    Some(libc::EINTR) => continue,
                    _ => return Ok(false),
                },
            }
            let connection = &mut self.connections[descriptor as usize];
            let messages = connection.arrived.whole_messages(count as usize, self.size);
            if messages > 0 {
                connection.unsent += messages * self.size;
                if !self.send(descriptor)? {
                    return Ok(false);
                }
            }
            if (count as usize) < self.scratch.len() {
                return Ok(true); // short: the socket is empty, its next byte is a new edge
            }
        }
    }

    /// Whether the connection goes on.
    fn send(&mut self, descriptor: RawFd) -> io::Result<bool> {
        while self.connections[descriptor as usize].unsent > 0 {
            let connection = &mut self.connections[descriptor as usize];
            // Messages follow each other without a gap, so the rest of a partly sent one is the
            // last bytes of the response.
            let rest = (connection.unsent - 1) % self.size + 1;
            let bytes = &self.response[self.size - rest..];
            // SAFETY: `bytes` is valid for its length.
            let count =
                unsafe { libc::send(descriptor, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
            if count >= 0 {
                connection.unsent -= count as usize;
                continue;
            }
            match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN) if connection.watches_output => return Ok(true),
                Some(libc::EAGAIN) => {
                    connection.watches_output = true;
                    self.control(
                        libc::EPOLL_CTL_MOD,
                        descriptor,
                        libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET,
                    )?;
                    return Ok(true);
                }
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    fn control(&self, operation: i32, descriptor: RawFd, events: i32) -> io::Result<()> {
        self.epoll.control(operation, descriptor, descriptor as u64, events)
    }
}

/// Events fetched, and connections accepted, at once.
const EVENTS: usize = 512;

/// Holds several of the largest messages, so that a read comes up short when the socket is empty.
const SCRATCH_BYTES: usize = 64 << 10;
