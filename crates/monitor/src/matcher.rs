//! What the clients' messages come to: offers meet, and are granted or refused.

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
use crate::view::{Ends, SeenEnd};

/// Lines about refusals that are logged in a second; the counters have all of them.
const LOGGED_PER_SECOND: u32 = 50;

/// Everybody who is connected, and everything that waits or is promoted.
pub(crate) struct Meeting {
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
    pub(crate) ends: Ends,
    verifier: Verifier,
    /// Sockets that are ends of promoted connections, by cookie.
    promoted: HashMap<u64, Party>,
    next_loop: u32,
    logged: Bucket,
    /// Clients that do not read, or are gone: the event loop has to look after them.
    pub(crate) unwell: Vec<ClientId>,
}

impl Meeting {
    pub(crate) fn new(
        policy: Policy,
        policy_source: Source,
        makes_queues: bool,
        now: Instant,
    ) -> io::Result<Meeting> {
        Ok(Meeting {
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
            ends: Ends::default(),
            verifier: Verifier::new()?,
            promoted: HashMap::new(),
            // Numbers of an earlier monitor may still be in use; these are most likely
            // others.
            next_loop: std::process::id().wrapping_mul(0x9e37_79b9) | 1,
            logged: Bucket::full(LOGGED_PER_SECOND, now),
            unwell: Vec::new(),
        })
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Follows another policy from now on; what was granted stays.
    pub(crate) fn set_policy(&mut self, policy: Policy, source: Source) {
        (self.policy, self.policy_source) = (policy, source);
    }

    /// Clients that the event loop has to look after since the last call.
    pub(crate) fn take_unwell(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.unwell)
    }

    /// When the next offer expires.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.offers.next_expiry()
    }

    /// Lets a client in, if there is room for it.
    pub(crate) fn enter(&mut self, id: ClientId, mut client: Client) -> bool {
        let limits = &self.policy.limits;
        let room = (self.clients.len() as u64) < limits.clients;
        if !room || !self.ledger.add_client(client.subject.uid, limits) {
            self.metrics.refused(Reason::Quota);
            tracing::warn!(
                uid = client.subject.uid,
                pid = client.pid,
                "rejected a client beyond clients_per_user or clients of the policy's [limits]"
            );
            client.say(MonitorMessage::Refuse { token: None, reason: Reason::Quota });
            return false;
        }
        self.clients.insert(id, client);
        true
    }

    /// Forgets a client and all it held.
    pub(crate) fn leave(&mut self, id: ClientId) {
        let Some(mut client) = self.clients.remove(&id) else { return };
        self.examined.forget(id);
        let uid = client.subject.uid;
        self.ledger.remove_client(uid);
        for (token, held) in client.held.drain() {
            self.give_up(uid, Party { client: id, token }, &held);
        }
        tracing::debug!(client = id.0, uid, pid = client.pid, name = client.name(), "client gone");
    }

    /// Gives back what a token stood for.
    fn give_up(&mut self, uid: u32, party: Party, held: &Held) {
        match held {
            Held::Waiting { end, foreign } => {
                drop(self.offers.take(end, party));
                if *foreign {
                    self.ledger.remove_kept(uid);
                }
            }
            Held::Promoted { cookie, bytes, seen } => {
                self.ledger.remove_segment(uid, *bytes);
                if let Some(seen) = seen {
                    self.ends.remove(*seen);
                }
                if let Some(cookie) = cookie {
                    self.promoted.remove(cookie);
                }
            }
        }
    }

    /// What a client said.
    ///
    /// # Errors
    ///
    /// It broke the protocol: why.
    pub(crate) fn hear(
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
                    self.declined.keep(verified, reason);
                }
                Ok(())
            }
            (ClientMessage::Withdraw { token }, None) => {
                self.examined.withdraw(Party { client: id, token });
                if let Some(held) = client.held.remove(&token) {
                    client.waiting -= u64::from(matches!(held, Held::Waiting { .. }));
                    let uid = client.subject.uid;
                    self.give_up(uid, Party { client: id, token }, &held);
                }
                Ok(())
            }
            (ClientMessage::Register { token, .. }, None) => {
                let limits = &self.policy.limits;
                let bytes = limits.segment_size.into();
                if client.held.contains_key(&token) {
                    return Err("a token that is in use");
                }
                // Beyond the quota it is not counted; it lives all the same.
                if self.ledger.add_segment(client.subject.uid, bytes, limits) {
                    client.held.insert(token, Held::Promoted { cookie: None, bytes, seen: None });
                }
                Ok(())
            }
            (ClientMessage::Query { from }, None) => {
                self.tell(id, from, now);
                Ok(())
            }
            (ClientMessage::AskPolicy { user }, None) => {
                self.tell_policy(id, user);
                Ok(())
            }
            // A later version answers; in this one nobody has segments to give.
            (ClientMessage::Attach { .. }, Some(_)) => Err("attaching is not spoken in this version"),
            _ => Err("a message with the wrong descriptors"),
        }
    }

    /// An offer came without its descriptor, since this process may have no more of them.
    pub(crate) fn hear_lost(&mut self, id: ClientId, token: Token, now: Instant) -> Result<(), &'static str> {
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
            client.say(MonitorMessage::Refuse { token: None, reason: Reason::NoMemory });
        };
        let page = match grant::loop_page() {
            Ok(page) => page,
            Err(error) => {
                refuse(client, &error);
                self.metrics.refused(Reason::NoMemory);
                return self.unwell.push(id);
            }
        };
        let loop_id = self.next_loop;
        self.next_loop = self.next_loop.wrapping_add(1);
        let segment_size = self.policy.limits.segment_size;
        let welcome = MonitorMessage::Welcome { version, loop_id, segment_size };
        if let Err(error) = client.hand(welcome, &[page.writable.as_fd()]) {
            refuse(client, &error);
            return self.unwell.push(id);
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
        if self.promoted.contains_key(&verified.end.cookie) {
            return Err(Reason::ClosedEarly);
        }
        self.declined.forget(&verified.end);
        let earlier = self.offers.same(&verified.end);
        if earlier.is_some_and(|earlier| self.verifier.is_still(&earlier.verified)) {
            // Another holder of the same end was faster.
            return Err(Reason::NoPeer);
        }
        if let Some(stale) = self.take(Offers::take_same, &verified) {
            self.refuse(stale.party, Reason::ClosedEarly, now);
        }
        let expires = now + self.policy.limits.offer_expires(verified.is_kept());
        if let Some(mirror) = self.take(Offers::take_mirror, &verified) {
            if self.verifier.is_still(&mirror.verified) {
                return self.unite([mirror, Offer::new(party, verified, now, expires)], now);
            }
            // Of a connection that had these addresses before.
            self.refuse(mirror.party, Reason::ClosedEarly, now);
        }
        self.wait_if_allowed(Offer::new(party, verified, now, expires))
    }

    /// Takes out a waiting offer; its client no longer holds the token.
    fn take(
        &mut self,
        which: impl FnOnce(&mut Offers, &sys::tcp::End) -> Option<Offer>,
        verified: &Verified,
    ) -> Option<Offer> {
        let offer = which(&mut self.offers, &verified.end)?;
        self.release(&offer);
        Some(offer)
    }

    /// The client of an offer that was taken out no longer holds it.
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
        client.held.insert(offer.party.token, Held::Waiting { end: offer.verified.end, foreign });
        client.waiting += 1;
        if foreign {
            self.ledger.add_kept(client.subject.uid);
        }
        self.offers.wait(offer);
    }

    /// Two offers that mirror each other; the first, which had to wait, still is what it
    /// was. Whatever stands in the way is answered to both; what cannot be told to both now is not begun.
    fn unite(&mut self, offers: [Offer; 2], now: Instant) -> Result<(), Reason> {
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
                self.tell_of_other_user(parties[0], users[1], now);
                self.tell_of_other_user(parties[1], users[0], now);
            }
            self.refuse(parties[0], reason, now);
            return Err(reason);
        }
        Ok(())
    }

    /// Lets two offers that have met wait until a client has room.
    fn hold_up(&mut self, [mirror, own]: [Offer; 2], client: ClientId) -> Result<(), Reason> {
        let expires = mirror.expires.max(own.expires);
        let end = own.verified.end;
        // Both have met: neither is reported to be alone.
        self.wait(Offer { expires, due: expires, ..mirror });
        self.wait_if_allowed(Offer { expires, due: expires, ..own })?;
        self.offers.hold_up(&end, client);
        self.unwell.push(client);
        Ok(())
    }

    /// A client may have room again: what has waited for that, and no more than `most`.
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
            if let Err(reason) = self.unite([first, second], now) {
                self.refuse(party, reason, now);
            }
        }
    }

    /// Whether anything waits for a client to have room.
    pub(crate) fn is_waited_for(&self, id: ClientId) -> bool {
        self.offers.are_held_up(id)
    }

    fn grant(&mut self, offers: &[Offer; 2], now: Instant) -> Result<(), Reason> {
        let parties = offers.each_ref().map(|offer| offer.party);
        let [Some(a), Some(b)] = parties.map(|party| self.clients.get(&party.client)) else {
            return Err(Reason::NoPeer);
        };
        let Verified { end, .. } = &offers[1].verified;
        let connection = Connection {
            addresses: [end.local, end.peer],
            // Both offers are of one namespace: they met.
            in_network_namespace: !offers[1].verified.is_kept(),
        };
        sharing::permits(&self.policy, self.user, [&a.subject, &b.subject], connection)?;
        let limits = &self.policy.limits;
        let size = limits.segment_size;
        let users = [a.subject.uid, b.subject.uid];
        if !self.ledger.add_segment(users[0], size.into(), limits) {
            return Err(Reason::Quota);
        }
        if !self.ledger.add_segment(users[1], size.into(), limits) {
            self.ledger.remove_segment(users[0], size.into());
            return Err(Reason::Quota);
        }
        let watches = match self.hand_out(parties, [a, b], size) {
            Ok(watches) => watches,
            Err(reason) => {
                for uid in users {
                    self.ledger.remove_segment(uid, size.into());
                }
                return Err(reason);
            }
        };
        let numbers = self.ends.next_two();
        for (place, (offer, watch)) in offers.iter().zip(watches).enumerate() {
            let end = offer.verified.end;
            self.promoted.insert(end.cookie, offer.party);
            let (number, other) = (numbers[place], numbers[1 - place]);
            if let Some(client) = self.clients.get_mut(&offer.party.client) {
                let held =
                    Held::Promoted { cookie: Some(end.cookie), bytes: size.into(), seen: Some(number) };
                client.held.insert(offer.party.token, held);
                client.tally.granted += 1;
                let uid = client.subject.uid;
                let seen = SeenEnd { client: offer.party.client, uid, other, end, size, since: now, watch };
                self.ends.insert(number, seen);
            }
        }
        self.metrics.matches.inc();
        tracing::debug!(
            clients = ?parties.map(|party| party.client.0),
            local = %end.local,
            peer = %end.peer,
            "promoted"
        );
        Ok(())
    }

    /// Makes the two segments, and doorbells where both clients accept them, and sends them.
    /// If only the first client got its grant, the refusal that follows takes it back.
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
        let segments = [grant::segment(size).map_err(no_memory)?, grant::segment(size).map_err(no_memory)?];
        // A process that holds a pipe's lock (splice(2)) lets nobody else write there, and none to end: what that does to a
        // peer, its own user may do anyway.
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
            let mut descriptors = vec![
                segments[own].writable.as_fd(),
                segments[other].read_only.as_fd(),
                peer_loop.page.as_fd(),
            ];
            if let Some(doorbells) = &doorbells {
                descriptors.extend([doorbells[own][0].as_fd(), doorbells[other][1].as_fd()]);
            }
            if let Err(error) = clients[own].hand(message, &descriptors) {
                tracing::debug!(client = parties[own].client.0, %error, "a grant cannot be sent");
                return Err(match error.raw_os_error() {
                    Some(libc::EPIPE | libc::ECONNRESET) => Reason::ClosedEarly,
                    // Too many descriptors are under way (unix(7)); they may come again.
                    Some(libc::ETOOMANYREFS) => Reason::Rate,
                    _ => Reason::NoMemory,
                });
            }
        }
        // Without them the connection is as good, and only its numbers are not seen.
        Ok(segments.each_ref().map(|segment| RegionWatch::new(segment.read_only.as_fd(), size).ok()))
    }

    /// Tells offers that have waited for a while what is known of their peers, and refuses those that have waited long
    /// enough.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some(due) = self.offers.due(now) {
            let offer = due.offer();
            let (party, end) = (offer.party, offer.verified.end);
            let obstacle = self.clients.get(&party.client).and_then(|own| {
                let user = self.verifier.other_user(&offer.verified, own.subject.uid)?;
                let reason =
                    sharing::may_permit(&self.policy, &own.subject, user, [end.local, end.peer]).err()?;
                Some((user, reason))
            });
            // Where the policy lets the two share, only the peer's offer is missing.
            let reason = obstacle.map_or(Reason::NoPeer, |(_, reason)| reason);
            let user = obstacle.filter(|_| reason == Reason::OtherUser).map(|(user, _)| user);
            let may_be_declined = reason == Reason::NoPeer;
            let declined = may_be_declined.then(|| self.declined.of_peer(&end, &mut self.verifier)).flatten();
            match due {
                // Its mirror would be refused with it, or does not come.
                Due::Alone(_) if reason == Reason::Policy || declined.is_some() => {
                    if let Some(offer) = self.offers.take_same(&end) {
                        self.release(&offer);
                    }
                    self.tell_of_declined(party, declined);
                    self.refuse(party, reason, now);
                }
                Due::Alone(_) => self.tell_of_peer(party, user),
                Due::Expired(offer) => {
                    self.release(&offer);
                    self.tell_of_other_user(party, user, now);
                    self.tell_of_declined(party, declined);
                    self.refuse(party, reason, now);
                }
            }
        }
    }

    /// Before a refusal: why the peer is not offered.
    fn tell_of_declined(&mut self, party: Party, reason: Option<Reason>) {
        let (Some(client), Some(reason)) = (self.clients.get_mut(&party.client), reason) else { return };
        if client.greeted.as_ref().is_some_and(|greeted| greeted.version >= DECLINES) {
            client.say(MonitorMessage::Declined { token: party.token, reason });
        }
    }

    /// Before a refusal: whose the other endpoint is, with what lets the two share.
    fn tell_of_other_user(&mut self, party: Party, user: Option<u32>, now: Instant) {
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
        self.tell_of_peer(party, user);
    }

    fn tell_of_peer(&mut self, party: Party, user: Option<u32>) {
        let Some(client) = self.clients.get_mut(&party.client) else { return };
        if !client.say(MonitorMessage::Peer { token: party.token, user }) || client.is_stalled() {
            self.unwell.push(party.client);
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
        if !client.say(MonitorMessage::Refuse { token: Some(party.token), reason }) || client.is_stalled() {
            self.unwell.push(party.client);
        }
        // Everyday ones, and those that a flood would repeat, only where they are asked for.
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

    /// The metrics of this moment.
    pub(crate) fn metrics_text(&self) -> String {
        let (segments, bytes) = self.ledger.segments();
        let levels = &self.metrics.levels;
        levels.clients.set(self.clients.len() as u64);
        levels.waiting.set(self.offers.len() as u64);
        levels.promoted.set(segments);
        levels.bytes.set(bytes);
        self.metrics.text()
    }
}
