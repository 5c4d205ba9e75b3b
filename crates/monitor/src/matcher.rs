//! Handles the clients' messages: matches offers, and grants or refuses them.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use promote::Reason;
use promote::client::{DECLINES, DOORBELLS, OLDEST, QUEUES};
use promote::watch::{LoopWatch, RegionWatch};
use promote::wire::{ClientMessage, MonitorMessage, Name, Token};

use sys::doorbell::Kind;

use crate::client::{Client, Held, Loop};
use crate::closing::Foreign;
use crate::declined::Declined;
use crate::examined::Examined;
use crate::grant;
use crate::ledger::{Bucket, Ledger};
use crate::metrics::Metrics;
use crate::offers::{ClientId, Due, Offer, Offers, Party};
use crate::policy::Policy;
use crate::policy_file::Source;
use crate::sharing::{self, Connection};
use crate::verify::{Outcome, Verified, Verifier};
use crate::view::{Endpoints, SeenEndpoint};

/// Refusals logged in a second; the counters have all of them.
const LOGGED_PER_SECOND: u32 = 50;

/// All clients, and everything that waits or is promoted.
pub(crate) struct Matcher {
    pub(crate) clients: BTreeMap<ClientId, Client>,
    pub(crate) metrics: Metrics,
    policy: Policy,
    pub(crate) policy_source: Source,
    /// The user that this process runs as.
    user: u32,
    /// See [`crate::Options::queues`].
    makes_queues: bool,
    pub(crate) since: Instant,
    pub(crate) offers: Offers,
    pub(crate) examined: Examined,
    declined: Declined,
    pub(crate) ledger: Ledger,
    pub(crate) endpoints: Endpoints,
    verifier: Verifier,
    /// Sockets of promoted connections, by cookie.
    promoted: HashMap<u64, Party>,
    next_loop: u32,
    logged: Bucket,
    /// Clients that do not read, or are gone, for the event loop.
    pub(crate) stalled: Vec<ClientId>,
}

impl Matcher {
    pub(crate) fn new(
        policy: Policy,
        policy_source: Source,
        makes_queues: bool,
        now: Instant,
    ) -> io::Result<Matcher> {
        Ok(Matcher {
            clients: BTreeMap::new(),
            metrics: Metrics::new(),
            policy,
            policy_source,
            user: rustix::process::geteuid().as_raw(),
            makes_queues,
            since: now,
            offers: Offers::default(),
            examined: Examined::default(),
            declined: Declined::default(),
            ledger: Ledger::default(),
            endpoints: Endpoints::default(),
            verifier: Verifier::new()?,
            promoted: HashMap::new(),
            // Numbers of an earlier monitor may still be in use; these most likely
            // differ.
            next_loop: std::process::id().wrapping_mul(0x9e37_79b9) | 1,
            logged: Bucket::full(LOGGED_PER_SECOND, now),
            stalled: Vec::new(),
        })
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Applies another policy from now on; grants stay.
    pub(crate) fn set_policy(&mut self, policy: Policy, source: Source) {
        (self.policy, self.policy_source) = (policy, source);
    }

    /// Takes the list of clients that do not read, or are gone.
    pub(crate) fn take_stalled(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.stalled)
    }

    /// When the next offer expires.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.offers.next_expiry()
    }

    /// Admits a client, if there is room for it.
    pub(crate) fn add_client(&mut self, id: ClientId, mut client: Client) -> bool {
        let limits = &self.policy.limits;
        let room = (self.clients.len() as u64) < limits.clients;
        if !room || !self.ledger.add_client(client.subject.uid, limits) {
            self.metrics.refused(Reason::Quota);
            tracing::warn!(
                uid = client.subject.uid,
                pid = client.pid,
                "rejected a client beyond clients_per_user or clients of the policy's [limits]"
            );
            client.send(MonitorMessage::Refuse { token: None, reason: Reason::Quota });
            return false;
        }
        self.clients.insert(id, client);
        true
    }

    /// Removes a client and everything it held.
    pub(crate) fn remove_client(&mut self, id: ClientId) {
        let Some(mut client) = self.clients.remove(&id) else { return };
        self.examined.forget(id);
        let uid = client.subject.uid;
        self.ledger.remove_client(uid);
        for (token, held) in client.held.drain() {
            self.release_held(uid, Party { client: id, token }, &held);
        }
        tracing::debug!(client = id.0, uid, pid = client.pid, name = client.name(), "client gone");
    }

    /// Releases what a token stood for.
    fn release_held(&mut self, uid: u32, party: Party, held: &Held) {
        match held {
            Held::Waiting { endpoint, foreign } => {
                drop(self.offers.take(endpoint, party));
                if *foreign {
                    self.ledger.remove_kept(uid);
                }
            }
            Held::Promoted { cookie, bytes, seen } => {
                self.ledger.remove_region(uid, *bytes);
                if let Some(seen) = seen {
                    self.endpoints.remove(*seen);
                }
                if let Some(cookie) = cookie {
                    self.promoted.remove(cookie);
                }
            }
        }
    }

    /// Handles a message of a client.
    ///
    /// # Errors
    ///
    /// The violation of the protocol.
    pub(crate) fn receive(
        &mut self,
        id: ClientId,
        message: ClientMessage,
        descriptor: Option<Foreign>,
        now: Instant,
    ) -> Result<(), &'static str> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        if client.greeted.is_none() && !matches!(message, ClientMessage::Hello { .. }) {
            return Err("the first message is no hello");
        }
        match (message, descriptor) {
            (ClientMessage::Hello { .. }, None) if client.greeted.is_some() => Err("a second hello"),
            (ClientMessage::Hello { version_min, version_max, name }, None) => {
                let version = version_max.min(DECLINES);
                if version < version_min.max(OLDEST) {
                    return Err("no version in common");
                }
                self.greet(id, version, name);
                Ok(())
            }
            (ClientMessage::Offer { token }, Some(descriptor)) => {
                let party = Party { client: id, token };
                if client.held.contains_key(&token) || self.examined.contains(party) {
                    return Err("a token that is in use");
                }
                self.metrics.offers.inc();
                client.tally.offers += 1;
                self.examine(party, descriptor, now);
                Ok(())
            }
            (ClientMessage::Decline { reason }, Some(descriptor)) => {
                if Reason::OF_MONITOR.contains(&reason) {
                    return Err("a reason that monitors give");
                }
                let limits = &self.policy.limits;
                if client.bucket.take(limits.offers_per_second, limits.offers_burst, now)
                    && let Ok(verified) = self.verifier.examine(descriptor).0
                {
                    self.decline(verified, reason, now);
                }
                Ok(())
            }
            (ClientMessage::Withdraw { token }, None) => {
                self.examined.withdraw(Party { client: id, token });
                if let Some(held) = client.held.remove(&token) {
                    client.waiting -= u64::from(matches!(held, Held::Waiting { .. }));
                    let uid = client.subject.uid;
                    self.release_held(uid, Party { client: id, token }, &held);
                }
                Ok(())
            }
            (ClientMessage::Register { token, .. }, None) => {
                let limits = &self.policy.limits;
                let bytes = limits.segment_size.into();
                if client.held.contains_key(&token) {
                    return Err("a token that is in use");
                }
                // Beyond the quota it is not counted; it stays promoted all the same.
                if self.ledger.add_region(client.subject.uid, bytes, limits) {
                    client.held.insert(token, Held::Promoted { cookie: None, bytes, seen: None });
                }
                Ok(())
            }
            (ClientMessage::Query { from }, None) => {
                self.answer_query(id, from, now);
                Ok(())
            }
            (ClientMessage::AskPolicy { user }, None) => {
                self.answer_policy(id, user);
                Ok(())
            }
            // A later version may answer; in this one no client has regions to attach to.
            (ClientMessage::Attach { .. }, Some(_)) => Err("this version has no attaching"),
            _ => Err("a message with the wrong descriptors"),
        }
    }

    /// An offer came without its descriptor: this process may have no more of them.
    pub(crate) fn receive_lost(
        &mut self,
        id: ClientId,
        token: Token,
        now: Instant,
    ) -> Result<(), &'static str> {
        match self.clients.get_mut(&id) {
            Some(client) if client.greeted.is_some() && !client.held.contains_key(&token) => {
                self.metrics.offers.inc();
                client.tally.offers += 1;
                self.refuse(Party { client: id, token }, Reason::NoMemory, now);
                Ok(())
            }
            _ => Err("an offer out of turn"),
        }
    }

    fn greet(&mut self, id: ClientId, version: u32, name: Name) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let refuse = |client: &mut Client, error: &io::Error| {
            tracing::error!(%error, "rejected a client, as there is no shared memory for it");
            client.send(MonitorMessage::Refuse { token: None, reason: Reason::NoMemory });
        };
        let page = match grant::loop_page() {
            Ok(page) => page,
            Err(error) => {
                refuse(client, &error);
                self.metrics.refused(Reason::NoMemory);
                return self.stalled.push(id);
            }
        };
        let loop_id = self.next_loop;
        self.next_loop = self.next_loop.wrapping_add(1);
        let segment_size = self.policy.limits.segment_size;
        let welcome = MonitorMessage::Welcome { version, loop_id, segment_size };
        if let Err(error) = client.send_with(welcome, &[page.writable.as_fd()]) {
            refuse(client, &error);
            return self.stalled.push(id);
        }
        let watch = LoopWatch::new(page.read_only.as_fd()).ok();
        client.greeted = Some(Loop { id: loop_id, version, name, page: page.read_only, watch });
        tracing::debug!(
            client = id.0,
            uid = client.subject.uid,
            pid = client.pid,
            cgroup = client.subject.cgroup,
            %name,
            "client welcome"
        );
    }

    fn examine(&mut self, party: Party, descriptor: Foreign, now: Instant) {
        let limits = &self.policy.limits;
        let Some(client) = self.clients.get_mut(&party.client) else { return };
        let (outcome, closed) = match client.bucket.take(limits.offers_per_second, limits.offers_burst, now) {
            true => self.verifier.examine(descriptor),
            false => (Err(Reason::Rate), Some(descriptor.close())),
        };
        match closed {
            Some(closed) => self.examined.push(party, outcome, closed, now),
            None => self.answer(party, outcome, now),
        }
    }

    /// Answers the offers whose descriptors are closed by now. Returns the clients that are read again.
    pub(crate) fn answer_examined(&mut self, now: Instant) -> Vec<ClientId> {
        let (due, read_again) = self.examined.take_due(now);
        due.into_iter().for_each(|(party, outcome)| self.answer(party, outcome, now));
        read_again
    }

    fn answer(&mut self, party: Party, outcome: Outcome, now: Instant) {
        if let Err(reason) = outcome.and_then(|verified| self.offer(party, verified, now)) {
            self.refuse(party, reason, now);
        }
    }

    fn offer(&mut self, party: Party, verified: Verified, now: Instant) -> Result<(), Reason> {
        let Some(client) = self.clients.get(&party.client) else { return Ok(()) };
        if client.waiting >= self.policy.limits.waiting_per_client {
            return Err(Reason::Quota);
        }
        if self.promoted.contains_key(&verified.endpoint.cookie) {
            return Err(Reason::ClosedEarly);
        }
        if !self.declined.may_be_offered(&verified.endpoint, &mut self.verifier) {
            self.report_declined(party, Some(Reason::Shared));
            return Err(Reason::NoPeer);
        }
        let earlier = self.offers.same(&verified.endpoint);
        if earlier.is_some_and(|earlier| self.verifier.is_still(&earlier.verified)) {
            // Another holder of the same socket was faster.
            return Err(Reason::NoPeer);
        }
        if let Some(stale) = self.take(Offers::take_same, &verified) {
            self.refuse(stale.party, Reason::ClosedEarly, now);
        }
        let expires = now + self.policy.limits.offer_expires(verified.is_kept());
        if let Some(mirror) = self.take(Offers::take_mirror, &verified) {
            if self.verifier.is_still(&mirror.verified) {
                return self.grant_pair([mirror, Offer::new(party, verified, now, expires)], now);
            }
            // Of a connection that had these addresses before.
            self.refuse(mirror.party, Reason::ClosedEarly, now);
        }
        self.wait_if_allowed(Offer::new(party, verified, now, expires))
    }

    /// The endpoint is not to be offered; if another process has done so already, that is refused.
    fn decline(&mut self, verified: Verified, reason: Reason, now: Instant) {
        if reason == Reason::Shared
            && let Some(offer) = self.take(Offers::take_same, &verified)
        {
            self.report_declined(offer.party, Some(reason));
            self.refuse(offer.party, Reason::NoPeer, now);
        }
        self.declined.keep(verified, reason);
    }

    /// Removes a waiting offer; its client no longer holds the token.
    fn take(
        &mut self,
        which: impl FnOnce(&mut Offers, &sys::tcp::Endpoint) -> Option<Offer>,
        verified: &Verified,
    ) -> Option<Offer> {
        let offer = which(&mut self.offers, &verified.endpoint)?;
        self.release(&offer);
        Some(offer)
    }

    /// The client of a removed offer no longer holds it.
    fn release(&mut self, offer: &Offer) {
        if let Some(client) = self.clients.get_mut(&offer.party.client) {
            client.held.remove(&offer.party.token);
            client.waiting = client.waiting.saturating_sub(1);
            if offer.verified.is_kept() {
                self.ledger.remove_kept(client.subject.uid);
            }
        }
    }

    fn wait_if_allowed(&mut self, offer: Offer) -> Result<(), Reason> {
        let Some(client) = self.clients.get(&offer.party.client) else { return Err(Reason::NoPeer) };
        if offer.verified.is_kept() && !self.ledger.may_keep(client.subject.uid, &self.policy.limits) {
            return Err(Reason::Quota);
        }
        self.wait(offer);
        Ok(())
    }

    fn wait(&mut self, offer: Offer) {
        let Some(client) = self.clients.get_mut(&offer.party.client) else { return };
        let foreign = offer.verified.is_kept();
        client.held.insert(offer.party.token, Held::Waiting { endpoint: offer.verified.endpoint, foreign });
        client.waiting += 1;
        if foreign {
            self.ledger.add_kept(client.subject.uid);
        }
        self.offers.wait(offer);
    }

    /// Grants two offers that mirror each other; the first, which had to wait, was
    /// verified again. Queues the pair if either client's socket is full. An obstacle is
    /// reported to both clients.
    fn grant_pair(&mut self, offers: [Offer; 2], now: Instant) -> Result<(), Reason> {
        let [mirror, own] = &offers;
        let parties = [mirror.party, own.party];
        let has_no_room = |id| self.clients.get(id).is_some_and(|client| !client.has_room());
        if let Some(client) = parties.map(|party| party.client).iter().find(|id| has_no_room(id)) {
            return self.hold_up(offers, *client);
        }
        if !self.verifier.is_still(&own.verified) {
            self.refuse(parties[0], Reason::ClosedEarly, now);
            return Err(Reason::ClosedEarly);
        }
        if let Err(reason) = self.grant(&offers, now) {
            if reason == Reason::OtherUser {
                let users =
                    parties.map(|party| self.clients.get(&party.client).map(|client| client.subject.uid));
                self.report_other_user(parties[0], users[1], now);
                self.report_other_user(parties[1], users[0], now);
            }
            self.refuse(parties[0], reason, now);
            return Err(reason);
        }
        Ok(())
    }

    /// Queues two matched offers until a client has room.
    fn hold_up(&mut self, [mirror, own]: [Offer; 2], client: ClientId) -> Result<(), Reason> {
        let expires = mirror.expires.max(own.expires);
        let endpoint = own.verified.endpoint;
        // They are matched: neither is reported to be alone.
        self.wait(Offer { expires, due: expires, ..mirror });
        self.wait_if_allowed(Offer { expires, due: expires, ..own })?;
        self.offers.hold_up(&endpoint, client);
        self.stalled.push(client);
        Ok(())
    }

    /// A client may have room again: handles at most `most` pairs that have waited for
    /// that.
    pub(crate) fn go_on(&mut self, id: ClientId, most: usize, now: Instant) {
        for _ in 0..most {
            if !self.clients.get(&id).is_some_and(Client::has_room) {
                return;
            }
            let Some(offers) = self.offers.take_held_up(id) else { return };
            offers.iter().for_each(|offer| self.release(offer));
            let [first, second] = offers;
            if !self.verifier.is_still(&first.verified) {
                self.refuse(first.party, Reason::ClosedEarly, now);
                self.refuse(second.party, Reason::ClosedEarly, now);
                continue;
            }
            let party = second.party;
            if let Err(reason) = self.grant_pair([first, second], now) {
                self.refuse(party, reason, now);
            }
        }
    }

    /// Whether a pair waits for a client to have room.
    pub(crate) fn is_waited_for(&self, id: ClientId) -> bool {
        self.offers.are_held_up(id)
    }

    fn grant(&mut self, offers: &[Offer; 2], now: Instant) -> Result<(), Reason> {
        let parties = offers.each_ref().map(|offer| offer.party);
        let [Some(a), Some(b)] = parties.map(|party| self.clients.get(&party.client)) else {
            return Err(Reason::NoPeer);
        };
        let Verified { endpoint, .. } = &offers[1].verified;
        let connection = Connection {
            addresses: [endpoint.local, endpoint.peer],
            // Both offers are of one namespace: they match.
            in_network_namespace: !offers[1].verified.is_kept(),
        };
        sharing::permits(&self.policy, self.user, [&a.subject, &b.subject], connection)?;
        let limits = &self.policy.limits;
        let size = limits.segment_size;
        let users = [a.subject.uid, b.subject.uid];
        if !self.ledger.add_region(users[0], size.into(), limits) {
            return Err(Reason::Quota);
        }
        if !self.ledger.add_region(users[1], size.into(), limits) {
            self.ledger.remove_region(users[0], size.into());
            return Err(Reason::Quota);
        }
        let watches = match self.hand_out(parties, [a, b], size) {
            Ok(watches) => watches,
            Err(reason) => {
                for uid in users {
                    self.ledger.remove_region(uid, size.into());
                }
                return Err(reason);
            }
        };
        let numbers = self.endpoints.next_two();
        for (place, (offer, watch)) in offers.iter().zip(watches).enumerate() {
            let endpoint = offer.verified.endpoint;
            self.promoted.insert(endpoint.cookie, offer.party);
            let (number, other) = (numbers[place], numbers[1 - place]);
            if let Some(client) = self.clients.get_mut(&offer.party.client) {
                let held =
                    Held::Promoted { cookie: Some(endpoint.cookie), bytes: size.into(), seen: Some(number) };
                client.held.insert(offer.party.token, held);
                client.tally.granted += 1;
                let uid = client.subject.uid;
                let seen = SeenEndpoint {
                    client: offer.party.client,
                    uid,
                    other,
                    endpoint,
                    size,
                    since: now,
                    watch,
                };
                self.endpoints.insert(number, seen);
            }
        }
        self.metrics.matches.inc();
        tracing::debug!(
            clients = ?parties.map(|party| party.client.0),
            local = %endpoint.local,
            peer = %endpoint.peer,
            "promoted"
        );
        Ok(())
    }

    /// Makes the two regions, and doorbells where both clients accept them, and sends
    /// them. If only the first client got its grant, the refusal that follows withdraws
    /// it.
    fn hand_out(
        &self,
        parties: [Party; 2],
        clients: [&Client; 2],
        size: u32,
    ) -> Result<[Option<RegionWatch>; 2], Reason> {
        let no_memory = |error: io::Error| {
            tracing::error!(%error, "there is no shared memory for a connection, which stays on TCP");
            Reason::NoMemory
        };
        let regions = [grant::region(size).map_err(no_memory)?, grant::region(size).map_err(no_memory)?];
        // A process that holds a pipe's lock (splice(2)) blocks all other writers, even
        // at their exit: its own user may do that to a peer anyway.
        let is_of_one_user = clients[0].subject.uid == clients[1].subject.uid;
        let (kind, least) = if is_of_one_user { (Kind::Pipe, DOORBELLS) } else { (Kind::Queue, QUEUES) };
        let accepts =
            |client: &Client| client.greeted.as_ref().is_some_and(|greeted| greeted.version >= least);
        let accepted = clients.into_iter().all(accepts) && (is_of_one_user || self.makes_queues);
        let doorbells = accepted.then(|| grant::doorbells(kind)).transpose();
        let doorbells = doorbells.unwrap_or_else(|error| {
            tracing::debug!(%error, "there are no doorbells for a connection, which does without");
            None
        });
        for (own, other) in [(0, 1), (1, 0)] {
            let Some(peer_loop) = &clients[other].greeted else { return Err(Reason::NoPeer) };
            let message = MonitorMessage::Grant {
                token: parties[own].token,
                peer_loop: peer_loop.id,
                segment_size: size,
            };
            let mut descriptors =
                vec![regions[own].writable.as_fd(), regions[other].read_only.as_fd(), peer_loop.page.as_fd()];
            if let Some(doorbells) = &doorbells {
                descriptors.extend([doorbells[own][0].as_fd(), doorbells[other][1].as_fd()]);
            }
            if let Err(error) = clients[own].send_with(message, &descriptors) {
                tracing::debug!(client = parties[own].client.0, %error, "a grant cannot be sent");
                return Err(match error.raw_os_error() {
                    Some(libc::EPIPE | libc::ECONNRESET) => Reason::ClosedEarly,
                    // Too many descriptors are under way (unix(7)); the offers may be
                    // repeated.
                    Some(libc::ETOOMANYREFS) => Reason::Rate,
                    _ => Reason::NoMemory,
                });
            }
        }
        // Without watches the connection works as well; only its numbers are not shown.
        Ok(regions.each_ref().map(|region| RegionWatch::new(region.read_only.as_fd(), size).ok()))
    }

    /// Reports to clients whose offers have waited for a while the users of their peers,
    /// and refuses those that have waited long enough.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some(due) = self.offers.due(now) {
            let offer = due.offer();
            let (party, endpoint) = (offer.party, offer.verified.endpoint);
            let obstacle = self.clients.get(&party.client).and_then(|own| {
                let user = self.verifier.other_user(&offer.verified, own.subject.uid)?;
                let reason =
                    sharing::may_permit(&self.policy, &own.subject, user, [endpoint.local, endpoint.peer])
                        .err()?;
                Some((user, reason))
            });
            // Where the policy permits the two to share, only the peer's offer is
            // missing.
            let reason = obstacle.map_or(Reason::NoPeer, |(_, reason)| reason);
            let user = obstacle.filter(|_| reason == Reason::OtherUser).map(|(user, _)| user);
            let may_be_declined = reason == Reason::NoPeer;
            let declined =
                may_be_declined.then(|| self.declined.of_peer(&endpoint, &mut self.verifier)).flatten();
            match due {
                // Its mirror would be refused with it, or will not be offered.
                Due::Alone(_) if reason == Reason::Policy || declined.is_some() => {
                    if let Some(offer) = self.offers.take_same(&endpoint) {
                        self.release(&offer);
                    }
                    self.report_declined(party, declined);
                    self.refuse(party, reason, now);
                }
                Due::Alone(_) => self.report_peer(party, user),
                Due::Expired(offer) => {
                    self.release(&offer);
                    self.report_other_user(party, user, now);
                    self.report_declined(party, declined);
                    self.refuse(party, reason, now);
                }
            }
        }
    }

    /// Before a refusal: reports why the peer is not offered.
    fn report_declined(&mut self, party: Party, reason: Option<Reason>) {
        let (Some(client), Some(reason)) = (self.clients.get_mut(&party.client), reason) else { return };
        if client.greeted.as_ref().is_some_and(|greeted| greeted.version >= DECLINES) {
            client.send(MonitorMessage::Declined { token: party.token, reason });
        }
    }

    /// Before a refusal: reports the user of the other endpoint, and the remedy.
    fn report_other_user(&mut self, party: Party, user: Option<u32>, now: Instant) {
        let Some((client, other)) = self.clients.get(&party.client).zip(user) else { return };
        if self.logged.take(LOGGED_PER_SECOND, LOGGED_PER_SECOND, now) {
            tracing::info!(
                client = party.client.0,
                uid = client.subject.uid,
                pid = client.pid,
                name = client.name(),
                other,
                remedy = self.policy_source.remedy(client.subject.uid, other),
                "a connection with another user's program stays on TCP"
            );
        }
        self.report_peer(party, user);
    }

    fn report_peer(&mut self, party: Party, user: Option<u32>) {
        let Some(client) = self.clients.get_mut(&party.client) else { return };
        if !client.send(MonitorMessage::Peer { token: party.token, user }) || client.is_stalled() {
            self.stalled.push(party.client);
        }
    }

    /// Refuses everything, since the monitor ends.
    pub(crate) fn shut_down(&mut self, now: Instant) {
        while let Some(offer) = self.offers.take_any() {
            self.release(&offer);
            self.refuse(offer.party, Reason::NoMonitor, now);
        }
        for party in self.examined.take_all() {
            self.refuse(party, Reason::NoMonitor, now);
        }
    }

    fn refuse(&mut self, party: Party, reason: Reason, now: Instant) {
        self.metrics.refused(reason);
        let Some(client) = self.clients.get_mut(&party.client) else { return };
        client.tally.refused(reason);
        if !client.send(MonitorMessage::Refuse { token: Some(party.token), reason }) || client.is_stalled() {
            self.stalled.push(party.client);
        }
        // Frequent reasons, and those that a flood would repeat, are logged for debugging
        // only.
        let quiet = matches!(reason, Reason::NoPeer | Reason::OtherUser | Reason::Rate | Reason::NoMonitor);
        if quiet || !self.logged.take(LOGGED_PER_SECOND, LOGGED_PER_SECOND, now) {
            tracing::debug!(client = party.client.0, token = party.token.get(), %reason, "an offered connection stays on TCP");
        } else {
            tracing::info!(
                client = party.client.0,
                uid = client.subject.uid,
                pid = client.pid,
                name = client.name(),
                token = party.token.get(),
                %reason,
                "an offered connection stays on TCP"
            );
        }
    }

    /// The present metrics.
    pub(crate) fn metrics_text(&self) -> String {
        let (regions, bytes) = self.ledger.regions();
        let levels = &self.metrics.levels;
        levels.clients.set(self.clients.len() as u64);
        levels.waiting.set(self.offers.len() as u64);
        levels.promoted.set(regions);
        levels.bytes.set(bytes);
        self.metrics.text()
    }
}
