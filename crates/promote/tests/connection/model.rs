//! Two endpoints of a connection in one process, with real shared memory and a model of
//! the kernel connection: two bounded queues of bytes with FIN and RST.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;

use promote::{Connection, KernelEnd, Next, OtherLoop, OwnLoop, PeerLoop};
use ring::{Front, WakeUp};
use sys::mapping::SharedMapping;
use sys::memory_file::MemoryFile;

/// Bytes of a region: the smallest, so that rings are full soon.
const REGION: usize = 8 << 10;
/// Bytes that the kernel accepts from a sender before its receiver reads.
const KERNEL_ROOM: usize = 600;
const PAGE: usize = 4096;
const ECONNRESET: i32 = 104;

/// What an endpoint does next, or what the kernel does for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Maps the granted memory, if nothing is under way.
    Adopt,
    Send(usize),
    /// The kernel accepts some of the queued bytes.
    KernelAccepts(usize),
    /// The queued wake-up goes to the kernel, which has room for it or not.
    SendWakeUp,
    /// Reads this many bytes from the kernel.
    Fetch(usize),
    /// Consumes this many bytes.
    Consume(usize),
    /// Sleeps, waiting for wake-ups on this connection.
    SleepCold,
    /// Sleeps as a loop, with this connection hot.
    SleepHot,
    /// Wakes without a reason.
    Timer,
    /// Ends its direction behind what was sent.
    Shutdown,
    Close,
    Reset,
}

/// One direction of the kernel connection.
#[derive(Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    /// Bytes ever put in, and removed.
    put: u64,
    removed: u64,
    fin: bool,
}

struct Endpoint {
    connection: Option<Connection>,
    granted: Option<(SharedMapping, SharedMapping)>,
    own_loop: OwnLoop,
    other_loop: OtherLoop,
    /// Queued until the kernel has room.
    waiting: VecDeque<u8>,
    wake_up: bool,
    /// Read from the kernel and not consumed.
    fetched: VecDeque<u8>,
    /// Stream bytes that its program sent and read.
    sent: u64,
    got: u64,
    /// Through the kernel, before the connection was promoted.
    written: u64,
    consumed: u64,
    asleep: bool,
    shut: bool,
    closed: bool,
    /// Before the connection was promoted.
    kernel_end: Option<KernelEnd>,
    reported: Option<KernelEnd>,
}

/// Both endpoints and what lies between.
pub(crate) struct World {
    endpoints: [Endpoint; 2],
    /// By sender.
    pipes: [Pipe; 2],
    /// RST was sent; an endpoint that is not closed will read it.
    reset: bool,
    /// Bytes were unread at a close, or an endpoint asked for a reset.
    reset_is_right: bool,
    pub(crate) spills: u32,
    pub(crate) ring_bytes: u64,
}

/// The byte of a side's stream at an offset: zeros among them, which look like wake-ups.
fn byte(side: usize, offset: u64) -> u8 {
    let mixed = (offset + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (side as u64) << 40;
    if mixed >> 62 == 0 { 0 } else { (mixed >> 32) as u8 }
}

/// Memory for a promotion: for each endpoint its own region and the peer's.
fn regions() -> [(SharedMapping, SharedMapping); 2] {
    let regions = [(); 2].map(|()| {
        let head = ring::layout::format_region(REGION).unwrap();
        MemoryFile::create("region", REGION as u64, &head).unwrap()
    });
    [0, 1].map(|side| {
        let own = SharedMapping::writable(regions[side].writable.as_fd(), REGION).unwrap();
        let peer = SharedMapping::read_only(regions[1 - side].read_only.as_fd(), REGION).unwrap();
        (own, peer)
    })
}

impl World {
    pub(crate) fn new() -> World {
        let mut regions = regions().map(Some);
        let pages = [(); 2]
            .map(|()| MemoryFile::create("page", PAGE as u64, &ring::layout::format_loop_page()).unwrap());
        let mut endpoint = |side: usize| {
            let page = SharedMapping::writable(pages[side].writable.as_fd(), PAGE).unwrap();
            let other = SharedMapping::read_only(pages[1 - side].read_only.as_fd(), PAGE).unwrap();
            Endpoint {
                connection: None,
                granted: regions[side].take(),
                own_loop: OwnLoop::new(page).unwrap(),
                other_loop: OtherLoop::new(Arc::new(PeerLoop { id: 1, page: other })).unwrap(),
                waiting: VecDeque::new(),
                wake_up: false,
                fetched: VecDeque::new(),
                sent: 0,
                got: 0,
                written: 0,
                consumed: 0,
                asleep: false,
                shut: false,
                closed: false,
                kernel_end: None,
                reported: None,
            }
        };
        World {
            endpoints: [endpoint(0), endpoint(1)],
            pipes: [Pipe::default(), Pipe::default()],
            reset: false,
            reset_is_right: false,
            spills: 0,
            ring_bytes: 0,
        }
    }

    /// Whether the act would change anything.
    pub(crate) fn can(&self, side: usize, act: Act) -> bool {
        let (endpoint, pipe) = (&self.endpoints[side], &self.pipes[side]);
        let input = &self.pipes[1 - side];
        match act {
            Act::KernelAccepts(_) => {
                !self.reset && !endpoint.waiting.is_empty() && pipe.bytes.len() < KERNEL_ROOM
            }
            Act::SendWakeUp => endpoint.wake_up,
            Act::Timer => endpoint.asleep,
            _ if endpoint.closed => false,
            // A sleeping endpoint does nothing until the kernel wakes it.
            _ if endpoint.asleep && !self.is_roused(side) => false,
            Act::Adopt => {
                endpoint.granted.is_some()
                    && endpoint.waiting.is_empty()
                    && endpoint.fetched.is_empty()
                    && !endpoint.shut
                    && !input.fin
                    && !self.reset
            }
            Act::Send(_) => !endpoint.shut && endpoint.waiting.is_empty() && !self.reset,
            Act::Fetch(_) => !input.bytes.is_empty() || input.fin || self.reset,
            Act::Consume(_) => endpoint.reported.is_none(),
            Act::SleepCold | Act::SleepHot => {
                input.bytes.is_empty() && !input.fin && !self.reset && endpoint.connection.is_some()
            }
            Act::Shutdown => !endpoint.shut && !self.reset,
            Act::Close | Act::Reset => true,
        }
    }

    /// Whether the kernel has something for an endpoint.
    fn is_roused(&self, side: usize) -> bool {
        let input = &self.pipes[1 - side];
        !input.bytes.is_empty() || input.fin || self.reset
    }

    pub(crate) fn step(&mut self, side: usize, act: Act) {
        if self.endpoints[side].asleep && self.is_roused(side) {
            self.wake(side);
        }
        match act {
            Act::Adopt => self.adopt(side),
            Act::Send(count) => self.send(side, count),
            Act::KernelAccepts(count) => self.kernel_accepts(side, count),
            Act::SendWakeUp => self.send_wake_up(side),
            Act::Fetch(count) => self.fetch(side, count),
            Act::Consume(count) => self.consume(side, count),
            Act::SleepCold => self.sleep_cold(side),
            Act::SleepHot => self.sleep_hot(side),
            Act::Timer => self.wake(side),
            Act::Shutdown => self.shutdown(side),
            Act::Close => self.close(side),
            Act::Reset => {
                self.reset_is_right = true;
                self.tear(side);
            }
        }
        self.check();
    }

    fn wake(&mut self, side: usize) {
        let endpoint = &mut self.endpoints[side];
        endpoint.asleep = false;
        endpoint.own_loop.wake(0);
        if let Some(connection) = &mut endpoint.connection {
            connection.disarm();
        }
    }

    fn adopt(&mut self, side: usize) {
        let endpoint = &mut self.endpoints[side];
        let (own, peer) = endpoint.granted.take().unwrap();
        endpoint.connection = Some(Connection::new(own, peer, endpoint.written, endpoint.consumed).unwrap());
    }

    fn send(&mut self, side: usize, count: usize) {
        let endpoint = &mut self.endpoints[side];
        let bytes: Vec<u8> = (0..count as u64).map(|i| byte(side, endpoint.sent + i)).collect();
        endpoint.sent += count as u64;
        let Some(connection) = &mut endpoint.connection else {
            endpoint.waiting.extend(bytes);
            return;
        };
        let mut accepted = 0;
        if !connection.stays_with_kernel() {
            accepted = connection.send([&bytes[..]], count, true).unwrap();
            self.ring_bytes += accepted as u64;
            if accepted > 0
                && !endpoint.wake_up
                && connection.wants_wake_up_by(&endpoint.other_loop, false).is_some()
            {
                endpoint.wake_up = true;
            }
        }
        if accepted < count {
            if connection.sends_to_ring() {
                // The wake-up precedes what follows.
                self.send_wake_up(side);
                self.spills += 1;
                self.endpoints[side].connection.as_mut().unwrap().spill().unwrap();
            }
            self.endpoints[side].waiting.extend(&bytes[accepted..]);
        }
    }

    fn kernel_accepts(&mut self, side: usize, count: usize) {
        let (endpoint, pipe) = (&mut self.endpoints[side], &mut self.pipes[side]);
        let count = count.min(endpoint.waiting.len()).min(KERNEL_ROOM - pipe.bytes.len().min(KERNEL_ROOM));
        pipe.bytes.extend(endpoint.waiting.drain(..count));
        pipe.put += count as u64;
        match &mut endpoint.connection {
            Some(connection) => connection.kernel_accepted(count),
            None => endpoint.written += count as u64,
        }
        if self.endpoints[1 - side].closed {
            // It will not be read.
            self.reset_is_right = true;
            self.reset = true;
        }
        self.finish(side);
    }

    /// Sends the FIN that waits behind the last byte.
    fn finish(&mut self, side: usize) {
        let endpoint = &self.endpoints[side];
        if endpoint.shut && endpoint.waiting.is_empty() && !endpoint.wake_up {
            self.pipes[side].fin = true;
        }
    }

    fn send_wake_up(&mut self, side: usize) {
        let peer_closed = self.endpoints[1 - side].closed;
        let (endpoint, pipe) = (&mut self.endpoints[side], &mut self.pipes[side]);
        if std::mem::take(&mut endpoint.wake_up) && !self.reset && pipe.bytes.len() < KERNEL_ROOM {
            if peer_closed {
                self.reset = true;
                self.reset_is_right = true;
                return;
            }
            pipe.bytes.push_back(0);
            pipe.put += 1;
            endpoint.connection.as_mut().unwrap().wake_up_was_accepted();
        }
        self.finish(side);
    }

    fn fetch(&mut self, side: usize, count: usize) {
        let (endpoint, pipe) = (&mut self.endpoints[side], &mut self.pipes[1 - side]);
        // As Linux does: unread bytes are delivered even after RST.
        let count = count.min(pipe.bytes.len());
        if count == 0 {
            let how =
                if self.reset && !pipe.fin { KernelEnd::Failed(ECONNRESET) } else { KernelEnd::Finished };
            match &mut endpoint.connection {
                Some(connection) => connection.kernel_ended(how),
                None => endpoint.kernel_end = Some(how),
            }
            return;
        }
        endpoint.fetched.extend(pipe.bytes.drain(..count));
        pipe.removed += count as u64;
        if let Some(connection) = &mut endpoint.connection {
            while !endpoint.fetched.is_empty()
                && let Front::WakeUps(wake_ups) = connection.front(endpoint.fetched.len()).unwrap()
            {
                endpoint.fetched.drain(..wake_ups as usize);
                connection.kernel_delivered(wake_ups as usize);
            }
        }
    }

    fn consume(&mut self, side: usize, count: usize) {
        let endpoint = &mut self.endpoints[side];
        let mut bytes = vec![0; count];
        let mut consumed = 0;
        match &mut endpoint.connection {
            None => {
                consumed = count.min(endpoint.fetched.len());
                endpoint.consumed += consumed as u64;
                bytes.splice(..consumed, endpoint.fetched.drain(..consumed));
                if consumed == 0 {
                    endpoint.reported = endpoint.kernel_end;
                }
            }
            Some(connection) => match connection.next(endpoint.fetched.len()).unwrap() {
                Next::Ring(here) => {
                    consumed = connection.read_ring(&mut bytes).unwrap();
                    assert!(consumed > 0 && consumed <= here);
                }
                Next::Kernel => match connection.front(endpoint.fetched.len()).unwrap() {
                    Front::WakeUps(wake_ups) => {
                        endpoint.fetched.drain(..wake_ups as usize);
                        connection.kernel_delivered(wake_ups as usize);
                    }
                    Front::Data(here) => {
                        consumed = count.min(here as usize);
                        bytes.splice(..consumed, endpoint.fetched.drain(..consumed));
                        connection.kernel_delivered(consumed);
                    }
                    Front::Later => panic!("kernel bytes that come next come later"),
                },
                Next::Nothing => {}
                Next::End(how) => endpoint.reported = Some(how),
            },
        }
        for consumed in &bytes[..consumed] {
            assert_eq!(*consumed, byte(1 - side, endpoint.got), "byte {} of side {}", endpoint.got, 1 - side);
            endpoint.got += 1;
        }
        let (reported, got) = (endpoint.reported, endpoint.got);
        assert!(got <= self.endpoints[1 - side].sent, "bytes that were never sent");
        match reported {
            Some(KernelEnd::Finished) if !self.reset => {
                assert_eq!(got, self.endpoints[1 - side].sent, "the end came before the last byte");
            }
            Some(KernelEnd::Failed(_)) => assert!(self.reset, "a reset out of nothing"),
            _ => {}
        }
    }

    fn sleep_cold(&mut self, side: usize) {
        let endpoint = &mut self.endpoints[side];
        let connection = endpoint.connection.as_mut().unwrap();
        endpoint.asleep = endpoint.fetched.is_empty()
            && !connection.kernel_has_ended()
            && !connection.arm(WakeUp::Tcp).unwrap();
    }

    fn sleep_hot(&mut self, side: usize) {
        let endpoint = &mut self.endpoints[side];
        let connection = endpoint.connection.as_mut().unwrap();
        endpoint.own_loop.sleep(0);
        endpoint.asleep =
            endpoint.fetched.is_empty() && !connection.kernel_has_ended() && !connection.poll().unwrap();
        if !endpoint.asleep {
            endpoint.own_loop.wake(0);
        }
    }

    fn shutdown(&mut self, side: usize) {
        let endpoint = &mut self.endpoints[side];
        endpoint.shut = true;
        if let Some(connection) = &mut endpoint.connection {
            connection.kernel_sends();
        }
        self.finish(side);
    }

    fn close(&mut self, side: usize) {
        let input = std::mem::take(&mut self.pipes[1 - side].bytes);
        let endpoint = &mut self.endpoints[side];
        endpoint.fetched.extend(input);
        let mut unread = !endpoint.fetched.is_empty();
        if let Some(connection) = &mut endpoint.connection {
            while !endpoint.fetched.is_empty()
                && let Front::WakeUps(wake_ups) = connection.front(endpoint.fetched.len()).unwrap()
            {
                endpoint.fetched.drain(..wake_ups as usize);
                connection.kernel_delivered(wake_ups as usize);
            }
            unread = !endpoint.fetched.is_empty() || connection.has_unread();
            connection.reads_no_more(true);
        }
        if unread {
            self.reset_is_right = true;
            self.tear(side);
            return;
        }
        let endpoint = &mut self.endpoints[side];
        endpoint.closed = true;
        endpoint.shut = true;
        // A close drops a queued wake-up: its FIN wakes the peer as well.
        endpoint.wake_up = false;
        self.finish(side);
    }

    fn tear(&mut self, side: usize) {
        self.reset = true;
        let endpoint = &mut self.endpoints[side];
        endpoint.closed = true;
        endpoint.wake_up = false;
        endpoint.waiting.clear();
    }

    fn check(&self) {
        assert!(!self.reset || self.reset_is_right);
        for side in [0, 1] {
            let (endpoint, peer) = (&self.endpoints[side], &self.endpoints[1 - side]);
            let quiet = peer.waiting.is_empty() && !peer.wake_up && !self.is_roused(side);
            if endpoint.asleep && quiet {
                assert_eq!(endpoint.got, peer.sent, "side {side} sleeps, and is not woken");
            }
        }
    }

    /// Lets both endpoints and the kernel go on until nothing moves.
    pub(crate) fn drain(&mut self) {
        for _ in 0..10_000 {
            let before = self.progress();
            for side in [0, 1] {
                for act in [
                    Act::SendWakeUp,
                    Act::KernelAccepts(usize::MAX),
                    Act::Fetch(usize::MAX),
                    Act::Consume(1 << 16),
                ] {
                    if self.can(side, act) {
                        self.step(side, act);
                    }
                }
            }
            if self.progress() == before {
                break;
            }
        }
        for side in [0, 1] {
            let (endpoint, peer) = (&self.endpoints[side], &self.endpoints[1 - side]);
            if !self.reset && !endpoint.closed {
                assert_eq!(endpoint.got, peer.sent, "side {side} did not get all");
                assert_eq!(endpoint.reported.is_some(), peer.shut, "the end of side {}", 1 - side);
            }
            if self.reset && !endpoint.closed {
                assert!(endpoint.reported.is_some(), "the reset is not reported to side {side}");
            }
        }
    }

    fn progress(&self) -> [(u64, usize, usize, bool, bool, bool); 2] {
        [0, 1].map(|side| {
            let (endpoint, pipe) = (&self.endpoints[side], &self.pipes[side]);
            (
                endpoint.got,
                endpoint.waiting.len(),
                pipe.bytes.len() + endpoint.fetched.len(),
                endpoint.wake_up,
                pipe.fin,
                endpoint.reported.is_some(),
            )
        })
    }
}
