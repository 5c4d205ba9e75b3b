//! The client on epoll, for machines that forbid io_uring. Every socket is registered once,
//! edge-triggered.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use super::meter::Wait;
use super::socket::ClientSocket;
use super::{LoadError, Meter, Options};
use crate::epoll::Epoll;

pub(super) fn run(options: &Options, numbers: Range<usize>, meter: &mut Meter) -> Result<(), LoadError> {
    let mut client = Client::new(options, numbers.len()).map_err(LoadError::Client)?;
    meter.start(options, &numbers);
    for index in 0..numbers.len() {
        client.follow(index, meter)?;
    }
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; 512];
    while !meter.stopped() {
        let ready = client.wait(&mut events, meter.wait()).map_err(LoadError::Client)?;
        for event in ready {
            client.advance(event.u64 as usize, event.events as i32, meter)?;
        }
        let mut worked = !ready.is_empty();
        while let Some(due) = meter.due() {
            client.begin(due.index, due.at, meter)?;
            worked = true;
        }
        meter.turn(worked);
    }
    Ok(())
}

struct Client<'load> {
    options: &'load Options,
    epoll: Epoll,
    connections: Vec<Connection>,
    request: Vec<u8>,
    scratch: Vec<u8>,
}

struct Connection {
    socket: ClientSocket,
    /// Transactions left on this connection; none while it is closed.
    left: u32,
    /// Bytes of the request that the socket did not take yet.
    unsent: usize,
    /// Bytes of the response that are still to come.
    awaited: usize,
    /// When the request began, by the meter's clock.
    began: u64,
    watches_output: bool,
}

/// What a step did to a connection.
enum Step {
    /// It waits for the socket.
    Waits,
    /// It has the whole response.
    Answered,
    /// It cannot go on.
    Failed(io::Error),
}

impl<'load> Client<'load> {
    fn new(options: &'load Options, connections: usize) -> io::Result<Self> {
        let mut client = Self {
            options,
            epoll: Epoll::new()?,
            connections: Vec::with_capacity(connections),
            request: vec![0; options.size],
            scratch: vec![0; options.size.max(4096)],
        };
        for index in 0..connections {
            let socket = ClientSocket::new(options.target)?;
            client.control(libc::EPOLL_CTL_ADD, socket.as_raw_fd(), index, libc::EPOLLIN)?;
            client.connections.push(Connection {
                socket,
                left: 0,
                unsent: 0,
                awaited: 0,
                began: 0,
                watches_output: false,
            });
        }
        Ok(client)
    }

    fn wait<'events>(
        &self,
        events: &'events mut [libc::epoll_event],
        wait: Wait,
    ) -> io::Result<&'events [libc::epoll_event]> {
        match wait {
            Wait::Spin => self.epoll.wait(events, 0),
            // epoll_wait(2) knows no less than a millisecond, ppoll(2) does.
            Wait::Within(time) if time.subsec_nanos() % 1_000_000 != 0 => {
                self.sleep(time)?;
                self.epoll.wait(events, 0)
            }
            Wait::Within(time) => self.epoll.wait(events, time.as_millis() as i32),
        }
    }

    /// Returns once an event is there, or the time is over.
    fn sleep(&self, time: Duration) -> io::Result<()> {
        let mut epoll = libc::pollfd { fd: self.epoll.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let time = libc::timespec {
            tv_sec: time.as_secs() as _,
            tv_nsec: libc::c_long::from(time.subsec_nanos() as i32),
        };
        // SAFETY: `epoll` is one valid pollfd, and the time valid for the read; no mask is given.
        match unsafe { libc::ppoll(&mut epoll, 1, &time, std::ptr::null()) } {
            0.. => Ok(()),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                error => Err(error),
            },
        }
    }

    /// Goes on with a connection that has nothing under way, unless its next request is yet to come.
    fn follow(&mut self, index: usize, meter: &mut Meter) -> Result<(), LoadError> {
        match meter.follow(index) {
            Some(began) => self.begin(index, began, meter),
            None => Ok(()),
        }
    }

    /// Begins a transaction that counts from `began`; on a new connection if the last one is over.
    fn begin(&mut self, index: usize, began: u64, meter: &mut Meter) -> Result<(), LoadError> {
        let step = self.request(index, began);
        self.conclude(index, step, meter)
    }

    fn request(&mut self, index: usize, began: u64) -> Step {
        let connection = &mut self.connections[index];
        connection.began = began;
        connection.unsent = self.options.size;
        connection.awaited = self.options.size;
        match connection.left {
            0 => self.open(index),
            _ => self.send(index),
        }
    }

    /// Connects and sends the first request at once.
    fn open(&mut self, index: usize) -> Step {
        let connection = &mut self.connections[index];
        connection.left = self.options.transactions;
        match connection.socket.connect() {
            Ok(()) => self.send(index),
            Err(error) => Step::Failed(error),
        }
    }

    fn advance(&mut self, index: usize, events: i32, meter: &mut Meter) -> Result<(), LoadError> {
        if self.connections[index].left == 0 {
            return Ok(()); // the end of a connection that this side has ended
        }
        let mut step = Step::Waits;
        if events & libc::EPOLLOUT != 0 && self.connections[index].unsent > 0 {
            step = self.send(index);
        }
        if matches!(step, Step::Waits) && events & !libc::EPOLLOUT != 0 {
            step = self.receive(index, meter);
        }
        self.conclude(index, step, meter)
    }

    /// Acts on what became of a connection, until it waits for something.
    fn conclude(&mut self, index: usize, mut step: Step, meter: &mut Meter) -> Result<(), LoadError> {
        loop {
            match step {
                Step::Waits => return Ok(()),
                Step::Answered => {}
                Step::Failed(error) => {
                    meter.failure(error)?;
                    self.reset(index)?;
                    let Connection { awaited, began, .. } = self.connections[index];
                    if awaited == 0 {
                        return Ok(()); // its next request will find it closed
                    }
                    // The request under way is made again, and has begun when it began first.
                    step = self.request(index, began);
                    continue;
                }
            }
            if self.connections[index].left == 0 {
                meter.connection();
                self.reset(index)?;
            }
            let Some(began) = meter.follow(index) else { return Ok(()) };
            step = self.request(index, began);
        }
    }

    fn reset(&mut self, index: usize) -> Result<(), LoadError> {
        let connection = &mut self.connections[index];
        connection.left = 0;
        connection.socket.reset().map_err(LoadError::Client)
    }

    fn send(&mut self, index: usize) -> Step {
        loop {
            let connection = &mut self.connections[index];
            let bytes = &self.request[self.options.size - connection.unsent..];
            match connection.socket.send(bytes) {
                Ok(0) if connection.watches_output => return Step::Waits,
                Ok(0) => {
                    connection.watches_output = true;
                    let descriptor = connection.socket.as_raw_fd();
                    let events = libc::EPOLLIN | libc::EPOLLOUT;
                    return match self.control(libc::EPOLL_CTL_MOD, descriptor, index, events) {
                        Ok(()) => Step::Waits,
                        Err(error) => Step::Failed(error),
                    };
                }
                Ok(count) => connection.unsent -= count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Step::Failed(error),
            }
            if self.connections[index].unsent == 0 {
                return Step::Waits;
            }
        }
    }

    fn receive(&mut self, index: usize, meter: &mut Meter) -> Step {
        loop {
            let connection = &mut self.connections[index];
            // SAFETY: the scratch buffer is valid for its length.
            let count = unsafe {
                libc::recv(
                    connection.socket.as_raw_fd(),
                    self.scratch.as_mut_ptr().cast(),
                    self.scratch.len(),
                    0,
                )
            };
            match count {
                0 => return Step::Failed(io::ErrorKind::UnexpectedEof.into()),
                1.. => {}
                _ => {
                    let error = io::Error::last_os_error();
                    match error.raw_os_error() {
                        Some(libc::EINTR) => continue,
                        Some(libc::EAGAIN) => return Step::Waits,
                        _ => return Step::Failed(error),
                    }
                }
            }
            let Some(awaited) = connection.awaited.checked_sub(count as usize) else {
                return Step::Failed(io::ErrorKind::InvalidData.into()); // more than asked for
            };
            connection.awaited = awaited;
            if awaited > 0 {
                continue;
            }
            connection.left -= 1;
            meter.transaction(connection.began, meter.now());
            return Step::Answered;
        }
    }

    fn control(&self, operation: i32, descriptor: RawFd, index: usize, events: i32) -> io::Result<()> {
        self.epoll.control(operation, descriptor, index as u64, events | libc::EPOLLET)
    }
}
