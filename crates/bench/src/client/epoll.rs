//! The client on epoll, for machines that forbid io_uring. Every socket is registered once,
//! edge-triggered.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::socket::ClientSocket;
use super::{LOOK_UP_INTERVAL, LoadError, Meter, Options};

pub(super) fn run(options: &Options, connections: usize, meter: &mut Meter) -> Result<(), LoadError> {
    let mut client = Client::new(options, connections).map_err(LoadError::Client)?;
    for index in 0..connections {
        client.open(index, meter)?;
    }
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; 512];
    while !meter.stopped() {
        let ready = client.wait(&mut events).map_err(LoadError::Client)?;
        for event in &events[..ready] {
            client.advance(event.u64 as usize, event.events as i32, meter)?;
        }
    }
    Ok(())
}

struct Client<'load> {
    options: &'load Options,
    epoll: OwnedFd,
    connections: Vec<Connection>,
    request: Vec<u8>,
    scratch: Vec<u8>,
}

struct Connection {
    socket: ClientSocket,
    /// Transactions left on this connection.
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
    /// It has all its transactions behind it.
    Finished,
    /// It cannot go on.
    Failed(io::Error),
}

impl<'load> Client<'load> {
    fn new(options: &'load Options, connections: usize) -> io::Result<Self> {
        // SAFETY: epoll_create1 returns a descriptor that nobody else owns.
        let epoll = unsafe {
            match libc::epoll_create1(libc::EPOLL_CLOEXEC) {
                -1 => return Err(io::Error::last_os_error()),
                descriptor => OwnedFd::from_raw_fd(descriptor),
            }
        };
        let mut client = Self {
            options,
            epoll,
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

    fn wait(&self, events: &mut [libc::epoll_event]) -> io::Result<usize> {
        // SAFETY: the buffer is valid for its length.
        let count = unsafe {
            libc::epoll_wait(
                self.epoll.as_raw_fd(),
                events.as_mut_ptr(),
                events.len() as i32,
                LOOK_UP_INTERVAL.as_millis() as i32,
            )
        };
        match count {
            0.. => Ok(count as usize),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(0),
                error => Err(error),
            },
        }
    }

    /// Connects and sends the first request at once.
    fn open(&mut self, index: usize, meter: &mut Meter) -> Result<(), LoadError> {
        loop {
            let connection = &mut self.connections[index];
            connection.left = self.options.transactions;
            let step = match connection.socket.connect() {
                Ok(()) => self.request(index, meter),
                Err(error) => Step::Failed(error),
            };
            match self.conclude(index, step, meter)? {
                true => continue,
                false => return Ok(()),
            }
        }
    }

    fn advance(&mut self, index: usize, events: i32, meter: &mut Meter) -> Result<(), LoadError> {
        let mut step = Step::Waits;
        if events & libc::EPOLLOUT != 0 && self.connections[index].unsent > 0 {
            step = self.send(index);
        }
        if matches!(step, Step::Waits) && events & !libc::EPOLLOUT != 0 {
            step = self.receive(index, meter);
        }
        match self.conclude(index, step, meter)? {
            true => self.open(index, meter),
            false => Ok(()),
        }
    }

    /// Ends a connection that is over; says whether its socket is to connect anew.
    fn conclude(&mut self, index: usize, step: Step, meter: &mut Meter) -> Result<bool, LoadError> {
        match step {
            Step::Waits => return Ok(false),
            Step::Finished => meter.connection(),
            Step::Failed(error) => meter.failure(error)?,
        }
        let socket = &self.connections[index].socket;
        socket.reset().map_err(LoadError::Client)?;
        Ok(true)
    }

    fn request(&mut self, index: usize, meter: &Meter) -> Step {
        let connection = &mut self.connections[index];
        connection.began = meter.now();
        connection.unsent = self.options.size;
        connection.awaited = self.options.size;
        self.send(index)
    }

    fn send(&mut self, index: usize) -> Step {
        loop {
            let connection = &mut self.connections[index];
            let bytes = &self.request[self.options.size - connection.unsent..];
            // SAFETY: `bytes` is valid for its length.
            let count = unsafe {
                libc::send(
                    connection.socket.as_raw_fd(),
                    bytes.as_ptr().cast(),
                    bytes.len(),
                    libc::MSG_NOSIGNAL,
                )
            };
            if count >= 0 {
                connection.unsent -= count as usize;
                if connection.unsent == 0 {
                    return Step::Waits;
                }
                continue;
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN) if connection.watches_output => return Step::Waits,
                Some(libc::EAGAIN) => {
                    connection.watches_output = true;
                    let descriptor = connection.socket.as_raw_fd();
                    let events = libc::EPOLLIN | libc::EPOLLOUT;
                    return match self.control(libc::EPOLL_CTL_MOD, descriptor, index, events) {
                        Ok(()) => Step::Waits,
                        Err(error) => Step::Failed(error),
                    };
                }
                _ => return Step::Failed(error),
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
            if connection.left == 0 {
                return Step::Finished;
            }
            return self.request(index, meter);
        }
    }

    fn control(&self, operation: i32, descriptor: RawFd, index: usize, events: i32) -> io::Result<()> {
        let mut event = libc::epoll_event { events: (events | libc::EPOLLET) as u32, u64: index as u64 };
        // SAFETY: `event` is valid for the read.
        match unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, descriptor, &mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
