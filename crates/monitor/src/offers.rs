//! The offers that wait for their mirror image.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::Instant;

use promote::wire::Token;
use sys::tcp::End;

use crate::verify::Verified;

/// A client of this run of the monitor; numbers are not used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ClientId(pub(crate) u64);

/// One end of one connection, as its client names it.
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
}

/// Where one end of a connection is, seen from outside: two sockets of one namespace have
/// the same place only if one of them is gone, or they are bound to different interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Place {
    namespace: u64,
    interface: u32,
    local: SocketAddr,
    peer: SocketAddr,
}

impl Place {
    fn of(end: &End) -> Place {
        Place { namespace: end.namespace, interface: end.interface, local: end.local, peer: end.peer }
    }

    fn mirrored(self) -> Place {
        Place { local: self.peer, peer: self.local, ..self }
    }
}

/// The table of waiting offers.
#[derive(Default)]
pub(crate) struct Offers {
    waiting: HashMap<Place, Offer>,
    /// The same offers in the order in which they expire.
    expiry: BTreeSet<(Instant, Party, Place)>,
}

impl Offers {
    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Takes out the offer of the other end.
    pub(crate) fn take_mirror(&mut self, end: &End) -> Option<Offer> {
        self.remove(Place::of(end).mirrored())
    }

    /// Takes out an offer of the same end, or of an earlier connection's in its place.
    pub(crate) fn take_same(&mut self, end: &End) -> Option<Offer> {
        self.remove(Place::of(end))
    }

    /// Takes out a client's offer.
    pub(crate) fn take(&mut self, end: &End, party: Party) -> Option<Offer> {
        let place = Place::of(end);
        if self.waiting.get(&place)?.party != party {
            return None;
        }
        self.remove(place)
    }

    /// Takes out one offer that has waited long enough.
    pub(crate) fn take_expired(&mut self, now: Instant) -> Option<Offer> {
        let (expires, _, place) = self.expiry.first().copied()?;
        if expires <= now { self.remove(place) } else { None }
    }

    /// Takes out any offer.
    pub(crate) fn take_any(&mut self) -> Option<Offer> {
        let (.., place) = self.expiry.first().copied()?;
        self.remove(place)
    }

    /// Lets an offer wait, in a place that is free.
    pub(crate) fn wait(&mut self, offer: Offer) {
        let place = Place::of(&offer.verified.end);
        self.expiry.insert((offer.expires, offer.party, place));
        self.waiting.insert(place, offer);
    }

    /// When the next offer expires.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.expiry.first().map(|(expires, ..)| *expires)
    }

    fn remove(&mut self, place: Place) -> Option<Offer> {
        let offer = self.waiting.remove(&place)?;
        self.expiry.remove(&(offer.expires, offer.party, place));
        Some(offer)
    }
}
