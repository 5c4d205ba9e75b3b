//! The client on epoll. Connections that are reset keep their socket, which is registered once,
//! edge-triggered; so is a short one, for the end of connect(2) and for its answer.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::client::{Client, Wire};
use super::socket::{ClientSocket, PATIENCE};
use super::{Connections, LoadError, Options, Outcome};
use crate::epoll::Epoll;

pub(super) fn run(mut client: Client<'_>) -> Result<Outcome, LoadError> {
    let mut wire = Sockets::new(&client).map_err(LoadError::Client)?;
    client.start(&mut wire)?;
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; 512];
    let mut room = vec![0; 16 << 10];
    while !client.is_over() {
        let ready = wire.wait(&mut events, &client).map_err(LoadError::Client)?;
        for event in &events[..ready] {
            advance(&mut client, &mut wire, event.u64, event.events as i32, &mut room)?;
        }
        client.turn(&mut wire, ready > 0)?;
    }
    Ok(client.finish())
}

/// Acts on an event of a connection, or of the timer, of which no more is to be known.
fn advance(
    client: &mut Client<'_>,
    wire: &mut Sockets<'_>,
    name: u64,
    events: i32,
    room: &mut [u8],
) -> Result<(), LoadError> {
    let index = name as usize;
    if name == TIMER || !client.is_open(index) {
        return Ok(()); // perhaps the end of a connection that this side has ended
    }
    if events & libc::EPOLLOUT != 0
        && let Err(error) = wire.flush(index)
    {
        return client.failed(wire, index, error);
    }
    if events & !libc::EPOLLOUT == 0 {
        return Ok(());
    }
    loop {
        let count = match wire.slots[index].socket()?.receive(room) {
            Ok(0) => return client.ended(wire, index),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return client.failed(wire, index, error),
        };
        if !client.received(wire, index, count, &room[..count])? {
            return Ok(());
        }
    }
}

struct Sockets<'load> {
    options: &'load Options,
    request: Vec<u8>,
    epoll: Epoll,
    slots: Vec<Slot>,
    /// For open loops: epoll_wait(2) alone counts whole milliseconds.
    timer: Option<OwnedFd>,
}

#[derive(Default)]
struct Slot {
    socket: Option<ClientSocket>,
    /// How much of the request the socket did not take yet.
    unsent: usize,
    watches_output: bool,
}

impl Slot {
    fn socket(&self) -> Result<&ClientSocket, LoadError> {
        self.socket.as_ref().ok_or_else(|| LoadError::Client(io::ErrorKind::NotConnected.into()))
    }
}

impl<'load> Sockets<'load> {
    fn new(client: &Client<'load>) -> io::Result<Self> {
        let options = client.options;
        let slots = (0..client.len()).map(|_| Slot::default()).collect();
        let request = options.request.bytes();
        let mut wire = Self { options, request, epoll: Epoll::new()?, slots, timer: None };
        for index in 0..client.len() {
            match options.lifetime {
                Connections::Kept => {
                    let socket = ClientSocket::blocking(&options.target, PATIENCE)?;
                    socket.socket.set_nonblocking(true)?;
                    wire.watch(index, socket, libc::EPOLLIN)?;
                }
                Connections::Reset(_) => {
                    let socket = ClientSocket::for_resets(&options.target)?;
                    wire.watch(index, socket, libc::EPOLLIN | libc::EPOLLET)?;
                }
                Connections::Short => {}
            }
        }
        if client.is_paced() && !options.spin {
            let timer =
                timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
            wire.epoll.control(libc::EPOLL_CTL_ADD, timer.as_raw_fd(), TIMER, libc::EPOLLIN)?;
            wire.timer = Some(timer);
        }
        Ok(wire)
    }

    fn watch(&mut self, index: usize, socket: ClientSocket, events: i32) -> io::Result<()> {
        self.epoll.control(libc::EPOLL_CTL_ADD, socket.as_raw_fd(), index as u64, events)?;
        self.slots[index].watches_output = events & libc::EPOLLOUT != 0;
        self.slots[index].socket = Some(socket);
        Ok(())
    }

    fn wait(&mut self, events: &mut [libc::epoll_event], client: &Client<'_>) -> io::Result<usize> {
        let time = client.wait();
        let milliseconds = if time.is_zero() { 0 } else { super::CHECK_INTERVAL.as_millis() as i32 };
        if let Some(timer) = self.timer.as_ref().filter(|_| !time.is_zero()) {
            arm(timer, time)?;
        }
        Ok(self.epoll.wait(events, milliseconds)?.len())
    }

    /// Sends what is left of the request.
    #[inline]
    fn flush(&mut self, index: usize) -> io::Result<()> {
        let slot = &mut self.slots[index];
        let Some(socket) = &slot.socket else { return Err(io::ErrorKind::NotConnected.into()) };
        while slot.unsent > 0 {
            match socket.send(&self.request[self.request.len() - slot.unsent..]) {
                Ok(0) => {
                    if !std::mem::replace(&mut slot.watches_output, true) {
                        let events = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET;
                        let descriptor = socket.as_raw_fd();
                        self.epoll.control(libc::EPOLL_CTL_MOD, descriptor, index as u64, events)?;
                    }
                    return Ok(());
                }
                Ok(count) => slot.unsent -= count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Wire for Sockets<'_> {
    fn open(&mut self, index: usize) -> io::Result<()> {
        if self.options.lifetime == Connections::Short {
            let socket = ClientSocket::new(&self.options.target)?;
            socket.connect()?;
            self.slots[index].unsent = self.request.len();
            return self.watch(index, socket, libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET);
        }
        if let Some(socket) = &self.slots[index].socket {
            socket.connect()?;
        }
        self.send(index)
    }

    #[inline]
    fn send(&mut self, index: usize) -> io::Result<()> {
        self.slots[index].unsent = self.request.len();
        self.flush(index)
    }

    fn close(&mut self, index: usize) -> io::Result<()> {
        let slot = &mut self.slots[index];
        slot.unsent = 0;
        match (self.options.lifetime, &slot.socket) {
            (Connections::Reset(_), Some(socket)) => socket.reset(),
            _ => {
                slot.socket = None;
                Ok(())
            }
        }
    }
}

/// Lets the timer expire in this time, once; what it had to report is gone.
fn arm(timer: &OwnedFd, time: Duration) -> io::Result<()> {
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    let once =
        Itimerspec { it_interval: none, it_value: Timespec::try_from(time).map_err(io::Error::other)? };
    timerfd_settime(timer.as_fd(), TimerfdTimerFlags::empty(), &once)?;
    Ok(())
}

/// The name of the timer's events; connections have their places.
const TIMER: u64 = u64::MAX;
