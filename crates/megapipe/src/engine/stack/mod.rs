//! TCP in user space as an engine: it stands beside a kernel engine, which waits for its
//! devices, and owns the requests of its own sockets.
//!
//! A turn of it comes before and after the kernel engine's: packets to be sent leave before the
//! channel sleeps, and packets that ended the sleep are read after it. A packet that leads to a
//! completion is acknowledged in the next turn, with the program's answer where there is one.

mod accepts;
mod calls;
mod options;
mod port;
mod signal;
mod transfers;

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tcp::{Event, Failure, Flow, Listener, Ready, Time};

use super::beside::{Beside, Engines};
use super::sockets::Opening;
use super::view::{FileView, View};
use super::watch::Watch;
use super::{Done, Engine, Request, Wait};
use crate::buffer::Pool;
use crate::core::OpKind;
use crate::error::AttachError;
use crate::id::{Handle, OpId};
use crate::slab::Slab;

use self::options::Options;
pub use self::port::Stack;
use self::port::{Port, Received};
use self::signal::Signal;

/// Rounds of sending and receiving that may follow each other in a turn.
const ROUNDS: usize = 4;

/// How long the channel sleeps at most while a device takes no packets or cannot be watched.
const RETRY: Duration = Duration::from_millis(1);

/// How long a channel that is dropped waits for acknowledgements of what it wrote.
const LINGER: Duration = Duration::from_secs(1);

/// Sockets of all stacks; each stack has a smaller bound of its own (`tcp::Limits`).
const SOCKETS_MAX: u32 = 1 << 24;

/// The stacks of a channel and their sockets.
pub(crate) struct Stacks {
    ports: Vec<Port>,
    sockets: Slab<Socket>,
    pool: Rc<Pool>,
    /// Handles that had their share of a turn and were not finished.
    ready: VecDeque<Handle>,
    /// Handles with something to read for which there was no buffer.
    dry: VecDeque<Handle>,
    origin: Instant,
    now: Time,
}

struct Socket {
    /// Its place in `Stacks::ports`.
    port: u8,
    of: Of,
    /// The handle that it was last used through, as long as it has one.
    handle: Option<u32>,
    connecting: Option<OpId>,
    reset_on_close: bool,
    options: Options,
    /// Reading was shut down: no more bytes are received.
    read_ended: bool,
    /// A read or write has reported that the connection failed.
    failure_reported: bool,
    in_ready: bool,
    in_dry: bool,
}

#[derive(Clone, Copy)]
enum Of {
    /// To be connected.
    Nothing,
    Listener(Listener),
    Flow(Flow),
}

impl Socket {
    fn new(port: u8, of: Of) -> Socket {
        Socket {
            port,
            of,
            handle: None,
            connecting: None,
            reset_on_close: false,
            options: Options::default(),
            read_ended: false,
            failure_reported: false,
            in_ready: false,
            in_dry: false,
        }
    }
}

impl Engines {
    /// Gives the channel a stack of its own, whose device is watched from here on.
    pub(crate) fn attach(&mut self, view: &mut View<'_>, stack: Stack) -> Result<(), AttachError> {
        let beside = match &mut self.beside {
            Some(beside) => beside,
            None => {
                let pool = view.make_stack_pool()?;
                self.beside.insert(Box::new(Stacks::new(pool)))
            }
        };
        beside.attach(&mut *self.kernel, stack)
    }
}

impl Stacks {
    fn new(pool: Rc<Pool>) -> Stacks {
        Stacks {
            ports: Vec::new(),
            sockets: Slab::new(SOCKETS_MAX),
            pool,
            ready: VecDeque::new(),
            dry: VecDeque::new(),
            origin: Instant::now(),
            now: Time::default(),
        }
    }

    fn clock(&self) -> Time {
        Time::from_micros(self.origin.elapsed().as_micros() as u64)
    }

    /// Does all that needs no waiting, as long as packets follow each other and there is
    /// nothing to deliver.
    fn pump(&mut self, view: &mut View<'_>) {
        self.now = self.clock();
        for _ in 0..ROUNDS {
            self.run_requests(view);
            self.go_on(view);
            self.advance(view);
            self.send(view);
            if self.receive(view) == 0 {
                return;
            }
            self.take_events(view);
            if view.has_results() {
                return;
            }
        }
    }

    /// Sends what is due, on every device.
    fn send(&mut self, view: &mut View<'_>) {
        for port in &mut self.ports {
            let sent = port.send(self.now);
            view.count_calls(if port.is_polled() { 0 } else { sent });
            view.count_packets(0, sent, 0);
        }
    }

    /// Takes a batch of packets of each device; returns their number.
    fn receive(&mut self, view: &mut View<'_>) -> u64 {
        let mut all = 0;
        for port in &mut self.ports {
            let Received { packets, unowned, calls, foreign } = port.receive(self.now);
            view.count_calls(calls);
            view.count_packets(packets, 0, unowned);
            view.count_foreign(foreign);
            all += packets + foreign.received;
        }
        all
    }

    fn advance(&mut self, view: &mut View<'_>) {
        for port in &mut self.ports {
            if port.host.deadline().is_some_and(|at| at <= self.now) {
                port.host.advance(self.now);
            }
        }
        self.take_events(view);
    }

    fn run_requests(&mut self, view: &mut View<'_>) {
        while let Some(request) = view.next_request() {
            match request {
                Request::Start(op) => self.start(view, op),
                Request::Writes(index) => self.write_queued(view, index),
                Request::Cancel(op) => self.cancel(view, op),
                Request::CancelWrites(index) => {
                    if is_held(view, index) {
                        view.report_write(index, -libc::ECANCELED, true);
                    }
                }
                Request::Close(index) => self.close(view, index),
                Request::Detach(index) => {
                    self.end_all(view, index);
                    if let Some(socket) = self.socket_mut(view, index) {
                        socket.handle = None;
                    }
                }
            }
        }
    }

    fn start(&mut self, view: &mut View<'_>, op: OpId) {
        // An operation whose cancel went ahead has ended.
        let Some(entry) = view.op(op).filter(|entry| entry.started) else { return };
        let index = entry.handle.index;
        match entry.kind {
            OpKind::Accept(_) => self.start_accept(view, op, index),
            OpKind::Connect(_) => self.start_connect(view, op, index),
            OpKind::Read { .. } | OpKind::ReadStream { .. } => self.start_read(view, op, index),
            OpKind::Shutdown(how) => {
                let result = self.shut_down(view, index, how);
                view.push_done(Done::plain(op, result));
                self.read_on(view, index);
            }
            OpKind::Write { .. } | OpKind::Disconnect(_) | OpKind::Timer { .. } | OpKind::Poll(_) => {}
        }
    }

    fn cancel(&mut self, view: &mut View<'_>, op: OpId) {
        let Some(entry) = view.op(op).filter(|entry| entry.started) else { return };
        let index = entry.handle.index;
        if let Some(socket) = self.socket_mut(view, index) {
            socket.connecting = socket.connecting.filter(|&connecting| connecting != op);
        }
        view.push_done(Done::plain(op, -libc::ECANCELED));
    }

    /// Ends every started operation of the handle.
    fn end_all(&mut self, view: &mut View<'_>, index: u32) {
        if let Some(op) = self.socket_mut(view, index).and_then(|socket| socket.connecting.take()) {
            view.push_done(Done::plain(op, -libc::ECANCELED));
        }
        // Of a listener, its accept.
        if let Some(op) = view.started_read(index) {
            view.push_done(Done::plain(op, -libc::ECANCELED));
        }
        if is_held(view, index) {
            view.report_write(index, -libc::ECANCELED, false);
        }
    }

    fn close(&mut self, view: &mut View<'_>, index: u32) {
        let socket = view.file(index).and_then(FileView::stack_socket);
        self.end_all(view, index);
        drop(view.take_file(index));
        if let Some(socket) = socket {
            self.close_socket(socket);
        }
    }

    fn close_socket(&mut self, socket: u32) {
        let Some(Socket { port, of, reset_on_close, .. }) = self.sockets.remove(socket) else { return };
        let Port { host, listeners, .. } = &mut self.ports[usize::from(port)];
        match of {
            Of::Nothing => {}
            Of::Listener(listener) => {
                listeners.retain(|known| known.listener != listener);
                host.unlisten(self.now, listener);
            }
            Of::Flow(flow) if reset_on_close => host.abort(self.now, flow),
            Of::Flow(flow) => host.close(self.now, flow),
        }
    }

    /// The handle's socket; stores the handle in it.
    fn socket_mut(&mut self, view: &View<'_>, index: u32) -> Option<&mut Socket> {
        let socket = view.file(index).and_then(FileView::stack_socket)?;
        let socket = self.sockets.at_mut(socket)?;
        socket.handle = Some(index);
        Some(socket)
    }

    /// The handle's connection and its place in `ports`.
    fn flow_of(&mut self, view: &View<'_>, index: u32) -> Option<(usize, Flow)> {
        match self.socket_mut(view, index)? {
            Socket { port, of: Of::Flow(flow), .. } => Some((usize::from(*port), *flow)),
            _ => None,
        }
    }

    fn take_events(&mut self, view: &mut View<'_>) {
        for port in 0..self.ports.len() {
            while let Some(event) = self.ports[port].host.event() {
                match event {
                    Event::Flow { flow, owner, ready } => self.follow(view, flow, owner, ready),
                    Event::Incoming(listener) => self.follow_listener(view, port, listener),
                    // No listener of a channel asks.
                    Event::Ask { .. } => {}
                }
            }
        }
    }

    fn follow(&mut self, view: &mut View<'_>, flow: Flow, owner: u32, ready: Ready) {
        let Some(&mut Socket { of: Of::Flow(known), handle: Some(index), .. }) = self.sockets.at_mut(owner)
        else {
            return;
        };
        if known != flow {
            return;
        }
        if ready.has(Ready::CONNECTED) || ready.has(Ready::FAILED) {
            self.finish_connect(view, index);
        }
        if ready.has(Ready::READABLE) || ready.has(Ready::END) || ready.has(Ready::FAILED) {
            self.read_on(view, index);
        }
        if ready.has(Ready::WRITABLE) || ready.has(Ready::CONNECTED) || ready.has(Ready::FAILED) {
            self.write_held(view, index);
        }
    }

    /// Goes on with the handles that had their share of an earlier turn, and with those that
    /// waited for a buffer.
    fn go_on(&mut self, view: &mut View<'_>) {
        for _ in 0..self.ready.len() {
            let Some(handle) = self.ready.pop_front().filter(|&handle| view.is_live(handle)) else {
                continue;
            };
            if let Some(socket) = self.socket_mut(view, handle.index) {
                socket.in_ready = false;
            }
            self.accept_on(view, handle.index);
            self.read_on(view, handle.index);
        }
        // One buffer for each that waits before any gets a second.
        while self.pool.free_count() > 0 {
            let Some(handle) = self.dry.pop_front() else { return };
            if !view.is_live(handle) {
                continue;
            }
            if let Some(socket) = self.socket_mut(view, handle.index) {
                socket.in_dry = false;
            }
            self.read_one(view, handle.index);
        }
    }

    /// Has the handle go on in the next turn, without sleeping before.
    fn continue_later(&mut self, view: &View<'_>, index: u32) {
        let name = view.name_of(index);
        if let Some(socket) = self.socket_mut(view, index)
            && !std::mem::replace(&mut socket.in_ready, true)
        {
            self.ready.push_back(name);
        }
    }

    /// Has the handle go on when a buffer is free.
    fn wait_for_buffer(&mut self, view: &View<'_>, index: u32) {
        let name = view.name_of(index);
        if let Some(socket) = self.socket_mut(view, index)
            && !std::mem::replace(&mut socket.in_dry, true)
        {
            self.dry.push_back(name);
        }
    }

    /// Whether there is something to do before the channel may sleep.
    fn is_busy(&self) -> bool {
        let waits_for_buffer = !self.dry.is_empty() && self.pool.free_count() > 0;
        !self.ready.is_empty() || waits_for_buffer || self.ports.iter().any(Port::may_receive)
    }

    /// How long the kernel engine's turn may wait.
    fn cut(&self, wait: Wait) -> Wait {
        let Wait::For(limit) = wait else { return wait };
        if self.is_busy() {
            return Wait::No;
        }
        let deadline = self.ports.iter().filter_map(|port| port.host.deadline()).min();
        let retry = self.ports.iter().any(Port::must_retry).then_some(RETRY);
        sleep_until(self.clock(), deadline, [limit, retry])
    }
}

/// Until the deadline, or for the least of these times. No sleep where it would be over at once.
fn sleep_until(now: Time, deadline: Option<Time>, limits: [Option<Duration>; 2]) -> Wait {
    let due = deadline.map(|at| at.since(now));
    match limits.into_iter().chain([due]).flatten().min() {
        Some(Duration::ZERO) => Wait::No,
        least => Wait::For(least),
    }
}

impl Beside for Stacks {
    fn turn(&mut self, kernel: &mut dyn Engine, view: &mut View<'_>, wait: Wait) -> io::Result<()> {
        self.pump(&mut view.of_stacks());
        for port in &mut self.ports {
            port.watch(kernel);
        }
        let result = kernel.turn(view, self.cut(wait));
        let mut again = view.has_stack_requests();
        for port in &mut self.ports {
            again |= port.note_raised(view);
        }
        let now = self.clock();
        again |= self.ports.iter().any(|port| port.host.deadline().is_some_and(|at| at <= now));
        // With results, packets would leave before the answers that can carry their acknowledgements.
        if again && !view.has_results() {
            self.pump(&mut view.of_stacks());
        }
        result
    }

    fn owns(&self, opening: Opening) -> bool {
        self.port_for(opening).is_some()
    }

    fn close_dropped(&mut self, sockets: &[u32]) {
        for &socket in sockets {
            self.close_socket(socket);
        }
    }

    fn drain(&mut self) {
        self.now = self.clock();
        for port in &mut self.ports {
            port.drain(self.now, LINGER);
        }
    }

    fn attach(&mut self, kernel: &mut dyn Engine, stack: Stack) -> Result<(), AttachError> {
        let number = self.ports.len();
        let (device, group) =
            Watch::of_stack(number).zip(Watch::of_group(number)).ok_or(AttachError::TooMany)?;
        let mut port = Port::new(stack, Signal::new(device), Signal::new(group))?;
        port.begin_watch(kernel)?;
        self.ports.push(port);
        Ok(())
    }
}

fn is_held(view: &View<'_>, index: u32) -> bool {
    view.file(index).is_some_and(FileView::is_write_held)
}

fn errno_of(failure: Failure) -> i32 {
    match failure {
        Failure::Refused => libc::ECONNREFUSED,
        Failure::Reset => libc::ECONNRESET,
        Failure::TimedOut => libc::ETIMEDOUT,
        Failure::Unreachable => libc::EHOSTUNREACH,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A time that may be absent, and is often as short as others.
    fn limits() -> impl Strategy<Value = [Option<Duration>; 2]> {
        let limit = prop_oneof![0..5u64, 0..10_000_000u64].prop_map(Duration::from_micros);
        [proptest::option::of(limit.clone()), proptest::option::of(limit)]
    }

    proptest! {
        /// A turn is over when the first deadline is due: not later, and not so early that the next one
        /// would have to spin.
        #[test]
        fn sleeps_end_at_the_first_deadline(
            begin in 0..1u64 << 40,
            due in proptest::option::of(0..10_000_000u64),
            limits in limits(),
        ) {
            let now = Time::from_micros(begin);
            let deadline = due.map(|micros| Time::from_micros(begin + micros));
            let least = limits.into_iter().flatten().chain(due.map(Duration::from_micros)).min();
            match sleep_until(now, deadline, limits) {
                Wait::For(None) => prop_assert_eq!(least, None),
                Wait::For(Some(sleep)) => {
                    prop_assert!(!sleep.is_zero());
                    prop_assert_eq!(Some(sleep), least);
                    prop_assert!(deadline.is_none_or(|at| now.after(sleep) <= at));
                }
                wait => prop_assert_eq!((wait, least), (Wait::No, Some(Duration::ZERO))),
            }
        }

        /// One that has passed is due at once.
        #[test]
        fn nothing_sleeps_past_a_deadline(begin in 1..1u64 << 40, late in 1..1_000_000u64, limits in limits()) {
            let deadline = Time::from_micros(begin.saturating_sub(late));
            prop_assert_eq!(sleep_until(Time::from_micros(begin), Some(deadline), limits), Wait::No);
        }
    }
}
