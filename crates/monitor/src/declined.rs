//! Endpoints whose programs will not offer them: an offer of the peer is refused with their reason.

use std::collections::{HashMap, VecDeque};

use promote::Reason;
use sys::tcp::Endpoint;

use crate::offers::Place;
use crate::verify::{Verified, Verifier};

/// The oldest goes for a newer one.
const MOST: usize = 4096;

/// The last of them.
#[derive(Default)]
pub(crate) struct Declined {
    reasons: HashMap<Place, (Verified, Reason)>,
    order: VecDeque<Place>,
}

impl Declined {
    /// An endpoint of another network namespace is not kept: it holds a descriptor.
    pub(crate) fn keep(&mut self, verified: Verified, reason: Reason) {
        if verified.is_kept() {
            return;
        }
        let place = Place::of(&verified.endpoint);
        if self.reasons.insert(place, (verified, reason)).is_none() {
            self.order.push_back(place);
        }
        if self.order.len() > MOST {
            self.order.pop_front().map(|oldest| self.reasons.remove(&oldest));
        }
    }

    /// An offer of the endpoint. False: another process has the socket, too, and it stays declined.
    pub(crate) fn may_be_offered(&mut self, endpoint: &Endpoint, verifier: &mut Verifier) -> bool {
        let shared = |(verified, reason): &(Verified, Reason)| {
            *reason == Reason::Shared
                && verified.endpoint.cookie == endpoint.cookie
                && verifier.is_still(verified)
        };
        let may = !self.reasons.get(&Place::of(endpoint)).is_some_and(shared);
        if may {
            self.forget(endpoint);
        }
        may
    }

    fn forget(&mut self, endpoint: &Endpoint) {
        let place = Place::of(endpoint);
        if self.reasons.remove(&place).is_some() {
            self.order.retain(|other| *other != place);
        }
    }

    /// Why the peer of an endpoint is not offered; asks the kernel whether the declined socket still is that peer.
    pub(crate) fn of_peer(&mut self, endpoint: &Endpoint, verifier: &mut Verifier) -> Option<Reason> {
        let place = Place::of(endpoint).mirrored();
        let (verified, reason) = self.reasons.get(&place)?;
        let (is_still, reason) = (verifier.is_still(verified), *reason);
        if !is_still {
            let gone = verified.endpoint;
            self.forget(&gone);
        }
        is_still.then_some(reason)
    }
}
