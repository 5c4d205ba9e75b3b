//! One stack: a host, the device that carries its packets, and the state of the device.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use packet::group::{Foreign, Queue};
use packet::ports::{LearnError, Ports};
use packet::tun::FRAME_MAX;
use packet::{Batch, Capabilities, Device, pump};
use tcp::{Config, ConnectError, Flow, Host, Listener, Prefix, Reason, Time};

use super::signal::Signal;
use crate::engine::Engine;
use crate::engine::view::View;

/// Memory for packets on their way in, and as much for those on their way out: three frames of
/// the largest size, or a batch of small ones.
const BATCH_BYTES: usize = 256 << 10;

/// Longest sleep of a channel that is being dropped, for devices that cannot be watched.
const DRAIN_STEP: Duration = Duration::from_millis(5);

/// A TCP of this channel's own: addresses, and the device that carries their packets. **Experimental.**
///
/// Sockets on its addresses are made by [`crate::Channel::listen_on`] and
/// [`crate::Channel::connect_to`], once it is [attached](crate::Channel::attach). It answers only
/// while its channel is dispatched.
pub struct Stack {
    device: Box<dyn Carrier>,
    networks: Vec<Prefix>,
    config: Config,
}

impl Stack {
    /// A stack on a device that can be polled, such as [`packet::tun::Tun`]. Each of `networks` is an
    /// address of the stack, with the length of the prefix that is reached through the device.
    pub fn new(device: impl Device + AsFd + 'static, networks: Vec<Prefix>) -> Stack {
        Stack::over(Box::new(Watched(device)), networks)
    }

    /// A stack on a device without a descriptor, such as [`packet::link::Link`]. It is asked for
    /// packets in every turn, and ends no sleep.
    pub fn polled(device: impl Device + 'static, networks: Vec<Prefix>) -> Stack {
        Stack::over(Box::new(Polled(device)), networks)
    }

    /// A stack on one of the queues of a device, for a thread of its own: see
    /// [`TunNetwork::open_queues`](crate::TunNetwork::open_queues).
    pub fn on_queue(queue: Queue, networks: Vec<Prefix>) -> Stack {
        Stack::over(Box::new(queue), networks)
    }

    fn over(device: Box<dyn Carrier>, networks: Vec<Prefix>) -> Stack {
        let addresses = networks.iter().map(|network| Prefix::one(network.address)).collect();
        let config = Config::new(addresses, device.capabilities());
        Stack { device, networks, config }
    }

    /// Bounds and times of the TCP, to be changed before the stack is attached.
    pub fn config(&mut self) -> &mut Config {
        &mut self.config
    }
}

/// A device, with its descriptor if it has one.
trait Carrier: Device {
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Its place in a group, if it shares a device with others.
    fn queue(&mut self) -> Option<&mut Queue> {
        None
    }

    /// Readable when there is something from the others of the group.
    fn group_descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Carrier for Queue {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn queue(&mut self) -> Option<&mut Queue> {
        Some(self)
    }

    fn group_descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.signal())
    }
}

struct Watched<D>(D);

struct Polled<D>(D);

impl<D: Device + AsFd> Carrier for Watched<D> {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

impl<D: Device> Carrier for Polled<D> {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Passes a device's calls on.
macro_rules! pass_on {
    ($($wrapper:ident)*) => {
        $(impl<D: Device> Device for $wrapper<D> {
            fn capabilities(&self) -> Capabilities {
                self.0.capabilities()
            }

            fn receive(&mut self, batch: &mut Batch) -> io::Result<usize> {
                self.0.receive(batch)
            }

            fn send(&mut self, batch: &mut Batch) -> io::Result<usize> {
                self.0.send(batch)
            }
        })*
    };
}
pass_on!(Watched Polled);

/// A listener of a stack.
pub(super) struct Listening {
    pub(super) listener: Listener,
    pub(super) socket: u32,
    pub(super) address: SocketAddr,
}

/// The result of one batch.
#[derive(Default)]
pub(super) struct Received {
    pub(super) packets: u64,
    /// Segments that belong to no connection or listener.
    pub(super) unowned: u64,
    pub(super) calls: u64,
    pub(super) foreign: Foreign,
}

pub(super) struct Port {
    pub(super) host: Host,
    /// Its listeners and their sockets; `tcp::Limits` has few.
    pub(super) listeners: Vec<Listening>,
    device: Box<dyn Carrier>,
    networks: Vec<Prefix>,
    /// Those to connect from, on one of several queues.
    ports: Option<Ports>,
    /// Of the device.
    signal: Signal,
    /// Of the other stacks on it.
    group: Signal,
    /// Packets wait because the device accepted no more.
    busy: bool,
    /// An error of the device was logged.
    logged: bool,
    received: Batch,
    to_send: Batch,
}

impl Port {
    pub(super) fn new(mut stack: Stack, signal: Signal, group: Signal) -> io::Result<Port> {
        let mut seed = [0; 32];
        sys::random::fill(&mut seed)?;
        Ok(Port {
            host: Host::new(stack.config, seed),
            listeners: Vec::new(),
            ports: stack.device.queue().and_then(|queue| queue.ports()),
            device: stack.device,
            networks: stack.networks,
            signal,
            group,
            busy: false,
            logged: false,
            received: Batch::new(BATCH_BYTES),
            to_send: Batch::new(BATCH_BYTES),
        })
    }

    /// Whether it is an address of this stack.
    pub(super) fn owns(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.address == address)
    }

    /// Whether the address is reached through this stack's device.
    pub(super) fn reaches(&self, address: IpAddr) -> bool {
        !self.owns(address) && self.networks.iter().any(|network| network.contains(address))
    }

    /// Begins a connection; on one of several queues, from a port whose answers come to this one.
    pub(super) fn connect(&mut self, now: Time, to: SocketAddr) -> Result<Flow, ConnectError> {
        let (host, mut addresses) = (&mut self.host, self.networks.iter().map(|network| network.address));
        let local = addresses.find(|address| address.is_ipv4() == to.is_ipv4());
        if let (Some(local), Some(ports)) = (local, &mut self.ports) {
            let take = |port| match host.connect(now, Some(local), Some(port), to) {
                Err(ConnectError::InUse) => None,
                result => Some(result),
            };
            return ports.find_any(local, to, take, warn_once).unwrap_or(Err(ConnectError::InUse));
        }
        host.connect(now, None, None, to)
    }

    /// Whether the device has no descriptor to wait for.
    pub(super) fn is_polled(&self) -> bool {
        self.device.descriptor().is_none()
    }

    pub(super) fn begin_watch(&mut self, kernel: &mut dyn Engine) -> io::Result<()> {
        self.signal.begin(self.device.descriptor(), kernel)?;
        self.group.begin(self.device.group_descriptor(), kernel)?;
        if let Some(queue) = self.device.queue() {
            queue.join();
        }
        Ok(())
    }

    /// Has the next packet end the kernel engine's sleep.
    pub(super) fn watch(&mut self, kernel: &mut dyn Engine) {
        self.signal.watch(self.device.descriptor(), kernel);
        self.group.watch(self.device.group_descriptor(), kernel);
    }

    /// Whether the kernel engine reported packets, or may not have been asked to.
    pub(super) fn note_raised(&mut self, view: &mut View<'_>) -> bool {
        self.signal.note_raised(view);
        self.group.note_raised(view);
        self.may_receive()
    }

    /// Whether receiving may give something. A device without a descriptor reports nothing, and is
    /// asked in any case.
    pub(super) fn may_receive(&self) -> bool {
        self.signal.readable || self.group.readable
    }

    /// Whether the device has to be tried again after a while.
    pub(super) fn must_retry(&self) -> bool {
        self.busy
            || self.signal.is_missing(self.device.descriptor())
            || self.group.is_missing(self.device.group_descriptor())
    }

    /// Sends what the host has to send; returns how many packets that were.
    pub(super) fn send(&mut self, now: Time) -> u64 {
        if !self.busy && !self.host.has_output() {
            return 0;
        }
        let sent = pump::send(now, &mut self.host, &mut *self.device, &mut self.to_send);
        self.busy = !self.to_send.is_empty();
        sent.unwrap_or_else(|error| {
            self.say(&error);
            0
        }) as u64
    }

    /// Takes one batch of packets, and one of what the group has for it.
    pub(super) fn receive(&mut self, now: Time) -> Received {
        let before = self.host.refused(Reason::NoFlow);
        let mut received = Received::default();
        if self.signal.readable || self.is_polled() {
            self.received.clear();
            if let Err(error) = self.device.receive(&mut self.received) {
                self.say(&error);
            }
            self.signal.readable = self.received.room(FRAME_MAX).is_err();
            received.packets = self.received.len() as u64;
            // The last call found nothing, unless the batch is full.
            let calls = received.packets + u64::from(!self.signal.readable);
            received.calls = if self.is_polled() { 0 } else { calls };
            self.input(now, &mut received);
        }
        if self.group.readable {
            self.receive_from_group(now, &mut received);
        }
        received.unowned = self.host.refused(Reason::NoFlow) - before;
        received
    }

    /// Gives the host the packets that the kernel has sent to this stack.
    fn input(&mut self, now: Time, received: &mut Received) {
        if self.received.is_empty() {
            return;
        }
        let (host, frames) = (&mut self.host, self.received.frames());
        match self.device.queue() {
            None => host.input(now, frames),
            Some(queue) => host.input_shared(now, frames, |frame| {
                received.foreign.count(queue.pass_on(frame, queue.number()))
            }),
        }
    }

    /// Takes what other stacks have passed on, and packets of queues that they do not read.
    fn receive_from_group(&mut self, now: Time, received: &mut Received) {
        self.group.readable = false;
        let Some(queue) = self.device.queue() else { return };
        let (host, foreign) = (&mut self.host, &mut received.foreign);
        let more = queue.receive_from_group(&mut self.received, foreign, |frames, pass_on| {
            host.input_shared(now, frames, pass_on);
        });
        received.calls += 1 + self.received.len() as u64;
        received.packets += self.received.len() as u64;
        match more {
            Ok(more) => self.group.readable = more,
            Err(error) => self.say(&error),
        }
    }

    /// Closes all connections, and sends until all that was written is acknowledged; what is not
    /// within `linger` is reset.
    pub(super) fn drain(&mut self, now: Time, linger: Duration) {
        let begin = Instant::now();
        // Other stacks of the group get the connections that clients begin from here on.
        for Listening { listener, .. } in self.listeners.drain(..) {
            self.host.unlisten(now, listener);
        }
        let flows: Vec<_> = self.host.live_flows().collect();
        for flow in flows {
            self.host.close_within(now, flow, linger);
        }
        // A little later, so that the resets are sent.
        let end = linger + DRAIN_STEP;
        loop {
            let elapsed = begin.elapsed();
            let now = now.after(elapsed);
            self.signal.readable = true;
            self.group.readable = true;
            self.receive(now);
            self.host.advance(now);
            self.send(now);
            if elapsed > end || !self.has_unacknowledged() {
                return;
            }
            let due = self.host.deadline().map_or(end, |at| at.since(now));
            self.sleep(due.min(end - elapsed).max(Duration::from_millis(1)));
        }
    }

    /// Whether the peer has yet to acknowledge written bytes.
    fn has_unacknowledged(&self) -> bool {
        let mut infos = self.host.live_flows().filter_map(|flow| self.host.info(flow));
        infos.any(|info| info.unacknowledged > 0 || info.unsent > 0)
    }

    /// Until a packet comes, or for so long.
    fn sleep(&self, limit: Duration) {
        match self.device.descriptor() {
            // Packets of the group may come, too.
            Some(fd) if self.device.group_descriptor().is_some() => {
                drop(sys::socket::wait_readable(fd, limit.min(DRAIN_STEP)));
            }
            // A signal ends it early, which does no harm.
            Some(fd) => drop(sys::socket::wait_readable(fd, limit)),
            None => std::thread::sleep(limit.min(DRAIN_STEP)),
        }
    }

    #[cold]
    fn say(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.logged, true) {
            tracing::warn!("the device of a stack fails, and packets are lost: {error}");
        }
    }
}

/// One line for the process, however many stacks it has.
fn warn_once(error: &LearnError) {
    static LOGGED: std::sync::Once = std::sync::Once::new();
    LOGGED.call_once(|| tracing::warn!("{error}"));
}
