//! Two ends of a connection in one process, with real shared memory and a model of the
//! kernel connection: two bounded queues of bytes with FIN and RST.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;

use promote::{Connection, KernelEnd, Next, OtherLoop, OwnLoop, PeerLoop};
use ring::{Front, WakeUp};
use sys::mapping::SharedMapping;
use sys::memory_file::MemoryFile;

/// Bytes of a segment: the smallest, so that rings are full soon.
const SEGMENT: usize = 8 << 10;
/// Bytes that the kernel takes from a sender before its receiver reads.
const KERNEL_ROOM: usize = 600;
const PAGE: usize = 4096;
const ECONNRESET: i32 = 104;

/// What an end does next, or what the kernel does for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Takes the granted memory up, if nothing is under way.
    Adopt,
    Send(usize),
    /// The kernel takes some of what waits for it.
    KernelTakes(usize),
    /// The queued bell goes to the kernel, which has room for it or not.
    Bell,
    /// Reads so much from the kernel.
    Fetch(usize),
    /// Takes so much of what is here.
    Take(usize),
    /// Sleeps, waiting for bells on this connection.
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
    /// That were ever put in, and taken out.
    put: u64,
    taken: u64,
    fin: bool,
}

struct End {
    connection: Option<Connection>,
    granted: Option<(SharedMapping, SharedMapping)>,
    own_loop: OwnLoop,
    other_loop: OtherLoop,
    /// What the kernel is to take when it has room.
    waiting: VecDeque<u8>,
    bell: bool,
    /// What the kernel gave and the connection did not.
    fetched: VecDeque<u8>,
    /// Stream bytes that its program sent and got.
    sent: u64,
    got: u64,
    /// Through the kernel, before the connection was taken up.
    written: u64,
    consumed: u64,
    asleep: bool,
    shut: bool,
    closed: bool,
    /// Before the connection was taken up.
    kernel_end: Option<KernelEnd>,
    told: Option<KernelEnd>,
}

/// The whole: both ends and what lies between.
pub(crate) struct World {
    ends: [End; 2],
    /// By sender.
    pipes: [Pipe; 2],
    /// RST was sent; to be read by whoever is not closed.
    reset: bool,
    /// Bytes were unread at a close, or an end asked for a reset.
    reset_is_right: bool,
    pub(crate) spills: u32,
    pub(crate) ring_bytes: u64,
}

/// The byte of a side's stream at an offset: zeros among them, which look like bells.
fn byte(side: usize, offset: u64) -> u8 {
    let mixed = (offset + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (side as u64) << 40;
    if mixed >> 62 == 0 { 0 } else { (mixed >> 32) as u8 }
}

/// Memory for a promotion: for each end its own segment and the other's.
fn segments() -> [(SharedMapping, SharedMapping); 2] {
    let segments = [(); 2].map(|()| {
        let head = ring::layout::format_region(SEGMENT).unwrap();
        MemoryFile::create("segment", SEGMENT as u64, &head).unwrap()
    });
    [0, 1].map(|side| {
        let own = SharedMapping::writable(segments[side].writable.as_fd(), SEGMENT).unwrap();
        let peer = SharedMapping::read_only(segments[1 - side].read_only.as_fd(), SEGMENT).unwrap();
        (own, peer)
    })
}

impl World {
    pub(crate) fn new() -> World {
        let mut segments = segments().map(Some);
        let pages = [(); 2]
            .map(|()| MemoryFile::create("page", PAGE as u64, &ring::layout::format_loop_page()).unwrap());
        let mut end = |side: usize| {
            let page = SharedMapping::writable(pages[side].writable.as_fd(), PAGE).unwrap();
            let other = SharedMapping::read_only(pages[1 - side].read_only.as_fd(), PAGE).unwrap();
            End {
                connection: None,
                granted: segments[side].take(),
                own_loop: OwnLoop::new(page).unwrap(),
                other_loop: OtherLoop::new(Arc::new(PeerLoop { id: 1, page: other })).unwrap(),
                waiting: VecDeque::new(),
                bell: false,
                fetched: VecDeque::new(),
                sent: 0,
                got: 0,
                written: 0,
                consumed: 0,
                asleep: false,
                shut: false,
                closed: false,
                kernel_end: None,
                told: None,
            }
        };
        World {
            ends: [end(0), end(1)],
            pipes: [Pipe::default(), Pipe::default()],
            reset: false,
            reset_is_right: false,
            spills: 0,
            ring_bytes: 0,
        }
    }

    /// Whether the act would change anything.
    pub(crate) fn can(&self, side: usize, act: Act) -> bool {
        let (end, pipe) = (&self.ends[side], &self.pipes[side]);
        let input = &self.pipes[1 - side];
        match act {
            Act::KernelTakes(_) => !self.reset && !end.waiting.is_empty() && pipe.bytes.len() < KERNEL_ROOM,
            Act::Bell => end.bell,
            Act::Timer => end.asleep,
            _ if end.closed => false,
            // Who sleeps does nothing, until the kernel wakes it.
            _ if end.asleep && !self.is_roused(side) => false,
            Act::Adopt => {
                end.granted.is_some()
                    && end.waiting.is_empty()
                    && end.fetched.is_empty()
                    && !end.shut
                    && !input.fin
                    && !self.reset
            }
            Act::Send(_) => !end.shut && end.waiting.is_empty() && !self.reset,
            Act::Fetch(_) => !input.bytes.is_empty() || input.fin || self.reset,
            Act::Take(_) => end.told.is_none(),
            Act::SleepCold | Act::SleepHot => {
                input.bytes.is_empty() && !input.fin && !self.reset && end.connection.is_some()
            }
            Act::Shutdown => !end.shut && !self.reset,
            Act::Close | Act::Reset => true,
        }
    }

    /// Whether the kernel has something for an end.
    fn is_roused(&self, side: usize) -> bool {
        let input = &self.pipes[1 - side];
        !input.bytes.is_empty() || input.fin || self.reset
    }

    pub(crate) fn step(&mut self, side: usize, act: Act) {
        if self.ends[side].asleep && self.is_roused(side) {
            self.wake(side);
        }
        match act {
            Act::Adopt => self.adopt(side),
            Act::Send(count) => self.send(side, count),
            Act::KernelTakes(count) => self.kernel_takes(side, count),
            Act::Bell => self.bell(side),
            Act::Fetch(count) => self.fetch(side, count),
            Act::Take(count) => self.take(side, count),
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
        let end = &mut self.ends[side];
        end.asleep = false;
        end.own_loop.wake(0);
        if let Some(connection) = &mut end.connection {
            connection.disarm();
        }
    }

    fn adopt(&mut self, side: usize) {
        let end = &mut self.ends[side];
        let (own, peer) = end.granted.take().unwrap();
        end.connection = Some(Connection::new(own, peer, end.written, end.consumed).unwrap());
    }

    fn send(&mut self, side: usize, count: usize) {
        let end = &mut self.ends[side];
        let bytes: Vec<u8> = (0..count as u64).map(|i| byte(side, end.sent + i)).collect();
        end.sent += count as u64;
        let Some(connection) = &mut end.connection else {
            end.waiting.extend(bytes);
            return;
        };
        let mut taken = 0;
        if !connection.stays_with_kernel() {
            taken = connection.send([&bytes[..]], count, true).unwrap();
            self.ring_bytes += taken as u64;
            if taken > 0 && !end.bell && connection.wants_wake_up_by(&end.other_loop, false).is_some() {
                end.bell = true;
            }
        }
        if taken < count {
            if connection.sends_to_ring() {
                // The bell has its place before what follows.
                self.bell(side);
                self.spills += 1;
                self.ends[side].connection.as_mut().unwrap().spill().unwrap();
            }
            self.ends[side].waiting.extend(&bytes[taken..]);
        }
    }

    fn kernel_takes(&mut self, side: usize, count: usize) {
        let (end, pipe) = (&mut self.ends[side], &mut self.pipes[side]);
        let count = count.min(end.waiting.len()).min(KERNEL_ROOM - pipe.bytes.len().min(KERNEL_ROOM));
        pipe.bytes.extend(end.waiting.drain(..count));
        pipe.put += count as u64;
        match &mut end.connection {
            Some(connection) => connection.kernel_accepted(count),
            None => end.written += count as u64,
        }
        if self.ends[1 - side].closed {
            // Nobody will read it.
            self.reset_is_right = true;
            self.reset = true;
        }
        self.finish(side);
    }

    /// Sends the FIN that waits behind the last byte.
    fn finish(&mut self, side: usize) {
        let end = &self.ends[side];
        if end.shut && end.waiting.is_empty() && !end.bell {
            self.pipes[side].fin = true;
        }
    }

    fn bell(&mut self, side: usize) {
        let peer_closed = self.ends[1 - side].closed;
        let (end, pipe) = (&mut self.ends[side], &mut self.pipes[side]);
        if std::mem::take(&mut end.bell) && !self.reset && pipe.bytes.len() < KERNEL_ROOM {
            if peer_closed {
                self.reset = true;
                self.reset_is_right = true;
                return;
            }
            pipe.bytes.push_back(0);
            pipe.put += 1;
            end.connection.as_mut().unwrap().wake_up_was_accepted();
        }
        self.finish(side);
    }

    fn fetch(&mut self, side: usize, count: usize) {
        let (end, pipe) = (&mut self.ends[side], &mut self.pipes[1 - side]);
        // As Linux does: what lies unread is given even after RST.
        let count = count.min(pipe.bytes.len());
        if count == 0 {
            let how =
                if self.reset && !pipe.fin { KernelEnd::Failed(ECONNRESET) } else { KernelEnd::Finished };
            match &mut end.connection {
                Some(connection) => connection.kernel_ended(how),
                None => end.kernel_end = Some(how),
            }
            return;
        }
        end.fetched.extend(pipe.bytes.drain(..count));
        pipe.taken += count as u64;
        if let Some(connection) = &mut end.connection {
            while !end.fetched.is_empty()
                && let Front::WakeUps(bells) = connection.front(end.fetched.len()).unwrap()
            {
                end.fetched.drain(..bells as usize);
                connection.kernel_delivered(bells as usize);
            }
        }
    }

    fn take(&mut self, side: usize, count: usize) {
        let end = &mut self.ends[side];
        let mut bytes = vec![0; count];
        let mut taken = 0;
        match &mut end.connection {
            None => {
                taken = count.min(end.fetched.len());
                end.consumed += taken as u64;
                bytes.splice(..taken, end.fetched.drain(..taken));
                if taken == 0 {
                    end.told = end.kernel_end;
                }
            }
            Some(connection) => match connection.next(end.fetched.len()).unwrap() {
                Next::Ring(here) => {
                    taken = connection.read_ring(&mut bytes).unwrap();
                    assert!(taken > 0 && taken <= here);
                }
                Next::Kernel => match connection.front(end.fetched.len()).unwrap() {
                    Front::WakeUps(bells) => {
                        end.fetched.drain(..bells as usize);
                        connection.kernel_delivered(bells as usize);
                    }
                    Front::Data(here) => {
                        taken = count.min(here as usize);
                        bytes.splice(..taken, end.fetched.drain(..taken));
                        connection.kernel_delivered(taken);
                    }
                    Front::Later => panic!("kernel bytes that come next come later"),
                },
                Next::Nothing => {}
                Next::End(how) => end.told = Some(how),
            },
        }
        for taken in &bytes[..taken] {
            assert_eq!(*taken, byte(1 - side, end.got), "byte {} of side {}", end.got, 1 - side);
            end.got += 1;
        }
        let (told, got) = (end.told, end.got);
        assert!(got <= self.ends[1 - side].sent, "bytes that were never sent");
        match told {
            Some(KernelEnd::Finished) if !self.reset => {
                assert_eq!(got, self.ends[1 - side].sent, "the end came before the last byte");
            }
            Some(KernelEnd::Failed(_)) => assert!(self.reset, "a reset out of nothing"),
            _ => {}
        }
    }

    fn sleep_cold(&mut self, side: usize) {
        let end = &mut self.ends[side];
        let connection = end.connection.as_mut().unwrap();
        end.asleep =
            end.fetched.is_empty() && !connection.kernel_has_ended() && !connection.arm(WakeUp::Tcp).unwrap();
    }

    fn sleep_hot(&mut self, side: usize) {
        let end = &mut self.ends[side];
        let connection = end.connection.as_mut().unwrap();
        end.own_loop.sleep(0);
        end.asleep = end.fetched.is_empty() && !connection.kernel_has_ended() && !connection.poll().unwrap();
        if !end.asleep {
            end.own_loop.wake(0);
        }
    }

    fn shutdown(&mut self, side: usize) {
        let end = &mut self.ends[side];
        end.shut = true;
        if let Some(connection) = &mut end.connection {
            connection.kernel_sends();
        }
        self.finish(side);
    }

    fn close(&mut self, side: usize) {
        let input = std::mem::take(&mut self.pipes[1 - side].bytes);
        let end = &mut self.ends[side];
        end.fetched.extend(input);
        let mut unread = !end.fetched.is_empty();
        if let Some(connection) = &mut end.connection {
            while !end.fetched.is_empty()
                && let Front::WakeUps(bells) = connection.front(end.fetched.len()).unwrap()
            {
                end.fetched.drain(..bells as usize);
                connection.kernel_delivered(bells as usize);
            }
            unread = !end.fetched.is_empty() || connection.has_unread();
            connection.reads_no_more(true);
        }
        if unread {
            self.reset_is_right = true;
            self.tear(side);
            return;
        }
        let end = &mut self.ends[side];
        end.closed = true;
        end.shut = true;
        // A close drops a bell that is queued: its FIN wakes as well.
        end.bell = false;
        self.finish(side);
    }

    fn tear(&mut self, side: usize) {
        self.reset = true;
        let end = &mut self.ends[side];
        end.closed = true;
        end.bell = false;
        end.waiting.clear();
    }

    fn check(&self) {
        assert!(!self.reset || self.reset_is_right);
        for side in [0, 1] {
            let (end, peer) = (&self.ends[side], &self.ends[1 - side]);
            let quiet = peer.waiting.is_empty() && !peer.bell && !self.is_roused(side);
            if end.asleep && quiet {
                assert_eq!(end.got, peer.sent, "side {side} sleeps, and nobody wakes it");
            }
        }
    }

    /// Lets both ends and the kernel go on until nothing moves.
    pub(crate) fn drain(&mut self) {
        for _ in 0..10_000 {
            let before = self.progress();
            for side in [0, 1] {
                for act in
                    [Act::Bell, Act::KernelTakes(usize::MAX), Act::Fetch(usize::MAX), Act::Take(1 << 16)]
                {
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
            let (end, peer) = (&self.ends[side], &self.ends[1 - side]);
            if !self.reset && !end.closed {
                assert_eq!(end.got, peer.sent, "side {side} did not get all");
                assert_eq!(end.told.is_some(), peer.shut, "the end of side {}", 1 - side);
            }
            if self.reset && !end.closed {
                assert!(end.told.is_some(), "side {side} does not hear of the reset");
            }
        }
    }

    fn progress(&self) -> [(u64, usize, usize, bool, bool, bool); 2] {
        [0, 1].map(|side| {
            let (end, pipe) = (&self.ends[side], &self.pipes[side]);
            (
                end.got,
                end.waiting.len(),
                pipe.bytes.len() + end.fetched.len(),
                end.bell,
                pipe.fin,
                end.told.is_some(),
            )
        })
    }
}
