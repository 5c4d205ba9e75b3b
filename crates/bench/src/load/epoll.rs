//! The client on epoll. Connections that are reset keep their socket, which is registered once,
//! edge-triggered; so is a short one, for the end of connect(2) and for its answer.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use socket2::{SockAddr, Socket};

use super::client::{Arrival, Wire};
use super::{CHECK_INTERVAL, Connections, Options, socket};
use crate::epoll::Epoll;

/// The sockets of a thread's connections.
pub(super) struct Sockets {
    lifetime: Connections,
    address: SockAddr,
    request: Vec<u8>,
    epoll: Epoll,
    slots: Vec<Slot>,
    /// For open loops: epoll_wait(2) alone counts whole milliseconds.
    timer: Option<OwnedFd>,
    events: Vec<libc::epoll_event>,
    /// Those of the last wait that are to be acted on.
    pending: VecDeque<libc::epoll_event>,
    room: Vec<u8>,
    received: usize,
}

#[derive(Default)]
struct Slot {
    socket: Option<Socket>,
    /// How much of the request the socket did not take yet.
    unsent: usize,
}

impl Sockets {
    fn watch(&mut self, index: usize, socket: Socket) -> io::Result<()> {
        let events = match self.lifetime {
            Connections::Kept => libc::EPOLLIN,
            _ => libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET,
        };
        self.epoll.control(libc::EPOLL_CTL_ADD, socket.as_raw_fd(), index as u64, events)?;
        self.slots[index].socket = Some(socket);
        Ok(())
    }

    /// Sends what is left of the request.
    #[inline]
    fn flush(&mut self, index: usize) -> io::Result<()> {
        let slot = &mut self.slots[index];
        let Some(socket) = &slot.socket else { return Ok(()) };
        while slot.unsent > 0 {
            match socket::send(socket, &self.request[self.request.len() - slot.unsent..])? {
                // Nothing would say when there is room again.
                0 if self.lifetime == Connections::Kept => return Err(io::ErrorKind::WriteZero.into()),
                0 => return Ok(()),
                count => slot.unsent -= count,
            }
        }
        Ok(())
    }
}

impl Wire for Sockets {
    fn new(options: &Options, connections: usize) -> io::Result<Self> {
        let mut wire = Self {
            lifetime: options.lifetime,
            address: options.target.address()?,
            request: options.request.bytes(),
            epoll: Epoll::new()?,
            slots: (0..connections).map(|_| Slot::default()).collect(),
            timer: None,
            events: vec![libc::epoll_event { events: 0, u64: 0 }; 512],
            pending: VecDeque::new(),
            room: vec![0; 16 << 10],
            received: 0,
        };
        for index in 0..connections {
            let socket = match options.lifetime {
                Connections::Kept => socket::connected(&options.target, socket::PATIENCE)?,
                Connections::Reset(_) => socket::reconnecting(&wire.address)?,
                Connections::Short => break,
            };
            socket.set_nonblocking(true)?;
            wire.watch(index, socket)?;
        }
        if options.rate.is_some() && !options.spin {
            let timer =
                timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
            wire.epoll.control(libc::EPOLL_CTL_ADD, timer.as_raw_fd(), TIMER, libc::EPOLLIN)?;
            wire.timer = Some(timer);
        }
        Ok(wire)
    }

    fn open(&mut self, index: usize) -> io::Result<()> {
        if self.lifetime == Connections::Short {
            let socket = socket::unconnected(&self.address)?;
            socket::connect(&socket, &self.address)?;
            self.slots[index].unsent = self.request.len();
            return self.watch(index, socket);
        }
        if let Some(socket) = &self.slots[index].socket {
            socket::connect(socket, &self.address)?;
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
        match (self.lifetime, &slot.socket) {
            (Connections::Reset(_), Some(socket)) => socket::reset(socket),
            _ => {
                slot.socket = None;
                Ok(())
            }
        }
    }

    fn wait(&mut self, time: Duration) -> io::Result<()> {
        let milliseconds = if time.is_zero() { 0 } else { CHECK_INTERVAL.as_millis() as i32 };
        if let Some(timer) = self.timer.as_ref().filter(|_| !time.is_zero()) {
            let it_value = Timespec::try_from(time).map_err(io::Error::other)?;
            let once = Itimerspec { it_interval: Timespec::default(), it_value };
            timerfd_settime(timer, TimerfdTimerFlags::empty(), &once)?; // what it had to report is gone
        }
        self.pending.extend(self.epoll.wait(&mut self.events, milliseconds)?.iter());
        Ok(())
    }

    #[inline]
    fn next(&mut self) -> io::Result<Option<Arrival>> {
        while let Some(event) = self.pending.pop_front() {
            let (events, index) = (event.events as i32, event.u64 as usize);
            if event.u64 == TIMER {
                continue; // of which no more is to be known
            }
            if let Err(error) = self.flush(index) {
                return Ok(Some((index, Err(error))));
            }
            let Some(mut socket) = self.slots[index].socket.as_ref() else { continue };
            if events & !libc::EPOLLOUT == 0 {
                continue;
            }
            let received = match socket.read(&mut self.room) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                received => received,
            };
            self.received = received.as_ref().copied().unwrap_or_default();
            // A read that does not fill the room leaves nothing, but perhaps an end, which no other event would report.
            let may_leave = self.received == self.room.len() || events & libc::EPOLLRDHUP != 0;
            if self.received > 0 && may_leave {
                self.pending.push_front(event);
            }
            return Ok(Some((index, received)));
        }
        Ok(None)
    }

    fn bytes(&self) -> &[u8] {
        &self.room[..self.received]
    }
}

/// The name of the timer's events; connections have their places.
const TIMER: u64 = u64::MAX;
