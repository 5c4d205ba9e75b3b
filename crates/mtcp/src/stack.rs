//! A stack: a TCP and its sockets, the device below, and the turn that moves packets between them. One thread
//! uses it at a time: the one that calls its context, or one of its own (`threaded`).

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use packet::group::{Foreign, Queue};
use packet::ports::{LearnError, Ports};
use packet::{Batch, pump};
use tcp::sockets::{Options, Socket, Sockets};
use tcp::{Config, Host, Time};

use crate::carrier::{Carrier, Waiter};
use crate::config::Conf;
use crate::errno::{AGAIN, Errno, say};
use crate::idle::Idle;

/// Memory for packets on their way in, and as much for those on their way out.
const BATCH_BYTES: usize = 256 << 10;

/// A program that polls without waiting has packets moved at most this often.
const TURN_MIN: Duration = Duration::from_micros(100);

/// How long a device that takes no packets is left alone.
const BUSY_WAIT: Duration = Duration::from_millis(1);

/// How long a stack that ends sends what was written.
pub(crate) const LINGER: Duration = Duration::from_secs(1);

/// And a little longer, so that resets are sent.
const END: Duration = LINGER.saturating_add(Duration::from_millis(5));

pub(crate) struct Stack {
    pub(crate) sockets: Sockets,
    addresses: Vec<IpAddr>,
    /// Where the device has several queues.
    ports: Option<Ports>,
    carrier: Box<dyn Carrier>,
    received: Batch,
    to_send: Batch,
    last_turn: Time,
    /// It reads its queue.
    there: bool,
    /// A turn brought packets, or did what was due.
    moved: bool,
    idle: Option<Idle>,
}

impl Stack {
    /// With at most `sockets` of them open.
    pub(crate) fn new(
        carrier: Box<dyn Carrier>,
        config: Config,
        conf: &Conf,
        sockets: usize,
        ports: Option<Ports>,
        seed: [u8; 32],
    ) -> Stack {
        let addresses = config.addresses.iter().map(|prefix| prefix.address).collect();
        Stack {
            sockets: Sockets::new(Host::new(config, seed), sockets),
            addresses,
            ports,
            last_turn: carrier.now(),
            there: false,
            carrier,
            received: Batch::new(BATCH_BYTES),
            to_send: Batch::new(BATCH_BYTES),
            moved: false,
            idle: Idle::new(conf),
        }
    }

    /// It reads its queue from now on, and those that no other stack reads.
    pub(crate) fn join(&mut self) {
        self.there = true;
        if let Some(queue) = self.carrier.queue() {
            queue.join();
        }
    }

    /// It reads its queue no more: another one does.
    pub(crate) fn leave(&mut self) {
        self.there = false;
        if let Some(queue) = self.carrier.queue() {
            queue.leave();
        }
    }

    pub(crate) fn is_there(&self) -> bool {
        self.there
    }

    pub(crate) fn now(&self) -> Time {
        self.carrier.now()
    }

    /// Moves packets both ways, without sleeping. What arrives is acknowledged with the program's
    /// answer in the next turn, or before the thread sleeps.
    pub(crate) fn turn(&mut self) -> Result<(), Errno> {
        let now = self.now();
        self.send(now);
        self.receive(now)?;
        self.advance(now);
        Ok(())
    }

    /// Does what is due.
    pub(crate) fn advance(&mut self, now: Time) {
        self.last_turn = now;
        self.moved |= self.sockets.deadline().is_some_and(|due| due <= now);
        self.sockets.advance(now);
        if let Some(idle) = &mut self.idle {
            self.moved |= idle.check(now, &mut self.sockets);
        }
    }

    /// Whether a turn was a short time ago: another one is not worth it for a program that polls.
    pub(crate) fn has_just_turned(&self) -> bool {
        self.now().since(self.last_turn) < TURN_MIN
    }

    fn receive(&mut self, now: Time) -> Result<(), Errno> {
        self.received.clear();
        self.carrier.receive(&mut self.received)?;
        self.moved |= !self.received.is_empty();
        let Stack { sockets, received, .. } = self;
        let Some(queue) = self.carrier.queue() else {
            sockets.input(now, received.frames());
            return Ok(());
        };
        let foreign = &mut Foreign::default();
        let pass_on = |frame| foreign.count(queue.pass_on(frame, queue.number()));
        sockets.input_shared(now, received.frames(), pass_on);
        if queue.may_receive_from_group() {
            queue.receive_from_group(received, foreign, |frames, pass_on| {
                sockets.input_shared(now, frames, pass_on);
            })?;
            self.moved |= !received.is_empty() || foreign.received > 0;
        }
        Ok(())
    }

    fn send(&mut self, now: Time) {
        // What a broken device does not send is lost; receiving says what is wrong with it.
        let _ = pump::send(now, &mut self.sockets, &mut *self.carrier, &mut self.to_send);
    }

    /// Sends what there is before a sleep. Returns for how long to sleep at most: the stack has something to do
    /// then, or this limit has passed.
    pub(crate) fn before_sleep(&mut self, limit: Option<Duration>) -> Option<Duration> {
        let now = self.now();
        self.send(now);
        let idle = self.idle.as_ref().filter(|_| self.sockets.open() > 0).map(Idle::next);
        let due = [self.sockets.deadline(), idle].into_iter().flatten().min().map(|at| at.since(now));
        let more = self.sockets.host().has_output() || !self.to_send.is_empty();
        let retry = more.then_some(BUSY_WAIT);
        // What is left of the other stacks' packets was announced already.
        let passed = self.carrier.queue().is_some_and(|queue| queue.has_passed()).then_some(Duration::ZERO);
        [limit, due, retry, passed].into_iter().flatten().min()
    }

    /// How a thread sleeps for this stack, and is woken.
    pub(crate) fn waiter(&self) -> Waiter {
        self.carrier.waiter()
    }

    /// Whether the last turns moved anything that another thread may wait for.
    pub(crate) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    /// Prepares connections to this peer, from the address or from the first one of its family.
    pub(crate) fn prepare(&mut self, local: IpAddr, remote: SocketAddr) -> Result<(), Errno> {
        let local = self.own_address(local, remote).ok_or(Errno(libc::EADDRNOTAVAIL))?;
        if let Some(ports) = &mut self.ports {
            ports.find_any(local, remote, Some, say_once);
        }
        Ok(())
    }

    fn own_address(&self, local: IpAddr, remote: SocketAddr) -> Option<IpAddr> {
        let family = |address: &&IpAddr| address.is_ipv4() == remote.is_ipv4();
        let wanted = |address: &&IpAddr| local.is_unspecified() || **address == local;
        self.addresses.iter().filter(family).find(wanted).copied()
    }

    /// Begins a connection: from a port whose answers come here, unless the program has bound one.
    pub(crate) fn connect(&mut self, socket: Socket, remote: SocketAddr) -> Result<(), Errno> {
        let any: IpAddr = match remote {
            SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        let bound = self.sockets.local_address(socket).unwrap_or(SocketAddr::new(any, 0));
        let now = self.now();
        let meant = remote.port() != 0 && !remote.ip().is_unspecified() && bound.port() == 0;
        let local = self.own_address(bound.ip(), remote).filter(|_| meant);
        let (Some(local), Some(ports)) = (local, &mut self.ports) else {
            return self.sockets.connect(now, socket, remote).map_err(|error| match error {
                tcp::sockets::Errno::NotAvailable if meant => AGAIN,
                error => error.into(),
            });
        };
        let sockets = &mut self.sockets;
        let take = |port| match sockets.connect_from(now, socket, Some(SocketAddr::new(local, port)), remote)
        {
            Err(tcp::sockets::Errno::NotAvailable) => None,
            result => Some(result),
        };
        // As mTCP says when it has no port left.
        Ok(ports.find_any(local, remote, take, say_once).ok_or(AGAIN)??)
    }

    /// Resets a connection, and closes its socket.
    pub(crate) fn abort(&mut self, socket: Socket) -> Result<(), tcp::sockets::Errno> {
        // Of one that never was a connection there is nothing to reset.
        self.sockets.info(socket)?;
        let now = self.now();
        let options = Options { linger: Some(Duration::ZERO), ..self.sockets.options(socket)? };
        self.sockets.set_options(now, socket, options)?;
        self.sockets.close(now, socket)
    }

    /// Gives the queue of the TUN device back. Another stack resets the connections that are left.
    pub(crate) fn into_queue(mut self) -> Option<Queue> {
        self.leave();
        self.carrier.into_queue()
    }

    /// Closes everything, and sends what was written for a second at most, counted from `begin`.
    pub(crate) fn drain(&mut self, begin: Instant) {
        let now = self.now();
        let open: Vec<_> = self.sockets.sockets().collect();
        for socket in open {
            let options = self.sockets.options(socket).unwrap_or_default();
            let linger = Some(options.linger.unwrap_or(LINGER).min(LINGER));
            let _ = self.sockets.set_options(now, socket, Options { linger, ..options });
            let _ = self.sockets.close(now, socket);
        }
        while self.turn().is_ok() && self.owes() && begin.elapsed() < END {
            let timeout = self.before_sleep(Some(END.saturating_sub(begin.elapsed())));
            match self.waiter().wait(timeout) {
                Ok(_) | Err(Errno(libc::EINTR)) => {}
                Err(_) => break,
            }
        }
    }

    /// Whether a peer has not acknowledged all that was written, or the end of the stream.
    fn owes(&self) -> bool {
        self.sockets.host().has_output() || self.sockets.host().live_flows().next().is_some()
    }
}

/// One line for the process, however many contexts it has.
fn say_once(error: &LearnError) {
    static SAID: std::sync::Once = std::sync::Once::new();
    SAID.call_once(|| say(error));
}
