//! Waiting offers: for their mirror image, or for a client whose socket is full.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use promote::wire::Token;
use sys::tcp::Endpoint;

use crate::verify::Verified;

/// A client of this run of the monitor; numbers are not used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ClientId(pub(crate) u64);

/// One endpoint of one connection, as its client names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Party {
    pub(crate) client: ClientId,
    pub(crate) token: Token,
}

/// An offer that waits.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) party: Party,
    pub(crate) verified: Verified,
    /// When it is refused.
    pub(crate) expires: Instant,
    /// When it is due next: once to report the user of its peer, then to be refused.
    pub(crate) due: Instant,
}

/// Programs that share offer both endpoints within some milliseconds of each other. After
/// this long the user of an offer's peer is reported to its client.
const ALONE_AFTER: Duration = Duration::from_millis(100);

impl Offer {
    /// One that came now.
    pub(crate) fn new(party: Party, verified: Verified, now: Instant, expires: Instant) -> Offer {
        Offer { party, verified, expires, due: expires.min(now + ALONE_AFTER) }
    }
}

/// What is due.
pub(crate) enum Due<'a> {
    /// An offer without a mirror so far, which continues to wait.
    Alone(&'a Offer),
    /// It has waited long enough, and was removed.
    Expired(Offer),
}

impl Due<'_> {
    pub(crate) fn offer(&self) -> &Offer {
        match self {
            Due::Alone(offer) => offer,
            Due::Expired(offer) => offer,
        }
    }
}

/// The place of one endpoint of a connection, as seen by the peer: two sockets of one
/// namespace have the same place only if one of them is gone, or they are bound to
/// different interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Place {
    namespace: u64,
    interface: u32,
    local: SocketAddr,
    peer: SocketAddr,
}

impl Place {
    pub(crate) fn of(endpoint: &Endpoint) -> Place {
        Place {
            namespace: endpoint.namespace,
            interface: endpoint.interface,
            local: endpoint.local,
            peer: endpoint.peer,
        }
    }

    pub(crate) fn mirrored(self) -> Place {
        Place { local: self.peer, peer: self.local, ..self }
    }

    /// The one of both endpoints' places that stands for their connection.
    fn of_connection(self) -> Place {
        self.min(self.mirrored())
    }
}

/// The table of waiting offers.
#[derive(Default)]
pub(crate) struct Offers {
    waiting: HashMap<Place, Offer>,
    /// The same offers in the order in which they are due.
    expiry: BTreeSet<(Instant, Party, Place)>,
    /// Connections whose two offers both wait for a client with a full socket, by client
    /// and order.
    held_up: BTreeMap<(ClientId, u64), Place>,
    /// The same by connection.
    turns: HashMap<Place, (ClientId, u64)>,
    next_turn: u64,
}

impl Offers {
    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Removes the offer of the other endpoint.
    pub(crate) fn take_mirror(&mut self, endpoint: &Endpoint) -> Option<Offer> {
        self.remove(Place::of(endpoint).mirrored())
    }

    /// The offer of the same endpoint, or of an earlier connection's in its place.
    pub(crate) fn same(&self, endpoint: &Endpoint) -> Option<&Offer> {
        self.waiting.get(&Place::of(endpoint))
    }

    /// Removes that.
    pub(crate) fn take_same(&mut self, endpoint: &Endpoint) -> Option<Offer> {
        self.remove(Place::of(endpoint))
    }

    /// Removes a client's offer.
    pub(crate) fn take(&mut self, endpoint: &Endpoint, party: Party) -> Option<Offer> {
        let place = Place::of(endpoint);
        if self.waiting.get(&place)?.party != party {
            return None;
        }
        self.remove(place)
    }

    /// What is due for the first offer.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Due<'_>> {
        let first = self.expiry.first().copied()?;
        let (due, party, place) = first;
        if due > now {
            return None;
        }
        match self.waiting.get(&place)?.expires {
            expires if expires <= now => self.remove(place).map(Due::Expired),
            expires => {
                self.expiry.remove(&first);
                self.expiry.insert((expires, party, place));
                let offer = self.waiting.get_mut(&place)?;
                offer.due = expires;
                Some(Due::Alone(offer))
            }
        }
    }

    /// Removes any offer.
    pub(crate) fn take_any(&mut self) -> Option<Offer> {
        let (.., place) = self.expiry.first().copied()?;
        self.remove(place)
    }

    /// Adds a waiting offer, in a free place.
    pub(crate) fn wait(&mut self, offer: Offer) {
        let place = Place::of(&offer.verified.endpoint);
        self.expiry.insert((offer.due, offer.party, place));
        self.waiting.insert(place, offer);
    }

    /// Both offers of an endpoint's connection wait until a client has room.
    pub(crate) fn hold_up(&mut self, endpoint: &Endpoint, client: ClientId) {
        let connection = Place::of(endpoint).of_connection();
        let turn = (client, self.next_turn);
        self.next_turn += 1;
        self.held_up.insert(turn, connection);
        self.turns.insert(connection, turn);
    }

    /// Whether any wait until a client has room.
    pub(crate) fn are_held_up(&self, client: ClientId) -> bool {
        self.first_held_up(client).is_some()
    }

    /// Removes the offers of the connection that has waited longest for a client to have
    /// room.
    pub(crate) fn take_held_up(&mut self, client: ClientId) -> Option<[Offer; 2]> {
        let connection = self.first_held_up(client)?;
        // Both wait: the removal of one of them ends the turn.
        Some([self.remove(connection)?, self.remove(connection.mirrored())?])
    }

    fn first_held_up(&self, client: ClientId) -> Option<Place> {
        self.held_up.range((client, 0)..=(client, u64::MAX)).next().map(|(_, connection)| *connection)
    }

    /// When the next offer is due.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.expiry.first().map(|(due, ..)| *due)
    }

    fn remove(&mut self, place: Place) -> Option<Offer> {
        let offer = self.waiting.remove(&place)?;
        self.expiry.remove(&(offer.due, offer.party, place));
        if let Some(turn) = self.turns.remove(&place.of_connection()) {
            self.held_up.remove(&turn);
        }
        Some(offer)
    }
}
