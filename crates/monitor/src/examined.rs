//! Offers that were verified, and are answered once their descriptors are closed here: a
//! program that has its answer may close the connection, and FIN or RST would wait for
//! the last copy.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use promote::wire::Token;

use crate::closing::Closed;
use crate::offers::{ClientId, Party};
use crate::verify::Outcome;

/// How long an answer waits for a close, which may linger (SO_LINGER).
const CLOSED_WITHIN: Duration = Duration::from_secs(1);
/// Such offers of one client at which the monitor stops reading from it.
const MOST: usize = 64;

struct Offer {
    token: Token,
    outcome: Outcome,
    closed: Closed,
    until: Instant,
}

/// Those of each client, which are answered in their order.
#[derive(Default)]
pub(crate) struct Examined(BTreeMap<ClientId, VecDeque<Offer>>);

impl Examined {
    pub(crate) fn push(&mut self, party: Party, outcome: Outcome, closed: Closed, now: Instant) {
        let offer = Offer { token: party.token, outcome, closed, until: now + CLOSED_WITHIN };
        self.0.entry(party.client).or_default().push_back(offer);
    }

    pub(crate) fn contains(&self, party: Party) -> bool {
        self.0.get(&party.client).is_some_and(|offers| offers.iter().any(|offer| offer.token == party.token))
    }

    pub(crate) fn withdraw(&mut self, party: Party) {
        if let Some(offers) = self.0.get_mut(&party.client) {
            offers.retain(|offer| offer.token != party.token);
        }
    }

    /// A client is gone.
    pub(crate) fn forget(&mut self, client: ClientId) {
        self.0.remove(&client);
    }

    pub(crate) fn is_full(&self, client: ClientId) -> bool {
        self.0.get(&client).is_some_and(|offers| offers.len() >= MOST)
    }

    /// When an answer is due whether its descriptor is closed or not.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.0.values().filter_map(|offers| offers.front()).map(|offer| offer.until).min()
    }

    /// Removes those that are due, and returns the clients that are no longer full.
    pub(crate) fn take_due(&mut self, now: Instant) -> (Vec<(Party, Outcome)>, Vec<ClientId>) {
        let (mut due, mut no_longer_full) = (Vec::new(), Vec::new());
        for (&client, offers) in &mut self.0 {
            let was_full = offers.len() >= MOST;
            let is_due = |offer: &&Offer| offer.closed.is_done() || offer.until <= now;
            let count = offers.iter().take_while(is_due).count();
            due.extend(offers.drain(..count).map(|of| (Party { client, token: of.token }, of.outcome)));
            if was_full && offers.len() < MOST {
                no_longer_full.push(client);
            }
        }
        self.0.retain(|_, offers| !offers.is_empty());
        (due, no_longer_full)
    }

    /// Takes out all.
    pub(crate) fn take_all(&mut self) -> Vec<Party> {
        let all = std::mem::take(&mut self.0).into_iter();
        all.flat_map(|(client, offers)| offers.into_iter().map(move |of| Party { client, token: of.token }))
            .collect()
    }
}
