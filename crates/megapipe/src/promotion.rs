//! Which connections move to shared memory: offers to the monitor and what comes of them.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use promote::client::{Answer, Client, OfferError, Options};
use promote::wire::Token;
use promote::{Connection, Doorbells, OtherLoop, OwnLoop, PeerLoop, Reason};
use rustix::process::{Resource, getrlimit};
use sys::mapping::SharedMapping;

use crate::channel::Channel;
use crate::config::{Config, Promotion};
use crate::core::{Core, Op, State, WriteState};
use crate::engine::Engine;
use crate::engine::view::View;
use crate::engine::watch::Watch;
use crate::engine::{self, Request, Wait};
use crate::id::Handle;
use crate::lane::Lane;
use crate::now::Now;
use crate::op_list::NO_OP;
use crate::pages::Pages;

mod hot;

/// Bytes of SO_SNDBUF, below which a connection stays on TCP: the kernel doubles what a program asks for.
const SEND_BUFFER_LEAST: usize = 32 << 10;

/// Offers that wait for a monitor, or for it to find room.
const OFFERS_MAX: usize = 4096;

/// Offers made at once: their grants have room with a client that looks for them in between.
const OFFERS_AT_ONCE: u32 = 128;

/// Time between such bursts, and until a monitor that had no room is asked again.
const OFFER_AGAIN: Duration = Duration::from_millis(5);

/// The same at most, after a monitor has said again and again that it was offered too much.
const OFFER_AGAIN_MAX: Duration = Duration::from_secs(5);

pub(crate) struct Promoter {
    client: Client,
    own_loops: Pages,
    /// Numbers of doorbells: the lowest quarter of those that the process may have (RLIMIT_NOFILE). The others are left to
    /// connections.
    doorbells_below: u64,
    /// Promoted connections that the monitor, a new one, does not know of yet.
    to_register: Vec<Handle>,
    /// The engine tells when the monitor says something.
    watched: bool,
    other_loops: Vec<OtherLoop>,
    burst: Burst,
    /// Granted, and waiting for a moment at which nothing is under way.
    granted: Vec<Grant>,
    hot: Vec<Handle>,
    /// Where in `hot` the next look begins.
    cursor: usize,
    /// When what was quiet was last cooled.
    cooled: Instant,
}

/// How fast offers are made.
struct Burst {
    began: Instant,
    /// Offers left of it.
    left: u32,
    /// From its beginning to that of the next.
    pause: Duration,
}

impl Burst {
    fn new() -> Burst {
        Burst { began: Instant::now(), left: OFFERS_AT_ONCE, pause: OFFER_AGAIN }
    }

    fn begin_if_due(&mut self, now: Instant) {
        if now.saturating_duration_since(self.began) >= self.pause {
            (self.began, self.left) = (now, OFFERS_AT_ONCE);
        }
    }

    fn next(&self) -> Instant {
        self.began + self.pause
    }

    /// The monitor was offered too much; many answers may say so of one burst.
    fn was_too_much(&mut self) {
        if self.left > 0 {
            *self = Burst { began: Instant::now(), left: 0, pause: OFFER_AGAIN_MAX.min(self.pause * 2) };
        }
    }
}

struct Grant {
    handle: Handle,
    own: SharedMapping,
    peer: SharedMapping,
    other_loop: usize,
    peer_loop: Arc<PeerLoop>,
    doorbells: Option<Doorbells>,
}

/// The monitor has no room for what is said to it.
struct Full;

/// What became of a grant that was tried.
enum Tried {
    Adopted,
    Dropped,
    /// Something of the connection is under way.
    Later(Grant),
}

impl Promoter {
    /// `None` if nothing is to be promoted, or nobody can say so.
    pub(crate) fn new(config: &Config) -> Option<Box<Promoter>> {
        if config.promotion == Promotion::Off {
            return None;
        }
        let mut options = Options::from_environment(&program_name());
        options.socket = config.monitor.clone().or(options.socket);
        options.doorbells = true;
        match Client::connect(&options) {
            Ok(client) => Some(Box::new(Promoter {
                client,
                own_loops: Pages::default(),
                doorbells_below: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 4,
                to_register: Vec::new(),
                watched: false,
                other_loops: Vec::new(),
                burst: Burst::new(),
                granted: Vec::new(),
                hot: Vec::new(),
                cursor: 0,
                cooled: Instant::now(),
            })),
            Err(error) => {
                tracing::warn!("connections stay on TCP: {error}");
                None
            }
        }
    }

    /// Whether both lie where doorbells may.
    fn have_room(&self, doorbells: &Doorbells) -> bool {
        [&doorbells.own, &doorbells.peer].iter().all(|fd| (fd.as_raw_fd() as u64) < self.doorbells_below)
    }

    /// The place of a loop among those known.
    fn place_of(&mut self, other: &Arc<PeerLoop>) -> Option<usize> {
        if let Some(known) = self.other_loops.iter().position(|known| known.is(other)) {
            return Some(known);
        }
        let new = OtherLoop::new(other.clone()).ok()?;
        // Programs come and go; their places are used again.
        if let Some(free) = self.other_loops.iter().position(OtherLoop::is_forgotten) {
            self.other_loops[free] = new;
            return Some(free);
        }
        self.other_loops.push(new);
        Some(self.other_loops.len() - 1)
    }
}

fn program_name() -> String {
    let program = std::env::current_exe().ok();
    program.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned())).unwrap_or_default()
}

fn token(handle: Handle) -> Option<Token> {
    // Generations begin at 1: no live handle's name is 0.
    Token::new(handle.to_bits())
}

impl Core {
    /// Counts a message of a connection; with the last that is wanted it is to be offered.
    #[inline]
    pub(crate) fn count_towards_offer(&mut self, handle: Handle) {
        if let Some(entry) = self.handles.get_mut(handle.index, handle.generation)
            && entry.offer_in > 0
        {
            entry.offer_in -= 1;
            if entry.offer_in == 0 {
                self.to_offer.push(handle);
            }
        }
    }

    /// Whether there is anything to offer, to send to a monitor or to read from one.
    #[inline]
    fn has_promotions_to_tend(&self) -> bool {
        self.tend_at.is_some() || !self.to_offer.is_empty() || self.readable.has(Watch::MONITOR)
    }

    /// A connection that is to be promoted takes back the read that the kernel holds.
    pub(crate) fn pause_reads(&mut self, handle: Handle) {
        let head = self.handles.at(handle.index).map_or(NO_OP, |entry| entry.reads.head);
        let op = self.op_id(head);
        if let Some(entry) = self.ops.at_mut(head)
            && entry.started
            && !entry.cancelled
        {
            // Again if it was: one that ended by itself was started anew.
            entry.paused = true;
            self.request(Request::Cancel(op));
        }
    }

    /// Whether the kernel holds nothing of this handle, and nothing that it gave waits to be
    /// handed out: both streams' places in the kernel are then what it says they are.
    fn is_between_operations(&self, handle: Handle) -> bool {
        let Some(entry) = self.handles.get(handle.index, handle.generation) else { return false };
        entry.in_engine == 0 && self.has_no_writes(handle) && !self.has_results(handle)
    }

    fn has_no_writes(&self, handle: Handle) -> bool {
        self.handles
            .get(handle.index, handle.generation)
            .is_some_and(|entry| entry.write_state == WriteState::Idle && entry.writes.head == NO_OP)
    }

    fn has_results(&self, handle: Handle) -> bool {
        self.done.iter().any(|done| self.op(done.op).is_some_and(|op| op.handle == handle))
    }
}

impl Channel {
    /// A handle that may be promoted as soon as it is connected.
    pub(crate) fn offer_if_eager(&mut self, handle: Handle) {
        if self.core.config.promotion == Promotion::Eager {
            self.core.to_offer.push(handle);
        }
    }

    /// Offers what is to be offered, and takes up what was granted. Called when nothing is
    /// left to hand out, and now and then before.
    pub(crate) fn tend_promotion(&mut self, now: &Now) {
        if self.core.has_promotions_to_tend() || self.has_grants() {
            self.tend_promotions(now.get());
        }
    }

    #[inline]
    fn has_grants(&self) -> bool {
        self.promoter().is_some_and(|promoter| !promoter.granted.is_empty())
    }

    /// The promoter, once a monitor was met: before, it has nothing to look after.
    #[inline]
    fn promoter(&self) -> Option<&Promoter> {
        self.promoter.as_deref().filter(|_| self.core.met_monitor)
    }

    #[cold]
    fn tend_promotions(&mut self, now: Instant) {
        let Some(mut promoter) = self.promoter.take() else { return };
        if self.core.readable.take(Watch::MONITOR) {
            promoter.watched = false;
            self.receive(&mut promoter, now);
        }
        if self.core.tend_at.map_or(!self.core.to_offer.is_empty(), |at| at <= now) {
            self.speak(&mut promoter, now);
        }
        for grant in std::mem::take(&mut promoter.granted) {
            let handle = grant.handle;
            match self.adopt(&mut promoter, grant) {
                Tried::Adopted => self.core.stats.promoted += 1,
                Tried::Dropped => {
                    self.core.stats.promotions_refused += 1;
                    if let Some(token) = token(handle) {
                        promoter.client.withdraw(token);
                    }
                    promoter.own_loops.leave(handle);
                    self.restart_paused(handle);
                }
                Tried::Later(grant) => promoter.granted.push(grant),
            }
        }
        self.promoter = Some(promoter);
    }

    /// Says what is to be said to the monitor, and when that is to be tried again.
    fn speak(&mut self, promoter: &mut Promoter, now: Instant) {
        self.core.tend_at = None;
        if let Err(error) = promoter.client.reconnect_due(now) {
            tracing::warn!("connections stay on TCP: {error}");
            self.core.to_offer.clear();
        }
        if promoter.client.fd().is_none() {
            // These few are offered to the next one, which hears of what is promoted, too.
            self.drop_offers_beyond(OFFERS_MAX);
            let wanted = !self.core.to_offer.is_empty() || promoter.own_loops.are_used();
            self.core.tend_at = promoter.client.next_attempt().filter(|_| wanted);
            return;
        }
        self.watch(promoter);
        promoter.burst.begin_if_due(now);
        if let Err(Full) = self.register_promoted(promoter).and_then(|()| self.offer(promoter)) {
            promoter.burst.was_too_much();
        }
        let more = !self.core.to_offer.is_empty() || !promoter.to_register.is_empty();
        self.core.tend_at = more.then(|| promoter.burst.next());
    }

    /// Only once for what comes next: each watch more would be one more event.
    fn watch(&mut self, promoter: &mut Promoter) {
        if let Some(fd) = promoter.client.fd().filter(|_| !promoter.watched) {
            promoter.watched = self.engine.watch(fd, Watch::MONITOR).is_ok();
        }
    }

    fn offer(&mut self, promoter: &mut Promoter) -> Result<(), Full> {
        let handles = std::mem::take(&mut self.core.to_offer);
        for (place, &handle) in handles.iter().enumerate() {
            if promoter.burst.left == 0 {
                self.core.to_offer.extend_from_slice(&handles[place..]);
                break;
            }
            let wanted = self.core.open(handle).is_ok() && self.core.lane(handle.index).is_none();
            let Some(token) = token(handle).filter(|_| wanted) else { continue };
            let offered = engine::with_descriptor(
                &mut self.engine,
                &mut View::of(&mut self.core),
                handle.index,
                |fd| {
                    // The monitor asks for the rest.
                    match sys::tcp::peer(fd) {
                        Some(peer) if sys::tcp::is_local(peer) => Ok(promoter.client.offer(token, fd)),
                        _ => Ok(Err(OfferError::NoMonitor)),
                    }
                },
            );
            match offered {
                Ok(Ok(())) => promoter.burst.left -= 1,
                Ok(Err(OfferError::Full)) => {
                    self.core.to_offer.splice(0..0, handles[place..].iter().copied());
                    self.drop_offers_beyond(OFFERS_MAX);
                    return Err(Full);
                }
                _ => self.core.stats.promotions_refused += 1,
            }
        }
        Ok(())
    }

    fn drop_offers_beyond(&mut self, most: usize) {
        let more = self.core.to_offer.len().saturating_sub(most);
        self.core.to_offer.truncate(most);
        self.core.stats.promotions_refused += more as u64;
    }

    /// Tells a new monitor what earlier ones promoted.
    fn register_promoted(&mut self, promoter: &mut Promoter) -> Result<(), Full> {
        while let Some(handle) = promoter.to_register.pop() {
            let Some(lane) = self.core.handles.get(handle.index, handle.generation) else { continue };
            let Some(lane) = lane.lane.as_deref() else { continue };
            let Some(peer_loop) = promoter.other_loops.get(lane.other_loop).map(OtherLoop::id) else {
                continue;
            };
            let cookie = engine::with_descriptor(
                &mut self.engine,
                &mut View::of(&mut self.core),
                handle.index,
                sys::tcp::cookie,
            );
            let (Some(token), Ok(cookie)) = (token(handle), cookie) else { continue };
            if matches!(promoter.client.register(token, cookie, peer_loop), Err(OfferError::Full)) {
                promoter.to_register.push(handle);
                return Err(Full);
            }
        }
        Ok(())
    }

    fn receive(&mut self, promoter: &mut Promoter, now: Instant) {
        loop {
            match promoter.client.receive() {
                Ok(Some(Answer::Welcome { loop_page, .. })) => {
                    self.core.met_monitor = true;
                    match OwnLoop::new(loop_page) {
                        Ok(own) => {
                            promoter.own_loops.add(own);
                            promoter.to_register = promoter.own_loops.users().collect();
                            if !promoter.to_register.is_empty() {
                                self.core.tend_at = Some(now);
                            }
                            tracing::debug!(pages = promoter.own_loops.count(), "a monitor was met");
                        }
                        Err(error) => tracing::warn!("the monitor's page cannot be used: {error}"),
                    }
                }
                Ok(Some(Answer::Granted { token, own, peer, peer_loop, doorbells })) => {
                    let handle = Handle::from_bits(token.get());
                    match promoter.place_of(&peer_loop) {
                        Some(other_loop) if self.core.open(handle).is_ok() => {
                            promoter.burst.pause = OFFER_AGAIN;
                            promoter.own_loops.enter(handle);
                            let doorbells = doorbells.filter(|both| promoter.have_room(both));
                            let grant = Grant { handle, own, peer, other_loop, peer_loop, doorbells };
                            promoter.granted.push(grant);
                        }
                        _ => promoter.client.withdraw(token),
                    }
                }
                Ok(Some(Answer::Refused { token, reason: Reason::NoMonitor })) => {
                    // For the next monitor, which is searched once this one has ended.
                    self.core.to_offer.push(Handle::from_bits(token.get()));
                }
                Ok(Some(Answer::Refused { token, reason: Reason::Rate })) => {
                    promoter.burst.was_too_much();
                    self.core.to_offer.push(Handle::from_bits(token.get()));
                    self.core.tend_at.get_or_insert(promoter.burst.next());
                }
                Ok(Some(Answer::Refused { token, reason })) => {
                    self.core.stats.promotions_refused += 1;
                    tracing::debug!(token = token.get(), "a connection stays on TCP: {reason}");
                }
                Ok(Some(Answer::Peer { token, user })) => {
                    tracing::debug!(token = token.get(), user, "nobody has offered the other end so far");
                }
                Ok(Some(Answer::Declined { token, reason })) => {
                    tracing::debug!(token = token.get(), %reason, "the program at the other end declines");
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::info!("{error}; promoted connections go on without it");
                    promoter.to_register.clear();
                    self.core
                        .to_offer
                        .extend(error.unanswered.iter().map(|token| Handle::from_bits(token.get())));
                    let wanted = !self.core.to_offer.is_empty() || promoter.own_loops.are_used();
                    self.core.tend_at = promoter.client.next_attempt().filter(|_| wanted);
                    return;
                }
            }
        }
        self.watch(promoter);
    }

    fn adopt(&mut self, promoter: &mut Promoter, grant: Grant) -> Tried {
        let handle = grant.handle;
        let Some(entry) = self.core.handles.get(handle.index, handle.generation) else {
            return Tried::Dropped;
        };
        if entry.state != State::Open || entry.lane.is_some() {
            return Tried::Dropped;
        }
        if matches!(entry.write_state, WriteState::Fresh | WriteState::Requested) {
            // Who always writes before it dispatches would never be between operations. A
            // refused batch shows again at the next dispatch.
            let _ = self.turn(Wait::Flush);
        }
        if !self.core.is_between_operations(handle) {
            // Two ends that did not read until all was written would wait for each other.
            if self.core.has_no_writes(handle) {
                if let Some(entry) = self.core.handles.at_mut(handle.index) {
                    entry.taking_up = true;
                }
                self.core.pause_reads(handle);
            } else {
                self.restart_paused(handle);
            }
            return Tried::Later(grant);
        }
        let positions =
            engine::with_descriptor(&mut self.engine, &mut View::of(&mut self.core), handle.index, |fd| {
                let socket = socket2::SockRef::from(&fd);
                // What was read is there until it is acknowledged: no room would be left for a bell.
                if socket.send_buffer_size()? < SEND_BUFFER_LEAST {
                    return Ok(None);
                }
                // A bell that waited for an acknowledgement would be no bell.
                socket.set_tcp_nodelay(true)?;
                sys::tcp::positions(fd)
            });
        // Making the descriptor may have brought results.
        if !self.core.is_between_operations(handle) {
            return Tried::Later(grant);
        }
        let positions = match positions {
            Ok(Some(positions)) => positions,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                self.restart_paused(handle);
                return Tried::Later(grant);
            }
            _ => return Tried::Dropped,
        };
        let Grant { own, peer, other_loop, peer_loop, doorbells, .. } = grant;
        match Connection::new(own, peer, positions.written, positions.consumed) {
            Ok(connection) => {
                let view = &mut View::of(&mut self.core);
                let doorbells = doorbells
                    .filter(|both| self.engine.watch_doorbell(view, both.own.as_fd(), handle).is_ok());
                let lane = Lane::new(connection, other_loop, peer_loop, doorbells);
                if let Some(entry) = self.core.handles.at_mut(handle.index) {
                    entry.taking_up = false;
                    entry.lane = Some(Box::new(lane));
                }
                self.core.tend_lane(handle.index);
                promoter.take_heated(&mut self.core);
                Tried::Adopted
            }
            Err(error) => {
                tracing::warn!("a connection stays on TCP: {error}");
                Tried::Dropped
            }
        }
    }

    /// A read that was paused for a promotion that did not come.
    fn restart_paused(&mut self, handle: Handle) {
        let Some(entry) = self.core.handles.get_mut(handle.index, handle.generation) else { return };
        let head = entry.reads.head;
        entry.taking_up = false;
        if self.core.has_results(handle) {
            return;
        }
        if let Some(Op { started: false, cancelled: false, .. }) = self.core.ops.at(head) {
            let op = self.core.op_id(head);
            if !self.core.starved.contains(&op) {
                self.core.start_read_in_turn(op);
            }
        }
    }

    /// After a write to the ring of a promoted connection: rings if its reader sleeps.
    #[inline]
    pub(crate) fn ring_if_wanted(&mut self, handle: u32) {
        let Some(promoter) = self.promoter.as_mut() else { return };
        let Some(lane) = self.core.lane(handle) else { return };
        if !lane.hot {
            // No sleep comes upon it to do so.
            lane.connection.publish_counts();
        }
        if lane.bell_under_way.is_some() {
            return;
        }
        let Some(other) = promoter.other_loops.get_mut(lane.other_loop) else { return };
        let wake_up = lane.connection.wants_wake_up_by(other, lane.doorbells.is_some());
        self.core.spin.wrote(wake_up.is_some());
        match wake_up {
            Some(by) => self.core.queue_bell(handle, by),
            None => self.core.answer_if_left(handle),
        }
    }

    /// A promoted connection is closed: its monitor need not count it any more.
    pub(crate) fn forget_lane(&mut self, handle: Handle) {
        if let Some(lane) = self.core.lane(handle.index) {
            lane.connection.reads_no_more(true);
        }
        if let (Some(promoter), Some(token)) = (self.promoter.as_mut(), token(handle)) {
            promoter.client.withdraw(token);
            promoter.own_loops.leave(handle);
        }
    }
}
