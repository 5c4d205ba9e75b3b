//! Offers connections to the monitor, and promotes those that it grants.

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
use crate::now::Now;
use crate::op_list::NO_OP;
use crate::pages::Pages;
use crate::promoted::Promoted;

mod hot;

/// Least SO_SNDBUF of a promoted connection, in bytes: the kernel doubles what a program
/// asks for.
const SEND_BUFFER_LEAST: usize = 32 << 10;

/// Offers that may wait for a monitor, or for room at one.
const OFFERS_MAX: usize = 4096;

/// Offers of a burst. A client that reads its socket between bursts has room for the
/// grants.
const OFFERS_AT_ONCE: u32 = 128;

/// Time between bursts, and before an offer that the monitor had no room for is repeated.
const OFFER_AGAIN: Duration = Duration::from_millis(5);

/// Longest such time: it doubles each time that the monitor refuses an offer for its
/// rate.
const OFFER_AGAIN_MAX: Duration = Duration::from_secs(5);

pub(crate) struct Promoter {
    client: Client,
    own_loops: Pages,
    /// Doorbells have descriptor numbers below this: the lowest quarter of RLIMIT_NOFILE.
    /// The others are left to connections.
    doorbells_below: u64,
    /// Promoted connections that the present monitor, a new one, has not been sent yet.
    to_register: Vec<Handle>,
    /// The engine watches the monitor's socket.
    watched: bool,
    other_loops: Vec<OtherLoop>,
    burst: Burst,
    /// Granted, and waiting for a moment without operations under way.
    granted: Vec<Grant>,
    hot: Vec<Handle>,
    /// Index in `hot` at which the next poll begins.
    cursor: usize,
    /// When quiet connections were last cooled.
    cooled: Instant,
}

/// Limits the rate of offers.
struct Burst {
    began: Instant,
    /// Offers left of it.
    left: u32,
    /// From its beginning to the beginning of the next.
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

    /// The monitor refused an offer for its rate; it may refuse many of one burst.
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

/// The socket to the monitor is full.
struct Full;

/// The result of an attempt to use a grant.
enum Tried {
    Adopted,
    Dropped,
    /// Operations of the connection are under way.
    Later(Grant),
}

impl Promoter {
    /// `None` if promotion is off, or its client cannot be made.
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

    /// Whether both have descriptor numbers that doorbells may have.
    fn have_room(&self, doorbells: &Doorbells) -> bool {
        [&doorbells.own, &doorbells.peer].iter().all(|fd| (fd.as_raw_fd() as u64) < self.doorbells_below)
    }

    /// The index of a peer's loop in `other_loops`.
    fn place_of(&mut self, other: &Arc<PeerLoop>) -> Option<usize> {
        if let Some(known) = self.other_loops.iter().position(|known| known.is(other)) {
            return Some(known);
        }
        let new = OtherLoop::new(other.clone()).ok()?;
        // Peers come and go: reuse the entries of those that are gone.
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
    /// Counts a message of a connection, and queues its offer when it has brought enough.
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

    /// Whether there is anything to offer, to send to the monitor or to read from it.
    #[inline]
    fn has_promotion_work(&self) -> bool {
        self.promotion_due.is_some() || !self.to_offer.is_empty() || self.readable.has(Watch::MONITOR)
    }

    /// Before a promotion: cancels the read that the kernel holds.
    pub(crate) fn pause_reads(&mut self, handle: Handle) {
        let head = self.handles.at(handle.index).map_or(NO_OP, |entry| entry.reads.head);
        let op = self.op_id(head);
        if let Some(entry) = self.ops.at_mut(head)
            && entry.started
            && !entry.cancelled
        {
            // Possibly again: a read that ended by itself was restarted.
            entry.paused = true;
            self.request(Request::Cancel(op));
        }
    }

    /// Whether the kernel holds no operation of this handle, and no result waits to be
    /// delivered: the positions of both streams in the kernel are then final.
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
    /// Offers a connection as soon as it is connected, if so configured.
    pub(crate) fn offer_if_eager(&mut self, handle: Handle) {
        if self.core.config.promotion == Promotion::Eager {
            self.core.to_offer.push(handle);
        }
    }

    /// Makes pending offers, and uses grants. Called when there is nothing to deliver,
    /// and now and then before.
    pub(crate) fn drive_promotion(&mut self, now: &Now) {
        if self.core.has_promotion_work() || self.has_grants() {
            self.drive_promotions(now.get());
        }
    }

    #[inline]
    fn has_grants(&self) -> bool {
        self.promoter().is_some_and(|promoter| !promoter.granted.is_empty())
    }

    /// The promoter, once a monitor was found: before, it has nothing to do.
    #[inline]
    fn promoter(&self) -> Option<&Promoter> {
        self.promoter.as_deref().filter(|_| self.core.found_monitor)
    }

    #[cold]
    fn drive_promotions(&mut self, now: Instant) {
        let Some(mut promoter) = self.promoter.take() else { return };
        if self.core.readable.take(Watch::MONITOR) {
            promoter.watched = false;
            self.receive(&mut promoter, now);
        }
        if self.core.promotion_due.map_or(!self.core.to_offer.is_empty(), |at| at <= now) {
            self.send_to_monitor(&mut promoter, now);
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
                    promoter.own_loops.remove_user(handle);
                    self.restart_paused(handle);
                }
                Tried::Later(grant) => promoter.granted.push(grant),
            }
        }
        self.promoter = Some(promoter);
    }

    /// Sends what is pending to the monitor, and sets the time of the next attempt.
    fn send_to_monitor(&mut self, promoter: &mut Promoter, now: Instant) {
        self.core.promotion_due = None;
        if let Err(error) = promoter.client.reconnect_due(now) {
            tracing::warn!("connections stay on TCP: {error}");
            self.core.to_offer.clear();
        }
        if promoter.client.fd().is_none() {
            // Keep these few for the next monitor, which is sent the promoted
            // connections, too.
            self.drop_offers_beyond(OFFERS_MAX);
            let wanted = !self.core.to_offer.is_empty() || promoter.own_loops.are_used();
            self.core.promotion_due = promoter.client.next_attempt().filter(|_| wanted);
            return;
        }
        self.watch(promoter);
        promoter.burst.begin_if_due(now);
        if let Err(Full) = self.register_promoted(promoter).and_then(|()| self.offer(promoter)) {
            promoter.burst.was_too_much();
        }
        let more = !self.core.to_offer.is_empty() || !promoter.to_register.is_empty();
        self.core.promotion_due = more.then(|| promoter.burst.next());
    }

    /// Only once until it was read: each further watch would be one more event.
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
            let wanted = self.core.open(handle).is_ok() && self.core.promoted(handle.index).is_none();
            let Some(token) = token(handle).filter(|_| wanted) else { continue };
            let offered = engine::with_descriptor(
                &mut self.engine,
                &mut View::of(&mut self.core),
                handle.index,
                |fd| {
                    // The monitor checks the rest.
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

    /// Registers with a new monitor what earlier ones promoted.
    fn register_promoted(&mut self, promoter: &mut Promoter) -> Result<(), Full> {
        while let Some(handle) = promoter.to_register.pop() {
            let Some(entry) = self.core.handles.get(handle.index, handle.generation) else { continue };
            let Some(promoted) = entry.promoted.as_deref() else { continue };
            let Some(peer_loop) = promoter.other_loops.get(promoted.other_loop).map(OtherLoop::id) else {
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
                    self.core.found_monitor = true;
                    match OwnLoop::new(loop_page) {
                        Ok(own) => {
                            promoter.own_loops.add(own);
                            promoter.to_register = promoter.own_loops.users().collect();
                            if !promoter.to_register.is_empty() {
                                self.core.promotion_due = Some(now);
                            }
                            tracing::debug!(pages = promoter.own_loops.count(), "connected to a monitor");
                        }
                        Err(error) => tracing::warn!("the monitor's page cannot be used: {error}"),
                    }
                }
                Ok(Some(Answer::Granted { token, own, peer, peer_loop, doorbells })) => {
                    let handle = Handle::from_bits(token.get());
                    match promoter.place_of(&peer_loop) {
                        Some(other_loop) if self.core.open(handle).is_ok() => {
                            promoter.burst.pause = OFFER_AGAIN;
                            promoter.own_loops.add_user(handle);
                            let doorbells = doorbells.filter(|both| promoter.have_room(both));
                            let grant = Grant { handle, own, peer, other_loop, peer_loop, doorbells };
                            promoter.granted.push(grant);
                        }
                        _ => promoter.client.withdraw(token),
                    }
                }
                Ok(Some(Answer::Refused { token, reason: Reason::NoMonitor })) => {
                    // For the next monitor: the client connects to it once this one has
                    // ended.
                    self.core.to_offer.push(Handle::from_bits(token.get()));
                }
                Ok(Some(Answer::Refused { token, reason: Reason::Rate })) => {
                    promoter.burst.was_too_much();
                    self.core.to_offer.push(Handle::from_bits(token.get()));
                    self.core.promotion_due.get_or_insert(promoter.burst.next());
                }
                Ok(Some(Answer::Refused { token, reason })) => {
                    self.core.stats.promotions_refused += 1;
                    tracing::debug!(token = token.get(), "a connection stays on TCP: {reason}");
                }
                Ok(Some(Answer::Peer { token, user })) => {
                    tracing::debug!(token = token.get(), user, "the peer has not been offered so far");
                }
                Ok(Some(Answer::Declined { token, reason })) => {
                    tracing::debug!(token = token.get(), %reason, "the peer declines");
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::info!("{error}; promoted connections go on without it");
                    promoter.to_register.clear();
                    self.core
                        .to_offer
                        .extend(error.unanswered.iter().map(|token| Handle::from_bits(token.get())));
                    let wanted = !self.core.to_offer.is_empty() || promoter.own_loops.are_used();
                    self.core.promotion_due = promoter.client.next_attempt().filter(|_| wanted);
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
        if entry.state != State::Open || entry.promoted.is_some() {
            return Tried::Dropped;
        }
        if matches!(entry.write_state, WriteState::Fresh | WriteState::Requested) {
            // Flush first: a program that always writes before dispatching would
            // otherwise never be between operations. The next dispatch reports a refused
            // batch.
            let _ = self.turn(Wait::Flush);
        }
        if !self.core.is_between_operations(handle) {
            // Reads are paused only without queued writes: two endpoints that both
            // stopped reading until all was written would wait for each other.
            if self.core.has_no_writes(handle) {
                if let Some(entry) = self.core.handles.at_mut(handle.index) {
                    entry.being_promoted = true;
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
                // Read bytes occupy the send buffer until they are acknowledged: a
                // wake-up would find no room.
                if socket.send_buffer_size()? < SEND_BUFFER_LEAST {
                    return Ok(None);
                }
                // A wake-up must not wait for an acknowledgement.
                socket.set_tcp_nodelay(true)?;
                sys::tcp::positions(fd)
            });
        // Making the descriptor may have led to results.
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
                let promoted = Promoted::new(connection, other_loop, peer_loop, doorbells);
                if let Some(entry) = self.core.handles.at_mut(handle.index) {
                    entry.being_promoted = false;
                    entry.promoted = Some(Box::new(promoted));
                }
                self.core.arrange_reads(handle.index);
                promoter.take_heated(&mut self.core);
                Tried::Adopted
            }
            Err(error) => {
                tracing::warn!("a connection stays on TCP: {error}");
                Tried::Dropped
            }
        }
    }

    /// Restarts a read that was paused for a promotion that failed.
    fn restart_paused(&mut self, handle: Handle) {
        let Some(entry) = self.core.handles.get_mut(handle.index, handle.generation) else { return };
        let head = entry.reads.head;
        entry.being_promoted = false;
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

    /// After a write to the ring: wakes the peer if it sleeps.
    #[inline]
    pub(crate) fn wake_if_wanted(&mut self, handle: u32) {
        let Some(promoter) = self.promoter.as_mut() else { return };
        let Some(promoted) = self.core.promoted(handle) else { return };
        if !promoted.hot {
            // Only hot connections have them published before the channel sleeps.
            promoted.connection.publish_counts();
        }
        if promoted.wake_up_under_way.is_some() {
            return;
        }
        let Some(other) = promoter.other_loops.get_mut(promoted.other_loop) else { return };
        let wake_up = promoted.connection.wants_wake_up_by(other, promoted.doorbells.is_some());
        self.core.spin.wrote(wake_up.is_some());
        match wake_up {
            Some(by) => self.core.queue_wake_up(handle, by),
            None => self.core.answer_if_demoted(handle),
        }
    }

    /// A promoted connection is closed: withdraws it at the monitor.
    pub(crate) fn forget_promoted(&mut self, handle: Handle) {
        if let Some(promoted) = self.core.promoted(handle.index) {
            promoted.connection.reads_no_more(true);
        }
        if let (Some(promoter), Some(token)) = (self.promoter.as_mut(), token(handle)) {
            promoter.client.withdraw(token);
            promoter.own_loops.remove_user(handle);
        }
    }
}
